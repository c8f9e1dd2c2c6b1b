"""Inner widths and the parameters they cost."""

import math

import jax
import pytest
from flax import nnx
from hypothesis import given
from hypothesis import strategies as st

from blocks.ffn.mlp import MLP
from blocks.ffn.swiglu import SwiGLU
from blocks.ffn.width import inner_width


@pytest.mark.parametrize(
    "d_model, ratio, multiple_of, d_ff",
    [
        (768, 4.0, 1, 3072),  # GPT-2
        (4096, 8 / 3, 256, 11008),  # Llama-2-7B
        (5120, 8 / 3, 256, 13824),  # Llama-2-13B
        (768, math.pi, 64, 2432),  # jingyaogong/minimind
        (768, 8 / 3, 1, 2048),
        (99, 8 / 3, 1, 264),
        (50, 2.2, 1, 110),  # 110.00000000000001 as a float
        (100, 8 / 3, 1, 267),
    ],
)
def test_widths_of_published_models(d_model, ratio, multiple_of, d_ff):
    assert inner_width(d_model, None, ratio, multiple_of) == d_ff


def test_a_given_width_wins():
    assert inner_width(768, 5, 4.0, 64) == 5


@given(st.integers(1, 10_000), st.floats(0.1, 10), st.sampled_from([1, 8, 64, 256]))
def test_rounded_up_by_less_than_a_multiple(d_model, ratio, multiple_of):
    d_ff = inner_width(d_model, None, ratio, multiple_of)
    assert d_ff % multiple_of == 0
    assert -1e-5 < d_ff - ratio * d_model < multiple_of


@given(st.integers(1, 5000))
def test_eight_thirds_of_three_matrices_is_four_of_two(n):
    # 3 d (8/3 d) = 2 d (4 d) = 8 d^2
    d_model = 3 * n
    assert 3 * d_model * inner_width(d_model, None, 8 / 3, 1) == 8 * d_model**2


def test_swiglu_has_the_parameters_of_the_mlp():
    def count(make):
        params = nnx.state(nnx.eval_shape(lambda: make(rngs=nnx.Rngs(0))), nnx.Param)
        return sum(leaf.size for leaf in jax.tree.leaves(params))

    mlp = count(lambda rngs: MLP(768, None, rngs=rngs))
    swiglu = count(lambda rngs: SwiGLU(768, None, rngs=rngs))
    assert mlp == swiglu == 8 * 768**2 == 4_718_592
