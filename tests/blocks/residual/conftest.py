"""One joint at a time: its parameters filled in, compiled once for all of its kind."""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx


@functools.partial(jax.jit, static_argnums=0)
def _compiled(graphdef, params, state, branch):
    joint = nnx.merge(graphdef, params)
    u, kept = joint.read(state, jnp.int32(0))
    return u, kept, joint.write(state, branch, kept, jnp.int32(0))


@pytest.fixture
def step():
    """step(joint, state, branch) -> input of the branch, kept, new state."""

    def run(joint, state, branch):
        return _compiled(*nnx.split(joint), jnp.asarray(state), jnp.asarray(branch))

    return run


@pytest.fixture
def fill():
    """fill(module, name=array, ...) -> the module with these parameters."""

    def run(module, **arrays):
        for path, value in arrays.items():
            variable = module
            for name in path.split("__"):
                variable = getattr(variable, name)
            assert variable.shape == np.shape(value), path
            variable.set_value(jnp.asarray(value))
        return module

    return run
