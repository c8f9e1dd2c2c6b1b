"""Parameters by part as bars, from what task=count writes."""

import json

import pytest

from analysis.counts import read_counts, write_counts
from analysis.errors import AnalysisError
from analysis.plots.parts import parts_figure, short

DENSE = {
    "schema": 1,
    "n_params": 100,
    "n_active": 100,
    "parts": [
        {"part": "embedding", "n_params": 40, "n_active": 40},
        {"part": "attention", "n_params": 60, "n_active": 60},
    ],
}
MIXTURE = {
    "schema": 1,
    "n_params": 1_000_000,
    "n_active": 250_000,
    "parts": [
        {"part": "attention", "n_params": 200_000, "n_active": 200_000},
        {"part": "experts", "n_params": 800_000, "n_active": 50_000},
    ],
}


def bars_of(figure):
    """Row -> widths of its pieces."""
    (axes,) = figure.axes
    found = {}
    for bar in axes.patches:
        row = round(bar.get_y() + bar.get_height() / 2)
        found.setdefault(row, []).append(round(bar.get_width(), 6))
    return found


def test_a_bar_is_the_whole_and_a_mixture_has_two():
    figure = parts_figure({"dense": DENSE, "mixture": MIXTURE})
    assert bars_of(figure) == {0: [40, 60], 1: [20, 80], 2: [80, 20]}
    (axes,) = figure.axes
    labels = [label.get_text() for label in axes.get_yticklabels()]
    assert labels == ["dense", "mixture", "mixture, of one token"]
    texts = {text.get_text() for text in axes.texts}
    assert {"100", "1 M", "250 k", "40 %", "80 %"} <= texts


def test_a_part_has_one_colour_and_one_entry_of_the_legend():
    figure = parts_figure({"dense": DENSE, "mixture": MIXTURE})
    (legend,) = figure.legends
    names = [text.get_text() for text in legend.get_texts()]
    assert sorted(names) == ["attention", "embedding", "experts"]
    (axes,) = figure.axes
    attention = [bar.get_facecolor() for bar in axes.patches][1:3]
    assert attention[0] == attention[1]


def test_numbers_are_short():
    assert [
        short(n) for n in (671_026_404_352, 124_439_808, 999, 1_026_408_209_408)
    ] == [
        "671 B",
        "124 M",
        "999",
        "1.03 T",
    ]


def test_nothing_to_draw_is_refused():
    with pytest.raises(ValueError, match="no counts to draw"):
        parts_figure({})


def test_the_figure_lies_beside_the_count(tmp_path):
    (tmp_path / "count.json").write_text(json.dumps(MIXTURE))
    path = write_counts(tmp_path)
    assert path == tmp_path / "count.svg"
    assert path.read_text().count("<svg") == 1
    assert sorted(p.name for p in tmp_path.iterdir()) == ["count.json", "count.svg"]


@pytest.mark.parametrize(
    "text, told",
    [
        (None, r": cannot be read \(No such file.*task=count"),
        ("{", " is not JSON: "),
        ('{"schema": 7}', ": expected schema 1, got 7"),
        ("[]", ": expected schema 1, got None"),
    ],
)
def test_what_is_no_count_is_named(tmp_path, text, told):
    if text is not None:
        (tmp_path / "count.json").write_text(text)
    with pytest.raises(AnalysisError, match=f"count.json{told}"):
        read_counts(tmp_path)
