"""Probe arrays of one member as rows of probes.jsonl."""

from typing import Any

import numpy as np

# One value per layer; the others have layers and sub-layers.
BY_LAYER = (
    "grad_norm/",
    "state/",
    "attention_logit_max",
    "sigma1/",
    "frobenius/",
    "stable_rank/",
    "update_sigma1/",
    "update_ratio/",
    "update_norm/",
    "sigma1_product/",
    "head_sigma1/",
)


def probe_rows(step: int, measured: dict[str, np.ndarray]) -> list[dict[str, Any]]:
    """One row per quantity: per layer, per site (layers times sub-layers) or scalar.

    A quantity that is a vector or a matrix at every site gives a row per entry,
    `mixing/0/1` for the entry [0, 1] of `mixing`.
    """
    rows = []
    for quantity in sorted(measured):
        value = np.asarray(measured[quantity])
        n_axes = min(value.ndim, 1 if quantity.startswith(BY_LAYER) else 2)
        axis = ("scalar", "layer", "site")[n_axes]
        for entry in np.ndindex(value.shape[n_axes:]):
            values = value[(..., *entry)].reshape(-1)
            rows.append(
                {
                    "step": step,
                    "quantity": "/".join([quantity, *map(str, entry)]),
                    "axis": axis,
                    "values": [float(v) for v in values],
                }
            )
    return rows
