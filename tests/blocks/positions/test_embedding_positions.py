"""Absolute positions, added to the embedding. Both choices of the group."""

from pathlib import Path

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from jax.test_util import check_grads
from omegaconf import OmegaConf

from blocks.inits.normal import Normal
from blocks.oracle import positions as oracle
from blocks.positions.learned import LearnedPositions
from blocks.positions.sinusoidal import SinusoidalPositions

CONF = Path(__file__).parents[3] / "conf" / "embedding_positions"
CHOICES = sorted(path.stem for path in CONF.glob("*.yaml"))


@pytest.fixture(params=CHOICES)
def made(request):
    text = (CONF / f"{request.param}.yaml").read_text()
    assert text.splitlines()[0] == "# @package model.embedding_positions"
    # A table has as many rows as the run has tokens, which only the whole config knows.
    config = OmegaConf.create({"seq_len": 9, "part": OmegaConf.create(text)})
    make = hydra.utils.instantiate(config.part)
    return make(6, init=Normal(embedding_std=0.5), rngs=nnx.Rngs(0))


def expected(made, x):
    """The oracle for sequences [batch, seq, d_model]."""
    if isinstance(made, LearnedPositions):
        table = np.asarray(made.table[...], np.float64)
        return np.stack([oracle.learned(s, table=table) for s in x])
    return np.stack([oracle.sinusoidal(s, base=10000.0) for s in x])


def test_there_are_choices():
    assert {"learned", "sinusoidal"} <= set(CHOICES)


@pytest.mark.parametrize(
    "dtype, rtol", [(jnp.float32, 1e-6), (jnp.bfloat16, 2**-7), (jnp.float16, 2**-10)]
)
def test_equals_the_oracle_in_the_dtype_of_the_input(made, dtype, rtol):
    x = np.random.default_rng(0).normal(size=(2, 5, 6))
    y = made(jnp.asarray(x.reshape(10, 6)).astype(dtype), (2, 5))
    assert y.dtype == dtype
    wanted = expected(made, x).reshape(10, 6)
    atol = 2 * rtol * np.abs(wanted).max()
    np.testing.assert_allclose(y.astype(jnp.float32), wanted, rtol=0, atol=atol)


def test_float64_and_gradient(made, float64):
    x = np.random.default_rng(0).normal(size=(2, 3, 6))
    y = made(jnp.asarray(x.reshape(6, 6)), (2, 3))
    np.testing.assert_allclose(y, expected(made, x).reshape(6, 6), rtol=1e-13)
    graphdef, params, rest = nnx.split(made, nnx.Param, ...)
    params = jax.tree.map(lambda leaf: leaf.astype(jnp.float64), params)
    function = lambda p, x: nnx.merge(graphdef, p, rest)(x, (2, 3))  # noqa: E731
    check_grads(function, (params, y), 1, ["rev"])


def test_parameters_are_float32_positions(made):
    for path, variable in nnx.to_flat_state(nnx.state(made, nnx.Param)):
        assert variable.dtype == jnp.float32, path
        assert variable.get_metadata()["role"] == "position"


def test_other_shapes_are_refused(made):
    for shape, x in (((2, 3), (5, 6)), ((2, 3), (6, 1)), ((1, 6), (6, 7))):
        with pytest.raises(ValueError, match="expected .* got shape"):
            made(jnp.ones(x), shape)


def test_initial_table_is_that_of_an_embedding():
    learned = LearnedPositions(64, max_len=256, rngs=nnx.Rngs(0))
    assert learned.table.shape == (256, 64)
    np.testing.assert_allclose(jnp.std(learned.table[...]), 0.02, rtol=0.03)


def test_learned_positions_end():
    learned = LearnedPositions(4, max_len=3, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="expected at most 3 tokens, got 4"):
        learned(jnp.ones((4, 4)), (1, 4))
    with pytest.raises(ValueError, match="max_len must be at least 1, got 0"):
        LearnedPositions(4, max_len=0, rngs=nnx.Rngs(0))


def test_waves_by_hand():
    # Token 2 of four features: sin 2, cos 2, sin 0.02, cos 0.02.
    waves = SinusoidalPositions(4, rngs=nnx.Rngs(0))(jnp.zeros((3, 4)), (1, 3))
    np.testing.assert_allclose(waves[0], [0, 1, 0, 1])
    expected = [0.909297427, -0.416146837, 0.019998667, 0.999800007]
    np.testing.assert_allclose(waves[2], expected, rtol=1e-6)


def test_senseless_waves_are_refused():
    with pytest.raises(ValueError, match="d_model must be even and positive, got 5"):
        SinusoidalPositions(5, rngs=nnx.Rngs(0))
    with pytest.raises(ValueError, match="base must be finite and above 1, got 1.0"):
        SinusoidalPositions.check(base=1.0)
