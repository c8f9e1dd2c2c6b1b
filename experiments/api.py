"""Composing and running from Python: what launch.py and notebooks call.

from experiments import api
runs = api.run(api.compose(["norm=rmsnorm,derf", "seed=0,1,2", "steps=200"]))
"""

import contextlib
import signal
import subprocess
import sys
import threading
from collections.abc import Sequence

from hydra import initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from rich.console import Console

from experiments.compose import CONF, Composer, is_for_hydra
from experiments.config import Config
from experiments.dispatch.extras import check_package
from experiments.display import Display, print_programs, print_summary
from experiments.environment import set_up
from experiments.errors import UserError
from experiments.explain import explained
from experiments.group import plan, share_of_sweep
from experiments.members import Member
from experiments.revision import check_code
from experiments.sweep import expand
from experiments.sweep_file import note_plan


def compose(overrides: Sequence[str] = (), config_name: str = "config") -> list[Config]:
    """The checked configs of a command line: one, or one per combination of a sweep.

    An experiment's own sweep parameters count here as they do on the command line.

    Raises:
        UserError: an override or a config is wrong; the message says what.
    """
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
    program and run together. Ctrl-C and SIGTERM save every run under way and return by
    KeyboardInterrupt.

    Raises:
        UserError: a config cannot be run. Nothing has been created then.
    """
    if not configs:
        return []
    console = console or Console()
    dispatch = configs[0].runtime.dispatch_part().build({}, "runtime.dispatch")
    check_package(dispatch)
    set_up(configs[0].runtime.compilation_cache, on_devices=not dispatch.is_elsewhere)
    answered = [config for config in configs if not makes_run(config)]
    configs = [config for config in configs if makes_run(config)]
    groups = plan(configs)
    for config in answered:
        config.task.build({}, "task").answer(config, console)
    if not configs:
        return []
    check_code(groups)
    try:
        note_plan([m for g in groups for m in g.members])
    except OSError as error:
        raise UserError(f"runtime.output_dir: {error}") from None
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
    with Display(members, console) as display, _stopping_on_signals(stop, display):
        dispatch.execute(groups, stop, display)
    print_summary(members, console)
    compilations = sum(g.programs.compilations for g in groups) - compiled_before
    if compilations:
        console.print(_count(compilations, "compilation"), highlight=False)
    if stop.is_set():
        raise KeyboardInterrupt
    return members


def makes_run(config: Config) -> bool:
    """Whether the task works on runs; else it has `answer(config, console)`."""
    return not hasattr(config.task.cls, "answer")


def report(configs: Sequence[Config]) -> None:
    """Draws the report of every folder whose config asks for one, each in a process."""
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
    """In here the first SIGINT or SIGTERM sets the event; the next one interrupts.

    The main thread alone may set handlers; elsewhere (a notebook's worker, say) signals
    are left as they are.
    """

    def handle(number, frame):
        if stop.is_set():
            raise KeyboardInterrupt
        stop.set()
        display.say("stopping: every run under way is being saved")

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    numbers = (signal.SIGINT, signal.SIGTERM)
    before = [signal.signal(number, handle) for number in numbers]
    try:
        yield
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)
