"""Which choices go together: what is refused really fails, what is not is built.

The covering array is the evidence: in its rows every pair of choices that is not refused
occurs, and every row is traced.
"""

import functools
import io
import itertools
import json
import random

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from rich.console import Console

from blocks.norms.layernorm import LayerNorm
from blocks.norms.rmsnorm import RMSNorm
from blocks.parameters import layout_of
from blocks.residual.b2t import B2T
from blocks.residual.deepnorm import DeepNorm
from blocks.residual.keel import Keel
from blocks.residual.layernorm_scaling import LayerNormScaling
from blocks.residual.residual_dual import ResiDual
from blocks.site import Site
from experiments import api
from experiments.compatibility import choices
from experiments.compatibility.choices import (
    SIZES,
    Axis,
    axes,
    command_line,
    config_of,
)
from experiments.compatibility.covering import Covering, refused_pairs, verdict
from experiments.compatibility.message import refusal
from experiments.compatibility.rules import fact, refusals
from experiments.config import Config
from experiments.errors import UserError
from experiments.execution import FUNCTIONS, Executables, choose_layout
from experiments.group import load_dataset, signature_of
from experiments.parts import Part
from experiments.program import Program
from experiments.tasks import compatibility as task
from tests.launching import launch

# A model of feed-forward sub-layers alone has no use for the others.
WITHOUT_ATTENTION = ("norm", "ffn", "residual", "init", "placement", "optimizer")


def config(row):
    if "model" in row:  # it chooses its own data
        node = config_of(row, **SIZES)
        node["data"]["d_model"] = SIZES["d_model"]
    else:
        node = config_of({"data": "markov", **row}, **SIZES)
        node["data"]["vocab_size"] = SIZES["vocab_size"]
    return Config.parse({**node, "batch_size": 2, "seq_len": 16}, choices=row)


def program(config):
    dataset = load_dataset(config.data)
    return Program(signature_of(config, dataset), dataset)


def trace(row):
    """Traces the training step of a row; its state must come back as it went in."""
    made = program(config(row))
    names, _ = FUNCTIONS["train_steps"]
    with jax.enable_x64(made.signature.x64):
        shapes = Executables(made, choose_layout("auto", None)).abstract(None, names)
        after, rows = jax.eval_shape(made.train_steps, *shapes)
    assert jax.tree.map(kind, after) == jax.tree.map(kind, shapes[0])
    assert "loss" in rows


def kind(x):
    return x.shape, x.dtype


def step(row):
    """One real optimizer step: its loss, and the parameters after it."""
    made, values = program(config(row)), config(row).traced_values()
    with jax.enable_x64(made.signature.x64):
        values = {
            k: jnp.asarray(v, jnp.int32 if isinstance(v, int) else made.dtype)
            for k, v in values.items()
        }
        seed, steps = jnp.uint32(0), jnp.int32(10)
        data = {k: jnp.asarray(v) for k, v in made.dataset.arrays.items()}

        @jax.jit
        def run(seed, values, steps, n, data):
            state = made.init(seed, values, steps)
            return made.train_steps(state, seed, values, steps, n, data)

        state, rows = run(seed, values, steps, jnp.int32(1), data)
    return rows["loss"][0], state.params


def model_of(row, **sizes):
    return Part.parse(config_of(row, **(sizes or SIZES))["model"], "model")


def build_and_trace(row):
    """Builds the model of a row and its loss, whether or not it is refused."""
    model = model_of(row)
    make = model.build({}, "model")
    given = {} if "vocab_size" not in dict(model.keywords) else {"vocab_size": 16}
    layout = layout_of(lambda: make(**given, rngs=nnx.Rngs(0)))

    def loss():
        built = make(**given, rngs=nnx.Rngs(0))
        if given:
            return built.loss(jnp.zeros((2, 9), jnp.int32))[0]
        x = jnp.zeros((2, SIZES["d_model"]))
        return built.loss({"x": x, "weights": x})[0]

    return layout.specs, jax.eval_shape(loss)


