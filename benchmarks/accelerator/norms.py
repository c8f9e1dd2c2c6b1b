"""Bandwidth of every normalizer, forward and with its gradient, against a copy."""

import functools

import jax
import jax.numpy as jnp

from benchmarks.accelerator import timing
from benchmarks.norms import CONF, both_forms, forward_and_backward

# Passes over x that cannot be avoided: read x, write y; then read x and dy, write dx.
FORWARD, BACKWARD = 2, 3


def measure(is_tiny: bool) -> dict[str, object]:
    """{"copy": bytes/s, "norms": choice -> {"forward", "both"}: parts of the copy}

    bfloat16 rows, as in a bfloat16 model; a part of 1 is a norm that costs no more than
    moving what it must move.
    """
    shape = (256, 64) if is_tiny else (64 * 1024, 1024)
    x, dy = (
        jax.random.normal(jax.random.key(i), shape, jnp.bfloat16) for i in range(2)
    )
    copy = timing.copy_rate(max(2 * x.nbytes, 1 << 20))
    found = {}
    for choice in sorted(path.stem for path in CONF.glob("*.yaml")):
        form, _, params, state = both_forms(choice, shape[1])
        forward = jax.jit(lambda p, s, x, form=form: form(p, s, x)[0])
        both = jax.jit(forward_and_backward(form))
        runs = {
            "forward": (functools.partial(forward, params, state, x), FORWARD),
            "both": (
                functools.partial(both, params, state, x, dy),
                FORWARD + BACKWARD,
            ),
        }
        found[choice] = {
            name: passes * x.nbytes / timing.seconds(run, 5, 3) / copy
            for name, (run, passes) in runs.items()
        }
    return {"copy": copy, "shape": shape, "norms": found}
