"""Cross-entropy of logits, of all tokens at once or of so many at a time."""

import functools
from collections.abc import Callable

import jax
import jax.numpy as jnp


def token_losses(logits: jax.Array, targets: jax.Array) -> tuple[jax.Array, jax.Array]:
    """-log softmax at the target and logsumexp of every token, in float32 or wider.

    logits [tokens, vocab], targets [tokens] integers; nats.
    """
    logits = logits.astype(jnp.promote_types(logits.dtype, jnp.float32))
    picked = jnp.take_along_axis(logits, targets[:, None], axis=-1)[:, 0]
    total = jax.nn.logsumexp(logits, axis=-1)
    return total - picked, total


def chunked_losses(
    logits_of: Callable, x: jax.Array, targets: jax.Array, chunk: int
) -> tuple[jax.Array, jax.Array]:
    """Means over tokens of -log softmax at the target, and of logsumexp^2.

    As if by `token_losses(logits_of(x), targets)`, up to the order of the sums, but
    there are never more than [chunk, vocab] logits: tokens are taken `chunk` at a time,
    and the backward pass computes the logits of a chunk again, which is a third more
    work in the head. The gradient of the head is summed over chunks in its own dtype.

    logits_of: [chunk, d_model] -> [chunk, vocab], every token by itself.
    x [tokens, d_model], targets [tokens] integers; any number of tokens.
    """
    tokens = len(x)
    chunk = min(chunk, tokens)
    missing = -tokens % chunk
    x = jnp.pad(x, ((0, missing), (0, 0))).reshape(-1, chunk, x.shape[-1])
    targets = jnp.pad(targets, (0, missing)).reshape(-1, chunk)
    is_real = (jnp.arange(tokens + missing) < tokens).reshape(-1, chunk)

    # Inside a scan common sub-expressions cannot be merged across the loop.
    @functools.partial(jax.checkpoint, prevent_cse=False)
    def body(sums, part):
        x, targets, is_real = part
        losses, totals = token_losses(logits_of(x), targets)
        both = jnp.stack([losses, jnp.square(totals)])
        return sums + jnp.sum(jnp.where(is_real, both, 0), axis=-1), None

    zero = jnp.zeros(2, jnp.promote_types(x.dtype, jnp.float32))
    (loss, square), _ = jax.lax.scan(body, zero, (x, targets, is_real))
    return loss / tokens, square / tokens
