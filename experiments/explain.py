"""Hydra's and OmegaConf's complaints in one line that names the fix."""

import contextlib
import difflib
import os
import re
import sys
from collections.abc import Iterator, Sequence

from hydra._internal.utils import get_args_parser
from hydra.errors import (
    HydraException,
    MissingConfigException,
    OverrideParseException,
)
from omegaconf import DictConfig, OmegaConf
from omegaconf.errors import OmegaConfBaseException
from yaml import MarkedYAMLError

from experiments.config import SEVERAL
from experiments.errors import RunFailed, UserError, nearest, other_name
from experiments.known import Known, Place
from experiments.parts import FROM_FILES

# A plain ValueError of Hydra's.
NOT_A_NAME = "Config group override must be"

MANY = 12  # choices; more are not listed in a message
FEW = 3  # choices that have a key


@contextlib.contextmanager
def explained(overrides: Sequence[str]) -> Iterator[None]:
    """Turns composition errors inside into a `UserError` of one line."""
    try:
        yield
    except Exception as error:
        if not _is_mistake(error):
            raise
        raise UserError(explain(error, overrides, Place.current())) from error


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
        asked, _ = get_args_parser().parse_known_args(sys.argv[1:])
        place = Place.of_arguments(asked)
        return f"error: {explain(error, asked.overrides, place)}"
    if isinstance(error, ValueError) and "Only one of --run" in str(error):
        return "error: -m and --cfg, --info or --run do not go together"
    raise error


def _is_mistake(error: Exception) -> bool:
    """Whether Hydra, OmegaConf or YAML refused what the user wrote."""
    refusals = (HydraException, OmegaConfBaseException, MarkedYAMLError)
    return isinstance(error, refusals) or (
        isinstance(error, ValueError) and NOT_A_NAME in str(error)
    )


def explain(
    error: Exception, overrides: Sequence[str] = (), place: Place | None = None
) -> str:
    """One line for a composition error: the key, what is wrong, the nearest match.

    place: where the config was looked for; None is `conf/` alone.
    """
    place = place or Place()
    for text in overrides:
        if text.startswith("="):
            return f"{text}: not an override; expected key=value"
    if NOT_A_NAME in str(error):
        return _no_name(overrides)
    if isinstance(error, OverrideParseException):
        return _no_override(error.override)
    if isinstance(error, MarkedYAMLError):
        return _no_yaml(error)
    return (
        _in_a_list(str(error), overrides, place)
        or _in_a_file(error, overrides, place)
        or _on_the_command_line(error, overrides, place)
        or _shortened(error)
    )


def _shortened(error: Exception) -> str:
    """What Hydra says, without line ends, types and the search path."""
    text = str(error).partition("\nConfig search path:")[0]
    lines = [line.strip() for line in text.splitlines()]
    text = " ".join(line for line in lines if line and "object_type=" not in line)
    cause = str(error.__cause__ or "").splitlines()
    if cause and cause[0] not in text:
        text = f"{text} ({cause[0]})"
    return text


# -- what cannot be read ---------------------------------------------------------


def _no_name(overrides: Sequence[str]) -> str:
    """The line for a choice that is no name; null is the usual case.

    Hydra does not say which it is.
    """
    left_out = [o.removesuffix("=null") for o in overrides if o.endswith("=null")]
    hint = f"; to leave one out write {' '.join('~' + o for o in left_out)}"
    return f"{' '.join(overrides)}: a choice is a name{hint if left_out else ''}"


def _no_override(text: str) -> str:
    key, equals, value = text.partition("=")
    line = f"{text}: not an override; expected key=value (or key=a,b with -m)"
    if equals and re.fullmatch(r"[\w.@/+~-]+", key):
        quoted = value.replace('"', '\\"')
        line += f"""; a value with signs of its own needs quotes: '{key}="{quoted}"'"""
    return line


