"""Released models: a config makes the model, a checkpoint its parameters.

A test file of a family says three things: `overrides(config)`, the command line that
makes the model, from the fields of its config.json; and which tensor each parameter is,
in `ENDS` (outside the blocks) and `BLOCK` (inside one; `{i}` is the layer). A tensor is
a name, or a name and what is done to it; gradients go through the same table.
Arrays and allowed errors: tests/golden/README.md.
"""

import functools
import json
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from blocks.parameters import layout_of
from experiments import api

GOLDEN = Path(__file__).parents[2] / "golden" / "released"
ACTIVATIONS = 1e-5  # of the largest entry
LOSS = 5e-6
GRADIENTS = 1e-4, 1e-6  # of the largest entry, and where exact zeros are noise


def transposed(w):
    """torch's Linear is [out, in]."""
    return w.T


def slow(value):
    """A parameter of a test that few need to run."""
    return pytest.param(value, marks=pytest.mark.slow)


def sizes_of(config):
    """Overrides for the sizes, from the names that most families have."""
    return [
        f"model.vocab_size={config['vocab_size']}",
        f"model.d_model={config['hidden_size']}",
        f"model.n_layers={config['num_hidden_layers']}",
        f"model.n_heads={config['num_attention_heads']}",
        f"model.n_kv_heads={config['num_key_value_heads']}",
        f"model.d_head={config.get('head_dim', 'null')}",
        f"model.d_ff={config['intermediate_size']}",
        f"model.tied_head={config['tie_word_embeddings']}",
    ]


