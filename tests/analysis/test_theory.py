import numpy as np
import pytest

from analysis import meanfield
from analysis.depths import UP, depth_sample, probe_values
from analysis.laws.power import finite_grid_exponent, power_law
from analysis.load import load
from analysis.theory import theory_for

DEPTHS = (6, 24, 96)


def write(directory, make_run, probes_of, **more):
    for depth in DEPTHS:
        for seed in range(3):
            make_run(
                directory,
                task="depth",
                model="M",
                n_layers=depth,
                seed=seed,
                probes=probes_of(depth, seed),
                **more,
            )
    return load(directory)


def rows(**quantities):
    return [
        {"step": 0, "quantity": name, "axis": "layer", "values": v}
        for name, v in quantities.items()
    ]


def theory_of(table):
    sample = depth_sample(probe_values(table.runs, table.probes, UP))
    (variant,) = set(table.runs["variant"])
    law = power_law(sample.depths, sample.by_seed)
    return theory_for(table.runs, table.probes, variant, law)


@pytest.mark.parametrize(
    "name, stream, gain, shape",
    [
        ("pre", lambda n: 0.5 + 2 * n, lambda n: 2.0, "growing"),
        # GPT-2's initialisation: the stream hardly grows, yet it follows s0^2 + v L.
        ("small", lambda n: 0.5 + 0.001 * n, lambda n: 0.001, "growing"),
        ("post", lambda n: 1.0, lambda n: 1.0, "flat"),
        ("deepnorm", lambda n: 1.0, lambda n: 3 / n, "none"),
        ("no norm", lambda n: 2.0 ** (n / 4), lambda n: 1.0, "none"),
    ],
)
def test_theory_is_chosen_by_the_stream_not_by_the_gradient(
    tmp_path, make_run, name, stream, gain, shape
):
    def probes(depth, seed):
        return rows(
            **{UP: [1.0]},  # the gradient is the same constant in every case
            stream_mean_square=[0.7, stream(depth)],
            input_mean_square=[0.5],
            branch_gain=[gain(depth)],
        )

    theory = theory_of(write(tmp_path / "x", make_run, probes))
    assert theory.shape == shape
    if shape == "growing":
        v = gain(1)
        assert (theory.s0_square, theory.v, theory.asymptote) == (0.5, v, -0.5)
        assert theory.exponent == finite_grid_exponent(DEPTHS, v / 0.5)
        ratio = theory.relative([6])[0] / theory.relative([96])[0]
        np.testing.assert_allclose(ratio, ((0.5 + 96 * v) / (0.5 + 6 * v)) ** 0.5)
    elif shape == "flat":
        assert theory.exponent == 0
    else:
        assert np.isnan(theory.exponent)
        assert theory.reason


@pytest.mark.parametrize("power, shape", [(-0.4, "growing"), (-0.05, "flat")])
def test_without_the_stream_the_fitted_exponent_decides_and_that_is_said(
    tmp_path, make_run, power, shape
):
    def probes(depth, seed):
        return rows(**{UP: [depth**power]}, input_mean_square=[1.0], branch_gain=[1.0])

    theory = theory_of(write(tmp_path / "x", make_run, probes))
    assert theory.shape == shape
    assert "stream was not recorded" in theory.reason


def test_without_s0_and_v_there_is_no_theory(tmp_path, make_run):
    table = write(tmp_path / "x", make_run, lambda d, s: rows(**{UP: [1.0]}))
    theory = theory_of(table)
    assert theory.shape == "none"
    assert "not recorded" in theory.reason


def stack(theory, branch):
    """Probes of a feed-forward stack that follows a mean field to the last digit."""
    return rows(
        **{UP: [0.03 * float(g) for g in theory.gradient]},
        stream_mean_square=[float(s) for s in theory.stream[1:]],
        branch_mean_square=[float(b) for b in branch],
        branch_gain=[float(np.mean(branch))],
        input_mean_square=[float(theory.stream[0])],
    )


def added(theory):
    return np.diff(theory.stream)


