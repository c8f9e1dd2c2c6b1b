"""What a model shows of its norms and its attention, against the same outside it."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.grouped_query import GroupedQueryAttention
from blocks.attention.mla import LatentAttention
from blocks.ffn.mlp import MLP
from blocks.inits.xavier import XavierGaussian
from blocks.language_model import LanguageModel
from blocks.looking import note, set_looking, taking_notes
from blocks.norms.derf import Derf
from blocks.norms.ema_blend import EMABlendInput
from blocks.norms.looks import look_at_norm
from blocks.norms.rmsnorm import RMSNorm
from blocks.parameters import layout_of, path_name
from blocks.placement import Placement
from blocks.placements.mix import Mix
from blocks.residual.add import Add
from blocks.rows import joined, stacked

N_LAYERS, D_MODEL, N_HEADS, VOCAB = 2, 8, 2, 11
TOKENS = np.random.default_rng(0).integers(0, VOCAB, (2, 7))
SHAPE = (2, 6)
BOTH = ("norms", "logits")


def layout_and_params(**keywords):
    parts = dict(
        norm=Derf,
        attention=GroupedQueryAttention,
        ffn=MLP,
        residual=Add(),
        placement=Placement(),
        init=XavierGaussian(),
    )
    layout = layout_of(
        lambda: LanguageModel(
            VOCAB,
            D_MODEL,
            n_layers=N_LAYERS,
            n_heads=N_HEADS,
            d_ff=16,
            rngs=nnx.Rngs(0),
            **{**parts, **keywords},
        )
    )
    rng = np.random.default_rng(3)
    params = {
        path: jnp.asarray(rng.normal(size=spec.shape), jnp.float32)
        for path, spec in layout.specs.items()
    }
    return layout, params


def measured(layout, params, looks, *, taps=False):
    def loss_of(params):
        model = layout.merge(params, {})
        set_looking(model, looks)
        return model.loss(TOKENS, jnp.zeros(model.blocks.tap_shape) if taps else None)

    (loss, seen), grads = jax.jit(jax.value_and_grad(loss_of, has_aux=True))(params)
    return jax.device_get((loss, seen, grads))


def met_by(layout, params, which):
    """What the norms called `which` meet and the final one, layer by layer, no scan."""
    model = layout.merge(params, {})
    x = model.embed(TOKENS[:, :-1])
    blocks = nnx.split(model.blocks.layers)
    inputs = []
    for i in range(N_LAYERS):
        block = nnx.merge(blocks[0], jax.tree.map(lambda a, i=i: a[i], blocks[1]))
        for name in ("attn", "ffn"):
            sublayer = getattr(block, name)
            joint = getattr(block, f"{name}_joint").post_norm
            u = x if sublayer.in_norm is None else sublayer.in_norm(x)
            raw = sublayer.branch(u, SHAPE)
            out = raw if sublayer.out_norm is None else sublayer.out_norm(raw)
            inputs.append({"in_norm": x, "out_norm": raw, "post_norm": x + out}[which])
            x = x + out if joint is None else joint(x + out)
    return inputs, x


PLACEMENTS = {
    "post": (Placement(in_norm=False, post_norm=True), {"site": "post_norm"}),
    "peri": (
        Placement(out_norm=True),
        {"site": "in_norm", "site/out_norm": "out_norm"},
    ),
}


@pytest.mark.parametrize("name", PLACEMENTS)
def test_norms_in_the_scan_show_what_they_show_in_a_loop(name):
    placement, names = PLACEMENTS[name]
    layout, params = layout_and_params(placement=placement)
    _, seen, _ = measured(layout, params, ("norms",))
    model = layout.merge(params, {})
    look = jax.jit(look_at_norm)
    for prefix, which in names.items():
        met = jax.jit(functools.partial(met_by, layout, which=which))
        inputs, last = met(params)
        for site, x in enumerate(inputs):
            layer, name = site // 2, ("attn", "ffn")[site % 2]
            owner = getattr(
                model.blocks.layers, name + "_joint" * (which == "post_norm")
            )
            stacked_norm = nnx.split(getattr(owner, which))
            norm = nnx.merge(
                stacked_norm[0],
                jax.tree.map(lambda a, i=layer: a[i], stacked_norm[1]),
            )
            for metric, value in look(norm, x).items():
                np.testing.assert_allclose(
                    seen[f"{prefix}/{metric}"][layer, site % 2],
                    value,
                    rtol=2e-4,
                    atol=1e-5,
                )
    final = look(model.final_norm, last)
    assert {"sat99", "elasticity", "x_rms", "mean_abs_g"} < final.keys()
    for metric, value in final.items():
        np.testing.assert_allclose(seen[f"final/{metric}"], value, rtol=2e-4, atol=1e-5)
    prefixes = {*names, "final"}
    assert seen.keys() == {f"{p}/{metric}" for p in prefixes for metric in final}


def test_a_sublayer_whose_norm_lacks_a_metric_is_not_a_number_there():
    layout, params = layout_and_params(attn_norm=RMSNorm, final_norm=RMSNorm)
    _, seen, _ = measured(layout, params, ("norms",), taps=True)
    assert seen["site/x_rms"].shape == seen["site/sat99"].shape == (N_LAYERS, 2)
    assert np.isfinite(seen["site/x_rms"]).all()
    assert np.isnan(seen["site/sat99"][:, 0]).all()
    assert np.isfinite(seen["site/sat99"][:, 1]).all()
    assert "final/sat99" not in seen
    assert seen["final/x_rms"].shape == ()
    # a Pre-LN site meets the stream that the sub-layer before has left
    np.testing.assert_allclose(
        seen["site/x_rms"].reshape(-1)[1:] ** 2,
        seen["stream_mean_square"].reshape(-1)[:-1],
        rtol=1e-5,
    )


def test_layers_of_different_placements_are_rows_of_one_array():
    """Mix-LN: the first layer is Post-LN, the other Pre-LN."""
    layout, params = layout_and_params(placement=Mix(fraction=0.5))
    _, seen, _ = measured(layout, params, BOTH)
    assert seen["site/sat99"].shape == (N_LAYERS, 2)
    assert np.isfinite(seen["site/sat99"]).all()
    assert seen["attention_logit_max"].shape == (N_LAYERS, N_HEADS)


# -- attention scores ----------------------------------------------------------------

ATTENTIONS = {
    "plain": (GroupedQueryAttention, 4**-0.5),
    "grouped, capped, local": (
        functools.partial(
            GroupedQueryAttention,
            n_kv_heads=1,
            window=1,
            softcap=0.5,
            sinks=True,
            qk_norm=RMSNorm,
        ),
        4**-0.5,
    ),
    "factor": (functools.partial(GroupedQueryAttention, tau_init=3.0), None),
    "not causal": (
        functools.partial(GroupedQueryAttention, causal=False, scale=0.3, chunk=1),
        0.3,
    ),
    "latent": (
        functools.partial(
            LatentAttention, q_rank=6, kv_rank=5, d_rope=2, latent_norm=RMSNorm
        ),
        6**-0.5,
    ),
}


@pytest.mark.parametrize("name", ATTENTIONS)
def test_largest_score_of_each_head_is_that_of_all_pairs(name):
    make, scale = ATTENTIONS[name]
    attention = make(D_MODEL, N_HEADS, rngs=nnx.Rngs(1))
    x = 3 * jax.random.normal(jax.random.key(3), (12, D_MODEL))  # every mask matters
    with taking_notes(True) as notes:
        attention(x, SHAPE)
    q, k, _ = (np.asarray(y, np.float64) for y in attention.heads(x, SHAPE))
    if scale is None:
        scale = float(attention.tau[0])
    expected = np.full(N_HEADS, -np.inf)
    for b in range(2):
        for head in range(N_HEADS):
            own = k[b, head * k.shape[1] // N_HEADS]
            for i in range(6):
                for j in range(6):
                    seen = j <= i if attention.causal else True
                    if getattr(attention, "window", None) is not None:
                        seen = seen and i - j < attention.window
                    if getattr(attention, "chunk", None) is not None:
                        seen = seen and i // attention.chunk == j // attention.chunk
                    score = scale * q[b, head, i] @ own[j]
                    expected[head] = max(expected[head], score if seen else -np.inf)
    np.testing.assert_allclose(notes["attention_logit_max"], expected, rtol=1e-5)


@pytest.mark.parametrize("parallel", [False, True])
def test_scores_are_there_without_taps_and_in_layer_order(parallel):
    """By a model of one head whose query kernel grows from layer to layer."""
    placement = Placement(parallel=parallel)
    layout, params = layout_and_params(placement=placement, norm=RMSNorm)
    (path,) = [p for p in params if p.endswith("q/kernel")]
    factors = jnp.asarray([1.0, 1e3])[:, None, None]
    _, seen, _ = measured(layout, {**params, path: params[path] * factors}, ("logits",))
    assert seen.keys() == {"attention_logit_max"}
    scores = seen["attention_logit_max"]
    assert scores.shape == (N_LAYERS, N_HEADS)
    assert (scores[0] < 100).all()
    assert (scores[1] > 100).all()


# -- looking changes nothing ---------------------------------------------------------


@pytest.mark.parametrize("norm", [Derf, RMSNorm])
def test_looking_changes_no_bit_of_the_loss_or_of_the_gradient(norm):
    layout, params = layout_and_params(norm=norm)
    loss, nothing, grads = measured(layout, params, ())
    assert nothing == {}
    same, seen, again = measured(layout, params, BOTH, taps=True)
    assert {v.dtype for v in seen.values()} == {np.dtype("float32")}
    assert loss == same
    for path in grads:
        np.testing.assert_array_equal(grads[path], again[path], err_msg=path)


def test_without_a_look_the_program_is_as_if_there_were_none():
    layout, params = layout_and_params()

    def loss(params, looks):
        model = layout.merge(params, {})
        if looks is not None:
            set_looking(model, looks)
        return model.loss(TOKENS)[0]

    plain, off, on = (
        str(jax.make_jaxpr(functools.partial(loss, looks=looks))(params))
        for looks in (None, (), BOTH)
    )
    assert plain == off
    assert len(on) > len(plain)


def test_state_of_a_watched_norm_moves_as_if_it_were_not():
    """Which it does where the norm stands again when the block has run."""
    layout, params = layout_and_params(norm=EMABlendInput)
    rest = {
        path_name(path): jnp.zeros(variable.shape, variable.dtype)
        for path, variable in nnx.to_flat_state(layout.state)
    }

    @functools.partial(jax.jit, static_argnums=1)
    def after(params, looks):
        model = layout.merge(params, rest)
        set_looking(model, looks)
        model.loss(TOKENS)
        return layout.split(model)[1]

    plain, looked = after(params, ()), after(params, BOTH)
    assert plain.keys() == looked.keys() == rest.keys()
    for path, value in plain.items():
        assert (value > 0).all()
        np.testing.assert_array_equal(looked[path], value, err_msg=path)


def test_a_look_that_is_none_is_refused():
    with pytest.raises(ValueError, match="norms, logits, got 'norm'"):
        set_looking(layout_of(lambda: Derf(2, rngs=nnx.Rngs(0))), ("norm",))


def test_a_note_is_taken_where_somebody_takes_notes():
    calls = []
    note("x", lambda: calls.append(1))
    with taking_notes(False) as nothing:
        note("x", lambda: calls.append(2))
    assert calls == []
    assert nothing == {}
    with taking_notes(True) as notes:
        note("x", lambda: 3)
        with taking_notes(False):
            note("x", lambda: 4)
    assert notes == {"x": 3}


# -- rows ------------------------------------------------------------------------------


def test_rows_that_lack_a_name_are_not_a_number():
    one, two = {"a": jnp.ones(2)}, {"a": jnp.zeros(2), "b": jnp.ones((2, 3))}
    together = stacked([one, two])
    np.testing.assert_array_equal(together["a"], [[1, 1], [0, 0]])
    np.testing.assert_array_equal(
        together["b"], [np.full((2, 3), np.nan), np.ones((2, 3))]
    )
    ends = joined([{}, two, {"a": jnp.full(1, 5.0)}], [3, 2, 1])
    np.testing.assert_array_equal(ends["a"], [np.nan] * 3 + [0, 0, 5])
    assert ends["b"].shape == (6, 3)
    assert np.isnan(np.asarray(ends["b"])[[0, 1, 2, 5]]).all()
