from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from omegaconf import OmegaConf

from experiments.schedules import Constant, WarmupCosine

CONF = Path(__file__).parents[2] / "conf" / "schedule"

# optax 0.2.8 warmup_cosine_decay_schedule(0, 1, 10, 100, 0.1), run in float64.
COUNTS = [0, 1, 9, 10, 55, 99, 100, 150]
VALUES = [0, 0.1, 0.9, 1, 0.55, 0.100274, 0.1, 0.1]


def test_warmup_cosine_agrees_with_the_published_schedule():
    schedule = WarmupCosine(warmup_steps=10, final_fraction=0.1)
    values = [schedule(count, 100) for count in COUNTS]
    np.testing.assert_allclose(values, VALUES, atol=5e-7)


def test_warmup_cosine_equals_optax_at_every_count_in_float64():
    theirs = optax.warmup_cosine_decay_schedule(0, 1, 7, 53, 0.03)
    with jax.enable_x64(True):
        count = jnp.arange(60)
        ours = WarmupCosine(warmup_steps=7, final_fraction=0.03)(
            count, 53, dtype=jnp.float64
        )
        assert ours.dtype == jnp.float64
        np.testing.assert_allclose(ours, theirs(count), rtol=1e-14, atol=1e-16)


def test_warmup_cosine_in_float32_is_close_to_the_formula():
    count = np.arange(5001)
    w, total, f = 100, 5000, 0.1
    s = np.clip((count - w) / (total - w), 0, 1)
    expected = np.where(count < w, count / w, f + (1 - f) * (1 + np.cos(np.pi * s)) / 2)
    np.testing.assert_allclose(WarmupCosine()(count, total), expected, atol=3e-7)


def test_no_warmup_starts_at_the_peak_and_still_decays():
    schedule = WarmupCosine(warmup_steps=0, final_fraction=0.0)
    np.testing.assert_allclose(
        [schedule(count, 10) for count in (0, 5, 10)], [1, 0.5, 0], atol=1e-7
    )


@pytest.mark.parametrize("steps", [1, 5, 10])
def test_a_run_no_longer_than_its_warmup_is_all_warmup(steps):
    values = WarmupCosine(warmup_steps=10)(jnp.arange(steps), steps)
    np.testing.assert_allclose(values, np.arange(steps) / 10, rtol=1e-6)
    # Nothing asks for a count past the end, but 0 / 0 must not hide there.
    past = WarmupCosine(warmup_steps=10)(jnp.arange(steps, 30), steps)
    assert np.all((past >= 0) & (past <= 1))


def test_one_trace_serves_every_warmup_fraction_and_length():
    traces = []

    @jax.jit
    @jax.vmap
    def at_count(count, warmup_steps, final_fraction, steps):
        traces.append(1)
        return WarmupCosine(warmup_steps=warmup_steps, final_fraction=final_fraction)(
            count, steps
        )

    cases = [(5, 10, 0.1, 100), (0, 0, 0.2, 50), (50, 0, 0.2, 50), (30, 10, 0.5, 30)]
    columns = zip(*cases, strict=True)
    values = at_count(*(jnp.array(column) for column in columns))
    np.testing.assert_allclose(values, [0.5, 1, 0.2, 0.5], rtol=1e-6)
    at_count(*(jnp.array(c)[::-1] for c in zip(*cases, strict=True)))
    assert len(traces) == 1


@pytest.mark.parametrize("schedule", [Constant(), WarmupCosine()])
def test_multiplier_is_a_strongly_typed_scalar(schedule):
    value = jax.jit(lambda count: schedule(count, 100))(3)
    assert value.shape == ()
    assert value.dtype == jnp.float32
    assert not value.weak_type


def test_constant_is_one():
    assert [float(Constant()(count, 10)) for count in (0, 9, 99)] == [1, 1, 1]


@pytest.mark.parametrize(
    "keywords, key",
    [
        ({"warmup_steps": -1}, "warmup_steps"),
        ({"warmup_steps": float("inf")}, "warmup_steps"),
        ({"final_fraction": -0.1}, "final_fraction"),
        ({"final_fraction": 1.1}, "final_fraction"),
        ({"final_fraction": float("nan")}, "final_fraction"),
    ],
)
def test_out_of_range_keywords_are_refused_by_name(keywords, key):
    with pytest.raises(ValueError, match=key):
        WarmupCosine.check(**keywords)


def test_yaml_defaults_are_those_of_the_class():
    node = dict(OmegaConf.load(CONF / "warmup_cosine.yaml"))
    assert node.pop("_target_") == "experiments.schedules.WarmupCosine"
    assert node == WarmupCosine.__init__.__kwdefaults__
    assert dict(OmegaConf.load(CONF / "constant.yaml")) == {
        "_target_": "experiments.schedules.Constant"
    }
