"""What only BatchNorm promises."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.modes import set_training
from blocks.norms.batchnorm import BatchNorm
from blocks.state import Running

make = functools.partial(BatchNorm, rngs=nnx.Rngs(0))


@pytest.fixture(scope="session")
def vectors(norm_vectors):
    return norm_vectors["batchnorm"]


def as_function(norm):
    """f(params, x) -> y, state; and the parameters."""
    graphdef, params, state = nnx.split(norm, nnx.Param, ...)

    def f(params, x):
        merged = nnx.merge(graphdef, params, state, copy=True)
        return merged(x), nnx.state(merged, Running)

    return f, params


def with_parameters(vectors, dtype):
    norm = make(2)
    norm.gain.set_value(jnp.asarray(vectors["gain"], dtype))
    norm.bias.set_value(jnp.asarray(vectors["bias"], dtype))
    return norm


# -- vectors ---------------------------------------------------------------------------


@pytest.mark.parametrize("scale", ["1", "1e3", "1e-4"])
@pytest.mark.parametrize("dtype, tolerance", [("float64", 1e-8), ("float32", 1e-5)])
def test_vectors(vectors, scale, dtype, tolerance):
    with jax.enable_x64(dtype == "float64"):
        f, params = as_function(with_parameters(vectors, dtype))
        x = float(scale) * jnp.asarray(vectors["x"], dtype)
        y, pull, _ = jax.vjp(f, params, x, has_aux=True)
        d_params, dx = pull(jnp.asarray(vectors["upstream"], dtype))
    got = {"y": y, "dx": dx, **{k: v[...] for k, v in d_params.items()}}
    for name, want in vectors["cases"][scale].items():
        # The numbers are given to nine decimals.
        atol = tolerance * np.abs(want).max() + 1e-9
        np.testing.assert_allclose(got[name], want, rtol=0, atol=atol, err_msg=name)


def test_a_token_sees_later_ones_in_training(vectors, float64):
    f, params = as_function(with_parameters(vectors, "float64"))
    x = jnp.asarray(vectors["x"], jnp.float64)
    leak = jax.jacobian(lambda x: f(params, x)[0])(x)[0, :, 2, :]
    expected = np.diag(vectors["leak_of_row_2_into_row_0"])
    np.testing.assert_allclose(leak, expected, atol=5e-9)


def test_numbers_by_hand():
    norm = make(4)
    x = jnp.array([[1.0, 2, 3, 6], [10, 20, 30, 60], [0, -1, 1, 0]])
    expected = [
        [-0.592999, -0.539164, -0.630141, -0.592999],
        [1.41, 1.40, 1.41, 1.41],
        [-0.82, -0.86, -0.78, -0.82],
    ]
    y = norm(x)
    np.testing.assert_allclose(y[0], expected[0], atol=1e-6)
    np.testing.assert_allclose(y, expected, atol=5e-3)
    # Without its third row the first is another.
    np.testing.assert_allclose(norm(x[:2])[0], [-1, -1, -1, -1], atol=5e-3)


def test_companions_decide():
    # Rows [1, 3] and [5, 7]: 1 / sqrt(1 + 1e-5 / 4); two equal rows: zero.
    norm = make(2)
    y = norm(jnp.array([[1.0, 3], [5, 7]]))
    np.testing.assert_allclose(y[0], [-0.99999875, -0.99999875], rtol=1e-6)
    np.testing.assert_array_equal(
        norm(jnp.array([[1.0, 3], [1, 3]])), jnp.zeros((2, 2))
    )


# -- running statistics ----------------------------------------------------------------


@pytest.mark.parametrize(
    "rule, keywords",
    [
        ("flax, momentum 0.99, biased", {}),
        ("torch, momentum 0.1, unbiased", {"momentum": 0.9, "unbiased": True}),
    ],
)
def test_running_statistics_after_one_step(vectors, rule, keywords):
    norm = make(2, **keywords)
    y = norm(jnp.asarray(vectors["x"], jnp.float32))
    wanted = vectors["running_after_one_step"][rule]
    np.testing.assert_allclose(norm.mean[...], wanted["mean"], atol=5e-8)
    np.testing.assert_allclose(norm.var[...], wanted["var"], atol=1e-7)
    biased = make(2)(jnp.asarray(vectors["x"], jnp.float32))
    np.testing.assert_array_equal(y, biased)  # the divisor of y does not change


def test_all_axes_but_the_last_are_tokens():
    x = jax.random.normal(jax.random.key(0), (2, 3, 4))
    deep, flat = (make(4, momentum=0.5, unbiased=True) for _ in range(2))
    np.testing.assert_allclose(
        deep(x).reshape(6, 4), flat(x.reshape(6, 4)), rtol=1e-6, atol=1e-6
    )
    np.testing.assert_allclose(deep.mean[...], flat.mean[...], rtol=1e-6)
    np.testing.assert_allclose(deep.var[...], flat.var[...], rtol=1e-6)


def test_equals_flax():
    x = jax.random.normal(jax.random.key(0), (3, 2, 4, 5)) * 3 + 2
    ours = make(5)
    theirs = nnx.BatchNorm(5, use_fast_variance=False, rngs=nnx.Rngs(0))
    for step in x:
        np.testing.assert_allclose(ours(step), theirs(step), rtol=1e-5, atol=1e-6)
    for name in ("mean", "var"):
        mine, wanted = getattr(ours, name)[...], getattr(theirs, name)[...]
        np.testing.assert_allclose(mine, wanted, rtol=1e-6)
    set_training(ours, False)
    theirs.eval()
    np.testing.assert_allclose(ours(x[0]), theirs(x[0]), rtol=1e-5, atol=1e-6)


def test_evaluation_uses_them_and_leaves_them(vectors):
    norm = make(2)
    x = jnp.asarray(vectors["x"], jnp.float32)
    norm(x)
    mean, var = norm.mean[...], norm.var[...]
    set_training(norm, False)
    np.testing.assert_allclose(norm(x), (x - mean) / np.sqrt(var + 1e-5), rtol=1e-6)
    np.testing.assert_allclose(norm(x)[:1], norm(x[:1]), rtol=1e-6)
    np.testing.assert_array_equal(norm.mean[...], mean)
    np.testing.assert_array_equal(norm.var[...], var)


def test_no_gradient_goes_through_them():
    f, params = as_function(make(3))
    x = jax.random.normal(jax.random.key(0), (4, 3))
    total = lambda x: sum(jnp.sum(v[...]) for v in jax.tree.leaves(f(params, x)[1]))  # noqa: E731
    np.testing.assert_array_equal(jax.grad(total)(x), jnp.zeros_like(x))


@pytest.mark.parametrize("dtype", ["float64", "bfloat16"])
def test_they_stay_float32(dtype):
    with jax.enable_x64(dtype == "float64"):
        norm = make(3)
        norm(jnp.ones((4, 3), dtype))
        assert {norm.mean.dtype, norm.var.dtype} == {jnp.dtype("float32")}


def test_variance_survives_a_large_mean():
    x = 3000 + jnp.array([[0.5], [-0.5], [1.0], [-1.0]])
    y = make(1, eps=1e-6)(x)[:, 0]
    np.testing.assert_allclose(y, [0.632455, -0.632455, 1.264910, -1.264910], atol=2e-6)


def test_one_token_maps_to_the_bias():
    norm = make(3, unbiased=True)
    np.testing.assert_array_equal(
        norm(jnp.array([[1.0, -2.0, 3.0]])), jnp.zeros((1, 3))
    )
    assert jnp.isfinite(norm.var[...]).all()


# -- in a stack ------------------------------------------------------------------------


def stacked(n):
    keys = jax.random.split(jax.random.key(0), n)
    return nnx.vmap(lambda key: make(4, rngs=nnx.Rngs(params=key)))(keys)


def run_stack(layers, x, *, is_checkpointed):
    """Three layers under a scan; returns the output and the new state."""
    graphdef, params, state = nnx.split(layers, nnx.Param, ...)

    def body(x, xs):
        norm = nnx.merge(graphdef, *xs)
        y = norm(jnp.square(x) + x)
        return y, nnx.state(norm, nnx.Not(nnx.Param))

    if is_checkpointed:
        body = jax.checkpoint(body, prevent_cse=False)

    def loss(params, x):
        y, new = jax.lax.scan(body, x, (params, state))
        return jnp.sum(jnp.sin(y)), (y, new)

    gradient, (y, new) = jax.jit(jax.grad(loss, has_aux=True))(params, x)
    return y, new, gradient


@pytest.mark.parametrize("is_checkpointed", [False, True])
def test_state_flows_through_a_scan_and_moves_once(is_checkpointed):
    x = jax.random.normal(jax.random.key(1), (6, 4))
    y, state, _ = run_stack(stacked(3), x, is_checkpointed=is_checkpointed)
    expected = x
    for i in range(3):
        norm = make(4)
        expected = norm(jnp.square(expected) + expected)
        for name in ("mean", "var"):
            np.testing.assert_allclose(
                state[name][...][i], getattr(norm, name)[...], rtol=1e-5, atol=1e-7
            )
    np.testing.assert_allclose(y, expected, rtol=1e-5, atol=1e-6)


def test_rematerialization_changes_no_gradient():
    x = jax.random.normal(jax.random.key(1), (6, 4))
    kept, recomputed = (
        run_stack(stacked(3), x, is_checkpointed=flag) for flag in (False, True)
    )
    jax.tree.map(
        lambda a, b: np.testing.assert_allclose(a, b, rtol=1e-5, atol=1e-6),
        kept,
        recomputed,
    )


def test_members_of_a_vmap_keep_their_own():
    graphdef, params, state = nnx.split(stacked(2), nnx.Param, ...)
    x = jax.random.normal(jax.random.key(1), (2, 6, 4)) * jnp.array([[[1.0]], [[5.0]]])

    def step(params, state, x):
        norm = nnx.merge(graphdef, params, state)
        return norm(x), nnx.state(norm, Running)

    y, new = jax.vmap(step)(params, state, x)
    for i in range(2):
        norm = make(4)
        np.testing.assert_allclose(y[i], norm(x[i]), rtol=1e-5, atol=1e-6)
        np.testing.assert_allclose(new["var"][...][i], norm.var[...], rtol=1e-6)


# -- what is refused -------------------------------------------------------------------


@pytest.mark.parametrize("momentum", [-0.1, 1.1, float("nan")])
def test_momentum_that_is_no_fraction_is_refused(momentum):
    with pytest.raises(ValueError, match=f"momentum must be .* got {momentum}"):
        make(4, momentum=momentum)


def test_eps_that_cannot_protect_the_root_is_refused():
    with pytest.raises(ValueError, match="eps must be"):
        make(4, eps=0.0)
