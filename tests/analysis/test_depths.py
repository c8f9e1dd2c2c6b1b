import numpy as np
import pytest

from analysis.depths import DOWN, UP, depth_sample, probe_values, theory_for
from analysis.laws import finite_grid_exponent, power_law
from analysis.load import load

DEPTHS = (6, 24, 96)


def write(directory, make_run, probes_of, *, seeds=(0, 1, 2), depths=DEPTHS, **more):
    for depth in depths:
        for seed in seeds:
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
        {"step": 0, "quantity": name.replace("__", "/"), "axis": "layer", "values": v}
        for name, v in quantities.items()
    ]


def sample_of(table, quantity=UP, layer="last"):
    return depth_sample(probe_values(table.runs, table.probes, quantity, layer))


def test_first_and_last_layer_of_the_first_step(tmp_path, make_run):
    probes = rows(**{UP: [3.0, 2.0, 1.0]})
    probes.append(probes[0] | {"step": 50, "values": [30.0, 20.0, 10.0]})
    table = write(tmp_path / "x", make_run, lambda *_: probes, depths=(3,), seeds=(0,))
    for layer, value in (("first", 3.0), ("last", 1.0)):
        got = probe_values(table.runs, table.probes, UP, layer)
        assert got["value"].to_list() == [value]
    with pytest.raises(ValueError, match="one of first, last, got 'middle'"):
        probe_values(table.runs, table.probes, UP, "middle")
    assert probe_values(table.runs, table.probes, DOWN).is_empty()


def test_a_seed_without_every_depth_takes_no_part_and_is_said(tmp_path, make_run):
    def probes(depth, seed):
        value = None if (depth, seed) == (24, 1) else 10.0 * depth + seed
        return rows(**{UP: [1.0, value]})

    table = write(tmp_path / "x", make_run, probes)
    sample = sample_of(table)
    assert sample.depths == DEPTHS
    assert sample.by_seed == {0: (60, 240, 960), 2: (62, 242, 962)}
    assert len(sample.points) == 8
    assert sample.at(24) == [240, 242]
    assert sample.left_out == (
        "1 runs without a finite, positive value",
        "1 of 3 seeds not at every depth",
    )


def test_a_depth_that_few_seeds_reached_is_not_on_the_grid(tmp_path, make_run):
    def state(depth, seed):
        return "failed" if depth == 96 and seed else "completed"

    for depth in DEPTHS:
        for seed in range(3):
            make_run(
                tmp_path / "x",
                task="depth",
                n_layers=depth,
                seed=seed,
                state=state(depth, seed),
                probes=rows(**{UP: [1.0]}),
            )
    sample = sample_of(load(tmp_path / "x"))
    assert sample.depths == (6, 24)
    assert sorted(sample.by_seed) == [0, 1, 2]
    assert sample.left_out == ("depths 96: fewer than half of the seeds",)


def theory_of(table):
    sample = sample_of(table)
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
