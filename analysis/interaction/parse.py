"""`tags.design` of an experiment, checked; docs/interaction.md describes the form."""

from collections.abc import Mapping

from analysis.interaction.design import (
    METRIC,
    OWN,
    RATE,
    SHARED,
    Contrast,
    Design,
    Dose,
    Factor,
    Level,
    Remedy,
    joined,
)

DIRECTIONS = (">", "<", "=")
REDUCTIONS = ("mean", "max", "min", "first", "last")


def parse(node: Mapping) -> Design:
    """Checks `tags.design`.

    Raises:
        ValueError: a key that is missing, unknown, or names no level.
    """
    if not isinstance(node, Mapping):
        raise ValueError(f"tags.design must be a mapping, got {node!r}")
    known = "rows columns primary metric rate tune_seeds contrasts remedies doses claim"
    _only(node, (*known.split(), "predictions"), "tags.design")
    rows, columns = (_factor(node, axis) for axis in ("rows", "columns"))
    default = {"rows": list(rows.labels[:2]), "columns": list(columns.labels[:2])}
    primary = _contrast(
        {"id": "primary", **default, **_mapping(node.get("primary") or {}, "primary")},
        rows,
        columns,
    )
    if not primary.is_interaction:
        raise ValueError("primary must name two rows and two columns")
    return Design(
        rows=rows,
        columns=columns,
        primary=primary,
        metric=str(node.get("metric", METRIC)),
        rate=str(node.get("rate", RATE)),
        tune_seeds=_seeds(node),
        contrasts=_contrasts(node, "contrasts", rows, columns, primary)
        or _all_interactions(rows, columns, primary),
        remedies=tuple(
            _remedy(entry, rows, columns, primary) for entry in _list(node, "remedies")
        ),
        doses=tuple(_dose(entry, rows, columns) for entry in _list(node, "doses")),
        predictions=_contrasts(node, "predictions", rows, columns, primary),
        claim=str(node.get("claim", "")),
        raw=dict(node),
    )


def unregistered(rows: Factor, columns: Factor) -> Design:
    """A design made after the runs, from two axes: all interactions with the baselines.

    Raises:
        ValueError: a factor with fewer than two levels.
    """
    for factor in (rows, columns):
        _two_levels(factor)
    primary = Contrast("primary", rows.labels[:2], columns.labels[:2])
    others = _all_interactions(rows, columns, primary)
    return Design(rows, columns, primary, contrasts=others, is_registered=False)


def _all_interactions(rows: Factor, columns: Factor, primary: Contrast) -> tuple:
    """Of every other level with the baselines, where a design names no contrasts."""
    found = []
    for row in rows.labels[1:]:
        for column in columns.labels[1:]:
            pair = (rows.labels[0], row), (columns.labels[0], column)
            if pair != (primary.rows, primary.columns):
                found.append(Contrast(joined((row, column)), *pair))
    return tuple(found)


def _factor(node: Mapping, axis: str) -> Factor:
    entry = _mapping(node.get(axis), axis)
    _only(entry, ("name", "key", "levels"), axis)
    key = entry.get("key")
    factor = Factor(
        str(entry.get("name") or key or axis),
        tuple(_level(level, key, axis) for level in _list(entry, "levels")),
    )
    _two_levels(factor)
    return factor


def _level(entry, key: str | None, axis: str) -> Level:
    if isinstance(entry, Mapping):
        if len(entry) != 1:
            raise ValueError(f"{axis}: a level is one label: {{...}}, got {entry!r}")
        ((label, wanted),) = entry.items()
        return Level(str(label), dict(_mapping(wanted, f"{axis} {label}")))
    # Without a key only `tags.cell` can tell which runs are of this level.
    return Level(str(entry), {key: entry} if key else {})


def _two_levels(factor: Factor) -> None:
    labels = factor.labels
    if len(labels) < 2:
        raise ValueError(
            f"{factor.name}: two levels or more, got {', '.join(labels) or 'none'}"
        )
    twice = [label for label in labels if labels.count(label) > 1]
    if twice:
        raise ValueError(f"{factor.name}: level {twice[0]!r} is listed twice")


def _contrasts(node, key, rows, columns, primary) -> tuple[Contrast, ...]:
    """Entries; one that names a `contrast` takes its rows and columns."""
    known = {primary.id: primary}
    found = []
    for entry in _list(node, key):
        entry = dict(_mapping(entry, key))
        if "contrast" in entry:
            wanted = entry.pop("contrast")
            others = _contrasts(node, "contrasts", rows, columns, primary)
            named = known | {c.id: c for c in others}
            if wanted not in named:
                raise ValueError(f"{key}: no contrast {wanted!r}; {', '.join(named)}")
            entry = {
                "rows": list(named[wanted].rows),
                "columns": list(named[wanted].columns),
            } | entry
        found.append(_contrast(entry, rows, columns))
    ids = [primary.id, *(c.id for c in found)]
    twice = [name for name in ids if ids.count(name) > 1]
    if twice:
        raise ValueError(f"{key}: id {twice[0]!r} is used twice")
    return tuple(found)


