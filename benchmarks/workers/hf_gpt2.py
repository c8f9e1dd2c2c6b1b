"""GPT-2 of Hugging Face transformers on PyTorch.

Its architecture forces learned positions and biases in every linear map. Dropout is off;
attention is its default (`scaled_dot_product_attention`), and its GELU the one call of
torch with the same tanh form, which is faster than the default `gelu_new`.
"""

import torch
import transformers

from benchmarks.points import Point
from benchmarks.worker import Built
from benchmarks.workers import torch_loop


def build(point: Point, text: str, *, compiled: bool = False) -> Built:
    """compiled: through `torch.compile`; otherwise eager."""
    torch_loop.set_threads()
    torch.manual_seed(0)
    config = transformers.GPT2Config(
        vocab_size=point.vocab_size,
        n_positions=point.seq_len,
        n_embd=point.d_model,
        n_layer=point.n_layers,
        n_head=point.n_heads,
        activation_function="gelu_pytorch_tanh",
        resid_pdrop=0.0,
        embd_pdrop=0.0,
        attn_pdrop=0.0,
        use_cache=False,
        bos_token_id=0,
        eos_token_id=0,
    )
    model = transformers.GPT2LMHeadModel(config)
    forward = torch.compile(model) if compiled else model

    def loss_of(batch):
        logits = forward(input_ids=batch[:, :-1]).logits
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch[:, 1:].flatten()
        )

    return torch_loop.training(
        model,
        loss_of,
        point,
        text,
        matmul_params=torch_loop.product_params(model, "transformer.wpe.weight"),
        versions={"transformers": transformers.__version__},
    )
