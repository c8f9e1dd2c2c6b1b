"""What every attention promises. Each conf/attention/*.yaml is found and tested."""

import functools
import inspect
import typing
from pathlib import Path

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from hypothesis import given, settings
from hypothesis import strategies as st
from jax.test_util import check_grads
from omegaconf import OmegaConf

from blocks.attention.mla import LatentAttention
from blocks.attention.shared_kv import SharedKeyValueAttention
from blocks.oracle import attention as oracle
from blocks.oracle import norms, shared_kv
from blocks.oracle import positions as positions_oracle
from blocks.parameters import ROLES

CONF = Path(__file__).parents[3] / "conf"
CHOICES = sorted(path.stem for path in (CONF / "attention").glob("*.yaml"))
D_MODEL, N_HEADS = 16, 4
SHAPE = BATCH, SEQ = 2, 6
SMALL = {"window": 3, "chunk": 4, "softcap": 1.5}  # so that six tokens feel them
SMALL |= {"d_rope": 2, "compressor": {"rate": 2}, "indexer": {"top_k": 1}}
# Their maps are other ones, and keys are of each head or of all.
SHARED = ("deepseek_v4", "deepseek_v4_heavy", "deepseek_v4_sparse")
LATENT = ("mla", *SHARED)
NOT_OF_A_CONFIG = ("n_kv_heads", "d_head")  # sizes of the model


@pytest.fixture(params=CHOICES)
def choice(request):
    return request.param


@functools.cache
def yaml(choice):
    return OmegaConf.to_container(OmegaConf.load(CONF / "attention" / f"{choice}.yaml"))


@functools.cache
def node(choice):
    """The choice as a run gets it, with the norms and positions that belong to it."""
    with hydra.initialize_config_dir(str(CONF), version_base=None):
        config = hydra.compose("config", [f"attention={choice}"])
    found = OmegaConf.to_container(config.model.attention)
    for key, value in SMALL.items():
        if found.get(key) is not None:
            inside = isinstance(value, dict)
            found[key] = {**found[key], **value} if inside else value
    return found


def make(choice, d_model=D_MODEL, n_heads=N_HEADS, *, key=None, **sizes):
    key = jax.random.key(0) if key is None else key
    factory = hydra.utils.instantiate(node(choice))
    return factory(d_model, n_heads, **sizes, rngs=nnx.Rngs(params=key))


def drawn(choice, *sizes, spread=0.5, **keywords):
    """The attention with random float32 parameters; drawn by NumPy, as it is quicker."""
    rng = np.random.default_rng(1)
    shapes = nnx.eval_shape(lambda: make(choice, *sizes, **keywords))
    graphdef, params, rest = nnx.split(shapes, nnx.Param, ...)
    filled = jax.tree.map(
        lambda leaf: jnp.asarray(spread * rng.normal(size=leaf.shape), jnp.float32),
        params,
    )
    return nnx.merge(graphdef, filled, rest)


def tokens(dtype=np.float32, d_model=D_MODEL, shape=SHAPE):
    rng = np.random.default_rng(0)
    return rng.normal(size=(shape[0] * shape[1], d_model)).astype(dtype)


def test_there_are_choices():
    assert {"gqa", "qwen3", "olmo2", "gpt_oss", "gemma2", "mla"} <= set(CHOICES)


def test_yaml_names_every_scalar_keyword(choice):
    first = (CONF / "attention" / f"{choice}.yaml").read_text().splitlines()[0]
    assert first == "# @package model.attention"
    found = {k: v for k, v in yaml(choice).items() if not k.startswith("_")}
    made = hydra.utils.get_class(yaml(choice)["_target_"])
    hints = typing.get_type_hints(made.__init__)
    parameters = inspect.signature(made.__init__).parameters
    scalars = {
        name
        for name, hint in hints.items()
        if {bool, int, float, str} & {hint, *typing.get_args(hint)}
        and parameters[name].kind is inspect.Parameter.KEYWORD_ONLY
        and name not in NOT_OF_A_CONFIG
    }
    assert scalars <= set(found)
    assert set(found) <= set(parameters) | {"defaults"}
    accepted = inspect.signature(made.check).parameters
    made.check(**{k: v for k, v in found.items() if k in accepted})
    assert set(made.traced) <= set(found)


