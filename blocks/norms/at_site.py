"""Building a norm for the place where it sits."""

import functools
import inspect
from collections.abc import Callable

from flax import nnx

from blocks.checks import check_choice

SITES = ("attn", "ffn", "both", "inner", "qk", "embedding", "final")


def make_norm(norm: Callable, width: int, site: str, *, rngs: nnx.Rngs) -> nnx.Module:
    """norm(width, rngs=rngs), with `site=site` for a norm that asks for it.

    Initial values of some pointwise norms depend on the site; most norms do not, and
    need not know of it.
    """
    check_choice("site", site, SITES)
    made = norm
    while isinstance(made, functools.partial):
        made = made.func
    # The signature of an nnx class itself is (*args, **kwargs).
    init = made.__init__ if inspect.isclass(made) else made
    asks = "site" in inspect.signature(init).parameters
    return norm(width, **({"site": site} if asks else {}), rngs=rngs)
