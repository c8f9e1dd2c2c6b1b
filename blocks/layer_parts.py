"""Which parts each layer of a model has, and which layers are alike."""

from collections.abc import Hashable


def parts_of(layer: int, n_layers: int, pattern, parts: dict) -> dict:
    """The parts of block `layer`: the model's, or the pattern's where it has some."""
    return parts if pattern is None else {**parts, **pattern.at(layer, n_layers)}


def kinds_of(
    n_layers, pattern, parts: dict, names: tuple[str, ...]
) -> list[Hashable] | None:
    """One label per layer, equal for layers of equal structure; None if all are alike.

    Args:
        n_layers: depth; may be traced where there is nothing that varies.
        names: of the sub-layers, which a placement may tell apart.

    Raises:
        ValueError: a pattern without parts, which would do nothing.
    """
    if pattern is not None and not pattern.parts:
        raise ValueError(
            "pattern: no part differs in its layers; give it one "
            "(+ffn@model.pattern.ffn=swiglu)"
        )
    if pattern is None and not parts["placement"].varies:
        return None
    kinds = []
    for layer in range(n_layers):
        own = parts_of(layer, n_layers, pattern, parts)
        replaced = tuple(sorted((k, id(own[k])) for k in own if own[k] is not parts[k]))
        sites = tuple(own["placement"].at(name, layer, n_layers) for name in names)
        kinds.append((replaced, sites))
    return kinds if len(set(kinds)) > 1 else None
