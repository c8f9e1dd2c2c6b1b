import hashlib

import jax
import jax.numpy as jnp
import numpy as np
import pytest

from experiments.data.digits import FILE, Digits, held_out_of, shifted

# Of each digit in the UCI test set; its optdigits.names says the same.
COUNTS = [178, 182, 177, 183, 181, 182, 181, 179, 174, 180]


@pytest.fixture(scope="module")
def data():
    return Digits().load()


def draw(data, seed, split="train", n=64, **keywords):
    source = Digits(**keywords)
    batch = source.batch(data.arrays, jax.random.key(seed), split=split, batch_size=n)
    return {name: np.asarray(x) for name, x in batch.items()}


def test_the_images_are_those_of_the_published_set():
    with np.load(FILE) as stored:
        images, labels = stored["images"], stored["labels"]
    assert images.shape == (1797, 8, 8)
    assert np.bincount(labels).tolist() == COUNTS
    assert (images.min(), images.max()) == (0, 16)
    # The first row of the first image, a 0, as in optdigits.tes.
    assert images[0, 0].tolist() == [0, 0, 5, 13, 9, 1, 0, 0]
    assert labels[:10].tolist() == list(range(10))


def test_a_fifth_of_each_digit_is_held_out_and_nothing_is_lost(data):
    arrays = data.arrays
    assert np.bincount(arrays["validation_labels"]).tolist() == [36] * 10
    assert np.bincount(arrays["train_labels"]).tolist() == [n - 36 for n in COUNTS]
    assert (data.train_tokens, data.validation_tokens) == (1437, 360)
    with np.load(FILE) as stored:
        pairs = zip(stored["images"], stored["labels"], strict=True)
        whole = sorted((x.tobytes(), int(y)) for x, y in pairs)
    parts = sorted(
        (x.tobytes(), int(y))
        for split in ("train", "validation")
        for x, y in zip(
            arrays[f"{split}_images"], arrays[f"{split}_labels"], strict=True
        )
    )
    assert parts == whole


def test_the_split_is_the_documented_one_for_ever(data):
    """Another split would be other data: numbers of docs/protocols.md are of this one."""
    with np.load(FILE) as stored:
        held_out = np.flatnonzero(held_out_of(stored["labels"]))
    digest = hashlib.sha256(held_out.astype("<i4").tobytes()).hexdigest()
    assert digest[:16] == "e0e69e8b879b6309"
    assert data.fingerprint[:16] == "64560593b275cef0"


def test_pixels_have_mean_0_and_deviation_1_over_the_training_images(data):
    train = data.arrays["train_images"].astype(float)
    pixels = (train - data.arrays["mean"]) / data.arrays["std"]
    assert abs(pixels.mean()) < 1e-6
    assert abs(pixels.std() - 1) < 1e-6


def test_validation_is_every_held_out_image_once_whatever_is_asked_for(data):
    one, other = (draw(data, seed, "validation", n=5) for seed in (0, 1))
    np.testing.assert_array_equal(one["pixels"], other["pixels"])
    np.testing.assert_array_equal(one["labels"], data.arrays["validation_labels"])
    back = one["pixels"][:, 0] * data.arrays["std"] + data.arrays["mean"]
    np.testing.assert_allclose(back, data.arrays["validation_images"], atol=1e-5)


def test_without_shift_a_batch_is_training_images_with_their_labels(data):
    batch = draw(data, 0, n=300, max_shift=0)
    assert batch["pixels"].shape == (300, 1, 8, 8)
    known = {
        image.tobytes(): label
        for image, label in zip(
            data.arrays["train_images"], data.arrays["train_labels"], strict=True
        )
    }
    grey = batch["pixels"][:, 0] * data.arrays["std"] + data.arrays["mean"]
    images = np.rint(grey).astype(np.uint8)
    assert [known[x.tobytes()] for x in images] == batch["labels"].tolist()
    assert len({x.tobytes() for x in images}) > 200  # of 1,437 drawn with replacement


def test_every_shift_comes_equally_often_and_empty_paper_comes_in():
    image = np.zeros((8, 8), np.uint8)
    image[3, 4] = 9
    n = 9000
    moved = shifted(jnp.asarray(np.tile(image, (n, 1, 1))), jax.random.key(0), 1)
    moved = np.asarray(moved)
    assert (moved.sum(axis=(1, 2)) == 9).all()
    places = np.argwhere(moved == 9)[:, 1:] - [3, 4]
    found, counts = np.unique(places, axis=0, return_counts=True)
    assert found.tolist() == [[i, j] for i in (-1, 0, 1) for j in (-1, 0, 1)]
    assert (abs(counts - n / 9) < 5 * np.sqrt(n / 9)).all()


def test_what_is_moved_out_is_gone():
    image = np.zeros((1, 8, 8), np.uint8)
    image[0, 0, 0] = 9
    keys = jax.random.split(jax.random.key(0), 50)
    sums = {int(shifted(jnp.asarray(image), key, 3).sum()) for key in keys}
    assert sums == {0, 9}


@pytest.mark.parametrize("max_shift", [-1, 4])
def test_a_shift_that_may_lose_the_digit_is_refused(max_shift):
    with pytest.raises(ValueError, match=f"^max_shift: .* 0 to 3, got {max_shift}"):
        Digits.check(max_shift=max_shift)