class Released:
    """One family: its files, and the model that a command line makes.

    Args:
        family: folder of tests/golden/released.
        overrides: config.json as a dict -> overrides.
        ends, block: see the module.
    """

    def __init__(self, family, overrides, ends, block):
        self.folder = GOLDEN / family
        self.hf_config = json.loads((self.folder / "config.json").read_text())
        self.overrides = ["model=tiny", *overrides(self.hf_config)]
        self.ends, self.block = ends, block
        self.weights = load_file(self.folder / "weights.safetensors")
        self.io = load_file(self.folder / "io.safetensors")
        self.tokens = self.io["input_ids"]
        self.make, self.layout = self.built()
        model = nnx.merge(self.layout.graphdef, self.layout.params, self.layout.state)
        self.places = model.blocks.places
        self.state = {}  # what is not trained, as it starts
        if nnx.to_flat_state(self.layout.state):
            self.state = jax.jit(lambda: self.layout.split(self.make())[1])()

    def built(self, *more):
        """What makes the model of the command line that goes on with `more`; its layout."""
        (config,) = api.compose([*self.overrides, *more])
        factory = config.model.build(config.traced_values(), "model")
        make = lambda: factory(rngs=nnx.Rngs(0))  # noqa: E731
        return make, layout_of(make)

    def in_our_names(self, tensors):
        """Tensors under checkpoint names -> under our paths, layers stacked."""

        def taken(entry, layer=None):
            name, change = (entry, None) if isinstance(entry, str) else entry
            tensor = tensors[name.format(i=layer)]
            return tensor if change is None else change(tensor)

        found = {path: taken(entry) for path, entry in self.ends.items()}
        for place, layers in self.places.items():
            for path, entry in self.block.items():
                each = [taken(entry, i) for i in layers]
                found[f"blocks/{place}/{path}"] = np.stack(each)
        return found

    def params(self):
        return self.in_our_names(self.weights)

    def gradients(self):
        tensors = self.io.items()
        theirs = {k[5:]: v for k, v in tensors if k.startswith("grad.")}
        return self.in_our_names(theirs)

    def streams(self):
        """The stream before the first block and after each, blocks run one by one."""
        model = self.layout.merge(self.params(), self.state)
        blocks = {}
        for place, layers in self.places.items():
            graphdef, stacked = nnx.split(getattr(model.blocks, place))
            for at, layer in enumerate(layers):
                arrays = jax.tree.map(lambda x, at=at: x[at], stacked)
                blocks[layer] = graphdef, arrays
        x = model.embed(self.tokens)
        state, found = model.ends.open(x), [x]
        for layer in range(len(blocks)):
            state = run_block(*blocks[layer], state, self.tokens.shape, layer)
            found.append(model.ends.close(state))
        return found

    def loss_and_gradients(self):
        """Through the stack, as in training."""

        def loss_of(params):
            return self.layout.merge(params, self.state).loss(self.tokens)[0]

        return jax.jit(jax.value_and_grad(loss_of))(self.params())

    def logits(self, *more):
        """Of the whole stack, its command line going on with `more`."""
        layout = self.built(*more)[1] if more else self.layout
        run = jax.jit(lambda params: layout.merge(params, self.state)(self.tokens))
        return run(self.params())

    # -- what a test asks --------------------------------------------------------

    def assert_same_parameters(self):
        """Every number of the checkpoint has one place in the model, and the reverse."""
        ours = {path: spec.shape for path, spec in self.layout.specs.items()}
        assert {path: x.shape for path, x in self.params().items()} == ours
        # Numbering the numbers shows one that is used twice, or not at all.
        ends = np.cumsum([0, *(w.size for w in self.weights.values())])
        numbered = {
            name: np.arange(first, first + w.size).reshape(w.shape)
            for first, (name, w) in zip(ends[:-1], self.weights.items(), strict=True)
        }
        placed = [x.ravel() for x in self.in_our_names(numbered).values()]
        placed = np.sort(np.concatenate(placed))
        np.testing.assert_array_equal(placed, np.arange(ends[-1]))

    def assert_same_outputs(self):
        """The stream after every layer, and the logits."""
        found = self.streams()
        for i, stream in enumerate(found):
            self.assert_close(stream, f"hidden_states.{i}")
        assert f"hidden_states.{len(found)}" not in self.io
        self.assert_close(self.logits(), "logits")

    def assert_same_loss_and_gradients(self):
        loss, gradients = self.loss_and_gradients()
        np.testing.assert_allclose(loss, self.io["loss"], rtol=0, atol=LOSS)
        expected = self.gradients()
        assert gradients.keys() == expected.keys()
        of_largest, noise = GRADIENTS
        for path, wanted in expected.items():
            atol = of_largest * np.abs(wanted).max() + noise
            np.testing.assert_allclose(
                gradients[path], wanted, rtol=0, atol=atol, err_msg=path
            )

    def assert_close(self, actual, name):
        wanted = self.io[name]
        atol = ACTIVATIONS * np.abs(wanted).max()
        actual = np.asarray(actual).reshape(wanted.shape)
        np.testing.assert_allclose(actual, wanted, rtol=0, atol=atol, err_msg=name)

    def assert_shows(self, *more):
        """A wrong detail moves the logits by ten times the allowed error or more."""
        wanted = self.io["logits"]
        error = np.abs(np.asarray(self.logits(*more)) - wanted).max()
        assert error > 10 * ACTIVATIONS * np.abs(wanted).max()

    def assert_refused(self, *more):
        """A model with other parameters does not take those of the checkpoint."""
        with pytest.raises(ValueError, match="^parameter "):
            self.logits(*more)


@functools.partial(jax.jit, static_argnames=("graphdef", "shape"))
def run_block(graphdef, arrays, state, shape, layer):
    """The state after one block; none of these models has memory between blocks."""
    block = nnx.merge(graphdef, arrays)
    memory = dict.fromkeys(block.names)
    return block(state, memory, shape, layer)[0]


@pytest.fixture(autouse=True)
def highest_precision():
    """The limits are those of float32 products."""
    with jax.default_matmul_precision("highest"):
        yield


@pytest.fixture(scope="module")
def released(request):
    """The family that the test file describes."""
    said = request.module
    return Released(said.FAMILY, said.overrides, said.ENDS, said.BLOCK)
