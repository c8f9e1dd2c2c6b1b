"""How many runs stand where, in words."""

import polars as pl

ORDER = ("completed", "running", "preempted", "diverged", "failed")


def state_counts(runs: pl.DataFrame) -> dict[str, int]:
    """State -> number of runs, the known states first and in a fixed order."""
    found = runs["state"].to_list()
    others = sorted(set(found) - set(ORDER))
    return {s: found.count(s) for s in (*ORDER, *others) if s in found}


def states_text(runs: pl.DataFrame, *, without: tuple[str, ...] = ()) -> str:
    """`3 completed, 1 diverged`."""
    counts = state_counts(runs)
    return ", ".join(f"{n} {s}" for s, n in counts.items() if s not in without)
