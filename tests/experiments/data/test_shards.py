import numpy as np
import pytest

from experiments.data.shards import dtype_for, shard_at, write_shard


def with_header(path, dtype, ids, **header):
    """A file made here, from the format's description: 256 int32, then ids."""
    ints = np.zeros(256, "<i4")
    magic, version = {"<u2": (20240520, 1), "<u4": (20240801, 7)}[dtype]
    ints[0] = header.get("magic", magic)
    ints[1] = header.get("version", version)
    ints[2] = header.get("n", len(ids))
    path.write_bytes(ints.tobytes() + np.array(ids, dtype).tobytes())
    return path


@pytest.fixture
def path(tmp_path):
    return tmp_path / "x.bin"


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_a_header_says_type_and_number(path, dtype):
    shard = shard_at(with_header(path, dtype, [1, 2, 3]), None)
    assert (shard.dtype, shard.offset, shard.n_tokens) == (np.dtype(dtype), 1024, 3)


@pytest.mark.parametrize("dtype", ["<u2", "<u4"])
def test_what_is_written_is_that_format(path, tmp_path, dtype):
    ids = [0, 65535, 7] if dtype == "<u2" else [0, 65535, 65536, 69999]
    content = write_shard(path, np.array(ids, dtype))
    twin = with_header(tmp_path / "twin.bin", dtype, ids)
    assert path.read_bytes() == content == twin.read_bytes()
    assert sorted(p.name for p in tmp_path.iterdir()) == ["twin.bin", "x.bin"]


def test_the_narrowest_type_that_holds_all_ids():
    assert dtype_for(65536) == np.uint16
    assert dtype_for(65537) == np.uint32


@pytest.mark.parametrize("dtype, n", [("uint16", 6), ("uint32", 3)])
def test_without_a_header_the_size_says_the_number(path, dtype, n):
    path.write_bytes(bytes(12))
    shard = shard_at(path, dtype)
    assert (shard.offset, shard.n_tokens) == (0, n)


@pytest.mark.parametrize(
    "content, dtype, message",
    [
        (b"", None, "expected a header .*, got 0 bytes"),
        (b"\1\0" * 600, None, "20240520 .uint16. or 20240801 .uint32., got 65537"),
        (b"", "uint16", "expected tokens, the file is empty"),
        (
            b"\0" * 7,
            "uint16",
            "a whole number of uint16 ids, 2 bytes each, got 7 bytes",
        ),
        (
            b"\0" * 6,
            "uint32",
            "a whole number of uint32 ids, 4 bytes each, got 6 bytes",
        ),
    ],
)
def test_other_files_are_refused_by_name(path, content, dtype, message):
    path.write_bytes(content)
    with pytest.raises(ValueError, match=f"^paths: .*x.bin: .*{message}"):
        shard_at(path, dtype)


@pytest.mark.parametrize(
    "header, message",
    [
        ({"version": 2}, "expected version 1 .* got 2"),
        ({"n": 4}, "says 4 tokens of uint16, 1032 bytes in all, got 1030 bytes"),
        ({"n": 2}, "says 2 tokens of uint16, 1028 bytes in all, got 1030 bytes"),
        ({"n": 0}, "expected tokens, the header says 0"),
        ({"n": -3}, "expected tokens, the header says -3"),
    ],
)
def test_a_header_that_is_not_true_is_refused(path, header, message):
    with pytest.raises(ValueError, match=message):
        shard_at(with_header(path, "<u2", [1, 2, 3], **header), None)


def test_a_type_for_a_file_with_a_header_is_refused(path):
    with_header(path, "<u2", [1])
    with pytest.raises(ValueError, match=r"^dtype: .*x\.bin has a header"):
        shard_at(path, "uint16")


def test_nothing_is_not_written(path):
    with pytest.raises(ValueError, match="expected 1 to"):
        write_shard(path, np.array([], "<u2"))
    assert not path.exists()
