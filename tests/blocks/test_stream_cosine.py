"""How far a sub-layer turns the stream, against NumPy and against a closed form."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blocks.block import stream_cosine


def test_vectors_of_known_angles():
    before = jnp.asarray([[1.0, 0.0], [3.0, 0.0], [0.0, 2.0], [1.0, 1.0]])
    after = jnp.asarray([[5.0, 0.0], [0.0, 7.0], [0.0, -1.0], [1.0, 0.0]])
    # 0, 90, 180 and 45 degrees, whatever the lengths.
    expected = (1 + 0 - 1 + np.sqrt(0.5)) / 4
    np.testing.assert_allclose(stream_cosine(before, after), expected, rtol=1e-6)


def test_is_a_mean_over_streams_and_tokens_of_float64_cosines(float64):
    rng = np.random.default_rng(0)
    before, after = rng.normal(size=(2, 3, 5, 8)) * np.logspace(-3, 3, 5)[:, None]
    expected = np.mean(
        [
            a @ b / np.linalg.norm(a) / np.linalg.norm(b)
            for a, b in zip(before.reshape(-1, 8), after.reshape(-1, 8), strict=True)
        ]
    )
    found = stream_cosine(jnp.asarray(before), jnp.asarray(after))
    assert found.dtype == jnp.float64
    np.testing.assert_allclose(found, expected, rtol=1e-13)


def test_of_a_sum_of_orthogonal_vectors_follows_from_their_lengths():
    # |x| = 3, |branch| = 4, x . branch = 0: cos(x, x + branch) = 3 / 5.
    x, branch = jnp.asarray([[3.0, 0.0]]), jnp.asarray([[0.0, 4.0]])
    np.testing.assert_allclose(stream_cosine(x, x + branch), 0.6, rtol=1e-6)


def test_a_stream_of_zeros_has_the_cosine_zero():
    before = jnp.asarray([[[1.0, 2.0]], [[0.0, 0.0]]])  # the second stream is empty
    np.testing.assert_allclose(stream_cosine(before, before), 0.5, rtol=1e-6)


def test_of_a_state_with_a_history_only_the_stream_counts():
    x, history = jnp.asarray([[1.0, 0.0]]), jnp.ones((4, 1, 2))
    assert stream_cosine((x, history), (-x, history)) == -1


def test_nothing_is_learned_from_it():
    x = jnp.asarray([[1.0, 2.0]])
    gradient = jax.grad(lambda y: stream_cosine(x, y))(jnp.asarray([[2.0, -1.5]]))
    assert (gradient == 0).all()


@pytest.mark.parametrize("dtype", ["bfloat16", "float16"])
def test_half_precision_is_summed_in_float32(dtype):
    # 300 squares of 300 overflow float16 and lose their sum in bfloat16.
    x = jnp.full((1, 300), 300.0, dtype)
    found = stream_cosine(x, x)
    assert found.dtype == jnp.float32
    np.testing.assert_allclose(found, 1, rtol=1e-6)
