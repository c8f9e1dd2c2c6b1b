"""model.from_checkpoint: weights of a folder or of a run, whole or with parts swapped."""

import json
import pathlib
import shutil
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from safetensors.numpy import load_file, save_file

from blocks.families import weights as released
from blocks.families.fields import Fields
from experiments import api, weights
from experiments.errors import ConfigError, UserError
from experiments.fingerprint import PIECE, fingerprint
from experiments.group import plan
from experiments.trained import trained

RELEASED = pathlib.Path(__file__).parents[1] / "golden" / "released"


@pytest.fixture
def folder(tmp_path):
    """folder(family): a checkpoint of golden size, as one is published."""

    def folder(family="llama3", change=lambda tensors: None):
        path = tmp_path / family
        path.mkdir(exist_ok=True)
        shutil.copy(RELEASED / family / "config.json", path)
        tensors = load_file(RELEASED / family / "weights.safetensors")
        change(tensors)
        save_file(tensors, path / "model.safetensors")
        return path

    return folder


def composed(path, *more):
    (config,) = api.compose([f"model.from_checkpoint={path}", *more])
    return config


def same(actual, expected):
    assert actual.keys() == expected.keys()
    for path, x in expected.items():
        np.testing.assert_array_equal(actual[path], x, err_msg=path)


# -- which model -------------------------------------------------------------------


def test_the_model_is_that_of_the_config_and_the_weights_are_named(folder):
    path = folder()
    config = composed(path)
    (plain,) = api.compose([f"model.from_config={path}"])
    assert config.model == plain.model
    assert (config.weights.path, config.weights.changed) == (str(path), ())
    assert plain.weights.path is None


def test_a_relative_folder_is_named_by_where_it_is(folder, monkeypatch):
    path = folder()
    monkeypatch.chdir(path.parent)
    assert composed("llama3").weights.path == str(path)


@pytest.mark.parametrize(
    "more, changed",
    [
        (["norm=derf", "model.norm.alpha_init=0.3"], ["model.norm"]),
        (["model.n_layers=2", "residual=mhc"], ["model.n_layers", "model.residual"]),
        (["norm@model.final_norm=dyt"], ["model.final_norm"]),
        (["model.dtype=bfloat16", "model.remat=dots", "init=xavier", "seed=3"], []),
    ],
)
def test_what_was_changed_is_part_of_the_config(folder, more, changed):
    found = composed(folder(), *more).weights.changed
    assert [key for key in found if key != "model.norm.alpha_init"] == changed


def test_a_sweep_over_parts_keeps_the_weights(folder):
    path = folder()
    configs = api.compose([f"model.from_checkpoint={path}", "norm=rmsnorm,derf"])
    assert {c.weights.path for c in configs} == {str(path)}
    assert [c.model["norm"].name for c in configs] == ["RMSNorm", "Derf"]


def test_folders_that_are_none_are_refused(tmp_path, folder):
    with pytest.raises(UserError, match="nowhere: expected a folder with config.json"):
        composed(tmp_path / "nowhere")
    path = folder()
    (path / "model.safetensors").unlink()
    with pytest.raises(ConfigError, match="expected model.safetensors or"):
        composed(path).identity("")


# -- which run ---------------------------------------------------------------------


def test_what_is_in_the_folder_makes_the_run_and_not_its_path(folder, tmp_path):
    path = folder()
    first = composed(path).identity("d")
    (plain,) = api.compose([f"model.from_config={path}"])
    assert first != plain.identity("d")
    elsewhere = shutil.copytree(path, tmp_path / "elsewhere" / "x")
    assert composed(elsewhere).identity("d") == first


def _last(tensors):
    tensors["model.layers.2.mlp.up_proj.weight"][-1, -1] += 1


def _renamed(tensors):
    tensors["model.norm.weighs"] = tensors.pop("model.norm.weight")  # in its place


@pytest.mark.parametrize("change", [_last, _renamed])
def test_another_content_is_another_fingerprint(folder, change):
    first = fingerprint(folder())
    assert fingerprint(folder(change=change)) != first
    assert fingerprint(folder()) == first


