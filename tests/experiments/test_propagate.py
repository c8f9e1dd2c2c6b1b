"""Tasks that look at an untrained model: the stream block by block, and one step."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blocks.oracle import ffn as ffn_oracle
from blocks.oracle import norms as norm_oracle
from experiments import api
from experiments.errors import UserError
from experiments.group import plan
from experiments.members import stack_inputs
from experiments.run import RunDirectory
from experiments.tasks.propagate import statistics
from experiments.tasks.update_size import output_of
from tests.experiments.test_any_depth import probes as depth_probes

MLP = (
    "model=residual_mlp",
    "data=gaussian",
    "data.n_rows=8",
    "init=kaiming",
    "norm=layernorm_plain",
    "model.ffn.activation=relu",
    "model.d_model=16",
    "model.d_ff=24",
    "model.n_layers=3",
)


def measured_by(configs):
    """The task's arrays, and the program and inputs of each run."""
    found = []
    for group in plan(configs):
        program = group.programs.program
        with jax.enable_x64(program.signature.x64):
            for member in group.members:
                inputs = (*stack_inputs([member], program.dtype), group.programs.data)
                measured = group.task._compile(group.programs, len(inputs[0]))(*inputs)
                own = {k: np.asarray(v[0]) for k, v in measured.items()}
                seed, values, steps = jax.tree.map(lambda x: x[0], inputs[:3])
                found.append((own, program, (seed, values, steps, inputs[3])))
    return found


# -- the statistics --------------------------------------------------------------


def slowly(before, after, n_sequences):
    """The same by loops over tokens and pairs of tokens."""

    def cos(a, b):
        return a @ b / np.sqrt((a @ a) * (b @ b))

    found = {"activation/mean": [], "activation/std": [], "activation/zero": []}
    found |= {"block_influence": [], "token_cosine": []}
    for x, y in zip(before, after, strict=True):
        entries = y.ravel()
        mean = sum(entries) / len(entries)
        found["activation/mean"].append(mean)
        variance = sum((e - mean) ** 2 for e in entries) / len(entries)
        found["activation/std"].append(np.sqrt(variance))
        found["activation/zero"].append(sum(e == 0 for e in entries) / len(entries))
        turned = [cos(a, b) for a, b in zip(x, y, strict=True)]
        found["block_influence"].append(1 - sum(turned) / len(turned))
        sequences = y.reshape(n_sequences, -1, y.shape[-1])
        pairs = [
            cos(s[i], s[j]) for s in sequences for i in range(len(s)) for j in range(i)
        ]
        found["token_cosine"].append(sum(pairs) / len(pairs))
    return found


@pytest.mark.parametrize("n_sequences", [1, 2])
def test_statistics_are_what_they_say(n_sequences):
    rng = np.random.default_rng(0)
    before = rng.normal(size=(3, 8, 5)) + 0.5
    after = np.maximum(before + rng.normal(size=(3, 8, 5)), 0) + 0.1 * before**2
    after[1, :, 2] = 0
    with jax.enable_x64(True):
        found = statistics(jnp.asarray(before), jnp.asarray(after), n_sequences)
    for name, expected in slowly(before, after, n_sequences).items():
        np.testing.assert_allclose(found[name], expected, rtol=1e-12, err_msg=name)


@pytest.mark.parametrize("scale", [1e-30, 1e30])
def test_angles_do_not_depend_on_the_size_of_the_stream(scale):
    x = np.random.default_rng(0).normal(size=(2, 4, 8)).astype(np.float32)
    plain = statistics(x, x[::-1], 1)
    scaled = statistics(np.float32(scale) * x, np.float32(scale) * x[::-1], 1)
    for name in ("block_influence", "token_cosine"):
        np.testing.assert_allclose(scaled[name], plain[name], rtol=1e-5)


def test_a_silent_token_turns_nothing_into_nan_and_one_token_has_no_pairs():
    found = statistics(jnp.zeros((1, 1, 4)), jnp.zeros((1, 1, 4)), 1)
    assert all(np.isfinite(v).all() for v in found.values())
    assert found["activation/zero"] == 1
    assert "token_cosine" not in found


# -- the task --------------------------------------------------------------------


def test_the_stream_is_that_of_a_forward_pass_by_hand(compose):
    """Pre-LN in float64 NumPy, from the parameters and the batch of the run."""
    wide = compose(*MLP, "model.dtype=float64", "placement=pre", task="propagate")
    ((found, program, inputs),) = measured_by(wide)
    seed, values, steps, data = inputs
    with jax.enable_x64(True):
        params = jax.device_get(program.init(seed, values, steps).params)
        batch = jax.device_get(program.probe_batch(seed, data))
    x = np.asarray(batch["x"], np.float64)
    streams = [x]
    for i in range(3):
        up, down = (
            params[f"blocks/layers/ffn/branch/{k}/kernel"][i] for k in ("up", "down")
        )
        u = norm_oracle.layernorm(x, eps=1e-5)
        x = x + ffn_oracle.mlp(
            u, up=(up, None), down=(down, None), activation=ffn_oracle.relu
        )
        streams.append(x)
    expected = slowly(np.array(streams[:-1]), np.array(streams[1:]), 1)
    for name, value in expected.items():
        # Initial values are float32 draws, whose last bit depends on the program.
        np.testing.assert_allclose(found[name], value, rtol=1e-6, atol=1e-6)
    squares = found["stream_mean_square"][:, 0]
    rms = np.sqrt(found["activation/std"] ** 2 + found["activation/mean"] ** 2)
    np.testing.assert_allclose(np.sqrt(squares), rms, rtol=1e-12)


