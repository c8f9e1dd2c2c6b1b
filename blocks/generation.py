"""Texts that a language model goes on with: the likeliest token, again and again."""

import functools
import inspect
from collections.abc import Collection, Iterator, Sequence

import jax
import jax.numpy as jnp
import numpy as np
from flax import nnx

from blocks.cache import takes_cache
from blocks.checks import check_sizes
from blocks.language_model import LanguageModel
from blocks.modes import set_training
from blocks.parallel import ParallelBranch
from blocks.parameters import path_name
from blocks.positions.place import Place
from blocks.reading import reading


def generate(
    model: nnx.Module,
    prompt: Sequence[int],
    n_tokens: int,
    *,
    stop: Collection[int] = (),
) -> Iterator[int]:
    """The tokens that follow `prompt`, each the likeliest one behind those before.

    Two programs are compiled, one for all of the prompt and one for a token; a step
    costs as much as any other, whatever the number of tokens so far. What is kept has
    room for the prompt and `n_tokens`. The model is left as it is.

    Args:
        model: a `LanguageModel` that `check` accepts.
        prompt: tokens, at least one.
        n_tokens: that follow at most.
        stop: tokens that end the text; the one that did is the last given out.

    Raises:
        ValueError: the model cannot, or the prompt has no tokens or unknown ones.
    """
    check(model)
    tokens = checked(prompt, model.table.shape[0])
    check_sizes(n_tokens=n_tokens)
    model = nnx.merge(*nnx.split(model))  # of the same arrays
    set_training(model, False)
    return _generated(model, tokens[None], n_tokens, frozenset(stop))


def _generated(model, tokens, n_tokens, stop) -> Iterator[int]:
    graphdef, arrays = nnx.split(model)
    start, length, kept = 0, tokens.shape[1] + n_tokens, None
    for _ in range(n_tokens):
        # Not around the loop: whoever takes the tokens would be inside.
        with jax.enable_x64(model.dtype == "float64"):
            found, kept = likeliest(
                graphdef, arrays, kept, tokens, np.int32(start), length=length
            )
        start += tokens.shape[1]
        tokens = found[:, None]
        token = int(found[0])
        yield token
        if token in stop:
            return


@functools.partial(
    jax.jit, static_argnames=("graphdef", "length"), donate_argnames=("kept",)
)
def likeliest(graphdef, arrays, kept, tokens, start, *, length):
    """The likeliest token [batch] behind `tokens`, and what is kept of all so far."""
    model = nnx.merge(graphdef, arrays)
    hidden, kept = continued(model, tokens, Place(start, length), kept)
    last = hidden.reshape(*tokens.shape, -1)[:, -1]
    return jnp.argmax(model.logits(last), axis=-1).astype(jnp.int32), kept


def continued(
    model: LanguageModel, tokens: jax.Array, place: Place, kept: dict | None = None
) -> tuple[jax.Array, dict]:
    """`model.hidden` of tokens that go on behind earlier ones.

    Args:
        model: put together in the trace that this is part of, where there is one.
        tokens: [batch, seq].
        place: their positions; start + seq must not be above its length.
        kept: what the call before returned; None at the first tokens of a text.

    Returns:
        The stream after the last block [batch * seq, d_model], and what is kept.
    """
    with reading(tokens):
        state = model.ends.open(model.embed(tokens, place))
        state, kept = model.blocks.continued(state, tokens.shape, place, kept)
    return model.ends.close(state), kept


# -- what can go on with a text -----------------------------------------------------


def check(model: nnx.Module) -> None:
    """Whether a model can go on with a text, token by token.

    Raises:
        ValueError: names the part that cannot.
    """
    if not isinstance(model, LanguageModel):
        raise ValueError(
            f"only a language model goes on with a text, not {type(model).__name__}"
        )
    for path, node in nnx.iter_graph(model):
        if not isinstance(node, nnx.Module):
            continue
        at, name = path_name(path), type(node).__name__
        if getattr(node, "mixes_tokens", False):
            raise ValueError(
                f"{at}: {name} looks over all tokens at once, those to come included"
            )
        positions = getattr(node, "positions", None)
        if positions is not None and not takes(positions, "place"):
            raise ValueError(
                f"{at}/positions: {type(positions).__name__} starts at the first token "
                "only (its call takes no `place`)"
            )
    positions = model.embedding_positions
    if positions is not None and not takes(positions, "place"):
        raise ValueError(
            f"embedding_positions: {type(positions).__name__} starts at the first "
            "token only (its call takes no `place`)"
        )
    for path, attention in attentions(model):
        name = type(attention).__name__
        if not getattr(attention, "causal", True):
            raise ValueError(f"{path}: {name} sees later tokens (causal is false)")
        if not takes_cache(attention):
            raise ValueError(
                f"{path}: {name} keeps nothing of earlier tokens (its call takes no "
                "`cache`)"
            )


def attentions(model: LanguageModel) -> Iterator[tuple[str, nnx.Module]]:
    """The attention of every kind of layer, and where it is."""
    for place in model.blocks.places:
        block = getattr(model.blocks, place)
        for name in block.names:
            branch = getattr(block, name).branch
            path = f"blocks/{place}/{name}/branch"
            if isinstance(branch, ParallelBranch):
                yield f"{path}/attn", branch.attn
            elif name == "attn":
                yield path, branch


def takes(part, keyword: str) -> bool:
    """Whether the call of a part has a keyword."""
    return keyword in inspect.signature(part.__call__).parameters


def checked(prompt: Sequence[int], vocab_size: int) -> np.ndarray:
    """[n] int32.

    Raises:
        ValueError: no tokens, or one that the model has no row for.
    """
    tokens = np.asarray(prompt, np.int64).reshape(-1)
    if not tokens.size:
        raise ValueError("expected at least one token to go on from, got none")
    bad = tokens[(tokens < 0) | (tokens >= vocab_size)]
    if bad.size:
        raise ValueError(
            f"expected tokens in 0 .. {vocab_size - 1}, the model's vocabulary, "
            f"got {bad[0]}"
        )
    return tokens.astype(np.int32)
