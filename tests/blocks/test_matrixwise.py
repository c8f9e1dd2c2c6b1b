"""Factorizations that no thread waits for."""

import pathlib
import re
import subprocess
import sys

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from blocks.matrixwise import matrixwise

ROOT = pathlib.Path(__file__).parents[2]

MANY_AT_ONCE = """
import jax, jax.numpy as jnp
from blocks.matrixwise import matrixwise

@jax.jit
def many(x):
    def body(_, total):
        qrs = [matrixwise(lambda a: jnp.linalg.qr(a, mode="r"), x * k + total)
               for k in range(1, 25)]
        return total + 1e-6 * sum(r.sum() for r in qrs)
    return jax.lax.fori_loop(0, 25, body, 0.0)

print(float(many(jax.random.normal(jax.random.key(0), (24, 32, 32)))))
"""


@pytest.fixture(scope="module")
def stacks():
    draws = np.random.default_rng(0).normal(size=(2, 3, 5, 4))
    return np.float32(draws)


def test_each_matrix_is_factored_as_if_alone(stacks):
    q, r = jax.jit(lambda x: matrixwise(jnp.linalg.qr, x))(stacks)
    assert q.shape == (2, 3, 5, 4)
    np.testing.assert_allclose(q @ r, stacks, atol=1e-5)
    np.testing.assert_allclose(np.abs(r), np.abs(np.linalg.qr(stacks)[1]), atol=1e-5)


def test_members_side_by_side_have_the_same_bits(stacks):
    gram = stacks.swapaxes(-1, -2) @ stacks
    fn = jax.jit(jax.vmap(lambda x: matrixwise(jnp.linalg.eigh, x)))
    for i, (values, vectors) in enumerate(zip(*fn(gram), strict=True)):
        alone = jax.jit(lambda x: matrixwise(jnp.linalg.eigh, x))(gram[i])
        np.testing.assert_array_equal(values, alone[0])
        np.testing.assert_array_equal(vectors, alone[1])


def test_more_factorizations_at_once_than_threads_come_to_an_end():
    # As plain calls on stacks they wait for each other for ever with jaxlib 0.10.2.
    done = subprocess.run(
        [sys.executable, "-c", MANY_AT_ONCE],
        cwd=ROOT, capture_output=True, text=True, timeout=120, check=True,
    )  # fmt: skip
    assert np.isfinite(float(done.stdout))


def test_a_gpu_factors_them_together():
    def fn(x):
        return matrixwise(lambda a: jnp.linalg.qr(a, mode="r"), x)

    x = jax.ShapeDtypeStruct((6, 5, 4), jnp.float32)
    text = jax.export.export(jax.jit(fn), platforms=["cuda"])(x).mlir_module()
    assert "stablehlo.while" not in text


def test_nothing_else_calls_lapack():
    calls = re.compile(
        r"linalg\.(cholesky|det|eigh?|eigvalsh?|inv|lstsq|pinv|qr|slogdet|solve|svd)\b"
    )
    for package in ("blocks", "experiments"):
        for path in (ROOT / package).rglob("*.py"):
            for line in path.read_text().splitlines():
                numpy = "np.linalg" in line and "jnp.linalg" not in line
                if calls.search(line) and not numpy:
                    assert "matrixwise(" in line, f"{path}: {line.strip()}"