def _no_yaml(error: MarkedYAMLError) -> str:
    mark = error.problem_mark or error.context_mark
    where = f"{mark.name}, line {mark.line + 1}, column {mark.column + 1}"
    context = f" ({error.context})" if error.context else ""
    return f"{where}: not YAML: {error.problem}{context}"


# -- choices and keys on the command line ----------------------------------------


def _on_the_command_line(
    error: Exception, overrides: Sequence[str], place: Place
) -> str | None:
    text = str(error)
    if isinstance(error, MissingConfigException):
        return _missing_choice(error)
    found = re.search(
        r"Ambiguous value for argument '(.+?)'\s"
        r"|Sweep parameters '(.+)' requires --multirun",
        text,
    )
    if found:
        return f"{found.group(1) or found.group(2)}: several values are a sweep; add -m"
    found = re.search(r"An item is already at '([^']+)'", text)
    if found:
        key = found.group(1)
        typed = _typed(f"+{key}", overrides) or f"+{key}=..."
        return f"{typed}: it is there already; change it without the +: {typed[1:]}"
    found = re.search(r"Could not delete from config. '([^']+)' does not exist", text)
    if found:
        key = found.group(1)
        known = Known(overrides, place)
        hint = nearest(key, [*known.keys, *known.choices])
        return f"~{key}: '{key}' does not exist{hint}"
    found = re.search(r"Could not delete '(([^'=]+)=?[^']*)'", text)
    if found:
        asked, group = found.groups()
        return f"~{asked}: {group} has another choice; to leave it out write ~{group}"
    key = _unknown_key(text)
    return None if key is None else _no_such_key(key, overrides, place)


def _typed(key: str, overrides: Sequence[str]) -> str | None:
    """The override of a key, prefix included, as it was typed."""
    return next((o for o in overrides if o.partition("=")[0] == key), None)


def _in_a_list(text: str, overrides: Sequence[str], place: Place) -> str | None:
    """The line for a list of choices, one of which there is not."""
    found = re.search(r"Could not (?:load|find) '([^']+)/([^'/]+)'", text)
    if not found:
        return None
    group, missing = found.groups()
    for override in overrides:
        key, _, value = override.lstrip("+").partition("=")
        if key.split("@")[0] != group or not value.startswith("["):
            continue
        if group in SEVERAL:
            return _no_such_choice(group, missing, Known([], place).options(group))
        return (
            f"{key}: expected one choice, got {value} "
            f"(to run each, write -m {key}={value[1:-1]})"
        )
    return None


def _missing_choice(error: MissingConfigException) -> str | None:
    missing, options = error.missing_cfg_file or "", error.options
    group, _, choice = missing.rpartition("/")
    if not group or options is None:
        return None
    return _no_such_choice(group, choice, options)


def _no_such_choice(group: str, choice: str, options: Sequence[str]) -> str:
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


def _no_such_key(key: str, overrides: Sequence[str], place: Place) -> str:
    """The line for a key that the config does not have."""
    if key.split(".")[0] == "tags":
        typed = next((o for o in overrides if o.startswith("tags")), f"{key}=...")
        return f"{typed}: a new tag needs a plus: +{typed}"
    known = Known(overrides, place)
    if "@" in key:
        return f"{key}: no such place for a choice{nearest(key, known.choices)}"
    if "/" in key:
        return f"{key}: no such group{_group_meant(key, known)}"
    if key.startswith("hydra."):
        return f"{key}: no such key{nearest(key, known.hydra_keys)}"
    parent, _, last = key.rpartition(".")
    part = OmegaConf.select(known.config, parent) if parent else None
    other = other_name(key)
    if other is None and isinstance(part, DictConfig) and "_target_" in part:
        own = [k for k in part if not k.startswith("_")]
        made = part["_target_"].rsplit(".", 1)[-1]
        near = [*own, *FROM_FILES] if parent == "model" else own
        hint = nearest(last, near) or _where_it_is(known.owners(key))
        listed = ", ".join(own) or "none"
        return f"{key}: {made} has no such keyword{hint} (it has {listed})"
    if other is not None:
        return f"{key}: no such key; did you mean {other}?"
    owners = _where_it_is(known.owners(key)) if parent and part is None else ""
    if owners:
        return f"{key}: nothing is chosen there{owners}"
    ending = [k for k in known.keys if k.rsplit(".", 1)[-1] == last]
    if ending:
        # Most alike as a whole; of equals the first.
        likely = difflib.get_close_matches(key, ending, n=1, cutoff=0.0)[0]
        return f"{key}: no such key; did you mean {likely}?"
    return f"{key}: no such key{nearest(key, [*known.keys, *known.choices])}"


