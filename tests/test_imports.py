"""Who may import whom.

    launch, hydra_plugins -> experiments -> blocks -> jax, flax        analysis -> files

Hydra imports its plugins at every start, and launch.py before it knows whether there is
anything to run: what takes seconds to import (jax) is left to the functions there.
"""

import ast
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[1]
OURS = {"analysis", "blocks", "experiments", "hydra_plugins", "launch"}
STDLIB = set(sys.stdlib_module_names)


def imports(source, *, everywhere=True):
    """Top-level names that a source imports: anywhere, or when it is itself imported.

    The second leaves out the bodies of functions; those of classes, `if` and `try` run
    on import and count.
    """
    names = set()

    def visit(node):
        for child in ast.iter_child_nodes(node):
            if isinstance(child, ast.Import):
                names.update(alias.name.split(".")[0] for alias in child.names)
            elif isinstance(child, ast.ImportFrom):
                assert child.level == 0, "imports are absolute here"
                names.add(child.module.split(".")[0])
            lazy = isinstance(
                child, (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda)
            )
            if everywhere or not lazy:
                visit(child)

    visit(ast.parse(source))
    return names


def files(folder):
    found = sorted((ROOT / folder).rglob("*.py"))
    assert found, f"no Python file in {folder}"
    return [path.relative_to(ROOT).as_posix() for path in found]


def read(path):
    return (ROOT / path).read_text(encoding="utf-8")


def dotted(source):
    """Full names of modules imported anywhere in a source."""
    names = set()
    for node in ast.walk(ast.parse(source)):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            names.add(node.module)
    return names


def test_the_reader_of_imports_sees_what_it_should():
    source = """
import os, numpy.linalg
from jax import numpy as jnp
class A:
    import flax
    def f(self):
        import optax
try:
    import torch
except ImportError:
    async def g():
        from blocks.linear import Linear
"""
    at_import = {"os", "numpy", "jax", "flax", "torch"}
    assert imports(source, everywhere=False) == at_import
    assert imports(source) == at_import | {"optax", "blocks"}
    assert "numpy.linalg" in dotted(source)
    assert "blocks.linear" in dotted(source)


@pytest.mark.parametrize("path", files("blocks"))
def test_blocks_import_jax_flax_numpy_and_blocks(path):
    outside = imports(read(path)) - STDLIB
    if path.startswith("blocks/oracle/"):
        assert outside <= {"numpy", "blocks"}
        ours = {name for name in dotted(read(path)) if name.startswith("blocks")}
        assert all(name.startswith("blocks.oracle") for name in ours)
    else:
        allowed = {"jax", "flax", "numpy", "blocks"}
        if path in ("blocks/families/files.py", "blocks/families/weights.py"):
            allowed |= {"safetensors"}
        assert outside <= allowed
        assert not any(n.startswith("blocks.oracle") for n in dotted(read(path)))


@pytest.mark.parametrize("path", files("experiments"))
def test_experiments_import_neither_analysis_nor_who_calls_them(path):
    assert imports(read(path)) & OURS <= {"experiments", "blocks"}
    assert not any(name.startswith("blocks.oracle") for name in dotted(read(path)))


@pytest.mark.parametrize("path", files("analysis"))
def test_analysis_imports_neither_ours_nor_jax(path):
    found = imports(read(path))
    assert found & OURS <= {"analysis"}
    assert not found & {"jax", "jaxlib", "flax", "optax", "orbax", "hydra", "omegaconf"}


@pytest.mark.parametrize("path", files("hydra_plugins"))
def test_plugins_import_hydra_and_experiments(path):
    allowed = {"hydra", "omegaconf", "experiments", "hydra_plugins"}
    assert imports(read(path)) - STDLIB <= allowed
    assert imports(read(path), everywhere=False) - STDLIB <= {"hydra", "omegaconf"}


def test_launch_imports_hydra_at_the_top_and_experiments_inside_functions():
    source = read("launch.py")
    assert imports(source, everywhere=False) - STDLIB <= {"hydra", "omegaconf"}
    assert imports(source) - STDLIB <= {"hydra", "omegaconf", "experiments"}


def loaded_by(statement):
    """Top-level modules in a fresh interpreter after `statement`."""
    code = f"{statement}\nimport sys\nprint(*{{m.split('.')[0] for m in sys.modules}})"
    run = subprocess.run(
        [sys.executable, "-c", code],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert run.returncode == 0, run.stderr
    return set(run.stdout.split())


@pytest.mark.parametrize(
    "modules",
    [
        "hydra_plugins.blocklab.sweeper, hydra_plugins.blocklab.launcher",
        "hydra_plugins.blocklab.optuna_sweeper",
        "launch",
    ],
)
def test_starting_hydra_loads_no_jax(modules):
    loaded = loaded_by(f"import {modules}")
    assert "hydra" in loaded
    assert not loaded & {"jax", "jaxlib", "flax", "optax", "orbax"}


def test_analysis_loads_no_jax():
    modules = [
        path.removesuffix(".py").replace("/", ".")
        for path in files("analysis")
        if not path.endswith(("__init__.py", "__main__.py"))
    ]
    loaded = loaded_by("import " + ", ".join(modules))
    assert "polars" in loaded
    assert not loaded & {"jax", "jaxlib", "flax", "hydra", "blocks", "experiments"}
