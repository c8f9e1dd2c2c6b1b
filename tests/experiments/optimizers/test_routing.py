"""Which parameters Muon takes, in every model that the choices of the catalogue make."""

import functools
from pathlib import Path

import pytest
from flax import nnx

from blocks.parameters import ParamSpec, layout_of
from experiments.compatibility.choices import SIZES, axes, config_of
from experiments.compatibility.covering import verdict
from experiments.optimizers.muon import Muon
from experiments.parts import Part

CONF = Path(__file__).parents[3] / "conf"
GROUPS = ("attention", "ffn", "norm", "residual", "placement")

# Every kind of parameter that these choices make, so that a new one is looked at once.
ROLES_MET = {"matrix", "embedding", "head", "gain", "bias", "alpha", "shift", "scale"}
ROLES_MET |= {"mixing", "router", "sink", "position"}


@functools.cache
def specs_of(group: str, choice: str) -> dict[str, ParamSpec]:
    """Parameters of the small model with one part chosen, described abstractly."""
    row = {group: choice}
    node = config_of(row, **(SIZES if group != "model" else {}))
    make = Part.parse(node["model"], "model").build({}, "model")
    given = {"vocab_size": 16} if "vocab_size" in node["model"] else {}
    return layout_of(lambda: make(**given, rngs=nnx.Rngs(0))).specs


def choices_of(group: str) -> list[str]:
    """Choices that go with the defaults of the other groups."""
    (axis,) = (axis for axis in axes() if axis.name == group)
    return [c for c in axis.choices if c is not None and not verdict({group: c})]


def is_hidden_kernel(path: str, shape: tuple[int, ...]) -> bool:
    """By place, name and shape alone: roles and `n_stacked` have no say in it."""
    *parents, name = path.split("/")
    copies = sum(stacked in parents for stacked in ("blocks", "experts", "groups"))
    own = shape[copies:]
    return (
        "blocks" in parents
        and name == "kernel"
        and "router" not in parents
        and len(own) == 2
    )


def check_routing(specs: dict[str, ParamSpec], where: str) -> None:
    """Hidden kernels and nothing else go to Muon; no vector ever does."""
    groups = Muon().groups(specs)
    assert groups.keys() == specs.keys()
    for path, spec in specs.items():
        expected = "muon" if is_hidden_kernel(path, spec.shape) else "adam"
        assert groups[path] == expected, f"{where}: {path} {spec}"
        if len(spec.shape) - spec.n_stacked < 2:
            assert groups[path] == "adam", f"{where}: {path} {spec}"
    assert "muon" in groups.values(), where


@pytest.mark.parametrize("group", GROUPS)
def test_muon_takes_hidden_kernels_and_nothing_else_whatever_is_chosen(group):
    choices = choices_of(group)
    assert len(choices) > 10
    for choice in choices:
        check_routing(specs_of(group, choice), f"{group}={choice}")


@pytest.mark.parametrize("model", sorted(p.stem for p in (CONF / "model").glob("*")))
def test_muon_takes_hidden_kernels_and_nothing_else_in_every_model(model):
    check_routing(specs_of("model", model), f"model={model}")


def test_the_choices_meet_every_role():
    specs = [specs_of(g, c).values() for g in GROUPS for c in choices_of(g)]
    assert {spec.role for some in specs for spec in some} == ROLES_MET


@pytest.mark.parametrize(
    "path, spec",
    [
        ("blocks/layers/ffn/branch/up/kernel", ParamSpec("gain", (4, 32, 64), 1)),
        ("blocks/layers/attn/in_norm/gain", ParamSpec("matrix", (4, 32), 0)),
        ("head/kernel", ParamSpec("matrix", (32, 16))),
        ("blocks/layers/ffn/branch/router/kernel", ParamSpec("matrix", (4, 32, 8), 1)),
    ],
)
def test_a_parameter_of_the_wrong_role_would_be_noticed(path, spec):
    specs = {"blocks/layers/o/kernel": ParamSpec("matrix", (4, 32, 32), 1), path: spec}
    with pytest.raises(AssertionError, match=path):
        check_routing(specs, "changed")
