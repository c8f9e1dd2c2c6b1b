"""Newton-Schulz: odd polynomials that move singular values towards 1."""

import math

import jax
import jax.numpy as jnp

from experiments.optimizers import common

DTYPES = ("bfloat16", "float32")


class Polynomials:
    """X <- a X + (b A + c A^2) X with A = X X^T, step after step.

        X = H / (norm_scale ||H||_F + eps);  step k:  s <- a_k s + b_k s^3 + c_k s^5

    for every singular value s of H; singular vectors stay, null directions stay null, and
    zero gives zero. H is [..., m, n], copies never mix. The products run on the short
    side, at full precision, in the dtype of H or in `dtype`. A norm near eps or below is
    not brought to 1.

    Args:
        a, b, c: coefficients of the first steps, equally many; the last repeats.
        steps: how many steps; fewer than coefficients takes the first ones.
        norm_scale: a Frobenius norm is an upper bound of s; above 1 leaves room for
            rounding.
        safety: a, b, c of all polynomials given but the last are divided by safety,
            safety^3 and safety^5, so that rounding cannot carry s beyond where the next
            one works.
        eps: added to the norm.
        dtype: "bfloat16" or "float32" to iterate in; None: that of H.

    Source: the default is KellerJordan/Muon muon.py (there in bfloat16).
    """

    traced = ("eps",)

    @staticmethod
    def check(
        *,
        a: tuple[float, ...] = (3.4445,),
        b: tuple[float, ...] = (-4.7750,),
        c: tuple[float, ...] = (2.0315,),
        steps: int = 5,
        norm_scale: float = 1.0,
        safety: float = 1.0,
        eps: float = 1e-7,
        dtype: str | None = None,
    ) -> None:
        """Refuses values before anything is traced or compiled."""
        common.check_eps(eps=eps)
        if not len(a) == len(b) == len(c) or not a:
            raise ValueError(
                "a: expected as many numbers as in b and c, got "
                f"{len(a)}, {len(b)} and {len(c)}"
            )
        if steps < 1:
            raise ValueError(f"steps: expected at least 1, got {steps}")
        for key, value in (("norm_scale", norm_scale), ("safety", safety)):
            if not (math.isfinite(value) and value >= 1):
                raise ValueError(f"{key}: expected a finite number >= 1, got {value}")
        if dtype not in (None, *DTYPES):
            raise ValueError(
                f"dtype: expected one of {', '.join(DTYPES)} or null, got {dtype!r}"
            )

    def __init__(
        self,
        *,
        a: tuple[float, ...] = (3.4445,),
        b: tuple[float, ...] = (-4.7750,),
        c: tuple[float, ...] = (2.0315,),
        steps: int = 5,
        norm_scale: float = 1.0,
        safety: float = 1.0,
        eps: float = 1e-7,
        dtype: str | None = None,
    ):
        self.norm_scale = norm_scale
        self.eps = eps
        self.dtype = dtype
        last = len(a) - 1
        given = list(zip(a, b, c, strict=True))
        safe = [(x / safety, y / safety**3, z / safety**5) for x, y, z in given[:-1]]
        safe.append(given[-1])
        self.coefficients = [safe[min(k, last)] for k in range(steps)]

    def __call__(self, h: jax.Array) -> jax.Array:
        """[..., m, n] -> the same, in the dtype of `h`.

        Raises:
            ValueError: fewer than two axes.
        """
        if h.ndim < 2:
            raise ValueError(f"expected a kernel [..., d_in, d_out], got {h.shape}")
        tall = h.shape[-2] > h.shape[-1]
        x = h.mT if tall else h
        norm = jnp.linalg.norm(x, axis=(-2, -1), keepdims=True)
        x = x / (self.norm_scale * norm + jnp.asarray(self.eps, x.dtype))
        x = x if self.dtype is None else x.astype(self.dtype)

        def step(x, coefficients):
            a, b, c = coefficients
            gram = _product(x, x.mT)
            return a * x + _product(b * gram + c * _product(gram, gram), x), None

        x, _ = jax.lax.scan(step, x, jnp.asarray(self.coefficients, x.dtype))
        return (x.mT if tall else x).astype(h.dtype)


QUINTIC = Polynomials()


def _product(x, y):
    # The default on GPU and TPU rounds float32 to 10 or 8 bits of mantissa.
    return jnp.matmul(x, y, precision=jax.lax.Precision.HIGHEST)
