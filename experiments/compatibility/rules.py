"""Which parts have no meaning together: what their classes declare, and rules over it.

A part goes with every other unless a class says otherwise, by an attribute:

    takes_post_norm     of a residual scheme, False: a norm after the addition is refused
    needs_post_norm     True: one norm after an addition in every block at least
    takes_in_norm       False: the norm in front of a branch would undo the scheme
    needs_attention     of a placement, True: of no use without attention
    shares_kv_heads     of an attention, False: every query head has its own key
    needs_qk_norm       True
    remember            the method of a branch with memory (`blocks.block.SubLayer`)
    has_state           of a norm, True: holds state beside its parameters
    takes_state_inside  of a feed-forward, False: its inner norm must have no state
    needs_tokens        of a router, True: it chooses by the token
    says_tokens         of a model, True: its parts can ask which tokens it reads

A fact that depends on keywords is a static method of them. Nothing is built here but
placements and patterns, which hold no arrays.
"""

import dataclasses
import functools
from collections.abc import Iterator
from typing import Any

from experiments.parts import Part


@dataclasses.dataclass(frozen=True)
class Refusal:
    """Two or more choices that have no meaning together.

    keys: config keys below `model`, the one that is best changed first.
    reason: a sentence in which `<key>` stands for what was chosen there.
    fails: building the model raises an error; else it would run, and mean nothing.
    """

    keys: tuple[str, ...]
    reason: str
    fails: bool = True


@dataclasses.dataclass(frozen=True)
class Layer:
    """One block: its parts, and the config key that each comes from."""

    parts: dict[str, Part]
    keys: dict[str, str]
    sites: dict[str, Any]  # sub-layer -> its placement
    number: int

    @property
    def placement_keys(self) -> tuple[str, ...]:
        """Where its placement comes from: `pattern` too if that decides how it looks."""
        key = self.keys["placement"]
        chosen = key != "placement" and self.varies
        return (key, "pattern") if chosen else (key,)

    @property
    def varies(self) -> bool:
        return bool(getattr(self.parts["placement"].build({}, ""), "varies", False))


def refusals(model: Part) -> tuple[Refusal, ...]:
    """Everything that is wrong with a combination, each thing once."""
    return _refusals(model.static())


@functools.lru_cache(maxsize=4096)
def _refusals(model: Part) -> tuple[Refusal, ...]:
    layers = _layers(model)
    found = (refusal for rule in RULES for refusal in rule(model, layers))
    return tuple(dict.fromkeys(found))


def fact(part: Part | None, name: str, default: Any = None) -> Any:
    """What the class of a part declares, for the part's keywords."""
    value = getattr(part.cls, name, default) if part is not None else default
    if not callable(value):
        return value
    return value(**{k: v for k, v in part.keywords if not isinstance(v, Part)})


def _layers(model: Part) -> list[Layer]:
    """The blocks of the model, of those that are alike the first."""
    own = {k: v for k, v in model.keywords if isinstance(v, Part)}
    placement = own.get("placement")
    if placement is None or "n_layers" not in dict(model.keywords):
        return []  # a model of another kind
    names = ("attn", "ffn") if "attention" in own else ("ffn",)
    built = placement.build({}, "placement")
    if len(names) == 2 and getattr(built, "parallel", False):
        names = ("both",)
    norms = {k: "norm" for k in ("attn_norm", "ffn_norm") if k not in own}
    pattern = own.get("pattern")
    chosen = pattern and _unbuilt(pattern)
    n_layers = model["n_layers"]
    layers: dict[Any, Layer] = {}
    for number in range(n_layers):
        replaced = chosen.at(number, n_layers) if chosen else {}
        parts = {**own, **{k: own.get("norm") for k in norms}, **replaced}
        keys = {k: norms.get(k, k) for k in parts}
        keys |= {k: _place(pattern, k, replaced[k]) for k in replaced}
        if "placement" in replaced:
            placed = parts["placement"].build({}, "placement")
        else:
            placed = built
        sites = {name: _at(placed, name, number, n_layers) for name in names}
        alike = (tuple(keys[k] for k in replaced), tuple(sites.items()))
        layers.setdefault(alike, Layer(parts, keys, sites, number))
    return sorted(layers.values(), key=lambda layer: layer.number)


def _unbuilt(pattern: Part):
    """A pattern whose parts are not built; what is beside it is."""
    keywords = dict(pattern.keywords)
    if keywords.get("beside") is not None:
        keywords["beside"] = _unbuilt(keywords["beside"])
    return pattern.cls(**keywords)


def _place(pattern: Part, name: str, part: Part) -> str:
    """The key of a part that a pattern has, or one beside it."""
    place = "pattern"
    while pattern.get(name) is not part:
        pattern, place = pattern["beside"], f"{place}.beside"
    return f"{place}.{name}"


def _at(placement, site: str, number: int, n_layers: int):
    """The placement of a sub-layer; None where it knows no such sub-layer."""
    try:
        return placement.at(site, number, n_layers)
    except KeyError:
        return None


# -- norms and the residual scheme -----------------------------------------------------


