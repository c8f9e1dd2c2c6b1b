"""Parameters as flat arrays: what they are, and that nothing is lost on the way."""

import functools
from pathlib import Path

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from omegaconf import OmegaConf

from blocks.block import Block
from blocks.linear import Linear
from blocks.parameters import ROLES, ParamSpec, layout_of, path_name
from blocks.placement import Placement
from blocks.residual.add import Add
from blocks.stack import Stack

CONF = Path(__file__).parents[2] / "conf"
EVERYWHERE = Placement(
    in_norm=True,
    inner_norm=True,
    out_norm=True,
    post_norm=True,
    embedding_norm=True,
    final_norm=True,
)

# Of one layer's parameter, where the role leaves no choice.
RANKS = dict(matrix=2, embedding=2, head=2, bias=1, alpha=1, shift=1)


def choices(group):
    return sorted(path.stem for path in (CONF / group).glob("*.yaml"))


def part(group, choice):
    node = OmegaConf.to_container(OmegaConf.load(CONF / group / f"{choice}.yaml"))
    node.pop("defaults", None)
    return hydra.utils.instantiate(node)


def default_model(*overrides):
    """The factory of a configuration, composed by Hydra."""
    with hydra.initialize_config_dir(str(CONF), version_base="1.3"):
        config = hydra.compose("config", overrides=list(overrides))
    return hydra.utils.instantiate(config.model)


class Small(nnx.Module):
    """Two parameters, one of them nested, and a state that is not trained."""

    def __init__(self, *, rngs):
        self.linear = Linear(2, 3, use="hidden", rngs=rngs)
        self.alpha = nnx.Param(jnp.full((1,), 0.5), role="alpha")
        self.mean = nnx.BatchStat(jnp.arange(3.0))

    def __call__(self, x):
        self.mean.set_value(self.mean[...] + 1)
        return self.alpha[...] * self.linear(x) + self.mean[...]


def small():
    return Small(rngs=nnx.Rngs(0))


# -- layout --------------------------------------------------------------------------


def test_split_gives_every_array_by_path_and_merge_takes_them_back():
    layout = layout_of(small)
    model = small()
    params, state = layout.split(model)
    assert params.keys() == layout.specs.keys() == {"alpha", "linear/kernel"}
    assert state.keys() == {"mean"}
    np.testing.assert_array_equal(params["alpha"], [0.5])
    np.testing.assert_array_equal(state["mean"], [0, 1, 2])

    again = layout.split(layout.merge(params, state))
    for before, after in zip((params, state), again, strict=True):
        assert before.keys() == after.keys()
        for path in before:
            np.testing.assert_array_equal(before[path], after[path])


def test_the_merged_module_computes_with_the_arrays_it_was_given():
    layout = layout_of(small)
    arrays = {
        "linear/kernel": jnp.asarray([[1.0, 0.0, 2.0], [0.0, 1.0, 3.0]]),
        "alpha": jnp.asarray([10.0]),
    }
    model = layout.merge(arrays, {"mean": jnp.asarray([1.0, 2.0, 3.0])})
    # 10 * [1, 1] @ kernel + mean + 1
    np.testing.assert_array_equal(model(jnp.ones((1, 2))), [[12.0, 13.0, 54.0]])
    params, state = layout.split(model)
    np.testing.assert_array_equal(params["alpha"], [10.0])
    np.testing.assert_array_equal(state["mean"], [2.0, 3.0, 4.0])  # moved by the call


def test_merge_keeps_roles_and_counts_of_stacked_axes():
    make = default_model("model=tiny", "placement=peri")
    layout = layout_of(lambda: make(vocab_size=7, rngs=nnx.Rngs(0)))

    def merged():
        zeros = {path: jnp.zeros(spec.shape) for path, spec in layout.specs.items()}
        return layout.merge(zeros, {})

    assert layout_of(merged).specs == layout.specs


def test_layout_allocates_nothing_and_traces_under_jit():
    # 40 TB of parameters, described only.
    huge = functools.partial(Linear, 10**6, 10**7, use="hidden")
    layout = layout_of(lambda: huge(rngs=nnx.Rngs(0)))
    assert layout.specs["kernel"] == ParamSpec("matrix", (10**6, 10**7))
    assert layout.specs["kernel"].size == 10**13

    small_layout = layout_of(small)

    @jax.jit
    def loss(params, state):
        model = small_layout.merge(params, state)
        y = model(jnp.ones((1, 2))).sum()
        return y, small_layout.split(model)[1]

    _, state = loss(*small_layout.split(small()))
    np.testing.assert_array_equal(state["mean"], [1, 2, 3])


@pytest.mark.parametrize(
    "change, message",
    [
        (lambda p: p.pop("alpha"), "parameter alpha: expected an array, got none"),
        (lambda p: p.update(beta=jnp.ones(1)), "parameter beta: .* none of this name"),
        (
            lambda p: p.update(alpha=jnp.ones(3)),
            r"parameter alpha: expected shape \(1,\), got \(3,\)",
        ),
    ],
    ids=["missing", "unknown", "wrong shape"],
)
def test_arrays_that_do_not_fit_are_refused_by_name(change, message):
    layout = layout_of(small)
    params, state = layout.split(small())
    change(params)
    with pytest.raises(ValueError, match=message):
        layout.merge(params, state)


