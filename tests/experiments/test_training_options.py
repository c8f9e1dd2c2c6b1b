"""Accumulation, averages of the weights and the z-loss, through whole programs."""

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import api
from experiments.errors import UserError
from experiments.execution import Executables, MemberLayout
from experiments.group import executables, load_dataset, signature_of
from experiments.program import Program

BASE = ("model=tiny", "data=markov", "batch_size=4", "seq_len=8", "model.dtype=float64")


class Run:
    """One member of a program, a step at a time."""

    def __init__(self, *overrides):
        (self.config,) = api.compose([*BASE, *overrides])
        dataset = load_dataset(self.config.data)
        self.program = Program(signature_of(self.config, dataset), dataset)
        self.calls = Executables(self.program, MemberLayout("threads", 1))
        with jax.enable_x64(True):
            self.inputs = (
                jnp.zeros(1, jnp.uint32),
                {
                    k: jnp.array([v], jnp.int32 if isinstance(v, int) else jnp.float64)
                    for k, v in self.config.traced_values().items()
                },
                jnp.array([self.config.steps], jnp.int32),
            )
        self.state = self.calls.call("init", *self.inputs)

    def step(self, function="train_steps"):
        """Parameters after one more step, and its row."""
        n, data = jnp.int32(1), self.calls.data
        self.state, rows = self.calls.call(function, self.state, *self.inputs, n, data)
        row = {k: np.asarray(v)[0, 0] for k, v in rows.items()}
        return {k: np.asarray(v)[0] for k, v in self.state.params.items()}, row

    def val_loss(self, state=None):
        data, n = self.calls.data, jnp.int32(2)
        state = state or self.state
        return float(
            self.calls.call("evaluate", state, *self.inputs, n, data)["loss"][0]
        )


@pytest.mark.parametrize("function", ["train_steps", "probed_steps"])
def test_a_batch_in_parts_gives_the_same_step(function):
    whole = Run("task.probe_every=1")
    parts = Run("task.probe_every=1", "accumulate=4")
    for _ in range(2):
        params, row = whole.step(function)
        others, other = parts.step(function)
        for path in params:
            np.testing.assert_allclose(
                others[path], params[path], rtol=1e-10, atol=1e-13
            )
        # Means over tokens and norms of gradients are those of the whole batch.
        for key, value in row.items():
            exact = key.startswith(
                ("loss", "grad_norm", "stream_", "branch_", "input_")
            )
            if exact or key.endswith("_max"):
                np.testing.assert_allclose(other[key], value, rtol=1e-9, atol=1e-15)


def test_gradients_of_the_parts_are_added_and_not_kept():
    """Sixteen parts of one row against four of four: smaller parts, no more memory."""

    def temporaries(accumulate):
        run = Run("batch_size=16", "model.d_ff=2048", f"accumulate={accumulate}")
        compiled = run.calls.compile("train_steps", 1)
        gradient = sum(x.nbytes for x in jax.tree.leaves(run.state.params))
        return compiled.memory_analysis().temp_size_in_bytes, gradient

    (few, gradient), (many, _) = temporaries(4), temporaries(16)
    assert many < few + gradient


def test_evaluation_is_of_the_average():
    # a_t = sum decay^(t - s) p_s / sum decay^(t - s), here over three updates, by hand.
    run = Run("averaging=ema", "averaging.decay=0.5", "schedule=constant")
    seen = [run.step()[0] for _ in range(3)]
    by_hand = {
        k: (0.25 * seen[0][k] + 0.5 * seen[1][k] + seen[2][k]) / 1.75 for k in seen[0]
    }
    for path, value in by_hand.items():
        found = np.asarray(run.state.average[path])[0]
        np.testing.assert_allclose(found, value, rtol=1e-12, atol=1e-15)
    plain = Run("schedule=constant")
    as_average = plain.state
    with jax.enable_x64(True):
        as_average.params = {k: jnp.asarray(v)[None] for k, v in by_hand.items()}
    assert run.val_loss() == pytest.approx(plain.val_loss(as_average), rel=1e-12)
    after, _ = Run("schedule=constant").step()
    np.testing.assert_array_equal(after["table"], seen[0]["table"])  # training as ever


