"""What every optimizer in conf/optimizer promises; a new file is covered at once."""

import inspect
from pathlib import Path

import hydra.utils
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from omegaconf import OmegaConf

from blocks.parameters import ROLES, ParamSpec

CONF = Path(__file__).parents[3] / "conf" / "optimizer"
NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))
N_LAYERS = 3

SPECS = {
    "layers/kernel": ParamSpec("matrix", (N_LAYERS, 4, 6), 1),
    "layers/down": ParamSpec("matrix", (N_LAYERS, 6, 4), 1),
    "layers/gain": ParamSpec("gain", (N_LAYERS, 6), 1),
    "layers/alpha": ParamSpec("alpha", (N_LAYERS, 1), 1),
    "embedding": ParamSpec("embedding", (7, 4)),
    "head": ParamSpec("head", (4, 7)),
    "bias": ParamSpec("bias", (4,)),
}


@pytest.fixture(params=NAMES)
def name(request):
    return request.param


@pytest.fixture
def node(name):
    """Keywords of the file; its parts are those that the class takes for None."""
    node = OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))
    *parts, last = node.pop("defaults")
    assert last == "_self_"
    assert {"/roles@roles": "standard"} in parts
    for part in parts:
        ((group, choice),) = part.items()
        key = group.partition("@")[2]
        if choice in ("standard", "quintic"):
            node[key] = None
            continue
        source = OmegaConf.load(
            CONF.parent / group[1:].split("@")[0] / f"{choice}.yaml"
        )
        node[key] = hydra.utils.instantiate(source)
    return node


@pytest.fixture
def make(node):
    """Keywords -> optimizer, on top of the defaults of its file."""
    cls = hydra.utils.get_class(node["_target_"])
    defaults = {k: v for k, v in node.items() if k != "_target_"}
    if "cap" in defaults:
        defaults["cap"] = 1e9  # so that what is left is the optimizer without it
    return lambda **keywords: cls(**{**defaults, **keywords})


def one(count):
    del count
    return jnp.float32(1)


def arrays(seed: int, dtype, specs=SPECS) -> dict[str, jax.Array]:
    rng = np.random.default_rng(seed)
    return {
        path: jnp.asarray(rng.standard_normal(spec.shape), dtype)
        for path, spec in specs.items()
    }


def train(optimizer, params, grads_of, n_steps, specs=SPECS, multiplier=one):
    """Parameters after `n_steps` with gradients that do not depend on them."""
    tx = optimizer.transform(specs, multiplier)
    state = tx.init(params)
    update = jax.jit(tx.update)
    for t in range(n_steps):
        updates, state = update(grads_of(t), state, params)
        params = optax.apply_updates(params, updates)
    return params


def traced_values(optimizer) -> dict[str, float]:
    return {key: getattr(optimizer, key) for key in type(optimizer).traced}


def test_the_known_optimizers_are_found():
    assert {"adamw", "muon", "sgd"} <= set(NAMES)


def test_yaml_names_every_keyword(node, name):
    """With the default of the class, if the file is the one named as its module."""
    target = node.pop("_target_")
    cls = hydra.utils.get_class(target)
    for function in (cls, cls.check):
        parameters = inspect.signature(function).parameters
        defaults = {name: p.default for name, p in parameters.items()}
        assert defaults["roles"] is None
        assert node.keys() == defaults.keys()
        if name == target.split(".")[-2]:
            assert dict(node) == defaults
    assert set(cls.traced) <= set(node)
    cls.check(**node)


def test_every_parameter_is_in_exactly_one_group_whatever_its_role(make):
    specs = {role: ParamSpec(role, (2, 3)) for role in ROLES}
    groups = make().groups(specs)
    assert groups.keys() == specs.keys()
    assert all(isinstance(group, str) for group in groups.values())
    params = arrays(0, jnp.float32, specs)
    ones = {path: jnp.ones_like(p) for path, p in params.items()}
    moved = train(make(), params, lambda t: ones, 1, specs)
    for path, p in params.items():
        assert np.all(moved[path] != p), path


