"""Hydra's and OmegaConf's complaints in one line that names the fix."""

import contextlib
import difflib
import os
import re
import sys
from collections.abc import Iterator, Sequence

from hydra import compose, initialize_config_dir
from hydra.core.global_hydra import GlobalHydra
from hydra.errors import (
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.compose import CONF
from experiments.errors import RunFailed, UserError, nearest, other_name

# A plain ValueError of Hydra's.
NOT_A_NAME = "Config group override must be"


@contextlib.contextmanager
def explained(overrides: Sequence[str]) -> Iterator[None]:
    """Turns composition errors inside into a `UserError` of one line."""
    try:
        yield
    except Exception as error:
        if not _is_mistake(error):
            raise
        raise UserError(explain(error, overrides)) from error


MANY = 12  # choices; more are not listed in a message


def tracebacks_wanted() -> bool:
    """Whether the user asked for tracebacks (BLOCKLAB_FULL_ERROR=1)."""
    return os.environ.get("BLOCKLAB_FULL_ERROR") == "1"


def one_line(error: Exception) -> str:
    """The line for an error that ends a launch.

    Raises:
        Exception: the error itself, if it is nobody's mistake but ours.
    """
    if isinstance(error, (UserError, RunFailed)):
        return f"error: {error}"
    if _is_mistake(error):
        overrides = [a for a in sys.argv[1:] if not a.startswith("-")]
        return f"error: {explain(error, overrides)}"
    if isinstance(error, ValueError) and "Only one of --run" in str(error):
        return "error: -m and --cfg, --info or --run do not go together"
    raise error


def _is_mistake(error: Exception) -> bool:
    """Whether Hydra or OmegaConf refused what the user wrote."""
    return isinstance(error, (HydraException, OmegaConfBaseException)) or (
        isinstance(error, ValueError) and NOT_A_NAME in str(error)
    )


def explain(error: Exception, overrides: Sequence[str] = ()) -> str:
    """One line for a composition error: the key, what is wrong, the nearest match."""
    for text in overrides:
        if text.startswith("="):
            return f"{text}: not an override; expected key=value"
    if NOT_A_NAME in str(error):
        return _no_name(overrides)
    if isinstance(error, MissingConfigException):
        return _missing_choice(error)
    if isinstance(error, OverrideParseException):
        return (
            f"{error.override}: not an override; expected key=value "
            "(or key=a,b with -m)"
        )
    text = str(error)
    found = re.search(
        r"Ambiguous value for argument '(.+?)'\s"
        r"|Sweep parameters '(.+)' requires --multirun",
        text,
    )
    if found:
        return f"{found.group(1) or found.group(2)}: several values are a sweep; add -m"
    found = re.search(r"Multiple values for (\S+)\. To override", text)
    if found:
        return f"{found.group(1)}: has a choice already; replace it without the +"
    key = _unknown_key(text)
    if key is not None:
        return _no_such_key(key, overrides)
    lines = [line.strip() for line in text.splitlines()]
    text = " ".join(line for line in lines if line and "object_type=" not in line)
    cause = str(error.__cause__ or "").splitlines()
    if cause and cause[0] not in text:
        text = f"{text} ({cause[0]})"
    return text


def _no_name(overrides: Sequence[str]) -> str:
    """The line for a choice that is no name; null is the usual case.

    Hydra does not say which it is.
    """
    left_out = [o.removesuffix("=null") for o in overrides if o.endswith("=null")]
    hint = f"; to leave one out write {' '.join('~' + o for o in left_out)}"
    return f"{' '.join(overrides)}: a choice is a name{hint if left_out else ''}"


def _missing_choice(error: MissingConfigException) -> str:
    missing, options = error.missing_cfg_file or "", error.options
    group, _, choice = missing.rpartition("/")
    if not group or options is None:
        return " ".join(str(error).split())
    hint = nearest(choice, options)
    if len(options) > MANY:
        listed = f"{len(options)} choices of {group}: see --help"
    else:
        listed = f"choices of {group}: {', '.join(sorted(options))}"
    return f"{group}={choice}: no such choice{hint} ({listed})"


def _unknown_key(text: str) -> str | None:
    found = re.search(r"Could not override '([^']+)'", text)
    if found and "To append to your" in text:
        return found.group(1)
    found = re.search(r"Key '([^']+)' is not in struct\s+full_key: (\S+)", text)
    return found.group(2) if found else None


def _no_such_key(key: str, overrides: Sequence[str]) -> str:
    """The line for a key that the config does not have."""
    config, choices = _composed(overrides)
    if key.split(".")[0] == "tags":
        typed = next((o for o in overrides if o.startswith("tags")), f"{key}=...")
        return f"{typed}: a new tag needs a plus: +{typed}"
    if "@" in key:
        return f"{key}: no such place for a choice{nearest(key, choices)}"
    parent, _, last = key.rpartition(".")
    part = OmegaConf.select(config, parent) if parent else None
    known = other_name(key)
    if known is None and isinstance(part, DictConfig) and "_target_" in part:
        own = [k for k in part if not k.startswith("_")]
        made = part["_target_"].rsplit(".", 1)[-1]
        return (
            f"{key}: {made} has no such keyword{nearest(last, own)} "
            f"(it has {', '.join(own) or 'none'})"
        )
    if known is not None:
        return f"{key}: no such key; did you mean {known}?"
    keys = _dotted(config)
    ending = [k for k in keys if k.rsplit(".", 1)[-1] == last]
    if ending:
        # Most alike as a whole; of equals the first.
        likely = difflib.get_close_matches(key, ending, n=1, cutoff=0.0)[0]
        return f"{key}: no such key; did you mean {likely}?"
    return f"{key}: no such key{nearest(key, [*keys, *choices])}"


def _composed(overrides: Sequence[str]) -> tuple[DictConfig, list[str]]:
    """The config that the valid choices among `overrides` give, and its groups."""
    chosen = [o for o in overrides if (CONF / o.split("=")[0].split("@")[0]).is_dir()]
    with _own_hydra(), initialize_config_dir(str(CONF), version_base="1.3"):
        for attempt in (chosen, []):
            with contextlib.suppress(HydraException, OmegaConfBaseException):
                config = compose("config", attempt, return_hydra_config=True)
                break
        choices = list(config.hydra.runtime.choices)
        OmegaConf.set_struct(config, False)
        del config["hydra"]
    return config, [c for c in choices if not c.startswith("hydra/")]


@contextlib.contextmanager
def _own_hydra() -> Iterator[None]:
    """A moment without the Hydra of whoever called: there can only be one at a time."""
    current = GlobalHydra.instance()
    theirs, current.hydra = current.hydra, None
    try:
        yield
    finally:
        GlobalHydra.instance().hydra = theirs


def _dotted(node: DictConfig, prefix: str = "") -> list[str]:
    """Every key below a node, dotted."""
    keys = []
    for key in node:
        if key.startswith("_"):
            continue
        keys.append(f"{prefix}{key}")
        if isinstance(node._get_node(key), DictConfig) and node[key] is not None:
            keys += _dotted(node[key], f"{prefix}{key}.")
    return keys