def post_norm(model: Part, layers: list[Layer]) -> Iterator[Refusal]:
    scheme = model.get("residual")
    for layer in layers:
        keys = (*layer.placement_keys, "residual")
        has = [site.post_norm for site in layer.sites.values() if site is not None]
        if any(has) and not fact(scheme, "takes_post_norm", True):
            yield Refusal(
                keys,
                "post_norm, a norm after the addition, has no meaning with <residual>",
            )
        if not any(has) and fact(scheme, "needs_post_norm", False):
            reason = "<residual> has no meaning without a norm after the addition, "
            yield Refusal(keys, reason + "post_norm, in every block", fails=False)


def in_norm(model: Part, layers: list[Layer]) -> Iterator[Refusal]:
    if fact(model.get("residual"), "takes_in_norm", True):
        return
    for layer in layers:
        if any(site is not None and site.in_norm for site in layer.sites.values()):
            yield Refusal(
                (*layer.placement_keys, "residual"),
                "in_norm, a norm in front of the branch, undoes what <residual> does",
                fails=False,
            )


# -- attention and feed-forward, one after the other or side by side -------------------


def side_by_side(model: Part, layers: list[Layer]) -> Iterator[Refusal]:
    placement, pattern = model.get("placement"), model.get("pattern")
    if not layers:
        return
    if "attention" not in dict(model.keywords):
        for at, part in (("", model), ("pattern.", pattern)):
            place = part and part.get("placement")
            if place is not None and (
                place.get("parallel") or fact(place, "needs_attention", False)
            ):
                key = f"{at}placement"
                reason = f"<{key}> needs attention, which {model.name} has not"
                yield Refusal((key,), reason, fails=False)
        for name in ("attention", "attn_norm"):
            if pattern is not None and pattern.get(name) is not None:
                reason = f"{model.name} has no attention to replace"
                yield Refusal((f"pattern.{name}",), reason)
        return
    own = bool(getattr(placement.build({}, "placement"), "parallel", False))
    other = pattern.get("placement") if pattern is not None else None
    if other is not None and bool(other.get("parallel", False)) != own:
        yield Refusal(
            ("pattern.placement", "placement"),
            "attention and feed-forward are side by side (parallel) in all layers or "
            "in none, but <pattern.placement> is not as <placement>",
            fails=any(None in layer.sites.values() for layer in layers),
        )


def memory(model: Part, layers: list[Layer]) -> Iterator[Refusal]:
    """The first block must have the memory that a later one wants to read."""

    def remembers(layer: Layer) -> bool:
        branch = layer.parts.get("attention")
        return branch is not None and hasattr(branch.cls, "remember")

    readers = [layer for layer in layers if remembers(layer)]
    if readers and readers[0] is not layers[0]:
        key = readers[0].keys["attention"]
        yield Refusal(
            (key, layers[0].keys["attention"], "pattern"),
            f"<{key}> reads the values of the first block, whose attention keeps none",
        )


# -- attention -------------------------------------------------------------------------


def heads(model: Part, layers: list[Layer]) -> Iterator[Refusal]:
    n_kv_heads = model.get("n_kv_heads")
    for layer in layers:
        attention, key = layer.parts.get("attention"), layer.keys.get("attention")
        if (
            n_kv_heads not in (None, model.get("n_heads"))
            and attention is not None
            and not fact(attention, "shares_kv_heads", True)
        ):
            yield Refusal(
                ("n_kv_heads", key),
                f"every head of <{key}> has its own keys and values, got "
                f"n_kv_heads={n_kv_heads} and n_heads={model.get('n_heads')}",
            )
        if fact(attention, "needs_qk_norm", False) and attention["qk_norm"] is None:
            reason = f"<{key}> needs a norm here: norm@model.{key}.qk_norm=..."
            yield Refusal((f"{key}.qk_norm", key), reason)


# -- experts ---------------------------------------------------------------------------


def state_of_experts(model: Part, layers: list[Layer]) -> Iterator[Refusal]:
    for layer in layers:
        name = "ffn" if "ffn" in layer.sites else "both"
        site, ffn = layer.sites.get(name), layer.parts.get("ffn")
        norm = "ffn_norm" if name == "ffn" else "attn_norm"
        if (
            site is not None
            and site.inner_norm
            and fact(layer.parts[norm], "has_state", False)
            and not fact(ffn, "takes_state_inside", True)
        ):
            keys = tuple(layer.keys[k] for k in (norm, "ffn", "placement"))
            yield Refusal(
                keys,
                "<{}> has state, which <{}> cannot keep in an inner_norm, where <{}> "
                "puts it".format(*keys),
            )


def tokens(model: Part, layers: list[Layer]) -> Iterator[Refusal]:
    for layer in layers:
        ffn, key = layer.parts.get("ffn"), layer.keys.get("ffn")
        router = ffn.get("router") if ffn is not None else None
        if fact(router, "needs_tokens", False) and not fact(
            model, "says_tokens", False
        ):
            yield Refusal(
                (key,),
                f"<{key}> chooses experts by the token, and {model.name} does not say "
                "which tokens it reads",
            )


RULES = (post_norm, in_norm, side_by_side, memory, heads, state_of_experts, tokens)