def test_gradients_are_those_of_the_depth_task(compose):
    ((found, *_),) = measured_by(compose(*MLP, task="propagate"))
    (expected,) = depth_probes(compose(*MLP, task="depth")).values()
    assert expected.keys() < found.keys()
    for name, value in expected.items():
        np.testing.assert_allclose(found[name], value, rtol=2e-5, err_msg=name)
    ((bare, *_),) = measured_by(compose(*MLP, "task.gradients=false", task="propagate"))
    assert not [name for name in bare if name.startswith("grad_norm")]
    np.testing.assert_array_equal(bare["activation/std"], found["activation/std"])


@pytest.mark.parametrize(
    "overrides",
    [
        (),
        ("residual=hc",),
        ("placement=mix", "model.placement.fraction=0.5"),
        ("attention=value_residual",),
    ],
    ids=lambda o: " ".join(o) or "plain",
)
def test_every_kind_of_stack_gives_a_value_per_block(compose, overrides):
    small = ("model.n_layers=4", "task.gradients=false")
    ((found, *_),) = measured_by(compose(*small, *overrides, task="propagate"))
    for name in ("activation/std", "block_influence", "token_cosine"):
        assert found[name].shape == (4,)
        assert np.isfinite(found[name]).all()
    assert found["stream_mean_square"].shape == (4, 2)


def test_tokens_are_compared_within_their_sequence(compose):
    """The last block's cosine, from the stream that the model itself hands out."""
    ((found, program, inputs),) = measured_by(
        compose("model.n_layers=2", "task.gradients=false", task="propagate")
    )
    seed, values, steps, data = inputs
    state = program.init(seed, values, steps)
    batch = program.probe_batch(seed, data)
    hidden, _ = program.layout.merge(state.params, state.rest).hidden(batch[:, :-1])
    hidden = np.asarray(hidden, np.float64)[None]
    expected = slowly(hidden, hidden, n_sequences=4)["token_cosine"]
    np.testing.assert_allclose(found["token_cosine"][-1:], expected, rtol=1e-4)


def test_rows_are_written_and_a_second_call_does_nothing(compose):
    configs = compose(*MLP, "seed=0,1", task="propagate")
    members = api.run(configs)
    assert [m.state for m in members] == ["completed"] * 2
    rows = members[0].directory.rows("probes.jsonl")
    axes = {row["quantity"]: (row["axis"], len(row["values"])) for row in rows}
    assert axes["activation/std"] == ("layer", 3)
    assert axes["stream_mean_square"] == ("site", 3)
    assert axes["grad_norm/ffn/up/kernel"] == ("layer", 3)
    (row,) = members[0].directory.rows("metrics.jsonl")
    assert row.keys() == {"step", "loss", "grad_norm"}
    again = api.run(configs)
    assert [m.note for m in again] == ["finished before"] * 2
    assert isinstance(again[0].directory, RunDirectory)


# -- update size -----------------------------------------------------------------


@pytest.mark.parametrize(
    "overrides",
    [(*MLP, "placement=post"), ("model.n_layers=2", "norm=layernorm")],
    ids=["rows", "tokens"],
)
def test_update_size_is_the_derivative_along_the_gradient(compose, overrides):
    """At a small learning rate, by forward-mode differentiation."""
    small = ("model.dtype=float64", "task.learning_rate=1e-4")
    ((found, program, inputs),) = measured_by(
        compose(*small, *overrides, task="update_size")
    )
    seed, values, steps, data = inputs
    with jax.enable_x64(True):
        state = program.init(seed, values, steps)
        batch = program.probe_batch(seed, data)

        def loss(params):
            return program.layout.merge(params, state.rest).loss(batch)[0]

        def output(params):
            return output_of(program.layout.merge(params, state.rest), batch)

        grads = jax.grad(loss)(state.params)
        _, slope = jax.jvp(output, (state.params,), (grads,))
        expected = float(jnp.sqrt(jnp.mean(slope**2)))
    assert expected > 1e-3
    np.testing.assert_allclose(found["update_rms"], expected, rtol=2e-3)


def test_the_step_goes_down_the_gradient(compose):
    """By hand at a learning rate at which up and down differ."""
    wide = ("model.dtype=float64", "task.learning_rate=2.0", "placement=post")
    ((found, program, inputs),) = measured_by(compose(*MLP, *wide, task="update_size"))
    seed, values, steps, data = inputs
    with jax.enable_x64(True):
        state = program.init(seed, values, steps)
        batch = program.probe_batch(seed, data)
        merge = program.layout.merge
        grads = jax.grad(lambda p: merge(p, {}).loss(batch)[0])(state.params)
        sizes = {}
        for sign in (-1, 1):
            moved = {k: w + sign * 2.0 * grads[k] for k, w in state.params.items()}
            before, after = (
                np.asarray(merge(p, {})(batch["x"])[0]) for p in (state.params, moved)
            )
            sizes[sign] = np.sqrt(np.mean((after - before) ** 2)) / 2.0
    assert abs(sizes[1] / sizes[-1] - 1) > 1e-3
    np.testing.assert_allclose(found["update_rms"], sizes[-1], rtol=1e-5)


def test_the_output_is_taken_behind_the_final_norm(compose):
    ((_, program, inputs),) = measured_by(
        compose("norm=layernorm_plain", task="update_size")
    )
    seed, values, steps, data = inputs
    state = program.init(seed, values, steps)
    model = program.layout.merge(state.params, state.rest)
    out = output_of(model, program.probe_batch(seed, data))
    np.testing.assert_allclose(jnp.mean(out**2, axis=-1), 1, rtol=0.05)


def test_a_learning_rate_that_is_none_is_refused(compose):
    with pytest.raises(UserError, match="learning_rate must be positive, got 0"):
        compose(*MLP, "task.learning_rate=0", task="update_size")
