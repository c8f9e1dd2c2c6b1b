"""karpathy/nanoGPT from a checkout: its model and its optimizer, our loop around them.

Learned positions, no biases (`bias=False`), dropout off; its loop clips at 1 like ours.
"""

import sys

import torch

from benchmarks import points
from benchmarks.points import Point
from benchmarks.worker import Built
from benchmarks.workers import torch_loop


def build(point: Point, text: str, *, checkout: str, compiled: bool = False) -> Built:
    """checkout: folder with nanoGPT's model.py."""
    torch_loop.set_threads()
    torch.manual_seed(0)
    sys.path.insert(0, checkout)
    from model import GPT, GPTConfig

    model = GPT(
        GPTConfig(
            block_size=point.seq_len,
            vocab_size=point.vocab_size,
            n_layer=point.n_layers,
            n_head=point.n_heads,
            n_embd=point.d_model,
            dropout=0.0,
            bias=False,
        )
    )
    optimizer = model.configure_optimizers(
        points.WEIGHT_DECAY, points.LEARNING_RATE, (points.B1, points.B2), "cpu"
    )
    forward = torch.compile(model) if compiled else model
    return torch_loop.training(
        model,
        lambda batch: forward(batch[:, :-1], batch[:, 1:].contiguous())[1],
        point,
        text,
        matmul_params=torch_loop.product_params(model, "transformer.wpe.weight"),
        versions={},
        optimizer=optimizer,
    )
