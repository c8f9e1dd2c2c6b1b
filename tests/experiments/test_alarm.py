"""When a run is said to have failed without a NaN."""

import pytest

from experiments.alarm import Alarm


def rows(step, *, sat=(0.0,) * 4, gain=(1.0,) * 4, size=(1.0,) * 4, place="site"):
    values = {"sat99": sat, "gain_eff": gain, "x_rms": size}
    return [
        {"step": step, "quantity": f"{place}/{k}", "axis": "site", "values": list(v)}
        for k, v in values.items()
    ]


def alarms(*probes):
    alarm = Alarm()
    return [alarm.meet(probe) for probe in probes], alarm.warning


TROUBLE = {
    "saturated": {"sat": (0.51, 0, 0, 0)},
    "weak": {"gain": (0.24, 1, 1, 1)},
    "outgrown": {"size": (1, 1, 101, 1)},
}


@pytest.mark.parametrize("kind", TROUBLE)
def test_a_quarter_of_the_norms_twice_in_a_row_raises_it_once(kind):
    bad = TROUBLE[kind]
    went_off, warning = alarms(
        rows(1), rows(2, **bad), rows(3), rows(4, **bad), rows(5, **bad), rows(6, **bad)
    )
    assert went_off == [False] * 4 + [True, False]
    assert warning.startswith("step 5: 1 of 4 pointwise norms")


@pytest.mark.parametrize(
    "just_not",
    [
        {"sat": (0.5,) * 4},
        {"gain": (0.25,) * 4},
        {"size": (100.0,) * 4},
        {"sat": (0.9, 0, 0, 0, 0), "gain": (1,) * 5, "size": (1,) * 5},
        {"sat": (None,) * 4, "gain": (None,) * 4, "size": (1e9,) * 4},
        {"sat": (float("nan"),) * 4, "gain": (float("nan"),) * 4},
    ],
)
def test_short_of_that_nothing_is_said(just_not):
    first = {key: values for key, values in just_not.items() if key != "size"}
    first["size"] = (1.0,) * len(just_not.get("size", range(4)))
    assert alarms(
        rows(1, **{**first, "sat": (0.0,) * len(first["size"])}),
        *(rows(step, **just_not) for step in (2, 3, 4)),
    ) == ([False] * 4, None)


def test_norms_without_saturation_have_no_part_in_it():
    """The stream of a healthy run with RMSNorm grew a hundredfold."""
    other = [{"step": 1, "quantity": "site/x_rms", "axis": "site", "values": [1.0]}]
    grown = [{**other[0], "values": [1000.0]}]
    assert alarms(other, grown, grown) == ([False] * 3, None)


def test_layers_with_other_norms_are_left_out_and_the_final_norm_counts():
    probes = [
        rows(step, sat=(None, None, 0.1, 0.1))
        + rows(step, sat=(0.9,), gain=(0.1,), size=(1.0,), place="final")
        for step in (1, 2)
    ]
    went_off, warning = alarms(*probes)
    assert went_off == [False, True]
    assert "1 of 3" in warning
