"""Checkpoints come back to the bit, or not at all."""

import shutil
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.checkpoints import Checkpoints, digest


def make_state(seed: int = 0) -> dict:
    rng = np.random.default_rng(seed)
    wide = rng.normal(size=(64, 33)).astype(np.float32)
    wide[0, :4] = [np.nan, -np.inf, -0.0, 1e-42]  # a NaN, an infinity, a subnormal
    return {
        "params": {"stack/kernel": jnp.asarray(wide), "gain": jnp.ones((1,))},
        "half": (jnp.asarray(rng.normal(size=(7,)), jnp.bfloat16),),
        "fp16": jnp.asarray(rng.normal(size=(3, 2)), jnp.float16),
        "step": jnp.int32(seed),
        "key": jax.random.key_data(jax.random.key(seed)),
        "scalar": jnp.float32(0.1),
    }


def assert_same_bits(tree, other):
    assert jax.tree.structure(tree) == jax.tree.structure(other)
    for a, b in zip(jax.tree.leaves(tree), jax.tree.leaves(other), strict=True):
        assert (a.dtype, a.shape) == (b.dtype, b.shape)
        assert np.asarray(a).tobytes() == np.asarray(b).tobytes()


def shapes_of(tree):
    return jax.tree.map(lambda x: jax.ShapeDtypeStruct(x.shape, x.dtype), tree)


# A failed restore leaves a future of Orbax's that complains when it is collected.
pytestmark = pytest.mark.filterwarnings(
    "ignore::pytest.PytestUnraisableExceptionWarning"
)


@pytest.fixture(scope="module")
def saved(tmp_path_factory) -> Path:
    """Checkpoints of steps 10 and 20; tests get copies."""
    directory = tmp_path_factory.mktemp("saved") / "checkpoints"
    checkpoints = Checkpoints(directory, keep=2)
    checkpoints.save(10, make_state(10))
    checkpoints.save(20, make_state(20))
    return directory


@pytest.fixture
def directory(saved, tmp_path) -> Path:
    return Path(shutil.copytree(saved, tmp_path / "checkpoints"))


def largest_file(folder: Path) -> Path:
    return max(
        (p for p in folder.rglob("*") if p.is_file()), key=lambda p: p.stat().st_size
    )


def test_what_was_saved_comes_back_to_the_bit(directory):
    assert make_state()["key"].dtype == jnp.uint32
    for like in (make_state(), shapes_of(make_state())):
        restored, problems = Checkpoints(directory, keep=2).restore(like)
        assert problems == []
        step, state = restored
        assert step == 20
        assert_same_bits(state, make_state(20))


def test_nothing_saved_is_nothing_restored(tmp_path):
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    assert checkpoints.restore(make_state()) == (None, [])
    assert list(tmp_path.iterdir()) == []


