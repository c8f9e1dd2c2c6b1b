import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.optimizers.newton_schulz import Polynomials
from experiments.optimizers.scale_by_muon import scale_by_muon

QUINTIC = (3.4445, -4.7750, 2.0315)  # KellerJordan/Muon muon.py


def orthogonalise(h, ns_steps=5, eps=1e-7):
    return Polynomials(steps=ns_steps, eps=eps)(h)


def kernels() -> np.ndarray:
    """[3, 4, 6] sin(1 + l + 7 i^2 + 3 j + (i + l) j^2): dense, and no random draw."""
    layer, i, j = np.indices((3, 4, 6))
    return np.sin(1 + layer + 7 * i**2 + 3 * j + (i + layer) * j**2)


def newton_schulz(h: np.ndarray, n_steps: int, eps: float) -> np.ndarray:
    """float64: the polynomial applied to the singular values, one by one."""
    u, s, vt = np.linalg.svd(h, full_matrices=False)
    s = s / (np.linalg.norm(s) + eps)
    a, b, c = QUINTIC
    for _ in range(n_steps):
        s = a * s + b * s**3 + c * s**5
    return u @ np.diag(s) @ vt


# optax 0.2.8 orthogonalize_via_newton_schulz on kernels(): float64, eps 1e-8, 5 steps.
SINGULAR_VALUES = [
    [1.06144400923431, 0.941501430147438, 0.742760136192208, 0.683597639478594],
    [1.12535550621995, 1.097413719611325, 0.712674768224081, 0.68216567010065],
    [1.12246192217189, 1.09275203052926, 1.092414686052155, 1.029641344318905],
]
SUMS = [-2.0207874045748184, -2.3432534269304335, 0.7150865651057174]
FIRST = [0.28555927136460957, 0.23464296366684487, -0.07025076023073405]
LAST = [0.06427483940177142, -0.26440049573770047, -0.24514009391168287]
# fmt: off
FIRST_KERNEL = [
    [0.28555927136461, -0.335212472725204, 0.199895848055654,
     -0.486095076920131, 0.141990337810275, -0.21809458103299],
    [0.375239888535983, -0.325005590858809, -0.429704739609012,
     0.452208487313225, -0.408352907225528, -0.36991413645804],
    [-0.257073693492158, 0.082544595965409, -0.372594908507538,
     -0.443334462055238, -0.251214283996148, -0.228322169519159],
    [0.507031931494493, 0.540546046455563, 0.31315571162575,
     -0.352650339550131, -0.505665000647466, 0.064274839401771],
]
# fmt: on


def test_stacked_kernels_agree_with_the_reference_vectors(x64):
    out = np.asarray(orthogonalise(jnp.asarray(kernels()), eps=1e-8))
    assert out.dtype == np.float64
    np.testing.assert_allclose(
        np.linalg.svd(out, compute_uv=False), SINGULAR_VALUES, rtol=1e-12
    )
    np.testing.assert_allclose(out.sum(axis=(1, 2)), SUMS, rtol=1e-12)
    np.testing.assert_allclose(out[:, 0, 0], FIRST, rtol=1e-12)
    np.testing.assert_allclose(out[:, 3, 5], LAST, rtol=1e-12)
    np.testing.assert_allclose(out[0], FIRST_KERNEL, rtol=1e-11)


@pytest.mark.parametrize("ns_steps", [1, 2, 5])
@pytest.mark.parametrize("shape", [(5, 9), (9, 5), (7, 7)])
def test_equals_the_polynomial_of_the_singular_values(x64, shape, ns_steps):
    h = np.random.default_rng(0).standard_normal(shape)
    ours = orthogonalise(jnp.asarray(h), ns_steps, 1e-7)
    np.testing.assert_allclose(ours, newton_schulz(h, ns_steps, 1e-7), atol=1e-13)


def test_transposing_commutes(x64):
    h = jnp.asarray(kernels())
    np.testing.assert_array_equal(orthogonalise(h.mT), orthogonalise(h).mT)


def test_null_directions_stay_null(x64):
    # sin(1 + 6 i + j) has rank 2; singular values from float64, eps 1e-8.
    i, j = np.indices((4, 6))
    out = orthogonalise(jnp.asarray(np.sin(1 + 6 * i + j)), eps=1e-8)
    values = np.linalg.svd(out, compute_uv=False)
    np.testing.assert_allclose(values[:2], [1.016335200821507, 0.751281137964147])
    assert values[2] < 1e-12


