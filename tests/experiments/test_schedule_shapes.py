"""The schedules beside warmup and cosine, and what every one of them promises."""

from pathlib import Path

import hydra.utils
import jax
import jax.numpy as jnp
import numpy as np
import optax
import pytest
from omegaconf import OmegaConf

from experiments.schedules import WSD, InverseSqrt, WarmupLinear

CONF = Path(__file__).parents[2] / "conf" / "schedule"
NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))


@pytest.fixture(params=NAMES)
def node(request):
    return OmegaConf.load(CONF / f"{request.param}.yaml")


@pytest.fixture
def make(node):
    """Keywords -> schedule, on top of those of its file."""
    cls = hydra.utils.get_class(node["_target_"])
    given = {k: v for k, v in node.items() if k != "_target_"}
    return lambda **keywords: cls(**{**given, **keywords})


def values(schedule, counts, steps):
    return schedule(np.asarray(counts), steps)


# What each one is ---------------------------------------------------------------------


def test_wsd_agrees_with_the_published_schedule():
    # optax 0.2.8 join_schedules([linear_schedule(0, 1, 10), constant_schedule(1),
    # linear_schedule(1, 0, 20)], [10, 80]), run in float64.
    schedule = WSD(warmup_steps=10, decay_fraction=0.2)
    got = values(schedule, [0, 9, 10, 80, 81, 90, 99, 100], 100)
    np.testing.assert_allclose(got, [0, 0.9, 1, 1, 0.95, 0.5, 0.05, 0], atol=2e-7)


def test_wsd_and_warmup_linear_equal_optax_at_every_count_in_float64():
    up, down = optax.linear_schedule(0, 1, 7), optax.linear_schedule(1, 0.2, 46)
    line = optax.join_schedules([up, down], [7])
    wsd = optax.join_schedules(
        [up, optax.constant_schedule(1.0), optax.linear_schedule(1, 0.2, 20)], [7, 60]
    )
    with jax.enable_x64(True):
        count = jnp.arange(90)
        np.testing.assert_allclose(
            WarmupLinear(warmup_steps=7, final_fraction=0.2)(count, 53, jnp.float64),
            line(count),
            rtol=1e-14,
        )
        ours = WSD(warmup_steps=7, decay_fraction=0.25, final_fraction=0.2)
        np.testing.assert_allclose(ours(count, 80, jnp.float64), wsd(count), rtol=1e-14)


def test_wsd_of_power_one_half_is_one_minus_the_root():
    schedule = WSD(warmup_steps=0, decay_fraction=0.5, final_fraction=0.25, power=0.5)
    got = values(schedule, [0, 50, 51, 75, 100], 100)
    shape = 1 - np.sqrt([0, 0, 0.02, 0.5, 1])
    np.testing.assert_allclose(got, 0.25 + 0.75 * shape, rtol=1e-6)


def test_stable_linear_is_the_rule_of_modded_nanogpt():
    # 1 until (1 - f) T, then (1 - count / T) / f with f = 0.7.
    schedule = hydra.utils.instantiate(OmegaConf.load(CONF / "stable_linear.yaml"))
    count = np.arange(200)
    expected = np.minimum(1, (1 - count / 200) / 0.7)
    # 1 - s cancels: float32 rounds in units of the peak.
    np.testing.assert_allclose(schedule(count, 200), expected, atol=1e-7)


def test_a_warmup_that_reaches_into_the_decay_shortens_it():
    got = values(WSD(warmup_steps=60, decay_fraction=0.5), [30, 59, 60, 80, 100], 100)
    np.testing.assert_allclose(got, [0.5, 59 / 60, 1, 0.5, 0], rtol=1e-6)


@pytest.mark.parametrize("fraction", [0.0, 0.004])
def test_a_decay_shorter_than_one_update_is_none(fraction):
    got = values(WSD(warmup_steps=0, decay_fraction=fraction), np.arange(100), 100)
    np.testing.assert_array_equal(got, np.ones(100))