def test_a_relative_folder_will_do(tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    Checkpoints(Path("here/checkpoints"), keep=1).save(3, make_state(3))
    (step, state), _ = Checkpoints(tmp_path / "here/checkpoints", 1).restore(
        make_state()
    )
    assert step == 3
    assert_same_bits(state, make_state(3))


# -- which are kept ------------------------------------------------------------


@pytest.mark.parametrize("keep", [1, 2])
def test_the_newest_are_kept(directory, keep):
    checkpoints = Checkpoints(directory, keep)
    checkpoints.save(30, make_state(30))
    assert checkpoints.steps() == [30, 20][:keep]


def test_a_step_saved_again_replaces_the_old(directory):
    checkpoints = Checkpoints(directory, keep=2)
    checkpoints.save(20, make_state(99))
    assert checkpoints.steps() == [20, 10]
    (_, state), _ = checkpoints.restore(make_state())
    assert_same_bits(state, make_state(99))


@pytest.mark.parametrize("keep", [1, 2])
def test_a_broken_later_step_never_costs_a_whole_one(directory, keep):
    # The run went on from 10 because 20 was broken: 15 is now the newest.
    largest_file(directory / "20").write_bytes(b"")
    checkpoints = Checkpoints(directory, keep)
    checkpoints.save(15, make_state(15))
    assert checkpoints.steps() == [15, 10][:keep]
    (step, state), problems = checkpoints.restore(make_state())
    assert (step, problems) == (15, [])
    assert_same_bits(state, make_state(15))


@pytest.mark.parametrize("suffix", ["", "-1700000000"])
def test_what_a_killed_save_left_is_cleaned_up(directory, suffix):
    left = directory / f"30.orbax-checkpoint-tmp{suffix}"
    left.mkdir()
    (left / "array").write_text("half")
    checkpoints = Checkpoints(directory, keep=2)
    assert checkpoints.steps() == [20, 10]
    (step, _), problems = checkpoints.restore(make_state())
    assert (step, problems) == (20, [])
    checkpoints.save(30, make_state(30))
    assert sorted(p.name for p in directory.iterdir()) == ["20", "30"]


# -- broken ones ---------------------------------------------------------------


def flip_a_byte(folder: Path) -> None:
    path = largest_file(folder)
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def truncate(folder: Path) -> None:
    path = largest_file(folder)
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def become_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


def lose_the_digest(folder: Path) -> None:
    shutil.rmtree(folder / "meta")


@pytest.mark.parametrize(
    "damage", [flip_a_byte, truncate, empty, become_a_file, lose_the_digest]
)
def test_a_broken_one_is_passed_over_for_the_one_before(directory, damage):
    damage(directory / "20")
    (step, state), problems = Checkpoints(directory, keep=2).restore(make_state())
    assert step == 10
    assert_same_bits(state, make_state(10))
    (problem,) = problems
    assert problem.startswith("checkpoint 20 is unusable: ")
    assert "\n" not in problem


def test_every_byte_counts(saved):
    """A flipped bit anywhere in a leaf changes the digest, and so do name and type."""
    leaves = {"a": np.arange(6, dtype=np.float32).reshape(2, 3)}
    seen = {digest(leaves), digest({"b": leaves["a"]})}
    seen.add(digest({"a": leaves["a"].view(np.int32)}))
    seen.add(digest({"a": leaves["a"].reshape(3, 2)}))
    for i in range(24):
        content = bytearray(leaves["a"].tobytes())
        content[i] ^= 1
        seen.add(digest({"a": np.frombuffer(content, np.float32).reshape(2, 3)}))
    assert len(seen) == 28
    assert digest({"a": leaves["a"], "b": leaves["a"]}) == digest(
        {"b": leaves["a"], "a": leaves["a"]}
    )


def test_where_all_are_broken_each_is_named(directory):
    flip_a_byte(directory / "20")
    empty(directory / "10")
    restored, problems = Checkpoints(directory, keep=2).restore(make_state())
    assert restored is None
    assert [p.split(" is ")[0] for p in problems] == ["checkpoint 20", "checkpoint 10"]


def other_shape(like):
    return {**like, "half": (jax.ShapeDtypeStruct((8,), jnp.bfloat16),)}


def other_dtype(like):
    return {**like, "fp16": jax.ShapeDtypeStruct((3, 2), jnp.float32)}


def other_sign(like):
    return {**like, "step": jax.ShapeDtypeStruct((), jnp.uint32)}


def leaf_more(like):
    return {**like, "ema": jax.ShapeDtypeStruct((1,), jnp.float32)}


def leaf_less(like):
    return {k: v for k, v in like.items() if k != "scalar"}


def leaf_renamed(like):
    return {**leaf_less(like), "scalar_": jax.ShapeDtypeStruct((), jnp.float32)}


@pytest.mark.parametrize(
    "change, message",
    [
        (other_shape, "['half'][0] holds bfloat16[7], expected bfloat16[8]"),
        (other_dtype, "['fp16'] holds float16[3, 2], expected float32[3, 2]"),
        (other_sign, "['step'] holds int32[], expected uint32[]"),
        (leaf_more, "['ema'] holds nothing, expected float32[1]"),
        (leaf_less, "['scalar'] holds float32[], expected nothing"),
        (leaf_renamed, "['scalar_'] holds nothing, expected float32[]"),
    ],
)
def test_a_state_of_another_form_is_refused(directory, change, message):
    like = change(shapes_of(make_state()))
    restored, problems = Checkpoints(directory, keep=2).restore(like)
    assert restored is None
    assert problems == [f"checkpoint {n} is unusable: {message}" for n in (20, 10)]


# -- threads -------------------------------------------------------------------


def test_two_runs_save_at_once(tmp_path):
    """Orbax by itself loses its temporary folders here."""
    errors = []

    def save(name: str, offset: int):
        checkpoints = Checkpoints(tmp_path / name / "checkpoints", keep=2)
        try:
            for step in range(1, 21):
                checkpoints.save(step, make_state(step + offset))
        except Exception as error:
            errors.append(error)

    threads = [
        threading.Thread(target=save, args=(name, offset))
        for name, offset in (("a", 0), ("b", 100))
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert errors == []
    for name, offset in (("a", 0), ("b", 100)):
        checkpoints = Checkpoints(tmp_path / name / "checkpoints", keep=2)
        assert checkpoints.steps() == [20, 19]
        (step, state), problems = checkpoints.restore(make_state())
        assert (step, problems) == (20, [])
        assert_same_bits(state, make_state(20 + offset))
