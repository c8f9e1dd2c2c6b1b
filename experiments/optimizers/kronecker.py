"""What Shampoo and SOAP share: Gram matrices of the two sides of a kernel."""

import functools

import jax
import jax.numpy as jnp

# The default on GPU and TPU rounds float32 to 10 or 8 bits of mantissa.
product = functools.partial(jnp.matmul, precision=jax.lax.Precision.HIGHEST)


def sides(kernel: jax.Array, max_dim: int) -> tuple[bool, bool]:
    """Whether the inputs and the outputs of [..., d_in, d_out] are preconditioned."""
    if kernel.ndim < 2:
        raise ValueError(f"expected a kernel [..., d_in, d_out], got {kernel.shape}")
    return kernel.shape[-2] <= max_dim, kernel.shape[-1] <= max_dim


def no_grams(kernel: jax.Array, max_dim: int) -> list[jax.Array | None]:
    """Zeros [..., d_in, d_in] and [..., d_out, d_out]; None for a side left alone."""
    return [
        jnp.zeros((*kernel.shape[:-2], d, d), kernel.dtype) if used else None
        for used, d in zip(sides(kernel, max_dim), kernel.shape[-2:], strict=True)
    ]


def averaged_grams(grams, g: jax.Array, beta) -> list[jax.Array | None]:
    """beta gram + (1 - beta) G G^T on the inputs, with G^T G on the outputs."""
    new = (lambda: product(g, g.mT)), (lambda: product(g.mT, g))
    return [
        None if gram is None else beta * gram + (1 - beta) * make()
        for gram, make in zip(grams, new, strict=True)
    ]


def on_both_sides(left, x: jax.Array, right) -> jax.Array:
    """left @ x @ right, where None is the identity."""
    x = x if left is None else product(left, x)
    return x if right is None else product(x, right)


def check_sides(**counts) -> None:
    """Refuses counts below 1, by name."""
    for key, value in counts.items():
        if value < 1:
            raise ValueError(f"{key}: expected at least 1, got {value}")
