"""How numbers and tables are written, and what passes a target."""

import pytest

from benchmarks.__main__ import parse
from benchmarks.coordinator import Ratio
from benchmarks.points import POINTS
from benchmarks.single import OURS, outcomes, point_table
from benchmarks.tables import Table, milliseconds, significant
from benchmarks.targets import Outcome, not_measured, targets_table


@pytest.mark.parametrize(
    "x, text",
    [
        (0, "0"),
        (1.4142, "1.41"),
        (0.05664, "0.0566"),
        (204.84, "205"),
        (9.996, "10.0"),
        (99.96, "100"),
        (12345.6, "12,300"),
        (-0.0123, "-0.0123"),
    ],
)
def test_three_significant_digits(x, text):
    assert significant(x) == text


def test_milliseconds():
    assert milliseconds(0.0014142) == "1.41"


def test_markdown():
    table = Table("T", ["", "a|b"], [["x", "1"], ["y", "2"]], ["why"])
    assert table.markdown() == (
        "### T\n\n|  | a\\|b |\n| --- | ---: |\n| x | 1 |\n| y | 2 |\n\n- why\n"
    )


def test_a_short_row_is_refused():
    with pytest.raises(ValueError, match="expected 2 cells"):
        Table("T", ["a", "b"], [["x"]])


def samples(*cpu):
    return [{"cpu": c, "wall": 2 * c, "peak_bytes": 2**20} for c in cpu]


def test_the_table_of_a_point_from_known_times():
    tiny = POINTS["tiny"]
    flops = tiny.flops()
    info = {"n_params": 33_088, "matmul_params": tiny.matmul_params}
    raw = {
        # ours does the step in the time the limit needs for twice its FLOPs
        "samples": {
            OURS: samples(1.0, 2.0, 1.0),
            "other": samples(3.0, 3.0, 3.0),
            "matmul: jax": samples(0.5, 0.5, 0.5),
            "matmul: numpy": samples(1.0, 1.0, 1.0),
        },
        "info": {
            OURS: info,
            "other": info,
            "matmul: jax": {"flops": flops},
            "matmul: numpy": {"flops": flops},
        },
        "failed": {"broken": "broken: ended with code 1\nno compiler"},
    }
    table = point_table(tiny, raw, {"absent": "not installed: torch"})
    ours, other = table.rows
    assert ours == [
        OURS, "1,000", "1.00 (1.00 .. 1.00)", "1.00", "50 %", "33,088", "0.0566", "1",
    ]  # fmt: skip
    assert other[2] == "3.00 (1.50 .. 3.00)"
    assert other[4] == "17 %"
    assert "Failed: broken: no compiler" in table.notes
    assert "Missing: absent: not installed: torch." in table.notes


def test_targets_pass_and_fail_on_the_right_side():
    assert Outcome("P6a", 1.05, "").passed is True
    assert Outcome("P6a", 1.06, "").passed is False
    assert Outcome("P10", 5.1, "").passed is True
    assert Outcome("P10", 4.9, "").passed is False
    assert not_measured("P12", "why").passed is None
    cells = targets_table([Outcome("P6a", 1.2, "1.20", "n"), not_measured("P8", "why")])
    assert cells.rows[0][2:] == ["<= 1.05", "1.20", "FAIL", "n"]
    assert cells.rows[1][2:] == ["<= 1.1", "not measured", "-", "why"]


def test_a_stand_in_is_named_and_ratios_point_the_right_way():
    ratios = {
        ("base", OURS): Ratio(1, 1, 1),
        ("base", "transformers GPT-2, eager"): Ratio(0.8, 0.5, 1.0),
        ("base", "bare prototype"): Ratio(0.5, 0.4, 0.8),
        ("base", "nanodo, metrics off"): Ratio(1.3, 1.2, 1.4),
    }
    by_id = {o.id: o for o in outcomes(ratios)}
    # Twice as slow as the prototype: time / ours 0.5 means ours / prototype 2.
    assert by_id["P6a"].shown == "2.00 (1.25 .. 2.50)"
    assert by_id["P6a"].passed is False
    assert by_id["P3"].value == pytest.approx(1.25)
    assert by_id["P3"].stand_in == "transformers GPT-2, eager"
    assert by_id["P3"].verdict == "(pass)"
    assert by_id["P1"].passed is True
    assert by_id["P1"].verdict == "pass"
    assert by_id["P7a"].passed is None
    assert "P6b" not in by_id, "tiny was not asked for"


def test_arguments():
    parsed = parse(["single", "--points", "tiny,base", "--nanogpt", "there"])
    assert [p.name for p in parsed.points] == ["tiny", "base"]
    assert parsed.nanogpt == "there"


@pytest.mark.parametrize(
    "arguments, said",
    [
        (["single", "--rounds", "0"], "--rounds"),
        (["single", "--points", "huge"], "--points: no point 'huge'"),
        (["single", "--core", "9999"], "--core"),
    ],
)
def test_wrong_arguments_are_refused(arguments, said, capsys):
    with pytest.raises(SystemExit) as stopped:
        parse(arguments)
    assert stopped.value.code == 2
    assert said in capsys.readouterr().err
