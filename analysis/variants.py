"""Short names for what distinguishes the runs of a folder, other than the seed."""

import json
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field

# Not part of what a run is (docs/run_directory.md), so never part of a label.
NOT_IDENTITY = ("name", "tags", "log_every", "runtime")
SEPARATOR = " · "
# They take no step: what they measure is of one model as it is.
DEPTH_TASKS = ("depth", "inspect", "propagate", "updatesize")
FINGERPRINT = "data.fingerprint"
# From so many variants on a label leaves out what most of them have in common.
MANY = 9


@dataclass(frozen=True)
class RunFacts:
    """What a label is made from: one run's choices and flattened config.

    Attributes:
        family: `task/ModelClass`; labels are computed within one family.
        choices: Hydra group -> chosen name, or None for a site left at its default.
        leaves: dotted config path -> scalar (a list as JSON text).
        seed, n_layers: replicate and depth; None if the config was unreadable.
        fingerprint: of the data, or None.
    """

    family: str
    choices: dict = field(default_factory=dict)
    leaves: dict = field(default_factory=dict)
    seed: int | None = None
    n_layers: int | None = None
    fingerprint: str | None = None


def flatten(node: dict, prefix: str = "") -> Iterator[tuple[str, object]]:
    """Yields (dotted path, scalar) of a nested config; a list becomes JSON text."""
    for key, value in node.items():
        path = f"{prefix}{key}"
        if isinstance(value, dict):
            yield from flatten(value, f"{path}.")
        elif isinstance(value, list):
            yield path, json.dumps(value)
        else:
            yield path, value


def family_of(config: dict) -> str:
    """`train/LanguageModel`: the task in lower case and the class of the model."""

    def last(part):
        target = part.get("_target_") if isinstance(part, dict) else None
        return target.rsplit(".", 1)[-1] if isinstance(target, str) else None

    task, model = last(config.get("task")), last(config.get("model"))
    return f"{task.lower() if task else 'unknown'}/{model or 'unknown'}"


def is_depth_family(family: str) -> bool:
    """Whether runs of the family differ in depth on purpose (a depth law)."""
    return family.split("/", 1)[0] in DEPTH_TASKS


def variant_labels(runs: Sequence[RunFacts]) -> list[str]:
    """One label per run, equal exactly for runs that differ only in replicate.

    A label joins with " · " the choices that vary in the family (`derf`, `pre`; at a
    site `ffn_norm=derf`) and the config scalars that vary among runs with equal
    choices (`learning_rate=0.001`, the whole path where the last part is ambiguous).
    The seed never counts; in a depth family neither does the depth, nor a value that
    is settled by it. A data fingerprint counts unless the seed settles it. Among MANY
    variants what more than half of them have is left out.
    """
    return [label for label, _ in named_variants(runs)]


def named_variants(runs: Sequence[RunFacts]) -> list[tuple[str, str]]:
    """The label of each run, and what the labels of its family leave out:
    `residual=add, norm=derf`, or nothing."""
    named = [("", "")] * len(runs)
    for family in dict.fromkeys(run.family for run in runs):
        members = [i for i, run in enumerate(runs) if run.family == family]
        own = [runs[i] for i in members]
        labels, usual = _label_family(own, is_depth_family(family))
        for i, label in zip(members, labels, strict=True):
            named[i] = (label, usual)
    return named


def _label_family(runs: list[RunFacts], is_depth: bool) -> tuple[list[str], str]:
    """The labels, and what they leave out."""
    choices = _complete_choices([_own_choices(run) for run in runs], runs, is_depth)
    groups = [
        group
        for group in dict.fromkeys(g for chosen in choices for g in chosen)
        if len({chosen.get(group) for chosen in choices}) > 1
    ]
    leaves = [_own_leaves(run, is_depth) for run in runs]
    cells = [
        tuple(chosen.get(g) for g in groups) + ((run.n_layers,) if is_depth else ())
        for chosen, run in zip(choices, runs, strict=True)
    ]
    varying = _varying(leaves, cells)
    prints = [{FINGERPRINT: run.fingerprint} if run.fingerprint else {} for run in runs]
    if _differ_at_one_seed(prints, runs, cells, leaves, varying):
        varying.append(FINGERPRINT)
        leaves = [a | b for a, b in zip(leaves, prints, strict=True)]
    names = _leaf_names(varying)

    if not groups and not varying:
        return [_only_label(choices[0])] * len(runs), ""

    keys = [
        tuple((g, chosen[g]) for g in groups if chosen.get(g))
        + tuple((path, own[path]) for path in varying if path in own)
        for chosen, own in zip(choices, leaves, strict=True)
    ]
    usual = _usual(set(keys))
    digits = {path: _digits({own.get(path) for own in leaves}) for path in varying}

    def text(key: str, value) -> str:
        if key in names:
            return f"{names[key]}={_leaf_text(key, value, digits[key])}"
        return _choice_text(key, value)

    def joined(items: tuple) -> str:
        own = [text(*item) for item in items if item not in usual]
        return SEPARATOR.join(own or [text(*item) for item in items]) or "base"

    def spelled(items) -> list[str]:
        return [f"{key}={_text(value)}" for key, value in items]

    labels = {items: joined(items) for items in dict.fromkeys(keys)}
    # `none` may be the name of a choice in two groups, `Norm` a class in two modules.
    if len(set(labels.values())) < len(labels):
        return [SEPARATOR.join(spelled(items)) or "base" for items in keys], ""
    return [labels[items] for items in keys], ", ".join(spelled(usual))


