"""A family with its golden files and its abstract model; nothing is compiled."""

import functools
import pathlib
import shutil

import pytest
from flax import nnx

from blocks.families.family import overrides_of
from blocks.families.fields import Fields
from blocks.parameters import layout_of
from experiments import api

RELEASED = pathlib.Path(__file__).parents[2] / "golden" / "released"


class Checkpoint:
    """family: folder of tests/golden/released. more: overrides that follow the file's."""

    def __init__(self, family, *more):
        self.folder = RELEASED / family
        self.file = self.folder / "weights.safetensors"
        self.hub = self.folder / "weights_hub.safetensors"
        self.fields = Fields.read(self.folder)
        (config,) = api.compose([*overrides_of(self.fields), *more])
        make = config.model.build(config.traced_values(), "model")
        self.layout = layout_of(lambda: make(rngs=nnx.Rngs(0)))

    def copy(self, folder):
        """The file, as a folder of a published model has it."""
        return shutil.copy(self.file, folder / "model.safetensors")


@pytest.fixture(scope="session")
def checkpoint():
    """checkpoint(family): each is made once."""
    return functools.cache(Checkpoint)
