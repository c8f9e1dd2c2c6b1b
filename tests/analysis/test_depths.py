import pytest

from analysis.depths import DOWN, UP, depth_sample, probe_values, profile_lists
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
    with pytest.raises(ValueError, match="one of first, last or a number"):
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


def test_a_layer_may_be_counted_and_one_that_is_not_there_is_null(tmp_path, make_run):
    table = write(
        tmp_path / "x",
        make_run,
        lambda depth, _: rows(**{UP: [float(b + 1) for b in range(depth)]}),
        depths=(2, 3),
        seeds=(0,),
    )
    got = probe_values(table.runs, table.probes, UP, 3).sort("n_layers")
    assert got["value"].to_list() == [None, 3.0]


def test_profiles_are_those_of_one_depth_and_of_complete_lists(tmp_path, make_run):
    def probes(depth, seed):
        return rows(**{UP: [1.0 + seed, None if seed == 1 else 2.0]})

    table = write(tmp_path / "x", make_run, probes, depths=(2, 4))
    got = profile_lists(table.runs, table.probes, UP, 2)
    assert got == {0: (1.0, 2.0), 2: (3.0, 2.0)}
    assert profile_lists(table.runs, table.probes, UP, 3) == {}


def test_numbers_below_zero_count_where_no_logarithm_is_taken(tmp_path, make_run):
    table = write(tmp_path / "x", make_run, lambda d, s: rows(loss=[-1.0 * d]))
    values = probe_values(table.runs, table.probes, "loss")
    assert depth_sample(values).points == ()
    assert depth_sample(values, is_positive=False).by_seed[0] == (-6, -24, -96)
