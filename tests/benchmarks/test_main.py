"""What the command writes, with measurements that are given."""

import json

import pytest

from benchmarks import __main__ as command
from benchmarks.settings import Result
from benchmarks.tables import Table
from benchmarks.targets import Outcome


@pytest.fixture
def fakes(monkeypatch):
    """Two commands that measure nothing; yields the settings they were given."""
    seen = {}

    def fake(name, outcome):
        def measure(settings):
            seen[name] = settings
            assert settings.text.stat().st_size == 2_000_000
            return Result([Table(f"Of {name}", ["", "x"], [["a", "1"]])], [outcome])

        return measure

    commands = {
        "single": fake("single", Outcome("P6a", 1.01, "1.01")),
        "depth": fake("depth", Outcome("P8", 1.2, "1.20", stand_in="another")),
    }
    monkeypatch.setattr(command, "COMMANDS", commands)
    return seen


def test_all_writes_every_table_and_every_target(fakes, tmp_path, capsys):
    assert command.main(["all", "--quick", "--out", str(tmp_path)]) == 0
    names = {p.name for p in tmp_path.iterdir()}
    assert names == {
        f"{n}.{e}" for n in ("single", "depth", "all") for e in ("md", "json")
    }
    page = (tmp_path / "all.md").read_text()
    assert "### Of single" in page
    assert "### Of depth" in page
    assert "| P6a | base: ours / bare prototype | <= 1.05 | 1.01 | pass |  |" in page
    assert "| <= 1.1 | 1.20 | (FAIL) | stand-in: another |" in page
    node = json.loads((tmp_path / "all.json").read_text())
    assert [t["id"] for t in node["targets"]] == ["P6a", "P8"]
    assert [t["passed"] for t in node["targets"]] == [True, False]
    assert "P8" in capsys.readouterr().out
    assert not fakes["single"].work.exists(), "the scratch folder is gone"


@pytest.mark.parametrize(
    "arguments, rounds", [([], 7), (["--quick"], 3), (["--quick", "--rounds", "5"], 5)]
)
def test_rounds(fakes, tmp_path, arguments, rounds):
    command.main(["single", *arguments, "--out", str(tmp_path)])
    assert fakes["single"].rounds == rounds
    assert {p.name for p in tmp_path.iterdir()} == {"single.md", "single.json"}
