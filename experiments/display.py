"""What a person sees while runs are going on, and at the end."""

import collections
import threading
import time
from collections.abc import Sequence

from rich.console import Console
from rich.markup import escape
from rich.progress import (
    BarColumn,
    MofNCompleteColumn,
    Progress,
    TextColumn,
    TimeElapsedColumn,
    TimeRemainingColumn,
)
from rich.table import Table

from experiments.execute import Watcher
from experiments.group import Group
from experiments.members import Member

PLAIN_EVERY = 5.0  # seconds between lines when nobody watches a terminal
MAX_ROWS = 40  # of the final table
DONE = ("completed", "diverged", "failed", "preempted", "busy")


class Display(Watcher):
    """One display for a whole sweep: runs, steps, tokens (rows, images) a second, loss,
    time left.

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
        for line, style in _remarks(member):
            _say(self._console, line, style)

    def say(self, line: str) -> None:
        """Something a person should know."""
        _say(self._console, line)

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
            _say(self._console, "  ".join(p for p in parts if p))

    def _steps(self) -> int:
        return sum(_work_of(m) if m.state in DONE else m.step for m in self._members)

    def _total(self) -> int:
        return sum(_work_of(m) for m in self._members)

    def _runs(self) -> str:
        done = sum(m.state in DONE for m in self._members)
        return f"{done}/{len(self._members)} runs"

    def _speed(self) -> str:
        running = [m for m in self._members if m.state == "running"]
        speed = sum(m.tokens_per_second or 0 for m in running)
        items = {m.item for m in running}
        name = items.pop() if len(items) == 1 else "item"
        return f"{speed:,.0f} {name}s/s" if speed else ""

    def _loss(self) -> str:
        running = [m for m in self._members if m.state == "running"]
        losses = [m.loss for m in running if m.loss is not None]
        if not losses:
            return ""
        low, high = min(losses), max(losses)
        return f"loss {low:.3f}" if low == high else f"loss {low:.3f}..{high:.3f}"


def _work_of(member: Member) -> int:
    """Steps a run is worth: its steps, or one for a run that only measures."""
    return member.config.steps if member.config.task.name == "Train" else 1


def _say(console: Console, line: str, style: str | None = None) -> None:
    """One line as it is: an error may hold brackets, which are markup to Rich."""
    console.print(line, style=style, markup=False, highlight=False, soft_wrap=True)


def _remarks(member: Member) -> list[tuple[str, str | None]]:
    """Lines about a run, each with its style."""
    run = member.directory.path.name
    lines = []
    if member.note and member.note != "finished before":
        lines.append((f"{run}: {member.note}", None))
    if member.state == "diverged":
        lines.append((f"{run}: diverged at step {member.diverged_step}", "yellow"))
    if member.state == "failed":
        lines.append((f"{run}: failed: {member.error}", "red"))
    if member.state == "preempted":
        lines.append((f"{run}: stopped and saved at step {member.step}", None))
    return lines


def print_programs(groups: Sequence[Group], console: Console) -> None:
    """What each program is and takes; compiles them."""
    table = Table(box=None, header_style="bold", pad_edge=False)
    table.add_column("program", overflow="fold")
    columns = ("runs", "parameters", "FLOPs/step", "memory/call", "compiled in")
    for name in ("layout", *columns):
        table.add_column(name, justify="left" if name == "layout" else "right")
    labels = _labels([g.members[0] for g in groups], leave_out={"seed"})
    for label, group in zip(labels, groups, strict=True):
        programs = group.programs
        size = len(programs.layout.batches(group.members)[0])
        programs.prepare(group.task.functions, size)
        table.add_row(
            label,
            programs.layout.name,
            str(len(group.members)),
            f"{programs.program.n_params:,}",
            f"{programs.flops_per_step():.3g}",
            f"{programs.memory(size, group.task.functions) / 2**20:,.1f} MiB",
            f"{programs.compile_seconds:.1f} s",
        )
    console.print(table)
    console.print(
        "FLOPs: three times the matrix products of a forward pass; memory: arguments, "
        "results and temporaries of the largest function, data left out",
        style="dim",
    )


def print_summary(members: Sequence[Member], console: Console) -> None:
    """The table of runs, and where everything is.

    A few runs have a row each; of many, those that differ only in the seed share one.
    Configs with trouble come first in a table that has to be cut.
    """
    leave_out = {"seed"} if len(members) > MAX_ROWS else set()
    families: dict[str, list[Member]] = {}
    for member in members:
        family = f"{member.config.task.name} {member.config.model.name}"
        families.setdefault(family, []).append(member)
    for family, same_kind in families.items():
        title = family if len(families) > 1 else None
        _print_table(same_kind, leave_out, title, console)
    for root in sorted({m.directory.root for m in members}):
        there = [m for m in members if m.directory.root == root]
        _say(console, f"{_states(there)}; everything is in {root}/")


def _print_table(members, leave_out: set[str], title: str | None, console) -> None:
    rows: dict[str, list[Member]] = {}
    for label, member in zip(_labels(members, leave_out), members, strict=True):
        rows.setdefault(label, []).append(member)
    shown = list(rows.items())
    if len(shown) > MAX_ROWS:
        shown.sort(key=lambda row: all(m.state == "completed" for m in row[1]))
        shown = shown[:MAX_ROWS]
    table = Table(
        title=title, title_justify="left", box=None, header_style="bold", pad_edge=False
    )
    table.add_column("run", overflow="fold")
    table.add_column("state")
    columns = {
        "step": lambda same: str(max(m.step for m in same)),
        "loss": lambda same: _mean([m.loss for m in same]),
        "val loss": lambda same: _mean([m.val_loss for m in same]),
    }
    if any(m.val_accuracy is not None for m in members):
        columns["val accuracy"] = lambda same: _mean([m.val_accuracy for m in same])
    for name in columns:
        table.add_column(name, justify="right")
    for label, same in shown:
        table.add_row(
            escape(label),
            _states(same),
            *(cell(same) for cell in columns.values()),
        )
    console.print(table)
    if len(shown) < len(rows):
        console.print(f"... and {len(rows) - len(shown)} more")


def _labels(members: Sequence[Member], leave_out: set[str]) -> list[str]:
    """What sets each run apart, as short `key=value`s.

    Where nothing does: all runs together if a key is left out, else the run's folder.
    """
    asked = [
        dict(o.split("=", 1) for o in m.config.overrides if "=" in o) for m in members
    ]
    varying = [
        key
        for key in dict.fromkeys(key for one in asked for key in one)
        if key not in leave_out and len({one.get(key) for one in asked}) > 1
    ]
    return [
        " ".join(f"{k.rsplit('.', 1)[-1]}={one[k]}" for k in varying if k in one)
        or ("all runs" if leave_out else member.directory.path.name)
        for one, member in zip(asked, members, strict=True)
    ]


def _states(members: Sequence[Member]) -> str:
    if len(members) == 1:
        before = " (before)" if members[0].note == "finished before" else ""
        return members[0].state + before
    states = collections.Counter(m.state for m in members)
    return ", ".join(f"{n} {state}" for state, n in states.most_common())


def _mean(values: list[float | None]) -> str:
    known = [v for v in values if v is not None]
    return f"{sum(known) / len(known):.4g}" if known else ""
