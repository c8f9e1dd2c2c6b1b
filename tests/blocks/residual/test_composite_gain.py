"""Gains of products of mixing matrices, and the chain that grows without streams."""

import jax.numpy as jnp
import numpy as np
import pytest

from blocks.oracle import streams as oracle
from blocks.residual.composite_gain import composite_gains

DRAWS = np.random.default_rng(0).standard_normal((60, 4, 4))


def doubly_stochastic(scale):
    return np.stack([oracle.sinkhorn(scale * z, 20) for z in DRAWS])


# Column sums of the product of 60 Sinkhorn matrices, largest and smallest; float64.
@pytest.mark.parametrize(
    "scale, largest, smallest",
    [
        (1, 1.000000000107, 0.999999999807),
        (2, 1.000115669750, 0.999786475200),
        (4, 1.002365878507, 0.997360679261),
        (6, 1.014395256152, 0.980653683617),
    ],
)
def test_sinkhorn_matrices_keep_the_signal(scale, largest, smallest):
    gains = composite_gains(doubly_stochastic(scale))
    # The last forward and the first backward product are the same: all 60 matrices.
    np.testing.assert_allclose(gains["forward_log_max"], np.zeros(60), atol=1e-12)
    np.testing.assert_allclose(gains["forward_log_min"], np.zeros(60), atol=1e-12)
    found = np.exp([gains["backward_log_max"][0], gains["backward_log_min"][0]])
    np.testing.assert_allclose(found, [largest, smallest], atol=1e-11)


@pytest.mark.parametrize(
    "scale, row, column, digits",
    [(0.1, 14.269985304, 18.110437711, 1e-9), (0.3, 1906.78, 1494.83, 1e-5)],
)
def test_free_matrices_do_not(scale, row, column, digits):
    gains = composite_gains(np.eye(4) + scale * DRAWS)
    found = np.exp([gains["forward_log_norm"][-1], gains["backward_log_norm"][0]])
    np.testing.assert_allclose(found, [row, column], rtol=digits)
    # With entries of both signs the sums are smaller than the norm.
    assert (gains["forward_log_max"] <= gains["forward_log_norm"]).all()


@pytest.mark.parametrize("asarray", [np.asarray, jnp.asarray])
def test_equals_the_oracle_at_every_sublayer(asarray, float64):
    mixings = np.eye(3) + 0.3 * np.random.default_rng(1).normal(size=(7, 3, 3))
    gains = composite_gains(asarray(mixings))
    for direction in ("forward", "backward"):
        wanted = np.log(
            [oracle.composite_gain(mixings, at, direction) for at in range(1, 8)]
        )
        for k, name in enumerate(("max", "min", "norm")):
            got = gains[f"{direction}_log_{name}"]
            np.testing.assert_allclose(got, wanted[:, k], rtol=1e-10, atol=1e-12)


def test_the_first_forward_and_the_last_backward_gain_are_of_one_matrix():
    # Fig. 8 of arXiv 2512.24880, H_1: rows and columns summed by hand.
    h_1 = np.array(
        [
            [0.67, 0.09, 0.03, 0.22],
            [0.26, 0.48, 0.26, 0.0],
            [0.03, 0.24, 0.0, 0.73],
            [0.03, 0.2, 0.69, 0.09],
        ]
    )
    gains = composite_gains(np.stack([h_1, np.eye(4)]))
    np.testing.assert_allclose(np.exp(gains["forward_log_max"][0]), 1.01, rtol=1e-12)
    np.testing.assert_allclose(np.exp(gains["backward_log_max"][0]), 1.04, rtol=1e-12)
    np.testing.assert_allclose(gains["backward_log_max"][1], 0, atol=1e-15)


# 36 random maps of width 256, seed 5: reproduced from a published lesson.
@pytest.mark.parametrize(
    "kind, at, expected",
    [
        ("none", 1, 1.3796141627290481),
        ("none", 8, 17.314658013366586),
        ("none", 36, 412442.09423078835),
        ("pre", 1, 1.3986422872963444),
        ("pre", 36, 6.423482855953835),
        ("post", 36, 1.0),
    ],
)
def test_chain_of_36_maps(kind, at, expected):
    np.testing.assert_allclose(oracle.random_chain(kind)[at - 1], expected, rtol=1e-9)
