"""What a run records of its surroundings."""

import importlib.metadata

from experiments.environment import PACKAGES, versions


def test_versions_are_those_of_the_distributions():
    assert versions() == {name: importlib.metadata.version(name) for name in PACKAGES}
