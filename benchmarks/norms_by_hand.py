"""The normalizers as one would write them in jnp by hand, for one formula at a time.

f(w, x, **keywords) -> y, or (y, new state): p holds parameters and state by name,
keywords are those of the YAML. The function is named like the choice, or like the file
of its class. x is float32 here, so nothing is cast.
"""

import math

import jax
import jax.numpy as jnp
from jax.lax import erf, rsqrt


def mean_square(x):
    return jnp.mean(x * x, axis=-1, keepdims=True)


def rms_scaled(x, eps):
    return x * rsqrt(mean_square(x) + eps)


def centred(x, eps):
    x = x - jnp.mean(x, axis=-1, keepdims=True)
    return x * rsqrt(mean_square(x) + eps)


# -- dividing by a statistic -------------------------------------------------------------


def none(w, x, **_):
    return x


def layernorm(w, x, *, eps, **_):
    return centred(x, eps) * w["gain"] + w["bias"]


def layernorm_nobias(w, x, *, eps, **_):
    return centred(x, eps) * w["gain"]


def layernorm_plain(w, x, *, eps, **_):
    return centred(x, eps)


def rmsnorm(w, x, *, eps, **_):
    return rms_scaled(x, eps) * w["gain"]


rmsnorm_llama = rmsnorm


def rmsnorm_plain(w, x, *, eps, **_):
    return rms_scaled(x, eps)


def rmsnorm_zc(w, x, *, eps, **_):
    return rms_scaled(x, eps) * (1 + w["gain"])


def prmsnorm(w, x, *, p, eps, **_):
    counted = x[..., : int(x.shape[-1] * p)]
    return x * rsqrt(mean_square(counted) + eps) * w["gain"]


def scalenorm(w, x, *, eps, **_):
    square = jnp.sum(x * x, axis=-1, keepdims=True)
    return x * (w["scale"] * rsqrt(jnp.maximum(square, eps**2)))


def l2norm(w, x, *, eps, eps_mode="inside", **_):
    square = jnp.sum(x * x, axis=-1, keepdims=True)
    kept = jnp.maximum(square, eps**2) if eps_mode == "clamp" else square + eps
    return x * rsqrt(kept)


def fixnorm(w, x, *, eps, **_):
    square = jnp.sum(x * x, axis=-1, keepdims=True)
    return x * (math.sqrt(x.shape[-1]) * rsqrt(jnp.maximum(square, eps**2)))


def unitnorm(w, x, **_):
    y = x * rsqrt(jnp.sum(x * x, axis=-1, keepdims=True))
    return y * w["gain"] if "gain" in w else y


def groupnorm(w, x, *, n_groups, eps, **_):
    groups = x.reshape(*x.shape[:-1], n_groups, -1)
    return centred(groups, eps).reshape(x.shape) * w["gain"] + w["bias"]


def headnorm(w, x, *, n_heads, eps, **_):
    heads = x.reshape(*x.shape[:-1], n_heads, -1)
    gain = w["gain"].reshape(-1, heads.shape[-1])
    return (rms_scaled(heads, eps) * gain).reshape(x.shape)


def batchnorm(w, x, *, eps, momentum, **_):
    mean = jnp.mean(x, axis=0)
    x = x - mean
    var = jnp.mean(x * x, axis=0)
    y = x * (w["gain"] * rsqrt(var + eps)) + w["bias"]
    new = {
        "mean": momentum * w["mean"] + (1 - momentum) * jax.lax.stop_gradient(mean),
        "var": momentum * w["var"] + (1 - momentum) * jax.lax.stop_gradient(var),
    }
    return y, new


# -- pointwise ---------------------------------------------------------------------------


def affine_of(f):
    def by_hand(w, x, **_):
        return w["gain"] * f(w["alpha"] * x + w["shift"]) + w["bias"]

    return by_hand


affine = affine_of(lambda z: z)
arctan = affine_of(lambda z: (2 / math.pi) * jnp.arctan(z))
derf = affine_of(erf)
hardtanh = affine_of(lambda z: jnp.clip(z, -1, 1))
isru = affine_of(lambda z: z * rsqrt(1 + z * z))
pointwise = affine_of(jnp.tanh)
satursin = affine_of(lambda z: jnp.sin(jnp.clip(z, -math.pi / 2, math.pi / 2)))
smoothsign = affine_of(lambda z: z / (1 + jnp.abs(z)))


def dyt(w, x, **_):
    return w["gain"] * jnp.tanh(w["alpha"] * x) + w["bias"]


def dyisru(w, x, *, floor, **_):
    beta = jax.nn.softplus(w["rho"]) + floor
    return w["gain"] * (x * rsqrt(beta + x * x)) + w["bias"]


def bhyt(w, x, *, kappa, eps, **_):
    slope = w["lam"] / kappa * rsqrt(mean_square(x) + eps)
    return w["gain"] * jnp.tanh(slope * x)


def seednorm(w, x, *, eps, **_):
    gain = w["alpha"] * jnp.tanh((x @ w["beta"])[..., None]) + w["gain"]
    return gain * rms_scaled(x, eps)


def gatednorm(w, x, *, eps, **_):
    n = (1 + w["gain"]) * rms_scaled(x, eps)
    return 2 * n * jax.nn.sigmoid(jax.nn.silu(n @ w["down"]) @ w["up"])


def moved_rms(w, x, decay):
    own = jnp.sqrt(jnp.mean(jnp.square(jax.lax.stop_gradient(x))))
    used = jnp.where(w["rms"] == 0, own, w["rms"])
    return used, {"rms": decay * used + (1 - decay) * own}


def ema_blend_input(w, x, *, blend, decay, eps, **_):
    used, new = moved_rms(w, x, decay)
    slope = w["alpha"] / (1 - blend + blend * (used + eps))
    return w["gain"] * erf(slope * x + w["shift"]) + w["bias"], new


def ema_blend_output(w, x, *, blend, decay, eps, **_):
    used, new = moved_rms(w, x, decay)
    squashed = erf(w["alpha"] * x + w["shift"])
    inner = (1 - blend) * squashed + blend / (used + eps) * x
    return w["gain"] * inner + w["bias"], new


ema_scale = ema_blend_input
