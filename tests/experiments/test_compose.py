"""Fast composition is Hydra's own; every file of conf/ composes."""

import time

import pytest
from hydra import compose as hydra_compose
from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from omegaconf import OmegaConf

from experiments import api
from experiments.compose import CONF, Composer
from experiments.config import Config
from experiments.errors import UserError
from experiments.phases import planned_jobs

EXPERIMENTS = sorted(p.stem for p in (CONF / "experiment").glob("*.yaml"))
# Group -> choices, from the files themselves.
CHOICES = [
    (str(p.parent.relative_to(CONF)), p.stem)
    for p in sorted(CONF.glob("*/**/*.yaml"))
    if p.relative_to(CONF).parts[0] not in ("experiment", "hydra")
]


@pytest.fixture(scope="module")
def composer():
    """One for all tests: what it remembers must not leak from one job to another."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        return Composer(GlobalHydra.instance().config_loader(), "config")


def of_hydra(overrides) -> tuple[dict, dict]:
    """Config and choices as Hydra composes them."""
    with initialize_config_dir(str(CONF), version_base="1.3"):
        full = hydra_compose("config", list(overrides), return_hydra_config=True)
    asked = full.hydra.runtime.choices.items()
    choices = {k: v for k, v in asked if not k.startswith("hydra/")}
    OmegaConf.set_struct(full, False)
    del full["hydra"]
    return OmegaConf.to_container(full, resolve=True), choices


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("seed=3", "optimizer.learning_rate=0.5"),
        ("seed=4",),  # nothing of the job before is left
        ("norm=derf", "model.norm.alpha_init=0.3"),
        ("norm@model.ffn_norm=derf",),
        ("norm@model.ffn_norm=derf", "norm=dyt", "model.ffn_norm.alpha_init=2"),
        ("norm@model.attention.qk_norm=rmsnorm", "model.attention.qk_norm.eps=0"),
        ("model.n_layers=7", "model=tiny"),  # a value, although a choice comes after it
        ("model=tiny", "optimizer=muon", "placement=post", "ffn=swiglu", "init=torch"),
        ("+tags.x=1", "+tags.y=[1,2]", "++tags.x=2"),
        ("+tags={a: {b: 1}}", "tags.a.b=2"),
        ("~positions",),
        ("~norm@model.ffn_norm",),
        # A value that refers to what no value sets, by each way there is to say it.
        ("+tags.a=${seq_len}", "seed=1"),
        ("+tags.a=${..seq_len}",),
        ("+tags={a: batch_size, b: '${${.a}}'}",),
        ("+tags.a=${schedule}", "steps=5"),
        ("+tags.a=${oc.select:schedule.warmup_steps}",),
        ("data=gaussian", "model=residual_mlp", "task=depth", "model.d_model=8"),
        ("embedding_positions=learned", "seq_len=9"),
        ("embedding_positions=learned", "seed=9"),
        ("model=residual_mlp", "task=depth", "norm=layernorm", "model.d_model=32"),
        ("model=residual_mlp", "data.n_rows=8"),
        ("data=markov", "data.vocab_size=5", "model.vocab_size=${data.vocab_size}"),
        ("name='a b'", "seed=1", "seed=2"),
        *((f"experiment={name}",) for name in EXPERIMENTS),
        *((f"experiment={name}", "name=other", "seed=9") for name in EXPERIMENTS),
    ],
)
def test_it_equals_hydras_own(composer, overrides):
    assert composer.resolve(overrides) == of_hydra(overrides)


def test_a_job_leaves_nothing_in_the_next(composer):
    before, _ = composer.resolve([])
    composer.resolve(["+tags.left=1", "model.norm.eps=1", "seed=9"])
    assert composer.resolve([])[0] == before


# -- every file ----------------------------------------------------------------


@pytest.mark.parametrize("group, choice", CHOICES)
def test_every_choice_composes_and_passes_its_checks(composer, tmp_path, group, choice):
    text = tmp_path / "text.txt"
    text.write_text("some text " * 100)
    needs = {
        ("data", "bytes"): [f"data.path={text}"],
        ("data", "corpus"): [f"data.paths={text}"],
        ("data", "tokens"): [
            f"data.paths={text}",
            "data.dtype=uint16",
            "data.vocab_size=65536",
        ],
        ("task", "tokenize"): [f"data.paths={text}"],
        ("task", "generate"): ["task.tokens=[1]"],
    }
    # Schemes that mean something with the placement of their name only.
    for scheme in ("b2t", "deepnorm", "keel", "layernorm_scaling", "residual_dual"):
        needs["residual", scheme] = [f"placement={scheme}"]
    # Groups without a place of their own: parts of other parts.
    inside = {
        "newton_schulz": "newton_schulz@optimizer.iteration",
        "roles": "roles@optimizer.roles",
        "stream_kernel": "stream_kernel@model.residual.kernel",
    }
    place = inside.get(group, group)
    if group == "stream_kernel":
        place, first = f"+{place}", ["residual=mhc"]
    else:
        first = ["optimizer=muon"] if group in inside else []
    more = needs.get((group, choice), [])
    config = composer.compose([*first, f"{place}={choice}", *more])
    assert config.choices[place.lstrip("+")] == choice


def test_there_are_choices_to_test():
    assert {"norm", "model", "placement", "data", "task"} <= {g for g, _ in CHOICES}
    assert "xiong" in EXPERIMENTS


def configs_of(composer, overrides: list[str]) -> list[Config]:
    """Of an experiment; of one in phases as if the first values had been best."""
    sweeper = composer.sweeper(overrides)
    phases, params = sweeper.get("phases"), sweeper.get("params")
    if not phases:
        return api.compose(overrides)
    jobs = planned_jobs(phases, overrides, composer.parser, params)
    # A cell's own best rate and the shared one are then the same.
    configs = [composer.compose(job) for job in jobs]
    return list({c.identity("f"): c for c in configs}.values())


@pytest.fixture(scope="module", params=EXPERIMENTS)
def experiment(request, composer) -> tuple[str, list[Config]]:
    return request.param, configs_of(composer, [f"experiment={request.param}"])


def test_an_experiment_composes_under_its_own_name(experiment):
    name, configs = experiment
    assert {c.name for c in configs} == {name}
    assert len({c.identity("f") for c in configs}) == len(configs)


def test_an_experiments_numbers_win_over_the_defaults(experiment):
    name, configs = experiment
    node = OmegaConf.to_container(OmegaConf.load(CONF / f"experiment/{name}.yaml"))
    scalars = {k: v for k, v in node.items() if not isinstance(v, (dict, list))}
    for key, value in scalars.items():
        assert {getattr(c, key) for c in configs} == {value}, key
    plain = {k: v for k, v in node.get("optimizer", {}).items() if k != "roles"}
    for key, value in plain.items():
        assert {c.optimizer.get(key) for c in configs} == {value}, key


def test_the_command_line_wins_over_an_experiment(experiment, composer):
    name, _ = experiment
    asked = [f"experiment={name}", "name=mine", "steps=7", "seed=5", "log_every=3"]
    for config in configs_of(composer, asked):
        assert (config.name, config.steps, config.seed) == ("mine", 7, 5)
        assert config.log_every == 3


def test_an_experiment_opens_with_its_question_and_command(experiment):
    name, configs = experiment
    lines = (CONF / f"experiment/{name}.yaml").read_text().splitlines()
    header = []
    for line in lines[1:]:
        if not line.startswith("#"):
            break
        header.append(line)
    assert lines[0] == "# @package _global_"
    assert header[0].endswith("?")
    assert f"python launch.py experiment={name}" in "\n".join(header)
    assert configs[0].tags["question"].endswith("?")


# -- api.compose ---------------------------------------------------------------


def test_a_thousand_jobs_compose_and_check_in_seconds():
    start = time.process_time()  # what it costs, whatever else the machine does
    configs = api.compose(
        [
            "seed=range(0,250)",
            "optimizer.learning_rate=1e-3,3e-3",
            "norm=rmsnorm,derf",
        ]
    )
    seconds = time.process_time() - start
    print(f"1,000 jobs composed and checked in {seconds:.1f} s")
    assert len({c.identity("f") for c in configs}) == 1000
    assert seconds < 10


def test_composing_twice_in_one_process_is_the_same():
    overrides = ["norm=derf", "seed=0,1"]
    assert api.compose(overrides) == api.compose(overrides)
    assert not GlobalHydra.instance().is_initialized()


def test_composing_inside_a_hydra_context_leaves_it_alone():
    outside = api.compose(["norm=derf", "seed=0,1"])
    with initialize_config_dir(str(CONF), version_base="1.3"):
        theirs = GlobalHydra.instance().hydra
        assert api.compose(["norm=derf", "seed=0,1"]) == outside
        with pytest.raises(UserError, match=r"did you mean model\.n_layers"):
            api.compose(["depth=4"])
        assert GlobalHydra.instance().hydra is theirs
        assert hydra_compose("config", ["seed=8"]).seed == 8
    assert not GlobalHydra.instance().is_initialized()


def test_an_error_leaves_no_hydra_behind():
    for wrong in ("depth=4", "norm=nope", "steps=0"):
        with pytest.raises(UserError):
            api.compose([wrong])
        assert not GlobalHydra.instance().is_initialized()


def test_a_value_left_open_is_refused():
    with pytest.raises(UserError, match="name"):
        api.compose(["name=???"])


def test_overrides_of_hydra_itself_count_and_make_no_job():
    configs = api.compose(["+hydra.sweeper.params.seed='1,2'", "steps=3"])
    assert [c.seed for c in configs] == [1, 2]
    assert all(o.startswith(("seed", "steps")) for c in configs for o in c.overrides)


def test_nothing_to_run_is_no_error():
    assert api.run([]) == []
