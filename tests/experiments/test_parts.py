"""Config nodes as checked, hashable values that build what they name."""

import functools
from collections.abc import Callable

import numpy as np
import pytest
from flax import nnx

from experiments import parts
from experiments.config import digest
from experiments.errors import ConfigError, UserError
from experiments.parts import TRACED, Part, coerce


class Inner:
    traced = ("slope",)

    @staticmethod
    def check(*, slope: float = 0.5, count: int = 3) -> None:
        if slope <= 0:
            raise ValueError(f"slope must be positive, got {slope}")

    def __init__(self, width: int, *, slope: float = 0.5, count: int = 3, rngs=None):
        self.width, self.slope, self.count = width, slope, count


class Outer:
    traced = ("gain", "warmup")

    def __init__(
        self,
        *,
        part: Callable,
        other: Callable | None = None,
        gain: float | None = None,
        warmup: int = 10,
        kind: str = "plain",
        sizes: tuple[int, ...] = (1, 2),
    ):
        self.part, self.other, self.gain = part, other, gain
        self.warmup, self.kind, self.sizes = warmup, kind, sizes


class Untyped:
    """No annotations, as in a first draft of a module."""

    traced = ("alpha", "beta")

    def __init__(self, *, scheme, alpha=0.5, beta: float = 1, free="x"):
        self.scheme, self.alpha, self.beta, self.free = scheme, alpha, beta, free


def node(made: type, **keywords):
    return {"_target_": f"{__name__}.{made.__name__}", **keywords}


def inner(**keywords):
    return node(Inner, _partial_=True, **keywords)


def refusal(where: str, broken) -> str:
    with pytest.raises(ConfigError) as error:
        Part.parse(broken, where)
    message = str(error.value)
    assert "\n" not in message
    assert message.startswith(where)
    return message


# -- coercion ------------------------------------------------------------------


@pytest.mark.parametrize(
    "value, annotation, expected",
    [
        (3, int, 3),
        (0.5, float, 0.5),
        (1, float, 1.0),
        (False, bool, False),
        ("two", str, "two"),
        (None, int | None, None),
        (4, int | None, 4),
        (4, float | None, 4.0),
        ("auto", float | str, "auto"),
        (2, int | float, 2.0),  # one type for the members of a program
        ([1, 2], tuple[int, ...], (1, 2)),
        ({"a": 1}, dict[str, int], {"a": 1}),
    ],
)
def test_a_value_of_the_annotated_type_is_taken(value, annotation, expected):
    got = coerce(value, annotation, "a.b")
    assert got == expected
    assert type(got) is type(expected)


@pytest.mark.parametrize(
    "value, annotation, message",
    [
        ("two", int, "a.b: expected an integer, got 'two'"),
        (2.5, int, "a.b: expected an integer, got 2.5"),
        (2.0, int, "a.b: expected an integer, got 2.0 (write 2)"),
        (True, int, "a.b: expected an integer, got true"),
        (True, float, "a.b: expected a number, got true"),
        ("1e-3", float, "a.b: expected a number, got '1e-3'"),
        (None, float, "a.b: expected a number, got null"),
        (1, bool, "a.b: expected true or false, got 1"),
        ("true", bool, "a.b: expected true or false, got 'true'"),
        (1, str, "a.b: expected a string, got 1"),
        ("x", int | None, "a.b: expected an integer or null, got 'x'"),
        (
            "None",
            int | None,
            "a.b: expected an integer or null, got 'None' (null is written null)",
        ),
        (3, tuple[int, ...], "a.b: expected a list, got 3"),
        (3, dict[str, int], "a.b: expected a mapping, got 3"),
        (3, Callable, "a.b: expected a part (a mapping with _target_), got 3"),
        (None, Callable, "a.b: expected a part (a mapping with _target_), got null"),
    ],
)
def test_any_other_value_is_refused_by_name(value, annotation, message):
    with pytest.raises(ConfigError) as error:
        coerce(value, annotation, "a.b")
    assert str(error.value) == message


def test_keywords_are_coerced_to_their_annotations():
    part = Part.parse(node(Outer, part=inner(slope=1), gain=2, sizes=[3]), "model")
    assert type(part["gain"]) is float
    assert type(part["part"]["slope"]) is float
    assert part["sizes"] == (3,)