def test_inverse_sqrt_is_the_published_rate_in_units_of_its_peak():
    # arXiv 1706.03762, equation 3: d^-0.5 min(t^-0.5, t w^-1.5), peak (d w)^-0.5.
    d, w = 512, 4000
    t = np.array([1, 2, 1000, 3999, 4000, 4001, 16000, 100_000], float)
    published = d**-0.5 * np.minimum(t**-0.5, t * w**-1.5)
    ours = values(InverseSqrt(), t, 100_000)
    np.testing.assert_allclose((d * w) ** -0.5 * ours, published, rtol=1e-6)
    np.testing.assert_allclose(ours[-2], 0.5, rtol=1e-6)


# What all of them are -----------------------------------------------------------------


@pytest.mark.parametrize("warmup_steps", [0, 10])
@pytest.mark.parametrize("steps", [1, 5, 10, 11, 100])
def test_every_multiplier_lies_between_zero_and_one(make, warmup_steps, steps):
    known = "warmup_steps" in type(make()).traced
    schedule = make(warmup_steps=warmup_steps) if known else make()
    got = np.asarray(jax.vmap(lambda c: schedule(c, steps))(jnp.arange(3 * steps)))
    assert np.all((got >= 0) & (got <= 1))
    if known and warmup_steps:
        ramp = np.arange(min(steps, 10)) / 10
        np.testing.assert_allclose(got[: len(ramp)], ramp, rtol=1e-6)
    else:
        assert got[0] == 1
        assert np.all(np.diff(got) <= 1e-7)


def test_every_multiplier_is_a_strongly_typed_scalar(make):
    value = jax.jit(lambda count: make()(count, 100))(3)
    assert (value.shape, value.dtype, value.weak_type) == ((), jnp.float32, False)
    with jax.enable_x64(True):
        assert make()(jnp.int32(3), 100, dtype=jnp.float64).dtype == jnp.float64


def test_one_trace_serves_every_number_and_length(make):
    traces = []
    keys = type(make()).traced

    @jax.jit
    @jax.vmap
    def at_count(numbers, count, steps):
        traces.append(1)
        return make(**numbers)(count, steps)

    factors = jnp.array([1.0, 0.5, 0.25])
    numbers = {key: factors * getattr(make(), key) for key in keys}
    count, steps = jnp.array([3, 40, 90]), jnp.array([50, 100, 100])
    many = at_count(numbers, count, steps)
    at_count(jax.tree.map(lambda x: x[::-1], numbers), count, steps)
    assert len(traces) == 1
    for i in range(3):
        alone = make(**{key: float(x[i]) for key, x in numbers.items()})
        np.testing.assert_allclose(
            many[i], alone(int(count[i]), int(steps[i])), rtol=1e-6
        )


def test_every_file_names_the_keywords_of_its_class_and_passes_its_check(node):
    cls = hydra.utils.get_class(node.pop("_target_"))
    defaults = cls.check.__kwdefaults__ or {}
    assert set(node) == set(defaults) == set(cls.traced)
    assert {key: getattr(cls(), key) for key in defaults} == defaults
    cls.check(**node)


@pytest.mark.parametrize("value", [-0.1, float("nan"), float("inf")])
def test_every_number_is_refused_out_of_range_by_name(node, value):
    cls = hydra.utils.get_class(node["_target_"])
    for key in cls.traced:
        with pytest.raises(ValueError, match=f"^{key}: .*got {value}"):
            cls.check(**{key: value})


@pytest.mark.parametrize(
    "cls, keywords",
    [
        (WSD, {"decay_fraction": 1.1}),
        (WSD, {"final_fraction": 1.1}),
        (WSD, {"power": 0.0}),
        (WarmupLinear, {"final_fraction": 1.1}),
    ],
)
def test_fractions_beyond_one_and_a_power_of_zero_are_refused(cls, keywords):
    with pytest.raises(ValueError, match=f"^{next(iter(keywords))}: "):
        cls.check(**keywords)


def test_no_side_divides_by_zero_not_even_the_unused_one(make):
    numbers = {"warmup_steps": 0} if "warmup_steps" in type(make()).traced else {}
    with jax.debug_nans(True), jax.debug_infs(True):
        for count in (0, 7, 8):
            make(**numbers)(count, 7)
