"""`python -m analysis status DIR`: the runs of a folder as a table, once or live."""

import argparse
import json
import time
from collections import Counter
from dataclasses import asdict

from rich.console import Console, Group
from rich.live import Live
from rich.table import Table
from rich.text import Text

from analysis.status import RunStatus, SweepStatus, read_sweep
from analysis.strict import strict
from analysis.text import count, number

COLOURS = {
    "lost": "red",
    "failed": "red",
    "running": "cyan",
    "preempted": "yellow",
    "diverged": "yellow",
    "planned": "dim",
    "completed": "green",
}
MAX_ROWS = 40
AROUND = 7  # lines of a screen that are not rows: headline, head, foot, prompt
PLAIN_WIDTH = 200  # of a file or a pipe
NARROW = 100  # below it an error matters more than the two columns
SPARED = ("tokens/s", "attempt")


def run(options: argparse.Namespace) -> None:
    """Prints the table, or its numbers as JSON; with `watch` until all are done.

    Raises:
        AnalysisError: nothing to read.
    """
    if options.json:
        node = strict(as_json(read_sweep(options.directory)))
        print(json.dumps(node, indent=2, allow_nan=False))
        return
    console = Console()
    if not console.is_terminal:
        console.width = PLAIN_WIDTH
    if options.watch:
        watch(options.directory, console, show_all=options.all)
        return
    limit = None if options.all else MAX_ROWS
    console.print(render(read_sweep(options.directory), limit, console.width))


def watch(directory: str, console: Console, *, show_all: bool) -> None:
    """Draws the table again and again, in place, until every run is done or Ctrl-C.

    Where nobody watches a terminal, a headline whenever it changes and the table last.
    """
    said = None
    try:
        with Live(console=console, auto_refresh=False) as live:
            while True:
                started = time.monotonic()
                sweep = read_sweep(directory)
                limit = None if show_all else _room(console)
                live.update(render(sweep, limit, console.width), refresh=True)
                line = headline(sweep)
                if not console.is_terminal and line != said:
                    console.print(line, soft_wrap=True, markup=False, highlight=False)
                    said = line
                if sweep.n_done == len(sweep.runs):
                    return
                # Looking must not slow down what is looked at.
                time.sleep(max(1.0, 5 * (time.monotonic() - started)))
    except KeyboardInterrupt:  # the way out, not an error
        return


def _room(console: Console) -> int:
    """Rows for which there is room."""
    if not console.is_terminal:
        return MAX_ROWS
    return max(1, console.height - AROUND)


def headline(sweep: SweepStatus) -> str:
    """`norms: 412 of 500 done: 3 running, 85 planned, 412 completed; 12 min left`."""
    states = ", ".join(f"{n} {state}" for state, n in sweep.counts.items())
    name = sweep.directory.resolve().name
    text = f"{name}: {sweep.n_done} of {count(len(sweep.runs), 'run')} done: {states}"
    if sweep.n_done == len(sweep.runs):
        return text
    left = sweep.seconds_left
    return f"{text}; " + ("time left n/a" if left is None else f"{duration(left)} left")


def render(sweep: SweepStatus, limit: int | None, width: int) -> Group:
    """Headline and table, `width` columns wide.

    Of more runs than `limit` only those that are not completed, and of those the first.
    """
    shown = sweep.runs
    if limit is not None and len(shown) > limit:
        shown = [run for run in shown if run.state != "completed"][:limit]
    parts = [Text(headline(sweep))]
    if shown:
        parts.append(_table(shown, is_narrow=width < NARROW))
    hidden = Counter(sweep.counts) - Counter(run.state for run in shown)
    if hidden:
        states = ", ".join(f"{n} {state}" for state, n in hidden.items())
        parts.append(Text(f"not shown: {states} (--all)"))
    return Group(*parts)


def as_json(sweep: SweepStatus) -> dict:
    """All numbers of all runs."""
    return {
        "directory": str(sweep.directory),
        "n_runs": len(sweep.runs),
        "n_done": sweep.n_done,
        "states": sweep.counts,
        "seconds_left": sweep.seconds_left,
        "runs": [asdict(run) for run in sweep.runs],
    }


def duration(seconds: float) -> str:
    """`45 s`, `12 min`, `3 h 05 min`, `2 d 4 h`."""
    if seconds < 100:
        return f"{seconds:.0f} s"
    minutes = round(seconds / 60)
    if minutes < 100:
        return f"{minutes} min"
    hours, minutes = divmod(minutes, 60)
    if hours < 48:
        return f"{hours} h {minutes:02d} min"
    return f"{hours // 24} d {hours % 24} h"


def _table(runs: list[RunStatus], *, is_narrow: bool) -> Table:
    """Columns in which no run has anything are left out."""
    columns = {
        "step": [_steps(run) for run in runs],
        "loss": [_known(run.loss) for run in runs],
        "val loss": [_known(run.val_loss) for run in runs],
        "val accuracy": [_known(run.val_accuracy) for run in runs],
        "tokens/s": [_known(run.tokens_per_second, "{:,.0f}".format) for run in runs],
        "left": [_known(run.seconds_left, duration) for run in runs],
        # The first attempt is not worth a column.
        "attempt": [str(run.attempt) if (run.attempt or 1) > 1 else "" for run in runs],
    }
    spared = SPARED if is_narrow else ()
    columns = {
        k: cells for k, cells in columns.items() if any(cells) and k not in spared
    }
    notes = ["; ".join(filter(None, [run.error, run.warning])) for run in runs]
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    # The end of a name is the hash that finds the run: it is folded, never cut.
    table.add_column("run", overflow="fold", min_width=16)
    table.add_column("state", no_wrap=True)
    for name in columns:
        table.add_column(name, justify="right", no_wrap=True)
    if any(notes):
        table.add_column("error or warning", min_width=14)
    for i, run in enumerate(runs):
        table.add_row(
            Text(run.run_id),
            Text(run.state, COLOURS.get(run.state, "red")),
            *(cells[i] for cells in columns.values()),
            *(
                [Text(notes[i], no_wrap=True, overflow="ellipsis")]
                if any(notes)
                else []
            ),
        )
    return table


def _steps(run: RunStatus) -> str:
    if not run.steps:  # a task that takes no step has 0
        return ""
    return f"{run.step or 0}/{run.steps}"


def _known(value: float | None, text=number) -> str:
    return "" if value is None else text(value)
