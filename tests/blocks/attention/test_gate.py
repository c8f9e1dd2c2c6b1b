"""The sigmoid gate of an attention."""

import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.attention.gate import SigmoidGate


@pytest.mark.parametrize("per, d_gate", [("feature", 6), ("head", 2)])
def test_a_gate_of_zero_halves(per, d_gate):
    gate = SigmoidGate(4, 2, 3, per=per, rngs=nnx.Rngs(0))
    assert gate.proj.kernel.shape == (4, d_gate)
    assert gate.proj.bias is None
    heads = jnp.arange(12.0).reshape(2, 6)
    np.testing.assert_array_equal(gate(jnp.zeros((2, 4)), heads), heads / 2)


def test_a_gate_per_head_opens_whole_heads():
    gate = SigmoidGate(2, 2, 3, per="head", rngs=nnx.Rngs(0))
    gate.proj.kernel.set_value(jnp.array([[100.0, -100.0], [0.0, 0.0]]))
    y = gate(jnp.array([[1.0, 0.0]], jnp.bfloat16), jnp.ones((1, 6), jnp.bfloat16))
    assert y.dtype == jnp.bfloat16
    np.testing.assert_array_equal(y, [[1, 1, 1, 0, 0, 0]])


def test_linear_factory_hears_the_use():
    calls = []

    def linear(d_in, d_out, *, use, bias, rngs):
        calls.append((d_in, d_out, use, bias))

    SigmoidGate(4, 2, 3, linear=linear, rngs=nnx.Rngs(0))
    assert calls == [(4, 6, "hidden", False)]


def test_unknown_per_is_refused():
    with pytest.raises(ValueError, match="per must be one of feature, head, got 'all'"):
        SigmoidGate.check(per="all")
