"""Parts: config nodes that name code, as values that can be compared, hashed and built.

A part is `_target_` (dotted path of a class) plus keywords; parts nest. A class may offer

    traced = ("alpha_init", ...)     numbers that may differ between members of a program
    check(**keywords)                a static method that refuses values on the host

and its `__init__` annotations are what the keywords are checked against. A keyword with
neither annotation nor default is a part.
"""

import dataclasses
import functools
import importlib
import inspect
import types
import typing
from typing import Any

from experiments.errors import ConfigError, nearest, other_name

TRACED = "<traced>"
# Keys of the command line that make a model: `experiments.released` replaces them.
FROM_FILES = ("from_config", "from_checkpoint")


@dataclasses.dataclass(frozen=True)
class Part:
    """A checked config node.

    target: dotted path of a class.
    keywords: every keyword of the class but widths and rngs, defaults filled in, sorted;
        values are numbers, strings, None, tuples or Parts.
    partial: builds a factory instead of an object (`_partial_` in the YAML).
    """

    target: str
    keywords: tuple[tuple[str, Any], ...]
    partial: bool = False

    @classmethod
    def parse(cls, node: Any, path: str) -> "Part":
        """Checks the config node at `path`, nested parts included.

        Raises:
            ConfigError: no such class, an unknown or ill-typed keyword, or a value that
                the class's `check` refuses.
        """
        if not isinstance(node, dict):
            raise ConfigError(f"{path}: expected {_type_name(cls)}, got {shown(node)}")
        if "_target_" not in node:
            raise ConfigError(
                f"{path}: expected {_type_name(cls)}, got one without _target_ "
                f"(keys: {', '.join(map(str, node)) or 'none'})"
            )
        target = node["_target_"]
        made = locate(target, f"{path}._target_")
        parameters = _parameters(made)
        given = {k: v for k, v in node.items() if k not in ("_target_", "_partial_")}
        for key in given:
            if key not in parameters:
                known = other_name(f"{path}.{key}")
                near = [*parameters, *FROM_FILES] if path == "model" else parameters
                hint = f"; did you mean {known}?" if known else nearest(key, near)
                raise ConfigError(
                    f"{path}.{key}: {made.__name__} has no such keyword{hint} "
                    f"(it has {', '.join(parameters) or 'none'})"
                )
        keywords = {}
        for key, (annotation, default) in parameters.items():
            value = given.get(key, default)
            if value is inspect.Parameter.empty:
                raise ConfigError(f"{path}.{key}: {made.__name__} needs it")
            if isinstance(value, dict) and "_target_" in value:
                value = cls.parse(value, f"{path}.{key}")
            elif value is not default or _is_number(value):  # also a float's default 1
                value = coerce(value, annotation, f"{path}.{key}")
            keywords[key] = value
        part = cls(
            target, tuple(sorted(keywords.items())), bool(node.get("_partial_", False))
        )
        part._check(made, path)
        return part

    def _check(self, made: type, path: str) -> None:
        check = getattr(made, "check", None)
        if check is None:
            return
        accepted = inspect.signature(check).parameters
        open_ended = any(p.kind is p.VAR_KEYWORD for p in accepted.values())
        plain = {
            k: v
            for k, v in self.keywords
            if not isinstance(v, Part) and (open_ended or k in accepted)
        }
        try:
            check(**plain)
        except (ValueError, TypeError) as error:
            raise ConfigError(f"{path}.{error}") from None

    def __getitem__(self, key: str) -> Any:
        return dict(self.keywords)[key]

    def get(self, key: str, default=None) -> Any:
        return dict(self.keywords).get(key, default)

    def replace(self, **keywords) -> "Part":
        """The same part with other values of some keywords."""
        merged = {**dict(self.keywords), **keywords}
        return dataclasses.replace(self, keywords=tuple(sorted(merged.items())))

    @property
    def cls(self) -> type:
        return locate(self.target, self.target)

    @property
    def name(self) -> str:
        return self.target.rsplit(".", 1)[-1]

    def traced_values(self, path: str) -> dict[str, float | int]:
        """Numbers that are inputs of the program, by config path."""
        values = {}
        traced = getattr(self.cls, "traced", ())
        for key, value in self.keywords:
            at = f"{path}.{key}"
            if isinstance(value, Part):
                values |= value.traced_values(at)
            elif key in traced and _is_number(value):
                values[at] = value
        return values

    def static(self) -> "Part":
        """The part without the values of its traced numbers: what a program depends on."""
        traced = getattr(self.cls, "traced", ())
        keywords = tuple(
            (
                key,
                value.static()
                if isinstance(value, Part)
                else TRACED
                if key in traced and _is_number(value)
                else value,
            )
            for key, value in self.keywords
        )
        return dataclasses.replace(self, keywords=keywords)

    def build(self, values: dict[str, Any], path: str) -> Any:
        """Builds the object, or the factory, with numbers at its paths from `values`."""
        built = {}
        for key, value in self.keywords:
            at = f"{path}.{key}"
            built[key] = (
                value.build(values, at)
                if isinstance(value, Part)
                else values.get(at, value)
            )
        made = functools.partial(self.cls, **built)
        return made if self.partial else made()

    def to_config(self) -> dict[str, Any]:
        """The node again, defaults written out."""
        node: dict[str, Any] = {"_target_": self.target}
        if self.partial:
            node["_partial_"] = True
        for key, value in self.keywords:
            node[key] = value.to_config() if isinstance(value, Part) else value
        return node

    def identity(self) -> dict[str, Any]:
        """The node without keywords at their defaults: what makes a run this run."""
        node: dict[str, Any] = {"_target_": self.target}
        defaults = {k: d for k, (_, d) in _parameters(self.cls).items()}
        for key, value in self.keywords:
            if isinstance(value, Part):
                node[key] = value.identity()
            elif value != defaults.get(key, inspect.Parameter.empty):
                node[key] = value
        return node


