"""The catalogue: what is read, counted, drawn and written, and that nothing is hidden."""

import io
import json
import shutil

import numpy as np
import pytest
from flax import nnx
from rich.console import Console

from blocks.norms.batchnorm import BatchNorm
from blocks.norms.dyt import DyT
from blocks.norms.layernorm import LayerNorm
from blocks.norms.rmsnorm import RMSNorm
from experiments import api
from experiments.catalogue import choices, curves, text
from experiments.catalogue.build import Sizes, parameters_of
from experiments.catalogue.choices import groups
from experiments.compose import CONF
from experiments.errors import ConfigError, UserError
from tests.launching import launch

SIZES = Sizes(
    d_model=512, n_heads=8, d_ff=2048, n_layers=12, seq_len=1024, vocab_size=256
)
# What needs something of the user's own.
NOT_ALONE = {"data=bytes", "data=corpus", "data=tokens"}
NOT_ALONE |= {"task=tokenize", "task=generate"}
# Groups of which some choices name no class.
WITHOUT_CODE = ("experiment", "positions")


def every_choice():
    return {f"{c.group}={c.name}": c for found in groups().values() for c in found}


@pytest.fixture
def few(tmp_path, monkeypatch):
    """A conf/ of four files, one of them wrong."""
    conf = tmp_path / "conf"
    for name in ("norm/rmsnorm", "init/kaiming", "experiment/xiong"):
        target = conf / f"{name}.yaml"
        target.parent.mkdir(parents=True)
        shutil.copy(CONF / f"{name}.yaml", target)
    broken = "# @package model.norm\n# y = x [sic]\n_target_: blocks.norms.nope.Nope\n"
    (conf / "norm" / "broken.yaml").write_text(broken)
    monkeypatch.setattr(choices, "CONF", conf)
    return conf


def run(config):
    out = io.StringIO()
    members = api.run([config], console=Console(file=out, width=200))
    return members, out.getvalue()


# -- what choices say ------------------------------------------------------------


class WithBlock:
    """Says something.

        y = x + 1
          for all x

    Parameters (float32):
        gain  [d_model]

    Source: a paper,
    page 2.
    Departure: none.
    """


class WithLine:
    """y = x * 2, for every x.

    Args:
        x: a number.
    """


class WithNeither:
    """Says something.

    Args:
        x: a number.
    """


def test_formula_is_the_first_indented_block_or_the_first_line():
    assert text.formula_of(WithBlock) == "y = x + 1\n  for all x"
    assert text.formula_of(WithLine) == "y = x * 2, for every x."
    assert text.formula_of(WithNeither) is None
    assert text.formula_of(RMSNorm).startswith("y = ")


def test_source_ends_where_departures_begin():
    assert text.source_of(WithBlock) == "a paper, page 2."
    assert text.source_of(WithLine) is None


@pytest.mark.parametrize(
    "comment, says, source",
    [
        ("# y = x      arXiv 1234.5678", "y = x", "arXiv 1234.5678"),
        ("# y = x\n# arXiv 1234.5678 table 7", "y = x", "arXiv 1234.5678 table 7"),
        ("# y = x", "y = x", None),
        ("# w < 1:   y = x", "w < 1:   y = x", None),
        ("# one\n# two      Paper", "one\ntwo", "Paper"),
    ],
)
def test_comment_of_a_choice(comment, says, source):
    yaml = f"# @package model.norm\n{comment}\n_target_: a.B\n# later\n"
    assert text.comment_of(yaml) == (says, source)
    assert text.package_of(yaml) == "model.norm"


# -- every choice there is -------------------------------------------------------


def test_every_file_of_conf_is_a_choice():
    files = {p.relative_to(CONF).as_posix() for p in CONF.rglob("*/*.yaml")}
    found = {c.file.relative_to(CONF).as_posix() for c in every_choice().values()}
    assert found == {f for f in files if not f.startswith("hydra/")}


@pytest.mark.parametrize("name", sorted(set(every_choice()) - NOT_ALONE))
def test_every_choice_is_built_alone(name):
    part = every_choice()[name].part()
    if part is None:
        assert name.split("=")[0] in WITHOUT_CODE, name
        return
    specs = parameters_of(part, SIZES)
    if specs is None:  # no module: nothing of these is a factory
        assert not part.partial


@pytest.mark.parametrize(
    "name, n_params",
    [
        ("norm=layernorm", 2 * 512),
        ("norm=rmsnorm", 512),
        ("ffn=mlp", 2 * 512 * 2048),
        ("ffn=swiglu", 3 * 512 * 2048),
        ("attention=gqa", 4 * 512 * 512),
        ("positions=rope", 0),
        ("residual=add", 0),
        ("residual=layerscale", 2 * 512),  # both sub-layers of a block
        ("residual=rezero", 1),  # one factor for both
        # Two blocks of 4 d^2 + 2 d d_ff + 2 d, a final norm, table and head: d = 32.
        ("model=tiny", 2 * (4 * 32**2 + 2 * 32 * 128 + 2 * 32) + 32 + 2 * 256 * 32),
    ],
)
def test_parameters_are_counted(name, n_params):
    specs = parameters_of(every_choice()[name].part(), SIZES)
    assert sum(spec.size for spec in specs.values()) == n_params


def test_what_is_no_module_has_no_count():
    for name in ("init=kaiming", "optimizer=adamw", "placement=pre", "task=train"):
        assert parameters_of(every_choice()[name].part(), SIZES) is None


# -- curves ----------------------------------------------------------------------

