"""A composed config: checked, typed, and what makes a run this run."""

import copy
import dataclasses
import hashlib
import json

import pytest

from experiments import api
from experiments.config import PARTS, Config, Runtime, from_mapping
from experiments.errors import ConfigError
from experiments.parts import Part
from experiments.run import to_json


@pytest.fixture(scope="module")
def plain() -> dict:
    """A config as plain data; `put` changes a copy."""
    (config,) = api.compose(["model=tiny", "data=markov", "norm@model.ffn_norm=dyt"])
    return config.to_config()


def put(plain: dict, path: str, value) -> dict:
    node = changed = copy.deepcopy(plain)
    *parents, last = path.split(".")
    for key in parents:
        node = node[key]
    node[last] = value
    return changed


# -- checks --------------------------------------------------------------------


@pytest.mark.parametrize(
    "path, value, message",
    [
        ("seed", -1, "seed: must be in 0 .. 2**32 - 1, got -1"),
        ("seed", 2**32, "seed: must be in 0 .. 2**32 - 1, got 4294967296"),
        ("seed", 1.5, "seed: expected an integer, got 1.5"),
        ("seed", True, "seed: expected an integer, got true"),
        ("steps", 0, "steps: must be in 1 .. 2**31 - 1, got 0"),
        ("steps", 2**31, "steps: must be in 1 .. 2**31 - 1, got 2147483648"),
        ("steps", 1e3, "steps: expected an integer, got 1000.0 (write 1000)"),
        ("batch_size", 0, "batch_size: must be in 1 .. 2**31 - 1, got 0"),
        ("seq_len", -5, "seq_len: must be in 1 .. 2**31 - 1, got -5"),
        ("log_every", 0, "log_every: must be in 1 .. 2**31 - 1, got 0"),
        ("log_every", None, "log_every: expected an integer, got null"),
        (
            "schedule.warmup_steps",
            2**31,
            "schedule.warmup_steps: must be below 2**31, got 2147483648",
        ),
        ("name", 3, "name: expected a string, got 3"),
        ("tags", 3, "tags: expected a mapping, got 3"),
        ("tags", None, "tags: expected a mapping, got null"),
        ("runtime", None, "runtime: expected a mapping, got null"),
        ("runtime.layuot", 1, "runtime.layuot: no such key; did you mean layout?"),
        ("runtime.threads", "two", "runtime.threads: expected an integer or null"),
        ("runtime.threads", 0, "runtime.threads: must be at least 1, got 0"),
        ("runtime.report", 1, "runtime.report: expected true or false, got 1"),
        ("runtime.output_dir", " ", "runtime.output_dir: expected a folder"),
        (
            "runtime.layout",
            "sideways",
            "runtime.layout: must be auto, threads, map or vmap, got 'sideways'",
        ),
        ("runtime.checkpoint", 3, "runtime.checkpoint: expected a mapping, got 3"),
        (
            "runtime.checkpoint.evry",
            3,
            "runtime.checkpoint.evry: no such key; did you mean every?",
        ),
        (
            "runtime.checkpoint.every",
            0,
            "runtime.checkpoint.every: must be at least 1 or null, got 0",
        ),
        (
            "runtime.checkpoint.keep",
            0,
            "runtime.checkpoint.keep: must be at least 1, got 0",
        ),
        ("sede", 1, "sede: no such key; did you mean seed?"),
        ("choices", {}, "choices: no such key"),
        ("optimizer", None, "optimizer: expected a part"),
        ("model.ffn_norm.alpha_init", 0.0, "model.ffn_norm.alpha_init"),
        ("model.n_layers", "two", "model.n_layers: expected an integer, got 'two'"),
    ],
)
def test_what_cannot_be_is_refused_by_its_key(plain, path, value, message):
    with pytest.raises(ConfigError) as error:
        Config.parse(put(plain, path, value))
    assert str(error.value).startswith(message)
    assert "\n" not in str(error.value)


@pytest.mark.parametrize(
    "name", ["", ".", "..", "../x", "a/../b", "/a", "a/", "a//b", " a", "a\\b", "a\nb"]
)
def test_a_name_stays_below_the_output_folder(plain, name):
    with pytest.raises(ConfigError, match=r"^name: must be usable as a folder name"):
        Config.parse(put(plain, "name", name))


@pytest.mark.parametrize(
    "path, value",
    [
        ("seed", 2**32 - 1),
        ("steps", 2**31 - 1),
        ("name", "norms/first try..2"),
        ("runtime.threads", 3),
        ("runtime.layout", "vmap"),
        ("runtime.checkpoint.every", None),
        ("runtime.compilation_cache", None),
        ("tags", {"question": "why?", "list": [1, {"a": None}]}),
    ],
)
def test_what_can_be_is_accepted(plain, path, value):
    node = Config.parse(put(plain, path, value)).to_config()
    for key in path.split("."):
        node = node[key]
    assert node == value


@pytest.mark.parametrize("key", ["seed", "tags", "optimizer", "runtime"])
def test_a_missing_key_is_named(plain, key):
    node = {k: v for k, v in plain.items() if k != key}
    with pytest.raises(ConfigError, match=f"^{key}: missing from the config$"):
        Config.parse(node)


def test_the_first_wrong_key_in_order_is_told_every_time(plain):
    node = put(put(plain, "steps", "x"), "seq_len", "x")
    with pytest.raises(ConfigError, match=r"^steps"):
        Config.parse(node)


