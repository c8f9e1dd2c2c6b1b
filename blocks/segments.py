"""Finding the repetition in a stack whose layers are not all alike."""

import dataclasses
from collections.abc import Hashable, Sequence

LONGEST_PERIOD = 8


@dataclasses.dataclass(frozen=True)
class Segment:
    """Layers `start .. start + period * repeats - 1`: a pattern met `repeats` times."""

    start: int
    period: int
    repeats: int

    @property
    def stop(self) -> int:
        return self.start + self.period * self.repeats

    def layers(self, position: int) -> range:
        """The layers at one position of the pattern."""
        return range(self.start + position, self.stop, self.period)


def segments(kinds: Sequence[Hashable]) -> list[Segment]:
    """Cuts a list of kinds of layers into few repeated patterns, from the left.

    a a a a        one segment, period 1
    l l g l l g l  period 3 twice, then one layer
    d m m m        one layer, then period 1 three times
    """
    found = []
    start = 0
    while start < len(kinds):
        best = Segment(start, 1, 1)
        for period in range(1, LONGEST_PERIOD + 1):
            repeats = _repeats(kinds, start, period)
            covers = period * repeats
            # One repeat of a longer pattern repeats nothing.
            if (repeats > 1 or period == 1) and covers > best.stop - start:
                best = Segment(start, period, repeats)
        found.append(best)
        start = best.stop
    return found


def _repeats(kinds: Sequence[Hashable], start: int, period: int) -> int:
    same = 0
    while (
        start + same < len(kinds)
        and kinds[start + same] == kinds[start + same % period]
    ):
        same += 1
    return same // period
