import hashlib

import pytest

from experiments.data.bytes_file import BytesFile

CONTENT = bytes(range(200))


@pytest.fixture
def path(tmp_path):
    file = tmp_path / "text.txt"
    file.write_bytes(CONTENT)
    return str(file)


def test_the_end_of_the_file_is_the_validation_text(path):
    data = BytesFile(path=path, validation_fraction=0.1).load()
    assert data.arrays["train"].tobytes() == CONTENT[:180]
    assert data.arrays["validation"].tobytes() == CONTENT[180:]
    assert (data.train_tokens, data.validation_tokens) == (180, 20)
    assert data.fingerprint == hashlib.sha256(CONTENT).hexdigest()


def test_a_relative_path_starts_in_the_working_folder(path, tmp_path, monkeypatch):
    monkeypatch.chdir(tmp_path)
    BytesFile.check(path="text.txt")
    assert BytesFile(path="text.txt").load().train_tokens == 190


def test_no_path_is_refused():
    with pytest.raises(ValueError, match=r"^path: .*null"):
        BytesFile.check()


def test_a_missing_file_is_refused_with_its_full_name(tmp_path):
    missing = str(tmp_path / "nowhere.txt")
    with pytest.raises(ValueError, match=r"^path: no such file: .*nowhere\.txt"):
        BytesFile.check(path=missing)


def test_a_folder_is_refused(tmp_path):
    with pytest.raises(ValueError, match=r"^path: .*folder"):
        BytesFile.check(path=str(tmp_path))


@pytest.mark.parametrize("n_bytes", [0, 1, 30])
def test_a_file_too_short_for_two_splits_is_refused(tmp_path, n_bytes):
    # 5 % of 30 bytes is one byte: it has no next one.
    file = tmp_path / "short.txt"
    file.write_bytes(b"x" * n_bytes)
    with pytest.raises(ValueError, match=rf"^path: .*too short.* {n_bytes} bytes"):
        BytesFile.check(path=str(file))


def test_a_file_that_vanished_after_the_check_is_refused(path, tmp_path):
    BytesFile.check(path=path)
    (tmp_path / "text.txt").unlink()
    with pytest.raises(ValueError, match="no such file"):
        BytesFile(path=path).load()


def test_fraction_out_of_range_is_refused(path):
    with pytest.raises(ValueError, match="validation_fraction"):
        BytesFile.check(path=path, validation_fraction=1.5)
