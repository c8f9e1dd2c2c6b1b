"""The assembled language model: reference models, the oracle, and what reaches what."""

import functools
import inspect
import itertools
import json
from pathlib import Path

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from omegaconf import OmegaConf
from safetensors.numpy import load_file
from scipy.special import log_softmax

from blocks.inits.normal import Normal
from blocks.language_model import LanguageModel, cross_entropy
from blocks.norms.derf import Derf
from blocks.norms.layernorm import LayerNorm
from blocks.norms.rmsnorm import RMSNorm
from blocks.oracle import attention as attention_oracle
from blocks.oracle import ffn as ffn_oracle
from blocks.oracle import language_model as oracle
from blocks.oracle import norms as norm_oracle
from blocks.parameters import layout_of
from blocks.placement import Placement

ROOT = Path(__file__).parents[2]
CONF, GOLDEN = ROOT / "conf", ROOT / "tests" / "golden"
SMALL = dict(n_layers=2, n_heads=4, n_kv_heads=2, d_head=4, d_ff=20)
EVERYWHERE = Placement(
    in_norm=True,
    inner_norm=True,
    out_norm=True,
    post_norm=True,
    embedding_norm=True,
    final_norm=True,
)


def node(group, choice):
    found = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{choice}.yaml"))
    return {key: value for key, value in found.items() if key != "defaults"}


def part(group, choice, **keywords):
    """What a config makes of a choice: a factory, or an object."""
    return hydra.utils.instantiate({**node(group, choice), **keywords})


def factory(
    vocab_size=23,
    d_model=12,
    *,
    norm="rmsnorm",
    ffn="mlp",
    placement="pre",
    init="xavier",
    residual="add",
    qk_norm=None,
    **keywords,
):
    """LanguageModel with parts by the names of conf/, or given as they are."""

    def made(group, choice):
        return part(group, choice) if isinstance(choice, str) else choice

    attention = functools.partial(
        part("attention", "gqa"), positions=part("positions", "rope"), qk_norm=qk_norm
    )
    return functools.partial(
        LanguageModel,
        vocab_size,
        d_model,
        norm=made("norm", norm),
        ffn=made("ffn", ffn),
        placement=made("placement", placement),
        init=made("init", init),
        residual=made("residual", residual),
        attention=attention,
        **{**SMALL, **keywords},
    )


def layout_and_params(make, seed=0):
    """The layout, and random float32 parameters in which every site shows."""
    layout = layout_of(lambda: make(rngs=nnx.Rngs(0)))
    rng = np.random.default_rng(seed)
    draw = {
        "matrix": lambda shape: rng.normal(size=shape) / np.sqrt(shape[-2]),
        "head": lambda shape: rng.normal(size=shape) / np.sqrt(shape[-2]),
        "embedding": lambda shape: rng.normal(size=shape),
        "gain": lambda shape: rng.uniform(0.7, 1.3, shape),
        "bias": lambda shape: rng.uniform(-0.3, 0.3, shape),
        "shift": lambda shape: rng.uniform(-0.3, 0.3, shape),
        "alpha": lambda shape: rng.uniform(0.4, 1.0, shape),
        "scale": lambda shape: rng.uniform(1.5, 2.0, shape),
    }
    params = {
        path: draw[spec.role](spec.shape).astype(np.float32)
        for path, spec in layout.specs.items()
    }
    return layout, params


def tokens_of(shape, vocab_size=23, seed=1):
    return np.random.default_rng(seed).integers(0, vocab_size, shape)


# -- reference models ----------------------------------------------------------------

REFERENCES = {  # the torch models of tests/golden
    "ref_pre_ln": ("layernorm", "pre", False),
    "ref_post_ln": ("layernorm", "post", False),
    "ref_peri_ln_rms": ("rmsnorm", "peri", True),
    "ref_peri_ln_layernorm": ("layernorm", "peri", True),
    "ref_out_norm": ("rmsnorm", "out", False),
}