def test_an_integer_default_of_a_float_is_a_float_too():
    # Members (1, 0.3) would otherwise be stacked as integers, and 0.3 become 0.
    untyped = Part.parse(node(Untyped, scheme=inner(), alpha=1), "model")
    assert type(untyped["alpha"]) is float
    assert type(untyped["beta"]) is float


# -- refusals ------------------------------------------------------------------


def test_an_unknown_keyword_names_the_nearest_and_all():
    message = refusal("model", node(Outer, part=inner(slpoe=0.3)))
    assert message == (
        "model.part.slpoe: Inner has no such keyword; did you mean slope? "
        "(it has slope, count)"
    )


def test_a_name_from_elsewhere_finds_ours():
    message = refusal("model", node(Outer, part=inner(), depth=4))
    assert "did you mean model.n_layers?" in message


@pytest.mark.parametrize("key", ["width", "rngs"])
def test_what_the_builder_gives_cannot_be_set(key):
    assert "no such keyword" in refusal("norm", inner(**{key: 3}))


def test_a_missing_keyword_is_named():
    assert refusal("model", node(Outer)) == "model.part: Outer needs it"


@pytest.mark.parametrize(
    "given, expected",
    [
        (3, "model: expected a part (a mapping with _target_), got 3"),
        (None, "model: expected a part (a mapping with _target_), got null"),
        ({"a": 1}, "got one without _target_ (keys: a)"),
        ({}, "got one without _target_ (keys: none)"),
    ],
)
def test_what_is_not_a_part_is_refused(given, expected):
    assert expected in refusal("model", given)


@pytest.mark.parametrize("given", [None, 3, "add"])
@pytest.mark.parametrize("made, key", [(Outer, "part"), (Untyped, "scheme")])
def test_a_required_part_cannot_be_anything_else(made, key, given):
    assert f"model.{key}: expected a part" in refusal(
        "model", node(made, **{key: given})
    )


def test_an_optional_part_can_be_left_out():
    assert Part.parse(node(Outer, part=inner(), other=None), "model")["other"] is None


@pytest.mark.parametrize(
    "target, expected",
    [
        ("blocks.nowhere.Derf", "cannot import 'blocks.nowhere.Derf'"),
        ("Derf", "cannot import 'Derf'"),
        ("blocks.norms.derf.Dref", "has no class 'Dref'; did you mean Derf?"),
        ("blocks.norms.derf.math", "has no class 'math'"),
    ],
)
def test_a_target_that_is_no_class_is_refused(target, expected):
    message = refusal("model.norm", {"_target_": target})
    assert message.startswith("model.norm._target_: ")
    assert expected in message


def test_the_check_of_a_class_speaks_with_the_path():
    message = refusal("model", node(Outer, part=inner(slope=-1)))
    assert message == "model.part.slope must be positive, got -1.0"


def test_every_refusal_is_a_users_mistake():
    assert issubclass(ConfigError, UserError)


# -- values --------------------------------------------------------------------


def test_equal_nodes_are_equal_and_hash_alike():
    first = Part.parse(node(Outer, part=inner(slope=0.5), sizes=[1, 2]), "model")
    second = Part.parse(node(Outer, sizes=(1, 2), part=inner()), "elsewhere")
    assert first == second
    assert hash(first) == hash(second)


@pytest.mark.parametrize(
    "changed",
    [
        node(Outer, part=inner(slope=0.25)),
        node(Outer, part=inner(), kind="other"),
        node(Outer, part=inner(), other=inner()),
        node(Outer, part=node(Inner)),  # an object instead of a factory
    ],
)
def test_different_nodes_differ(changed):
    assert Part.parse(changed, "m") != Part.parse(node(Outer, part=inner()), "m")


def test_the_node_comes_back_with_its_defaults():
    part = Part.parse(node(Outer, part=inner(slope=1)), "model")
    assert part.to_config() == node(
        Outer,
        part=inner(slope=1.0, count=3),
        other=None,
        gain=None,
        warmup=10,
        kind="plain",
        sizes=(1, 2),
    )
    assert Part.parse(part.to_config(), "model") == part


def test_replace_changes_keywords_only():
    part = Part.parse(inner(slope=0.1), "norm")
    assert part.replace(slope=0.2) == Part.parse(inner(slope=0.2), "norm")


