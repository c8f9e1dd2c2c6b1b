"""lucidrains' x-transformers on PyTorch: the same block from its keywords.

Rotary positions over the whole head, LayerNorm, GELU feed-forward without biases, tied
head, torch's fused attention (`attn_flash`).
"""

import importlib.metadata

import torch
import x_transformers

from benchmarks.points import Point
from benchmarks.worker import Built
from benchmarks.workers import torch_loop


def build(point: Point, text: str, *, compiled: bool = False) -> Built:
    """compiled: through `torch.compile`; otherwise eager."""
    torch_loop.set_threads()
    torch.manual_seed(0)
    d_head = point.d_model // point.n_heads
    model = x_transformers.TransformerWrapper(
        num_tokens=point.vocab_size,
        max_seq_len=point.seq_len,
        use_abs_pos_emb=False,
        tie_embedding=True,
        attn_layers=x_transformers.Decoder(
            dim=point.d_model,
            depth=point.n_layers,
            heads=point.n_heads,
            attn_dim_head=d_head,
            attn_flash=True,
            rotary_pos_emb=True,
            rotary_emb_dim=d_head,
            ff_mult=4,
            ff_no_bias=True,
        ),
    )
    forward = torch.compile(model) if compiled else model

    def loss_of(batch):
        logits = forward(batch[:, :-1])
        return torch.nn.functional.cross_entropy(
            logits.flatten(0, 1), batch[:, 1:].flatten()
        )

    return torch_loop.training(
        model,
        loss_of,
        point,
        text,
        matmul_params=torch_loop.product_params(model),
        versions={"x-transformers": importlib.metadata.version("x-transformers")},
    )