def test_default_choice_has_the_defaults_of_the_class():
    made = hydra.utils.get_class(yaml("gqa")["_target_"])
    defaults = inspect.signature(made.__init__).parameters
    for key, value in yaml("gqa").items():
        if not key.startswith("_") and key != "defaults":
            assert value == defaults[key].default, key


def test_a_norm_chosen_by_hand_wins_over_the_one_of_the_choice():
    with hydra.initialize_config_dir(str(CONF), version_base=None):
        chosen = "norm@model.attention.qk_norm=layernorm"
        for overrides in (["attention=qwen3", chosen], [chosen, "attention=qwen3"]):
            config = hydra.compose("config", overrides)
            assert config.model.attention.qk_norm._target_.endswith("LayerNorm")


def test_parameters_are_float32_and_have_a_role(choice):
    for path, variable in nnx.to_flat_state(nnx.state(make(choice), nnx.Param)):
        assert variable.dtype == jnp.float32, path
        assert not variable[...].weak_type, path
        assert variable.get_metadata()["role"] in ROLES, path


@pytest.mark.parametrize("dtype", [jnp.float32, jnp.bfloat16, jnp.float16])
def test_keeps_shape_and_dtype_and_gradients_are_finite(choice, dtype):
    graphdef, params, rest = nnx.split(drawn(choice), nnx.Param, ...)
    weights = tokens()

    @jax.jit
    def value_and_gradients(params, x):
        def loss(params, x):
            y = nnx.merge(graphdef, params, rest)(x, SHAPE)
            assert (y.shape, y.dtype) == (x.shape, dtype)
            return jnp.sum(weights * y.astype(jnp.float32))

        return jax.value_and_grad(loss, (0, 1))(params, x)

    # float16 ends at 65504, which gradients in kernels soon pass.
    largest = 10.0 if dtype == jnp.float16 else 1e4
    for scale in (0.0, 1e-20, 1.0, largest):
        x = jnp.asarray(scale * tokens()).astype(dtype)
        for array in jax.tree.leaves(value_and_gradients(params, x)):
            assert jnp.isfinite(array).all(), scale


def test_float64_is_computed_in_float64(choice, float64, in_float64):
    assert_equals_the_oracle(choice, in_float64(drawn(choice)), rtol=1e-10)


def test_equals_the_oracle(choice):
    assert_equals_the_oracle(choice, drawn(choice), np.float32, rtol=2e-5)


# Hypothesis draws sizes that nobody would write down; few, since each is compiled.
@settings(max_examples=6, deadline=None, derandomize=True)
@given(
    choice=st.sampled_from(CHOICES),
    n_kv_heads=st.integers(1, 3),
    group=st.integers(1, 3),
    d_head=st.sampled_from([2, 4, 6, 8]),
    seq=st.integers(1, 9),
)
def test_any_sizes_equal_the_oracle(choice, n_kv_heads, group, d_head, seq):
    sizes = {"d_head": d_head}
    if choice not in LATENT:
        sizes["n_kv_heads"] = n_kv_heads
    attention = drawn(choice, 10, n_kv_heads * group, **sizes)
    assert_equals_the_oracle(
        choice, attention, np.float32, rtol=2e-5, n_heads=n_kv_heads * group,
        d_model=10, shape=(2, seq), **sizes,
    )  # fmt: skip


def assert_equals_the_oracle(
    choice, attention, dtype=np.float64, *, rtol, shape=SHAPE, d_model=D_MODEL, **sizes
):
    x = tokens(dtype, d_model, shape)
    y = jax.jit(lambda x: attention(x, shape))(jnp.asarray(x))
    assert y.dtype == dtype
    sequences = x.astype(np.float64).reshape(*shape, d_model)
    expected = oracle_of(choice, attention, **{"n_heads": N_HEADS, **sizes})
    expected = np.concatenate([expected(sequence) for sequence in sequences])
    atol = rtol * np.abs(expected).max()
    np.testing.assert_allclose(y, expected, rtol=0, atol=atol)


