"""Every experiment is what it was: its resolved config and its jobs, kept as files.

python -m tests.experiments.test_every_config      writes them anew, after a change meant

That every file of `conf/` composes by itself is in test_compose.py.
"""

import collections
import math
import pathlib
from typing import Any

import pytest
import yaml
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra

from experiments.compose import CONF, Composer
from experiments.config import OPTIONAL_PARTS, PARTS, Config
from experiments.phases import planned_jobs
from experiments.sweep import expand

GOLDEN = pathlib.Path(__file__).parents[1] / "golden" / "configs"
EXPERIMENTS = sorted(p.stem for p in (CONF / "experiment").glob("*.yaml"))
# Why a run is made, and how: no part of what it is.
LEFT_OUT = ("tags", "runtime")


def make_composer() -> Composer:
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return Composer(GlobalHydra.instance().config_loader(), "config")


@pytest.fixture(scope="module")
def composer():
    return make_composer()


def base_of(composer: Composer, name: str) -> Config:
    return composer.compose([f"experiment={name}"])


def jobs_of(composer: Composer, name: str) -> list[list[str]]:
    """Of phases as if the first value of each had been best."""
    asked = [f"experiment={name}"]
    sweeper = composer.sweeper(asked)
    phases = sweeper.get("phases")
    if phases:
        jobs = planned_jobs(phases, asked, composer.parser, sweeper.get("params"))
    else:
        jobs = expand(composer, asked)
    return [[o for o in job if o not in asked] for job in jobs]


def folded(jobs: list[list[str]]) -> list[dict[str, list[str]]]:
    """Jobs as blocks of key -> values, each block all combinations of its values.

    Blocks that differ in one key are joined, key after key.
    """
    pairs = [[o.partition("=")[::2] for o in job] for job in jobs]
    blocks = [{key: [value] for key, value in job} for job in pairs]
    for joined in dict.fromkeys(key for block in blocks for key in block):
        kept, alike = [], {}
        for block in blocks:
            rest = sorted((k, tuple(v)) for k, v in block.items() if k != joined)
            if joined not in block:
                kept.append(block)
            elif (twin := alike.get(tuple(rest))) is not None:
                twin[joined] = twin[joined] + block[joined]
            else:
                kept.append(block)
                alike[tuple(rest)] = block
        blocks = kept
    return blocks


def plain(node: Any) -> Any:
    """Tuples as lists, as a YAML file has them."""
    if isinstance(node, dict):
        return {key: plain(value) for key, value in node.items()}
    return [plain(v) for v in node] if isinstance(node, (list, tuple)) else node


def resolved(config: Config) -> dict[str, Any]:
    """The whole config, defaults of the code written out."""
    node = plain(config.to_config())
    return {key: value for key, value in node.items() if key not in LEFT_OUT}


def own(config: Config) -> dict[str, Any]:
    """The same without keywords that equal their default in the code."""
    node = resolved(config)
    for key in (*PARTS, *OPTIONAL_PARTS):
        part = getattr(config, key)
        node[key] = part and plain(part.identity())
    return node


def leaves(node: Any, prefix: str = "") -> dict[str, Any]:
    """Dotted path -> value."""
    if not isinstance(node, dict):
        return {prefix: node}
    return {
        path: value
        for key, below in node.items()
        for path, value in leaves(below, f"{prefix}.{key}" if prefix else key).items()
    }


def differences(before: dict, config: Config) -> list[str]:
    """'key: old -> new' for all that changed.

    A keyword that the code got since, at its default, changes nothing; a default that
    was changed does.
    """
    old, now, set_now = leaves(before), leaves(resolved(config)), leaves(own(config))
    keys = dict.fromkeys([*old, *set_now])
    missing = "nothing"
    return [
        f"{key}: {old.get(key, missing)} -> {now.get(key, missing)}"
        for key in keys
        if old.get(key, missing) != now.get(key, missing)
    ]


def block_lines(blocks: list[dict[str, list[str]]]) -> list[str]:
    """A line a block, as on a command line."""
    return [" ".join(f"{k}={','.join(v)}" for k, v in b.items()) for b in blocks]