def few(most):
    """The axes with at most so many choices each, spread over all of them.

    Without choices that no choice left on another axis goes with.
    """
    found = []
    for axis in axes():
        at = np.linspace(0, len(axis.choices) - 1, min(most, len(axis.choices)))
        found.append(Axis(axis.name, tuple(axis.choices[round(i)] for i in at)))

    def is_alone(axis, choice):
        return any(
            all(verdict({axis.name: choice, b.name: y}) for y in b.choices)
            for b in found
            if b is not axis
        )

    return [
        Axis(a.name, tuple(x for x in a.choices if not is_alone(a, x))) for a in found
    ]


@functools.cache
def covering(most=None):
    return Covering(axes() if most is None else few(most))


# -- composing a row -------------------------------------------------------------------


@pytest.mark.parametrize(
    "row",
    [
        {},
        {"placement": "deepnorm"},
        {"placement": "deepnorm", "residual": "add"},
        {"placement": "hybrid_star", "dtype": "float64"},
        {"placement": "normformer", "attention": "gqa", "optimizer": "muon"},
        {"attention": "qwen3", "positions": "none", "embedding_positions": "learned"},
        {"pattern.attention": "olmo2", "attention": "cosine", "n_kv_heads": "1"},
        {"pattern": "first", "pattern.placement": "post", "pattern.ffn": "moe"},
        {"pattern": None, "norm": "switch", "tied_head": "true", "init": "mup"},
        {"model": "residual_mlp", "residual": "mhc"},
    ],
)
def test_a_row_is_composed_as_hydra_composes_it(row):
    sizes = SIZES if "model" not in row else {"d_model": 32}
    (composed,) = api.compose(command_line(row, **sizes))
    assert model_of(row, **sizes) == composed.model
    assert Part.parse(config_of(row)["optimizer"], "optimizer") == composed.optimizer


# -- what is refused, and how it is said -----------------------------------------------

SAID = {
    # overrides -> beginning and end of the line
    ("placement=post", "residual=mhc", "model.n_layers=4"): (
        "model.placement: post_norm, a norm after the addition, has no meaning with "
        "residual=mhc (n_streams=4); choose placement=none, out, parallel, peri, "
        "peri_embedding, pre or sandwich, or residual=add, ",
        ", ...",
    ),
    ("placement=mix", "model.n_layers=4", "residual=attention_residuals"): (
        "model.placement: post_norm, a norm after the addition, has no meaning with "
        "residual=attention_residuals; choose placement=none, out, ",
        "",
    ),
    ("pattern=first", "+placement@model.pattern.placement=post", "residual=frac"): (
        "model.pattern.placement: post_norm, a norm after the addition, has no ",
        "",
    ),
    ("residual=keel",): (
        "model.placement: residual=keel has no meaning without a norm after the "
        "addition, post_norm, in every block; choose placement=keel or post, or ",
        "",
    ),
    ("residual=layernorm_scaling",): (
        "model.placement: in_norm, a norm in front of the branch, undoes what residual="
        "layernorm_scaling does; choose placement=layernorm_scaling, ",
        "",
    ),
    ("attention=mla", "model.n_kv_heads=1"): (
        "model.n_kv_heads: every head of attention=mla has its own keys and values, got "
        "n_kv_heads=1 and n_heads=2; choose n_kv_heads=null, or attention=",
        "",
    ),
    ("attention=qkv_norm", "~norm@model.attention.qk_norm"): (
        "model.attention.qk_norm: attention=qkv_norm needs a norm here: norm@model.",
        "",
    ),
    ("norm=batchnorm", "placement=sub", "ffn=moe"): (
        "model.norm: norm=batchnorm has state, which ffn=moe cannot keep in an "
        "inner_norm, where placement=sub puts it; choose norm=",
        "",
    ),
    (
        "attention=value_residual",
        "pattern=first",
        "+attention@model.pattern.attention=gqa",
    ): (
        "model.attention: attention=value_residual reads the values of the first block, "
        "whose attention keeps none; choose attention=",
        ", or pattern.attention=value_residual",
    ),
    (
        "placement=parallel",
        "pattern=first",
        "+placement@model.pattern.placement=peri",
    ): (
        "model.pattern.placement: attention and feed-forward are side by side "
        "(parallel) in all layers or in none, but pattern.placement=peri is not as "
        "placement=parallel; choose pattern.placement=parallel, or placement=",
        "",
    ),
    ("model=residual_mlp", "data=gaussian", "placement=parallel"): (
        "model.placement: placement=parallel needs attention, which ResidualMLP has "
        "not; choose placement=",
        "",
    ),
    (
        "model=residual_mlp",
        "data=gaussian",
        "pattern=first",
        "+attention@model.pattern.attention=gqa",
    ): ("model.pattern.attention: ResidualMLP has no attention to replace", "replace"),
    # A choice that sets a keyword of another group's part.
    ("placement=normformer", "attention=mla"): (
        "model.attention.gate: LatentAttention has no such keyword",
        "; placement=normformer sets it, which does not go with attention=mla",
    ),
    ("placement=normformer", "attention=gated"): (
        "model.attention.gate.per: HeadScale has no such keyword",
        "; attention=gated sets it, which does not go with placement=normformer",
    ),
}


