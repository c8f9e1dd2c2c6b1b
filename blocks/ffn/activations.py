"""The elementwise functions between the linear maps of a feed-forward network."""

import difflib
from collections.abc import Callable

import jax
import jax.numpy as jnp

# Below this, softplus(x) = log(1 + e^x) is e^x to every digit of float64.
_TAIL = -40.0


def gelu_erf(x: jax.Array) -> jax.Array:
    """x Phi(x) = x (1 + erf(x / sqrt(2))) / 2 (arXiv 1606.08415; BERT, ViT)."""
    return jax.nn.gelu(x, approximate=False)


def quick_gelu(x: jax.Array) -> jax.Array:
    """x sigmoid(1.702 x), at most 0.0204 from gelu_erf (arXiv 1606.08415; CLIP)."""
    return x * jax.nn.sigmoid(1.702 * x)


def relu2(x: jax.Array) -> jax.Array:
    """max(x, 0)^2 (arXiv 2109.08668)."""
    return jnp.square(jax.nn.relu(x))


def sqrtsoftplus(x: jax.Array) -> jax.Array:
    """sqrt(log(1 + e^x)), which DeepSeek-V4 scores experts with.

    e^(x / 2) far below zero, where softplus underflows and the gradient of the root
    would be 0 * infinity.
    """
    is_tail = x < _TAIL
    # Each branch is finite everywhere: an infinite one not taken still makes NaN
    # of the gradient.
    root = jnp.sqrt(jax.nn.softplus(jnp.where(is_tail, _TAIL, x)))
    tail = jnp.exp(jnp.where(is_tail, x, _TAIL) / 2)
    return jnp.where(is_tail, tail, root)


_OWN = {f.__name__: f for f in (gelu_erf, quick_gelu, relu2, sqrtsoftplus)}

# Those of jax.nn; gelu is its tanh form, as in GPT-2 and Gemma.
_OF_JAX = (
    "celu",
    "elu",
    "gelu",
    "hard_sigmoid",
    "hard_silu",
    "hard_swish",
    "hard_tanh",
    "identity",
    "leaky_relu",
    "log_sigmoid",
    "mish",
    "relu",
    "relu6",
    "selu",
    "sigmoid",
    "silu",
    "soft_sign",
    "softplus",
    "sparse_plus",
    "sparse_sigmoid",
    "squareplus",
    "swish",
    "tanh",
)

ACTIVATIONS = tuple(sorted((*_OF_JAX, *_OWN)))


def check_activation(name: str) -> None:
    """Raises ValueError for a name that is not one of `ACTIVATIONS`."""
    if name not in ACTIVATIONS:
        near = difflib.get_close_matches(name, ACTIVATIONS, n=1)
        hint = f" (did you mean {near[0]!r}?)" if near else ""
        raise ValueError(
            f"activation must be one of {', '.join(ACTIVATIONS)}, got {name!r}{hint}"
        )


def activation_of(name: str) -> Callable[[jax.Array], jax.Array]:
    """The function of that name.

    Give it float32 or wider: the tanh form of gelu cubes its argument, which leaves
    float16 at 40 and makes its gradient NaN there.
    """
    check_activation(name)
    return _OWN[name] if name in _OWN else getattr(jax.nn, name)
