import json
from pathlib import Path

import pytest

from analysis.load import load

ROOT = Path(__file__).parents[2]
HOME = ROOT / "analysis" / "notebooks"
NAMES = sorted(path.stem for path in HOME.glob("*.ipynb"))


def cells(name, kind="code"):
    content = json.loads((HOME / f"{name}.ipynb").read_text(encoding="utf-8"))
    return [cell for cell in content["cells"] if cell["cell_type"] == kind]


@pytest.mark.parametrize("name", NAMES)
def test_notebook_is_thin_and_kept_without_outputs(name):
    for cell in cells(name):
        assert cell["outputs"] == []
        assert cell["execution_count"] is None
        assert len(cell["source"]) <= 30, "longer than a screen: it belongs in analysis"
        lines = [line for line in cell["source"] if not line.startswith("%")]
        compile("".join(lines), name, "exec")
    assert [c for c in cells(name) if "parameters" in c["metadata"].get("tags", ())]


def execute(name, parameters):
    """Runs a notebook with other parameters; returns its cells with outputs.

    Raises:
        CellExecutionError: a cell failed; the message has its traceback.
    """
    nbformat, nbclient = (
        pytest.importorskip("nbformat"),
        pytest.importorskip("nbclient"),
    )
    pytest.importorskip("ipykernel")
    book = nbformat.read(HOME / f"{name}.ipynb", as_version=4)
    (cell,) = [c for c in book.cells if "parameters" in c.metadata.get("tags", ())]
    cell.source += f"\nimport sys\nsys.path.insert(0, {str(ROOT)!r})\n{parameters}"
    client = nbclient.NotebookClient(
        book, timeout=600, kernel_name="python3", resources={"metadata": {"path": HOME}}
    )
    client.execute()
    return book.cells


def pictures(executed):
    return [
        output
        for cell in executed
        for output in cell.get("outputs", ())
        if "image/png" in output.get("data", {})
    ]


def test_gradient_depth_launches_fits_and_repeats(tmp_path):
    home = tmp_path / "depth"
    executed = execute(
        "gradient_depth", f"folder = {str(home)!r}\ndepths, seeds = (6, 12, 24), 3"
    )
    assert len(pictures(executed)) == 5
    runs = load(home).runs
    assert runs.height == 2 * 3 * 3
    assert set(runs["variant"]) == {"layernorm", "derf"}
    assert set(runs["state"]) == {"completed"}


@pytest.mark.slow
def test_explore_runs_reads_any_folder(
    tmp_path, make_run, make_losses, make_depth_runs
):
    make_depth_runs(tmp_path / "x", seeds=2, depths=(6, 12))
    for norm in ("layernorm", "derf"):
        for seed in range(2):
            make_run(
                tmp_path / "x", norm=norm, seed=seed, metrics=make_losses(5, 2, seed)
            )
    executed = execute("explore_runs", f"folder = {str(tmp_path / 'x')!r}")
    assert len(pictures(executed)) == 3
    chosen = execute(
        "explore_runs",
        f"folder = {str(tmp_path / 'x')!r}\nkeep = {{'choice.norm': 'derf'}}",
    )
    assert len(pictures(chosen)) == 1
