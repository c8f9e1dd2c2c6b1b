"""What the framework should reach, and whether it did."""

import dataclasses
from collections.abc import Sequence

from benchmarks.tables import Table


@dataclasses.dataclass(frozen=True)
class Target:
    """A ratio or a number of seconds with a limit on one side."""

    id: str
    quantity: str
    limit: float
    at_least: bool = False
    unit: str = ""

    @property
    def text(self) -> str:
        return f"{'>=' if self.at_least else '<='} {self.limit:g}{self.unit}"


TARGETS = {
    t.id: t
    for t in (
        Target("P1", "base: nanodo without metrics / ours", 1.25, True),
        Target("P2", "base: flax gemma / ours", 1.4, True),
        Target("P3", "base: ours / nanoGPT eager", 1.35),
        Target("P4a", "small: nanoGPT eager / ours", 1.2, True),
        Target("P4b", "small: nanoGPT compiled / ours", 1.1, True),
        Target("P5a", "tiny: nanoGPT eager / ours", 1.8, True),
        Target("P5b", "tiny: nanodo as shipped / ours", 2.5, True),
        Target("P5c", "tiny: flax gemma / ours", 2.5, True),
        Target("P6a", "base: ours / bare prototype", 1.05),
        Target("P6b", "tiny: ours / bare prototype", 1.15),
        Target("P7a", "base: probe at every step / none", 1.10),
        Target("P7b", "tiny: probe at every step / none", 1.5),
        Target("P7c", "base: probe every 50 steps / none", 1.02),
        Target("P8", "compile at 384 layers / at 4 layers", 1.1),
        Target("P9", "gradient against depth, 7 depths x 20 seeds", 30, unit=" CPU s"),
        Target("P10", "16 processes in turn / one launch of 16 runs", 5, True),
        Target("P11", "small, warm cache: to the end of 50 steps", 3, unit=" CPU s"),
        Target("P12a", "5 normalizers in one program / one, compilation", 2.0),
        Target("P12b", "5 normalizers in one program / one, step", 1.06),
    )
}


@dataclasses.dataclass(frozen=True)
class Outcome:
    """A measured value of a target; `value` None where it was not measured.

    stand_in: the peer that was measured in place of the one the target names.
    """

    id: str
    value: float | None
    shown: str
    note: str = ""
    stand_in: str = ""

    @property
    def verdict(self) -> str:
        """In brackets where it is not the named peer that was beaten, or not."""
        word = {True: "pass", False: "FAIL", None: "-"}[self.passed]
        return f"({word})" if self.stand_in else word

    @property
    def passed(self) -> bool | None:
        if self.value is None:
            return None
        target = TARGETS[self.id]
        if target.at_least:
            return self.value >= target.limit
        return self.value <= target.limit


def not_measured(id: str, why: str) -> Outcome:
    return Outcome(id, None, "not measured", why)


def targets_table(outcomes: Sequence[Outcome]) -> Table:
    rows = [
        [
            o.id,
            TARGETS[o.id].quantity,
            TARGETS[o.id].text,
            o.shown,
            o.verdict,
            f"stand-in: {o.stand_in}" if o.stand_in else o.note,
        ]
        for o in outcomes
    ]
    columns = ["", "quantity", "target", "measured", "", "note"]
    return Table("Targets", columns, rows)
