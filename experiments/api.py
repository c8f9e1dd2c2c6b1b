"""Composing and running from Python: what launch.py and notebooks call.

from experiments import api
runs = api.run(api.compose(["norm=rmsnorm,derf", "seed=0,1,2", "steps=200"]))
"""

import contextlib
import pathlib
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from rich.console import Console

from experiments import distributed
from experiments.compose import CONF, Composer, is_for_hydra
from experiments.config import Config
from experiments.dispatch.extras import check_package
from experiments.display import Display, print_programs, print_summary
from experiments.environment import set_up
from experiments.errors import UserError
from experiments.explain import explained
from experiments.group import Group, plan, share_of_sweep
from experiments.members import Member
from experiments.released import quoted
from experiments.revision import check_code
from experiments.script import write_script
from experiments.signals import Stopped, calling
from experiments.sweep import expand
from experiments.sweep_file import note_plan
from experiments.trained import trained as trained  # for notebooks
from experiments.weights import told


def compose(overrides: Sequence[str] = (), config_name: str = "config") -> list[Config]:
    """The checked configs of a command line: one, or one per combination of a sweep.

    An experiment's own sweep parameters count here as they do on the command line.

    Raises:
        UserError: an override or a config is wrong; the message says what.
    """
    overrides = quoted(overrides)
    # Inside a Hydra job, or a notebook that composes for itself, there is one already.
    hydra = (
        contextlib.nullcontext()
        if GlobalHydra.instance().is_initialized()
        else initialize_config_dir(str(CONF), version_base="1.3")
    )
    with explained(overrides), hydra:
        composer = Composer(
            GlobalHydra.instance().config_loader(),
            config_name,
            [o for o in overrides if is_for_hydra(o)],
        )
        return [composer.compose(job) for job in expand(composer, overrides)]


def run(configs: Sequence[Config], *, console: Console | None = None) -> list[Member]:
    """Runs configs that are not finished yet; returns all with their state.

    A config whose task makes no run (it lists or counts something) is answered first,
    and has no member. Runs that differ only in traced numbers and seed share a compiled
    program and run together.

    Raises:
        Stopped: a signal came (`experiments.signals`), a KeyboardInterrupt; every run under
            way was saved.
        UserError: a config cannot be run. Nothing has been created then.
    """
    if not configs:
        return []
    console = console or Console()
    dispatch = configs[0].runtime.dispatch_part().build({}, "runtime.dispatch")
    check_package(dispatch)
    distributed.start(configs[0].runtime.distributed)
    if not distributed.is_first():
        console = Console(quiet=True)
    set_up(configs[0].runtime.compilation_cache, on_devices=not dispatch.is_elsewhere)
    listed = [config for config in configs if is_listed(config)]
    answered = [c for c in configs if not (makes_run(c) or is_listed(c))]
    configs = [config for config in configs if makes_run(config)]
    if listed:
        _write_script(listed, console)
    groups = plan(configs)
    for config in answered:
        config.task.build({}, "task").answer(config, console)
    if not configs:
        return []
    found = [tuple(told(fit, w)) for g in groups for w, fit in g.fits.items()]
    for lines in dict.fromkeys(found):
        console.print(*lines, sep="\n", markup=False, highlight=False, soft_wrap=True)
    check_code(groups)
    if distributed.is_first():
        _note(groups)
    groups = share_of_sweep(groups, configs[0].runtime.share)
    members = [m for g in groups for m in g.members]
    pending = sum(len(g.pending) for g in groups)
    line = f"{_count(len(members), 'run')}, {_count(len(groups), 'program')}"
    if pending < len(members):
        line += f"; {len(members) - pending} finished before"
    console.print(line, highlight=False)
    if len(members) < len(configs):
        console.print(
            f"{len(configs)} jobs, of which {len(configs) - len(members)} are the same "
            "run as another (name, tags, log_every and runtime do not make a run)",
            highlight=False,
        )
    compiled_before = sum(g.programs.compilations for g in groups)
    if any(m.config.runtime.explain for m in members):
        print_programs(groups, console)
    stop = threading.Event()
    with (
        Display(members, console) as display,
        _stopping_on_signals(stop, display) as signals,
    ):
        dispatch.execute(groups, stop, display)
    print_summary(members, console)
    compilations = sum(g.programs.compilations for g in groups) - compiled_before
    if compilations:
        console.print(_count(compilations, "compilation"), highlight=False)
    if stop.is_set():
        raise Stopped(*signals[:1])
    return members


def makes_run(config: Config) -> bool:
    """Whether there is a run to make.

    Else it goes to a script, or the task has `answer(config, console)` and makes none.
    """
    return not (is_listed(config) or hasattr(config.task.cls, "answer"))


def is_listed(config: Config) -> bool:
    """Whether a run is written to a script instead of being made."""
    return config.runtime.script is not None and not hasattr(config.task.cls, "answer")


def _write_script(configs: Sequence[Config], console: Console) -> None:
    """Checks the runs, plans them on disk, and writes the script."""
    groups = plan(configs)
    _note(groups)
    path = pathlib.Path(configs[0].runtime.script).expanduser()
    n = write_script(path, groups)
    console.print(f"{path}: {_count(n, 'line')}, one per run", highlight=False)


def _note(groups: Sequence[Group]) -> None:
    try:
        note_plan([m for g in groups for m in g.members])
    except OSError as error:
        raise UserError(f"runtime.output_dir: {error}") from None


def report(configs: Sequence[Config]) -> None:
    """Draws the report of every folder whose config asks for one, each in a process.

    Of several processes that work together the first does.
    """
    if not distributed.is_first():
        return
    wanted = {str(c.folder) for c in configs if c.runtime.report and makes_run(c)}
    for folder in sorted(wanted):
        command = [sys.executable, "-m", "analysis", "report", folder]
        done = subprocess.run(command, check=False)
        if done.returncode:
            raise UserError(
                f"the runs are in {folder}, but the report failed: "
                f"try `python -m analysis report {folder}`"
            )


def _count(n: int, what: str) -> str:
    return f"{n} {what}" if n == 1 else f"{n} {what}s"


@contextlib.contextmanager
def _stopping_on_signals(stop: threading.Event, display: Display):
    """In here the first signal that asks for it sets the event, a second Ctrl-C interrupts.

    A scheduler that warns of its SIGTERM by another signal must not cut the saving short.
    Yields the numbers of the signals that came.
    """
    came = []

    def handle(number, frame):
        came.append(number)
        if stop.is_set():
            if number == signal.SIGINT:
                raise KeyboardInterrupt
            return
        stop.set()
        display.say("stopping: every run under way is being saved")

    with calling(handle):
        yield came
