"""The tokens that a model is reading, for parts that ask for more than the stream."""

import contextlib
import contextvars

import jax

# Each thread traces for itself and sees its own.
_tokens: contextvars.ContextVar[jax.Array | None] = contextvars.ContextVar(
    "tokens", default=None
)


@contextlib.contextmanager
def reading(tokens: jax.Array):
    """Parts that run while the context is open see `tokens`, [batch, seq] integers.

    Open it and run the parts inside one trace.
    """
    token = _tokens.set(tokens)
    try:
        yield
    finally:
        _tokens.reset(token)


def tokens_read() -> jax.Array:
    """The tokens, flat [batch * seq], sequence after sequence.

    Raises:
        ValueError: the model reads none, or does not say which.
    """
    tokens = _tokens.get()
    if tokens is None:
        raise ValueError(
            "this part chooses by the token, and the model it is in does not say which "
            "tokens it reads"
        )
    return tokens.reshape(-1)
