"""Checkpoints of a member: Orbax on disk, with a digest of our own.

Orbax restores an array file with a flipped byte without a word, and lists a folder that
only looks like a step; so every checkpoint carries the sha256 of its leaves, and restoring
walks from the newest to the oldest until one proves whole.

A save that is cut leaves a folder under another name, which does not count: the step's
name comes last, and what is older goes after that.
"""

import contextlib
import errno
import functools
import hashlib
import json
import logging
import os
import pathlib
import re
import shutil
import sys
import threading
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

from experiments import distributed
from experiments.errors import UserError
from experiments.run import DiskError

SCHEMA = 3

# Differences between a checkpoint and the state it is wanted for that are spelled out.
SPELLED_OUT = 10

# What is said where the machine lacks something and the checkpoint may be fine, by the
# system and by Orbax.
SHORTAGES = (errno.ENOMEM, errno.EMFILE, errno.ENFILE, errno.EACCES, errno.EPERM)
SHORTAGES_IN_WORDS = ("RESOURCE_EXHAUSTED", "PERMISSION_DENIED")

BROKEN_META = "is damaged (its meta cannot be read)"

LATE_ANSWER = "Event loop is closed"

# Orbax takes about a millisecond per array. Smaller ones than this share an array.
SMALL = 1 << 20  # bytes

# Orbax is not safe to call from two threads at once: temporary folders of one save were
# seen to vanish under the other.
_ORBAX = threading.Lock()


@functools.cache
def _orbax():
    """Orbax, imported when a state is saved or restored: it takes a third of a second."""
    import orbax.checkpoint

    # It and its store log every save, and a failure, which raises, with its traceback.
    for name in ("absl", "orbax"):
        logging.getLogger(name).setLevel(logging.CRITICAL)
    sys.unraisablehook = _without_late_answers(sys.unraisablehook)
    return orbax.checkpoint


def _without_late_answers(hook: Callable) -> Callable:
    """The hook, but for arrays that are done after their save or restore has failed.

    Each would print a traceback on top of the error that was raised.
    """

    def told(unraisable) -> None:
        error = unraisable.exc_value
        if not (isinstance(error, RuntimeError) and str(error) == LATE_ANSWER):
            hook(unraisable)

    return told


class _Unusable(Exception):
    """What is wrong with a checkpoint; the message goes on after `checkpoint 400`."""