@pytest.mark.parametrize("overrides", SAID, ids=" ".join)
def test_refusals_name_the_choices_and_what_would_do(compose, overrides):
    begin, end = SAID[overrides]
    with pytest.raises(UserError) as error:
        compose(*overrides)
    said = str(error.value)
    assert said.startswith(begin), said
    assert said.endswith(end), said
    assert "\n" not in said


@pytest.mark.slow
def test_a_refused_launch_is_one_line_and_leaves_nothing(tmp_path):
    done = launch("placement=post", "residual=mhc", cwd=tmp_path)
    assert done.returncode == 1
    assert done.stdout == ""
    (line,) = done.stderr.splitlines()
    assert line.startswith("error: model.placement: post_norm")
    assert list(tmp_path.iterdir()) == []


def test_what_is_offered_is_not_refused():
    refused = {"residual": "keel"}
    for placement in ("keel", "post"):
        assert refusal(model_of({**refused, "placement": placement})) is None
    assert refusal(model_of({**refused, "placement": "pre"})) is not None


def test_a_part_that_declares_nothing_goes_with_everything():
    model = model_of({"residual": "mhc", "placement": "post"})
    assert refusal(model) is not None
    add = Part.parse({"_target_": "blocks.residual.add.Add"}, "model.residual")
    assert refusal(model.replace(residual=add)) is None


def test_a_model_of_another_kind_is_not_judged():
    norm = Part.parse({"_target_": "blocks.norms.rmsnorm.RMSNorm"}, "model.norm")
    assert refusals(norm) == ()


def test_depth_decides_where_layers_differ():
    """Mix-LN has its Post-LN blocks only where a quarter of the depth is a block."""
    row = {"placement": "mix", "residual": "mhc"}
    assert refusal(model_of(row, n_layers=3)) is None
    assert refusal(model_of(row, n_layers=4)) is not None


def test_one_norm_after_an_addition_is_enough():
    """HybridNorm has one per block: too many for streams, enough for DeepNorm."""
    assert refusal(model_of({"placement": "hybrid", "residual": "mhc"})) is not None
    assert refusal(model_of({"placement": "hybrid", "residual": "deepnorm"})) is None
    # Its first block is Pre-LN.
    row = {"placement": "hybrid_star", "residual": "deepnorm"}
    assert refusal(model_of(row)) is not None


