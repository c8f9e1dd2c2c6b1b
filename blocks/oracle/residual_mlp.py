"""The residual MLP in float64 NumPy; its arguments as in oracle.language_model."""

import numpy as np

from blocks.oracle.language_model import below, layers, residual_sublayer


def residual_mlp(
    x,
    params,
    *,
    placement,
    norm,
    ffn,
    ffn_norm=None,
    final_norm=None,
    skip=1.0,
    branch_scale=1.0,
):
    """Rows x [rows, d_model] to the output [rows, d_model], final norm included."""
    if placement.embedding_norm:
        x = norm(x, **below(params, "embedding_norm"))
    for layer in layers(params):
        x = residual_sublayer(
            x,
            layer,
            "ffn",
            F=ffn,
            norm=ffn_norm or norm,
            placement=placement,
            skip=skip,
            branch_scale=branch_scale,
        )
    if placement.final_norm:
        x = (final_norm or norm)(x, **below(params, "final_norm"))
    return x


def linear_loss(out, weights):
    """mean(out * weights) over all entries."""
    return np.mean(out * weights)