@functools.cache
def locate(target: str, path: str) -> type:
    """The class at a dotted path.

    Raises:
        ConfigError: no such module, or no such name in it.
    """
    module_name, _, name = str(target).rpartition(".")
    try:
        module = importlib.import_module(module_name)
    except (ImportError, ValueError) as error:
        raise ConfigError(f"{path}: cannot import {target!r} ({error})") from None
    found = getattr(module, name, None)
    if not callable(found):
        raise ConfigError(
            f"{path}: {module_name} has no class {name!r}{nearest(name, vars(module))}"
        )
    return found


def keywords_of(target: str, path: str) -> frozenset[str]:
    """The keywords that the part at `path`, of this class, may have.

    Raises:
        ConfigError: there is no such class.
    """
    return frozenset(_parameters(locate(target, f"{path}._target_")))


@functools.cache
def _parameters(made: type) -> dict[str, tuple[Any, Any]]:
    """Keyword -> (annotation, default) of a class: what a config may set.

    Left out are rngs, the site, factories with a default (`linear=Linear`) and widths
    (positional without a default): whoever builds the part gives them. Without an
    annotation the default tells: none means a part, a float means a number (so that 1
    and 0.3 are traced as one type).
    """
    init = made.__init__ if inspect.isclass(made) else made
    hints = typing.get_type_hints(init)

    def guess(default):
        if default is inspect.Parameter.empty:
            return Part
        return float if isinstance(default, float) else Any

    return {
        name: (hints.get(name, guess(p.default)), p.default)
        for name, p in inspect.signature(init).parameters.items()
        if name not in ("self", "rngs", "site")
        and (p.default is p.empty or not callable(p.default))
        and (
            p.kind is p.KEYWORD_ONLY
            or (p.kind is p.POSITIONAL_OR_KEYWORD and p.default is not p.empty)
        )
    }


def coerce(value: Any, annotation: Any, path: str) -> Any:
    """`value` as the annotated type: int, float, bool, str, None, unions, tuples.

    An int is accepted for a float; nothing else is converted.

    Raises:
        ConfigError: naming the path, the type expected and what came.
    """
    if annotation is Any or annotation is inspect.Parameter.empty:
        return tuple(value) if isinstance(value, list) else value
    options = (
        typing.get_args(annotation)
        if isinstance(annotation, types.UnionType)
        or typing.get_origin(annotation) is typing.Union
        else (annotation,)
    )
    # Of `int | float` only the float: members of one program need numbers of one type.
    for option in [o for o in options if not (o is int and float in options)]:
        ok, converted = _convert(value, option)
        if ok:
            return converted
    wanted = " or ".join(_type_name(option) for option in options)
    hint = ""
    if type(None) in options and str(value).lower() == "none":
        hint = " (null is written null)"
    elif int in options and isinstance(value, float) and value.is_integer():
        hint = f" (write {int(value)})"
    raise ConfigError(f"{path}: expected {wanted}, got {shown(value)}{hint}")


def shown(value: Any) -> str:
    """A value in a message, spelled as in a YAML file."""
    if isinstance(value, dict):
        return f"a mapping with {', '.join(map(str, value)) or 'nothing in it'}"
    spelled = {None: "null", True: "true", False: "false"}
    is_word = value is None or isinstance(value, bool)
    return spelled[value] if is_word else repr(value)


def _convert(value: Any, option: Any) -> tuple[bool, Any]:
    origin = typing.get_origin(option) or option
    if option is type(None):
        return value is None, None
    if option is bool:
        return isinstance(value, bool), value
    if option is int:
        return isinstance(value, int) and not isinstance(value, bool), value
    if option is float:
        return _is_number(value), float(value) if _is_number(value) else value
    if option is str:
        return isinstance(value, str), value
    if origin is tuple:
        is_list = isinstance(value, (list, tuple))
        return is_list, tuple(value) if is_list else value
    if origin is dict:
        return isinstance(value, dict), value
    return False, value  # factories and objects (norms, schemes) come as parts


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float)) and not isinstance(value, bool)


def _type_name(option: Any) -> str:
    names = {
        int: "an integer",
        float: "a number",
        bool: "true or false",
        str: "a string",
        type(None): "null",
        tuple: "a list",
        dict: "a mapping",
    }
    origin = typing.get_origin(option) or option
    return names.get(origin) or "a part (a mapping with _target_)"
