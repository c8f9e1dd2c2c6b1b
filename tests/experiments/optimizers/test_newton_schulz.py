"""Coefficient sets of Newton-Schulz, on singular values known to twelve digits."""

from pathlib import Path

import hydra.utils
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from experiments.optimizers.newton_schulz import QUINTIC, Polynomials

CONF = Path(__file__).parents[3] / "conf" / "newton_schulz"

# Of sin(1 + 7 i^2 + 3 j + i j^2), i < 4, j < 6: float64, each set as published.
# optax 0.2.8 `orthogonalize_via_newton_schulz` gives the first two.
EXPECTED = {
    "quintic": [1.061444009234310, 0.941501430147438, 0.742760136192208, 0.683597639478594],
    "dion": [1.010019026277682, 1.009603529532067, 0.986990668130618, 0.978337109298732],
    "polar_express_modded": [
        1.118065105576608, 1.09100176430338, 1.020735580876893, 0.87085092143676
    ],
    "converging": [1.0, 1.0, 1.0, 1.0],
    "deepseek_v4": [
        1.000520100261909, 1.00018239073827, 1.000087264196653, 1.000001647323693
    ],
}  # fmt: skip


def kernel() -> np.ndarray:
    i, j = np.indices((4, 6))
    return np.sin(1 + 7 * i**2 + 3 * j + i * j**2)


def load(name: str, **changed) -> Polynomials:
    return hydra.utils.instantiate(OmegaConf.load(CONF / f"{name}.yaml"), **changed)


def values(x) -> np.ndarray:
    return np.linalg.svd(np.asarray(x), compute_uv=False)


def test_every_set_is_tested():
    assert {p.stem for p in CONF.glob("*.yaml")} == {*EXPECTED, "polar_express"}


@pytest.mark.parametrize("name", EXPECTED)
def test_singular_values_as_published(x64, name):
    eps = {"eps": 1e-8} if name in ("quintic", "dion") else {}
    found = values(load(name, **eps)(jnp.asarray(kernel())))
    np.testing.assert_allclose(found, EXPECTED[name], rtol=2e-7 if not eps else 1e-12)


@pytest.mark.parametrize(
    "steps, expected",
    [
        (
            5,
            [1.12152652500376, 1.042348130799715, 1.038177353983519, 0.923540025408824],
        ),
        (8, [1.0, 1.0, 1.0, 1.0]),
    ],
)
def test_polar_express_without_safety(x64, steps, expected):
    # Five steps take the first five polynomials, not the last.
    found = values(
        load("polar_express", safety=1.0, norm_scale=1.0, steps=steps)(
            jnp.asarray(kernel())
        )
    )
    np.testing.assert_allclose(found, expected, rtol=1e-6)


def test_safety_divides_all_polynomials_but_the_last_that_is_given():
    # arXiv 2505.16932 algorithm 1: the list is made safe, then as many as there are steps
    # are taken; what follows the list is its last entry.
    raw, safe = (load("polar_express", safety=x, steps=9) for x in (1.0, 1.01))
    assert safe.coefficients[7:] == raw.coefficients[7:] == [(1.875, -1.25, 0.375)] * 2
    for (a, b, c), found in zip(
        raw.coefficients[:7], safe.coefficients[:7], strict=True
    ):
        np.testing.assert_allclose(found, [a / 1.01, b / 1.030301, c / 1.0510100501])
    few = load("polar_express")
    assert few.coefficients == safe.coefficients[:5]


def test_the_distance_to_the_polar_factor(x64):
    # Of the same matrix: 0.41650960 for the quintic, 0.19831827 for Polar Express.
    u, _, vt = np.linalg.svd(kernel(), full_matrices=False)
    for name, distance in (
        ("quintic", 0.41650960),
        ("polar_express_modded", 0.19831827),
    ):
        found = np.linalg.norm(load(name)(jnp.asarray(kernel())) - u @ vt)
        np.testing.assert_allclose(found, distance, rtol=1e-6)


@pytest.mark.parametrize("name", [*EXPECTED, "polar_express"])
def test_copies_do_not_mix_and_transposing_commutes(x64, name):
    h = np.random.default_rng(0).standard_normal((2, 3, 5, 8))
    iterate = load(name)
    together = iterate(jnp.asarray(h))
    for at in np.ndindex(2, 3):
        np.testing.assert_allclose(
            together[at], iterate(jnp.asarray(h[at])), atol=1e-13
        )
    np.testing.assert_array_equal(iterate(jnp.asarray(h).mT), together.mT)


def test_bfloat16_is_close_and_returns_the_dtype_it_got():
    h = jnp.asarray(kernel(), jnp.float32)
    rough = load("quintic", dtype="bfloat16")(h)
    assert rough.dtype == jnp.float32
    # optax 0.2.8 in bfloat16 throughout is off by 0.03 to 0.1 on this matrix.
    np.testing.assert_allclose(rough, QUINTIC(h), atol=0.1)
    assert not np.allclose(rough, QUINTIC(h), atol=1e-4)


def test_eps_may_be_traced():
    h = jnp.asarray(kernel(), jnp.float32)
    run = jax.jit(lambda eps: Polynomials(eps=eps)(h))
    np.testing.assert_allclose(run(1e-7), QUINTIC(h), atol=1e-6)
    assert not np.allclose(run(1.0), QUINTIC(h), atol=1e-3)


@pytest.mark.parametrize(
    "wrong",
    [
        dict(a=(1.0, 2.0)),
        dict(steps=0),
        dict(norm_scale=0.9),
        dict(safety=float("nan")),
        dict(eps=0.0),
        dict(dtype="float8"),
    ],
)
def test_wrong_values_are_refused_by_name(wrong):
    (key,) = wrong
    with pytest.raises(ValueError, match=f"^{key}: "):
        Polynomials.check(**wrong)