def reference(name):
    """(layout of depth n_layers, parameters, inputs and outputs) of one of them."""
    norm, placement, embedding_norm = REFERENCES[name]
    config = json.loads((GOLDEN / name / "config.json").read_text())
    # What the names above say is what the file says.
    assert (config["norm"], config["placement"]) == (norm, placement)
    assert config["embed_norm"] == embedding_norm
    make = factory(
        config["vocab_size"],
        config["hidden_size"],
        norm=part("norm", norm, eps=config["eps"]),
        ffn="swiglu",
        placement=part("placement", placement, embedding_norm=embedding_norm),
        n_heads=config["num_attention_heads"],
        n_kv_heads=config["num_key_value_heads"],
        d_head=None,
        d_ff=config["intermediate_size"],
    )

    def layout_at(n_layers):
        return layout_of(lambda: make(n_layers=n_layers, rngs=nnx.Rngs(0)))

    weights = load_file(GOLDEN / name / "weights.safetensors")
    io = load_file(GOLDEN / name / "io.safetensors")
    n_layers = config["num_hidden_layers"]
    return layout_at, in_our_names(weights, n_layers), io, n_layers


def in_our_names(weights, n_layers):
    """torch names and [out, in] maps to paths and stacked [in, out] kernels."""
    ours = {
        "table": weights["embed_tokens.weight"],
        "head/kernel": weights["lm_head.weight"].T,
    }
    parameters = {"weight": "gain", "bias": "bias"}
    for theirs, path in (("norm", "final_norm"), ("embed_norm", "embedding_norm")):
        for kind, name in parameters.items():
            if f"{theirs}.{kind}" in weights:
                ours[f"{path}/{name}"] = weights[f"{theirs}.{kind}"]

    def stack(theirs, path, transposed=False):
        if f"layers.0.{theirs}" in weights:
            each = [weights[f"layers.{i}.{theirs}"] for i in range(n_layers)]
            each = [w.T if transposed else w for w in each]
            ours[f"blocks/layers/{path}"] = np.stack(each)

    for theirs, path in {
        "q_proj": "attn/branch/q",
        "k_proj": "attn/branch/k",
        "v_proj": "attn/branch/v",
        "o_proj": "attn/branch/o",
        "gate_proj": "ffn/branch/gate",
        "up_proj": "ffn/branch/up",
        "down_proj": "ffn/branch/down",
    }.items():
        stack(f"{theirs}.weight", f"{path}/kernel", transposed=True)
    for theirs, path in {"attn": "attn", "mlp": "ffn"}.items():
        for kind, name in parameters.items():
            stack(f"{theirs}_in_norm.{kind}", f"{path}/in_norm/{name}")
            stack(f"{theirs}_out_norm.{kind}", f"{path}/out_norm/{name}")
            stack(f"{theirs}_post_norm.{kind}", f"{path}_joint/post_norm/{name}")
    return ours


@pytest.mark.parametrize("name", REFERENCES)
def test_stream_after_every_layer_is_that_of_the_reference(name, assert_within):
    layout_at, params, io, depth = reference(name)
    layout = layout_at(1)

    @jax.jit
    def run_layer(params, x):
        return layout.merge(params, {}).blocks(x, (2, 12))[0]

    for i in range(depth):
        layer = {
            path: x[i : i + 1] if layout.specs[path].n_stacked else x
            for path, x in params.items()
        }
        if i == 0:
            x = layout.merge(layer, {}).embed(io["input_ids"])
            assert_within(x.reshape(2, 12, -1), io["hidden_states.0"], 1e-5)
        with jax.default_matmul_precision("highest"):
            x = run_layer(layer, x)
        assert_within(x.reshape(2, 12, -1), io[f"hidden_states.{i + 1}"], 1e-5)


