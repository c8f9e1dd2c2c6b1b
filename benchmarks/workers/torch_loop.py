"""What the PyTorch peers share: the training loop around a model."""

import os
from collections.abc import Callable

import torch

from benchmarks import points
from benchmarks.points import Point
from benchmarks.text import Windows
from benchmarks.worker import Built


def set_threads() -> None:
    """As many threads as this process has cores; more would spin and wait."""
    torch.set_num_threads(len(os.sched_getaffinity(0)))


def adamw(model: torch.nn.Module) -> torch.optim.Optimizer:
    """The fused AdamW, the fastest torch has; only tensors of rank 2 and up decay."""
    params = list(model.parameters())
    return torch.optim.AdamW(
        [
            {
                "params": [p for p in params if p.ndim > 1],
                "weight_decay": points.WEIGHT_DECAY,
            },
            {"params": [p for p in params if p.ndim < 2], "weight_decay": 0.0},
        ],
        lr=points.LEARNING_RATE,
        betas=(points.B1, points.B2),
        eps=points.EPS,
        fused=True,
    )


def training(
    model: torch.nn.Module,
    loss_of: Callable[[torch.Tensor], torch.Tensor],
    point: Point,
    text: str,
    *,
    matmul_params: int,
    versions: dict[str, str],
    optimizer: torch.optim.Optimizer | None = None,
) -> Built:
    """Trains `model`; `loss_of` maps int64 [batch, seq + 1] to its mean loss."""
    params = list(model.parameters())
    optimizer = optimizer or adamw(model)
    windows = Windows(text, point.batch_size, point.seq_len)
    model.train()

    def run(n):
        for _ in range(n):
            optimizer.zero_grad(set_to_none=True)
            loss = loss_of(torch.from_numpy(windows.next()))
            loss.backward()
            torch.nn.utils.clip_grad_norm_(params, points.CLIP_NORM)
            optimizer.step()
        return {"loss": loss.item()}  # on a CPU nothing is pending after a step

    return Built(
        {"run": run},
        {
            "n_params": sum(p.numel() for p in params),
            "matmul_params": matmul_params,
            "versions": {"torch": torch.__version__, **versions},
        },
    )


def product_params(model: torch.nn.Module, *not_multiplied: str) -> int:
    """Entries of tensors of rank 2 and up, but for the named ones (position tables)."""
    return sum(
        p.numel()
        for name, p in model.named_parameters()
        if p.ndim > 1 and name not in not_multiplied
    )