@pytest.mark.parametrize("override", ["norm=[derf,dyt]", "data=[markov,bytes]"])
def test_a_list_is_no_choice(plain, override):
    key, _, value = override.partition("=")
    with pytest.raises(ConfigError) as error:
        Config.parse(plain, overrides=[override])
    assert str(error.value) == (
        f"{key}: expected one choice, got {value} (to run each, write -m {key}="
        f"{value[1:-1]})"
    )


def test_a_list_is_a_value_elsewhere(plain):
    Config.parse(plain, overrides=["+tags.depths=[1,2]", "tags={a:[1]}"])


def test_a_section_left_short_takes_its_defaults():
    assert from_mapping(Runtime, {"report": True}, "runtime") == Runtime(report=True)
    partial = from_mapping(Runtime, {"checkpoint": {"keep": 5}}, "runtime")
    assert (partial.checkpoint.keep, partial.checkpoint.every) == (5, 500)


# -- the way back --------------------------------------------------------------


def test_a_config_survives_json(plain):
    config = Config.parse(plain, choices={"norm": "rmsnorm"}, overrides=["model=tiny"])
    again = Config.parse(
        json.loads(to_json(config.to_config())),
        choices=config.choices,
        overrides=config.overrides,
    )
    assert again == config
    assert again.identity("d") == config.identity("d")


def test_the_folder_of_a_config(plain, monkeypatch):
    monkeypatch.setenv("HOME", "/home/somebody")
    config = Config.parse(put(put(plain, "name", "a/b"), "runtime.output_dir", "~/o/"))
    assert str(config.folder) == "/home/somebody/o/a/b"


# -- identity ------------------------------------------------------------------


class Toy:
    """A part of every kind."""

    def __init__(self, *, rate: float = 0.1, sizes: tuple = (), inner: object = None):
        pass


def test_identity_is_the_hash_of_what_is_not_default(plain):
    toy = f"{__name__}.Toy"
    node = {
        **plain,
        **{key: {"_target_": toy, "rate": 0.1, "sizes": []} for key in PARTS},
        "model": {
            "_target_": toy,
            "rate": 1,
            "sizes": [3, 4],
            "inner": {"_target_": toy, "_partial_": True, "rate": 0.2},
        },
    }
    by_hand = (
        f'{{"batch_size":16,"data":{{"_target_":"{toy}"}},"data_fingerprint":"f",'
        f'"model":{{"_target_":"{toy}","inner":{{"_target_":"{toy}","rate":0.2}},'
        f'"rate":1.0,"sizes":[3,4]}},"optimizer":{{"_target_":"{toy}"}},'
        f'"schedule":{{"_target_":"{toy}"}},"seed":0,"seq_len":128,"steps":1000,'
        f'"task":{{"_target_":"{toy}"}}}}'
    )
    expected = hashlib.sha256(by_hand.encode()).hexdigest()[:12]
    assert Config.parse(node).identity("f") == expected


@dataclasses.dataclass(frozen=True)
class LaterRuntime(Runtime):
    """Runtime with a field more."""

    profile: bool = True


def test_identity_ignores_how_where_and_what_it_is_called(plain):
    config = Config.parse(plain)
    checkpoint = dataclasses.replace(config.runtime.checkpoint, every=7, keep=9)
    runtime = dict(layout="map", threads=1, compilation_cache=None, report=True)
    for changes in (
        {"name": "other"},
        {"tags": {"a": 1}},
        {"log_every": 1},
        {"choices": {"norm": "x"}},
        {"overrides": ("a=1",)},
        {"runtime": Runtime(output_dir="x", checkpoint=checkpoint, **runtime)},
        {"runtime": LaterRuntime()},
    ):
        assert dataclasses.replace(config, **changes).identity("f") == config.identity(
            "f"
        ), changes


def altered(part: Part):
    """(keyword, the part with it altered), for every keyword down to the leaves."""
    for key, value in part.keywords:
        if isinstance(value, Part):
            for inner_key, inner in altered(value):
                yield f"{key}.{inner_key}", part.replace(**{key: inner})
            continue
        if isinstance(value, bool):
            other = not value
        elif isinstance(value, (int, float)):
            other = value + 1
        else:
            other = f"{value}x"
        yield key, part.replace(**{key: other})


def test_identity_changes_with_everything_else(plain):
    config = Config.parse(plain)
    identities = {config.identity("f"), config.identity("g")}
    n = 2
    for key in ("seed", "steps", "batch_size", "seq_len"):
        other = dataclasses.replace(config, **{key: getattr(config, key) + 1})
        identities.add(other.identity("f"))
        n += 1
    for key in PARTS:
        for keyword, part in altered(getattr(config, key)):
            identities.add(dataclasses.replace(config, **{key: part}).identity("f"))
            n += 1
            assert len(identities) == n, f"{key}.{keyword}"
    assert n > 50


def test_traced_values_are_the_numbers_of_model_optimizer_and_schedule(plain):
    values = Config.parse(plain).traced_values()
    assert values["model.ffn_norm.alpha_init"] == 0.5
    assert values["optimizer.learning_rate"] == 1e-3
    assert values["schedule.warmup_steps"] == 100
    assert {path.split(".")[0] for path in values} == {"model", "optimizer", "schedule"}