def test_the_norm_that_experts_get_is_the_one_of_their_sub_layer(compose):
    """Side by side, attention and feed-forward have the norm of attention."""
    batch, rms = "norm@model.ffn_norm=batchnorm", "norm@model.attn_norm=rmsnorm"
    with pytest.raises(UserError, match="model.ffn_norm: ffn_norm=batchnorm has state"):
        compose("placement=sub", "ffn=moe", batch)
    compose("placement=sub", "ffn=moe", "norm@model.attn_norm=batchnorm")
    beside = ("placement=parallel", "model.placement.inner_norm=true", "ffn=moe")
    compose(*beside, batch, rms)
    with pytest.raises(UserError, match="model.attn_norm: attn_norm=batchnorm has"):
        compose(*beside, "norm@model.attn_norm=batchnorm")
    compose("placement=sub", "ffn=moe", batch, "model.ffn.compute=dense")


def test_as_many_heads_of_keys_as_of_queries_are_none_too_many():
    model = model_of({"attention": "mla"}).replace(n_kv_heads=SIZES["n_heads"])
    assert refusal(model) is None


def test_which_layers_a_pattern_changes_matters_where_its_placement_varies():
    """Mix-LN in every second block of four is Pre-LN there; in the first it is not."""
    row = {"residual": "mhc", "pattern.placement": "mix"}
    assert verdict({**row, "pattern": "every_nth"}) is None
    assert verdict({**row, "pattern": "first"}).axes == (
        "pattern.placement",
        "pattern",
        "residual",
    )
    assert verdict(row) is None


def test_what_chooses_by_the_token_needs_a_model_that_reads_some():
    row = {"ffn": "moe_hash", "model": "residual_mlp"}
    assert verdict({"ffn": "moe_hash"}) is None
    assert "ResidualMLP does not say which tokens" in verdict(row).reason
    inside = {
        "pattern": "every_nth",
        "pattern.ffn": "moe_hash",
        "model": "residual_mlp",
    }
    assert "pattern.ffn=moe_hash chooses experts" in verdict(inside).reason


def test_the_parts_of_a_pattern_beside_another_are_checked_under_their_own_key():
    """What is wrong in a third kind of layers is found, and named where it stands."""
    overrides = [
        "pattern=listed",
        "model.pattern.attention_in=[1]",
        "+attention@model.pattern.attention=gqa",
        "+pattern@model.pattern.beside=listed",
        "model.pattern.beside.attention_in=[2]",
        "+attention@model.pattern.beside.attention=mla",
        "model.n_heads=4",
    ]
    assert refusals(api.compose(overrides)[0].model) == ()
    with pytest.raises(UserError, match="every head of pattern.beside.attention=mla"):
        api.run(api.compose([*overrides, "model.n_kv_heads=2"]))


# -- what classes declare is true ------------------------------------------------------


def names(group):
    return sorted(p.stem for p in (choices.CONF / group).glob("*.yaml"))


@pytest.mark.parametrize("norm", names("norm"))
def test_norms_say_whether_they_have_state(norm):
    part = model_of({"norm": norm})["norm"]
    made = nnx.eval_shape(lambda: part.build({}, "norm")(32, rngs=nnx.Rngs(0)))
    has = bool(nnx.to_flat_state(nnx.state(made, nnx.Not(nnx.Param))))
    assert bool(fact(part, "has_state", False)) == has


def test_a_slope_that_is_not_learned_is_state():
    part = model_of({"norm": "pointwise"})["norm"]
    assert not fact(part, "has_state")
    assert fact(part.replace(alpha=False), "has_state")


@pytest.mark.parametrize("residual", names("residual"))
def test_schemes_say_whether_they_take_a_post_norm(residual):
    part = model_of({"residual": residual})["residual"]
    scheme = part.build({}, "residual")
    make = functools.partial(
        scheme.make_joint, 32, site=Site("attn", 0, 4, 0, 2), post_norm=RMSNorm
    )
    if fact(part, "takes_post_norm", True):
        joint = nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0)))
        assert joint.post_norm is not None
    else:
        with pytest.raises(ValueError, match="post_norm"):
            nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0)))


