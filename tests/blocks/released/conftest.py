"""Released models: a config makes the model, a checkpoint its parameters.

A test file of a family says three things: `overrides(config)`, the command line that
makes the model, from the fields of its config.json; and which tensor each parameter is,
in `ENDS` (outside the blocks) and `BLOCK` (inside one; `{i}` is the layer). A tensor is
a name, or a name and what is done to it; gradients go through the same table.
Arrays and allowed errors: tests/golden/README.md.
"""

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
        self.layout, self.state, self.places = self.built()

    def built(self, *more):
        """Layout, initial state and places of layers of the model of a command line."""
        (config,) = api.compose([*self.overrides, *more])
        make = config.model.build(config.traced_values(), "model")
        layout = layout_of(lambda: make(rngs=nnx.Rngs(0)))
        state = {}
        if nnx.to_flat_state(layout.state):
            state = jax.jit(lambda: layout.split(make(rngs=nnx.Rngs(0)))[1])()
        abstract = nnx.merge(layout.graphdef, layout.params, layout.state)
        return layout, state, abstract.blocks.places

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
        prefix = "grad."
        theirs = {k[len(prefix) :]: v for k, v in self.io.items() if prefix in k}
        return self.in_our_names(theirs)

    def streams(self):
        """The stream before the first block and after each, blocks run one by one."""
        model = self.layout.merge(self.params(), self.state)
        blocks = dict(self.single_blocks(model))
        runs = {
            name: jax.jit(self.run_of(graphdef))
            for name, graphdef, _ in blocks.values()
        }
        x = model.embed(self.tokens)
        first = nnx.merge(*blocks[0][1:])
        memory = first.first_memory(x.shape[0], x.dtype)
        state, found = model.ends.open(x), [x]
        for i in range(len(blocks)):
            name, _, arrays = blocks[i]
            state, memory = runs[name](arrays, state, memory, i)
            found.append(model.ends.close(state))
        return found

    def single_blocks(self, model):
        """Layer, and (place, graph definition, arrays) of its block."""
        for name, layers in self.places.items():
            graphdef, stacked = nnx.split(getattr(model.blocks, name))
            for at, layer in enumerate(layers):
                arrays = jax.tree.map(lambda x, at=at: x[at], stacked)
                yield layer, (name, graphdef, arrays)

    def run_of(self, graphdef):
        """(arrays of a block, state, memory, layer) -> state and memory after it."""

        def run(arrays, state, memory, layer):
            block = nnx.merge(graphdef, arrays)
            return block(state, memory, self.tokens.shape, layer)[:2]

        return run

    def loss_and_gradients(self):
        """Through the stack, as in training."""

        def loss_of(params):
            return self.layout.merge(params, self.state).loss(self.tokens)[0]

        return jax.jit(jax.value_and_grad(loss_of))(self.params())

    def logits(self, *more):
        """Of the model whose command line goes on with `more`."""
        layout, state, places = self.built(*more)
        assert places == self.places
        run = jax.jit(lambda params: layout.merge(params, state)(self.tokens))
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
