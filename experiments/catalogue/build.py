"""Building one part by itself at a width, to see what it learns."""

import dataclasses
import functools
import inspect
from typing import Any

from flax import nnx

from blocks.norms.rmsnorm import RMSNorm
from blocks.parameters import ParamSpec, layout_of
from blocks.site import Site
from experiments.parts import Part


@dataclasses.dataclass(frozen=True)
class Sizes:
    """The model that a part is built for."""

    d_model: int
    n_heads: int
    d_ff: int
    n_layers: int
    seq_len: int
    vocab_size: int

    def given(self) -> dict[str, Any]:
        """Argument name -> value: what a block hands to the parts it builds."""
        return {
            **dataclasses.asdict(self),
            "d_head": self.d_model // self.n_heads,
            "max_len": self.seq_len,
            "norm": RMSNorm,
        }

    def sites(self) -> list[Site]:
        """The sub-layers of the first block."""
        return [Site(n, 0, self.n_layers, i, 2) for i, n in enumerate(("attn", "ffn"))]


def parameters_of(part: Part, sizes: Sizes) -> dict[str, ParamSpec] | None:
    """Path -> parameter of the part alone; None for a part that is no module.

    Nothing is allocated. Of a residual scheme: what it has in one block (`attn_joint`,
    `ffn_joint`) and at the ends of the model (`ends`).

    Raises:
        ValueError: it cannot be built at these sizes.
        TypeError: it needs an argument that `Sizes` does not have.
    """
    made = part.build({}, part.name)
    if part.partial:
        return _specs(made, sizes)
    if hasattr(made, "make_joint"):
        pieces = {
            f"{site.name}_joint": functools.partial(made.make_joint, site=site)
            for site in sizes.sites()
        }
        return {
            f"{piece}/{path}": spec
            for piece, make in {**pieces, "ends": made.make_ends}.items()
            for path, spec in _specs(make, sizes).items()
        }
    return None


def build(factory, sizes: Sizes, rngs: nnx.Rngs):
    """Calls a factory with what it asks for.

    Raises:
        TypeError: it needs something else; the message says what.
    """
    given, arguments, missing = sizes.given(), {}, []
    for name, parameter in _asked_for(factory).items():
        if name == "rngs":
            arguments[name] = rngs
        elif parameter.kind in (parameter.VAR_POSITIONAL, parameter.VAR_KEYWORD):
            continue
        elif parameter.default is parameter.empty:
            if name in given:
                arguments[name] = given[name]
            else:
                missing.append(name)
        elif name == "vocab_size" and parameter.default is None:
            arguments[name] = given[name]  # a model takes it from the data
    if missing:
        raise TypeError(f"cannot be built alone: it needs {', '.join(missing)}")
    return factory(**arguments)


def _asked_for(factory) -> dict[str, inspect.Parameter]:
    """Arguments that are still to be given. nnx hides those of a module's class."""
    made, bound = factory, {}
    if isinstance(factory, functools.partial):
        made, bound = factory.func, factory.keywords
    signature = inspect.signature(made.__init__ if inspect.isclass(made) else made)
    return {
        name: p
        for name, p in signature.parameters.items()
        if name != "self"
        and (name not in bound or (name == "vocab_size" and bound[name] is None))
    }


def _specs(factory, sizes: Sizes) -> dict[str, ParamSpec]:
    make = functools.partial(build, factory, sizes)
    return layout_of(lambda: make(nnx.Rngs(0))).specs
