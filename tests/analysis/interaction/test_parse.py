import copy
import textwrap
from pathlib import Path

import pytest
import yaml

from analysis.interaction.design import Contrast
from analysis.interaction.parse import parse

ROOT = Path(__file__).parents[3]
NODE = {
    "rows": {
        "name": "normalizer",
        "key": "norm",
        "levels": [
            "rmsnorm",
            "derf",
            {"low": {"norm": "derf", "model.norm.alpha": 0.3}},
        ],
    },
    "columns": {"key": "optimizer", "levels": ["adamw", "muon"]},
}


def test_short_form_is_filled_from_the_first_two_levels():
    design = parse(NODE)
    assert design.primary == Contrast("primary", ("rmsnorm", "derf"), ("adamw", "muon"))
    assert (design.metric, design.rate) == ("val_loss", "optimizer.learning_rate")
    assert design.columns.name == "optimizer"
    wanted = [level.wanted for level in design.rows.levels]
    assert wanted[1:] == [{"norm": "derf"}, {"norm": "derf", "model.norm.alpha": 0.3}]


def test_contrasts_are_all_other_interactions_where_none_are_named():
    (only,) = parse(NODE).contrasts
    assert (only.rows, only.columns) == (("rmsnorm", "low"), ("adamw", "muon"))


def test_a_prediction_borrows_the_cells_of_a_contrast():
    node = NODE | {
        "primary": {"id": "H1", "direction": ">"},
        "contrasts": [{"id": "a", "rows": ["derf", "low"], "columns": "muon"}],
        "predictions": [
            {"id": "P1", "contrast": "a", "direction": "<"},
            {"id": "P2", "contrast": "H1", "quantity": "x", "direction": ">"},
        ],
    }
    first, second = parse(node).predictions
    assert (first.rows, first.columns) == (("derf", "low"), ("muon",))
    assert second.is_interaction
    assert second.quantity == "x"


def test_a_remedy_is_a_row_or_a_column():
    node = NODE | {"remedies": ["low", {"row": "low", "column": "adamw", "id": "b"}]}
    first, second = parse(node).remedies
    assert (first.id, first.row, first.column) == ("low", "low", "muon")
    assert (second.id, second.column) == ("b", "adamw")


def entry(**keywords):
    return [{"id": "c", "rows": ["rmsnorm", "derf"], "columns": "muon"} | keywords]


@pytest.mark.parametrize(
    "change, message",
    [
        ({"row": {}}, "unknown 'row'"),
        ({"rows": None}, "rows: a mapping was expected"),
        ({"rows": {"key": "norm", "levels": ["a"]}}, "two levels or more, got a"),
        ({"rows": {"key": "norm", "levels": ["a", "a"]}}, "listed twice"),
        ({"rows": {"levels": [{"a": {}, "b": {}}]}}, "a level is one label"),
        ({"primary": {"id": "H1", "columns": "muon"}}, "two rows and two columns"),
        ({"primary": {"rows": ["rmsnorm", "dyt"]}}, "no level 'dyt'; rmsnorm, derf"),
        ({"contrasts": entry(rows="derf")}, "there is no difference"),
        ({"contrasts": entry(direction="up")}, "direction is >, < or =, got 'up'"),
        ({"contrasts": entry(direction="=")}, "needs a positive margin"),
        ({"contrasts": entry(rates="best")}, "shared or own, got 'best'"),
        ({"contrasts": entry(reduce="sum")}, "reduce is one of mean"),
        ({"contrasts": entry(at="soon")}, "at is last, mean or a step, got 'soon'"),
        ({"contrasts": entry(size=1)}, "unknown 'size'"),
        ({"contrasts": entry() + entry()}, "id 'c' is used twice"),
        ({"predictions": [{"id": "P", "contrast": "x"}]}, "no contrast 'x'; primary"),
        ({"remedies": ["derf"]}, "another cell than the one it mends"),
        ({"remedies": ["rmsnorm"]}, "baseline row, it has no gap"),
        ({"doses": [{"x": "alpha"}]}, "either rows or columns"),
        ({"doses": [{"x": "alpha", "rows": {"derf": "x"}}]}, "a number, got 'x'"),
        ({"tune_seeds": 3}, "tune_seeds: a list was expected, got 3"),
        ({"tune_seeds": ["a"]}, "tune_seeds: whole numbers, got 'a'"),
    ],
)
def test_refuses_what_it_cannot_mean(change, message):
    with pytest.raises(ValueError, match=message):
        parse(copy.deepcopy(NODE) | change)


def test_the_example_of_the_documentation_is_a_design():
    text = (ROOT / "docs" / "interaction.md").read_text(encoding="utf-8")
    start = text.index("    tags:\n")
    example = textwrap.dedent(text[start : text.index("\nA run is of the level")])
    design = parse(yaml.safe_load(example)["tags"]["design"])
    assert design.primary.id == "H1"
    assert [c.id for c in design.contrasts] == ["cap", "shape"]
    assert [p.id for p in design.predictions] == ["P1", "P5"]
    assert (len(design.remedies), len(design.doses)) == (2, 2)