class Checkpoints:
    """The checkpoints of one run: one folder per step.

    Args:
        directory: `<run>/checkpoints`; made on the first save.
        keep: how many of the newest are kept.
    """

    def __init__(self, directory: pathlib.Path, keep: int):
        self._directory = directory.resolve()  # Orbax refuses relative paths, late
        self._keep = keep

    def steps(self) -> list[int]:
        """Steps that have a folder, newest first; whether they are whole is not known.

        Raises:
            UserError: there is a file where the folder should be.
        """
        if not self._directory.exists():
            return []
        if not self._directory.is_dir():
            raise UserError(f"{self._directory}: expected a folder, found a file")
        return sorted(
            (int(p.name) for p in self._directory.iterdir() if _is_step(p.name)),
            reverse=True,
        )

    def save(self, step: int, state) -> str:
        """Writes the state of `step`, drops what is older than `keep`; its digest.

        Raises:
            UserError: the disk is full, or cannot be written; the checkpoints from
                before are whole, and nothing half-made is left.
        """
        self.steps()  # before anything else: a file in the way is told as such
        leaves = _leaves(state)
        content = digest(leaves)
        if not self._holds(step, state, content):
            meta = {"schema": SCHEMA, "digest": content, "forms": _forms(leaves)}
            self._write(self._directory / str(step), leaves, meta)
        self._clean_up(step)
        return content

    def _holds(self, step: int, state, content: str) -> bool:
        """Whether a step that is taken again was saved whole, with the same content.

        It may be the only one there is: it must not go before the new one has come.
        """
        try:
            if self._meta(step)["digest"] != content:
                return False
            self._read(step, state)
        except _Unusable:
            return False
        return True

    def _write(self, path: pathlib.Path, leaves: dict, meta: dict) -> None:
        ocp = _orbax()
        try:
            if distributed.is_first():
                _discard(path)  # left by an attempt that was cut, or found broken
            distributed.meet("discarded")
            with _ORBAX, ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as writer:
                writer.save(
                    path,
                    args=ocp.args.Composite(
                        state=ocp.args.StandardSave(_pack(leaves, _end_to_end)),
                        meta=ocp.args.JsonSave(meta),
                    ),
                )
        except Exception as error:
            self._drop_halves()  # what there is room for is someone else's
            cause = _of_the_disk(error)
            if cause is None:
                raise
            raise DiskError(path, cause) from error

    def _clean_up(self, step: int) -> None:
        """Leaves `step` and the newest before it, `keep` in all.

        A later step was found broken, or the run would not be here.
        """
        if not distributed.is_first():
            return
        steps = self.steps()
        older = [s for s in steps if s < step]
        for s in steps:
            if s > step or s in older[self._keep - 1 :]:
                with contextlib.suppress(OSError):
                    _discard(self._directory / str(s))
        self._drop_halves()

    def _drop_halves(self) -> None:
        """Removes the temporary folders of saves that were cut or failed."""
        for path in self._directory.glob("*.orbax-checkpoint-tmp*"):
            with contextlib.suppress(OSError):
                _discard(path)

    def restore(self, like):
        """The newest whole checkpoint, as a tree like `like` (arrays or shapes).

        Returns:
            (step, state) or None, and the messages of what was passed over.

        Raises:
            UserError: one cannot be read now, for want of memory or of the right to,
                which says nothing against it.
        """
        problems = []
        for step in self.steps():
            try:
                return (step, self._read(step, like)), problems
            except _Unusable as error:
                problems.append(f"checkpoint {step} {error}")
        return None, problems

    def _meta(self, step: int) -> dict:
        """Our part of a checkpoint: schema, digest and forms.

        Read without Orbax, which mistakes many a folder for a checkpoint.
        """
        path = self._directory / str(step)
        if not path.is_dir():
            raise _Unusable("is damaged (not a folder)")
        if not any(path.iterdir()):
            raise _Unusable("is damaged (an empty folder)")
        if not any((path / part).exists() for part in ("meta", "state")):
            raise _Unusable("is damaged (a folder of something else)")
        try:
            meta = json.loads((path / "meta" / "metadata").read_bytes())
        except FileNotFoundError:
            raise _Unusable("is damaged (no meta)") from None
        except (OSError, ValueError) as error:
            if _is_shortage(error):
                raise _unreadable(path, error) from error
            raise _Unusable(BROKEN_META) from None
        schema = meta.get("schema") if isinstance(meta, dict) else None
        if schema != SCHEMA:
            raise _Unusable(_other_schema(schema))
        if not (isinstance(meta.get("digest"), str) and _are_forms(meta.get("forms"))):
            raise _Unusable(BROKEN_META)
        return meta

    def _read(self, step: int, like):
        path = self._directory / str(step)
        flat, tree = jax.tree.flatten(like)
        expected = dict(zip(_leaves(like), flat, strict=True))
        meta = self._meta(step)
        differences = _differences(meta["forms"], _forms(expected))  # Orbax would cast
        if differences:
            raise _Unusable(f"does not fit this run ({_spelled_out(differences)})")
        try:
            leaves = _arrays(path, expected)
        except Exception as error:  # anything may be wrong with a broken folder
            if _is_shortage(error):
                raise _unreadable(path, error) from error
            line = _first_line(error)[:120]
            raise _Unusable(f"is damaged (its arrays cannot be read: {line})") from None
        if digest(leaves) != meta["digest"]:
            raise _Unusable("is damaged (digest differs)")
        return jax.tree.unflatten(tree, [leaves[name] for name in expected])


def _is_step(name: str) -> bool:
    """Whether a folder's name is one that `save` gives: `400`, and not `0400`."""
    return name.isascii() and name.isdigit() and str(int(name)) == name


def _discard(path: pathlib.Path) -> None:
    """Removes a folder, or whatever else stands there."""
    if path.is_dir() and not path.is_symlink():
        shutil.rmtree(path)
    else:
        path.unlink(missing_ok=True)


def _first_line(error: BaseException) -> str:
    return (str(error).strip().splitlines() or [type(error).__name__])[0]


def _of_the_disk(error: BaseException) -> OSError | None:
    """What the system said where a write failed, which Orbax may pass on as text only."""
    if isinstance(error, OSError):
        return error
    number = re.search(r"os_error_code='(\d+)'", str(error))
    return OSError(int(number[1]), os.strerror(int(number[1]))) if number else None


def _is_shortage(error: BaseException) -> bool:
    """Whether reading failed for a reason that says nothing against the checkpoint."""
    return (
        isinstance(error, MemoryError)
        or (isinstance(error, OSError) and error.errno in SHORTAGES)
        or _first_line(error).startswith(SHORTAGES_IN_WORDS)
    )


def _unreadable(path: pathlib.Path, error: BaseException) -> UserError:
    return UserError(
        f"{path}: cannot be read now ({_first_line(error)[:120]}); it is left as it is, "
        "the same command tries again"
    )


