"""What is measured inside the layer loop, against autodiff and NumPy outside it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.block import Block
from blocks.ffn.mlp import MLP
from blocks.inits.xavier import XavierGaussian
from blocks.language_model import LanguageModel
from blocks.norms.rmsnorm import RMSNorm
from blocks.parameters import layout_of
from blocks.placement import Placement
from blocks.residual.add import Add
from blocks.taps import gradient_tap, mean_square

N_LAYERS, D_MODEL, VOCAB = 3, 8, 11
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (2, 6))


def make(**keywords):
    return LanguageModel(
        VOCAB,
        D_MODEL,
        n_layers=N_LAYERS,
        n_heads=2,
        d_ff=16,
        norm=RMSNorm,
        attention=GroupedQueryAttention,
        ffn=MLP,
        residual=Add(),
        placement=Placement(out_norm=True, embedding_norm=True),
        init=XavierGaussian(),
        rngs=nnx.Rngs(0),
        **keywords,
    )


def layout_and_params(**keywords):
    layout = layout_of(lambda: make(**keywords))
    rng = np.random.default_rng(3)
    params = {}
    for path, spec in layout.specs.items():
        x = rng.normal(size=spec.shape)
        x = 1 + 0.3 * x if spec.role == "gain" else x / np.sqrt(spec.shape[-2])
        params[path] = jnp.asarray(x, keywords.get("dtype", "float32"))
    return layout, params


# -- the tap by itself ---------------------------------------------------------------


def test_a_tap_is_the_identity_whose_gradient_is_a_squared_norm():
    x = jnp.asarray(np.random.default_rng(0).normal(size=(3, 4)), jnp.float32)
    weights = np.arange(12.0).reshape(3, 4)
    y, pull = jax.vjp(gradient_tap, x, jnp.zeros(()))
    np.testing.assert_array_equal(y, x)
    gradient, squared = pull(jnp.asarray(weights, jnp.float32))
    np.testing.assert_array_equal(gradient, weights)
    # 0^2 + 1^2 + ... + 11^2
    assert squared == 506.0


def test_a_tap_sums_small_half_precision_gradients_in_float32():
    # 1e-4 squared is below the smallest float16, and 4096 of them are not.
    x = jnp.zeros((64, 64), jnp.float16)
    g = jnp.full_like(x, 1e-4)
    _, pull = jax.vjp(gradient_tap, x, jnp.zeros((), jnp.float32))
    gradient, squared = pull(g)
    assert (gradient.dtype, squared.dtype) == (jnp.float16, jnp.float32)
    np.testing.assert_allclose(squared, 4096 * float(g[0, 0]) ** 2, rtol=1e-6)


def test_taps_of_one_member_do_not_see_another():
    xs = jnp.arange(6.0).reshape(3, 2)

    def loss(x, tap):
        return jnp.sum(gradient_tap(x, tap) ** 2)

    squared = jax.vmap(jax.grad(loss, argnums=1))(xs, jnp.zeros(3))
    np.testing.assert_allclose(squared, [4.0, 4 * 13.0, 4 * 41.0])


def test_mean_square_is_float32_for_half_precision():
    x = jnp.full((4, 8), 300.0, jnp.float16)  # 90000 is no float16
    assert mean_square(x).dtype == jnp.float32
    assert mean_square(x) == 90000.0


# -- taps of the model ---------------------------------------------------------------


def unrolled(layout, params, added):
    """The loss with `added[i][j]` put on the stream after sub-layer j of layer i.

    Written again without scan, taps or Block.__call__: the gradient in `added` is that
    of the stream. Returns the loss, and streams and branches as they come.
    """
    model = layout.merge(params, {})
    shape = (TOKENS.shape[0], TOKENS.shape[1] - 1)
    x = model.embed(TOKENS[:, :-1])
    streams, branches, entering = [], [], x
    layers = nnx.split(model.blocks.layers)
    for i in range(N_LAYERS):
        block = nnx.merge(layers[0], jax.tree.map(lambda a, i=i: a[i], layers[1]))
        for j, name in enumerate(("attn", "ffn")):
            branch, _ = getattr(block, name)(x, shape, None, i)
            x = x + branch + added[i][j]
            streams.append(x)
            branches.append(branch)
    logits = model.logits(x)
    targets = TOKENS[:, 1:].reshape(-1)
    losses = (
        jax.nn.logsumexp(logits, axis=-1) - logits[np.arange(len(targets)), targets]
    )
    return losses.mean(), (entering, streams, branches)


@pytest.fixture(scope="module")
def both():
    """Measured by the model in float64, and the same from the unrolled one."""
    with jax.enable_x64(True):
        layout, params = layout_and_params(dtype="float64")

        @jax.jit
        @functools.partial(jax.value_and_grad, argnums=1, has_aux=True)
        def tapped(params, taps):
            return layout.merge(params, {}).loss(TOKENS, taps)

        shape = layout.merge(params, {}).blocks.tap_shape
        assert shape == (N_LAYERS, 2)
        (loss, measured), taps = tapped(params, jnp.zeros(shape))

        n_tokens = TOKENS.shape[0] * (TOKENS.shape[1] - 1)
        zeros = jnp.zeros((N_LAYERS, 2, n_tokens, D_MODEL))
        (expected_loss, seen), gradients = jax.jit(
            jax.value_and_grad(
                functools.partial(unrolled, layout, params), has_aux=True
            )
        )(zeros)
        found = jax.device_get((loss, measured, taps))
        return found, jax.device_get((expected_loss, seen, gradients))


def test_tap_gradients_are_squared_norms_of_the_stream_gradient(both):
    (loss, _, taps), (expected_loss, _, gradients) = both
    np.testing.assert_allclose(loss, expected_loss, rtol=1e-12)
    expected = (gradients**2).sum(axis=(2, 3))
    assert (expected > 0).all()
    np.testing.assert_allclose(taps, expected, rtol=1e-11)


def test_mean_squares_are_those_of_stream_branch_and_input(both):
    (_, measured, _), (_, (entering, streams, branches), _) = both
    assert measured.keys() == {
        "stream_mean_square",
        "branch_mean_square",
        "stream_cosine",
        "input_mean_square",
    }

    def per_site(arrays):
        return np.reshape([np.mean(a**2) for a in arrays], (N_LAYERS, 2))

    np.testing.assert_allclose(
        measured["stream_mean_square"], per_site(streams), rtol=1e-12
    )
    np.testing.assert_allclose(
        measured["branch_mean_square"], per_site(branches), rtol=1e-12
    )
    np.testing.assert_allclose(
        measured["input_mean_square"], np.mean(entering**2), rtol=1e-12
    )


@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
def test_measuring_changes_no_bit_of_the_loss_or_of_the_gradient(dtype):
    layout, params = layout_and_params()
    if dtype != "float32":
        layout = layout_of(lambda: make(dtype=dtype))

    def loss_of(params, taps):
        return layout.merge(params, {}).loss(TOKENS, taps)

    step = jax.jit(jax.value_and_grad(loss_of, has_aux=True))
    (plain, nothing), gradient = step(params, None)
    (loss, measured), same = step(params, jnp.zeros((N_LAYERS, 2)))
    assert nothing == {}
    assert len(measured) == 4
    assert all(m.dtype == jnp.float32 for m in measured.values())
    assert plain == loss
    for path in gradient:
        np.testing.assert_array_equal(gradient[path], same[path], err_msg=path)


def test_the_value_of_a_tap_is_never_read():
    layout, params = layout_and_params()
    loss_of = jax.jit(lambda taps: layout.merge(params, {}).loss(TOKENS, taps)[0])
    zeros = jnp.zeros((N_LAYERS, 2))
    assert loss_of(zeros) == loss_of(zeros + jnp.nan)


@pytest.mark.parametrize("shape", [(N_LAYERS, 1), (N_LAYERS, 3), (2, 2), (N_LAYERS,)])
def test_taps_of_another_shape_are_refused(shape):
    # Too few columns would otherwise be read past their end, and add up.
    layout, params = layout_and_params()
    with pytest.raises(ValueError, match=r"stream_taps.*\(3, 2\).*got"):
        layout.merge(params, {}).loss(TOKENS, jnp.zeros(shape))


# -- schemes whose state is not one stream -------------------------------------------


class TwoStreams(nnx.Module):
    """A residual scheme with a pair of streams: branches go to the one or the other."""

    def __init__(self, d_model, *, site, post_norm=None, rngs=None):
        del d_model, site, post_norm, rngs

    def read(self, state, i):
        del i
        return state["a"] + state["b"], None

    def write(self, state, branch, kept, i):
        del kept, i
        return {"a": state["a"] + branch, "b": 2 * state["b"]}


def test_a_state_of_several_streams_is_measured_over_all_of_them():
    class Double(nnx.Module):
        def __init__(self, *, rngs):
            del rngs

        def __call__(self, u, shape):
            del shape
            return 2 * u

    class Scheme:
        make_joint = TwoStreams

    block = Block(
        2,
        {"only": (Double, RMSNorm, Placement(in_norm=False))},
        residual=Scheme,
        layer=0,
        n_layers=1,
        rngs=nnx.Rngs(0),
    )
    state = {"a": jnp.asarray([[1.0, 2.0]]), "b": jnp.asarray([[0.5, 0.0]])}
    # branch = 2 (a + b) = [3, 4]; a' = [4, 6], b' = [1, 0]

    def loss(tap):
        memory = block.first_memory(1, jnp.float32)
        out, _, measured = block(state, memory, (1, 1), jnp.int32(0), tap)
        return 3 * out["a"].sum() + 4 * out["b"].sum(), measured

    squared, measured = jax.grad(loss, has_aux=True)(jnp.zeros(1))
    np.testing.assert_allclose(measured["stream_mean_square"], [(26 + 0.5) / 2])
    np.testing.assert_allclose(measured["branch_mean_square"], [12.5])
    # |dL/da'|^2 + |dL/db'|^2 = 2 * 9 + 2 * 16
    np.testing.assert_allclose(squared, [50.0])
