"""What the streams of mHC add to a step, with the kernel and without."""

import jax

from benchmarks import residual
from benchmarks.accelerator import timing
from blocks.kernels.streams import BlendedStreams
from blocks.residual.add import Add
from blocks.residual.hyper_connections import HyperConnections
from blocks.residual.mhc import MHC

SCHEMES = {
    "plain": Add(),
    "mhc": MHC(),
    "mhc, kernel": MHC(kernel=BlendedStreams()),
    "hc": HyperConnections(),
}


def measure(is_tiny: bool) -> dict[str, object]:
    """{"schemes": name -> {"seconds", "of_plain"}}; loss and gradients, float32 rows of
    the model of `benchmarks.residual`."""
    n_tokens = residual.SEQ_LEN * (1 if is_tiny else 128)
    shape = (n_tokens // residual.SEQ_LEN, residual.SEQ_LEN + 1)
    tokens = jax.random.randint(jax.random.key(0), shape, 0, residual.VOCAB)
    found = {}
    for name, scheme in SCHEMES.items():
        step, params = residual.compiled_step(scheme, tokens)
        taken = timing.seconds(lambda s=step, p=params: s(p, tokens), 3, 3)
        found[name] = {"seconds": taken}
    for row in found.values():
        row["of_plain"] = row["seconds"] / found["plain"]["seconds"]
    return {"n_tokens": n_tokens, "d_model": residual.D_MODEL, "schemes": found}
