"""Overrides from the fields of a config: sizes, parts, positions, layers that differ."""

import re
from collections import Counter
from collections.abc import Callable, Hashable, Sequence
from typing import Any

from blocks.families.fields import FamilyError, Fields

# Where a choice of a group is put in a config, as its YAML files say.
PLACES = {
    "attention": "model.attention",
    "embedding_positions": "model.embedding_positions",
    "ffn": "model.ffn",
    "init": "model.init",
    "norm": "model.norm",
    "pattern": "model.pattern",
    "placement": "model.placement",
    "positions": "model.attention.positions",
    "residual": "model.residual",
}


def text(value: Any) -> str:
    """A value as an override has it."""
    if value is None:
        return "null"
    return str(value).lower() if isinstance(value, bool) else str(value)


def place_of(override: str) -> str | None:
    """Where the choice that an override makes is put; None for the value of a key."""
    group, _, place = override.lstrip("+").partition("=")[0].partition("@")
    return (place or PLACES[group]) if group in PLACES else None


def values(place: str, **keywords: Any) -> list[str]:
    """Keywords of the part at a place; __ is a dot."""
    return [
        f"{place}.{key.replace('__', '.')}={text(value)}"
        for key, value in keywords.items()
    ]


def part(group: str, choice: str, **keywords: Any) -> list[str]:
    """A choice of a group, and its keywords; __ is a dot."""
    return [f"{group}={choice}", *values(PLACES[group], **keywords)]


def model(**keywords: Any) -> list[str]:
    """Keywords of the model itself; none is left to what a configuration starts from."""
    usual = {
        "n_kv_heads": None,
        "d_head": None,
        "embedding_scale": 1.0,
        "embedding_scale_init": None,
        "head_bias": False,
        "logit_scale": 1.0,
        "logit_softcap": None,
    }
    return values("model", **usual | keywords)


def sizes(fields: Fields, **more: Any) -> list[str]:
    """`model`, with four sizes from the names that most families have."""
    return model(
        vocab_size=fields.size("vocab_size"),
        d_model=fields.size("hidden_size"),
        n_layers=fields.size("num_hidden_layers"),
        n_heads=fields.size("num_attention_heads"),
        **more,
    )


def turning(base: float, layout: str = "half") -> list[str]:
    """Rotations at their own pace."""
    return part("positions", "rope", base=float(base), layout=layout)


def rope(
    fields: Fields,
    kind: str | None = None,
    *,
    base: float,
    layout: str = "half",
    fraction: float | None = None,
) -> list[str]:
    """Rotations: `rope_parameters` of transformers 5, or the older pair of fields.

    kind: of the layers, in families whose `rope_parameters` tells them apart.
    base: where the config has none.
    fraction: of a head, in families that turn a part of it; where the config has none.

    Raises:
        FamilyError: a scaling that is not known, or a key of one.
    """
    given = rope_parameters(fields, kind, base=base)
    name = given.pop("rope_type")
    theta = given.pop("rope_theta")
    at = f"rope_parameters of type {name}"
    common = {"base": float(theta), "layout": layout}
    if fraction is not None:
        common["fraction"] = given.pop("partial_rotary_factor", fraction)

    def needed(key):
        if key not in given:
            raise FamilyError(f"{fields.source}: {at}: {key} is missing")
        return given.pop(key)

    if name == "default":
        lines = part("positions", "rope", **common)
    elif name == "linear":
        factor = needed("factor")
        lines = part("positions", "rope_linear", **common, scaling__factor=factor)
    elif name == "llama3":
        lines = part(
            "positions",
            "rope_llama3",
            **common,
            scaling__factor=needed("factor"),
            scaling__low=needed("low_freq_factor"),
            scaling__high=needed("high_freq_factor"),
            scaling__original_len=needed("original_max_position_embeddings"),
        )
    elif name == "yarn":
        context = fields.get("max_position_embeddings", None)
        lines = part(
            "positions",
            "rope_yarn",
            **common,
            scaling__factor=needed("factor"),
            scaling__original_len=given.pop(
                "original_max_position_embeddings", context
            ),
            scaling__beta_fast=given.pop("beta_fast", None) or 32.0,
            scaling__beta_slow=given.pop("beta_slow", None) or 1.0,
            scaling__truncate=given.pop("truncate", True),
            scaling__attention_factor=given.pop("attention_factor", None),
            # Zero means no such number there.
            scaling__mscale=given.pop("mscale", None) or None,
            scaling__mscale_all_dim=given.pop("mscale_all_dim", None) or None,
        )
    else:
        fields.refuse("rope_type", "default, linear, llama3 or yarn", name)
    if given:
        raise FamilyError(f"{fields.source}: {at}: unknown {', '.join(sorted(given))}")
    return lines


