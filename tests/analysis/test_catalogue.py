"""The page of a catalogue: whole, self-contained, and nothing left out."""

import base64
import json
import re
from html.parser import HTMLParser

import numpy as np
import pytest

from analysis.__main__ import main
from analysis.catalogue import render, write_catalogue
from analysis.errors import AnalysisError
from analysis.plots.curves import curve_svg, frame_of

T = [-1.0, 0.0, 1.0]


def entry(**changes):
    return {
        "choice": "rmsnorm",
        "says": "y = gain * x / rms",
        "says_source": "arXiv 1910.07467",
        "target": "blocks.norms.rmsnorm.RMSNorm",
        "keywords": {"eps": 1e-6, "bias": False, "inner": {"_target_": "a.b.C"}},
        "formula": "y = gain * x\n  if x < 1 & 2",
        "source": "arXiv 1910.07467 section 3",
        "n_params": 1234,
        "params": [{"path": "gain", "role": "gain", "shape": [1234]}],
        "curves": None,
        "problem": None,
        **changes,
    }


def catalogue(*entries):
    curve = {"y": [-1.0, None, 1.0], "slope": [1.0, 1.0, None]}
    return {
        "schema": 1,
        "sizes": {"d_model": 1234},
        "groups": [{"group": "norm", "entries": list(entries)}],
        "t": T,
        "activations": [{"name": "relu", "says": "max(x, 0)", **curve}],
    }


@pytest.fixture
def write(tmp_path):
    def write(node):
        text = node if isinstance(node, str) else json.dumps(node)
        (tmp_path / "catalogue.json").write_text(text)
        return tmp_path

    return write


class Page(HTMLParser):
    """Collects text and addresses, and checks that every tag is closed."""

    def __init__(self, text):
        super().__init__()
        self.text, self.addresses, self.open = "", [], []
        self.feed(text)
        assert self.open == []

    def handle_starttag(self, tag, attributes):
        if tag not in ("meta", "img", "br", "wbr"):
            self.open.append(tag)
        self.addresses += [v for k, v in attributes if k in ("src", "href", "srcset")]

    def handle_endtag(self, tag):
        assert self.open.pop() == tag

    def handle_data(self, data):
        self.text += data


def test_page_holds_what_the_catalogue_holds():
    page = Page(render(catalogue(entry())))
    for text in (
        "norm=rmsnorm",
        "y = gain * x / rms",
        "if x < 1 & 2",
        "1,234",
        "gain [1234] gain",
        "arXiv 1910.07467 section 3",
        "eps=1e-06, bias=false, inner=C",
        "1 choice in 1 group",
    ):
        assert text in page.text, text
    assert "could not be built" not in page.text


def test_page_needs_nothing_from_outside(write):
    curve = {"y": [0.0, 0.5, 1.0], "slope": [0.5, 0.5, 0.5]}
    with_curves = entry(curves={"token": curve, "feature": curve})
    text = write_catalogue(write(catalogue(with_curves))).read_text()
    page = Page(text)
    assert all(a.startswith(("#", "data:image/svg+xml;")) for a in page.addresses)
    assert sum(a.startswith("data:") for a in page.addresses) == 2
    targets = set(re.findall(r' id="([^"]+)"', text))
    assert {a[1:] for a in page.addresses if a.startswith("#")} == targets


def test_a_part_that_could_not_be_built_is_at_the_top():
    broken = entry(choice="odd", target=None, formula=None, source=None, params=[],
                   n_params=None, problem="it needs <everything>")  # fmt: skip
    text = Page(render(catalogue(entry(), broken))).text
    assert "1 choice could not be built alone:" in text
    assert text.index("norm=odd: it needs <everything>") < text.index("norm=rmsnorm")


def test_a_formula_that_the_comment_says_already_is_not_repeated():
    same = entry(says="y = x", formula="y =  x.", source="arXiv 1")
    assert "<pre>" not in render(catalogue(same))


def test_curves_are_titled_and_the_same_every_time():
    panels = [("one", [-1.0, None, 1.0], [1.0, 1.0, None]), ("two", T, T)]
    svg = curve_svg(T, panels, "norm=x")
    assert svg == curve_svg(T, panels, "norm=x")
    for title in (b"one", b"two"):
        assert b">" + title + b"<" in svg
    base64.b64encode(svg)


def test_frame_shows_all_of_y_and_cuts_a_spike_of_the_slope():
    y = np.sign(np.linspace(-1, 1, 101))
    slope = np.zeros(101)
    slope[50] = 1000.0
    low, high = frame_of(y, slope)
    assert -1.2 < low < -1
    assert 1 < high < 1.2


@pytest.mark.parametrize(
    "content, message",
    [
        ("{", "catalogue.json is not JSON"),
        ("[]", "expected schema 1, got None"),
        ('{"schema": 2}', "expected schema 1, got 2"),
    ],
)
def test_what_is_no_catalogue_is_refused(write, content, message):
    with pytest.raises(AnalysisError, match=message):
        write_catalogue(write(content))


def test_command(write, tmp_path, capsys):
    assert main(["catalogue", str(tmp_path / "nowhere")]) == 2
    assert "python launch.py task=catalogue" in capsys.readouterr().err
    home = write(catalogue(entry()))
    assert main(["catalogue", str(home)]) == 0
    assert capsys.readouterr().out.strip() == str(home / "catalogue.html")
    assert sorted(p.name for p in home.iterdir()) == [
        "catalogue.html",
        "catalogue.json",
    ]
