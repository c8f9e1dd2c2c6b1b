"""Saying so when the norms of a run have stopped working, which no NaN tells."""

from typing import Any

SATURATED = 0.5  # of sat99
WEAK = 0.25  # of gain_eff
GROWN = 100.0  # of x_rms over its first value
SHARE = 0.25  # of the pointwise norms
IN_A_ROW = 2  # probes


class Alarm:
    """Reads the probe rows of one run, step after step; never stops it.

    A pointwise norm is in trouble where sat99 > 0.5, gain_eff < 0.25, or x_rms is more
    than 100 times what it was at the first probe. Two probes in a row with a quarter of
    them in trouble raise the alarm, once. Norms without saturation have no part in it: a
    healthy run may grow their input a hundredfold.
    """

    def __init__(self):
        self.warning: str | None = None
        self._first: dict[str, list] = {}
        self._in_a_row = 0

    def meet(self, rows: list[dict[str, Any]]) -> bool:
        """Takes the rows of one probed step; whether the alarm goes off at it."""
        by_name = {row["quantity"]: row["values"] for row in rows}
        n_norms = n_troubled = 0
        for name, saturated in by_name.items():
            place, _, metric = name.rpartition("/")
            if metric != "sat99":
                continue
            weak = by_name[f"{place}/gain_eff"]
            size = by_name[f"{place}/x_rms"]
            first = self._first.setdefault(place, size)
            for i, sat in enumerate(saturated):
                if not _is_number(sat):  # a layer with another norm
                    continue
                n_norms += 1
                n_troubled += (
                    sat > SATURATED
                    or _less(weak[i], WEAK)
                    or (_less(0, first[i]) and _less(GROWN * first[i], size[i]))
                )
        is_bad = n_troubled > 0 and n_troubled >= SHARE * n_norms
        self._in_a_row = self._in_a_row + 1 if is_bad else 0
        if self.warning is not None or self._in_a_row < IN_A_ROW:
            return False
        self.warning = (
            f"step {rows[0]['step']}: {n_troubled} of {n_norms} pointwise norms are "
            f"saturated or were outgrown by their input (sat99 > {SATURATED}, gain_eff < "
            f"{WEAK} or x_rms > {GROWN:.0f} times its first value, {IN_A_ROW} probes in a "
            "row)"
        )
        return True


def _is_number(value: float | None) -> bool:
    """Not the null of a file, and not NaN."""
    return value is not None and value == value


def _less(a: float | None, b: float | None) -> bool:
    """a < b, of two numbers."""
    return _is_number(a) and _is_number(b) and a < b
