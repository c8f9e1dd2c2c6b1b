import jax
import numpy as np
import pytest

from experiments.data.gaussian import Gaussian


def draw(source, seed, split="train"):
    return source.batch({}, jax.random.key(seed), split=split)


def test_both_are_independent_standard_normal():
    batch = draw(Gaussian(n_rows=400, d_model=250), 0)
    x, weights = np.asarray(batch["x"]), np.asarray(batch["weights"])
    assert x.shape == weights.shape == (400, 250)
    n = x.size
    for z in (x, weights):
        # Five standard errors of the mean, the mean square and the fourth moment.
        assert abs(z.mean()) < 5 / np.sqrt(n)
        assert abs(np.mean(z**2) - 1) < 5 * np.sqrt(2 / n)
        assert abs(np.mean(z**4) - 3) < 5 * np.sqrt(96 / n)
    assert abs(np.mean(x * weights)) < 5 / np.sqrt(n)


def test_the_shape_is_that_of_the_source_whatever_the_run_asks():
    batch = Gaussian().batch(
        {}, jax.random.key(0), split="train", batch_size=3, seq_len=5
    )
    assert batch["x"].shape == (256, 64)


def test_fingerprint_tells_shapes_apart():
    a, b, c = (
        Gaussian(**kw).load().fingerprint
        for kw in ({}, {"n_rows": 128}, {"d_model": 32})
    )
    assert len({a, b, c}) == 3


@pytest.mark.parametrize("key", ["n_rows", "d_model"])
def test_an_empty_batch_is_refused(key):
    with pytest.raises(ValueError, match=f"^{key}: "):
        Gaussian.check(**{key: 0})