def test_a_fingerprint_reads_three_pieces_of_a_large_tensor(tmp_path):
    shutil.copy(RELEASED / "llama3" / "config.json", tmp_path)
    file, n = tmp_path / "model.safetensors", 100 * PIECE

    def print_with(at=None):
        x = np.zeros(n, np.uint8)
        if at is not None:
            x[at] = 1
        save_file({"x": x}, file)
        return fingerprint(tmp_path)

    first = print_with()
    for at in (0, PIECE - 1, n // 2, n - PIECE, n - 1):
        assert print_with(at) != first, at
    assert print_with(2 * PIECE) == first  # as documented


def test_a_config_from_before_there_were_weights_is_read(compose):
    node = compose()[0].to_config()
    del node["weights"]
    assert type(compose()[0]).parse(node).weights.path is None


# -- loading -----------------------------------------------------------------------


@pytest.mark.parametrize("family", ["llama3", "deepseek_v3", "gpt2"])
def test_loaded_parameters_are_those_of_the_file(folder, family):
    path = folder(family)
    layout, params, rest = weights.load(composed(path))
    wanted, state = released.load(path, Fields.read(str(path)), layout)
    same(params, wanted)
    same({name: rest[name] for name in state}, state)
    layout.merge(params, rest)  # nothing is missing


def test_parameters_are_held_as_the_file_has_them_unless_told(folder):
    def halves(tensors):
        for name, x in tensors.items():
            tensors[name] = x.astype(jnp.bfloat16)

    config = composed(folder(change=halves))
    kinds = {
        dtype: {str(x.dtype) for x in weights.load(config, dtype=dtype)[1].values()}
        for dtype in (None, "float32", "bfloat16")
    }
    assert kinds == {
        None: {"bfloat16"},
        "float32": {"float32"},
        "bfloat16": {"bfloat16"},
    }
    config = composed(folder())
    found = weights.load(config)[1].values()
    assert {str(x.dtype) for x in found} == {"float32"}


def test_bfloat16_weights_give_the_loss_they_have_in_float32(folder):
    def halves(tensors):
        for name, x in tensors.items():
            tensors[name] = x.astype(jnp.bfloat16)

    config = composed(folder(change=halves))
    batch = jnp.arange(34).reshape(2, 17) % 13
    losses = []
    for dtype in ("bfloat16", "float32"):
        layout, params, rest = weights.load(config, dtype=dtype)
        model = jax.jit(lambda p, r, of=layout: of.merge(p, r).loss(batch)[0])
        losses.append(float(model(params, rest)))
    assert losses[0] == pytest.approx(losses[1], rel=1e-6)


@pytest.mark.skipif(jax.default_backend() != "cpu", reason="elsewhere it is copied")
def test_jax_takes_arrays_over_without_a_copy(folder, monkeypatch):
    made = []
    original = released.aligned
    monkeypatch.setattr(
        released, "aligned", lambda *a: made.append(original(*a)) or made[-1]
    )
    _, params, _ = weights.load(composed(folder()))
    addresses = {x.unsafe_buffer_pointer() for x in params.values()}
    assert addresses == {x.ctypes.data for x in made}


def test_what_is_loaded_is_not_initialized(folder, monkeypatch):
    from blocks.inits.normal import Normal

    def drawn(*_, **__):
        raise AssertionError("a random number was drawn")

    config = composed(folder())
    build = weights.maker(config)
    layout = weights.layout_of(lambda: build(jnp.uint32(0)))
    found = weights.fit_of(config.weights, layout)
    monkeypatch.setattr(Normal, "kernel", drawn)
    monkeypatch.setattr(Normal, "embedding", drawn)
    params, _ = weights.start(found, build, 0, None)
    assert params.keys() == layout.specs.keys()


MEASURE = """
import sys
from experiments import api, weights

def mib(key):
    with open("/proc/self/status") as file:
        (line,) = [line for line in file if line.startswith(key)]
    return int(line.split()[1]) / 1024

import jax
jax.devices()
(config,) = api.compose([f"model.from_checkpoint={sys.argv[1]}"])
before = mib("VmRSS")
_, params, _ = weights.load(config)
print(mib("VmHWM") - before, sum(x.nbytes for x in params.values()) / 2**20)
"""


@pytest.mark.slow
@pytest.mark.skipif(not sys.platform.startswith("linux"), reason="reads /proc")
def test_a_16_bit_checkpoint_takes_the_memory_of_its_parameters(tmp_path):
    """A tensor is 0.4 of them here, so neither it nor its pages may stay."""
    sizes = {"vocab_size": 64000, "hidden_size": 1024, "intermediate_size": 4096}
    heads = {"num_attention_heads": 8, "num_key_value_heads": 8, "head_dim": 128}
    node = json.loads((RELEASED / "llama3" / "config.json").read_text())
    node |= {**sizes, **heads, "num_hidden_layers": 2}
    (tmp_path / "config.json").write_text(json.dumps(node))
    (config,) = api.compose([f"model.from_config={tmp_path}"])
    build = weights.maker(config)
    layout = weights.layout_of(lambda: build(jnp.uint32(0)))
    params = {
        path: np.zeros(spec.shape, jnp.bfloat16) for path, spec in layout.specs.items()
    }
    fields = Fields.read(str(tmp_path))
    released.save(tmp_path / "model.safetensors", params, {}, fields, layout)
    done = subprocess.run(
        [sys.executable, "-c", MEASURE, str(tmp_path)],
        capture_output=True,
        text=True,
        check=True,
    )
    peak, size = map(float, done.stdout.split()[-2:])
    assert size > 250
    assert peak < 1.3 * size


# -- swapped parts -----------------------------------------------------------------


def found_in(config):
    build = weights.maker(config)
    layout = weights.layout_of(lambda: build(jnp.uint32(0)))
    return weights.fit_of(config.weights, layout)


def test_a_swapped_norm_keeps_the_gain_and_initializes_the_rest(folder):
    path = folder()
    config = composed(path, "norm=derf", "model.norm.alpha_init=0.25", "seed=3")
    layout, params, _ = weights.load(config)
    plain = weights.load(composed(path))[1]
    same({name: params[name] for name in plain}, plain)
    new = params.keys() - plain.keys()
    assert {name.rsplit("/", 1)[1] for name in new} == {"alpha", "shift", "bias"}
    assert float(params["final_norm/alpha"][0]) == 0.25
    assert params.keys() == layout.specs.keys()
    told = weights.told(found_in(config), config.weights)
    assert told[0].endswith("12 of 21 parameters are taken")
    assert told[1].startswith("as initialized: blocks/layers/attn/in_norm/alpha, ")
    assert told[2] == "left in the checkpoint: nothing"


def test_what_is_new_starts_as_in_a_run_of_the_seed(folder):
    path = folder()
    config = composed(path, "ffn=moe", "seed=5", "data=copy", "seq_len=16")
    found = weights.load(config)[1]
    router = "blocks/layers/ffn/branch/router/kernel"
    (group,) = plan([config])
    state = jax.jit(group.programs.program.init)(
        jnp.uint32(5), config.traced_values(), jnp.int32(1)
    )
    np.testing.assert_allclose(found[router], state.params[router], rtol=1e-6)
    assert np.ptp(found[router]) > 0


def test_tensors_without_a_place_are_left_and_told(folder):
    config = composed(folder(), "ffn=mlp")
    told = weights.told(found_in(config), config.weights)
    assert told[2].startswith("left in the checkpoint: model.layers.0.mlp.gate_proj")


def test_a_tensor_of_another_shape_is_left_and_its_parameter_new(folder):
    found = found_in(composed(folder(), "model.d_ff=64"))
    assert [p.rsplit("/", 2)[1] for p in found.fresh] == ["down", "gate", "up"]
    assert len(found.left) == 3 * 3


def test_more_layers_than_there_are_start_as_initialized(folder):
    path = folder()
    config = composed(path, "model.n_layers=4", "seed=2")
    found = found_in(config)
    assert set(map(tuple, found.gaps["blocks/layers/ffn/branch/up/kernel"])) == {(3,)}
    params = weights.load(config)[1]
    plain = weights.load(composed(path))[1]
    for name, x in plain.items():
        if name.startswith("blocks"):
            np.testing.assert_array_equal(params[name][:3], x)
    up = np.asarray(params["blocks/layers/ffn/branch/up/kernel"])
    assert 0 < np.std(up[3]) < 1
    assert not np.array_equal(up[3], up[2])
    assert np.all(np.asarray(params["blocks/layers/ffn/in_norm/gain"])[3] == 1)


def _lacks_a_layer(tensors):
    del tensors["model.layers.1.mlp.up_proj.weight"]


@pytest.mark.parametrize("more", [[], ["norm=derf"]])
def test_a_damaged_checkpoint_is_refused_also_with_swapped_parts(folder, more):
    path = folder(change=_lacks_a_layer)
    lacks = r"layers.1.mlp.up_proj.weight|up/kernel \(of layer 1\)"
    with pytest.raises(ConfigError, match=lacks):
        weights.load(composed(path, *more))


def test_weights_that_fit_nothing_are_refused(folder):
    def strange(tensors):
        for name in list(tensors):
            tensors[f"x.{name}"] = tensors.pop(name)

    path = folder(change=strange)
    with pytest.raises(ConfigError, match="missing: "):
        weights.load(composed(path))
    with pytest.raises(ConfigError, match="nothing of it has a place in the model"):
        weights.load(composed(path, "norm=derf"))


@pytest.mark.parametrize(
    "more, told",
    [
        (["task=depth"], "Depth initializes its model"),
        (["runtime.mesh.data=2"], "not on a runtime.mesh"),
        (["runtime.extend_from=0123456789ab"], "not with runtime.extend_from"),
    ],
)
def test_a_start_that_would_be_ignored_is_refused(folder, more, told):
    config = composed(folder(), *more)
    with pytest.raises(ConfigError, match=told):
        weights.check_weights(config)


# -- runs of ours ------------------------------------------------------------------


@pytest.fixture(scope="module")
def run(tmp_path_factory):
    """A run with parts inside parts, whose folder has = in its name."""
    (config,) = api.compose(
        [
            "model=tiny",
            "data=copy",
            "seq_len=16",
            "batch_size=2",
            "steps=2",
            "task.eval_every=null",
            "pattern=every_nth",
            "model.pattern.every=2",
            "+attention@model.pattern.attention=gated",
            "norm@model.ffn_norm=dyt",
            "~positions",
            f"runtime.output_dir={tmp_path_factory.mktemp('runs')}",
        ]
    )
    (member,) = api.run([config])
    assert "=" in member.directory.path.name
    return member.directory.path


def test_a_run_gives_its_model_and_its_weights(run):
    config = composed(run)
    (node,) = [json.loads((run / "config.json").read_text())]
    found = config.model.to_config()
    assert found == node["model"] | {"vocab_size": 17}
    layout, params, _ = weights.load(config)
    model, _ = trained(run)
    same(params, layout.split(model)[0])


def test_parts_of_a_run_can_be_swapped(run):
    config = composed(run, "norm=derf", "positions=rope", "data=copy")
    assert config.model["ffn_norm"].name == "DyT"
    assert config.model["norm"].name == "Derf"
    assert config.model["attention"]["positions"].name == "Rope"
    config = composed(run, "+attention@model.pattern.attention=qwen3")
    assert config.model["pattern"]["attention"]["gate"] is None
    assert any("attn/branch/gate" in name for name in found_in(config).left)


def test_a_run_that_does_not_fit_is_refused(run):
    config = composed(run)
    other = composed(run, "norm=derf")
    build = weights.maker(other)
    layout = weights.layout_of(lambda: build(jnp.uint32(0)))
    with pytest.raises(ConfigError, match="parameters that it lacks: .*shift"):
        weights.fit_of(config.weights, layout)


def test_another_checkpoint_of_a_run_is_another_start(run, tmp_path):
    copy = shutil.copytree(run, tmp_path / "copy")
    assert fingerprint(copy) == fingerprint(run)
    meta = next(copy.glob("checkpoints/*/meta/metadata"))
    node = json.loads(meta.read_text())
    meta.write_text(json.dumps(node | {"digest": "0" * 64}))
    assert fingerprint(copy) != fingerprint(run)
    shutil.rmtree(copy / "checkpoints")
    with pytest.raises(ConfigError, match="has no checkpoint yet"):
        fingerprint(copy)
