"""What an experiment expected: the entries of `tags.expected`."""

import json
import math
from dataclasses import dataclass

import polars as pl

from analysis.depths import LAYERS
from analysis.losses import ENDS

ALL = "all"
# What is fitted, and against what x: ln g on ln L, on L, on sqrt(L); g itself on L;
# g^-2 on L. The last three fit no curve.
SLOPES = ("power", "exponential", "sqrt", "linear")
FITS = (*SLOPES, "inverse_square", "constant", "ratio", "mean")
KEYS = ("id", "variant", "quantity", "fit", "expected", "tolerance")
OPTIONAL = ("source", "depth", "depths", "from_block", "against")


@dataclass(frozen=True)
class Expectation:
    """One entry of `tags.expected`.

    Attributes:
        id: name of the check, `A1`.
        variant: which runs: Hydra group -> choice, or dotted config path -> value.
        quantity: a probe and a layer, `ffn/up/kernel last` (`grad_norm/` may be left
            out): `first`, `last`, a number (1 is next to the input), or `all` for the
            profile over the layers of one depth; a probe of one number has no layer
            (`grad_norm/total`). Or `val_loss` or `val_accuracy`, the last one of a run.
        fit: x is the depth L, with layer `all` the block l, with `against` the value of
            another probe in the same network.
            "power"           slope of ln g on ln x
            "exponential"     slope of ln g on x: the rate per block
            "sqrt"            slope of ln g on sqrt(x)
            "linear"          slope of g on x
            "inverse_square"  a / b of g^-2 = a + b L, which is s0^2 / v
            "constant"        g itself, at whichever depth is farthest from `expected`
            "ratio"           g at the last of `depths` over g at the first; with `all`
                              that of block 1 over that of the last block, at `depth`
            "mean"            g at `depth`; of what a run ends with over all runs
        expected, tolerance: of that number.
        source: where the number is from.
        depth: the depth of a profile or a mean.
        depths: fit on these depths only.
        from_block: start a profile here.
        against: another probe and layer, as `quantity`.
    """

    id: str
    variant: dict
    quantity: str
    fit: str
    expected: float
    tolerance: float
    source: str = ""
    depth: int | None = None
    depths: tuple[int, ...] | None = None
    from_block: int = 1
    against: str | None = None


def expected_entries(runs: pl.DataFrame) -> list[dict]:
    """All different entries of `tags.expected` over the runs, in order of appearance.

    Raises:
        ValueError: `tags.expected` is not a list of mappings.
    """
    if any(column.startswith("config.tags.expected.") for column in runs.columns):
        raise ValueError("tags.expected must be a list of mappings, got a mapping")
    if "config.tags.expected" not in runs.columns:
        return []
    entries = {}
    for text in runs["config.tags.expected"].drop_nulls().unique(maintain_order=True):
        try:
            found = json.loads(text)
        except ValueError:
            found = None
        if not isinstance(found, list) or not all(isinstance(e, dict) for e in found):
            raise ValueError(f"tags.expected must be a list of mappings, got {text}")
        entries |= {json.dumps(entry, sort_keys=True): entry for entry in found}
    return list(entries.values())


def parse(entry: dict) -> Expectation:
    """Checks one entry.

    Raises:
        ValueError: a key that is missing, unknown, or of the wrong kind.
    """
    try:
        _check_keys(entry)
        _check_numbers(entry)
        _check_fit(entry)
    except ValueError as error:
        name = f"tags.expected entry {entry.get('id', entry)}"
        raise ValueError(f"{name}: {error}") from None
    depths = entry.get("depths")
    return Expectation(**entry | {"depths": None if depths is None else tuple(depths)})


def split_quantity(text: str) -> tuple[str, str | int | None]:
    """`ffn/up/kernel last` -> (`ffn/up/kernel`, `last`); None for no layer."""
    name, space, layer = str(text).rpartition(" ")
    if not space:
        return layer, None
    if layer.isdecimal() and int(layer) >= 1:
        return name, int(layer)
    if layer not in (*LAYERS, ALL) or not name:
        raise ValueError(
            f"{text!r} must end in first, last, all or the number of a layer, as in "
            "'ffn/up/kernel last'"
        )
    return name, layer


def _check_keys(entry: dict) -> None:
    missing = set(KEYS) - entry.keys()
    extra = entry.keys() - {*KEYS, *OPTIONAL}
    if missing or extra:
        what = f"lacks {sorted(missing)}" if missing else f"has {sorted(extra)}"
        raise ValueError(f"{what}; keys are {', '.join((*KEYS, *OPTIONAL))}")
    if not isinstance(entry["variant"], dict):
        raise ValueError(f"variant must be a mapping, got {entry['variant']!r}")


def _check_numbers(entry: dict) -> None:
    for key in ("expected", "tolerance"):
        value = entry[key]
        is_number = isinstance(value, (int, float)) and not isinstance(value, bool)
        if not (is_number and math.isfinite(value)):
            raise ValueError(f"{key} must be a number, got {value!r}")
    if entry["tolerance"] <= 0:
        raise ValueError(f"tolerance must be positive, got {entry['tolerance']}")
    for key in ("depth", "from_block"):
        if not (entry.get(key) is None or _is_count(entry[key])):
            raise ValueError(f"{key} must be a whole number from 1, got {entry[key]!r}")
    depths = entry.get("depths")
    is_list = isinstance(depths, (list, tuple)) and len(set(depths)) >= 2
    if depths is not None and not (is_list and all(map(_is_count, depths))):
        raise ValueError(f"depths must list at least two depths, got {depths!r}")


def _check_fit(entry: dict) -> None:
    quantity, fit = entry["quantity"], entry["fit"]
    fits = ("mean",) if quantity in ENDS else FITS
    if fit not in fits:
        raise ValueError(
            f"fit of {quantity!r} must be one of {', '.join(fits)}, got {fit!r}"
        )
    if quantity in ENDS:
        return
    _, layer = split_quantity(quantity)
    if entry.get("against") is not None:
        _, other = split_quantity(entry["against"])
        if fit not in ("power", "linear") or ALL in (layer, other):
            raise ValueError("against needs fit power or linear, and no layer 'all'")
    if layer == ALL and fit not in (*SLOPES, "ratio"):
        raise ValueError(f"no fit {fit!r} over all layers")
    needs_depth = layer == ALL or fit == "mean"
    if needs_depth and entry.get("depth") is None:
        raise ValueError(f"fit {fit!r} of {quantity!r} needs a depth")
    if fit == "ratio" and layer != ALL and entry.get("depths") is None:
        raise ValueError("a ratio over depths needs depths, [6, 96]")


def _is_count(value) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 1
