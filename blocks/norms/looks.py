"""What a norm meets and does, as numbers: scale of its input, saturation, direction."""

import math
from collections.abc import Callable

import jax
import jax.numpy as jnp
from flax import nnx

STEP = 1.01  # the scale of z is changed by this factor to measure elasticity
SATURATED = 0.99  # |f| above it: tanh from |z| = 2.6467 on, erf from 1.8214 on


def look_at_norm(norm: nnx.Module, x: jax.Array) -> dict[str, jax.Array]:
    """Metric -> number, of a norm and its input x [tokens, d_model].

    Of every norm: the scale of x (`scale_of`), and `mean_abs_g`, mean |gain|, where it
    has a `gain`. Of a pointwise norm also what `look_at_map` says: that is any norm with

        z(x)   alpha * x + shift, whatever it calls them, x in float32 or wider
        f(z)   the function of one number that stands between them and gain and bias

    No gradient flows out of what is measured.
    """
    wide = jnp.promote_types(x.dtype, jnp.float32)
    x = jax.lax.stop_gradient(x).astype(wide)
    found = scale_of(x)
    gain = getattr(norm, "gain", None)
    if isinstance(gain, nnx.Variable):
        found["mean_abs_g"] = jnp.mean(jnp.abs(jax.lax.stop_gradient(gain[...])))
    if callable(getattr(norm, "z", None)) and callable(getattr(norm, "f", None)):
        z, shift = jax.lax.stop_gradient((norm.z(x), norm.z(jnp.zeros_like(x))))
        found |= look_at_map(norm.f, x, z, shift)
    found = {name: value.astype(wide) for name, value in found.items()}
    return jax.lax.stop_gradient(found)


def scale_of(x: jax.Array) -> dict[str, jax.Array]:
    """Of all entries of x [tokens, d_model], but `x_token_rms`.

    x_rms        sqrt(mean(x^2))
    x_token_rms  mean over tokens of the RMS of each
    x_max        max |x|
    x_kurtosis   fourth moment over squared second, about the mean: 3 for a Gaussian
    """
    centred = x - jnp.mean(x)
    # In standard deviations first: a fourth power soon leaves float32.
    deviations = centred / jnp.std(x)
    return {
        "x_rms": jnp.sqrt(jnp.mean(jnp.square(x))),
        "x_token_rms": jnp.mean(rms(x)),
        "x_max": jnp.max(jnp.abs(x)),
        "x_kurtosis": jnp.mean(jnp.square(jnp.square(deviations))),
    }


def look_at_map(
    f: Callable, x: jax.Array, z: jax.Array, shift: jax.Array
) -> dict[str, jax.Array]:
    """How far the pointwise map f is from a line where it is used.

    z0 = z - shift is alpha * x. Means and shares are over all entries but where it says
    tokens; f' is the derivative by JAX, so f must be a function of one number.

    alpha, shift   RMS(z0) / RMS(x), the slope where there is one; mean shift
    sigma_z        standard deviation of z
    sat99          share of |f(z)| > 0.99
    sat_z2         share of |z0| > 2
    dead10, dead01 share of f'(z) < 0.1 f'(0), and < 0.01 f'(0)
    gain_eff       mean f'(z) / f'(0)
    exact_one      share of f(z) that bfloat16 rounds to +1 or -1
    elasticity     mean over tokens of d ln RMS(f(s z0 + shift)) / d ln s at s = 1, by the
                   difference between s = 1.01 and 1 / 1.01: 1 keeps the scale of a token,
                   0 is blind to it
    scale_slope    slope of ln RMS(f(z)) on ln RMS(x) across tokens; scale_slope_r2 its R^2
    lin_cos        mean over tokens of cos(f(z) - f(shift), z0)
    sign_cos       mean over tokens of cos(f(z), sign(z))

    A quotient without a denominator (f'(0) of 0 or infinity, tokens of one size) is NaN
    or infinite.
    """
    y, slope = jax.jvp(f, (z,), (jnp.ones_like(z),))
    (slope_at_zero,) = jax.jvp(f, (jnp.zeros(1, z.dtype),), (jnp.ones(1, z.dtype),))[1]
    z0 = z - shift
    relative = slope / slope_at_zero
    up, down = (rms(f(factor * z0 + shift)) for factor in (STEP, 1 / STEP))
    scale_slope, r2 = line_through(jnp.log(rms(x)), jnp.log(rms(y)))
    rounded = jnp.abs(y.astype(jnp.bfloat16))
    return {
        "alpha": jnp.sqrt(jnp.mean(jnp.square(z0)) / jnp.mean(jnp.square(x))),
        "shift": jnp.mean(shift),
        "sigma_z": jnp.std(z),
        "sat99": jnp.mean(jnp.abs(y) > SATURATED, dtype=z.dtype),
        "sat_z2": jnp.mean(jnp.abs(z0) > 2, dtype=z.dtype),
        "dead10": jnp.mean(relative < 0.1, dtype=z.dtype),
        "dead01": jnp.mean(relative < 0.01, dtype=z.dtype),
        "gain_eff": jnp.mean(relative),
        "exact_one": jnp.mean(rounded == 1, dtype=z.dtype),
        "elasticity": jnp.mean(jnp.log(up) - jnp.log(down)) / (2 * math.log(STEP)),
        "scale_slope": scale_slope,
        "scale_slope_r2": r2,
        "lin_cos": jnp.mean(cosines(y - f(shift), z0)),
        "sign_cos": jnp.mean(cosines(y, jnp.sign(z))),
    }


def rms(x: jax.Array) -> jax.Array:
    """Of each token: [tokens, d_model] -> [tokens]."""
    return jnp.sqrt(jnp.mean(jnp.square(x), axis=-1))


def cosines(a: jax.Array, b: jax.Array) -> jax.Array:
    """Of each token; 0 where one of the two is a vector of zeros."""
    tiny = jnp.finfo(a.dtype).tiny
    squares = [jnp.sum(jnp.square(v), axis=-1) for v in (a, b)]
    scales = [jax.lax.rsqrt(jnp.maximum(square, tiny)) for square in squares]
    return jnp.sum(a * b, axis=-1) * scales[0] * scales[1]


def line_through(x: jax.Array, y: jax.Array) -> tuple[jax.Array, jax.Array]:
    """Slope and R^2 of the least-squares line of y on x, both [points]."""
    x, y = x - jnp.mean(x), y - jnp.mean(y)
    xx, xy, yy = (jnp.mean(a * b) for a, b in ((x, x), (x, y), (y, y)))
    return xy / xx, xy * xy / (xx * yy)
