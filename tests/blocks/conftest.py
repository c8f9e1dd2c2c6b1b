"""Outside numbers for the modules of blocks, and what reading them needs."""

from pathlib import Path

import jax
import numpy as np
import pytest
from safetensors.flax import load_file

GOLDEN = Path(__file__).parents[1] / "golden"

# Largest allowed error as a fraction of the largest entry: a few roundings in float32,
# two units in the last place in bfloat16, two in float16.
HALF_TOLERANCE = {"fp32": 1e-5, "bf16": 1.6e-2, "fp16": 2e-3}


@pytest.fixture
def float64():
    """Turns float64 on for one test."""
    with jax.enable_x64(True):
        yield


@pytest.fixture(scope="session")
def golden_units():
    """golden_units("rms_llama/fp32/normal") -> {"in.x": ..., "out": ..., "dy": ...}."""
    arrays = load_file(GOLDEN / "units.safetensors")

    def case(name):
        prefix = f"{name}/"
        found = {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
        assert found, f"no case {name} in units.safetensors"
        return found

    return case


@pytest.fixture(scope="session")
def golden_layer():
    """golden_layer("qwen3") -> the arrays of the first layer of that model."""
    arrays = load_file(GOLDEN / "layers.safetensors")

    def layer(family):
        prefix = f"{family}/"
        found = {k[len(prefix) :]: v for k, v in arrays.items() if k.startswith(prefix)}
        assert found, f"no family {family} in layers.safetensors"
        return found

    return layer


@pytest.fixture
def assert_within():
    """assert_within(actual, expected, fraction of the largest expected entry)."""

    def check(actual, expected, fraction, name=""):
        actual = np.asarray(actual, np.float64)
        expected = np.asarray(expected, np.float64)
        assert actual.shape == expected.shape, name
        largest = np.abs(expected).max()
        np.testing.assert_allclose(
            actual, expected, rtol=0, atol=fraction * largest, err_msg=name
        )

    return check


@pytest.fixture
def half_tolerance():
    return HALF_TOLERANCE