@pytest.mark.parametrize(
    "norm, placement, scheme, keywords",
    [
        ("derf.Derf", "pre", meanfield.pointwise, {"function": "Derf"}),
        ("dyt.DyT", "pre", meanfield.pointwise, {"function": "DyT"}),
        ("layernorm.LayerNorm", "layernorm_scaling", meanfield.layernorm_scaling, {}),
    ],
)
def test_a_named_scheme_is_recognised_and_its_v_found(
    tmp_path, make_run, norm, placement, scheme, keywords
):
    def probes(depth, seed):
        theory = scheme(depth, s0_square=0.8, v=1.7, **keywords)
        return stack(theory, added(theory))

    table = write(
        tmp_path / "x",
        make_run,
        probes,
        norm=norm,
        placement=placement,
        norm_extra={"alpha_init": 0.5},
    )
    theory = theory_of(table)
    assert theory.shape == ("pointwise" if placement == "pre" else placement)
    np.testing.assert_allclose([theory.s0_square, theory.v], [0.8, 1.7], rtol=1e-9)
    truth = meanfield.over_depths(scheme, DEPTHS, s0_square=0.8, v=1.7, **keywords)
    np.testing.assert_allclose(theory.relative(DEPTHS), truth, rtol=1e-9)
    slope = np.polyfit(np.log(DEPTHS), np.log(truth), 1)[0]
    np.testing.assert_allclose(theory.exponent, slope, rtol=1e-9)
    # Between the points a curve, not a step: within 1 % of the next whole depth.
    curve = theory.relative(np.linspace(6, 96, 181))
    whole = meanfield.over_depths(scheme, (47, 48), s0_square=0.8, v=1.7, **keywords)
    np.testing.assert_allclose(curve[[82, 84]], whole, rtol=0.01)


@pytest.mark.parametrize("name, power", [("depth_mup", 0.5), ("completep", 1.0)])
def test_a_scaled_branch_is_measured_before_its_factor(tmp_path, make_run, name, power):
    def probes(depth, seed):
        theory = meanfield.depth_scaled(depth, power=power, s0_square=0.8, v=1.7)
        return stack(theory, np.full(depth, 1.7))

    table = write(tmp_path / "x", make_run, probes, placement=name)
    theory = theory_of(table)
    assert (theory.shape, theory.asymptote) == (name, -power)
    np.testing.assert_allclose([theory.s0_square, theory.v], [0.8, 1.7], rtol=1e-9)
    truth = meanfield.over_depths(
        meanfield.depth_scaled, DEPTHS, power=power, s0_square=0.8, v=1.7
    )
    np.testing.assert_allclose(theory.relative(DEPTHS), truth, rtol=1e-9)


@pytest.mark.parametrize("name", ["keel", "residual_dual"])
def test_a_scheme_with_factors_that_are_not_known_has_no_theory(
    tmp_path, make_run, name
):
    def probes(depth, seed):  # a constant stream, of which one would say "flat"
        theory = meanfield.post(depth)
        return stack(theory, np.ones(depth))

    theory = theory_of(write(tmp_path / "x", make_run, probes, placement=name))
    assert theory.shape == "none"
    assert "factors of its own" in theory.reason


def test_deepnorm_is_recognised_with_both_weights_scaled(tmp_path, make_run):
    def probes(depth, seed):
        theory = meanfield.deepnorm(depth)
        return stack(theory, np.full(depth, 1 / (8 * depth)))

    table = write(tmp_path / "x", make_run, probes, placement="deepnorm")
    theory = theory_of(table)
    assert (theory.shape, theory.asymptote) == ("deepnorm", -0.5)
    np.testing.assert_allclose(theory.v, 1, rtol=1e-9)
    assert abs(theory.exponent + 0.499) < 1e-3


def test_a_name_does_not_count_where_the_stream_says_otherwise(tmp_path, make_run):
    def probes(depth, seed):  # called LNS, and grows as Pre-LN
        theory = meanfield.pre(depth)
        return stack(theory, added(theory))

    table = write(tmp_path / "x", make_run, probes, placement="layernorm_scaling")
    theory = theory_of(table)
    assert theory.shape == "none"
    assert theory.reason == "stream is not that of layernorm_scaling"


@pytest.mark.parametrize(
    "placement, sites, reason",
    [("post", 1, "does not divide"), ("pre", 2, "feed-forward stacks")],
)
def test_no_theory_of_pointwise_norms_elsewhere(
    tmp_path, make_run, placement, sites, reason
):
    def probes(depth, seed):
        return rows(
            **{UP: [1.0] * depth},
            stream_mean_square=[1.0] * depth,
            branch_mean_square=[1.0] * (depth * sites),
            branch_gain=[1.0],
            input_mean_square=[1.0],
        )

    table = write(
        tmp_path / "x",
        make_run,
        probes,
        norm="derf.Derf",
        placement=placement,
        norm_extra={"alpha_init": 0.5},
    )
    theory = theory_of(table)
    assert theory.shape == "none"
    assert reason in theory.reason
