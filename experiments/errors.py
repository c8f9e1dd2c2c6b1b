"""Mistakes a user can make, and how they are told: one line, with the nearest match."""

import difflib
from collections.abc import Iterable


class UserError(Exception):
    """Something outside the code is wrong: a config, a file, a command.

    The message is one line that names the key or file, what was expected and what came.
    """


class ConfigError(UserError):
    """A config that cannot be run."""


class RunFailed(Exception):
    """Some runs failed; the rest is done and everything is on disk."""


def nearest(word: str, choices: Iterable[str]) -> str:
    """'; did you mean X?' for the closest of `choices`, '' if nothing is close."""
    found = difflib.get_close_matches(word, list(choices), n=1, cutoff=0.6)
    return f"; did you mean {found[0]}?" if found else ""
