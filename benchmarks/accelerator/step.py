"""The training step of a GPT-2 of 124M parameters: tokens/s, and part of the peak."""

import pathlib
import tempfile

from benchmarks.accelerator import timing
from benchmarks.points import POINTS, Point
from benchmarks.text import write_text
from benchmarks.workers import ours

POINT = Point("gpt2_124m", 768, 12, 12, 1024, 32, vocab_size=50304)
# What one step is compared in: bfloat16 with cuDNN's attention where there is one,
# the same with scores in memory, and float32.
VARIANTS = {
    "bfloat16": ("model.dtype=bfloat16",),
    "bfloat16, explicit attention": (
        "model.dtype=bfloat16",
        "model.attention.implementation=explicit",
    ),
    "float32": (),
}


def measure(is_tiny: bool) -> dict[str, object]:
    """{"variants": name -> figures, "product_rate": FLOP/s, "published": FLOP/s}"""
    point = POINTS["small"] if is_tiny else POINT
    steps, rounds = (2, 2) if is_tiny else (10, 3)
    rate = timing.product_rate(256 if is_tiny else 8192)
    published = timing.peak_flops()
    found = {}
    with tempfile.TemporaryDirectory() as work:
        text = str(write_text(pathlib.Path(work) / "text.bin"))
        for name, extra in VARIANTS.items():
            vocabulary = (f"model.vocab_size={point.vocab_size}",)
            built = ours.build(point, text, layout="vmap", extra=(*vocabulary, *extra))
            taken = timing.seconds(
                lambda built=built: built.commands["run"](steps), 1, rounds
            )
            flops = point.flops(built.info["matmul_params"])
            found[name] = {
                "seconds": taken / steps,
                "tokens_per_second": point.tokens * steps / taken,
                "model_flops": flops,
                "of_product_rate": flops * steps / taken / rate,
                "mfu": published and flops * steps / taken / published,
                "n_params": built.info["n_params"],
            }
    return {"variants": found, "product_rate": rate, "published": published}
