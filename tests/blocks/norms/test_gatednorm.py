"""What only GatedNorm promises."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.gatednorm import GatedNorm
from blocks.norms.rmsnorm import RMSNorm

GOLDEN = Path(__file__).parents[2] / "golden" / "pointwise_vectors.json"
OUTSIDE = json.loads(GOLDEN.read_text())


def test_vectors(check_vectors):
    norm = GatedNorm(4, rank=2, rngs=nnx.Rngs(0))
    data = OUTSIDE["data"]
    gain = [g - 1 for g in data["gain"]]
    vectors = OUTSIDE["vectors"]["gatednorm"]
    check_vectors(norm, vectors, gain=gain, down=data["down"], up=data["up"])


def test_begins_as_rmsnorm():
    x = jax.random.normal(jax.random.key(0), (5, 8))
    y = GatedNorm(8, rngs=nnx.Rngs(0))(x)
    np.testing.assert_allclose(y, RMSNorm(8, rngs=nnx.Rngs(0))(x), rtol=1e-6)


def test_up_learns_first():
    graphdef, params = nnx.split(GatedNorm(4, rngs=nnx.Rngs(0)), nnx.Param)
    x = jnp.array([[1.0, 2.0, -1.0, 0.5]])
    gradient = jax.grad(lambda p: jnp.sum(nnx.merge(graphdef, p)(x) ** 2))(params)
    assert (gradient["down"][...] == 0).all()
    assert (gradient["up"][...] != 0).all()


def test_gate_is_between_zero_and_two():
    norm = GatedNorm(8, rank=2, rngs=nnx.Rngs(0))
    x = jax.random.normal(jax.random.key(0), (64, 8))
    plain = norm(x)
    norm.up.set_value(100 * jax.random.normal(jax.random.key(1), (2, 8)))
    gate = norm(x) / plain
    assert (gate >= 0).all()
    assert (gate <= 2 + 1e-6).all()
    assert gate.min() < 0.01
    assert gate.max() > 1.99


def test_down_keeps_the_size_of_a_normalized_token():
    down = GatedNorm(1024, rank=64, rngs=nnx.Rngs(0)).down[...]
    np.testing.assert_allclose(jnp.std(down), 1 / 32, rtol=0.02)
    other = GatedNorm(1024, rank=64, rngs=nnx.Rngs(1)).down[...]
    assert (down != other).any()


def test_no_parameter_is_a_matrix_to_an_optimizer():
    state = nnx.state(GatedNorm(8, rngs=nnx.Rngs(0)), nnx.Param)
    roles = {v.get_metadata()["role"] for _, v in nnx.to_flat_state(state)}
    assert roles == {"gain"}


@pytest.mark.parametrize("rank", [0, -1])
def test_rank_below_one_is_refused(rank):
    with pytest.raises(ValueError, match=f"rank must be at least 1, got {rank}"):
        GatedNorm.check(rank=rank)
    with pytest.raises(ValueError, match=f"rank must be at least 1, got {rank}"):
        GatedNorm(4, rank=rank, rngs=nnx.Rngs(0))


@pytest.mark.parametrize("eps", [0.0, float("inf"), float("nan")])
def test_eps_that_cannot_protect_the_root_is_refused(eps):
    with pytest.raises(ValueError, match="eps must be"):
        GatedNorm.check(eps=eps)
