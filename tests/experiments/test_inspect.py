"""task=inspect: what it measures, against other ways to the same numbers."""

import json
import pathlib
import shutil

import jax
import jax.numpy as jnp
import numpy as np
import pytest
from flax import nnx
from safetensors.numpy import load_file, save_file

from analysis.report import write_report
from experiments import api, weights
from experiments.errors import ConfigError
from experiments.group import plan
from experiments.tasks import inspect
from experiments.tasks.propagate import Recorded, statistics

RELEASED = pathlib.Path(__file__).parents[1] / "golden" / "released"
N = 3  # layers of the golden models


@pytest.fixture(scope="module")
def folder(tmp_path_factory):
    path = tmp_path_factory.mktemp("llama3")
    shutil.copy(RELEASED / "llama3" / "config.json", path)
    tensors = load_file(RELEASED / "llama3" / "weights.safetensors")
    save_file(
        {name: x.astype(jnp.bfloat16) for name, x in tensors.items()},
        path / "model.safetensors",
    )
    return path


@pytest.fixture
def compose(folder, tmp_path):
    def compose(*more):
        other = any(line.startswith("model.from_checkpoint") for line in more)
        source = () if other else (f"model.from_checkpoint={folder}",)
        given = ("task=inspect", *source, "data=copy")
        small = ("seq_len=16", "batch_size=4", "accumulate=2")
        return api.compose([*given, *small, f"runtime.output_dir={tmp_path}", *more])

    return compose


def probes_of(config):
    """quantity -> values, and the run's directory."""
    (member,) = api.run([config])
    assert member.state == "completed", member.error
    rows = member.directory.rows("probes.jsonl")
    return {row["quantity"]: row["values"] for row in rows}, member.directory


def parts_and(config):
    """Program, its batch in the parts of the task, and the weights in float32."""
    (group,) = plan([config])
    program = group.programs.program
    batch = program.probe_batch(jnp.uint32(config.seed), group.programs.data)
    _, params, rest = weights.load(config, dtype="float32")
    return program, batch.reshape(config.accumulate, -1, batch.shape[-1]), params, rest


def test_loss_and_gradient_are_those_of_the_whole_batch(compose):
    (config,) = compose("task.param_dtype=float32")
    found, _ = probes_of(config)
    program, parts, params, rest = parts_and(config)
    batch = parts.reshape(-1, parts.shape[-1])

    def loss_of(params):
        return program.layout.merge(params, rest).loss(batch)[0]

    loss, grads = jax.jit(jax.value_and_grad(loss_of))(params)
    assert found["loss"] == pytest.approx([float(loss)], rel=1e-5)
    up = np.asarray(grads["blocks/layers/ffn/branch/up/kernel"])
    norms = [np.linalg.norm(layer) for layer in up]
    assert found["grad_norm/ffn/up/kernel"] == pytest.approx(norms, rel=1e-4)
    total = np.sqrt(sum(np.sum(np.square(g)) for g in grads.values()))
    assert found["grad_norm/total"] == pytest.approx([float(total)], rel=1e-4)


def test_the_gradient_of_the_stream_does_not_depend_on_the_parts(compose):
    one, two = (
        probes_of(compose("task.param_dtype=float32", f"accumulate={k}")[0])[0]
        for k in (1, 2)
    )
    for name in ("stream_grad_norm", "grad_norm/attn/o/kernel", "stream_mean_square"):
        assert one[name] == pytest.approx(two[name], rel=1e-4), name
    highest = one["attention_logit_max/1"]
    assert two["attention_logit_max/1"] == pytest.approx(highest, rel=1e-5)


def test_the_loss_without_a_block_is_that_of_the_shorter_model(compose, folder):
    (config,) = compose()
    found, _ = probes_of(config)
    _, parts, params, _ = parts_and(config)
    (shorter,) = api.compose([f"model.from_config={folder}", f"model.n_layers={N - 1}"])
    layout = weights.layout_of(
        lambda: shorter.model.build(shorter.traced_values(), "model")(rngs=nnx.Rngs(0))
    )
    losses = []
    for i in range(N):
        left = {
            path: np.delete(x, i, axis=0) if path.startswith("blocks/") else x
            for path, x in params.items()
        }
        model = layout.merge(jax.tree.map(jnp.asarray, left), {})
        losses.append(np.mean([float(model.loss(part)[0]) for part in parts]))
    assert found["loss_without_block"] == pytest.approx(losses, rel=1e-5)
    assert np.ptp(losses) > 0.01


def test_removal_is_traced_once_whatever_the_depth(compose, monkeypatch):
    (config,) = compose()
    program, parts, params, rest = parts_and(config)
    traced = []
    original = inspect.Skipped.__init__
    monkeypatch.setattr(
        inspect.Skipped,
        "__init__",
        lambda self, *a: traced.append(0) or original(self, *a),
    )
    inspect.removal(program, params, rest, list(parts))
    assert len(traced) == 1


def test_statistics_of_the_stream_are_those_of_propagate(compose):
    found, _ = probes_of(compose()[0])
    program, parts, params, rest = parts_and(compose()[0])
    wanted = []
    for part in parts:
        model = program.layout.merge(params, rest)
        model.blocks = Recorded(model.blocks)
        _, measured = model.loss(part, jnp.zeros(program.tap_shape))
        streams = (measured["stream_before"], measured["stream_after"])
        wanted.append(statistics(*streams, len(part)))
    for name in wanted[0]:
        mean = np.mean([w[name] for w in wanted], axis=0)
        np.testing.assert_allclose(found[name], mean, rtol=1e-4, atol=1e-6)


