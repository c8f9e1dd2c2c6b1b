"""What only the EMA blends promise."""

import json
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.modes import set_training
from blocks.norms.derf import Derf
from blocks.norms.ema_blend import EMABlendInput, EMABlendOutput
from blocks.oracle import pointwise_norms as oracle
from blocks.state import Running
from tests.blocks.norms.conftest import BIAS, GAIN, ROWS, UPSTREAM

GOLDEN = Path(__file__).parents[2] / "golden" / "pointwise_vectors.json"
VECTORS = json.loads(GOLDEN.read_text())["vectors"]
CHOICES = {
    "ema_blend_input": (EMABlendInput, 0.25),
    "ema_blend_output": (EMABlendOutput, 0.25),
    "ema_scale": (EMABlendInput, 1.0),
}


def made(choice, d_model=4, dtype=jnp.float32, **keywords):
    cls, blend = CHOICES[choice]
    norm = cls(d_model, **{"blend": blend, **keywords}, rngs=nnx.Rngs(0))
    if d_model == 4:
        values = {"alpha": [0.5], "shift": [0.1], "gain": GAIN, "bias": BIAS}
        for name, value in values.items():
            getattr(norm, name).set_value(jnp.asarray(value, dtype))
    return norm


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("row", ROWS)
@pytest.mark.parametrize("dtype, tolerance", [("float64", 5.1e-9), ("float32", 1e-5)])
def test_vectors(choice, row, dtype, tolerance):
    # Data as for the other norms, with a running scale of 2.5 from earlier steps.
    with jax.enable_x64(dtype == "float64"):
        norm = made(choice, dtype=dtype)
        norm.rms.set_value(jnp.asarray([2.5], dtype))
        graphdef, params, rest = nnx.split(norm, nnx.Param, ...)

        @jax.jit
        def run(params, x, rest):
            forward = lambda p, x: nnx.merge(graphdef, p, rest, copy=True)(x)  # noqa: E731
            y, pull = jax.vjp(forward, params, x)
            return y, pull(jnp.asarray(UPSTREAM, dtype))

        y, (d_params, dx) = run(params, jnp.asarray(ROWS[row], dtype), rest)
        for name, want in VECTORS[choice][row].items():
            got = {"y": y, "dx": dx}.get(name)
            got = d_params[name][...] if got is None else got
            np.testing.assert_allclose(
                got, want, rtol=tolerance, atol=tolerance * np.abs(want).max() + 1e-30
            )


@pytest.mark.parametrize("choice", CHOICES)
def test_five_steps_equal_the_oracle(choice, float64):
    norm = made(choice, dtype=jnp.float64, decay=0.75)
    norm.rms.set_value(jnp.zeros(1, jnp.float64))
    rms, blend = np.zeros(1), CHOICES[choice][1]
    given = dict(alpha=0.5, shift=0.1, gain=np.array(GAIN), bias=np.array(BIAS))
    if choice != "ema_scale":
        given["blend"] = blend
    for step in range(5):
        x = np.random.default_rng(step).normal(0.5, 1.0 + step, (2, 3, 4))
        expected = getattr(oracle, choice)(x, **given, rms=rms, eps=1e-6)
        np.testing.assert_allclose(norm(jnp.asarray(x)), expected, rtol=1e-12)
        rms = oracle.next_rms(x, rms=rms, decay=0.75)
        np.testing.assert_allclose(norm.rms[...], rms, rtol=1e-12)


def test_first_step_uses_and_leaves_its_own_scale():
    norm = EMABlendInput(2, blend=1.0, decay=0.9, rngs=nnx.Rngs(0))
    norm(jnp.array([[3.0, 4.0], [5.0, 0.0]]))
    np.testing.assert_allclose(norm.rms[...], [12.5**0.5], rtol=1e-6)
    norm(jnp.full((1, 2), 10.0))
    np.testing.assert_allclose(norm.rms[...], [0.9 * 12.5**0.5 + 1], rtol=1e-6)


@pytest.mark.parametrize("choice", CHOICES)
def test_no_token_sees_another_after_the_first_step(choice):
    norm = made(choice)
    x = jax.random.normal(jax.random.key(0), (6, 4))
    norm(x)
    graphdef, state = nnx.split(norm)
    run = jax.jit(lambda x, state: nnx.merge(graphdef, state)(x))
    changed = x.at[3:].multiply(100.0)  # later tokens
    np.testing.assert_array_equal(run(changed, state)[:3], run(x, state)[:3])