@pytest.mark.parametrize("name", REFERENCES)
def test_logits_loss_and_every_gradient_are_those_of_the_reference(name, assert_within):
    layout_at, params, io, depth = reference(name)
    layout = layout_at(depth)
    assert {k: v.shape for k, v in params.items()} == {
        path: spec.shape for path, spec in layout.specs.items()
    }

    def loss_of(params):
        return layout.merge(params, {}).loss(io["input_ids"])[0]

    def run(params):
        model = layout.merge(params, {})
        hidden, _ = model.hidden(io["input_ids"])
        return hidden, model.logits(hidden)

    with jax.default_matmul_precision("highest"):
        hidden, logits = jax.jit(run)(params)
        loss, gradients = jax.jit(jax.value_and_grad(loss_of))(params)
    assert_within(hidden.reshape(2, 12, -1), io[f"hidden_states.{depth}"], 1e-5)
    assert_within(logits.reshape(2, 12, -1), io["logits"], 1e-5)
    np.testing.assert_allclose(loss, io["loss"], rtol=0, atol=5e-6)
    theirs = {
        k.removeprefix("grad."): v for k, v in io.items() if k.startswith("grad.")
    }
    expected = in_our_names(theirs, depth)
    assert gradients.keys() == expected.keys()
    for path, wanted in expected.items():
        atol = 1e-4 * np.abs(wanted).max() + 1e-6
        np.testing.assert_allclose(
            gradients[path], wanted, rtol=0, atol=atol, err_msg=path
        )


# -- the oracle ----------------------------------------------------------------------


def oracle_norm(choice):
    """The function of blocks.oracle.norms with the static keywords of the YAML."""
    function = getattr(norm_oracle, choice, None)
    assert function, f"blocks/oracle/norms.py has no function {choice}"
    accepted = inspect.signature(function).parameters
    learned = {"gain", "bias"}  # in a YAML these say whether there is one
    static = {k: v for k, v in node("norm", choice).items() if k in accepted}
    return functools.partial(
        function, **{k: v for k, v in static.items() if k not in learned}
    )


def oracle_ffn(choice):
    function = getattr(ffn_oracle, choice, None)
    assert function, f"blocks/oracle/ffn.py has no function {choice}"
    settings = node("ffn", choice)
    if "activation" in settings:
        activation = getattr(ffn_oracle, settings["activation"])
        return functools.partial(function, activation=activation)
    return function


def oracle_attention():
    return functools.partial(
        attention_oracle.attention,
        n_heads=SMALL["n_heads"],
        n_kv_heads=SMALL["n_kv_heads"],
        causal=node("attention", "gqa")["causal"],
        rope_base=node("positions", "rope")["base"],
    )


def assert_equals_the_oracle(make, *, placement, norm, ffn="mlp", **others):
    """Stream and logits in float64, to 1e-12 of the largest entry."""
    layout, params = layout_and_params(functools.partial(make, dtype="float64"))
    params = {k: v.astype(np.float64) for k, v in params.items()}
    tokens = tokens_of((2, 5))

    @jax.jit
    def run(params):
        model = layout.merge(params, {})
        hidden, _ = model.hidden(tokens)
        return hidden, model.logits(hidden)

    hidden, logits = run(params)
    assert {hidden.dtype, logits.dtype} == {jnp.dtype("float64")}
    results = [
        oracle.language_model(
            sequence,
            params,
            placement=placement,
            norm=oracle_norm(norm),
            attention=oracle_attention(),
            ffn=oracle_ffn(ffn),
            **others,
        )
        for sequence in tokens
    ]
    expected_hidden = np.concatenate([streams[-1] for streams, _ in results])
    expected_logits = np.concatenate([logits for _, logits in results])
    assert len(results[0][0]) == SMALL["n_layers"] + 1

    def close(actual, wanted):
        atol = 1e-12 * np.abs(wanted).max()
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=atol)

    close(hidden, expected_hidden)
    close(logits, expected_logits)


# One of each sort: that every choice is right by itself is asked by its contract test.
NORMS = ("layernorm", "rmsnorm", "dyt", "derf")
PLACEMENTS = ("pre", "post", "peri")
FFNS = ("mlp", "swiglu")