def _where_it_is(owners: Sequence[str]) -> str:
    """'; norm=derf has it': other choices that bring a key."""
    if not owners:
        return ""
    more = len(owners) - FEW
    named = ", ".join(owners[:FEW]) + (f" and {more} more" if more > 0 else "")
    return f"; {named} {'has' if len(owners) == 1 else 'have'} it"


def _group_meant(path: str, known: Known) -> str:
    """A hint for a group that was written as the path of what it sets."""
    last = path.rsplit("/", 1)[-1]
    at = known.at(path.replace("/", "."))
    return f"; did you mean {at[0]}?" if at else nearest(last, known.groups)


# -- defaults lists of files -----------------------------------------------------


def _in_a_file(error: Exception, overrides: Sequence[str], place: Place) -> str | None:
    """The line for a mistake in a defaults list, of a config of the user's own say."""
    text = str(error)
    found = re.search(r"Cannot find primary config '([^']+)'", text)
    if found:
        name = found.group(1)
        hint = nearest(name, Known([], Place("config", place.folders)).options(""))
        return f"--config-name {name}: no such config{hint}"
    found = re.search(r"Multiple values for (\S+)\. To override a value use", text)
    if found:
        group = found.group(1)
        if _typed(f"+{group}", overrides):
            return f"{group}: has a choice already; replace it without the +"
        return (
            f"{group}: chosen twice in defaults lists; the later one is written "
            f"'- override /{group}: ...'"
        )
    found = re.search(r"In '?([^':]+)'?: Override '(\S+) : (\S+)' is defined", text)
    if found:
        file, group, choice = found.groups()
        return (
            f"{file}: 'override {group}: {choice}' must stand after everything that is "
            "not an override in the defaults list"
        )
    found = re.search(r"In '([^']+)': Could not override '([^']+)'\. No match", text)
    if found:
        return _nothing_to_override(*found.groups(), Known([], place))
    found = re.search(r"In '([^']+)': Could not find '([^']+)/([^'/]+)'", text)
    if found:
        file, group, choice = found.groups()
        inside = f"{file.rpartition('/')[0]}/"
        name = group.removeprefix(inside)
        if inside != "/" and group.startswith(inside):
            return (
                f"{file}: '{name}: {choice}' is looked for below {inside}; from the top "
                f"it is written '/{name}: {choice}'"
            )
    return None


def _nothing_to_override(file: str, path: str, known: Known) -> str:
    """The line for `override` of something that no defaults list has chosen before."""
    folder = file.rpartition("/")[0]
    if folder and path.startswith(f"{folder}/"):
        # Hydra adds the place it comes to be in, which nobody wrote.
        name = path.removeprefix(f"{folder}/").partition("@")[0]
        return (
            f"{file}: 'override {name}' is looked for below {folder}/; from the top it is "
            f"written 'override /{name}'"
        )
    group = path.partition("@")[0]
    if group in known.groups:
        places = [c for c in known.choices if c.partition("@")[0] == group]
        hint = nearest(path, places) or (
            "; where nothing is chosen before, leave out the word override"
        )
        return f"{file}: override {path}: no such place for a choice{hint}"
    return f"{file}: override {path}: no such group{nearest(group, known.groups)}"
