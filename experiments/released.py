"""model.from_config=FILE: the model of a config.json, as overrides."""

from collections.abc import Sequence

from hydra.core.override_parser.overrides_parser import OverridesParser
from hydra.core.override_parser.types import Override

from blocks.families.family import overrides_of
from blocks.families.fields import FamilyError, Fields
from blocks.families.parts import place_of
from experiments.errors import ConfigError

KEY = "model.from_config"


def names_a_file(override: str) -> bool:
    """Whether an override is that key's."""
    return override.lstrip("+").partition("=")[0] == KEY


def expanded(overrides: Sequence[str], parser: OverridesParser | None = None):
    """`overrides` with the key replaced by what makes the model of its file.

    The other overrides come after the file's and win: a value over its value, a choice
    over its choice and over the values that its choice had. A sweep over files is left
    for whoever makes jobs of it.

    Raises:
        ConfigError: two files, or one that is no config of a known family.
    """
    if not any(names_a_file(text) for text in overrides):
        return list(overrides)
    parser = parser or OverridesParser.create()
    parsed = [parser.parse_override(text) for text in overrides]
    files = [o for o in parsed if names_a_file(o.input_line)]
    if any(o.is_sweep_override() for o in files):
        return list(overrides)
    if len(files) > 1:
        raise ConfigError(f"{KEY}: expected one file, got {len(files)}")
    own = [o for o in parsed if o is not files[0]]
    try:
        fields = Fields.read(str(files[0].value()))
        of_file = overrides_of(fields)
    except FamilyError as error:
        raise ConfigError(f"{KEY}: {error}") from None
    return [*without(of_file, own), *(o.input_line for o in own)]


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

    def stands(line: str) -> bool:
        if _key(line) in keys:
            return False
        place = place_of(line) or _key(line)
        holders = [p for p in places if place == p or place.startswith(f"{p}.")]
        return not holders or max(holders, key=len) not in gone

    return [line for line in of_file if stands(line)]


def _key(override: str) -> str:
    return override.lstrip("+~").partition("=")[0]