def products():
    """Quick are those with one unusual choice."""
    for placement, norm, ffn in itertools.product(PLACEMENTS, NORMS, FFNS):
        usual = (placement == "peri", norm == "layernorm", ffn == "mlp")
        marks = () if sum(usual) >= 2 else pytest.mark.slow
        yield pytest.param(placement, norm, ffn, marks=marks)


@pytest.mark.parametrize("placement, norm, ffn", products())
def test_every_choice_equals_the_oracle(float64, placement, norm, ffn):
    assert_equals_the_oracle(
        factory(norm=norm, ffn=ffn, placement=placement),
        placement=part("placement", placement),
        norm=norm,
        ffn=ffn,
    )


@pytest.mark.parametrize("ffn", FFNS)
def test_a_norm_at_every_site_equals_the_oracle(float64, ffn):
    assert_equals_the_oracle(
        factory(norm="layernorm", ffn=ffn, placement=EVERYWHERE),
        placement=EVERYWHERE,
        norm="layernorm",
        ffn=ffn,
    )


def test_another_norm_at_each_site_equals_the_oracle(float64):
    assert_equals_the_oracle(
        factory(
            norm="derf",
            attn_norm=part("norm", "layernorm"),
            ffn_norm=part("norm", "rmsnorm"),
            final_norm=part("norm", "dyt"),
            qk_norm=part("norm", "rmsnorm"),
            placement=EVERYWHERE,
        ),
        placement=EVERYWHERE,
        norm="derf",
        attn_norm=oracle_norm("layernorm"),
        ffn_norm=oracle_norm("rmsnorm"),
        final_norm=oracle_norm("dyt"),
        qk_norm=oracle_norm("rmsnorm"),
    )


def test_tied_head_scaled_embedding_and_scaled_branches_equal_the_oracle(float64):
    # DyT and post_norm see the scale of the embedding and the ratio of the factors.
    placement = part("placement", "post", embedding_norm=True)
    assert_equals_the_oracle(
        factory(
            norm="dyt",
            placement=placement,
            residual=part("residual", "add", skip=1.7, branch_scale=0.6),
            tied_head=True,
            embedding_scale_init=3.0,
        ),
        placement=placement,
        norm="dyt",
        skip=1.7,
        branch_scale=0.6,
    )


# -- the ends ------------------------------------------------------------------------


def test_tied_head_has_no_kernel_and_its_table_learns_from_both_uses(float64):
    make = factory(tied_head=True, dtype="float64")
    layout, params = layout_and_params(make)
    assert "head/kernel" not in layout.specs
    params = {k: jnp.asarray(v, jnp.float64) for k, v in params.items()}
    batch = tokens_of((2, 6))

    @jax.jit
    def loss_of(params):
        return layout.merge(params, {}).loss(batch)[0]

    gradient = jax.grad(loss_of)(params)["table"]
    # Central differences: a token that enters, and one met only as a wrong target.
    absent = next(t for t in range(23) if t not in batch)
    direction = np.random.default_rng(2).normal(size=12)
    for token in (int(batch[0, 0]), absent):
        step = jnp.zeros_like(params["table"]).at[token].set(1e-5 * direction)
        up = loss_of({**params, "table": params["table"] + step})
        down = loss_of({**params, "table": params["table"] - step})
        expected = (up - down) / 2e-5  # rounding of the loss leaves 1e-11 in it
        assert abs(expected) > 1e-4
        np.testing.assert_allclose(gradient[token] @ direction, expected, rtol=1e-6)


def test_embedding_scale_is_one_learned_factor_on_the_embedding():
    make = factory(placement=Placement(), embedding_scale_init=5.0)
    layout, params = layout_and_params(make)
    tokens = tokens_of((2, 5))
    np.testing.assert_allclose(
        layout.merge(params, {}).embed(tokens),
        params["embedding_scale"] * params["table"][tokens.reshape(-1)],
        rtol=1e-6,
    )
    spec = layout.specs["embedding_scale"]
    assert (spec.role, spec.shape, spec.n_stacked) == ("scale", (1,), 0)
    plain = layout_of(lambda: factory()(rngs=nnx.Rngs(0)))
    assert set(layout.specs) - set(plain.specs) == {"embedding_scale"}
    fresh = jax.jit(lambda: make(rngs=nnx.Rngs(0)).embedding_scale[...])()
    assert (fresh, fresh.dtype) == (5.0, jnp.float32)


