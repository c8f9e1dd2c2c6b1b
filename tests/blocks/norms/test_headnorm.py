"""What only HeadNorm promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.headnorm import HeadNorm
from blocks.norms.rmsnorm import RMSNorm

make = functools.partial(HeadNorm, rngs=nnx.Rngs(0))


def test_vectors(check_vectors, norm_vectors):
    check_vectors(make(4, n_heads=2), norm_vectors["vectors"]["headnorm"])


def test_centred_vectors(check_vectors, norm_vectors):
    # The vectors of GroupNorm, whose bias is added to y alone.
    bias = np.array([0.1, -0.2, 0.3, 0.0])
    vectors = {
        row: {"y": np.asarray(e["y"]) - bias, "gain": e["gain"]}
        for row, e in norm_vectors["vectors"]["groupnorm"].items()
    }
    check_vectors(make(4, n_heads=2, centred=True), vectors)


def test_a_louder_head_does_not_quieten_the_others():
    # Heads (3, 4) and (1, 0): RMS 3.535534 and 0.707107.
    norm = make(4, n_heads=2)
    expected = [0.848528, 1.131371, 1.414212, 0]
    np.testing.assert_allclose(norm(jnp.array([3.0, 4, 1, 0])), expected, rtol=2e-6)
    np.testing.assert_allclose(norm(jnp.array([30.0, 40, 1, 0])), expected, rtol=2e-6)
    # Over all features it does.
    whole = RMSNorm(4, rngs=nnx.Rngs(0))
    quiet, loud = whole(jnp.array([3.0, 4, 1, 0])), whole(jnp.array([30.0, 40, 1, 0]))
    np.testing.assert_allclose(quiet, [1.176697, 1.568929, 0.392232, 0], rtol=2e-6)
    np.testing.assert_allclose(loud, [1.199760, 1.599680, 0.039992, 0], rtol=2e-5)


@pytest.mark.parametrize("centred", [False, True])
def test_shared_gain_is_that_of_every_head(centred):
    x = jax.random.normal(jax.random.key(0), (3, 6))
    gain = jnp.array([1.5, 0.5, -2.0])
    shared = make(6, n_heads=2, shared_gain=True, centred=centred)
    separate = make(6, n_heads=2, centred=centred)
    assert shared.gain.shape == (3,)
    shared.gain.set_value(gain)
    separate.gain.set_value(jnp.concatenate([gain, gain]))
    np.testing.assert_array_equal(shared(x), separate(x))


@pytest.mark.parametrize(
    "scale, logit, dq, dk",
    [
        (1.0, 1.35764491, (0.176493851, -0.132370361), (0.037335252, -0.0497803)),
        (1e-4, 0.452548322, (1071.031028, 202.389666), None),
        (1e3, 1.357644966, None, None),
    ],
)
def test_logit_of_heads_normalized_one_by_one(scale, logit, dq, dk, float64):
    # Query (3, 4) * scale with gain (1.5, 0.5), key (4, 3); 60-digit arithmetic. A head
    # alone is a token of width d_head: the query and key norm of Qwen3 is RMSNorm.
    gain = jnp.array([1.5, 0.5])
    norm = RMSNorm(2, rngs=nnx.Rngs(0))
    f = lambda q, k, g: (g * norm(q)) @ norm(k) / 2**0.5  # noqa: E731
    q, k = scale * jnp.array([3.0, 4.0]), jnp.array([4.0, 3.0])
    value, gradients = jax.value_and_grad(f, argnums=(0, 1, 2))(q, k, gain)
    np.testing.assert_allclose(value, logit, rtol=3e-9)
    if dq is not None:
        np.testing.assert_allclose(gradients[0], dq, rtol=1e-9, atol=5.1e-10)
    if dk is not None:
        np.testing.assert_allclose(gradients[1], dk, rtol=1e-7)
        np.testing.assert_allclose(gradients[2], [0.678822456, 0.678822456], rtol=2e-9)


@pytest.mark.parametrize("n_heads", [3, 16])
def test_heads_of_unequal_width_are_refused(n_heads):
    with pytest.raises(
        ValueError, match=f"n_heads must divide d_model=8, got {n_heads}"
    ):
        make(8, n_heads=n_heads)


def test_no_heads_are_refused():
    with pytest.raises(ValueError, match="n_heads must be at least 1, got 0"):
        HeadNorm.check(n_heads=0)
