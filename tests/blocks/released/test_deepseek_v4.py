"""DeepSeek-V4: streams with mHC, shared keys and values, a compressed past, hashing.

transformers 5.24.0 modeling_deepseek_v4.py. Its three layers are a window alone with
experts by the token, a window and the best two entries of two tokens each, a window and
all entries of four.
"""

import functools

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx

from blocks.reading import reading
from tests.blocks.released.conftest import Released, run_block

FAMILY = "deepseek_v4"
# The indexer learns from a loss of its own.
UNTRAINED = "/attn/branch/indexer/"


class Streams(Released):
    """The stream is several, and blocks are told which tokens they read."""

    def streams(self):
        model = self.layout.merge(*self.loaded)
        x, shape = self.embedded(model)
        state, blocks = model.ends.open(x), {}
        for place, layers in self.places.items():
            graphdef, stacked = nnx.split(getattr(model.blocks, place))
            for at, layer in enumerate(layers):
                blocks[layer] = graphdef, jax.tree.map(lambda x, at=at: x[at], stacked)
        found = [state]
        for layer in range(len(blocks)):
            state = run(*blocks[layer], state, shape, layer, self.batch)
            found.append(state)
        # [streams, tokens, d_model] here, streams behind tokens in the file.
        return [jnp.swapaxes(state, 0, 1) for state in found]

    def in_our_names(self, tensors):
        """Where there is no gradient the file has none."""
        found = super().in_our_names(tensors)
        if not any(UNTRAINED in path for path in found):
            shapes = {p: s.shape for p, s in self.layout.specs.items()}
            found |= {p: np.zeros(s) for p, s in shapes.items() if UNTRAINED in p}
        return found


@functools.partial(jax.jit, static_argnames=("graphdef", "shape"))
def run(graphdef, arrays, state, shape, layer, tokens):
    with reading(tokens):
        return run_block.__wrapped__(graphdef, arrays, state, shape, layer)


@functools.cache
def of():
    return Streams(FAMILY)


@pytest.fixture
def released():
    return of()


def test_the_config_has_the_parameters_of_the_checkpoint(released):
    released.assert_same_parameters()


@pytest.mark.slow
def test_every_stream_after_every_layer_and_logits(released):
    released.assert_same_outputs()


def test_loss_and_every_gradient(released):
    released.assert_same_loss_and_gradients()


WRONG = [
    "model.residual.coefficient_eps=1e-6",
    "model.residual.iterations=3",
    "model.residual.eps=1e-6",
    "model.attention.latent_norm.eps=1e-6",
    "model.attention.head_norm.eps=1e-6",
    "model.attention.window=6",
    "model.attention.positions.layout=half",
    "model.attention.scale=0.25",
    "model.pattern.attention.indexer.top_k=3",
    "model.pattern.attention.positions.scaling.factor=1",
    "model.pattern.beside.attention.positions.base=10000",
    "model.pattern.beside.attention.window=12",
    "model.ffn.router.scale=1",
    "model.ffn.expert.limit=10",
    "model.pattern.ffn.router.renormalize=false",
]


@pytest.mark.slow
@pytest.mark.parametrize("wrong", WRONG)
def test_a_wrong_detail_shows(released, wrong):
    released.assert_shows(wrong)


@pytest.mark.parametrize(
    "wrong",
    [
        "model.residual.reduce=mean",
        "model.pattern.beside.attention.compressor.rate=2",
        "model.pattern.attention.indexer=null",
        "model.attention.n_groups=4",
    ],
)
def test_another_model_does_not_take_the_checkpoint(released, wrong):
    released.assert_refused(wrong)