def joints(scheme, post_norm=None, n_layers=3):
    for layer, (index, name) in itertools.product(
        range(n_layers), enumerate(("attn", "ffn"))
    ):
        site = Site(name, layer, n_layers, index, 2)
        joint = scheme.make_joint(8, site=site, post_norm=post_norm, rngs=nnx.Rngs(0))
        yield site.number, joint


def run_through(scheme, branch_of, post_norm=None):
    """The state of a scheme after three blocks, without norms."""
    x = jax.random.normal(jax.random.key(0), (5, 8))
    ends = scheme.make_ends(8, n_layers=3, norm=LayerNorm, rngs=nnx.Rngs(0))
    state = ends.open(x)
    for i, joint in joints(scheme, post_norm):
        u, kept = joint.read(state, i)
        state = joint.write(state, branch_of(u), kept, i)
    return x, state


@pytest.mark.parametrize(
    "scheme, growth",
    [
        (B2T(), 2.0**3),  # the input of each block is added once more
        (Keel(), 6.0**6),  # alpha 6, 6 sub-layers
        (DeepNorm(), 6 ** (6 / 4)),  # alpha (2 * 3)^(1/4)
    ],
)
def test_without_a_post_norm_the_stream_of_some_schemes_grows_by_itself(scheme, growth):
    assert scheme.needs_post_norm
    x, state = run_through(scheme, jnp.zeros_like)
    np.testing.assert_allclose(jax.tree.leaves(state)[0], growth * x, rtol=1e-5)


def test_without_a_post_norm_residual_dual_has_one_stream_twice():
    assert ResiDual.needs_post_norm
    _, (x, z) = run_through(ResiDual(), jnp.sin)
    np.testing.assert_array_equal(x, z)


def test_a_norm_in_front_undoes_layernorm_scaling():
    """F(norm(x b^-1/2)) = F(norm(x)): nothing is left of the scheme."""
    assert not LayerNormScaling.takes_in_norm
    norm = RMSNorm(8, eps=1e-12, rngs=nnx.Rngs(0))
    x, state = run_through(LayerNormScaling(), lambda u: jnp.sin(norm(u)))
    plain = x
    for _ in range(6):
        plain = plain + jnp.sin(norm(plain))
    np.testing.assert_allclose(state, plain, rtol=1e-5, atol=1e-6)


@pytest.mark.parametrize(
    "row, same",
    [
        # The pattern's `parallel` is not read: blocks are built as the model's are.
        ({"pattern.placement": "parallel"}, {"pattern.placement": "pre"}),
        ({"model": "residual_mlp", "placement": "parallel"}, {"placement": "pre"}),
        ({"model": "residual_mlp", "placement": "hybrid"}, {"placement": "none"}),
    ],
)
def test_what_builds_and_is_refused_is_another_model_in_disguise(row, same):
    assert refusal(model_of(row)) is not None
    assert refusal(model_of({**row, **same})) is None
    specs, loss = build_and_trace(row)
    assert (specs, loss) == build_and_trace({**row, **same})


# -- the product of all axes -----------------------------------------------------------


def pairs_of(rows):
    return {
        ((a, row[a]), (b, row[b]))
        for row in rows
        for a, b in itertools.combinations(row, 2)
    }


def assert_covers(found):
    every = {
        ((a.name, x), (b.name, y))
        for a, b in itertools.combinations(found.axes, 2)
        for x, y in itertools.product(a.choices, b.choices)
    }
    assert found.missing == []
    assert pairs_of(found.rows) == every - set(found.refused)
    assert all(list(row) == [a.name for a in found.axes] for row in found.rows)


def test_every_pair_that_is_not_refused_is_in_a_row_that_is_not_refused():
    found = covering(4)
    assert_covers(found)
    assert all(verdict(row) is None for row in found.rows)
    assert len(found.rows) < 50
    assert Covering(found.axes).rows == found.rows


