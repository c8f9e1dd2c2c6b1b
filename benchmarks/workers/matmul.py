"""No peer: the float32 matrix product of this machine, the limit the others have.

A unit is one product of two square matrices of width 1024, big enough for the fastest
kernels and small enough to stay in the outer caches.
"""

import numpy as np

from benchmarks.points import Point
from benchmarks.worker import Built

WIDTH = 1024


def build(point: Point, text: str, *, library: str) -> Built:
    """library: `jax` (the kernels our steps run on) or `numpy` (its BLAS)."""
    del point, text
    random = np.random.default_rng(0)
    a, b = (random.normal(size=(WIDTH, WIDTH)).astype(np.float32) for _ in range(2))
    if library == "numpy":

        def run(n):
            for _ in range(n):
                a @ b
            return {}

    else:
        import jax

        product = jax.jit(lambda x, y: x @ y)
        a, b = jax.device_put(a), jax.device_put(b)

        def run(n):
            for _ in range(n):
                product(a, b).block_until_ready()
            return {}

    return Built({"run": run}, {"flops": 2 * WIDTH**3})