def test_stacked_layers_train_as_they_would_one_by_one(make, x64):
    def unstack(tree, spec_of=lambda spec: spec):
        out = {}
        for path, value in tree.items():
            if SPECS[path].n_stacked:
                for layer in range(N_LAYERS):
                    out[f"{path}/{layer}"] = spec_of(value, layer)
            else:
                out[path] = value
        return out

    specs = unstack(SPECS, lambda spec, layer: ParamSpec(spec.role, spec.shape[1:], 0))
    slices = lambda tree: unstack(tree, lambda x, layer: x[layer])  # noqa: E731
    params = arrays(0, jnp.float64)
    grads = [arrays(1 + t, jnp.float64) for t in range(5)]
    together = train(make(), params, lambda t: grads[t], 5)
    apart = train(make(), slices(params), lambda t: slices(grads[t]), 5, specs)
    for path, value in slices(together).items():
        np.testing.assert_allclose(value, apart[path], rtol=1e-12, atol=1e-13)


def test_zero_gradient_moves_only_decayed_parameters_by_rate_times_decay(make, x64):
    optimizer = make(learning_rate=0.25, weight_decay=0.125)
    params = arrays(0, jnp.float64)
    zeros = jax.tree.map(jnp.zeros_like, params)
    moved = train(optimizer, params, lambda t: zeros, 1)
    groups = optimizer.groups(SPECS)
    decaying = ("decay", getattr(optimizer, "group", None))
    decayed = {path for path, group in groups.items() if group in decaying}
    assert "layers/kernel" in decayed
    assert not decayed & {"layers/gain", "layers/alpha", "embedding", "bias"}
    for path, p in params.items():
        expected = p * (1 - 0.25 * 0.125) if path in decayed else p
        np.testing.assert_allclose(moved[path], expected, rtol=1e-15)


def test_clipping_uses_the_norm_of_all_gradients(make, x64):
    params = arrays(0, jnp.float64)
    # Norms about 6, 24 and 0.6: clipped, clipped more, untouched.
    grads = [
        {path: size * g for path, g in arrays(1 + t, jnp.float64).items()}
        for t, size in enumerate((0.5, 2.0, 0.05))
    ]
    norms = [np.sqrt(sum(np.sum(np.square(g)) for g in gs.values())) for gs in grads]
    assert norms[0] > 2 < norms[1]
    assert norms[2] < 2
    by_hand = [
        {path: g * min(1, 2 / norm) for path, g in gs.items()}
        for gs, norm in zip(grads, norms, strict=True)
    ]
    clipped = train(make(clip_norm=2.0), params, lambda t: grads[t], 3)
    expected = train(make(clip_norm=None), params, lambda t: by_hand[t], 3)
    unclipped = train(make(clip_norm=None), params, lambda t: grads[t], 3)
    for path in params:
        np.testing.assert_allclose(clipped[path], expected[path], rtol=1e-12)
    assert not np.allclose(clipped["bias"], unclipped["bias"], rtol=1e-6)


def test_every_group_follows_the_schedule_counted_from_zero(make, x64):
    if hasattr(make(), "evaluated"):
        pytest.skip("averages its steps: an update is not in proportion to the rate")
    factors = jnp.array([0.0, 0.5, 1.0])
    params = arrays(0, jnp.float64)
    grads = [arrays(1 + t, jnp.float64) for t in range(3)]
    plain = make().transform(SPECS, one)
    scheduled = make().transform(SPECS, lambda count: factors[count])
    a, b = plain.init(params), scheduled.init(params)
    update_plain, update_scheduled = jax.jit(plain.update), jax.jit(scheduled.update)
    for t in range(3):
        full, a = update_plain(grads[t], a, params)
        part, b = update_scheduled(grads[t], b, params)
        for path in params:
            np.testing.assert_allclose(part[path], factors[t] * full[path], rtol=1e-14)


