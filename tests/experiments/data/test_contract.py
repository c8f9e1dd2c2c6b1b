"""What every source in conf/data promises; a new file is covered at once."""

from pathlib import Path

import hydra.utils
import jax
import jax.numpy as jnp
import numpy as np
import pytest
from omegaconf import OmegaConf

from experiments.data.dataset import IMAGES, MASKED_TEXTS, ROWS, TOKENS
from experiments.data.shards import write_shard

CONF = Path(__file__).parents[3] / "conf" / "data"
NAMES = sorted(path.stem for path in CONF.glob("*.yaml"))
SIZE = {"batch_size": 3, "seq_len": 8}
KINDS = {
    ROWS: {"x": "float32", "weights": "float32"},
    IMAGES: {"pixels": "float32", "labels": "int32"},
    MASKED_TEXTS: {"tokens": "int32", "labels": "int32", "segments": "int32"},
}


@pytest.fixture(params=NAMES)
def node(request):
    choice = OmegaConf.load(CONF / f"{request.param}.yaml")
    for entry in choice.pop("defaults", []):  # parts of it, as Hydra puts them there
        ((key, name),) = entry.items()
        choice[key.removeprefix("/data@")] = OmegaConf.load(CONF / f"{name}.yaml")
    # As part of a config: a source may follow the width of the model.
    config = OmegaConf.create({"model": {"d_model": 64}, "data": choice})
    return OmegaConf.create(OmegaConf.to_container(config, resolve=True)["data"])


@pytest.fixture
def source(node, tmp_path):
    if node.get("path", "") is None:
        node.path = str(tmp_path / "text.txt")
        Path(node.path).write_bytes(bytes(range(256)) * 8)
    if "paths" in node:
        node.paths = files_for(node._target_.rsplit(".", 1)[-1], tmp_path)
    return hydra.utils.instantiate(node)


def files_for(source: str, folder: Path) -> str:
    """Data of one's own for a source that needs some."""
    if source == "Tokens":
        ids = np.random.default_rng(0).integers(0, 50, 2000)
        write_shard(folder / "x.bin", ids.astype("<u2"))
        (folder / "manifest.json").write_text('{"vocab_size": 50}')
        return str(folder / "*.bin")
    file = folder / "x.txt"
    file.write_text("".join(f"line {i}\n" for i in range(400)))
    return str(file)


def test_the_known_sources_are_found():
    assert {"stdlib", "bytes", "markov", "gaussian"} <= set(NAMES)
    assert {"tokens", "corpus", "copy", "induction", "recall", "modular"} <= set(NAMES)
    assert {"digits", "masked"} <= set(NAMES)


def test_yaml_names_every_keyword_with_the_default_of_the_class(node):
    cls = hydra.utils.get_class(node.pop("_target_"))
    node = {k: v for k, v in node.items() if "_target_" not in str(v)}
    assert node == (cls.__init__.__kwdefaults__ or {})
    assert node == (cls.check.__kwdefaults__ or {})
    assert set(cls.traced) <= set(node)


def test_loading_twice_gives_the_same_data(source):
    first, second = source.load(), source.load()
    assert first.fingerprint == second.fingerprint
    assert first.references == second.references
    assert first.arrays.keys() == second.arrays.keys()
    for name, array in first.arrays.items():
        np.testing.assert_array_equal(array, second.arrays[name])


def leaves(source, arrays, key, split="train"):
    return jax.tree.leaves(source.batch(arrays, key, split=split, **SIZE))


def test_batch_is_a_pure_function_of_the_key_under_jit_and_vmap(source):
    arrays = source.load().arrays
    keys = jax.random.split(jax.random.key(0), 4)
    draw = lambda arrays, key: leaves(source, arrays, key)  # noqa: E731
    alone = [draw(arrays, key) for key in keys]
    jitted = [jax.jit(draw)(arrays, key) for key in keys]
    together = jax.jit(jax.vmap(draw, in_axes=(None, 0)))(arrays, keys)
    for i in range(4):
        for a, b, c in zip(alone[i], jitted[i], together, strict=True):
            np.testing.assert_array_equal(a, b)
            np.testing.assert_array_equal(a, c[i])
    assert not np.array_equal(alone[0][0], alone[1][0])


def test_equal_keys_give_other_batches_for_validation(source):
    arrays = source.load().arrays
    key = jax.random.key(0)
    train = leaves(source, arrays, key, "train")
    validation = leaves(source, arrays, key, "validation")
    assert not np.array_equal(train[0], validation[0])


def test_a_batch_is_what_the_data_say_they_hold(source):
    data = source.load()
    batch = source.batch(data.arrays, jax.random.key(0), split="train", **SIZE)
    if data.holds == TOKENS:
        assert batch.shape == (3, 9)
        assert batch.dtype == jnp.int32
        assert batch.min() >= 0
        assert batch.max() < data.vocab_size
        return
    assert {k: v.dtype.name for k, v in batch.items()} == KINDS[data.holds]
    assert (data.vocab_size is None) == (data.holds != MASKED_TEXTS)


def test_unknown_split_is_refused(source):
    arrays = source.load().arrays
    with pytest.raises(ValueError, match="test"):
        leaves(source, arrays, jax.random.key(0), "test")


def test_the_batch_is_the_same_whatever_the_precision(source):
    """Under 64-bit types JAX draws wider integers unless told otherwise."""
    arrays = source.load().arrays
    narrow = leaves(source, arrays, jax.random.key(3))
    with jax.enable_x64(True):
        wide = leaves(source, arrays, jax.random.key(3))
    for one, other in zip(narrow, wide, strict=True):
        np.testing.assert_array_equal(one, other)