def oracle_of(choice, attention, *, n_heads, n_kv_heads=None, d_head=None):
    """The oracle with the parameters of the module and the settings of the config."""
    del d_head  # it reads that off the kernels
    config, arrays = node(choice), {}
    for path, variable in nnx.to_flat_state(nnx.state(attention, nnx.Param)):
        arrays["/".join(path)] = np.asarray(variable[...], np.float64)
    maps = {
        path.removesuffix("/kernel"): (
            kernel,
            arrays.get(path.replace("kernel", "bias")),
        )
        for path, kernel in arrays.items()
        if path.endswith("/kernel")
    }
    if "gate/proj" in maps:
        maps["gate"] = maps.pop("gate/proj")
    position = functools.partial(
        positions_oracle.rope, base=config["positions"]["base"]
    )
    if config["_target_"].endswith("GatedDeltaNet"):
        return oracle_of_delta(config, arrays, maps, position, n_heads, n_kv_heads)
    if config["_target_"].endswith("SharedKeyValueAttention"):
        return oracle_of_shared(config, arrays, maps, n_heads)
    if config["_target_"].endswith("LatentAttention"):
        function, settings = oracle.latent_attention, {"positions": position}
        norm_config, site = config["latent_norm"], ("q_norm", "kv_norm")
    else:
        function = oracle.attention
        settings = {"sinks": arrays.get("sinks"), "tau": arrays.get("tau")}
        settings |= {"q_positions": position, "k_positions": position}
        settings["n_kv_heads"] = n_kv_heads
        norm_config, site = config.get("qk_norm"), ("q_norm", "k_norm")
        if "v_norm/gain" in arrays:
            site += ("v_norm",)
    if norm_config is not None:
        settings |= {s: oracle_norm(norm_config, arrays, s) for s in site}
    accepted = set(inspect.signature(function).parameters) - set(settings) - set(maps)
    settings |= {k: config[k] for k in config if k in accepted}
    return functools.partial(function, **maps, **settings, n_heads=n_heads)


def oracle_of_delta(config, arrays, maps, positions, n_heads, n_kv_heads):
    key_norm = functools.partial(norms.l2norm, eps=config["qk_norm"]["eps"])
    head_norm = functools.partial(
        norms.rmsnorm,
        gain=arrays["head_norm/gain"],
        eps=config["head_norm"]["eps"],
    )
    return functools.partial(
        oracle.gated_deltanet,
        **maps,
        **{f"{name}_taps": arrays[f"{name}_conv/taps"] for name in "qkv"},
        log_rate=arrays["log_rate"],
        offset=arrays["offset"],
        q_norm=key_norm,
        k_norm=key_norm,
        head_norm=head_norm,
        n_heads=n_heads,
        n_key_heads=n_kv_heads,
        positions=positions,
    )


def oracle_of_shared(config, arrays, maps, n_heads):
    norm = functools.partial(oracle_norm, config["latent_norm"], arrays)
    settings = {k: config[k] for k in ("d_rope", "window", "scale")}
    settings |= {k: maps[k] for k in ("q_down", "q_up", "kv")}

    def compressor_at(place):
        overlapping = config["compressor"]["_target_"].endswith("OverlappingCompressor")
        return dict(
            kv=maps[f"{place}/kv"],
            gate=maps[f"{place}/gate"],
            slots=arrays[f"{place}/slots"],
            norm=norm(f"{place}/norm"),
            rate=config["compressor"]["rate"],
            overlapping=overlapping,
        )

    if config["compressor"] is not None:
        settings["compressor"] = compressor_at("compressor")
    if config["indexer"] is not None:
        settings["indexer"] = dict(
            q=maps["indexer/q"],
            weigh=maps["indexer/weigh"],
            compressor=compressor_at("indexer/compressor"),
            n_heads=config["indexer"]["n_heads"],
            top_k=config["indexer"]["top_k"],
        )
    return functools.partial(
        shared_kv.shared_kv_attention,
        **settings,
        groups=arrays["output/groups/kernel"],
        o=maps["output/o"],
        q_norm=norm("q_norm"),
        kv_norm=norm("kv_norm"),
        head_norm=functools.partial(
            norms.rmsnorm, gain=1.0, eps=config["head_norm"]["eps"]
        ),
        sinks=arrays["sinks"],
        n_heads=n_heads,
        positions=functools.partial(turned_at, base=config["positions"]["base"]),
    )


def turned_at(x, at, *, base):
    """Each row at a position of its own, backwards where that is negative."""
    rows = []
    for row, p in zip(x, at, strict=True):
        halves = row.reshape(2, -1).copy()
        halves[1] *= 1 if p >= 0 else -1
        spread = np.tile(halves.reshape(-1), (abs(p) + 1, 1))
        turned = positions_oracle.rope(spread, base=base)[-1].reshape(2, -1)
        turned[1] *= 1 if p >= 0 else -1
        rows.append(turned.reshape(-1))
    return np.array(rows).reshape(x.shape)


