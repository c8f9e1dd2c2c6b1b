"""64 tiny runs at once against one after another, on one device."""

import pathlib
import tempfile

from benchmarks.accelerator import timing
from benchmarks.points import POINTS
from benchmarks.text import write_text
from benchmarks.workers import ours

LAYOUTS = ("vmap", "map")


def measure(is_tiny: bool) -> dict[str, object]:
    """{"alone": s, "layouts": name -> {"seconds", "speedup"}}; a step of all members
    together against as many steps of one."""
    point = POINTS["tiny"]
    members, steps = (4, 10) if is_tiny else (64, 50)
    with tempfile.TemporaryDirectory() as work:
        text = str(write_text(pathlib.Path(work) / "text.bin"))

        def of(n: int, layout: str) -> float:
            built = ours.build(point, text, members=n, layout=layout)
            return timing.seconds(lambda: built.commands["run"](steps), 1, 3) / steps

        alone = of(1, "vmap")
        found = {}
        for layout in LAYOUTS:
            taken = of(members, layout)
            speedup = members * alone / taken
            found[layout] = {"seconds": taken, "speedup": speedup}
    return {"members": members, "alone": alone, "layouts": found}
