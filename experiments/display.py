"""What a person sees while runs are going on, and at the end."""

import collections
import pathlib
import threading
import time
from collections.abc import Sequence

from rich.console import Console
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from experiments.members import Member

PLAIN_EVERY = 5.0  # seconds between lines when nobody watches a terminal
MAX_ROWS = 40  # of the final table
DONE = ("completed", "diverged", "failed", "preempted", "busy")


class Display:
    """One display for a whole sweep: runs, steps, tokens/s, loss, time left.

    On a terminal a live bar; elsewhere a plain line every few seconds. Use as a context
    manager; it looks at the members by itself.
    """

    def __init__(self, members: Sequence[Member], console: Console):
        self._members = members
        self._console = console
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._watch, daemon=True)
        self._started = time.monotonic()
        self._start_steps = self._steps()

    def __enter__(self) -> "Display":
        self._thread.start()
        return self

    def __exit__(self, *_) -> None:
        self._stop.set()
        self._thread.join()

    def on_end(self, member: Member) -> None:
        """A line for a run that did not simply complete."""
        for line in _remarks(member):
            self._console.print(line, highlight=False, soft_wrap=True)

    def _watch(self) -> None:
        if self._console.is_terminal:
            self._live()
        else:
            self._plain()

    def _live(self) -> None:
        columns = (
            TextColumn("{task.description}"),
            BarColumn(bar_width=24),
            MofNCompleteColumn(),
            TextColumn("{task.fields[speed]}"),
            TextColumn("{task.fields[loss]}"),
            TimeElapsedColumn(),
            TextColumn("left"),
            TimeRemainingColumn(),
        )
        with Progress(*columns, console=self._console) as progress:
            task = progress.add_task(
                "", total=self._total(), completed=self._steps(), speed="", loss=""
            )
            while True:
                finished = self._stop.wait(0.2)
                progress.update(
                    task,
                    completed=self._steps(),
                    description=self._runs(),
                    speed=self._speed(),
                    loss=self._loss(),
                )
                if finished:
                    return

    def _plain(self) -> None:
        while not self._stop.wait(PLAIN_EVERY):
            steps, total = self._steps(), self._total()
            parts = [self._runs(), f"step {steps}/{total}", self._speed(), self._loss()]
            gained = steps - self._start_steps
            if gained:
                left = (time.monotonic() - self._started) * (total - steps) / gained
                parts.append(f"{left:.0f} s left")
            print("  ".join(p for p in parts if p), flush=True)

    def _steps(self) -> int:
        return sum(_work_of(m) if m.state in DONE else m.step for m in self._members)

    def _total(self) -> int:
        return sum(_work_of(m) for m in self._members)

    def _runs(self) -> str:
        done = sum(m.state in DONE for m in self._members)
        return f"{done}/{len(self._members)} runs"

    def _speed(self) -> str:
        speed = sum(
            m.tokens_per_second or 0 for m in self._members if m.state == "running"
        )
        return f"{speed:,.0f} tokens/s" if speed else ""

    def _loss(self) -> str:
        losses = [m.loss for m in self._members if m.state == "running" and m.loss]
        if not losses:
            return ""
        low, high = min(losses), max(losses)
        return f"loss {low:.3f}" if low == high else f"loss {low:.3f}..{high:.3f}"


def _work_of(member: Member) -> int:
    """Steps a run is worth: its steps, or one for a run that only measures."""
    return member.config.steps if member.config.task.name == "Train" else 1


def _remarks(member: Member) -> list[str]:
    run = member.directory.path.name
    lines = []
    if member.note and member.note != "finished before":
        lines.append(f"{run}: {member.note}")
    if member.state == "diverged":
        lines.append(f"[yellow]{run}: diverged at step {member.diverged_step}[/]")
    if member.state == "failed":
        lines.append(f"[red]{run}: failed: {member.error}[/]")
    if member.state == "preempted":
        lines.append(f"{run}: stopped and saved at step {member.step}")
    return lines


def print_summary(members: Sequence[Member], console: Console) -> None:
    """The table of runs, and where everything is. Trouble comes first in a long one."""
    rank = {"failed": 0, "diverged": 1, "preempted": 2, "busy": 3, "planned": 4}
    ordered = sorted(members, key=lambda m: rank.get(m.state, 9))
    shown = members if len(members) <= MAX_ROWS else ordered[:MAX_ROWS]
    shared = set.intersection(*(set(m.config.overrides) for m in members))
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("state")
    for name in ("step", "loss", "val loss"):
        table.add_column(name, justify="right")
    for member in shown:
        state = member.state
        if member.note == "finished before":
            state += " (before)"
        table.add_row(
            _label(member, shared),
            state,
            str(member.step),
            _number(member.loss),
            _number(member.val_loss),
        )
    console.print(table)
    if len(shown) < len(members):
        console.print(f"... and {len(members) - len(shown)} more")
    states = collections.Counter(m.state for m in members)
    counts = ", ".join(f"{n} {state}" for state, n in states.most_common())
    for root in sorted({str(m.directory.root) for m in members}):
        console.print(f"{counts}; everything is in {pathlib.Path(root)}/", soft_wrap=True)


def _label(member: Member, shared: set[str]) -> str:
    """What sets the run apart, or its folder where nothing does."""
    own = [o for o in member.config.overrides if o not in shared]
    return " ".join(own) or member.directory.path.name


def _number(value: float | None) -> str:
    return "" if value is None else f"{value:.4g}"
