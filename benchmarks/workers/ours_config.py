"""A point as overrides of the framework's default config; imports nothing heavy."""

from benchmarks import points
from benchmarks.points import Point


def overrides(point: Point, text: str) -> list[str]:
    """Same model, optimizer and data as the peers have; constant learning rate."""
    return [
        "model=small",
        f"model.d_model={point.d_model}",
        f"model.n_layers={point.n_layers}",
        f"model.n_heads={point.n_heads}",
        f"model.d_ff={point.d_ff}",
        "model.tied_head=true",
        "norm=layernorm",
        "placement=pre",
        "ffn=mlp",
        f"batch_size={point.batch_size}",
        f"seq_len={point.seq_len}",
        "data=bytes",
        f"data.path={text}",
        "schedule=constant",
        "optimizer=adamw",
        f"optimizer.learning_rate={points.LEARNING_RATE}",
        f"optimizer.b1={points.B1}",
        f"optimizer.b2={points.B2}",
        f"optimizer.eps={points.EPS}",
        f"optimizer.weight_decay={points.WEIGHT_DECAY}",
        f"optimizer.clip_norm={points.CLIP_NORM}",
    ]


def state_bytes(point: Point) -> int:
    """Parameters and both moments of one member in float32."""
    norms = 2 * point.d_model * (2 * point.n_layers + 1)
    return 3 * 4 * (point.matmul_params + norms)
