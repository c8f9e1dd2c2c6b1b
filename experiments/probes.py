"""Probe arrays of one member as rows of probes.jsonl."""

from typing import Any

import numpy as np

SITES = ("stream_grad_norm", "stream_mean_square", "branch_mean_square")


def probe_rows(step: int, measured: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """One row per quantity: per layer, per site (layers times sub-layers) or scalar."""
    rows = []
    for quantity in sorted(measured):
        value = np.asarray(measured[quantity])
        axis = "site" if quantity in SITES else "layer" if value.ndim == 1 else "scalar"
        rows.append(
            {
                "step": step,
                "quantity": quantity,
                "axis": axis,
                "values": [float(v) for v in value.reshape(-1)],
            }
        )
    return rows