def _other_schema(schema) -> str:
    if type(schema) is not int:
        return BROKEN_META
    if schema > SCHEMA:
        return (
            f"was written by a newer blocklab (schema {schema}, this one reads up to "
            f"{SCHEMA})"
        )
    return (
        f"was written by an older blocklab (schema {schema}, this one reads {SCHEMA})"
    )


def _arrays(path: pathlib.Path, expected: dict) -> dict:
    """The leaves of a checkpoint, on the first device, wherever they were written."""
    ocp = _orbax()
    sharding = jax.sharding.SingleDeviceSharding(jax.local_devices()[0])
    packed = {
        name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
        for name, x in _pack(expected, _end_to_end_shape).items()
    }
    with _ORBAX, ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
        packed = reader.restore(
            path, args=ocp.args.Composite(state=ocp.args.StandardRestore(packed))
        ).state
    return _unpack(packed, expected)


def _small(leaves: dict) -> dict[str, list[str]]:
    """Names of the small leaves of each dtype, in the order in which they are packed."""
    by_dtype: dict[str, list[str]] = {}
    for name, x in leaves.items():
        if np.dtype(x.dtype).itemsize * x.size < SMALL:
            by_dtype.setdefault(f"small/{x.dtype}", []).append(name)
    return by_dtype


def _pack(leaves: dict, join: Callable) -> dict:
    """The leaves with small ones of a dtype end to end in one array.

    `join` makes one flat array of some; on the host, where no shape needs compiling.
    """
    small = _small(leaves)
    packed = {pack: join([leaves[n] for n in names]) for pack, names in small.items()}
    alone = leaves.keys() - {name for names in small.values() for name in names}
    return {**packed, **{name: leaves[name] for name in sorted(alone)}}


def _end_to_end(parts: list) -> np.ndarray:
    return np.concatenate([np.ravel(distributed.whole(x)) for x in parts])


def _end_to_end_shape(parts: list) -> jax.ShapeDtypeStruct:
    return jax.ShapeDtypeStruct((sum(x.size for x in parts),), parts[0].dtype)


def _unpack(packed: dict, expected: dict) -> dict:
    """The inverse of `_pack`, for leaves of these shapes."""
    leaves = {name: x for name, x in packed.items() if name in expected}
    for pack, names in _small(expected).items():
        ends = np.cumsum([expected[name].size for name in names])
        parts = np.split(np.asarray(packed[pack]), ends[:-1])
        for name, part in zip(names, parts, strict=True):
            leaves[name] = jnp.asarray(part.reshape(expected[name].shape))
    return leaves


def digest(leaves: dict) -> str:
    """sha256 over names, types, shapes and bytes of a flat dict of arrays."""
    h = hashlib.sha256()
    for name in sorted(leaves):
        x = distributed.whole(leaves[name])
        h.update(json.dumps([name, str(x.dtype), x.shape]).encode())
        h.update(np.ascontiguousarray(x).tobytes())
    return h.hexdigest()


def _leaves(tree) -> dict:
    """Leaves by path."""
    return {
        jax.tree_util.keystr(path): leaf
        for path, leaf in jax.tree_util.tree_flatten_with_path(tree)[0]
    }


def _forms(leaves: dict) -> dict[str, str]:
    """Type and shape by name, as text: `float32[64, 33]`."""
    return {name: f"{x.dtype}{list(x.shape)}" for name, x in leaves.items()}


def _are_forms(node) -> bool:
    return isinstance(node, dict) and all(isinstance(v, str) for v in node.values())


def _differences(saved: dict[str, str], expected: dict[str, str]) -> list[str]:
    """Where two sets of forms differ, in words: what is missing first."""
    missing = [f"missing {n} {form}" for n, form in expected.items() if n not in saved]
    extra = [f"extra {n} {form}" for n, form in saved.items() if n not in expected]
    other = []
    for name in saved.keys() & expected.keys():
        (dtype, _, shape), (dtype_, _, shape_) = (
            forms[name].partition("[") for forms in (saved, expected)
        )
        what = ["dtype"] * (dtype != dtype_) + ["shape"] * (shape != shape_)
        if what:
            other.append(
                f"other {' and '.join(what)}: {name} {saved[name]}, "
                f"expected {expected[name]}"
            )
    return missing + extra + sorted(other)


def _spelled_out(differences: list[str]) -> str:
    more = len(differences) - SPELLED_OUT
    rest = [f"and {more} more"] if more > 0 else []
    return "; ".join([*differences[:SPELLED_OUT], *rest])