def oracle_norm(config, arrays, site):
    if config["_target_"].endswith("L2Norm"):
        return lambda x: x / np.linalg.norm(x, axis=-1, keepdims=True)
    if f"{site}/gain" not in arrays:
        return None  # the query has no latent
    return functools.partial(
        norms.rmsnorm, gain=arrays[f"{site}/gain"], eps=config["eps"]
    )


def test_gradient_equals_central_differences(choice, float64, in_float64):
    graphdef, params, rest = nnx.split(in_float64(drawn(choice), 0.4), nnx.Param, ...)
    x = jnp.asarray(tokens(np.float64, shape=(1, 5)))
    check_grads(
        jax.jit(lambda p, x: nnx.merge(graphdef, p, rest)(x, (1, 5))),
        (params, x),
        order=1,
        modes=["rev"],
        atol=1e-6,
        rtol=1e-6,
        # Small: the third derivative of a delta rule makes 5e4 eps^2 of error.
        eps=2e-6,
    )


def test_later_tokens_and_other_sequences_are_not_seen(choice):
    attention = drawn(choice)

    @jax.jit
    @jax.grad
    def gradient(x):
        y = attention(x, SHAPE).reshape(*SHAPE, D_MODEL)
        return jnp.sum(y[1, 3] ** 2)

    found = gradient(jnp.asarray(tokens())).reshape(*SHAPE, D_MODEL)
    assert (found[0] == 0).all()
    assert (found[1, 4:] == 0).all()
    # The fourth token is the last of three, or of its chunk of four; entries of two
    # tokens go back to the first.
    is_short = node(choice).get("window") and not node(choice).get("compressor")
    first = 1 if is_short else 0
    assert (found[1, :first] == 0).all()
    assert (jnp.abs(found[1, first:4]).max(axis=-1) > 0).all()


@pytest.mark.parametrize("width", [1, D_MODEL - 1, D_MODEL + 1])
def test_wrong_width_is_refused(choice, width):
    attention = nnx.eval_shape(lambda: make(choice))
    with pytest.raises(ValueError, match=rf"{D_MODEL}.*{width}"):
        jax.eval_shape(lambda x: attention(x, SHAPE), jnp.ones((BATCH * SEQ, width)))


def test_shape_that_does_not_fit_the_tokens_is_refused(choice):
    attention = drawn(choice)
    with pytest.raises(ValueError, match=r"batch \* seq = 2 \* 4 tokens, got"):
        attention(jnp.ones((10, D_MODEL)), (2, 4))


def test_scanned_looped_vmapped_and_eager_are_one_function(choice):
    @nnx.vmap(in_axes=0, out_axes=0)
    def build(key):
        return make(choice, key=key)

    graphdef, stacked = nnx.split(build(jax.random.split(jax.random.key(0), 3)))
    x = jnp.asarray(tokens())

    def apply(x, state):
        return nnx.merge(graphdef, state)(x, SHAPE)

    looped, eager = [x], [x]
    for i in range(3):
        state = jax.tree.map(lambda leaf, i=i: leaf[i], stacked)
        looped.append(jax.jit(apply)(looped[-1], state))
        eager.append(apply(eager[-1], state))

    step = lambda x, state: (apply(x, state),) * 2  # noqa: E731
    _, scanned = jax.lax.scan(step, x, stacked)
    mapped = jax.vmap(apply)(jnp.stack(looped[:-1]), stacked)
    for found in (scanned, mapped, jnp.stack(eager[1:])):
        for y, expected in zip(found, looped[1:], strict=True):
            atol = 1e-5 * jnp.abs(expected).max()
            np.testing.assert_allclose(y, expected, rtol=0, atol=atol)


def test_initial_values_do_not_depend_on_the_settings(choice):
    # What a settings change draws must not shift the maps that both have.
    if choice in LATENT:
        made = (LatentAttention, SharedKeyValueAttention)
        assert isinstance(make(choice), made)
        return
    plain, other = make("gqa"), make(choice)
    for name in "qkvo":
        np.testing.assert_array_equal(
            getattr(plain, name).kernel[...], getattr(other, name).kernel[...]
        )