@pytest.mark.parametrize(
    "dtype, wide", [("float32", "float64"), ("bfloat16", "float32")]
)
def test_state_keeps_float32_and_updates_the_dtype_of_the_parameter(
    make, x64, dtype, wide
):
    # Wider hyperparameters than parameters: the case that drifts.
    keywords = {k: jnp.asarray(v, wide) for k, v in traced_values(make()).items() if v}
    tx = make(**keywords).transform(SPECS, lambda count: jnp.asarray(1, wide))
    params = arrays(0, dtype)
    state = tx.init(params)
    floats = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x, jnp.floating)]
    assert floats
    assert {x.dtype for x in floats} == {jnp.dtype("float32")}

    def step(carry, _):
        params, state = carry
        updates, state = tx.update(params, state, params)
        return (optax.apply_updates(params, updates), state), updates

    # A scan refuses a carry that changes its dtype, weak or not.
    (after, _), updates = jax.lax.scan(step, (params, state), None, length=3)
    assert {u.dtype for u in updates.values()} == {jnp.dtype(dtype)}
    assert all(np.all(np.isfinite(p.astype(jnp.float32))) for p in after.values())


def test_float64_parameters_get_float64_state(make, x64):
    state = make().transform(SPECS, one).init(arrays(0, jnp.float64))
    floats = [x for x in jax.tree.leaves(state) if jnp.issubdtype(x, jnp.floating)]
    assert {x.dtype for x in floats} == {jnp.dtype("float64")}


def test_updates_are_finite_at_any_size_of_gradient(make):
    params = arrays(0, jnp.float32)

    def after(size):
        grads = {path: size * g for path, g in arrays(1, jnp.float32).items()}
        return train(make(), params, lambda t: grads, 3)

    many = jax.jit(jax.vmap(after))(jnp.array([0.0, 1e-30, 1e-12, 1.0, 1e12]))
    assert all(np.all(np.isfinite(p)) for p in many.values())


def test_one_trace_trains_members_with_different_numbers(make):
    traces = []
    params = arrays(0, jnp.float32)
    grads = [arrays(1 + t, jnp.float32) for t in range(4)]

    @jax.jit
    @jax.vmap
    def member(values):
        traces.append(1)
        return train(make(**values), params, lambda t: grads[t], 4)

    def values_of(factor):
        # Factors below 1 keep every number in its range.
        return {k: jnp.float32(factor * v) for k, v in traced_values(make()).items()}

    factors = (1.0, 0.9, 0.5)
    stacked = jax.tree.map(lambda *x: jnp.stack(x), *map(values_of, factors))
    many = member(stacked)
    member(jax.tree.map(lambda x: x[::-1], stacked))
    assert len(traces) == 1
    for i, factor in enumerate(factors):
        alone = train(make(**values_of(factor)), params, lambda t: grads[t], 4)
        for path in params:
            np.testing.assert_allclose(many[path][i], alone[path], rtol=1e-5, atol=1e-6)
    assert not np.array_equal(many["bias"][0], many["bias"][2])


def test_plain_and_traced_numbers_give_the_same_float32_bits(make):
    # 1 - b2 in float64, rounded, differs from 1 - b2 in float32 by 5e-5 for b2 = 0.999.
    keys = {"b2": 0.999, "adam_b2": 0.999, "momentum": 0.999}
    keywords = {k: v for k, v in keys.items() if k in traced_values(make())}
    params = arrays(0, jnp.float32)
    grads = arrays(1, jnp.float32)
    plain = train(make(**keywords), params, lambda t: grads, 3)
    arrays32 = {k: jnp.float32(v) for k, v in keywords.items()}
    traced = train(make(**arrays32), params, lambda t: grads, 3)
    for path in params:
        np.testing.assert_array_equal(plain[path], traced[path])


def test_other_parameters_than_described_are_refused(make):
    tx = make().transform(SPECS, one)
    params = arrays(0, jnp.float32)
    missing = {k: v for k, v in params.items() if k != "bias"}
    with pytest.raises(ValueError, match="bias"):
        tx.init(missing)
    with pytest.raises(ValueError, match="parameters"):
        tx.update(params, tx.init(params))


@pytest.mark.parametrize("value", [-1.0, float("nan"), float("inf")])
def test_every_traced_number_is_refused_out_of_range_by_name(node, value):
    cls = hydra.utils.get_class(node["_target_"])
    for key in cls.traced:
        with pytest.raises(ValueError, match=f"^{key}: "):
            cls.check(**{key: value})


def test_clip_norm_of_zero_is_refused_and_none_is_not(node):
    cls = hydra.utils.get_class(node["_target_"])
    cls.check(clip_norm=None)
    with pytest.raises(ValueError, match="null"):
        cls.check(clip_norm=0.0)
