"""The training step and the probed step lower for CUDA and TPU, whatever the parts.

On a machine with neither: that the devices' own compilers take what comes out is not
tested here.
"""

import dataclasses
import functools

import jax
import pytest

from experiments.compatibility.choices import SIZES, axes, config_of
from experiments.compatibility.covering import verdict
from experiments.config import Config
from experiments.errors import ConfigError
from experiments.group import load_dataset, signature_of
from experiments.lowering import PLATFORMS, lowered
from experiments.program import Program

STEPS = ("train_steps", "probed_steps")
# Every choice of these is in a row, each row a whole model; residual schemes and
# placements first, which are the ones that do not go with all others.
COVERED = (
    "residual",
    "placement",
    "norm",
    "attention",
    "ffn",
    "positions",
    "embedding_positions",
    "dtype",
)
PARTS = 12
# Choices that bring other operations than matrix products and sums.
QUICK = [
    {"norm": "derf", "residual": "mhc", "dtype": "bfloat16"},
    {"norm": "batchnorm", "ffn": "moe", "attention": "mla", "optimizer": "muon"},
]


OPTIMIZERS = next(axis.choices for axis in axes() if axis.name == "optimizer")


def program(row, **residual):
    node = config_of({"data": "markov", **row}, **{**SIZES, "n_layers": 2})
    node["model"]["residual"] |= residual
    node["data"]["vocab_size"] = SIZES["vocab_size"]
    config = Config.parse({**node, "batch_size": 2, "seq_len": 16}, choices=row)
    dataset = load_dataset(config.data)
    return Program(signature_of(config, dataset), dataset)


def possible():
    """Axis -> its choices that are not refused whatever is chosen elsewhere."""
    return {
        axis.name: [c for c in axis.choices if verdict({axis.name: c}) is None]
        for axis in axes()
        if axis.name in COVERED
    }


@functools.cache
def rows():
    """As few rows as a greedy search finds with every choice of COVERED in one."""
    choices = possible()
    todo = {name: list(choices[name]) for name in COVERED}
    found = []
    while any(todo.values()):
        seed = next(name for name in COVERED if todo[name])
        row = {seed: todo[seed][0]}
        for name in COVERED:
            if name not in row:
                fits = (
                    c
                    for c in dict.fromkeys([*todo[name], *choices[name]])
                    if verdict({**row, name: c}) is None
                )
                row[name] = next(fits)
        assert verdict(row) is None, row
        for name, choice in row.items():
            if choice in todo[name]:
                todo[name].remove(choice)
        found.append(row)
    return found


def assert_lowers(row):
    made = program(row)
    for name in STEPS:
        found = lowered(made, name)
        assert tuple(found) == PLATFORMS


@pytest.mark.parametrize("row", QUICK, ids=lambda row: "-".join(row.values()))
def test_steps_lower_for_devices_that_are_not_here(row):
    assert_lowers(row)


@pytest.mark.slow
@pytest.mark.parametrize("part", range(PARTS))
def test_steps_lower_with_every_choice(part):
    for row in rows()[part::PARTS]:
        assert_lowers(row)


@pytest.mark.slow
@pytest.mark.parametrize("optimizer", OPTIMIZERS)
def test_steps_lower_with_every_optimizer(optimizer):
    assert_lowers({"optimizer": optimizer})


def test_kernels_lower_inside_the_training_step():
    part = {"_target_": "blocks.kernels.streams.BlendedStreams"}
    made = program({"residual": "mhc"}, kernel=part)
    plain = lowered(program({"residual": "mhc"}), "train_steps")
    for platform, call in {"cuda": "xla.gpu.triton", "tpu": "tpu_custom_call"}.items():
        found = lowered(made, "train_steps", [platform])[platform].as_text()
        # Two sub-layers, in the forward pass a reading and a writing of each at least.
        assert found.count(call) >= 4
        assert call not in plain[platform].as_text()


@pytest.mark.slow
def test_every_choice_is_in_a_row():
    for name, choices in possible().items():
        assert {row[name] for row in rows()} == set(choices)


def test_what_does_not_lower_is_told_in_one_line(monkeypatch):
    made = program({})

    def only_on_cpu(state, *others):
        step = jax.lax.platform_dependent(state.step, cpu=lambda step: step + 1)
        return dataclasses.replace(state, step=step)

    monkeypatch.setattr(made, "train_steps", only_on_cpu)
    told = "^train_steps does not lower for cuda: .* not found for platform cuda"
    with pytest.raises(ConfigError, match=told):
        lowered(made, "train_steps")
