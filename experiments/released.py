"""model.from_config=FILE and model.from_checkpoint=DIR: a model, as overrides."""

import json
import pathlib
from collections.abc import Sequence
from typing import Any

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from blocks.families.family import overrides_of
from blocks.families.fields import FamilyError, Fields
from blocks.families.parts import place_of
from experiments.errors import ConfigError
from experiments.fingerprint import is_run

CONFIG, CHECKPOINT = KEYS = ("model.from_config", "model.from_checkpoint")
# Keys of a model that change no parameter.
NO_PARAMETER = tuple(
    f"model.{key}" for key in ("dtype", "remat", "loss_chunk", "z_loss", "init")
)


def names_a_file(override: str) -> bool:
    """Whether an override is one of those keys'."""
    return override.lstrip("+").partition("=")[0] in KEYS


def expanded(overrides: Sequence[str], parser: OverridesParser | None = None):
    """`overrides` with the key replaced by what makes the model of its file.

    The other overrides come after the file's and win: a value over its value, a choice
    over its choice and over the values that its choice had. A sweep over files is left
    for whoever makes jobs of it. `model.from_checkpoint` also says where the weights are,
    and which keys of the model are not its own.

    Raises:
        ConfigError: two files, or one that is no config of a known family.
    """
    if not any(names_a_file(text) for text in overrides):
        return list(overrides)
    parser = parser or OverridesParser.create()
    overrides = quoted(overrides)
    parsed = [parser.parse_override(text) for text in overrides]
    files = [o for o in parsed if names_a_file(o.input_line)]
    if any(o.is_sweep_override() for o in files):
        return list(overrides)
    key = _key(files[0].input_line)
    if len(files) > 1:
        raise ConfigError(f"{key}: expected one file, got {len(files)}")
    own = [o for o in parsed if o is not files[0]]
    # As an absolute path: a run may be taken up again from another folder.
    path = pathlib.Path(str(files[0].value())).expanduser().absolute()
    try:
        if key == CONFIG:
            of_file = overrides_of(Fields.read(str(files[0].value())))
        else:
            of_file = overrides_of_run(path) if is_run(path) else _of_folder(path)
            of_file += [f"weights.path={_text(str(path))}"]
            of_file += [f"weights.changed={_text(changed(own))}"]
    except FamilyError as error:
        raise ConfigError(f"{key}: {error}") from None
    found = [*without(of_file, own), *(o.input_line for o in own)]
    _TYPED[_of_a_job(found)] = list(overrides)
    return found


# Command line without those keys -> the one it was made of.
_TYPED: dict[tuple[str, ...], list[str]] = {}


def as_typed(overrides: Sequence[str]) -> list[str]:
    """What `expanded` was given, where `overrides` are what it made of that."""
    return _TYPED.get(_of_a_job(overrides), list(overrides))


def _of_a_job(overrides: Sequence[str]) -> tuple[str, ...]:
    return tuple(o for o in overrides if not o.lstrip("+~").startswith("hydra"))


def quoted(overrides: Sequence[str]) -> list[str]:
    """`overrides` with quotes around folders whose names have = in them, as runs' do."""
    lines = []
    for line in overrides:
        key, _, value = line.partition("=")
        if names_a_file(line) and "=" in value and value[0] not in "'\"":
            line = f"{key}={','.join(_text(path) for path in value.split(','))}"
        lines.append(line)
    return lines


def _of_folder(path: pathlib.Path) -> list[str]:
    if not path.is_dir():
        raise FamilyError(f"{path}: expected a folder with config.json and safetensors")
    return overrides_of(Fields.read(str(path)))


def changed(own: Sequence[Override]) -> list[str]:
    """Places and keys of a model that somebody's own overrides change."""
    keys = []
    for override in own:
        key = place_of(override.input_line) or _key(override.input_line)
        if key.split(".")[0] == "model" and key not in NO_PARAMETER:
            keys.append(key)
    return sorted(set(keys))


def overrides_of_run(path: pathlib.Path) -> list[str]:
    """The command line that makes the model of a run of ours.

    Its choices, and then every keyword as the run has it, which is all there is to know
    of parts inside parts.

    Raises:
        FamilyError: the folder has no config or no choices of a run.
    """
    node, env = _read(path / "config.json"), _read(path / "env.json")
    lines = [
        f"{group}={choice}"
        for group, choice in env["choices"].items()
        if choice and _is_of_a_model(group)
    ]
    model = node["model"]
    if "vocab_size" in model:
        model = {
            **model,
            "vocab_size": model["vocab_size"] or env["data"]["vocab_size"],
        }
    return lines + [f"++{key}={_text(value)}" for key, value in _leaves(model, "model")]


def _read(path: pathlib.Path) -> dict[str, Any]:
    try:
        return json.loads(path.read_bytes())
    except (OSError, ValueError) as error:
        raise FamilyError(f"{path}: expected the file of a run ({error})") from None


def _is_of_a_model(choice: str) -> bool:
    place = place_of(f"{choice}=") or ""
    is_inside = "@" in choice and place.count(".") > 1
    return choice == "model" or (place.startswith("model.") and not is_inside)


def _leaves(node: dict[str, Any], path: str) -> list[tuple[str, Any]]:
    """The values of a nested mapping by dotted key; of an empty one, itself."""
    found = []
    for key, value in node.items():
        at = f"{path}.{key}"
        found += (
            _leaves(value, at) if value and isinstance(value, dict) else [(at, value)]
        )
    return found


def _text(value: Any) -> str:
    """A value as an override has it, whatever is in it."""
    if isinstance(value, str):
        escaped = value.replace("\\", "\\\\").replace("'", "\\'")
        return f"'{escaped}'"
    if isinstance(value, list):
        return f"[{','.join(_text(v) for v in value)}]"
    return json.dumps(value)


def without(of_file: Sequence[str], own: Sequence[Override]) -> list[str]:
    """The overrides of a file that those of the user leave standing."""
    keys = {_key(o.input_line) for o in own}
    # A choice of the file stands for all that lies at its place, up to the next choice.
    places = {place_of(line): _key(line) for line in of_file if place_of(line)}
    gone = {place for place, key in places.items() if key in keys}
    # What is put inside a part that the user replaced goes with it.
    gone |= {
        place
        for place, key in places.items()
        if "@" in key and any(place.startswith(f"{outer}.") for outer in gone)
    }

    # Where the file has no choice, what it says of a place gives way to one.
    new = {place_of(o.input_line) for o in own} - places.keys() - {None}

    def stands(line: str) -> bool:
        if _key(line) in keys:
            return False
        if any(f"{_key(line)}.".startswith(f"{place}.") for place in new):
            return False
        place = place_of(line) or _key(line)
        holders = [p for p in places if place == p or place.startswith(f"{p}.")]
        return not holders or max(holders, key=len) not in gone

    return [line for line in of_file if stands(line)]


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
