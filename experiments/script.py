"""The runs of a sweep as a script of one line each, for schedulers of any kind."""

import os
import pathlib
import shlex
import sys
from collections.abc import Sequence

from hydra._internal.utils import get_args_parser

from experiments.compose import CONF
from experiments.errors import UserError
from experiments.group import Group
from experiments.members import Member

# Overrides that are about the launch as a whole, and not about one run of it.
OF_THE_LAUNCH = ("runtime.script", "runtime.shard", "runtime.report", "dispatch")


def write_script(path: pathlib.Path, groups: Sequence[Group]) -> int:
    """Writes a line per run that is not finished, replacing the file; how many.

    Each line is a command of a shell, wherever it is run from: the line of a job array is
    `sed -n "${SLURM_ARRAY_TASK_ID}p" jobs.txt | sh`. Runs of one program stand together.

    Raises:
        UserError: the file cannot be written.
    """
    options = _options(sys.argv[1:])
    lines = [_line(m, options) for group in groups for m in group.pending]
    temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
    try:
        temporary.write_text("".join(f"{line}\n" for line in lines))
        temporary.replace(path)
    except OSError as error:
        raise UserError(f"runtime.script: {path}: {error.strerror}") from None
    return len(lines)


def _line(member: Member, options: Sequence[str]) -> str:
    """`cd FOLDER && PYTHON launch.py OVERRIDES` of one run, quoted for a shell."""
    overrides = [o for o in member.config.overrides if not _is_of_the_launch(o)]
    launch = str(CONF.parent / "launch.py")
    # An experiment may be a sweep by itself, of which this is one run.
    command = [sys.executable, launch, *options, "hydra.mode=RUN", *overrides]
    return f"cd {shlex.quote(os.getcwd())} && {shlex.join(command)}"


def _is_of_the_launch(override: str) -> bool:
    key = override.lstrip("+~").partition("=")[0]
    return key in OF_THE_LAUNCH or key.startswith("runtime.dispatch.")


def _options(arguments: Sequence[str]) -> list[str]:
    """Those of a command line that say where configs are."""
    given, _ = get_args_parser().parse_known_args(list(arguments))
    named = {
        "--config-name": given.config_name,
        "--config-path": given.config_path,
        "--config-dir": given.config_dir,
    }
    options = [text for pair in named.items() if pair[1] for text in pair]
    return options + [o for o in given.overrides if o.startswith("hydra.searchpath=")]
