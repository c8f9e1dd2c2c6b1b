import pytest

from tests.analysis.test_notebooks import execute, pictures


@pytest.mark.slow
def test_notebook_shows_a_study_with_and_without_a_design(
    tmp_path, make_study, make_wide
):
    make_wide(tmp_path / "wide", seeds=2)
    executed = execute("interaction", f"folder = {str(tmp_path / 'wide')!r}")
    assert len(pictures(executed)) == 13
    make_study(tmp_path / "small", seeds=2, design=None)
    axes = "rows, columns = 'norm=rmsnorm,derf', 'optimizer'\ntune_seeds = (100,)"
    executed = execute("interaction", f"folder = {str(tmp_path / 'small')!r}\n{axes}")
    assert len(pictures(executed)) == 4