def test_everything_that_was_asked_for_is_there(compose):
    found, directory = probes_of(
        compose("task.gradients=false", "task.removal=false")[0]
    )
    assert not any(name.startswith("grad_norm") for name in found)
    assert {"stream_grad_norm", "loss_without_block"}.isdisjoint(found)
    assert {"site/x_rms", "final/x_rms", "attention_logit_max/0", "loss"} <= set(found)
    assert {"branch_mean_square", "block_influence", "stream_cosine"} <= set(found)
    (row,) = directory.rows("metrics.jsonl")
    assert row == {"step": 0, "loss": found["loss"][0]}
    plain, _ = probes_of(compose("probe=stream", "task.gradients=false")[0])
    assert not any(name.startswith(("site/", "attention")) for name in plain)


def test_gradients_do_not_change_what_the_forward_pass_measures(compose):
    with_them, _ = probes_of(compose("task.removal=false")[0])
    (config,) = compose("task.removal=false", "task.gradients=false")
    for name, values in probes_of(config)[0].items():
        assert with_them[name] == pytest.approx(values, rel=1e-5), name


def test_a_large_head_in_pieces_is_the_same_head(compose, folder, monkeypatch):
    (config,) = compose()
    whole, _ = probes_of(config)
    monkeypatch.setattr(inspect, "PIECE", 300)  # of 32 x 64: a last one that overlaps
    found, _ = probes_of(compose("name=pieces")[0])
    assert found["loss"] == pytest.approx(whole["loss"], rel=1e-6)
    _, params, _ = weights.load(config)
    assert params["head/kernel"].size > 6 * 300
    x = jnp.ones((2, 32)) * jnp.arange(32)
    for axis, matrix in ((1, params["head/kernel"]), (0, params["head/kernel"].T)):
        bias = nnx.Param(jnp.arange(matrix.shape[axis], dtype=jnp.float32))
        pieces = inspect.Pieces(matrix, axis, bias)(x)
        wanted = x @ params["head/kernel"].astype(jnp.float32) + bias[...]
        np.testing.assert_allclose(pieces, wanted, rtol=1e-5)


def test_loops_do_not_hold_a_second_copy_of_narrow_parameters():
    """What `compiled` is for; fails once XLA no longer knows the pass by this name."""
    n_layers, width = 8, 128
    shapes = [
        jax.ShapeDtypeStruct((n_layers, width, width), jnp.bfloat16),
        jax.ShapeDtypeStruct((4, width), jnp.float32),
    ]

    def through(kernels, x):
        def body(x, kernel):
            return jnp.tanh(x @ kernel.astype(x.dtype)), None

        return jax.lax.scan(body, x, kernels)[0]

    plan = inspect.compiled(through).lower(*shapes).compile().memory_analysis()
    assert plan.temp_size_in_bytes < 3 * 4 * width * width


@pytest.mark.slow
def test_streams_have_the_entries_of_their_mixing(tmp_path, compose):
    tiny = ("model=tiny", "data=copy", "seq_len=16", "batch_size=2", "steps=1")
    where = f"runtime.output_dir={tmp_path / 'own'}"
    (config,) = api.compose([*tiny, "residual=mhc", "task.eval_every=null", where])
    (member,) = api.run([config])
    (config,) = compose(f"model.from_checkpoint={member.directory.path}")
    found, directory = probes_of(config)
    assert len(found["mixing/0/0"]) == 2 * 2
    assert len(found["loss_without_block"]) == 2
    report = write_report(directory.path.parent)
    names = {path.stem for path in report.figures}
    assert {"composite_gain", "removal", "stream", "profile_block_influence"} <= names
    assert "loss" not in names


def test_without_a_checkpoint_there_is_nothing_to_look_at(tmp_path):
    (config,) = api.compose(["task=inspect", f"runtime.output_dir={tmp_path}"])
    with pytest.raises(ConfigError, match="expected the folder of one"):
        api.run([config])
    assert not any(tmp_path.iterdir())


def test_a_wrong_type_of_parameters_is_refused(compose):
    with pytest.raises(
        Exception, match="param_dtype must be float32, bfloat16 or null"
    ):
        compose("task.param_dtype=float16")


def test_text_through_the_tokenizer_of_the_checkpoint(compose, folder, tmp_path):
    tokenizers = pytest.importorskip("tokenizers")
    model = tokenizers.models.WordLevel({"a": 0, "b": 1, "?": 2}, unk_token="?")
    made = tokenizers.Tokenizer(model)
    made.pre_tokenizer = tokenizers.pre_tokenizers.Whitespace()
    made.save(str(tmp_path / "tokenizer.json"))
    (tmp_path / "my.txt").write_text("a b b a\n" * 200)
    (config,) = compose(
        "data=corpus",
        f"data.paths={tmp_path / 'my.txt'}",
        f"data.tokenizer={tmp_path / 'tokenizer.json'}",
    )
    found, directory = probes_of(config)
    env = json.loads((directory.path / "env.json").read_text())
    assert env["data"]["vocab_size"] == 3  # the model's is 64
    assert np.isfinite(found["loss"]).all()
