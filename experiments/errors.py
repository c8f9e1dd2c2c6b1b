"""Mistakes a user can make, and how they are told: one line, with the nearest match."""

import difflib
from collections.abc import Iterable

# What others call our keys, so that a newcomer's first guess finds the right one.
ALIASES = {
    "depth": "model.n_layers",
    "layers": "model.n_layers",
    "num_layers": "model.n_layers",
    "n_layer": "model.n_layers",
    "width": "model.d_model",
    "dim": "model.d_model",
    "hidden_dim": "model.d_model",
    "hidden_size": "model.d_model",
    "n_embd": "model.d_model",
    "num_heads": "model.n_heads",
    "n_head": "model.n_heads",
    "heads": "model.n_heads",
    "intermediate_dim": "model.d_ff",
    "mlp_dim": "model.d_ff",
    "vocab": "model.vocab_size",
    "block_size": "seq_len",
    "context": "seq_len",
    "max_steps": "steps",
    "num_steps": "steps",
    "batch": "batch_size",
    "lr": "optimizer.learning_rate",
    "wd": "optimizer.weight_decay",
    "warmup": "schedule.warmup_steps",
}


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


def other_name(key: str) -> str | None:
    """Our key for what others call `key` (dots allowed), or nearly so."""
    last = key.rsplit(".", 1)[-1]
    found = difflib.get_close_matches(last, list(ALIASES), n=1, cutoff=0.85)
    return ALIASES[found[0]] if found and ALIASES[found[0]] != key else None