def rope_parameters(fields: Fields, kind: str | None, *, base: float) -> dict[str, Any]:
    """What the config says of rotations, under the names of transformers 5."""
    fields.skip("rope_theta", "rope_scaling")
    given = fields.get("rope_parameters", None)
    if given is None:
        scaling = fields.get("rope_scaling", None) or {}
        given = {"rope_theta": fields.get("rope_theta", base), **scaling}
    elif kind is not None:
        # In such families a scaling is that of some layers only.
        if not isinstance(given, dict) or kind not in given:
            fields.refuse("rope_parameters", f"one entry for {kind}", given)
        given = given[kind]
    names = ("type", "rope_type", "truncate")
    if not isinstance(given, dict) or any(
        isinstance(value, (dict, str, list))
        for name, value in given.items()
        if name not in names
    ):
        fields.refuse("rope_parameters", "numbers by name", given)
    given = {"rope_theta": base, **given}
    older = given.pop("type", "default")
    given.setdefault("rope_type", older)
    return given


def layers(
    kinds: Sequence[Hashable],
    make: Callable[[Any], dict[str, list[str]]],
) -> list[str]:
    """The parts of layers of one kind or of several.

    kinds: of each layer. make: kind -> overrides by group.
    """
    first = kinds[0]
    different = list(dict.fromkeys(kinds))
    if len(different) == 1:
        return [line for lines in make(first).values() for line in lines]
    if len(different) == 2:
        for chosen in (_every_nth, _first):
            for special, common in (different, different[::-1]):
                pattern = chosen([k == special for k in kinds])
                if pattern is None:
                    continue
                usual, other = make(common), make(special)
                return [
                    *(line for lines in usual.values() for line in lines),
                    *pattern,
                    *(
                        line
                        for group, lines in other.items()
                        if lines != usual[group]
                        for line in in_pattern(lines)
                    ),
                ]
    return _listed([make(kind) for kind in kinds])


def _listed(made: Sequence[dict[str, list[str]]]) -> list[str]:
    """Layers of several kinds.

    made: overrides by group, of each layer. What most layers have is the model's; of
    each part the next kind is in a pattern, a third in the one beside it.
    """
    usual, others = [], {}
    for group in made[0]:
        found = Counter(tuple(layer[group]) for layer in made).most_common()
        usual += found[0][0]
        for depth, (lines, _) in enumerate(found[1:]):
            at = [i for i, layer in enumerate(made) if tuple(layer[group]) == lines]
            others.setdefault(depth, []).append((group, at, lines))
    patterns = []
    for depth, parts in sorted(others.items()):
        place = "model.pattern" + ".beside" * depth
        patterns.append(f"+pattern@{place}=listed" if depth else "pattern=listed")
        for group, at, _ in parts:
            patterns.append(f"{place}.{group}_in=[{','.join(map(str, at))}]")
        for *_, lines in parts:
            patterns += in_pattern(lines, place)
    return [*usual, *patterns]


def _every_nth(chosen: list[bool]) -> list[str] | None:
    n = chosen.index(True) + 1
    regular = [i % n == n - 1 for i in range(len(chosen))]
    return part("pattern", "every_nth", every=n) if chosen == regular else None


def _first(chosen: list[bool]) -> list[str] | None:
    n = sum(chosen)
    regular = [i < n for i in range(len(chosen))]
    return part("pattern", "first", at_least=n) if chosen == regular else None


def in_pattern(lines: Sequence[str], place: str = "model.pattern") -> list[str]:
    """Overrides of the model's parts as those of the parts that a pattern has."""
    moved = []
    for line in lines:
        if line == "positions=none":  # an attention of a pattern has none by itself
            continue
        group = line.partition("=")[0]
        outside = place_of(line)
        line = re.sub(r"(?<![\w.])model\.", f"{place}.", line)
        if outside is not None and "@" not in group:
            inside = outside.replace("model.", f"{place}.", 1)
            line = f"+{group}@{inside}={line.partition('=')[2]}"
        moved.append(line)
    return moved
