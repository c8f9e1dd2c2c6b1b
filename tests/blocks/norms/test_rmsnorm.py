"""What only RMSNorm promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.norms.rmsnorm import RMSNorm

make = functools.partial(RMSNorm, rngs=nnx.Rngs(0))


# -- vectors ---------------------------------------------------------------------------


def test_vectors_with_gain(check_vectors, norm_vectors):
    check_vectors(make(4), norm_vectors["vectors"]["rmsnorm"])


def test_vectors_with_zero_centred_gain(check_vectors, norm_vectors):
    norm = make(4, gain="zero_centred")
    gain = (0.5, -0.5, -2, 1)  # the gain of the vectors, minus 1
    check_vectors(norm, norm_vectors["vectors"]["rmsnorm"], gain=gain)


def test_vectors_without_gain(check_vectors, norm_vectors):
    norm = make(4, gain="none")
    assert not jax.tree.leaves(nnx.state(norm, nnx.Param))
    check_vectors(norm, norm_vectors["vectors"]["rmsnorm_plain"])


def test_vectors_with_eps_outside_the_root(check_vectors, norm_vectors):
    norm = make(4, eps=1e-8, eps_mode="outside")
    check_vectors(norm, norm_vectors["vectors"]["rmsnorm_eps_outside"])


# -- released code, see tests/golden/README.md -----------------------------------------

LLAMA = {"eps": 1e-5, "cast_before_gain": True}
KEYWORDS = {  # of the class in transformers, or function of torch
    "rms_llama": LLAMA,
    "rms_llama_w32": LLAMA,
    "rms_llama4": LLAMA,
    "rms_t5": {"cast_before_gain": True},
    "rms_gpt_oss": {"eps": 1e-5},
    "rms_gpt_oss_w32": {"eps": 1e-5},
    "rms_gemma": {"gain": "zero_centred"},
    "l2norm_llama4": {"eps": 1e-5, "gain": "none"},
    "rms_unweighted_v4": {"gain": "none"},
    "torch_rms_norm": {"eps": 1e-5},
}
# One rounds 1 / rms to half before the product, the other returns float32.
ROUNDS_ELSEWHERE = {"rms_unweighted_v4", "rms_llama_w32"}


@pytest.mark.parametrize("rows", ["normal", "offset", "large", "tiny", "zeros_const"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("op", KEYWORDS)
def test_equals_released_code(check_golden, op, dtype, rows):
    if dtype == "fp32" and op.endswith("_w32"):
        return  # a float32 weight on a float32 input is the case without _w32
    norm = make(16, **KEYWORDS[op])
    bit_equal = dtype != "fp32" and op not in ROUNDS_ELSEWHERE
    check_golden(norm, f"{op}/{dtype}/{rows}", bit_equal=bit_equal)


@pytest.mark.parametrize("dtype", ["bf16", "fp16"])
def test_the_order_of_rounding_shows(golden_norms, dtype):
    arrays = golden_norms(f"rms_llama/{dtype}/normal")
    norm = make(16, eps=1e-5)
    norm.gain.set_value(arrays["in.weight"].astype(jnp.float32))
    assert (norm(arrays["in.x"]) != arrays["out"]).any()


# (2, -1, 3, 0.3) with gain (1.3, 0.7, 1.1, 0.9), all rounded to bfloat16 first.
@pytest.mark.parametrize("transform", [lambda f: f, jax.jit], ids=["eager", "jit"])
@pytest.mark.parametrize(
    "keywords, expected",
    [
        ({}, [1.3828125, -0.373046875, 1.7578125, 0.1435546875]),
        (
            {"cast_before_gain": True},
            [1.375, -0.37109375, 1.765625, 0.1435546875],
        ),
    ],
    ids=["after the gain", "before the gain"],
)
def test_where_it_rounds(keywords, expected, transform):
    norm = make(4, **keywords)
    gain = jnp.array([1.3, 0.7, 1.1, 0.9], jnp.bfloat16).astype(jnp.float32)
    norm.gain.set_value(gain)
    y = transform(norm)(jnp.array([2, -1, 3, 0.3], jnp.bfloat16))
    np.testing.assert_array_equal(y.astype(jnp.float32), expected)


def test_llama_rounding_is_the_same_in_jit():
    # XLA drops a plain rounding to bfloat16 inside jit, but not in small arrays: then
    # a quarter of the entries differ. Fused arithmetic moves a few in a hundred thousand.
    norm = make(64, cast_before_gain=True)
    norm.gain.set_value(1 + 0.3 * jax.random.normal(jax.random.key(0), (64,)))
    x = jax.random.normal(jax.random.key(1), (4096, 64), jnp.bfloat16)
    assert (norm(x) != jax.jit(norm)(x)).mean() < 1e-3


def test_llama_rounding_includes_the_gain():
    # 4 / 2.5 is 1.6015625 in bfloat16 and 1 + 2^-8 is 1; unrounded it gives 1.609375.
    norm = make(4, cast_before_gain=True)
    norm.gain.set_value(jnp.full(4, 1 + 2**-8, jnp.float32))
    y = norm(jnp.array([3, 4, 0, 0], jnp.bfloat16))
    assert float(y[1]) == 1.6015625


def test_zero_centred_gain_is_the_distance_from_one():
    gain = 0.3 * jax.random.normal(jax.random.key(0), (8,))
    plain, centred = make(8), make(8, gain="zero_centred")
    x = jax.random.normal(jax.random.key(1), (3, 8))
    np.testing.assert_array_equal(plain(x), centred(x))
    plain.gain.set_value(1 + gain)
    centred.gain.set_value(gain)
    np.testing.assert_array_equal(plain(x), centred(x))


# -- numbers by hand -------------------------------------------------------------------


@pytest.mark.parametrize(
    "x, y",
    # RMS sqrt(14 / 4) = 1.870829, sqrt(120 / 4) = 5.477226, sqrt(50 / 4) = 3.535534.
    [
        ((2, -1, 3, 0), (1.069045, -0.534522, 1.603567, 0)),
        ((2, 4, 6, 8), (0.365148, 0.730297, 1.095445, 1.460593)),
        ((1, 2, 3, 6), (0.282843, 0.565685, 0.848528, 1.697056)),
    ],
)
def test_numbers_by_hand(x, y):
    got = make(4)(jnp.array(x, jnp.float32))
    np.testing.assert_allclose(got, y, rtol=2e-6)


def test_gradients_by_hand(float64):
    # x = (3, 4): RMS 3.535534; v = gain * upstream = (1.5, -1);
    # dx = v / rms - x * mean(x v) / rms^3, dgain = upstream * x / rms.
    norm = make(2, eps=1e-5)
    norm.gain.set_value(jnp.array([1.5, 0.5]))
    graphdef, params = nnx.split(norm)
    y, pull = jax.vjp(
        lambda p, x: nnx.merge(graphdef, p)(x), params, jnp.array([3.0, 4.0])
    )
    d_params, dx = pull(jnp.array([1.0, -2.0]))
    np.testing.assert_allclose(y, [1.272791697, 0.565685199], rtol=1e-9)
    np.testing.assert_allclose(dx, [0.407293357, -0.305469989], rtol=2e-9)
    d_gain = d_params["gain"][...]
    np.testing.assert_allclose(d_gain, [0.848527798, -2.262740795], rtol=1e-9)


def test_scaling_the_input_changes_it_through_eps_only(float64):
    norm = make(2, eps=1e-5)
    x = jnp.array([3.0, 4.0])
    np.testing.assert_allclose(
        jnp.abs(norm(10 * x) - norm(x)).max(), 4.48e-7, rtol=2e-3
    )
    np.testing.assert_allclose(jnp.mean(norm(x) ** 2), 0.9999992, rtol=1e-9)
    np.testing.assert_allclose(norm(1e-4 * x), [0.094281, 0.125708], rtol=1e-5)
    np.testing.assert_allclose(norm(1e-3 * x), [0.632456, 0.843274], rtol=1e-5)


@pytest.mark.parametrize("eps, multiplier", [(1e-6, 707.10678), (1e-5, 301.51134)])
def test_eps_limits_the_multiplier_of_small_tokens(eps, multiplier):
    x = 1e-3 * jnp.array([1.0, -1.0, 1.0, -1.0])
    y = make(4, eps=eps)(x)
    np.testing.assert_allclose(y / x, jnp.full(4, multiplier), rtol=1e-6)


@pytest.mark.parametrize(
    "eps_mode, expected", [("outside", 0.5), ("clamp", 1.0), ("inside", 2**-0.5)]
)
def test_eps_as_large_as_the_root_mean_square(eps_mode, expected):
    eps = 1e-3**2 if eps_mode == "inside" else 1e-3
    y = make(2, eps=eps, eps_mode=eps_mode)(jnp.array([1e-3, -1e-3]))
    np.testing.assert_allclose(y, [expected, -expected], rtol=1e-6)


def test_float16_squares_do_not_overflow():
    # Squared in float16, 300 is infinite and the result is zero.
    y = make(4)(jnp.array([300, -300, 300, 300], jnp.float16))
    np.testing.assert_array_equal(y, [1, -1, 1, 1])


def test_gradient_is_divided_by_the_scale_of_the_input():
    # Homogeneity of degree 0 (eps far below the mean square): J(c x) = J(x) / c.
    norm = make(8, eps=1e-12)
    x = jax.random.normal(jax.random.key(0), (8,))
    jacobian = jax.jacobian(norm)
    np.testing.assert_allclose(
        jacobian(100 * x), jacobian(x) / 100, rtol=1e-4, atol=1e-7
    )
    np.testing.assert_allclose(jacobian(x) @ x, jnp.zeros(8), atol=1e-6)


# -- what is refused -------------------------------------------------------------------


@pytest.mark.parametrize("eps", [0.0, -1e-5, 1e-25, float("inf"), float("nan")])
def test_eps_that_cannot_protect_the_root_is_refused(eps):
    with pytest.raises(ValueError, match="eps must be"):
        RMSNorm.check(eps=eps)
    with pytest.raises(ValueError, match="eps must be"):
        make(4, eps=eps)


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"gain": "twos"}, "gain must be .* got 'twos'"),
        ({"eps_mode": "above"}, "eps_mode must be .* got 'above'"),
        ({"eps": 1e-20, "eps_mode": "outside"}, "eps must be .* got 1e-20"),
        ({"gain": "none", "cast_before_gain": True}, "cast_before_gain needs a gain"),
    ],
)
def test_what_has_no_meaning_is_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        RMSNorm.check(**keywords)
    with pytest.raises(ValueError, match=message):
        make(4, **keywords)


def test_gradient_at_zero_is_finite_at_the_smallest_eps():
    norm = make(4, eps=1e-24)
    assert jnp.isfinite(jax.grad(lambda x: norm(x)[0])(jnp.zeros(4))).all()
