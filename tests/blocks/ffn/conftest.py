"""Feed-forward parts built from their YAML files, and their oracles."""

import functools
from pathlib import Path

import hydra
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from omegaconf import OmegaConf
from safetensors.flax import load_file

from blocks.oracle import ffn as oracle
from blocks.oracle import moe as oracle_moe

ROOT = Path(__file__).parents[3]
CONF = ROOT / "conf" / "ffn"


@pytest.fixture(scope="session")
def golden_ffn():
    """golden_ffn("llama3/1") -> the arrays below that name in ffn.safetensors."""
    arrays = load_file(ROOT / "tests" / "golden" / "ffn.safetensors")

    def case(name):
        prefix = f"{name}/"
        found = {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
        assert found, f"no case {name} in ffn.safetensors"
        return found

    return case


@pytest.fixture
def node_of():
    """node_of("swiglu") -> the YAML as a dict."""
    return lambda name: OmegaConf.to_container(OmegaConf.load(CONF / f"{name}.yaml"))


@pytest.fixture
def make_ffn():
    """make_ffn("swiglu", **replaced keywords) -> factory."""

    def make(name, **keywords):
        return hydra.utils.instantiate(
            OmegaConf.load(CONF / f"{name}.yaml"), **keywords
        )

    return make


@pytest.fixture
def randomized():
    """randomized(module): every parameter and balancing bias drawn, so that each shows."""

    def draw(module, seed=7, dtype=jnp.float32, scale=0.6):
        generator = np.random.default_rng(seed)
        for path, variable in nnx.to_flat_state(nnx.state(module)):
            if isinstance(variable, nnx.Param) or path[-1] == "balance_bias":
                value = scale * generator.normal(size=variable.shape)
                variable.set_value(jnp.asarray(value, dtype))
        return module

    return draw


@functools.partial(jax.jit, static_argnums=0)
def _call(graphdef, state, x):
    module = nnx.merge(graphdef, state)
    return module(x), nnx.state(module)


def run(module, x):
    """module(x), compiled once per structure and shape, with its state brought back."""
    y, state = _call(*nnx.split(module), x)
    nnx.update(module, state)
    return y


@pytest.fixture(name="run")
def run_fixture():
    return run


def merged(graphdef, params, rest):
    """nnx.merge with new variables for `rest`: a trace may not change those outside."""
    return nnx.merge(graphdef, params, jax.tree.map(lambda leaf: leaf, rest))


@pytest.fixture(name="merged")
def merged_fixture():
    return merged


@pytest.fixture
def oracle_of():
    """oracle_of(node, module, x): the YAML's formula with the module's parameters."""

    def linear(module):
        bias = None if module.bias is None else np.asarray(module.bias[...], np.float64)
        return np.asarray(module.kernel[...], np.float64), bias

    def keywords(node, *names):
        return {name: node[name] for name in names}

    def choices_of(node, router, x):
        params = {"kernel": np.asarray(router.kernel[...], np.float64)}
        names = ("top_k", "renormalize", "scale", "n_groups", "top_groups")
        if node["_target_"].endswith(".HashRouter"):
            params["table"] = np.asarray(router.table[...])
            more = keywords(node, "score", "renormalize", "scale")
            return oracle_moe.hash_router(x, np.arange(len(x)), **params, **more)
        if node["_target_"].endswith(".SoftmaxRouter"):
            if router.bias is not None:
                params["bias"] = np.asarray(router.bias[...], np.float64)
            return oracle_moe.softmax_router(x, **params, **keywords(node, *names))
        params["balance_bias"] = np.asarray(router.balance_bias[...], np.float64)
        return oracle_moe.sigmoid_router(x, **params, **keywords(node, "score", *names))

    def compute(node, module, x):
        kind = node["_target_"].rsplit(".", 1)[-1]
        if kind == "MoE":
            graphdef, state = nnx.split(module.experts)
            experts = [
                functools.partial(
                    compute,
                    node["expert"],
                    nnx.merge(graphdef, jax.tree.map(lambda p, e=e: p[e], state)),
                )
                for e in range(node["n_experts"])
            ]
            shared = gate = None
            if node["n_shared"]:
                shared = functools.partial(compute, node["expert"], module.shared)
            if node["shared_gate"]:
                gate = np.asarray(module.shared_gate[...], np.float64)
            return oracle_moe.moe(
                x,
                choices_of(node["router"], module.router, x),
                experts,
                shared=shared,
                shared_gate=gate,
                weigh_input=node["weigh_input"],
            )
        maps = {"up": linear(module.up), "down": linear(module.down)}
        if kind == "MLP":
            activation = getattr(oracle, node["activation"])
            return oracle.mlp(x, **maps, activation=activation)
        maps["gate"] = linear(module.gate)
        if kind == "SwiGLU":
            return oracle.swiglu(x, **maps)
        if kind == "ClampedSwiGLU":
            numbers = keywords(node, "limit", "alpha", "offset")
            return oracle.clamped_swiglu(x, **maps, **numbers)
        assert kind == "GLU", f"no oracle for {kind}"
        return oracle.glu(x, **maps, activation=getattr(oracle, node["activation"]))

    return compute
