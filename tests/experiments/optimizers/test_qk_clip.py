"""QK-Clip on the kernels of real attentions: what becomes of every score."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.attention.mla import LatentAttention
from blocks.looking import taking_notes
from blocks.norms.rmsnorm import RMSNorm
from blocks.parameters import ParamSpec, layout_of
from blocks.positions.rope import Rope
from experiments.optimizers.qk_clip import qk_clip

D_MODEL, N_HEADS, SHAPE = 12, 4, (2, 6)

latent = functools.partial(
    LatentAttention, kv_rank=5, d_rope=2, latent_norm=RMSNorm, positions=Rope
)
grouped = functools.partial(GroupedQueryAttention, d_head=4, positions=Rope)
# Maker, key/value heads, maps whose kernels change.
ATTENTIONS = {
    "own keys": (grouped, 4, {"q", "k"}),
    "biases": (functools.partial(grouped, bias=True), 4, {"q", "k"}),
    "groups": (functools.partial(grouped, n_kv_heads=2, bias=True), 2, {"q"}),
    "one key": (functools.partial(grouped, n_kv_heads=1, softcap=9.0), 1, {"q"}),
    "latent": (functools.partial(latent, q_rank=None), 4, {"q", "k_up"}),
    "latent query": (functools.partial(latent, q_rank=6), 4, {"q_up", "k_up"}),
}


class Wrapped(nnx.Module):
    def __init__(self, make):
        self.attn = make(D_MODEL, N_HEADS, rngs=nnx.Rngs(0))


def two_layers(make):
    """Layout of one attention; parameters of two, stacked, large where random."""
    layout = layout_of(lambda: Wrapped(make))
    rng = np.random.default_rng(5)
    params = {
        path: jnp.asarray(2 * rng.standard_normal((2, *spec.shape)))
        for path, spec in layout.specs.items()
    }
    specs = {
        path: ParamSpec(spec.role, (2, *spec.shape), 1)
        for path, spec in layout.specs.items()
    }
    return layout, params, specs


def scores_of(layout, params, x):
    """All scores [layer, batch, head, query, key], and the largest that are seen."""
    scores, largest = [], []
    for layer in range(2):
        model = layout.merge({k: p[layer] for k, p in params.items()}, {})
        q, k, _ = model.attn.heads(x, SHAPE)
        k = jnp.repeat(k, N_HEADS // k.shape[1], axis=1)
        scores.append(jnp.einsum("bhif,bhjf->bhij", q, k) * q.shape[-1] ** -0.5)
        with taking_notes(True) as notes:
            model.attn(x, SHAPE)
        largest.append(notes["attention_logit_max"])
    return np.stack(scores), np.stack(largest)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_scores_shrink_until_the_largest_of_a_head_is_tau(x64, name):
    make, n_kv_heads, changing = ATTENTIONS[name]
    layout, params, specs = two_layers(make)
    x = jnp.asarray(np.random.default_rng(1).standard_normal((12, D_MODEL)))
    before, largest = scores_of(layout, params, x)
    tau = float(np.median(largest))  # half of the heads are beyond
    assert 0 < largest.min() < tau < largest.max()
    clip = jax.jit(lambda p, s: qk_clip(p, specs, s, tau, N_HEADS, n_kv_heads))
    clipped = clip(params, jnp.asarray(largest))
    after, largest_after = scores_of(layout, clipped, x)
    np.testing.assert_allclose(largest_after, np.minimum(largest, tau), rtol=1e-12)
    gamma = np.minimum(1, tau / largest)[:, None, :, None, None]
    np.testing.assert_allclose(after, gamma * before, rtol=1e-9, atol=1e-11)
    for path, p in params.items():
        name = path.split("/")[1]
        assert (clipped[path] is p or np.array_equal(clipped[path], p)) == (
            name not in changing
        ), path
        assert clipped[path].dtype == p.dtype


def ones(n_kv_heads=2, dtype=jnp.float32):
    """Kernels of two heads of three features."""
    shapes = {"q": (1, 5, 6), "k": (1, 5, 3 * n_kv_heads), "v": (1, 5, 6)}
    params = {f"b/{m}/kernel": jnp.ones(s, dtype) for m, s in shapes.items()}
    specs = {path: ParamSpec("matrix", p.shape, 1) for path, p in params.items()}
    return params, specs


def test_a_head_of_250_at_tau_100_takes_the_root_of_0_4_on_both_sides():
    # sqrt(100 / 250); AI-Hypercomputer/maxtext qk_clip_utils.py, arXiv 2507.20534.
    params, specs = ones()
    clipped = qk_clip(params, specs, jnp.array([[250.0, 80.0]]), 100.0, 2, 2)
    expected = np.repeat([0.632455532, 1.0], 3) * np.ones((1, 5, 1))
    for name in "qk":
        np.testing.assert_allclose(clipped[f"b/{name}/kernel"], expected, rtol=1e-7)


def test_a_shared_key_leaves_the_whole_factor_to_the_query():
    params, specs = ones(n_kv_heads=1)
    clipped = qk_clip(params, specs, jnp.array([[250.0, 80.0]]), 100.0, 2, 1)
    expected = np.repeat([0.4, 1.0], 3) * np.ones((1, 5, 1))
    np.testing.assert_allclose(clipped["b/q/kernel"], expected, rtol=1e-7)
    assert clipped["b/k/kernel"] is params["b/k/kernel"]


def test_features_that_know_the_position_take_the_whole_factor_in_the_query():
    # Two heads of [3 | 1] features; the position key is one for both.
    shapes = {"q_up": (5, 8), "k_up": (5, 6), "k_rope": (5, 1), "v_up": (5, 6)}
    params = {f"b/{m}/kernel": jnp.ones(s) for m, s in shapes.items()}
    specs = {path: ParamSpec("matrix", p.shape) for path, p in params.items()}
    clipped = qk_clip(params, specs, jnp.array([250.0, 80.0]), 100.0, 2, 2)
    root = 0.632455532
    q, k = (clipped[f"b/{name}/kernel"][0] for name in ("q_up", "k_up"))
    np.testing.assert_allclose(q, [root, root, root, 0.4, 1, 1, 1, 1], rtol=1e-7)
    np.testing.assert_allclose(k, [root, root, root, 1, 1, 1], rtol=1e-7)
    for name in ("k_rope", "v_up"):
        assert clipped[f"b/{name}/kernel"] is params[f"b/{name}/kernel"]


@pytest.mark.parametrize("score", [-250.0, -1e-7, 0.0, 99.99])
def test_a_head_below_tau_is_left_alone_whatever_its_sign(score):
    # min(1, tau / S) would be negative, and its root not a number.
    params, specs = ones()
    clipped = qk_clip(params, specs, jnp.full((1, 2), score), 100.0, 2, 2)
    np.testing.assert_array_equal(clipped["b/q/kernel"], params["b/q/kernel"])


def test_half_precision_is_kept_and_tau_may_be_traced():
    params, specs = ones(dtype=jnp.bfloat16)
    scores = jnp.array([[250.0, 80.0]], jnp.bfloat16)
    clip = jax.jit(jax.vmap(lambda tau: qk_clip(params, specs, scores, tau, 2, 2)))
    q = clip(jnp.array([100.0, 62.5]))["b/q/kernel"]
    assert q.dtype == jnp.bfloat16
    expected = jnp.array([0.632455532, 0.5], jnp.bfloat16)
    np.testing.assert_array_equal(q[:, 0, 0, 0], expected)


def test_layers_of_several_places_get_their_own_scores():
    paths = [
        f"blocks/layers_{s}_0/attn/branch/{m}/kernel" for s in (0, 1) for m in "qk"
    ]
    specs = {path: ParamSpec("matrix", (2, 5, 6), 1) for path in paths}
    params = {path: jnp.ones(spec.shape) for path, spec in specs.items()}
    scores = jnp.array([[1.0, 1.0], [1.0, 400.0], [400.0, 1.0], [1.0, 1.0]])
    places = {"layers_0_0": range(0, 4, 2), "layers_1_0": range(1, 4, 2)}
    clipped = qk_clip(params, specs, scores, 100.0, 2, 2, places=places)
    first, second = (np.asarray(clipped[p])[:, 0, ::3] for p in paths[::2])
    np.testing.assert_array_equal(first, [[1, 1], [0.5, 1]])  # layers 0 and 2
    np.testing.assert_array_equal(second, [[1, 0.5], [1, 1]])  # layers 1 and 3


@pytest.mark.parametrize(
    "change, match",
    [
        ({"logit_max": jnp.ones((2, 2))}, "logit_max"),
        ({"n_heads": 3}, "logit_max"),
        ({"n_kv_heads": 1}, "n_kv_heads"),
        ({"specs": {"b/up/kernel": ParamSpec("matrix", (1, 5, 6), 1)}}, "queries"),
    ],
)
def test_what_does_not_fit_is_refused(change, match):
    params, specs = ones()
    given = dict(params=params, specs=specs, logit_max=jnp.ones((1, 2)), tau=1.0)
    given |= {"n_heads": 2, "n_kv_heads": 2, **change}
    with pytest.raises(ValueError, match=match):
        qk_clip(**given)


@pytest.mark.parametrize("norm", ["q_norm", "k_norm"])
def test_a_norm_of_queries_and_keys_is_refused(norm):
    params, specs = ones()
    specs[f"b/{norm}/gain"] = ParamSpec("gain", (1, 3), 1)
    with pytest.raises(ValueError, match="norm takes a factor out"):
        qk_clip(params, specs, jnp.ones((1, 2)), 1.0, 2, 2)
