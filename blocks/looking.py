"""What parts show of their insides, to whoever asks for it.

Nothing is computed for a look that nobody asked for: `set_looking` is a static switch
of the model, as `blocks.modes.set_training` is.
"""

import contextlib
import contextvars
from collections.abc import Callable

import jax
from flax import nnx

from blocks.norms.looks import look_at_norm

LOOKS = (
    "norms",  # what each norm of the stream meets and does: `blocks.norms.looks`
    "logits",  # `attention_logit_max`: the largest score of each head
)


def set_looking(model: nnx.Module, looks: tuple[str, ...]) -> None:
    """Sets what `model` measures, on every module inside that has `looks`.

    What is seen is among the measurements of `model.loss(batch)`, with taps or without.

    Raises:
        ValueError: there is no such look.
    """
    for look in looks:
        if look not in LOOKS:
            raise ValueError(f"looks must be among {', '.join(LOOKS)}, got {look!r}")
    for _, node in nnx.iter_graph(model):
        if isinstance(node, nnx.Module) and hasattr(node, "looks"):
            node.looks = tuple(looks)


# -- numbers that a part notes on its way ----------------------------------------------

# Each thread traces for itself and sees its own.
_notes: contextvars.ContextVar[dict | None] = contextvars.ContextVar(
    "notes", default=None
)


@contextlib.contextmanager
def taking_notes(asked: bool):
    """A dict that `note` fills while the context is open; stays empty unless `asked`.

    Open it, run the parts and use the notes inside one trace: the arrays in it are of
    that trace. A part must not note from inside a loop or a branch of its own.
    """
    notes: dict[str, jax.Array] = {}
    token = _notes.set(notes if asked else None)
    try:
        yield notes
    finally:
        _notes.reset(token)


def note(name: str, make: Callable[[], jax.Array]) -> None:
    """Notes make() where somebody takes notes; else nothing is computed."""
    notes = _notes.get()
    if notes is not None:
        notes[name] = make()


# -- norms -----------------------------------------------------------------------------


class Watched(nnx.Module):
    """A norm that puts what it meets into `seen`, under its name."""

    def __init__(self, norm: nnx.Module, name: str, seen: dict):
        self.norm = norm
        self.name = name
        # In a closure: a dict would be taken for a tree of variables.
        self.see = lambda what: seen.__setitem__(name, what)

    def __call__(self, x: jax.Array) -> jax.Array:
        self.see(look_at_norm(self.norm, x))
        return self.norm(x)


@contextlib.contextmanager
def watching_norms(sublayer: nnx.Module, joint: nnx.Module, asked: bool):
    """What the norms of a sub-layer saw: `site/<metric>` -> number, once it has run.

    The first of in_norm (in front of F), post_norm (of the joint) and out_norm (behind
    F) is the site; a second one has its name in between, `site/out_norm/<metric>`.
    """
    seen: dict[str, dict] = {}
    shown: dict[str, jax.Array] = {}
    owners = {"in_norm": sublayer, "post_norm": joint, "out_norm": sublayer}
    norms = {name: getattr(owner, name, None) for name, owner in owners.items()}
    norms = {n: norm for n, norm in norms.items() if asked and norm is not None}
    for name, norm in norms.items():
        setattr(owners[name], name, Watched(norm, name, seen))
    try:
        yield shown
    finally:
        for name, norm in norms.items():
            setattr(owners[name], name, norm)
    for i, name in enumerate(norms):
        prefix = "site" if i == 0 else f"site/{name}"
        shown |= {f"{prefix}/{k}": v for k, v in seen.get(name, {}).items()}