def test_embedding_norm_follows_the_scale():
    # RMSNorm takes the factor out again: only the other order would show it.
    placement = Placement(embedding_norm=True)
    make = factory(placement=placement, embedding_scale_init=5.0)
    layout, params = layout_and_params(make)
    params["embedding_norm/gain"] = np.ones(12, np.float32)
    x = layout.merge(params, {}).embed(tokens_of((2, 5)))
    np.testing.assert_allclose(jnp.mean(x**2, axis=-1), 1.0, rtol=1e-5)


# -- norms by site -------------------------------------------------------------------

SITES = {
    "attn_norm": ("blocks/layers/attn/", "blocks/layers/attn_joint/"),
    "ffn_norm": ("blocks/layers/ffn/", "blocks/layers/ffn_joint/"),
    "final_norm": ("final_norm/",),
}


@pytest.mark.parametrize("site", SITES)
def test_a_site_norm_reaches_its_site_only(site):
    make = factory(
        norm=RMSNorm, placement=EVERYWHERE, **{site: functools.partial(Derf)}
    )
    specs = layout_of(lambda: make(rngs=nnx.Rngs(0))).specs
    plain = layout_of(
        lambda: factory(norm=RMSNorm, placement=EVERYWHERE)(rngs=nnx.Rngs(0))
    ).specs
    norms = {path.rpartition("/")[0] for path, s in plain.items() if s.role == "gain"}
    # in, inner, out and post norm of both sub-layers; the embedding's; the last one.
    assert len(norms) == 4 + 4 + 1 + 1
    with_alpha = {
        path.rpartition("/")[0] for path, s in specs.items() if s.role == "alpha"
    }
    assert with_alpha == {
        path for path in norms if (path + "/").startswith(SITES[site])
    }


# -- causality -----------------------------------------------------------------------


def test_no_token_sees_a_later_one_or_another_sequence():
    # Every position holds a token of its own, so a row of the table is a position.
    batch, seq = 2, 6
    make = factory(batch * seq, norm="layernorm", n_layers=1)
    layout, params = layout_and_params(make)
    tokens = np.random.default_rng(0).permutation(batch * seq).reshape(batch, seq)

    @jax.jit
    @jax.jacrev
    def rows_seen(table):
        logits = layout.merge({**params, "table": table}, {})(tokens)
        weights = np.random.default_rng(1).normal(size=logits.shape[-1])
        return logits @ weights  # [batch, seq]

    seen = jnp.abs(rows_seen(params["table"])).sum(axis=-1)[..., tokens]
    # [batch, seq] of the logits, [batch, seq] of the inputs
    for b in range(batch):
        for t in range(seq):
            mask = np.zeros((batch, seq), bool)
            mask[b, : t + 1] = True
            assert (seen[b, t][mask] > 0).all()
            assert (seen[b, t][~mask] == 0).all()


# -- dtypes --------------------------------------------------------------------------


