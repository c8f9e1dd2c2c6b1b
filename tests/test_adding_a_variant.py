"""docs/adding_a_variant.md, followed to the letter in a copy of the project."""

import os
import re
import shutil
import subprocess
import sys

import pytest

from tests.launching import ROOT, SMALL


def code_blocks(text: str) -> list[str]:
    return re.findall(r"```(?:python|yaml)\n(.*?)```", text, flags=re.S)


@pytest.fixture
def project(tmp_path):
    """The project with the three files of the guide, and the oracle's new function."""
    for folder in ("blocks", "experiments", "conf", "hydra_plugins", "tests"):
        shutil.copytree(
            ROOT / folder,
            tmp_path / folder,
            ignore=shutil.ignore_patterns("__pycache__"),
        )
    for file in ("launch.py", "pyproject.toml"):
        shutil.copy(ROOT / file, tmp_path / file)
    guide = (ROOT / "docs/adding_a_variant.md").read_text()
    module, choice, oracle, test = code_blocks(guide)
    (tmp_path / "blocks/norms/softsign.py").write_text(module)
    (tmp_path / "conf/norm/softsign.yaml").write_text(choice)
    with (tmp_path / "blocks/oracle/norms.py").open("a") as f:
        f.write("\n\n" + oracle)
    (tmp_path / "tests/blocks/norms/test_softsign.py").write_text(test)
    return tmp_path


def run(project, *arguments):
    env = {**os.environ, "PYTHONPATH": str(project)}
    return subprocess.run(
        [sys.executable, *arguments],
        cwd=project,
        env=env,
        capture_output=True,
        text=True,
    )


@pytest.mark.slow
def test_the_guide_works(project):
    tested = run(project, "-m", "pytest", "-q", "tests/blocks/norms", "-k", "softsign")
    assert tested.returncode == 0, tested.stdout
    assert int(re.search(r"(\d+) passed", tested.stdout).group(1)) > 15

    trained = run(
        project, "launch.py", "-m", *SMALL, "steps=20", "norm=softsign",
        "model.norm.alpha_init=0.5,1.0",
    )  # fmt: skip
    assert trained.returncode == 0, trained.stderr
    assert "2 runs, 1 program\n" in trained.stdout