@pytest.mark.parametrize("choice", CHOICES)
def test_no_gradient_flows_through_the_scale(choice):
    for stored in (0.0, 2.0):
        norm = made(choice)
        norm.rms.set_value(jnp.array([stored]))
        graphdef, state = nnx.split(norm)
        x = jax.random.normal(jax.random.key(0), (3, 4))
        one = lambda x, state: nnx.merge(graphdef, state, copy=True)(x)[1].sum()  # noqa: E731, B023
        gradient = jax.jit(jax.grad(one))(x, state)
        assert (gradient[jnp.array([0, 2])] == 0).all()
        assert (gradient[1] != 0).any()


@pytest.mark.parametrize("choice", CHOICES)
def test_evaluation_uses_the_scale_and_keeps_it(choice):
    norm = made(choice)
    norm(jax.random.normal(jax.random.key(0), (6, 4)))
    before = np.asarray(norm.rms[...])
    set_training(norm, False)
    x = 50 * jax.random.normal(jax.random.key(1), (6, 4))
    first = norm(x)
    np.testing.assert_array_equal(norm.rms[...], before)
    set_training(norm, True)
    np.testing.assert_array_equal(norm(x), first)  # the scale of before the step
    assert (norm.rms[...] > before).all()


@pytest.mark.parametrize("choice", CHOICES)
def test_evaluation_before_any_step_uses_the_scale_at_hand(choice):
    norm = made(choice)
    x = jax.random.normal(jax.random.key(1), (6, 4))
    set_training(norm, False)
    evaluated = norm(x)
    assert norm.rms[...] == 0
    set_training(norm, True)
    np.testing.assert_array_equal(norm(x), evaluated)


def test_without_blend_both_are_derf():
    x = jax.random.normal(jax.random.key(0), (5, 4))
    expected = Derf(4, rngs=nnx.Rngs(0))(x)
    for cls in (EMABlendInput, EMABlendOutput):
        y = cls(4, blend=0.0, rngs=nnx.Rngs(0))(x)
        np.testing.assert_allclose(y, expected, rtol=1e-6, atol=1e-7)


def test_ema_scale_does_not_see_the_scale_of_its_input():
    x = jax.random.normal(jax.random.key(0), (5, 4))
    y, scaled = (
        EMABlendInput(4, blend=1.0, rngs=nnx.Rngs(0))(c * x) for c in (1.0, 1e3)
    )
    np.testing.assert_allclose(scaled, y, rtol=1e-5)


@pytest.mark.parametrize("choice", CHOICES)
def test_state_goes_through_scan_and_remat_and_moves_once(choice):
    norms = [made(choice), made(choice, alpha_init=0.3)]
    graphdef = nnx.graphdef(norms[0])
    stacked = jax.tree.map(lambda *a: jnp.stack(a), *(nnx.state(n) for n in norms))
    x = jax.random.normal(jax.random.key(0), (3, 4))

    @jax.checkpoint
    def step(x, state):
        norm = nnx.merge(graphdef, state, copy=True)
        return norm(x), nnx.state(norm, Running)

    def loss(x):
        y, states = jax.lax.scan(step, x, stacked)
        return y.sum(), states

    _, states = jax.jit(jax.grad(loss, has_aux=True))(x)
    expected, y = [], x
    for norm in norms:
        y = norm(y)
        expected.append(norm.rms[...])
    np.testing.assert_allclose(states["rms"][...], jnp.stack(expected), rtol=1e-6)


@pytest.mark.parametrize("choice", CHOICES)
@pytest.mark.parametrize("dtype", [jnp.bfloat16, jnp.float16])
def test_scale_is_float32_in_half_precision(choice, dtype):
    norm = made(choice)
    y = norm((300 * jax.random.normal(jax.random.key(0), (64, 4))).astype(dtype))
    assert norm.rms.dtype == jnp.float32
    np.testing.assert_allclose(norm.rms[...], [300], rtol=0.2)
    assert jnp.isfinite(y.astype(jnp.float32)).all()


@pytest.mark.parametrize(
    "keywords, message",
    [
        ({"alpha_init": 0.0}, "alpha_init must be positive"),
        ({"shift_init": float("nan")}, "shift_init must be finite"),
        ({"blend": 1.5}, r"blend must be in \[0, 1\], got 1.5"),
        ({"blend": -0.1}, r"blend must be in \[0, 1\], got -0.1"),
        ({"decay": 1.0}, r"decay must be in \[0, 1\), got 1.0"),
        ({"decay": float("nan")}, r"decay must be in \[0, 1\), got nan"),
        ({"eps": 0.0}, "eps must be finite"),
    ],
)
def test_what_cannot_be_is_refused(keywords, message):
    with pytest.raises(ValueError, match=message):
        EMABlendInput.check(**keywords)