# -- traced and static ---------------------------------------------------------


def test_traced_numbers_come_by_path():
    part = Part.parse(node(Outer, part=inner(), other=inner(slope=2)), "model")
    assert part.traced_values("model") == {
        "model.part.slope": 0.5,
        "model.other.slope": 2.0,
        "model.warmup": 10,  # gain is null: nothing to trace
    }


def test_static_parts_are_equal_exactly_if_traced_numbers_differ():
    def static(**keywords):
        return Part.parse(node(Outer, **keywords), "model").static()

    plain = static(part=inner())
    assert plain == static(part=inner(slope=9), warmup=3)
    assert plain["part"]["slope"] == TRACED
    assert plain != static(part=inner(count=4))
    assert plain != static(part=inner(), gain=1.0)  # a parameter more
    assert static(part=inner(), gain=1.0) == static(part=inner(), gain=2.0)


def test_a_value_reaches_the_site_of_its_path_and_no_other():
    part = Part.parse(node(Outer, part=inner(), other=inner(), gain=1.0), "model")
    values = {"model.part.slope": 3.0, "model.gain": 7.0, "model.warmup": 1}
    values["model.other.slope"] = 4.0
    built = part.static().build(values, "model")
    assert (built.gain, built.warmup) == (7.0, 1)
    assert (built.part(8).slope, built.other(8).slope) == (3.0, 4.0)


def test_partial_builds_a_factory_and_the_rest_objects():
    part = Part.parse(node(Outer, part=inner(count=5)), "model")
    built = part.build({}, "model")
    assert isinstance(built, Outer)
    assert isinstance(built.part, functools.partial)
    made = built.part(8)
    assert (made.width, made.count) == (8, 5)


def alphas(model) -> dict[str, set[float]]:
    """Site -> the alphas of its norms, over all layers."""
    found: dict[str, set[float]] = {}
    for path, variable in nnx.to_flat_state(nnx.state(model, nnx.Param)):
        names = [str(p) for p in path]
        if names[-1] == "alpha":
            site = next(n for n in ("attn", "ffn", "final_norm") if n in names)
            values = np.unique(np.asarray(variable[...])).tolist()
            found.setdefault(site, set()).update(values)
    return found


def language_model(compose, values, *overrides):
    (config,) = compose("norm=derf", *overrides)
    values = {**config.traced_values(), **values}
    make = config.model.static().build(values, "model")
    return make(vocab_size=8, rngs=nnx.Rngs(0))


def test_the_shared_norm_reaches_every_site(compose):
    model = language_model(compose, {"model.norm.alpha_init": 0.25})
    assert alphas(model) == {"attn": {0.25}, "ffn": {0.25}, "final_norm": {0.25}}


def test_the_norm_of_a_site_reaches_that_site_only(compose):
    values = {"model.norm.alpha_init": 0.25, "model.ffn_norm.alpha_init": 0.75}
    model = language_model(compose, values, "norm@model.ffn_norm=derf")
    assert alphas(model) == {"attn": {0.25}, "ffn": {0.75}, "final_norm": {0.25}}


# -- identity ------------------------------------------------------------------


def test_identity_leaves_defaults_out():
    part = Part.parse(node(Outer, part=inner(slope=0.5, count=7), warmup=10), "model")
    # Unlike to_config, neither _partial_ nor what equals its default.
    assert part.identity() == node(Outer, part=node(Inner, count=7))


@pytest.fixture
def forget_classes():
    parts.locate.cache_clear()
    yield
    parts.locate.cache_clear()


class Grows:
    def __init__(self, *, rate: float = 0.1):
        self.rate = rate


class Grown:
    """`Grows` some releases later."""

    def __init__(self, *, rate: float = 0.1, clip: float | None = None):
        self.rate, self.clip = rate, clip


def test_a_keyword_added_later_leaves_old_identities_alone(monkeypatch, forget_classes):
    def identity(**keywords):
        parts.locate.cache_clear()
        named = {"_target_": f"{__name__}.Grows", **keywords}
        return digest(Part.parse(named, "optimizer").identity())

    before = identity(rate=0.3)
    monkeypatch.setitem(globals(), "Grows", Grown)
    assert identity(rate=0.3) == before
    assert identity(rate=0.3, clip=None) == before
    assert identity(rate=0.3, clip=1.0) != before
