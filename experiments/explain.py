"""Hydra's and OmegaConf's complaints in one line that names the fix."""

import contextlib
import os
import re
import sys
from collections.abc import Iterator, Sequence

from hydra.errors import (
    ConfigCompositionException,
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException

from experiments.compose import CONF
from experiments.config import ALIASES
from experiments.errors import RunFailed, UserError, nearest


@contextlib.contextmanager
def explained(overrides: Sequence[str]) -> Iterator[None]:
    """Turns composition errors inside into a `UserError` of one line."""
    try:
        yield
    except (HydraException, OmegaConfBaseException) as error:
        raise UserError(explain(error, overrides)) from error


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
    if isinstance(error, (HydraException, OmegaConfBaseException)):
        return f"error: {explain(error, sys.argv[1:])}"
    raise error


def explain(error: Exception, overrides: Sequence[str] = ()) -> str:
    """One line for a composition error: the key, what is wrong, the nearest match."""
    if isinstance(error, MissingConfigException):
        return _missing_choice(error)
    if isinstance(error, OverrideParseException):
        return f"{error.override}: not an override; expected key=value (or key=a,b with -m)"
    text = str(error)
    key = _unknown_key(text)
    if key is not None:
        return f"{key}: no such key{_right_key(key)}"
    lines = [line.strip() for line in text.splitlines() if line.strip()]
    lines = [line for line in lines if not line.startswith(("object_type", "reference"))]
    text = " ".join(lines)
    if isinstance(error, ConfigCompositionException) and error.__cause__ is not None:
        cause = str(error.__cause__).splitlines()[0]
        if cause not in text:
            text = f"{text} ({cause})"
    if "multirun" in text and "sweep" in text.lower():
        return f"{text} (add -m to run one job per value)"
    return text


def _missing_choice(error: MissingConfigException) -> str:
    missing, options = error.missing_cfg_file or "", error.options
    group, _, choice = missing.rpartition("/")
    if not group or options is None:
        return " ".join(str(error).split())
    listed = ", ".join(sorted(options))
    return (
        f"{group}={choice}: no such choice{nearest(choice, options)} "
        f"(choices of {group}: {listed})"
    )


def _unknown_key(text: str) -> str | None:
    found = re.search(r"Could not (?:override|append to config\. An item is already at)"
                      r" '([^']+)'", text)  # fmt: skip
    if found and "is not in struct" in text or found and "To append" in text:
        return found.group(1)
    found = re.search(r"Key '([^']+)' is not in struct\s+full_key: (\S+)", text)
    return found.group(2) if found else None


def _right_key(key: str) -> str:
    last = key.rsplit(".", 1)[-1]
    if last in ALIASES and ALIASES[last] != key:
        return f"; did you mean {ALIASES[last]}?"
    keys = known_keys()
    same_end = [k for k in keys if k.rsplit(".", 1)[-1] == last]
    if same_end:
        return f"; did you mean {min(same_end, key=len)}?"
    by_end = {}
    for k in keys:
        by_end.setdefault(k.rsplit(".", 1)[-1], k)
    match = nearest(key, keys)
    if match:
        return match
    match = nearest(last, by_end)
    if not match:
        return "; see python launch.py --help"
    return f"; did you mean {by_end[match.removeprefix('; did you mean ')[:-1]]}?"


def known_keys() -> list[str]:
    """Every key of the default config, dotted."""
    from hydra import compose, initialize_config_dir
    from hydra.core.global_hydra import GlobalHydra

    if GlobalHydra.instance().is_initialized():
        GlobalHydra.instance().clear()
    with initialize_config_dir(str(CONF), version_base="1.3"):
        cfg = compose("config")
    return [k for k in _dotted(cfg) if "_target_" not in k and "_partial_" not in k]


def _dotted(node: DictConfig, prefix: str = "") -> list[str]:
    keys = []
    for key in node:
        at = f"{prefix}{key}"
        keys.append(at)
        if not OmegaConf.is_missing(node, key) and isinstance(node[key], DictConfig):
            keys += _dotted(node[key], f"{at}.")
    return keys
