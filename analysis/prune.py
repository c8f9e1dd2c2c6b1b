"""`python -m analysis prune DIR`: removes runs and checkpoints that nobody needs.

Only folders directly in DIR that look like runs, no links, and none that a launcher is
at work on: its lock is held while it is removed.
"""

import argparse
import difflib
import os
import shutil
import sys
from dataclasses import dataclass
from pathlib import Path

from rich.console import Console
from rich.filesize import decimal
from rich.table import Table
from rich.text import Text

from analysis.errors import AnalysisError
from analysis.folders import run_folders
from analysis.locks import hold, is_held
from analysis.status import read_status
from analysis.sweep_file import FILE, identity_of, planned_runs
from analysis.text import count

STATES = ("failed", "diverged", "preempted", "lost", "completed")
REMOVED = ".pruned-"  # a run gets this name first, so that none is left in part


@dataclass(frozen=True)
class Item:
    """What shall go: a run, or only the checkpoints in it.

    Attributes:
        run: folder of the run.
        path: what is removed, `run` or a folder in it.
        state: of the run when it was chosen.
        what: for the table: `run`, `checkpoints` or why a run goes.
        size: of all files [bytes].
        stamp: of status.json when it was chosen; another one means that a launcher
            has been at it since.
    """

    run: Path
    path: Path
    state: str
    what: str
    size: int
    stamp: tuple[int, int] | None


def run(options: argparse.Namespace) -> None:
    """Shows what would go; removes it with `--yes` or after a yes on the terminal.

    Raises:
        AnalysisError: nothing asked for, a state there is not, no sweep.json for
            `--unlisted`.
    """
    console = Console()
    if not console.is_terminal:
        console.width = 200
    items, busy = find(
        Path(options.directory),
        states_of(options.state),
        unlisted=options.unlisted,
        checkpoints=options.checkpoints,
    )
    for folder in busy:
        _say(console, f"kept {folder.name}: a launcher is at work on it")
    if not items:
        _say(console, "nothing to remove")
        return
    console.print(_table(items))
    what = f"{count(len(items), 'folder')}, {decimal(sum(i.size for i in items))}"
    if not options.yes and not _agreed(what):
        _say(console, f"nothing was removed ({what}); --yes removes")
        return
    kept = remove(items)
    for item, reason in kept:
        _say(console, f"kept {item.run.name}: {reason}")
    gone = [item for item in items if item not in [k for k, _ in kept]]
    freed = decimal(sum(item.size for item in gone))
    _say(console, f"removed {count(len(gone), 'folder')}, {freed}")


def states_of(text: str) -> tuple[str, ...]:
    """The states of `failed,diverged`.

    Raises:
        AnalysisError: one of them is none, or not of a run that can be removed.
    """
    states = tuple(part.strip() for part in text.split(",") if part.strip())
    for state in states:
        if state not in STATES:
            near = difflib.get_close_matches(state, STATES, n=1, cutoff=0.5)
            hint = (
                f"did you mean {near[0]!r}?" if near else f"one of {', '.join(STATES)}"
            )
            raise AnalysisError(f"--state: no state {state!r} to remove; {hint}")
    return states


def find(
    directory: Path,
    states: tuple[str, ...],
    *,
    unlisted: bool = False,
    checkpoints: bool = False,
) -> tuple[list[Item], list[Path]]:
    """What shall go, and the runs that would but for a launcher that holds them.

    Args:
        states: whole runs in these.
        unlisted: whole runs that are not in sweep.json.
        checkpoints: those of completed runs; the run stays.

    Raises:
        AnalysisError: nothing asked for, no runs, no sweep.json for `unlisted`.
    """
    if not (states or unlisted or checkpoints):
        raise AnalysisError(
            "prune: say what may go: --state STATES, --unlisted or --checkpoints"
        )
    folders = [folder for folder in run_folders(directory) if _is_ours(folder)]
    listed = _listed_identities(directory) if unlisted else None
    items, busy = [], []
    for folder in folders:
        stamp = _stamp(folder)
        state = read_status(folder).state
        path = folder
        if listed is not None and identity_of(folder.name) not in listed:
            what = "run, not in sweep.json"
        elif state in states:
            what = "run"
        elif checkpoints and state == "completed":
            path, what = folder / "checkpoints", "checkpoints"
            if path.is_symlink() or not path.is_dir():
                continue
        else:
            continue
        if is_held(folder):
            busy.append(folder)
        else:
            items.append(Item(folder, path, state, what, _size(path), stamp))
    return items, busy


def remove(items: list[Item]) -> list[tuple[Item, str]]:
    """Removes them and returns those that were kept, each with the reason."""
    kept = []
    for item in items:
        with hold(item.run) as is_ours:
            if not is_ours:
                kept.append((item, "a launcher is at work on it"))
            elif _stamp(item.run) != item.stamp:
                kept.append((item, "it has changed since"))
            elif item.path == item.run:
                _remove_run(item.run)
            else:
                shutil.rmtree(item.path)
    return kept


def _remove_run(folder: Path) -> None:
    """Out of sight in one step, so that no run is ever seen in part."""
    for aside in folder.parent.glob(f"{REMOVED}*"):  # of a prune that was cut
        shutil.rmtree(aside, ignore_errors=True)
    aside = folder.with_name(f"{REMOVED}{folder.name}")
    os.replace(folder, aside)
    shutil.rmtree(aside)


def _is_ours(folder: Path) -> bool:
    """Whether it looks like a run and lies where it seems to lie."""
    marks = ("status.json", "config.json")
    return not folder.is_symlink() and any((folder / m).is_file() for m in marks)


def _listed_identities(directory: Path) -> set[str]:
    plan = planned_runs(directory)
    if plan is None:
        raise AnalysisError(
            f"{directory / FILE} is missing: --unlisted compares the runs with it"
        )
    return {planned.identity for planned in plan}


def _stamp(folder: Path) -> tuple[int, int] | None:
    try:
        stat = os.stat(folder / "status.json")
    except FileNotFoundError:
        return None
    return stat.st_mtime_ns, stat.st_ino


def _size(path: Path) -> int:
    """Bytes of all files below; links count as links."""
    return sum(
        os.lstat(os.path.join(home, name)).st_size
        for home, _, names in os.walk(path)
        for name in names
    )


def _table(items: list[Item]) -> Table:
    table = Table(box=None, header_style="bold", padding=(0, 2, 0, 0), pad_edge=False)
    table.add_column("run", overflow="fold")
    table.add_column("state")
    table.add_column("what would go")
    table.add_column("size", justify="right", no_wrap=True)
    for item in items:
        table.add_row(
            Text(item.run.name), item.state, Text(item.what), decimal(item.size)
        )
    return table


def _agreed(what: str) -> bool:
    """A yes on the terminal; nobody there is a no."""
    if not (sys.stdin.isatty() and sys.stdout.isatty()):
        return False
    return input(f"remove {what}? [y/N] ").strip().lower() in ("y", "yes")


def _say(console: Console, line: str) -> None:
    console.print(line, soft_wrap=True, markup=False, highlight=False)
