"""Keeps results of different code apart."""

import collections
import json
from collections.abc import Sequence

from experiments.environment import code_digest
from experiments.errors import UserError
from experiments.group import Group


def check_code(groups: Sequence[Group]) -> None:
    """Refuses to go on with a sweep that other code has begun.

    Compared are the source files of blocks and experiments; where nothing is left to do
    nothing can mix.

    Raises:
        UserError: says how many runs, and what to do.
    """
    members = [member for group in groups for member in group.members]
    pending = [member for member in members if member.state == "planned"]
    if not pending or any(m.config.runtime.allow_code_change for m in pending):
        return
    codes = collections.Counter()
    for member in members:
        status = member.directory.status()
        if status is None or not status.step:
            continue
        try:
            env = json.loads((member.directory.path / "env.json").read_text())
            codes[env["code"]] += 1
        except (OSError, ValueError, KeyError, TypeError):
            continue  # by a version that did not record it
    others = sum(n for code, n in codes.items() if code != code_digest())
    if others:
        folder = pending[0].directory.root
        n = "1 run" if others == 1 else f"{others} runs"
        raise UserError(
            f"{folder}: {n} of the sweep came from other code (blocks or experiments have "
            "changed since), results would mix; runtime.allow_code_change=true goes on "
            f"all the same, name={folder.name}_2 begins anew"
        )
