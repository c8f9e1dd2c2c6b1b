"""Turns parsed runs into typed Polars frames."""

import json
from collections.abc import Sequence

import polars as pl

from analysis.provenance import Origin, labels_apart
from analysis.read_run import RawRun
from analysis.variants import RunFacts, family_of, flatten, named_variants

# Columns that exist whatever was found, so that a notebook may rely on them.
RUN_COLUMNS = {
    "run_id": pl.String,
    "path": pl.String,
    "name": pl.String,
    "family": pl.String,
    "variant": pl.String,
    "usual": pl.String,
    "state": pl.String,
    "step": pl.Int64,
    "steps": pl.Int64,
    "seed": pl.Int64,
    "n_layers": pl.Int64,
    "diverged_step": pl.Int64,
    "error": pl.String,
    "warning": pl.String,
    "problems": pl.String,
    "seconds": pl.Float64,
    "updated": pl.Float64,
    "n_params": pl.Int64,
    "params_digest": pl.String,
    "data_fingerprint": pl.String,
    "data_unit": pl.String,
    "code_version": pl.String,
    "signature": pl.String,
    "layout": pl.String,
}
METRIC_COLUMNS = {
    "run_id": pl.String,
    "step": pl.Int64,
    "loss": pl.Float64,
    "val_loss": pl.Float64,
    "val_accuracy": pl.Float64,
    "grad_norm": pl.Float64,
    "learning_rate": pl.Float64,
    "tokens": pl.Int64,
    "seconds": pl.Float64,
    "tokens_per_second": pl.Float64,
    "finite": pl.Boolean,
    "skipped": pl.Int64,
}
PROBE_COLUMNS = {
    "run_id": pl.String,
    "step": pl.Int64,
    "quantity": pl.String,
    "axis": pl.String,
    "values": pl.List(pl.Float64),
}
_INT64 = range(-(2**63), 2**63)


def runs_frame(raws: Sequence[RawRun]) -> pl.DataFrame:
    """One row per run; `path` is left empty, it belongs to where the folder stands."""
    leaves = [dict(flatten(raw.config)) for raw in raws]
    records = [_record(raw, own) for raw, own in zip(raws, leaves, strict=True)]
    facts = [_facts(raw, own) for raw, own in zip(raws, leaves, strict=True)]
    origins = [_origin(*run) for run in zip(facts, records, strict=True)]
    labels, usual = zip(*named_variants(facts), strict=True) if facts else ((), ())
    labels = labels_apart(labels, origins)
    for record, fact, label, left in zip(records, facts, labels, usual, strict=True):
        record |= {"family": fact.family, "variant": label, "usual": left or None}
    return _frame(records, RUN_COLUMNS)


def metrics_frame(raws: Sequence[RawRun]) -> pl.DataFrame:
    """One row per run and step; of a step written twice the later row counts."""
    rows = [{"run_id": raw.run_id} | row for raw in raws for row in raw.metrics]
    frame = _frame(rows, METRIC_COLUMNS)
    return frame.unique(["run_id", "step"], keep="last", maintain_order=True)


def probes_frame(raws: Sequence[RawRun]) -> pl.DataFrame:
    """One row per run, step and quantity."""
    rows = [(raw.run_id, row) for raw in raws for row in raw.probes]
    axes = [row.get("axis") for _, row in rows]
    columns = {
        "run_id": [run_id for run_id, _ in rows],
        "step": [row["step"] for _, row in rows],
        "quantity": [row["quantity"] for _, row in rows],
        "axis": [axis if isinstance(axis, str) else None for axis in axes],
        # strict=False: `[1, 0.5]` mixes the two kinds of number JSON has.
        "values": pl.Series(
            "values",
            [row["values"] for _, row in rows],
            dtype=PROBE_COLUMNS["values"],
            strict=False,
        ),
    }
    frame = pl.DataFrame(columns, schema=PROBE_COLUMNS)
    keys = ["run_id", "step", "quantity"]
    return frame.unique(keys, keep="last", maintain_order=True)


