"""The guard of a task's steps, as the program and the loop ask for it."""

from typing import Any

from experiments.parts import Part


def guard_of(task: Part) -> Any:
    """The guard of `task.guard`; None where there is none, or the task takes no step.

    A guard has `init`, `count` and `after`, which are part of the program, `judged`, which
    the loop asks, and the names of what it tells (`told`, `columns`).
    """
    guard = task.get("guard")
    return guard and guard.build({}, "task.guard")