def _contrast(entry: Mapping, rows: Factor, columns: Factor) -> Contrast:
    _only(entry, tuple(Contrast.__dataclass_fields__), "a contrast")
    if "id" not in entry:
        raise ValueError(f"a contrast needs an id, got {dict(entry)!r}")
    where = str(entry["id"])
    contrast = Contrast(
        **{**entry, "id": where, "at": str(entry.get("at", "last"))}
        | {"rows": _labels(entry, "rows", rows, where)}
        | {"columns": _labels(entry, "columns", columns, where)}
    )
    if len(contrast.rows) * len(contrast.columns) < 2:
        raise ValueError(f"{where}: two rows or two columns, or there is no difference")
    if contrast.direction not in (None, *DIRECTIONS):
        raise ValueError(f"{where}: direction is >, < or =, got {contrast.direction!r}")
    if contrast.direction == "=" and not (contrast.margin or 0) > 0:
        raise ValueError(f"{where}: direction = needs a positive margin")
    if contrast.rates not in (None, SHARED, OWN):
        raise ValueError(f"{where}: rates is shared or own, got {contrast.rates!r}")
    if contrast.at not in ("last", "mean") and not contrast.at.isdecimal():
        raise ValueError(f"{where}: at is last, mean or a step, got {contrast.at!r}")
    if contrast.reduce not in REDUCTIONS:
        raise ValueError(f"{where}: reduce is one of {', '.join(REDUCTIONS)}")
    return contrast


def _labels(entry: Mapping, key: str, factor: Factor, where: str) -> tuple[str, ...]:
    given = entry.get(key)
    labels = tuple(map(str, given if isinstance(given, list) else [given]))
    if len(labels) not in (1, 2) or len(set(labels)) != len(labels):
        raise ValueError(f"{where}: {key} takes one or two levels, got {given!r}")
    for label in labels:
        _known(label, factor, where)
    return labels


def _known(label: str, factor: Factor, where: str) -> str:
    if label not in factor.labels:
        names = ", ".join(factor.labels)
        raise ValueError(f"{where}: {factor.name} has no level {label!r}; {names}")
    return label


def _remedy(entry, rows: Factor, columns: Factor, primary: Contrast) -> Remedy:
    """A label alone is a row under the second column of the primary hypothesis."""
    entry = entry if isinstance(entry, Mapping) else {"row": str(entry)}
    _only(entry, ("id", "row", "column"), "a remedy")
    row = _known(str(entry.get("row", primary.rows[1])), rows, "remedies")
    column = _known(str(entry.get("column", primary.columns[1])), columns, "remedies")
    if (row, column) == (primary.rows[1], primary.columns[1]):
        raise ValueError("remedies: a remedy is another cell than the one it mends")
    if row == primary.rows[0]:
        raise ValueError(f"remedies: {row!r} is the baseline row, it has no gap")
    changed = [row] * (row != primary.rows[1])
    changed += [column] * (column != primary.columns[1])
    return Remedy(str(entry.get("id", joined(changed))), row, column)


def _dose(entry, rows: Factor, columns: Factor) -> Dose:
    entry = _mapping(entry, "doses")
    _only(entry, ("id", "x", "rows", "columns"), "a dose")
    if ("rows" in entry) == ("columns" in entry):
        raise ValueError(f"doses: either rows or columns, got {dict(entry)!r}")
    is_rows = "rows" in entry
    factor, given = (rows, entry["rows"]) if is_rows else (columns, entry["columns"])
    levels = {
        _known(str(label), factor, "doses"): _real(x, "doses")
        for label, x in _mapping(given, "doses").items()
    }
    x = str(entry.get("x", factor.name))
    return Dose(str(entry.get("id", x)), x, levels, is_rows)


def _seeds(node: Mapping) -> tuple[int, ...]:
    seeds = _list(node, "tune_seeds")
    for seed in seeds:
        if type(seed) is not int:
            raise ValueError(f"tune_seeds: whole numbers, got {seed!r}")
    return tuple(seeds)


def _real(value, where: str) -> float:
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        raise ValueError(f"{where}: expected a number, got {value!r}")
    return float(value)


def _mapping(node, where: str) -> Mapping:
    if not isinstance(node, Mapping):
        raise ValueError(f"{where}: a mapping was expected, got {node!r}")
    return node


def _list(node: Mapping, key: str) -> list:
    value = node.get(key) or []
    if not isinstance(value, list):
        raise ValueError(f"{key}: a list was expected, got {value!r}")
    return value


def _only(node: Mapping, known: tuple, where: str) -> None:
    unknown = [str(key) for key in node if key not in known]
    if unknown:
        raise ValueError(f"{where}: unknown {unknown[0]!r}; one of {', '.join(known)}")