T = np.array(curves.grid())
CLOSED = [
    # norm, y along a growing token, y along one growing feature of 64
    (RMSNorm(64, eps=1e-2, rngs=nnx.Rngs(0)),
     lambda t: t / np.sqrt(t**2 + 1e-2),
     lambda t: t / np.sqrt((t**2 + 63) / 64 + 1e-2)),
    (DyT(64, alpha_init=0.5, rngs=nnx.Rngs(0)),
     lambda t: np.tanh(t / 2), lambda t: np.tanh(t / 2)),
    # Evaluation: running mean 0 and variance 1, not those of a batch of one token.
    (BatchNorm(64, eps=1e-5, rngs=nnx.Rngs(0)),
     lambda t: t / np.sqrt(1 + 1e-5), lambda t: t / np.sqrt(1 + 1e-5)),
]  # fmt: skip


@pytest.mark.parametrize("norm, token, feature", CLOSED)
def test_curves_of_normalizers_have_their_closed_form(norm, token, feature):
    found = curves.norm_curves(norm, 64)
    for line, closed in (("token", token), ("feature", feature)):
        np.testing.assert_allclose(found[line]["y"], closed(T), rtol=1e-4, atol=1e-5)
        step = 1e-5
        slope = (closed(T + step) - closed(T - step)) / (2 * step)
        np.testing.assert_allclose(found[line]["slope"], slope, rtol=1e-3, atol=1e-4)


def test_layernorm_does_not_see_the_size_of_a_token():
    y = np.array(curves.norm_curves(LayerNorm(64, rngs=nnx.Rngs(0)), 64)["token"]["y"])
    far = np.abs(T) > 0.5
    np.testing.assert_allclose(np.abs(y[far]), np.abs(y[-1]), rtol=1e-3)
    assert (np.sign(y[far]) == np.sign(T[far])).all()


def test_curves_of_activations():
    by_name = {one["name"]: one for one in curves.activation_curves()}
    np.testing.assert_allclose(by_name["relu"]["y"], np.maximum(T, 0), atol=1e-6)
    np.testing.assert_allclose(by_name["tanh"]["y"], np.tanh(T), rtol=1e-5, atol=1e-7)
    slope = 1 - np.tanh(T) ** 2
    np.testing.assert_allclose(by_name["tanh"]["slope"], slope, rtol=1e-3, atol=1e-6)
    assert all(":math:" not in one["says"] for one in by_name.values())


# -- the task --------------------------------------------------------------------


def test_answer_prints_and_writes_and_makes_no_run(compose, few, tmp_path):
    (config,) = compose("task.d_model=64", task="catalogue")
    members, out = run(config)
    assert members == []
    folder = tmp_path / "catalogue"
    assert [p.name for p in folder.iterdir()] == ["catalogue.json"]
    node = json.loads((folder / "catalogue.json").read_text())
    assert node["schema"] == 1
    assert node["sizes"]["d_ff"] == 4 * 64
    assert [g["group"] for g in node["groups"]] == ["experiment", "init", "norm"]
    broken, norm = node["groups"][2]["entries"]
    assert norm["n_params"] == 64
    assert norm["params"] == [{"path": "gain", "role": "gain", "shape": [64]}]
    assert len(norm["curves"]["token"]["y"]) == len(node["t"])
    assert (norm["problem"], norm["choice"]) == (None, "rmsnorm")
    init = node["groups"][1]["entries"][0]
    assert init["n_params"] is None
    assert "2 / fan_in" in init["formula"]
    xiong = node["groups"][0]["entries"][0]
    assert (xiong["target"], xiong["problem"]) == (None, None)
    # A part that does not work is listed with its reason and stops no other.
    assert "cannot import 'blocks.norms.nope.Nope'" in broken["problem"]
    assert "1 could not be built alone:" in out
    assert "norm=broken: model.norm._target_: cannot import" in out
    assert "4 choices in 3 groups" in out
    assert norm["formula"].splitlines()[0][:30] in out


@pytest.mark.slow
def test_a_run_beside_a_catalogue_is_run(compose, few):
    (listing,) = compose(task="catalogue")
    (run_of,) = compose("model=residual_mlp", "data=gaussian", task="depth")
    members = api.run([listing, run_of], console=Console(file=io.StringIO()))
    assert [m.state for m in members] == ["completed"]


def test_wrong_sizes_are_refused(compose):
    with pytest.raises(ConfigError, match="task.d_model=510 is not divisible by n_he"):
        compose("task.d_model=510", task="catalogue")
    with pytest.raises(ConfigError, match="task.seq_len must be at least 1, got 0"):
        compose("task.seq_len=0", task="catalogue")


def test_a_folder_that_cannot_be_written_is_the_users_to_mend(compose, few, tmp_path):
    (tmp_path / "catalogue").write_text("a file")
    (config,) = compose(task="catalogue")
    with pytest.raises(UserError, match=r"catalogue\.json: cannot write there"):
        run(config)


@pytest.mark.slow
def test_the_commands_of_the_guide(tmp_path):
    done = launch("task=catalogue", cwd=tmp_path)
    assert done.returncode == 0, done.stderr
    assert "everything is in outputs/catalogue/catalogue.json" in done.stdout
    node = json.loads((tmp_path / "outputs/catalogue/catalogue.json").read_text())
    entries = {
        f"{g['group']}={e['choice']}": e for g in node["groups"] for e in g["entries"]
    }
    assert {name for name, e in entries.items() if e["problem"]} == NOT_ALONE
    assert all(e["curves"] for name, e in entries.items() if name.startswith("norm="))

    swept = launch("-m", "task=catalogue", "task.d_model=64,128", cwd=tmp_path)
    assert swept.returncode == 0, swept.stderr
    wrong = launch("task=catalogue", "task.d_modle=64", cwd=tmp_path)
    assert wrong.returncode == 1
    assert wrong.stderr.count("\n") == 1
    assert "did you mean d_model?" in wrong.stderr
