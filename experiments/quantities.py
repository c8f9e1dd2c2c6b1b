"""Names and layer order of what a probe measures (docs/run_directory.md)."""

import re

import jax.numpy as jnp


def quantities(measured, tap_squares, n_layers) -> dict:
    """The named quantities of a probe (docs/run_directory.md), but gradient norms."""
    return {
        **measured,
        "stream_grad_norm": jnp.sqrt(tap_squares),
        "branch_gain": jnp.sum(measured["branch_mean_square"]) / n_layers,
    }


def gradient_norms(squares: dict, places: dict[str, range] | None = None) -> dict:
    """Gradient norms by short name, and the norm of them all."""
    norms = {f"grad_norm/{path}": jnp.sqrt(square) for path, square in squares.items()}
    total = jnp.sqrt(sum(jnp.sum(s) for s in squares.values()))
    return {"grad_norm/total": total, **in_layer_order(norms, places)}


def in_layer_order(values: dict, places: dict[str, range] | None) -> dict:
    """`kind/path` -> `kind/short name`, all layers in one array.

    Where the stack has segments, each holds some layers of a quantity; a layer that
    does not have it is NaN.
    """
    out = {}
    for key, value in values.items():
        kind, path = key.split("/", 1)
        name = f"{kind}/{short_name(path)}"
        place = path.split("/")[1] if path.startswith("blocks/") else ""
        if place == "layers" or places is None or place not in places:
            out[name] = value
            continue
        n_layers = 1 + max(layers[-1] for layers in places.values())
        whole = jnp.full((n_layers, *value.shape[1:]), jnp.nan, value.dtype)
        whole = out.get(name, whole)
        out[name] = whole.at[jnp.array(places[place])].set(value)
    return out


def short_name(path: str) -> str:
    """'blocks/layers/ffn/branch/up/kernel' -> 'ffn/up/kernel', for reading."""
    return re.sub(r"^blocks/layers[0-9_]*/", "", path).replace("/branch/", "/")
