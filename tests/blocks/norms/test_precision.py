"""In a bfloat16 model every normalizer computes in float32 and rounds at the end."""

import functools
from pathlib import Path

import hydra
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from omegaconf import OmegaConf

from blocks.norms import layernorm
from blocks.norms.derf import Derf

CONF = Path(__file__).parents[3] / "conf" / "norm"
CHOICES = sorted(p.stem for p in CONF.glob("*.yaml"))
D_MODEL = 24


def make_norm(choice):
    node = OmegaConf.load(CONF / f"{choice}.yaml")
    norm = hydra.utils.instantiate(node)(D_MODEL, rngs=nnx.Rngs(0))
    rng = np.random.default_rng(1)
    for _, variable in nnx.to_flat_state(nnx.state(norm, nnx.Param)):
        off = rng.uniform(-0.2, 0.2, variable.shape)
        variable.set_value(variable[...] + jnp.asarray(off, jnp.float32))
    return norm


@functools.cache
def rows():
    """Tokens of sizes from 1e-6 to 1e6, a quarter of them far from a mean of zero."""
    rng = np.random.default_rng(0)
    x = rng.normal(size=(32, D_MODEL)) + 10 * (np.arange(32)[:, None] % 4 == 0)
    return jnp.asarray(x * 10 ** rng.uniform(-6, 6, (32, 1)), jnp.bfloat16)


def units_apart(a, b):
    """By how many neighbouring bfloat16 numbers two of them differ."""

    def place(x):
        bits = np.asarray(x, jnp.bfloat16).view(np.int16).astype(np.int32)
        return np.where(bits < 0, -(bits & 0x7FFF), bits)

    return np.abs(place(a) - place(b))


def off(norm):
    """Units in the last place between bfloat16 and float32 rounded, of the worst entry.

    Operation by operation: a compiler may leave out roundings.
    """
    x = rows()
    graphdef, state = nnx.split(norm)  # one that has state starts from the same
    half, full = (
        nnx.merge(graphdef, state, copy=True)(x.astype(dtype))
        for dtype in ("bfloat16", "float32")
    )
    assert (half.dtype, full.dtype) == (jnp.bfloat16, jnp.float32)
    return units_apart(half, full.astype(jnp.bfloat16)).max()


@pytest.mark.parametrize("choice", CHOICES)
def test_bfloat16_is_float32_rounded_within_two_units(choice):
    assert off(make_norm(choice)) <= 2


def test_statistics_in_bfloat16_would_be_seen(monkeypatch):
    monkeypatch.setattr(layernorm, "widened", lambda x, d_model: x)
    assert off(make_norm("layernorm")) > 2


def test_units_are_counted_across_zero_and_powers_of_two():
    one = np.float32(1)
    assert units_apart(one, one + 2**-7) == 1
    assert units_apart(one, one - 2**-8) == 1
    assert units_apart(np.float32(0), -np.float32(2.0**-133)) == 1


def test_derf_does_not_saturate_early_in_a_bfloat16_model():
    # In bfloat16 erf is 1 from 2.2 on; computed in float32, gain * erf is below gain
    # at 2.6 still, which a gain of 256 shows in the eight digits that are left.
    norm = Derf(1, alpha_init=1.0, rngs=nnx.Rngs(0))
    norm.gain.set_value(jnp.full((1,), 256.0, jnp.float32))
    norm.bias.set_value(jnp.full((1,), -256.0, jnp.float32))
    y = norm(jnp.full((1, 1), 2.6, jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    # 256 (erf(2.59375) - 1), 2.59375 being 2.6 in bfloat16
    np.testing.assert_allclose(np.float64(y), [[-0.06250]], rtol=0.02)
