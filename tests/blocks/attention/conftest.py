"""Outside numbers, random parameters, and parameters as the oracle wants them."""

from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.flax import load_file

GOLDEN = Path(__file__).parents[2] / "golden" / "attention.safetensors"


@pytest.fixture(scope="session")
def golden_attention():
    """golden_attention("llama3/0") -> {"x": ..., "y": ...}; also "units/..."."""
    arrays = load_file(GOLDEN)

    def case(name):
        prefix = f"{name}/"
        found = {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
        assert found, f"no case {name} in {GOLDEN.name}"
        return found

    return case


@pytest.fixture
def in_float64():
    """in_float64(module): the module, or its shapes, with random float64 parameters."""

    def draw(module, spread=1.0):
        rng = np.random.default_rng(7)
        graphdef, params, rest = nnx.split(module, nnx.Param, ...)
        drawn = jax.tree.map(
            lambda leaf: jnp.asarray(spread * rng.normal(size=leaf.shape)), params
        )
        return nnx.merge(graphdef, drawn, rest)

    return draw


@pytest.fixture
def weights():
    """weights(linear): (kernel, bias or None) as float64 arrays."""

    def of(linear):
        bias = None if linear.bias is None else np.asarray(linear.bias[...], np.float64)
        return np.asarray(linear.kernel[...], np.float64), bias

    return of