def test_state_that_does_not_fit_is_refused_by_name():
    layout = layout_of(small)
    params, _ = layout.split(small())
    with pytest.raises(ValueError, match="state mean: expected an array, got none"):
        layout.merge(params, {})


def test_path_name_joins_names_and_numbers():
    assert path_name(("blocks", "layers", 0, "kernel")) == "blocks/layers/0/kernel"


# -- roles ---------------------------------------------------------------------------


class Gain(nnx.Module):
    def __init__(self, d_model, *, rngs, **metadata):
        del rngs
        self.gain = nnx.Param(jnp.ones(d_model), **metadata)

    def __call__(self, x):
        return self.gain[...] * x


@pytest.mark.parametrize(
    "metadata, got", [({}, "None"), ({"role": "Gain"}, "'Gain'"), ({"role": ""}, "''")]
)
def test_a_parameter_without_a_valid_role_is_refused_by_its_path(metadata, got):
    def block(*, layer, like, rngs):
        linear = functools.partial(Linear, layer=layer)
        branch = functools.partial(part("ffn", "mlp"), 4, 8, linear=linear)
        return Block(
            4,
            {"ffn": (branch, functools.partial(Gain, **metadata), Placement())},
            residual=Add(),
            layer=layer,
            n_layers=2,
            rngs=rngs,
        )

    with pytest.raises(
        ValueError, match=f"layers/ffn/in_norm/gain: .*matrix.*sink, got {got} "
    ):
        layout_of(lambda: Stack(block, 2, rngs=nnx.Rngs(0)))


def test_a_variable_that_is_not_trained_needs_no_role():
    class Averaging(nnx.Module):
        def __init__(self):
            self.mean = nnx.BatchStat(jnp.zeros(2))

    assert layout_of(Averaging).specs == {}


@pytest.mark.parametrize(
    "norm, ffn",
    [(norm, "mlp") for norm in choices("norm")]
    + [("rmsnorm", ffn) for ffn in choices("ffn")],
)
def test_every_norm_and_ffn_has_valid_roles_at_every_site(norm, ffn):
    layout = layout_of(
        lambda: part("model", "tiny")(
            vocab_size=11,
            embedding_scale_init=1.0,
            norm=part("norm", norm),
            attention=functools.partial(part("attention", "gqa"), bias=True),
            ffn=part("ffn", ffn),
            residual=part("residual", "add"),
            placement=EVERYWHERE,
            init=part("init", "normal"),
            rngs=nnx.Rngs(0),
        )
    )
    assert {spec.role for spec in layout.specs.values()} <= set(ROLES)
    for path, spec in layout.specs.items():
        in_layer = path.startswith("blocks/layers/")
        assert (spec.n_stacked >= 1) == in_layer, path
        if in_layer:
            assert spec.shape[0] == 2, path
        own = spec.shape[spec.n_stacked :]
        assert len(own) == RANKS.get(spec.role, len(own)), path
        if path.endswith("/kernel"):
            head = path == "head/kernel"
            assert spec.role in (("head",) if head else ("matrix", "router"))
        assert spec.size == np.prod(spec.shape)


# -- the default model ---------------------------------------------------------------

# conf/config.yaml with the 256 bytes as tokens: 4 blocks of width 64, d_ff 256.
DEFAULT = {
    "table": ParamSpec("embedding", (256, 64)),
    "blocks/layers/attn/in_norm/gain": ParamSpec("gain", (4, 64), 1),
    "blocks/layers/attn/branch/q/kernel": ParamSpec("matrix", (4, 64, 64), 1),
    "blocks/layers/attn/branch/k/kernel": ParamSpec("matrix", (4, 64, 64), 1),
    "blocks/layers/attn/branch/v/kernel": ParamSpec("matrix", (4, 64, 64), 1),
    "blocks/layers/attn/branch/o/kernel": ParamSpec("matrix", (4, 64, 64), 1),
    "blocks/layers/ffn/in_norm/gain": ParamSpec("gain", (4, 64), 1),
    "blocks/layers/ffn/branch/up/kernel": ParamSpec("matrix", (4, 64, 256), 1),
    "blocks/layers/ffn/branch/down/kernel": ParamSpec("matrix", (4, 256, 64), 1),
    "final_norm/gain": ParamSpec("gain", (64,)),
    "head/kernel": ParamSpec("head", (64, 256)),
}


def test_parameters_of_the_default_model():
    make = default_model()
    layout = layout_of(lambda: make(vocab_size=256, rngs=nnx.Rngs(0)))
    assert layout.specs == DEFAULT
    # 2 * 256 * 64 + 4 * (4 * 64^2 + 2 * 64 * 256 + 2 * 64) + 64
    assert sum(spec.size for spec in layout.specs.values()) == 229_952


def test_gpt2_has_its_124_million_parameters():
    # transformers GPT2LMHeadModel("gpt2") has 124,439,808. Ours has no learned
    # positions (1024 * 768), and with these choices no biases in the linear maps
    # (12 * (4 * 768 + 3072 + 768)).
    make = default_model(
        "model=gpt2_124m", "norm=layernorm", "positions=rope", "attention=gqa"
    )
    layout = layout_of(lambda: make(vocab_size=50257, rngs=nnx.Rngs(0)))
    ours = sum(spec.size for spec in layout.specs.values())
    assert ours == 124_439_808 - 1024 * 768 - 12 * (4 * 768 + 3072 + 768)
