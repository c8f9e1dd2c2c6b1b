"""Checkpoints of a member: Orbax on disk, with a digest of our own.

Orbax restores an array file with a flipped byte without a word, and lists a folder that
only looks like a step; so every checkpoint carries the sha256 of its leaves, and restoring
walks from the newest to the oldest until one proves whole.
"""

import functools
import hashlib
import json
import logging
import pathlib
import shutil
import threading
from collections.abc import Callable

import jax
import jax.numpy as jnp
import numpy as np

SCHEMA = 3

# Orbax takes about a millisecond per array. Smaller ones than this share an array.
SMALL = 1 << 20  # bytes

# Orbax is not safe to call from two threads at once: temporary folders of one save were
# seen to vanish under the other.
_ORBAX = threading.Lock()


@functools.cache
def _orbax():
    """Orbax, imported when a state is saved or restored: it takes a third of a second."""
    import orbax.checkpoint

    # It and its store log every save at INFO or WARNING; failures raise.
    for name in ("absl", "orbax"):
        logging.getLogger(name).setLevel(logging.ERROR)
    return orbax.checkpoint


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
        """Steps that have a folder, newest first; whether they are whole is not known."""
        if not self._directory.is_dir():
            return []
        return sorted(
            (int(p.name) for p in self._directory.iterdir() if p.name.isdigit()),
            reverse=True,
        )

    def save(self, step: int, state) -> str:
        """Writes the state of `step`, drops what is older than `keep`; its digest."""
        leaves = _leaves(state)
        content = digest(leaves)
        path = self._directory / str(step)
        if path.exists():  # left by an attempt that was cut, or found broken
            shutil.rmtree(path)
        meta = {"schema": SCHEMA, "digest": content, "forms": _forms(leaves)}
        ocp = _orbax()
        with _ORBAX, ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as writer:
            writer.save(
                path,
                args=ocp.args.Composite(
                    state=ocp.args.StandardSave(_pack(leaves, _end_to_end)),
                    meta=ocp.args.JsonSave(meta),
                ),
            )
        self._clean_up(step)
        return content

    def _clean_up(self, step: int) -> None:
        """Leaves `step` and the newest before it, `keep` in all.

        A later step was found broken, or the run would not be here. A save that was
        killed leaves a temporary folder.
        """
        steps = self.steps()
        older = [s for s in steps if s < step]
        dropped = [str(s) for s in steps if s > step or s in older[self._keep - 1 :]]
        dropped += [p.name for p in self._directory.glob("*.orbax-checkpoint-tmp*")]
        for name in dropped:
            shutil.rmtree(self._directory / name, ignore_errors=True)

    def restore(self, like):
        """The newest whole checkpoint, as a tree like `like` (arrays or shapes).

        Returns:
            (step, state) or None, and the messages of what was passed over.
        """
        problems = []
        for step in self.steps():
            try:
                return (step, self._read(step, like)), problems
            except Exception as error:  # anything may be wrong with a broken folder
                line = str(error).strip().splitlines() or [""]
                problems.append(f"checkpoint {step} is unusable: {line[0][:200]}")
        return None, problems

    def _read(self, step: int, like):
        path = self._directory / str(step)
        flat, tree = jax.tree.flatten(like)
        expected = dict(zip(_leaves(like), flat, strict=True))
        ocp = _orbax()
        sharding = jax.sharding.SingleDeviceSharding(jax.devices()[0])
        packed = {
            name: jax.ShapeDtypeStruct(x.shape, x.dtype, sharding=sharding)
            for name, x in _pack(expected, _end_to_end_shape).items()
        }
        with _ORBAX, ocp.Checkpointer(ocp.CompositeCheckpointHandler()) as reader:
            meta = reader.restore(
                path, args=ocp.args.Composite(meta=ocp.args.JsonRestore())
            ).meta
            if meta.get("schema") != SCHEMA:
                raise ValueError(f"schema {meta.get('schema')}, expected {SCHEMA}")
            _check_forms(meta["forms"], _forms(expected))  # Orbax would cast
            packed = reader.restore(
                path, args=ocp.args.Composite(state=ocp.args.StandardRestore(packed))
            ).state
        leaves = _unpack(packed, expected)
        if digest(leaves) != meta["digest"]:
            raise ValueError("its digest does not match its content")
        return jax.tree.unflatten(tree, [leaves[name] for name in expected])


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
    return np.concatenate([np.ravel(np.asarray(x)) for x in parts])


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
        x = np.asarray(leaves[name])
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


def _check_forms(saved: dict[str, str], expected: dict[str, str]) -> None:
    for name in {**expected, **saved}:
        has, wants = saved.get(name, "nothing"), expected.get(name, "nothing")
        if has != wants:
            raise ValueError(f"{name} holds {has}, expected {wants}")