@pytest.mark.parametrize("shape", [(64, 64), (128, 512), (512, 128)])
def test_singular_values_of_a_random_update_are_near_one(shape):
    h = np.random.default_rng(0).standard_normal(shape).astype(np.float32)
    values = np.linalg.svd(orthogonalise(jnp.asarray(h)), compute_uv=False)
    # Measured in float64: 64 x 64 gives 0.57 to 1.20, 128 x 512 0.68 to 1.13.
    assert values.min() > 0.5
    assert values.max() < 1.25


def test_float32_is_close_to_float64():
    h = kernels()
    ours = orthogonalise(jnp.asarray(h, jnp.float32))
    assert ours.dtype == jnp.float32
    expected = np.stack([newton_schulz(layer, 5, 1e-7) for layer in h])
    np.testing.assert_allclose(ours, expected, atol=2e-6)


def test_update_does_not_depend_on_the_size_of_the_gradient_down_to_eps(x64):
    h = jnp.asarray(kernels())
    np.testing.assert_allclose(orthogonalise(1e-3 * h), orthogonalise(h), rtol=1e-3)
    np.testing.assert_allclose(
        orthogonalise(1e-12 * h, eps=1e-30), orthogonalise(h, eps=1e-30), rtol=1e-9
    )


def test_zero_gradient_gives_a_zero_update():
    tx = scale_by_muon()
    zero = {"w": jnp.zeros((2, 4, 3))}
    update, _ = tx.update(zero, tx.init(zero))
    np.testing.assert_array_equal(update["w"], 0)


@pytest.mark.parametrize(
    "scale, wide, tall",
    [
        ("keller", 1.224744871391589, 1.0),  # sqrt(6/4), 1
        ("spectral", 1.224744871391589, 0.816496580927726),  # sqrt(6/4), sqrt(4/6)
        ("rms0.2", 0.4898979485566356, 0.4898979485566356),  # 0.2 sqrt(6)
    ],
)
def test_shape_factor_takes_fan_out_from_the_last_axis(x64, scale, wide, tall):
    tx = scale_by_muon(scale=scale, iteration=Polynomials(eps=1e-30))
    for h, factor in ((kernels(), wide), (kernels().mT, tall)):
        grads = {"w": jnp.asarray(h)}
        update, _ = tx.update(grads, tx.init(grads))
        expected = factor * orthogonalise(grads["w"], eps=1e-30)
        np.testing.assert_allclose(update["w"], expected, rtol=1e-10)


def test_rms_scale_gives_updates_as_large_as_adams():
    h = np.random.default_rng(0).standard_normal((2, 96, 256)).astype(np.float32)
    tx = scale_by_muon(scale="rms0.2")
    update, _ = tx.update(h, tx.init(h))
    rms = np.sqrt(np.mean(np.square(update), axis=(1, 2)))
    assert np.all((rms > 0.15) & (rms < 0.2))


@pytest.mark.parametrize("nesterov", [True, False])
def test_momentum_is_an_uncorrected_average(x64, nesterov):
    b, mu = 0.9, np.zeros((4, 6))
    tx = scale_by_muon(b, nesterov=nesterov)
    state = tx.init(jnp.zeros((4, 6)))
    for grad in kernels():
        mu = b * mu + (1 - b) * grad
        ahead = b * mu + (1 - b) * grad if nesterov else mu
        update, state = tx.update(jnp.asarray(grad), state)
        expected = np.sqrt(6 / 4) * newton_schulz(ahead, 5, 1e-7)
        np.testing.assert_allclose(update, expected, atol=1e-13)


def test_vectors_are_refused():
    grads = {"gain": jnp.ones(4)}
    tx = scale_by_muon()
    with pytest.raises(ValueError, match="kernel"):
        tx.update(grads, tx.init(grads))


def test_unknown_scale_is_refused():
    with pytest.raises(ValueError, match="keller"):
        scale_by_muon(scale="moonlight")


def test_momentum_and_eps_may_be_traced():
    h = jnp.asarray(kernels(), jnp.float32)

    def run(momentum, eps):
        tx = scale_by_muon(momentum, iteration=Polynomials(eps=eps))
        _, state = tx.update(h, tx.init(h))
        return tx.update(h[::-1], state)[0]

    many = jax.vmap(run)(jnp.array([0.5, 0.95]), jnp.array([1e-7, 1e-3]))
    np.testing.assert_allclose(many[0], run(0.5, 1e-7), atol=1e-5)
    np.testing.assert_allclose(many[1], run(0.95, 1e-3), atol=1e-5)