def _facts(raw: RawRun, leaves: dict) -> RunFacts:
    choices = raw.env.get("choices")
    return RunFacts(
        family=family_of(raw.config),
        choices=choices if isinstance(choices, dict) else {},
        leaves=leaves,
        seed=_integer(raw.config.get("seed")),
        n_layers=_integer(_mapping(raw.config, "model").get("n_layers")),
        fingerprint=_string(_mapping(raw.env, "data").get("fingerprint")),
    )


def _origin(facts: RunFacts, record: dict) -> Origin:
    data = (item for item in facts.leaves.items() if item[0].startswith("data."))
    return Origin(
        family=facts.family,
        data=frozenset((path, repr(value)) for path, value in data),
        fingerprint=facts.fingerprint,
        code=record["code_version"],
    )


def _record(raw: RawRun, leaves: dict) -> dict:
    config, status, env = raw.config, raw.status, raw.env
    data = _mapping(env, "data")
    record = {
        "run_id": raw.run_id,
        "name": _string(config.get("name")),
        "state": _string(status.get("state")) or "unknown",
        "step": _integer(status.get("step")),
        "steps": _integer(status.get("steps", config.get("steps"))),
        "seed": _integer(config.get("seed")),
        "n_layers": _integer(_mapping(config, "model").get("n_layers")),
        "diverged_step": _integer(status.get("diverged_step")),
        "error": raw.error,
        "warning": _string(status.get("warning")),
        "problems": "; ".join(raw.problems) or None,
        "seconds": _real(status.get("seconds")),
        "updated": _real(status.get("updated")),
        "n_params": _integer(env.get("n_params")),
        "params_digest": _string(status.get("params_digest")),
        "data_fingerprint": _string(data.get("fingerprint")),
        "data_unit": _string(data.get("unit")),
        "code_version": _string(env.get("code"))
        or _string(_mapping(env, "git").get("revision")),  # of older runs
        "signature": _string(env.get("signature")),
        "layout": _string(env.get("layout")),
        "mixes_tokens": _names(env.get("mixes_tokens")),
    }
    for name, value in _mapping(data, "references").items():
        record[f"reference.{name}"] = _real(value)
    for group, value in _mapping(env, "choices").items():
        record[f"choice.{group}"] = value if value is None else str(value)
    for path, value in leaves.items():
        record[f"config.{path}"] = value
    return record


def _frame(records: list[dict], core: dict) -> pl.DataFrame:
    """A frame of `core` columns, then whatever else the records hold."""
    names = dict.fromkeys(core)
    for row in records:
        names |= dict.fromkeys(row)
    return pl.DataFrame(
        [_column(name, [row.get(name) for row in records], core) for name in names]
    )


def _column(name: str, values: list, core: dict) -> pl.Series:
    dtype = core.get(name)
    if dtype is None:
        return _guessed(name, values)
    if dtype == pl.Float64:
        values = [_real(value) for value in values]
    elif dtype == pl.Int64:
        values = [_integer(value) for value in values]
    return pl.Series(name, values, dtype=dtype, strict=dtype == pl.String)


def _guessed(name: str, values: list) -> pl.Series:
    """Numbers stay numbers when all are; a mixed column becomes text."""
    kinds = {type(value) for value in values if value is not None}
    if kinds == {bool}:
        return pl.Series(name, values, dtype=pl.Boolean)
    if kinds == {int} and all(v is None or v in _INT64 for v in values):
        return pl.Series(name, values, dtype=pl.Int64)
    if kinds and kinds <= {int, float}:
        return pl.Series(name, [_real(v) for v in values], dtype=pl.Float64)
    texts = [
        v if v is None or isinstance(v, str) else json.dumps(v, sort_keys=True)
        for v in values
    ]
    return pl.Series(name, texts, dtype=pl.String)


def _mapping(node: dict, key: str) -> dict:
    value = node.get(key)
    return value if isinstance(value, dict) else {}


def _names(value) -> str | None:
    """A list of names as text; None for an empty one."""
    return ", ".join(map(str, value)) or None if isinstance(value, list) else None


def _string(value) -> str | None:
    return value if isinstance(value, str) else None


def _integer(value) -> int | None:
    is_int = isinstance(value, int) and not isinstance(value, bool)
    return value if is_int and value in _INT64 else None


def _real(value) -> float | None:
    is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
    return float(value) if is_number else None
