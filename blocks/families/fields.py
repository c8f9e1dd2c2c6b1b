"""A config.json, of which no field is passed over in silence."""

import difflib
import json
import pathlib
from typing import Any

_REQUIRED = object()

# What a config says beside the computation: where it comes from, what tokens mean, what
# was dropped in training, how weights were drawn, what else a call returns.
BESIDE = (
    "_attn_implementation",
    "_name_or_path",
    "architectures",
    "attention_dropout",
    "auto_map",
    "bos_token_id",
    "chunk_size_feed_forward",
    "dtype",
    "eos_token_id",
    "id2label",
    "initializer_range",
    "label2id",
    "max_position_embeddings",  # rotations have no longest sequence
    "output_attentions",
    "output_hidden_states",
    "output_router_logits",
    "pad_token_id",
    "pretraining_tp",
    "problem_type",
    "quantization_config",  # how a file holds its weights
    "return_dict",
    "torch_dtype",
    "transformers_version",
    "use_cache",
)


class FamilyError(ValueError):
    """A config or a checkpoint that is not one of a known family; says what is wrong."""


class Fields:
    """The fields of a config, each of which has to be asked for.

    node: the config. source: what messages call it.

    What a family reads it computes; what it skips is known not to matter there. `check`
    refuses the rest, so that a field nobody thought of never changes a model unseen.
    """

    def __init__(self, node: dict[str, Any], source: str = "config.json"):
        self._node = node
        self.source = source
        self._known = {"model_type", "is_encoder_decoder", *BESIDE}
        self.expect("is_encoder_decoder", False, default=False)

    @classmethod
    def read(cls, path: str | pathlib.Path) -> "Fields":
        """The config at `path`: a file, or a folder that has a config.json.

        Raises:
            FamilyError: there is none, or it is not a JSON object.
        """
        path = pathlib.Path(path).expanduser()
        path = path / "config.json" if path.is_dir() else path
        try:
            node = json.loads(path.read_text(encoding="utf-8"))
        except OSError as error:
            reason = error.strerror or str(error)
            raise FamilyError(f"{path}: expected a config.json, {reason}") from None
        except ValueError as error:
            raise FamilyError(f"{path}: not a JSON file ({error})") from None
        if not isinstance(node, dict):
            raise FamilyError(
                f"{path}: expected an object with a model_type, got {shown(node)}"
            )
        return cls(node, str(path))

    def get(self, name: str, default: Any = _REQUIRED) -> Any:
        """The value of a field; its default is what transformers takes without it.

        Raises:
            FamilyError: a field without a default is missing.
        """
        self._known.add(name)
        if name in self._node:
            return self._node[name]
        if default is _REQUIRED:
            raise FamilyError(f"{self.source}: {name} is missing")
        return default

    def size(self, name: str, default: Any = _REQUIRED) -> int:
        """A field that counts something.

        Raises:
            FamilyError: it is no whole number above zero.
        """
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, int) or value < 1:
            self.refuse(name, "a whole number above 0", value)
        return value

    def number(self, name: str, default: Any = _REQUIRED) -> float:
        """A field that is computed with.

        Raises:
            FamilyError: it is no number above zero.
        """
        value = self.get(name, default)
        if isinstance(value, bool) or not isinstance(value, (int, float)) or value <= 0:
            self.refuse(name, "a number above 0", value)
        return value

    def several(self, name: str) -> list | None:
        """A field that lists something, one for each layer; None without it.

        Raises:
            FamilyError: it is no list.
        """
        value = self.get(name, None)
        if value is not None and not isinstance(value, list):
            self.refuse(name, "a list", value)
        return value

    def expect(self, name: str, *allowed: Any, default: Any = _REQUIRED) -> Any:
        """The value of a field of which few are understood.

        Raises:
            FamilyError: it is none of `allowed`.
        """
        value = self.get(name, default)
        if value not in allowed:
            self.refuse(name, " or ".join(shown(a) for a in allowed), value)
        return value

    def refuse(self, name: str, expected: str, value: Any) -> None:
        """Raises FamilyError: the field has a value that means another computation."""
        raise FamilyError(
            f"{self.source}: {name}: expected {expected}, got {shown(value)}"
        )

    def skip(self, *names: str) -> None:
        """These do not matter to what this family computes."""
        self._known.update(names)

    def check(self) -> None:
        """Raises FamilyError: names the fields that nobody asked for."""
        unknown = sorted(self._node.keys() - self._known)
        if unknown:
            near = [
                difflib.get_close_matches(u, sorted(self._known), 1) for u in unknown
            ]
            told = [
                f"{name} (did you mean {found[0]}?)" if found else name
                for name, found in zip(unknown, near, strict=True)
            ]
            kind = self._node.get("model_type")
            raise FamilyError(
                f"{self.source}: fields that model_type {kind} is not known to have, "
                f"which may change what it computes: {', '.join(told)}"
            )


def shown(value: Any) -> str:
    """A value as a config has it."""
    text = json.dumps(value, default=str)
    return text if len(text) <= 60 else f"{text[:57]}..."