def _usual(variants: set[tuple]) -> list[tuple]:
    """The (key, value) that more than half of many variants have, as far as these are
    told apart without them."""
    if len(variants) < MANY:
        return []
    shares = Counter(item for items in variants for item in items)
    usual = []
    for item, n in shares.items():
        rest = {
            tuple(i for i in items if i not in (*usual, item)) for items in variants
        }
        if 2 * n > len(variants) and len(rest) == len(variants):
            usual.append(item)
    return usual


def _own_choices(run: RunFacts) -> dict:
    """Without the choices that say how and why a run was made, not what it is."""

    def counts(group: str) -> bool:
        name, _, package = group.partition("@")
        if name.startswith("hydra/") or name in ("experiment", "logger", "dispatch"):
            return False
        return not {name.split("/")[0], package.split(".")[0]} & set(NOT_IDENTITY)

    return {
        group: "+".join(map(str, value)) if isinstance(value, list) else value
        for group, value in run.choices.items()
        if counts(group)
    }


def _own_leaves(run: RunFacts, is_depth: bool) -> dict:
    skip = {"seed"} | ({"model.n_layers"} if is_depth else set())
    return {
        path: value
        for path, value in run.leaves.items()
        if path not in skip
        and path.split(".")[0] not in NOT_IDENTITY
        # `data.seed: ${seed}` is the seed again; a data seed of its own is not.
        and not (path.endswith(".seed") and value == run.seed)
    }


def _complete_choices(choices: list[dict], runs, is_depth: bool) -> list[dict]:
    """A run that failed before it wrote its choices takes those of its siblings."""
    known = {}
    identities = [_identity(_own_leaves(run, is_depth)) for run in runs]
    for identity, chosen in zip(identities, choices, strict=True):
        if chosen:
            known.setdefault(identity, chosen)
    return [
        chosen or known.get(identity, {})
        for identity, chosen in zip(identities, choices, strict=True)
    ]


def _identity(leaves: dict) -> frozenset:
    return frozenset((path, repr(value)) for path, value in leaves.items())


def _varying(leaves: list[dict], cells: list[tuple]) -> list[str]:
    """Paths with two values in one cell; a path that is absent counts as a value.

    Runs of different age may differ in a key that the older config did not have.
    They are kept apart: two labels are seen, two variants averaged are not.
    """
    seen: dict[tuple, set] = {}
    for own, cell in zip(leaves, cells, strict=True):
        seen.setdefault(cell, set()).add(_identity(own))
    paths = dict.fromkeys(path for own in leaves for path in own)
    mixed = set()
    for identities in seen.values():
        shared = frozenset.intersection(*identities)
        for identity in identities:
            mixed |= {path for path, _ in identity - shared}
    return [path for path in paths if path in mixed]


def _differ_at_one_seed(prints, runs, cells, leaves, varying) -> bool:
    """Whether runs that are alike in everything else, the seed too, had other data.

    Data may be generated from the seed, and follow from a key that is in the label.
    """
    seen: dict[tuple, set] = {}
    for own, run, cell, known in zip(prints, runs, cells, leaves, strict=True):
        rest = tuple(repr(known.get(path)) for path in varying)
        seen.setdefault((*cell, run.seed, rest), set()).update(own.values())
    return any(len(values) > 1 for values in seen.values())


def _leaf_names(paths: list[str]) -> dict[str, str]:
    def short(path: str) -> str:
        parts = path.removesuffix("._target_").split(".")
        return parts[-1]

    shorts = [short(path) for path in paths]
    return {
        path: name if shorts.count(name) == 1 and name != "seed" else path
        for path, name in zip(paths, shorts, strict=True)
    }


def _choice_text(group: str, value) -> str:
    name, at, package = group.partition("@")
    return f"{package.rsplit('.', 1)[-1] or name}={value}" if at else str(value)


def _digits(values: set) -> int:
    """Significant digits that tell the numbers among some values apart, 4 at least."""
    floats = {value for value in values if isinstance(value, float)}
    return next(
        (n for n in range(4, 17) if len({f"{x:.{n}g}" for x in floats}) == len(floats)),
        17,
    )


def _leaf_text(path: str, value, digits: int) -> str:
    if path.endswith("_target_") and isinstance(value, str):
        return value.rsplit(".", 1)[-1]
    if path == FINGERPRINT and isinstance(value, str):
        return value[:8]
    text = _text(value)
    if isinstance(value, float) and text == str(value):  # not short by itself
        return min(text, f"{value:.{digits}g}", key=len)
    return text


def _text(value) -> str:
    if value is None:
        return "none"
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, float) and float(f"{value:g}") == value:
        return f"{value:g}"
    return str(value)


def _only_label(choices: dict) -> str:
    """Nothing varies: say which block it is, where the choices tell."""
    told = [str(choices[g]) for g in ("norm", "placement") if choices.get(g)]
    return SEPARATOR.join(told) or "all runs"