def write(composer: Composer, name: str) -> None:
    jobs = jobs_of(composer, name)
    node = {
        "n_jobs": len(jobs),
        "jobs": block_lines(folded(jobs)),
        "base": resolved(base_of(composer, name)),
    }
    text = yaml.safe_dump(node, sort_keys=False, width=10_000, allow_unicode=True)
    (GOLDEN / f"{name}.yaml").write_text(text, encoding="utf-8")


# -- the experiments -------------------------------------------------------------


def kept(name: str) -> dict[str, Any]:
    return yaml.safe_load((GOLDEN / f"{name}.yaml").read_text(encoding="utf-8"))


def test_every_experiment_is_kept_and_nothing_else():
    assert sorted(p.stem for p in GOLDEN.glob("*.yaml")) == EXPERIMENTS


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_has_the_config_it_had(composer, name):
    changed = differences(kept(name)["base"], base_of(composer, name))
    assert not changed, "\n".join([f"experiment={name} has changed:", *changed])


@pytest.mark.parametrize("name", EXPERIMENTS)
def test_an_experiment_has_the_jobs_it_had(composer, name):
    jobs = jobs_of(composer, name)
    before, now = kept(name), block_lines(folded(jobs))
    gone = [f"- {line}" for line in before["jobs"] if line not in now]
    come = [f"+ {line}" for line in now if line not in before["jobs"]]
    changed = "\n".join([f"jobs of experiment={name} have changed:", *gone, *come])
    assert before["jobs"] == now, changed
    assert before["n_jobs"] == len(jobs)


# -- what compares them ----------------------------------------------------------


def test_folded_jobs_are_the_same_jobs():
    jobs = [
        [f"norm={norm}", f"seed={seed}", "steps=5"]
        for norm in ("a", "b")
        for seed in range(3)
    ]
    jobs += [["norm=c", "seed=0", "steps=5"], ["norm=a", "steps=5"], ["norm=a", "+x=1"]]
    blocks = folded(jobs)
    assert block_lines(blocks) == [
        "norm=a,b,c seed=0 steps=5",
        "norm=a,b seed=1,2 steps=5",
        "norm=a steps=5",
        "norm=a +x=1",
    ]
    counted = [math.prod(len(v) for v in block.values()) for block in blocks]
    assert sum(counted) == len(jobs)


@pytest.mark.parametrize("name", ["quickstart", "derf_muon", "residual_zoo"])
def test_no_job_is_lost_or_made_by_folding(composer, name):
    jobs = jobs_of(composer, name)
    sizes = [math.prod(map(len, block.values())) for block in folded(jobs)]
    assert sum(sizes) == len(jobs)
    values = collections.Counter(o for job in jobs for o in job)
    again = collections.Counter()
    for size, block in zip(sizes, folded(jobs), strict=True):
        for key, options in block.items():
            for value in options:
                again[f"{key}={value}"] += size // len(options)
    assert again == values


@pytest.mark.parametrize(
    "override, lines",
    [
        ("steps=601", ["steps: 600 -> 601"]),
        ("model.norm.eps=0.5", ["model.norm.eps: 1e-06 -> 0.5"]),
        ("schedule=constant", ["schedule._target_: "]),
        (
            "averaging=ema",
            ["averaging: None -> nothing", "averaging._target_: nothing ->"],
        ),
        ("logger=tensorboard", []),
    ],
)
def test_a_change_is_told_by_key_old_and_new(composer, override, lines):
    changed = composer.compose(["experiment=quickstart", override])
    told = differences(kept("quickstart")["base"], changed)
    assert bool(told) == bool(lines)
    for line in lines:
        assert any(one.startswith(line) for one in told), told


def test_a_default_changed_in_the_code_is_told_and_a_new_keyword_is_not(composer):
    config = base_of(composer, "quickstart")
    before = resolved(config)
    del before["model"]["tied_head"]  # a keyword that the code did not have then
    assert differences(before, config) == []
    before["model"]["norm"]["gain"] = False  # a default that was another then
    assert differences(before, config) == ["model.norm.gain: False -> ones"]


if __name__ == "__main__":
    GOLDEN.mkdir(exist_ok=True)
    for path in GOLDEN.glob("*.yaml"):
        path.unlink()
    one_for_all = make_composer()
    for experiment in EXPERIMENTS:
        write(one_for_all, experiment)
