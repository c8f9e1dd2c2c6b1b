"""All arms at once: y ~ row * column + (1 | seed). Needs statsmodels."""

import math
import warnings
from collections.abc import Mapping

import numpy as np

from analysis.interaction.design import joined
from analysis.paired import holm

MISSING = "statsmodels is not installed: pip install 'blocklab[stats]'"


def mixed_model(values: Mapping[tuple[str, str], Mapping[int, float]]) -> dict:
    """Random intercept per seed, fitted by REML, treatment coding.

    The baselines are the first row and column among the cells. Variances are pooled
    over cells, which trapped or unstable cells do not deserve: the paired contrasts
    are the main result, this is their check.

    Args:
        values: (row, column) -> seed -> number, every row in every column.

    Returns:
        `terms` (name, mean, se, low, high, p; `p_holm` of the interactions),
        `sd_seed`, `sd_residual`, `n`, `warnings`; or `error` alone.
    """
    rows = list(dict.fromkeys(row for row, _ in values))
    columns = list(dict.fromkeys(column for _, column in values))
    if any(not values.get((row, column)) for row in rows for column in columns):
        return {"error": "not every row was measured in every column"}
    if len(rows) < 2 or len(columns) < 2:
        return {"error": "two rows and two columns are needed"}
    data = [
        (r, c, seed, y)
        for (r, c), members in values.items()
        for seed, y in members.items()
    ]
    if len({seed for _, _, seed, _ in data}) < 2:
        return {"error": "one seed: no variance between seeds"}
    try:
        from statsmodels.regression.mixed_linear_model import MixedLM
    except ImportError:
        return {"error": MISSING}

    names = ["intercept", *rows[1:], *columns[1:]]
    names += [joined((r, c)) for r in rows[1:] for c in columns[1:]]
    design = np.array([_coded(r, c, rows, columns) for r, c, _, _ in data])
    y = np.array([y for *_, y in data])
    seeds = np.array([seed for _, _, seed, _ in data])
    try:
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("always")
            fit = MixedLM(y, design, groups=seeds).fit(reml=True)
    except (ValueError, np.linalg.LinAlgError) as error:
        return {"error": f"no fit: {error}"}
    low, high = np.asarray(fit.conf_int()).T[:, : len(names)]
    terms = [
        {
            "name": n,
            "mean": float(m),
            "se": float(s),
            "low": lo,
            "high": hi,
            "p": float(p),
        }
        for n, m, s, lo, hi, p in zip(
            names,
            fit.fe_params,
            fit.bse_fe,
            low.tolist(),
            high.tolist(),
            np.asarray(fit.pvalues)[: len(names)],
            strict=True,
        )
    ]
    interactions = names[len(rows) + len(columns) - 1 :]
    adjusted = holm({t["name"]: t["p"] for t in terms if t["name"] in interactions})
    for term in terms:
        term["p_holm"] = adjusted.get(term["name"], math.nan)
    return {
        "warnings": sorted({str(w.message) for w in caught}),
        "terms": terms,
        "sd_seed": float(np.sqrt(np.asarray(fit.cov_re).ravel()[0])),
        "sd_residual": float(np.sqrt(fit.scale)),
        "n": len(data),
    }


def _coded(row: str, column: str, rows: list[str], columns: list[str]) -> list[float]:
    a = [float(row == r) for r in rows[1:]]
    b = [float(column == c) for c in columns[1:]]
    return [1.0, *a, *b, *(x * y for x in a for y in b)]
