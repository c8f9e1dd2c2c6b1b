"""Saying what does not go together, and what does."""

import re

from experiments.compatibility import choices as files
from experiments.compatibility.rules import Refusal, refusals
from experiments.errors import ConfigError
from experiments.parts import Part

MOST = (8, 4)  # choices that a message lists of the key to change, and of the others


def refusal(model: Part, choices: dict | None = None) -> str | None:
    """Why the parts of a model have no meaning together, in one line; None if they do.

    Args:
        model: the parts. Nothing of them is built.
        choices: Hydra group -> choice, to call them by the names that were typed.
    """
    for found in refusals(model):
        return told(found, model, choices or {})
    return None


def told(found: Refusal, model: Part, choices: dict) -> str:
    """One line: the key to change, the reason, and choices that would do."""

    def named(match) -> str:
        return _named(model, match[1], choices)

    reason = re.sub(r"<([\w.]+)>", named, found.reason)
    offers = [_offer(found, model, key) for key in found.keys]
    offers = [offer for offer in offers if offer is not None]
    advice = f"; choose {', or '.join(offers)}" if offers else ""
    return f"model.{found.keys[0]}: {reason}{advice}"


def blamed(message: str, choices: dict) -> str:
    """The message of a key that a part does not have, with the choices that clash.

    A choice of one group may set a keyword of another group's part.
    """
    if "has no such keyword" not in message:
        return message
    path = message.partition(":")[0]
    setting = _choices_that_set(path, choices)
    owning = _choices_that_set(f"{path.rpartition('.')[0]}._target_", choices) - setting
    if not setting or not owning:
        return message
    both = (" and ".join(sorted(names)) for names in (setting, owning))
    return "{}; {} sets it, which does not go with {}".format(message, *both)


def at(model: Part, key: str):
    """The value at a dotted key below the model; None where there is none."""
    for name in key.split("."):
        model = model.get(name) if isinstance(model, Part) else None
    return model


def _named(model: Part, key: str, choices: dict) -> str:
    """`residual=mhc (n_streams=4)`."""
    part = at(model, key)
    choice = choices.get(key) or choices.get(f"{_group(key)}@model.{key}")
    if not isinstance(part, Part):
        return f"{key}={'null' if part is None else part}"
    width = part.get("n_streams")
    more = "" if width is None else f" (n_streams={width})"
    return f"{key}={choice or part.name}{more}"


def _group(key: str) -> str:
    name = key.rsplit(".", 1)[-1]
    return "norm" if name.endswith("_norm") else name


def _offer(found: Refusal, model: Part, key: str) -> str | None:
    """`placement=pre or sandwich`: what would do at one of the keys."""
    if not isinstance(at(model, key), Part):
        changed = _with(model, key, None)
        return f"{key}=null" if found not in refusals(changed) else None
    if key == "pattern":
        return None
    others = [at(model, other) for other in found.keys if other != key]
    targets = {part.target for part in others if isinstance(part, Part)}
    meant, good = [], []
    for choice, part, chosen_with in _parts(_group(key)):
        is_meant = bool(targets & chosen_with)
        if (chosen_with and not is_meant) or found in refusals(_with(model, key, part)):
            continue
        (meant if is_meant else good).append(choice)
    names = [*meant, *good]
    if not names:
        return None
    most = MOST[key != found.keys[0]]
    if len(names) > most:
        return f"{key}={', '.join(names[:most])}, ..."
    *first, last = names
    return f"{key}={', '.join(first)} or {last}" if first else f"{key}={last}"


def _parts(group: str):
    """Choices of a group: name, part, and targets of parts they choose elsewhere."""
    for file in sorted((files.CONF / group).glob("*.yaml")):
        placed = files.config_of({group: file.stem})
        try:
            part = at(Part.parse(placed["model"], "model"), group)
        except ConfigError:
            continue
        implied = files.implied({group: file.stem})
        chosen_with = {
            placed["model"][k]["_target_"]
            for k in implied
            if k != group and isinstance(placed["model"].get(k), dict)
        }
        if files.is_alone(group, file.stem) or chosen_with:
            yield file.stem, part, chosen_with


def _with(model: Part, key: str, value) -> Part:
    """The model with another value at a key."""
    head, _, rest = key.partition(".")
    return model.replace(**{head: _with(model[head], rest, value) if rest else value})


def _choices_that_set(path: str, choices: dict) -> set[str]:
    """Those whose files have a value at `path`."""
    found = set()
    for key, choice in choices.items():
        if choice is None or not files.is_choice(key, choice):
            continue
        node = files.placed(key, choice)
        for name in path.split("."):
            node = node.get(name) if isinstance(node, dict) else None
        if node is not None:
            found.add(f"{key}={choice}")
    return found