@pytest.mark.parametrize(
    "placement, dtype, error",
    [
        ("pre", "bfloat16", 0.03),
        pytest.param("post", "bfloat16", 0.03, marks=pytest.mark.slow),
        pytest.param("peri", "bfloat16", 0.03, marks=pytest.mark.slow),
        ("pre", "float16", 0.004),
    ],
)
def test_half_precision_stays_close_to_float32(placement, dtype, error):
    # Rounding is 2^-9 and 2^-12 of a value. Measured, as a fraction of the RMS of the
    # logits: bfloat16 0.0075 (pre), 0.0084 (post), 0.012 (peri); float16 0.0011.
    make = factory(placement=placement, norm="layernorm", n_layers=4)
    layout, params = layout_and_params(make)
    batch = tokens_of((4, 17))

    def run(layout):
        def logits_and_loss(params):
            model = layout.merge(params, {})
            logits = model(batch[:, :-1])
            return logits, cross_entropy(
                logits.reshape(-1, logits.shape[-1]), batch[:, 1:].reshape(-1)
            )

        return jax.jit(logits_and_loss)(params)

    half = layout_of(lambda: make(dtype=dtype, rngs=nnx.Rngs(0)))
    logits, loss = run(half)
    expected, expected_loss = run(layout)
    assert logits.dtype == dtype
    off = logits.astype(jnp.float32) - expected
    relative = jnp.sqrt(jnp.mean(off**2) / jnp.mean(expected**2))
    assert 0 < relative < error
    assert loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, expected_loss, rtol=0.1 * error)


@pytest.mark.slow
def test_gradients_are_float32_in_bfloat16_and_close():
    make = factory(norm="layernorm")
    layout, params = layout_and_params(make)
    half = layout_of(lambda: make(dtype="bfloat16", rngs=nnx.Rngs(0)))
    batch = tokens_of((4, 17))

    def gradients(layout):
        return jax.jit(jax.grad(lambda p: layout.merge(p, {}).loss(batch)[0]))(params)

    exact = gradients(layout)
    for path, g in gradients(half).items():
        assert g.dtype == jnp.float32, path
        off = jnp.linalg.norm(g - exact[path]) / jnp.linalg.norm(exact[path])
        assert off < 0.05, path


# -- loss ----------------------------------------------------------------------------


def test_cross_entropy_is_the_mean_of_minus_log_softmax():
    rng = np.random.default_rng(0)
    logits = rng.normal(0, 3, (50, 11)) + rng.normal(0, 30, (50, 1))
    targets = rng.integers(0, 11, 50)
    expected = -log_softmax(logits, axis=-1)[np.arange(50), targets].mean()
    found = cross_entropy(jnp.asarray(logits, jnp.float32), jnp.asarray(targets))
    np.testing.assert_allclose(found, expected, rtol=2e-6)


def test_cross_entropy_survives_huge_logits_and_is_float32_for_bfloat16():
    logits = jnp.asarray([[3e4, -3e4, 0.0]], jnp.bfloat16)
    loss = cross_entropy(logits, jnp.asarray([1]))
    assert loss.dtype == jnp.float32
    np.testing.assert_allclose(loss, float(logits[0, 0] - logits[0, 1]), rtol=1e-6)
    gradient = jax.grad(cross_entropy)(logits.astype(jnp.float32), jnp.asarray([1]))
    np.testing.assert_allclose(gradient, [[1.0, -1.0, 0.0]], atol=1e-6)


def test_loss_predicts_the_next_token():
    # With silent branches the logits at position t depend on token t alone: a table of
    # bigrams, written here by hand.
    make = factory(norm="rmsnorm", placement="pre")
    layout, params = layout_and_params(make)
    params = {
        k: np.zeros_like(v) if "branch" in k else np.ones_like(v) if "gain" in k else v
        for k, v in params.items()
    }
    batch = tokens_of((3, 8))
    table = params["table"].astype(np.float64)
    x = table / np.sqrt((table**2).mean(axis=-1, keepdims=True) + 1e-6)
    bigram = -log_softmax(x @ params["head/kernel"], axis=-1)
    expected = bigram[batch[:, :-1], batch[:, 1:]].mean()
    loss, measured = layout.merge(params, {}).loss(batch)
    np.testing.assert_allclose(loss, expected, rtol=1e-5)
    assert measured == {}


