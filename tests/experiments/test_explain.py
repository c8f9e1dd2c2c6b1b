"""What is wrong with a command line, in one line that names the fix."""

import pytest
from hydra.errors import HydraException

from experiments import api
from experiments.errors import ALIASES, RunFailed, UserError, nearest, other_name
from experiments.explain import one_line


@pytest.mark.parametrize(
    "overrides, message",
    [
        ("norm=rmsnrom", "norm=rmsnrom: no such choice; did you mean rmsnorm?"),
        ("norm=zzz", " choices of norm: see --help)"),
        ("norm=", " choices of norm: see --help)"),
        ("schedule=zzz", "no such choice (choices of schedule: constant, "),
        ("experiment=xoing", "experiment=xoing: no such choice; did you mean xiong?"),
        ("norm@model.ffn_norm=drf", "norm=drf: no such choice; did you mean derf?"),
        (
            "norm@model.fnal_norm=derf",
            "norm@model.fnal_norm: no such place for a choice; did you mean "
            "norm@model.final_norm?",
        ),
        ("modle=tiny", "modle: no such key; did you mean model?"),
        ("depth=4", "depth: no such key; did you mean model.n_layers?"),
        ("learning_rate=1", "did you mean optimizer.learning_rate?"),
        ("lr=1e-3", "lr: no such key; did you mean optimizer.learning_rate?"),
        ("d_ff=8", "d_ff: no such key; did you mean model.d_ff?"),
        ("model.depth=4", "model.depth: no such key; did you mean model.n_layers?"),
        ("runtime.layuot=map", "did you mean runtime.layout?"),
        ("zzz=1", "zzz: no such key"),
        (
            "norm=derf model.norm.alpha_inti=0.3",
            "model.norm.alpha_inti: Derf has no such keyword; did you mean alpha_init? "
            "(it has alpha_init, shift_init, shift, bias)",
        ),
        ("steps", "steps: not an override; expected key=value (or key=a,b with -m)"),
        ("=4", "=4: not an override; expected key=value"),
        ("x=[1", "x=[1: not an override"),
        ("norm@model.ffn_norm=null", "to leave one out write ~norm@model.ffn_norm"),
        ("norm=3", "norm=3: a choice is a name"),
        ("+norm=derf", "norm: has a choice already; replace it without the +"),
        ("~optimizer.momentum", "'optimizer.momentum' does not exist"),
        ("tags.x=1", "tags.x=1: a new tag needs a plus: +tags.x=1"),
        ("+seed=1", "An item is already at 'seed'"),
        ("name=${nope}", "Interpolation key 'nope' not found"),
        ("+model.depth=4", "model.depth: LanguageModel has no such keyword; did you"),
        ("norm=[rmsnorm,derf]", "norm: expected one choice, got [rmsnorm,derf]"),
        ("~norm", "model.norm: LanguageModel needs it"),
        ("~model", "model: expected a part"),
        ("model.norm=3", "model.norm: expected a part"),
        ("model.d_model=130", "model.d_model=130 is not divisible by n_heads=4"),
    ],
)
def test_a_mistake_is_told_in_one_line_that_names_the_fix(overrides, message):
    with pytest.raises(UserError) as error:
        api.compose(overrides.split())
    told = str(error.value)
    assert message in told
    assert "\n" not in told
    assert len(told) < 400


def test_only_mistakes_are_explained():
    with pytest.raises(ZeroDivisionError):
        one_line(ZeroDivisionError("ours"))
    assert one_line(RunFailed("1 of 2 runs failed")) == "error: 1 of 2 runs failed"
    assert one_line(UserError("seed: no")) == "error: seed: no"


def test_what_hydra_says_in_many_lines_becomes_one(monkeypatch):
    monkeypatch.setattr("sys.argv", ["launch.py", "a=1"])
    error = HydraException("first line\n  second line\n    object_type=dict\n")
    assert one_line(error) == "error: first line second line"


@pytest.mark.parametrize("key", sorted(set(ALIASES.values())))
def test_an_alias_leads_to_a_key_of_the_default_config(key):
    (config,) = api.compose([])
    node = config.to_config()
    for name in key.split("."):
        node = node[name]
    assert not isinstance(node, dict)


def test_other_names_are_found_below_a_dot_and_nearly_right():
    assert other_name("num_layers") == "model.n_layers"
    assert other_name("model.hidden_dims") == "model.d_model"
    assert other_name("model.n_layers") is None
    assert other_name("zzz") is None


def test_nothing_is_suggested_where_nothing_is_close():
    assert nearest("rmsnrom", ["rmsnorm", "derf"]) == "; did you mean rmsnorm?"
    assert nearest("zzz", ["rmsnorm", "derf"]) == ""
