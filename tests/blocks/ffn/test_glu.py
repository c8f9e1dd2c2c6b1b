"""The gated family against torch and released models."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.ffn.clamped_swiglu import ClampedSwiGLU
from blocks.ffn.glu import GLU
from blocks.ffn.mlp import MLP
from blocks.ffn.packing import pack, unpack
from blocks.ffn.swiglu import SwiGLU

# part, packing and whether torch puts the linear half first
CASES = {
    "swiglu_concat": ("swiglu", "concatenated"),
    "geglu_tanh_concat": ("gelu", "concatenated"),
    "geglu_erf_concat": ("gelu_erf", "concatenated"),
    "reglu_concat": ("relu", "concatenated"),
    "torch_glu": ("sigmoid", "concatenated"),
    "v4_clamped_swiglu_concat": ("v4", "concatenated"),
    "gpt_oss_glu": ("gpt_oss", "interleaved"),
}
OVERFLOWS = {  # products of two large branches in float16
    f"{case}/fp16/large"
    for case in (
        "swiglu_concat",
        "geglu_tanh_concat",
        "geglu_erf_concat",
        "reglu_concat",
    )
}


def make(name):
    if name == "swiglu":
        return SwiGLU(2, 2, rngs=nnx.Rngs(0))
    if name == "gpt_oss":
        return ClampedSwiGLU(2, 2, rngs=nnx.Rngs(0))
    if name == "v4":
        numbers = dict(limit=10.0, alpha=1.0, offset=0.0)
        return ClampedSwiGLU(2, 2, **numbers, rngs=nnx.Rngs(0))
    return GLU(2, 2, activation=name, rngs=nnx.Rngs(0))


def with_exact_sigmoid(arrays, dtype):
    """torch's gradient of F.glu, free of its rounding of the sigmoid.

    In half precision torch rounds s = sigmoid(gate) before it takes s (1 - s), which
    loses every digit where s is almost 1. So the gradient of the gate is that of
    float64 instead, after torch's own was reproduced by rounding s the same way.
    """
    x, dy, theirs = (
        np.asarray(arrays[name], np.float64) for name in ("in.x", "dy", "grad.x")
    )
    linear, gate = x[:, :16], x[:, 16:]
    s = np.exp(-np.logaddexp(0, -gate))
    kind = {"bf16": jnp.bfloat16, "fp16": jnp.float16}[dtype]
    rounded = np.asarray(jnp.asarray(s, kind), np.float64)
    # What is left are roundings of factors, so relative to each entry.
    np.testing.assert_allclose(
        dy * linear * rounded * (1 - rounded),
        theirs[:, 16:],
        rtol=4 * float(jnp.finfo(kind).eps),
        atol=1e-5,
    )
    return np.concatenate([theirs[:, :16], dy * linear * s * (1 - s)], axis=1)


@pytest.mark.parametrize("rows", ["normal", "clamped", "large", "edges"])
@pytest.mark.parametrize("dtype", ["fp32", "bf16", "fp16"])
@pytest.mark.parametrize("case", CASES)
def test_product_equals_torch(golden_ffn, half_tolerance, case, dtype, rows):
    arrays = golden_ffn(f"units/{case}/{dtype}/{rows}")
    name, packing = CASES[case]
    glu = make(name)
    key = "x" if case == "torch_glu" else "gate_up"

    def product(packed):
        gate, up = unpack(packed, packing)
        if case == "torch_glu":  # its first half is the linear one
            gate, up = up, gate
        y = glu.combine(gate.astype(jnp.float32), up.astype(jnp.float32))
        return y.astype(packed.dtype)

    y, pull = jax.vjp(product, arrays[f"in.{key}"])
    (dx,) = pull(arrays["dy"])
    if case == "torch_glu" and dtype != "fp32":
        arrays["grad.x"] = with_exact_sigmoid(arrays, dtype)
    for ours, theirs in ((y, arrays["out"]), (dx, arrays[f"grad.{key}"])):
        ours, theirs = np.asarray(ours, np.float64), np.asarray(theirs, np.float64)
        finite = np.isfinite(theirs)
        assert finite.all() or f"{case}/{dtype}/{rows}" in OVERFLOWS
        np.testing.assert_array_equal(np.isfinite(ours), finite)
        allowed = half_tolerance[dtype] * np.abs(theirs[finite]).max()
        np.testing.assert_allclose(ours[finite], theirs[finite], rtol=0, atol=allowed)


@pytest.mark.parametrize("dtype", ["fp32", "bf16"])
def test_equals_the_deepseek_v4_mlp_with_limit_one(
    golden_ffn, assert_within, half_tolerance, dtype
):
    arrays = golden_ffn(f"units/v4_mlp_limit1/{dtype}/normal")
    numbers = dict(limit=1.0, alpha=1.0, offset=0.0, bias=False)
    ffn = ClampedSwiGLU(16, 20, **numbers, rngs=nnx.Rngs(0))
    names = ("gate", "up", "down")
    for name in names:  # torch stores [out, in]
        kernel = arrays[f"in.{name}_proj__weight"].T.astype(jnp.float32)
        getattr(ffn, name).kernel.set_value(kernel)
    graphdef, params = nnx.split(ffn, nnx.Param)
    x = arrays["in.x"]
    y, pull = jax.vjp(lambda p, x: nnx.merge(graphdef, p)(x), params, x)
    d_params, dx = pull(arrays["dy"])
    fraction = half_tolerance[dtype]
    assert_within(y, arrays["out"], fraction, "out")
    assert_within(dx, arrays["grad.x"], fraction, "x")
    for name in names:
        got = d_params[name]["kernel"][...].T
        assert_within(got, arrays[f"grad.{name}_proj__weight"], fraction, name)


@pytest.mark.parametrize("family", ["llama3/1", "gemma/1", "gpt2/1"])
def test_equals_a_layer_of_the_released_model(golden_ffn, assert_within, family):
    w = golden_ffn(family)
    if family == "gpt2/1":
        ffn = MLP(32, 96, bias=True, rngs=nnx.Rngs(0))
        for name, theirs in (("up", "c_fc"), ("down", "c_proj")):
            getattr(ffn, name).kernel.set_value(w[f"{theirs}.weight"])  # [in, out]
            getattr(ffn, name).bias.set_value(w[f"{theirs}.bias"])
    else:
        activation = {"llama3/1": "silu", "gemma/1": "gelu"}[family]
        ffn = GLU(32, 48, activation=activation, rngs=nnx.Rngs(0))
        for name in ("gate", "up", "down"):
            getattr(ffn, name).kernel.set_value(w[f"{name}_proj.weight"].T)
    assert_within(ffn(w["mlp_in"], (2, 12)), w["mlp_out"], 1e-5)


# (gate, up) -> (u + 1) g sigmoid(1.702 g), limit 7, in 40-digit decimal arithmetic from
# the formula in openai/gpt-oss:gpt_oss/torch/model.py.
GPT_OSS_TABLE = [
    (0, 3, 0.0),
    (1, 0, 0.8457957659),  # up = 0 passes the gate
    (1, 1, 1.691591532),
    (-1, 1, -0.3084084681),
    (2, -1, 0.0),  # up = -1 closes it
    (0.5, -0.5, 0.1751942183),
    (3, -2, -2.981928690),
    (7, 7, 55.99962503),
    (100, 100, 55.99962503),  # both clamped
    (8, -9, -41.99971877),
    (-7, 7, -0.0003749735735),
    (-100, -100, 0.0),  # no lower clamp on the gate: 7e-72
]
DEEPSEEK_V4_TABLE = [  # u g sigmoid(g), limit 10
    (1, 1, 0.7310585786),
    (-1, 2, -0.5378828427),
    (12, -11, -99.99546021),
    (3, 0.5, 1.428861190),
]


@pytest.mark.parametrize(
    "name, table", [("gpt_oss", GPT_OSS_TABLE), ("v4", DEEPSEEK_V4_TABLE)]
)
def test_table_of_the_clamped_product(name, table):
    gate, up, expected = jnp.asarray(table, jnp.float32).T
    np.testing.assert_allclose(
        make(name).combine(gate, up), expected, rtol=2e-6, atol=1e-9
    )


def test_gradient_on_the_limit_is_that_inside_and_zero_beyond(float64):
    # torch.clamp passes 1 on the limit; jnp.clip 0.5. Formula: d/dg of g sigmoid(1.702 g).
    glu = make("gpt_oss")
    gate = jnp.array([7.0, 7.0 + 1e-9, 0.0, 0.0, 0.0, 0.0])
    up = jnp.array([0.0, 0.0, 7.0, 7.0 + 1e-9, -7.0, -7.0 - 1e-9])
    _, pull = jax.vjp(glu.combine, gate, up)
    d_gate, _ = pull(jnp.ones(6))
    s = 1 / (1 + np.exp(-1.702 * 7))
    np.testing.assert_allclose(d_gate[:2], [s + 7 * 1.702 * s * (1 - s), 0], rtol=1e-12)
    _, pull = jax.vjp(glu.combine, jnp.ones(6), up)
    _, d_up = pull(jnp.ones(6))
    one = 1 / (1 + np.exp(-1.702))
    np.testing.assert_allclose(d_up[2:], [one, 0, one, 0], rtol=1e-12)


def test_float16_never_overflows():
    # (7 + 1) * 7 * sigmoid(11.9) = 56.0 and the like, from branches of 6e4.
    glu = make("gpt_oss")
    big = jnp.array([6e4, -6e4], jnp.float16).astype(jnp.float32)
    y = glu.combine(big[:, None], big[None, :]).astype(jnp.float16)
    np.testing.assert_allclose(y, [[56, -42], [0, 0]], rtol=1e-3)


def test_float16_gradient_survives_the_cube_in_gelu():
    # 0.0447 * 240^3 is no float16: evaluated in it, the gradient of the gate is inf * 0.
    glu = GLU(1, 1, activation="gelu", rngs=nnx.Rngs(0))
    for linear in (glu.gate, glu.up, glu.down):
        linear.kernel.set_value(jnp.eye(1))
    x = jnp.array([[240.0], [-240.0]], jnp.float16)
    y, pull = jax.vjp(glu, x)
    np.testing.assert_array_equal(y, np.float16([[240.0**2], [0]]))
    np.testing.assert_array_equal(pull(jnp.ones_like(y))[0], np.float16([[480], [0]]))


def test_bilinear_is_bilinear(randomized, run):
    glu = randomized(GLU(4, 6, activation="identity", rngs=nnx.Rngs(0)))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)
    np.testing.assert_allclose(run(glu, 3 * x), 9 * run(glu, x), rtol=1e-5, atol=1e-5)


def test_swiglu_is_the_glu_with_silu(randomized, run):
    swiglu = randomized(SwiGLU(4, 6, bias=True, rngs=nnx.Rngs(0)))
    glu = randomized(GLU(4, 6, activation="silu", bias=True, rngs=nnx.Rngs(0)))
    x = jnp.ones((3, 4))
    np.testing.assert_array_equal(run(swiglu, x), run(glu, x))


def test_packed_kernels_come_apart_as_packed(randomized, run):
    ffn = randomized(GLU(4, 6, rngs=nnx.Rngs(0)))
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)
    packed = pack(ffn.gate.kernel[...], ffn.up.kernel[...], "interleaved")
    gate, up = unpack(x @ packed, "interleaved")
    y = (jax.nn.sigmoid(gate) * up) @ ffn.down.kernel[...]
    np.testing.assert_allclose(run(ffn, x), y, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "keyword, value",
    [
        ("limit", 0.0),
        ("limit", float("inf")),
        ("alpha", -1.0),
        ("offset", float("nan")),
        ("ratio", -1.0),
        ("dropout", 2.0),
    ],
)
def test_bad_numbers_are_refused(keyword, value):
    with pytest.raises(ValueError, match=f"{keyword} must be .*{value}"):
        ClampedSwiGLU.check(**{keyword: value})
    with pytest.raises(ValueError, match=f"{keyword} must be .*{value}"):
        ClampedSwiGLU(4, None, **{keyword: value}, rngs=nnx.Rngs(0))


def test_unknown_activation_is_refused():
    with pytest.raises(ValueError, match="did you mean 'sigmoid'"):
        GLU(4, 6, activation="sigmoyd", rngs=nnx.Rngs(0))
