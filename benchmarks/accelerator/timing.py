"""Times of compiled functions on an asynchronous device."""

import statistics
import time
from collections.abc import Callable

import jax
import jax.numpy as jnp

# Dense bfloat16 products and memory traffic of one chip, as published, by a word of its
# name. H200: NVIDIA's data sheet, half of what is printed with sparsity.
PEAK_FLOPS = {"H200": 989e12, "H100": 989e12, "A100": 312e12}


def seconds(run: Callable[[], object], repeats: int, rounds: int = 5) -> float:
    """Median over rounds of one call's time; `repeats` calls are queued at once."""
    jax.block_until_ready(run())
    taken = []
    for _ in range(rounds):
        start = time.perf_counter()
        for _ in range(repeats):
            last = run()
        jax.block_until_ready(last)
        taken.append((time.perf_counter() - start) / repeats)
    return statistics.median(taken)


def product_rate(width: int, dtype=jnp.bfloat16, repeats: int = 10) -> float:
    """FLOP/s of square matrix products of this width."""
    a, b = (jax.random.normal(jax.random.key(i), (width, width), dtype) for i in (0, 1))
    product = jax.jit(lambda a, b: a @ b)
    return 2 * width**3 / seconds(lambda: product(a, b), repeats)


def copy_rate(n_bytes: int, repeats: int = 10) -> float:
    """Bytes/s, read and written, of an elementwise pass over that much memory."""
    x = jnp.zeros(n_bytes // 4, jnp.float32)
    copied = jax.jit(lambda x: x + 1.0)
    return 2 * x.nbytes / seconds(lambda: copied(x), repeats)


def peak_flops() -> float | None:
    """Published rate of this device; None if it is not in the table."""
    kind = jax.devices()[0].device_kind
    return next((rate for word, rate in PEAK_FLOPS.items() if word in kind), None)


def device() -> dict[str, object]:
    """What it was measured on."""
    first = jax.devices()[0]
    return {
        "platform": first.platform,
        "kind": first.device_kind,
        "n_devices": jax.device_count(),
        "jax": jax.__version__,
        "matmul_precision": jax.config.jax_default_matmul_precision or "default",
    }