@pytest.mark.parametrize(
    "init, std",
    [("normal", 0.02), pytest.param("kaiming", 64**-0.5, marks=pytest.mark.slow)],
)
def test_loss_of_a_fresh_model_is_close_to_log_vocab(init, std):
    # The last norm makes RMS 1, so a logit is N(0, d_model std^2) and the loss exceeds
    # ln(vocab) by half that variance.
    make = factory(256, 64, norm="layernorm", init=init)
    batch = tokens_of((8, 65), 256)
    loss = jax.jit(lambda: make(rngs=nnx.Rngs(0)).loss(batch)[0])()
    excess = 64 * std**2 / 2
    spread = np.sqrt(2 * excess / (8 * 64))  # of the mean of the targets' logits
    np.testing.assert_allclose(loss, np.log(256) + excess, atol=4 * spread)


# -- construction --------------------------------------------------------------------


def norm_that_draws(d_model, *, rngs):
    rngs.params()
    return LayerNorm(d_model, rngs=rngs)


def test_what_the_ends_draw_shifts_nothing_else():
    # A final norm, or an embedding norm, that takes a key must not move the head.
    placement = Placement(embedding_norm=True)
    plain = factory(norm="layernorm", placement=placement)(rngs=nnx.Rngs(3))
    other = factory(norm="layernorm", placement=placement, final_norm=norm_that_draws)(
        rngs=nnx.Rngs(3)
    )
    np.testing.assert_array_equal(plain.head.kernel[...], other.head.kernel[...])
    np.testing.assert_array_equal(plain.table[...], other.table[...])


def test_members_of_a_program_differ_by_seed_only():
    first, second, again = (
        factory()(rngs=nnx.Rngs(params=jax.random.key(s))) for s in (0, 1, 0)
    )
    layout = layout_of(lambda: factory()(rngs=nnx.Rngs(0)))
    a, b, c = (layout.split(m)[0] for m in (first, second, again))
    for path in a:
        np.testing.assert_array_equal(a[path], c[path])
        if layout.specs[path].role in ("matrix", "embedding", "head"):
            assert (a[path] != b[path]).any(), path


def test_no_two_kernels_start_alike():
    layout = layout_of(lambda: factory()(rngs=nnx.Rngs(0)))
    make = factory(d_model=16, d_ff=16, n_heads=4, n_kv_heads=4, vocab_size=16)
    params, _ = layout.split(make(init=Normal(depth_power=0.0), rngs=nnx.Rngs(0)))
    kernels = [
        k
        for x in params.values()
        if x.ndim > 1 and x.shape[-2:] == (16, 16)
        for k in x.reshape(-1, 16 * 16)
    ]
    assert len(kernels) == 2 * 6 + 2  # q k v o up down in two layers, table, head
    for i, a in enumerate(kernels):
        for b in kernels[:i]:
            assert abs(np.corrcoef(a, b)[0, 1]) < 0.3  # 4.8 standard deviations


@pytest.mark.parametrize(
    "wrong, message",
    [
        (dict(d_model=0), "d_model must be at least 1, got 0"),
        (dict(n_layers=0), "n_layers must be at least 1, got 0"),
        (dict(n_heads=5), "d_model=64 is not divisible by n_heads=5"),
        (dict(n_kv_heads=3), "n_heads=4 is not divisible by n_kv_heads=3"),
        (dict(vocab_size=0), "vocab_size must be at least 1, got 0"),
        (
            dict(embedding_scale=0.0),
            "embedding_scale must be positive and finite, got 0.0",
        ),
        (dict(embedding_scale_init=float("inf")), "embedding_scale_init.*inf"),
        (dict(dtype="float8"), "dtype must be one of.*'float8'"),
        (dict(remat="some"), "remat must be one of.*'some'"),
    ],
)
def test_wrong_values_are_refused_by_name(wrong, message):
    right = dict(d_model=64, n_layers=2, n_heads=4, d_ff=8)
    LanguageModel.check(**right)
    with pytest.raises(ValueError, match=message):
        LanguageModel.check(**{**right, **wrong})


def test_a_model_without_vocabulary_is_refused():
    with pytest.raises(ValueError, match="vocab_size is needed"):
        factory(None)(rngs=nnx.Rngs(0))