@pytest.mark.parametrize("part", range(8))
def test_rows_are_traced(part):
    rows = covering(4).rows
    for row in rows[part::8]:
        trace(row)


@pytest.mark.parametrize("i", [3, 17])
def test_rows_train(i):
    loss, params = step(covering(4).rows[i])
    assert np.isfinite(loss)
    assert all(np.isfinite(x).all() for x in params.values())


def distinct(refused):
    """One pair of each kind of refusal that is an error."""
    kinds = {}
    for pair, why in refused.items():
        (first, _), (second, _) = pair
        if why.fails:
            kinds.setdefault((first, second, why.reason.partition("=")[0]), pair)
    return list(kinds.values())


def assert_fails(pair):
    with pytest.raises((UserError, ValueError)):
        build_and_trace(dict(pair))


def test_refused_pairs_fail():
    for pair in distinct(covering(4).refused):
        assert_fails(pair)


@pytest.mark.slow
def test_all_refused_pairs_fail():
    for pair, why in refused_pairs(axes()).items():
        if why.fails:
            assert_fails(pair)


@pytest.mark.slow
def test_all_pairs_are_covered():
    found = covering()
    assert_covers(found)
    assert len(found.rows) < 1200


@pytest.mark.slow
@pytest.mark.parametrize("part", range(20))
def test_all_rows_are_traced(part):
    failed = {}
    for i, row in enumerate(covering().rows[part::20]):
        try:
            trace(row)
        except Exception as error:
            failed[f"{type(error).__name__}: {error}"[:200]] = command_line(row)
        if i % 10 == 9:
            jax.clear_caches()
    assert failed == {}


@pytest.mark.slow
@pytest.mark.parametrize("i", range(30))
def test_random_rows_train(i):
    loss, params = step(random.Random(i).choice(covering().rows))
    assert np.isfinite(loss)
    assert all(np.isfinite(x).all() for x in params.values())


@pytest.mark.slow
def test_every_choice_is_traced_without_attention():
    """ResidualMLP with each choice once, and every other axis moving on beside it."""
    groups = {group: names(group) for group in WITHOUT_ATTENTION}
    groups["ffn"].remove("moe_hash")  # it reads no tokens
    for i in range(max(map(len, groups.values()))):
        row = {group: found[i % len(found)] for group, found in groups.items()}
        row["model"] = "residual_mlp"
        if verdict(row) is not None:
            row["placement"] = "post" if verdict({**row, "placement": "pre"}) else "pre"
        assert verdict(row) is None, row
        trace(row)


# -- the task --------------------------------------------------------------------------


def test_the_task_prints_and_writes_and_makes_no_run(compose, monkeypatch, tmp_path):
    some = [a for a in few(4) if a.name in ("residual", "placement", "attention")]
    monkeypatch.setattr(task, "axes", lambda: some)
    (asked,) = compose(task="compatibility")
    out = io.StringIO()
    assert api.run([asked], console=Console(file=out, width=200)) == []
    node = json.loads((tmp_path / "compatibility" / "compatibility.json").read_text())
    assert node["schema"] == 1
    assert [a["axis"] for a in node["axes"]] == ["attention", "residual", "placement"]
    pairs = {tuple(pair["axes"]): pair for pair in node["pairs"]}
    assert len(pairs) == 3
    assert pairs["attention", "placement"]["refused"] == []
    pair = pairs["residual", "placement"]
    assert pair["n_pairs"] == 16
    refused = {(r["residual"], r["placement"]): r["reason"] for r in pair["refused"]}
    assert set(refused) == {("mhc", "admin"), ("mhc", "layernorm_scaling")}
    assert refused["mhc", "admin"].startswith("model.placement: post_norm")
    assert "2 of 48 pairs of choices are refused, on 1 of 3 pairs of axes" in (
        out.getvalue()
    )
    assert "residual=mhc placement=admin and 1 more" in out.getvalue()
