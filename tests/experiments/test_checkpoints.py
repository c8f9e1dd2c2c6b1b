"""Checkpoints come back to the bit, or not at all."""

import errno
import json
import shutil
import threading
from pathlib import Path

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments import checkpoints as module
from experiments.checkpoints import Checkpoints, digest
from experiments.errors import UserError


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
    flip(largest_file(folder))


def flip(path: Path) -> None:
    content = bytearray(path.read_bytes())
    content[len(content) // 2] ^= 1
    path.write_bytes(content)


def halve(path: Path) -> None:
    path.write_bytes(path.read_bytes()[: path.stat().st_size // 2])


def truncate(folder: Path) -> None:
    halve(largest_file(folder))


def empty(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.mkdir()


def become_a_file(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.write_text("not a folder")


def become_a_dead_link(folder: Path) -> None:
    shutil.rmtree(folder)
    folder.symlink_to("nowhere")


def become_foreign(folder: Path) -> None:
    empty(folder)
    (folder / "notes.txt").write_text("of someone else")


def lose_the_meta(folder: Path) -> None:
    shutil.rmtree(folder / "meta")


def lose_the_arrays(folder: Path) -> None:
    shutil.rmtree(folder / "state")


def cut_the_meta(folder: Path) -> None:
    halve(folder / "meta/metadata")


def meta_says(**changes):
    def change(folder: Path) -> None:
        path = folder / "meta/metadata"
        meta = {**json.loads(path.read_text()), **changes}
        path.write_text(json.dumps({k: v for k, v in meta.items() if v is not None}))

    return change


def meta_is(text: str):
    return lambda folder: (folder / "meta/metadata").write_text(text)


NO_META = "is damaged (its meta cannot be read)"

DAMAGES = [
    (truncate, "is damaged (its arrays cannot be read: "),
    (empty, "is damaged (an empty folder)"),
    (become_a_file, "is damaged (not a folder)"),
    (become_a_dead_link, "is damaged (not a folder)"),
    (become_foreign, "is damaged (a folder of something else)"),
    (lose_the_meta, "is damaged (no meta)"),
    (lose_the_arrays, "is damaged (its arrays cannot be read: "),
    (cut_the_meta, NO_META),
    (meta_is("null"), NO_META),
    (meta_is("\xff"), NO_META),
    (meta_says(schema="3"), NO_META),
    (meta_says(schema=True), NO_META),
    (meta_says(digest=None), NO_META),
    (meta_says(forms=None), NO_META),
    (meta_says(forms={"a": 1}), NO_META),
    (meta_says(digest="0" * 64), "is damaged (digest differs)"),
    (
        meta_says(schema=5, forms=None),
        "was written by a newer blocklab (schema 5, this one reads up to 3)",
    ),
    (
        meta_says(schema=2, forms=None),
        "was written by an older blocklab (schema 2, this one reads 3)",
    ),
]


@pytest.mark.parametrize("damage, message", DAMAGES)
def test_a_broken_one_is_passed_over_for_the_one_before(directory, damage, message):
    damage(directory / "20")
    checkpoints = Checkpoints(directory, keep=2)
    (step, state), problems = checkpoints.restore(make_state())
    assert step == 10
    assert_same_bits(state, make_state(10))
    (problem,) = problems
    assert problem.startswith(f"checkpoint 20 {message}")
    assert "\n" not in problem
    assert len(problem) < 200

    checkpoints.save(20, make_state(20))  # whatever stands there makes way
    (step, state), problems = checkpoints.restore(make_state())
    assert (step, problems) == (20, [])
    assert_same_bits(state, make_state(20))


def test_a_flipped_bit_that_orbax_does_not_see_is_seen(tmp_path):
    """Numbers without a pattern are stored as they are, with no sum to check them."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=2)
    state = {
        "x": jnp.asarray(np.random.default_rng(0).normal(size=40_000), jnp.float32)
    }
    checkpoints.save(10, state)
    checkpoints.save(20, state)
    flip_a_byte(tmp_path / "checkpoints/20")
    (step, _), problems = checkpoints.restore(state)
    assert step == 10
    assert problems == ["checkpoint 20 is damaged (digest differs)"]


@pytest.mark.parametrize("harm", [flip, halve, Path.unlink])
def test_whichever_file_is_harmed_no_wrong_number_comes_back(saved, tmp_path, harm):
    """A file that holds nothing of the state may be harmed."""
    names = [p.relative_to(saved) for p in (saved / "20").rglob("*") if p.is_file()]
    assert len(names) > 8
    steps = []
    for i, name in enumerate(names):
        directory = Path(shutil.copytree(saved, tmp_path / str(i)))
        harm(directory / name)
        (step, state), problems = Checkpoints(directory, keep=2).restore(make_state())
        assert_same_bits(state, make_state(step))
        assert len(problems) == (step == 10)
        steps.append(step)
    assert steps.count(10) >= 3  # meta, a manifest and an array at least


@pytest.mark.parametrize("name", ["020", "²", "20.bak", "-20", "latest"])
def test_a_folder_with_another_name_is_no_step(directory, name):
    shutil.copytree(directory / "10", directory / name)
    checkpoints = Checkpoints(directory, keep=2)
    assert checkpoints.steps() == [20, 10]
    checkpoints.save(30, make_state(30))
    assert (directory / name).is_dir()


def test_a_file_where_the_folder_should_be_is_named(tmp_path):
    path = tmp_path / "checkpoints"
    path.write_text("in the way")
    checkpoints = Checkpoints(path, keep=2)
    for use in (
        lambda: checkpoints.restore(make_state()),
        lambda: checkpoints.save(1, make_state()),
    ):
        with pytest.raises(UserError) as error:
            use()
        assert str(error.value) == f"{path}: expected a folder, found a file"
    assert path.read_text() == "in the way"


@pytest.mark.parametrize(
    "shortage",
    [
        MemoryError("no room for an array"),
        OSError(errno.EMFILE, "Too many open files"),
        ValueError("RESOURCE_EXHAUSTED: Out of memory allocating 8 bytes.\nmore"),
        ValueError("PERMISSION_DENIED: Error opening file"),
    ],
)
def test_what_the_machine_lacks_is_not_held_against_a_checkpoint(
    directory, monkeypatch, shortage
):
    def fail(path, expected):
        raise shortage

    monkeypatch.setattr(module, "_arrays", fail)
    with pytest.raises(UserError, match=r"/20: cannot be read now \(") as error:
        Checkpoints(directory, keep=2).restore(make_state())
    assert "\n" not in str(error.value)


def test_a_meta_that_may_not_be_read_is_not_held_against_it(directory, monkeypatch):
    def refuse(path):
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(Path, "read_bytes", refuse)
    with pytest.raises(UserError, match="cannot be read now .*Permission denied"):
        Checkpoints(directory, keep=2).restore(make_state())


def test_a_step_that_is_whole_is_not_written_again(tmp_path):
    """The only checkpoint there is must not go before another has come."""
    checkpoints = Checkpoints(tmp_path / "checkpoints", keep=1)
    first = checkpoints.save(10, make_state(10))
    stamp = (tmp_path / "checkpoints/10").stat().st_mtime_ns
    assert checkpoints.save(10, make_state(10)) == first
    assert (tmp_path / "checkpoints/10").stat().st_mtime_ns == stamp
    flip(tmp_path / "checkpoints/10/meta/metadata")
    assert checkpoints.save(10, make_state(10)) == first
    assert checkpoints.restore(make_state())[1] == []


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
    assert len({p.split(" is ")[1] for p in problems}) == 2


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


def everything_at_once(like):
    return other_shape(other_dtype(leaf_renamed(like)))


@pytest.mark.parametrize(
    "change, message",
    [
        (other_shape, "other shape: ['half'][0] bfloat16[7], expected bfloat16[8]"),
        (other_dtype, "other dtype: ['fp16'] float16[3, 2], expected float32[3, 2]"),
        (other_sign, "other dtype: ['step'] int32[], expected uint32[]"),
        (leaf_more, "missing ['ema'] float32[1]"),
        (leaf_less, "extra ['scalar'] float32[]"),
        (
            everything_at_once,
            "missing ['scalar_'] float32[]; extra ['scalar'] float32[]; "
            "other dtype: ['fp16'] float16[3, 2], expected float32[3, 2]; "
            "other shape: ['half'][0] bfloat16[7], expected bfloat16[8]",
        ),
    ],
)
def test_a_state_of_another_form_is_refused_before_an_array_is_read(
    directory, monkeypatch, change, message
):
    monkeypatch.delattr(module, "_arrays")
    like = change(shapes_of(make_state()))
    restored, problems = Checkpoints(directory, keep=2).restore(like)
    assert restored is None
    assert problems == [
        f"checkpoint {n} does not fit this run ({message})" for n in (20, 10)
    ]


@pytest.mark.parametrize(
    "n, end", [(10, "f9[1]"), (11, "; and 1 more"), (30, "20 more")]
)
def test_of_many_differences_ten_are_spelled_out(n, end):
    differences = module._differences({}, {f"f{i}": f"f{i}[1]" for i in range(n)})
    text = module._spelled_out(differences)
    assert text.count("missing") == 10
    assert text.endswith(end)


def test_dtype_and_shape_may_differ_together():
    (difference,) = module._differences({"a": "float32[2]"}, {"a": "bfloat16[3, 4]"})
    assert difference == "other dtype and shape: a float32[2], expected bfloat16[3, 4]"


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
