"""Released models: a config.json makes the model, its checkpoint the parameters.

What a family is stands in blocks/families; here it meets what the real model computes.
Arrays and allowed errors: tests/golden/README.md.
"""

import functools
from pathlib import Path

import jax
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file

from blocks.families import weights
from blocks.families.family import family_of, overrides_of
from blocks.families.fields import Fields
from blocks.parameters import layout_of
from experiments import api

GOLDEN = Path(__file__).parents[2] / "golden" / "released"
ACTIVATIONS = 1e-5  # of the largest entry
LOSS = 5e-6
GRADIENTS = 1e-4, 1e-6  # of the largest entry, and where exact zeros are noise


def slow(value):
    """A parameter of a test that few need to run."""
    return pytest.param(value, marks=pytest.mark.slow)


class Released:
    """One family: its files, and the model that its config makes.

    family: folder of tests/golden/released.
    """

    start = ("model=gpt2_124m",)

    @staticmethod
    def batch_of(io):
        """What the loss is taken of."""
        return io["input_ids"]

    def embedded(self, model):
        """What enters the first block, flat, and (batch, seq)."""
        return model.embed(self.batch), self.batch.shape

    def outputs(self, model):
        """The logits."""
        return model(self.batch)

    def __init__(self, family):
        self.folder = GOLDEN / family
        self.fields = Fields.read(self.folder)
        # Nothing of the model that the command line starts from may be left.
        self.overrides = [*self.start, *overrides_of(self.fields)]
        self.weights = load_file(self.folder / "weights.safetensors")
        self.io = load_file(self.folder / "io.safetensors")
        self.batch = self.batch_of(self.io)
        self.make, self.layout = self.built()
        model = nnx.merge(self.layout.graphdef, self.layout.params, self.layout.state)
        self.places = model.blocks.places

    def built(self, *more):
        """What makes the model of the command line that goes on with `more`; its layout."""
        (config,) = api.compose([*self.overrides, *more])
        factory = config.model.build(config.traced_values(), "model")
        make = lambda: factory(rngs=nnx.Rngs(0))  # noqa: E731
        return make, layout_of(make)

    @functools.cached_property
    def loaded(self):
        """Parameters, and all state: what the checkpoint has of it and how it starts."""
        file = self.folder / "weights.safetensors"
        params, found = weights.load(file, self.fields, self.layout)
        state = {}
        if nnx.to_flat_state(self.layout.state):
            state = jax.jit(lambda: self.layout.split(self.make())[1])()
        return params, {**state, **found}

    def in_our_names(self, tensors):
        """Tensors under the names of transformers -> under our paths, layers stacked."""
        table = family_of(self.fields).names(self.fields).transformers
        shapes = weights.shapes_of(self.layout)
        uses, _ = weights.uses_of(table, self.layout, shapes)
        found = {}
        for name, places in uses.items():
            for place in places:
                if name in tensors:
                    shape = shapes[place.path]
                    full = found.setdefault(place.path, np.full(shape, np.nan))
                    full[place.index] = place.entry.take(tensors[name])
        return found

    def streams(self):
        """The stream before the first block and after each, blocks run one by one."""
        model = self.layout.merge(*self.loaded)
        blocks = {}
        for place, layers in self.places.items():
            graphdef, stacked = nnx.split(getattr(model.blocks, place))
            for at, layer in enumerate(layers):
                arrays = jax.tree.map(lambda x, at=at: x[at], stacked)
                blocks[layer] = graphdef, arrays
        x, shape = self.embedded(model)
        state, found = model.ends.open(x), [x]
        for layer in range(len(blocks)):
            state = run_block(*blocks[layer], state, shape, layer)
            found.append(model.ends.close(state))
        return found

    def loss_and_gradients(self):
        """Through the stack, as in training."""
        params, state = self.loaded

        def loss_of(params):
            return self.layout.merge(params, state).loss(self.batch)[0]

        return jax.jit(jax.value_and_grad(loss_of))(params)

    def logits(self, *more):
        """Of the whole stack, its command line going on with `more`."""
        layout = self.built(*more)[1] if more else self.layout
        params, state = self.loaded
        run = jax.jit(lambda params: self.outputs(layout.merge(params, state)))
        return run(params)

    # -- what a test asks --------------------------------------------------------

    def assert_same_parameters(self):
        """Every number of the checkpoint has one place in the model, and the reverse."""
        ours = {path: spec.shape for path, spec in self.layout.specs.items()}
        params, _ = self.loaded
        assert {path: x.shape for path, x in params.items()} == ours
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
        self.assert_same_streams()
        self.assert_close(self.logits(), "logits")

    def assert_same_streams(self):
        """The stream before the first layer, and after every one."""
        found = self.streams()
        for i, stream in enumerate(found):
            self.assert_close(stream, f"hidden_states.{i}")
        assert f"hidden_states.{len(found)}" not in self.io

    def assert_same_loss_and_gradients(self):
        loss, gradients = self.loss_and_gradients()
        np.testing.assert_allclose(loss, self.io["loss"], rtol=0, atol=LOSS)
        theirs = {k[5:]: v for k, v in self.io.items() if k.startswith("grad.")}
        expected = self.in_our_names(theirs)
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


@functools.lru_cache(maxsize=2)
def of(family):
    return Released(family)


@pytest.fixture
def released(request):
    """The family that the test file is about."""
    return of(request.module.FAMILY)