def test_the_z_loss_is_minimized_and_not_reported():
    plain, with_z = Run(), Run("model.z_loss=0.5")
    batch = plain.program._batch(
        plain.calls.data, jnp.uint32(0), 1, jnp.int32(0), "train"
    )
    with jax.enable_x64(True):
        layout = plain.program.layout
        start = {k: v[0] for k, v in plain.state.params.items()}

        def both(params):
            model = layout.merge(params, {})
            logits = model(batch[:, :-1])
            lse = jnp.log(jnp.sum(jnp.exp(logits), axis=-1))
            picked = jnp.take_along_axis(logits, batch[:, 1:, None], axis=-1)[..., 0]
            return jnp.mean(lse - picked) + 0.5 * jnp.mean(lse**2), jnp.mean(
                lse - picked
            )

        (_, cross_entropy), grads = jax.value_and_grad(both, has_aux=True)(start)
        norm = np.sqrt(sum(np.sum(np.asarray(g) ** 2) for g in grads.values()))
    _, row = with_z.step()
    np.testing.assert_allclose(row["loss"], cross_entropy, rtol=1e-12)
    np.testing.assert_allclose(row["grad_norm"], norm, rtol=1e-10)
    assert row["grad_norm"] > 1.01 * plain.step()[1]["grad_norm"]


def test_z_loss_and_decay_of_the_average_are_inputs_of_one_program():
    configs = api.compose(
        [*BASE, "averaging=ema", "averaging.decay=0.9,0.99", "model.z_loss=1e-4,1e-3"]
    )
    dataset = load_dataset(configs[0].data)
    assert len({signature_of(config, dataset) for config in configs}) == 1
    assert executables(signature_of(configs[0], dataset), MemberLayout("map", 1))


@pytest.mark.parametrize(
    "override, message",
    [
        ("accumulate=3", "accumulate: must divide batch_size=4, got 3"),
        ("accumulate=0", "accumulate: must be in 1"),
        ("averaging=emma", "averaging=emma: no such choice; did you mean ema?"),
        ("model.z_loss=-1", "model.z_loss must be finite and at least 0, got -1"),
    ],
)
def test_wrong_values_are_refused(override, message):
    with pytest.raises(UserError, match=message.replace("?", r"\?")):
        api.compose([*BASE, override])


def test_an_optimizer_that_averages_wants_no_other_average():
    with pytest.raises(UserError, match="^averaging: ScheduleFreeAdamW averages by"):
        Run("averaging=ema", "optimizer=schedule_free_adamw")


def test_evaluation_asks_the_optimizer_which_weights_to_use():
    run = Run("optimizer=schedule_free_adamw", "schedule=constant")
    for _ in range(3):
        run.step()
    with jax.enable_x64(True):
        optimizer, _ = run.program._optimizer(
            {k: v[0] for k, v in run.inputs[1].items()}, run.inputs[2][0]
        )
        one = jax.tree.map(lambda x: x[0], run.state)
        averaged = optimizer.evaluated(one.opt, one.params)
        assert not np.allclose(averaged["table"], one.params["table"], rtol=1e-4)
    plain = Run("schedule=constant")
    plain.state.params = jax.tree.map(lambda x: x[None], averaged)
    assert run.val_loss() == pytest.approx(plain.val_loss(), rel=1e-12)


def test_accumulation_and_averages_make_another_run():
    def identity(*overrides):
        (config,) = api.compose([*BASE, *overrides])
        return config.identity("data")

    assert identity("accumulate=1") == identity()
    names = [
        (),
        ("accumulate=2",),
        ("averaging=ema",),
        ("averaging=ema", "averaging.decay=0.5"),
    ]
    assert len({identity(*overrides) for overrides in names}) == 4
