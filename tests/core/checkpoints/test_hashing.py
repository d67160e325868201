"""The digest of a part comes from the pass that writes it, and is that of the bytes on the disk."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

import pytest

from allaboard.checkpoints.hashing import file_digest, hashed_file


def test_pieces_of_any_size_add_up_to_the_digest_of_the_file(tmp_path: Path) -> None:
    pieces = [b"", b"head", os.urandom(1 << 17), bytearray(os.urandom(3 << 20)), memoryview(b"tail")]
    with hashed_file(tmp_path / "part") as file:
        for piece in pieces:
            assert file.write(piece) == len(piece)
    whole = (tmp_path / "part").read_bytes()
    assert whole == b"".join(pieces)
    assert (file.size, file.sha256) == (len(whole), hashlib.sha256(whole).hexdigest())
    with (tmp_path / "part").open("rb", buffering=0) as reading:
        assert file_digest(reading) == (file.size, file.sha256)


def test_a_piece_may_change_once_it_is_written(tmp_path: Path) -> None:
    piece = bytearray(os.urandom(8 << 20))
    before = hashlib.sha256(piece).hexdigest()
    with hashed_file(tmp_path / "part") as file:
        file.write(piece)
        piece[:] = bytes(len(piece))
    assert file.sha256 == before
    assert hashlib.sha256((tmp_path / "part").read_bytes()).hexdigest() == before


def test_items_that_are_no_bytes_count_as_the_bytes_they_are(tmp_path: Path) -> None:
    numbers = memoryview(bytes(80)).cast("d")
    with hashed_file(tmp_path / "part") as file:
        assert file.write(numbers) == 80
    assert file.size == 80


def test_a_name_that_is_taken_is_left_as_it_is(tmp_path: Path) -> None:
    (tmp_path / "part").write_bytes(b"mine")
    with pytest.raises(FileExistsError), hashed_file(tmp_path / "part"):
        pass
    assert (tmp_path / "part").read_bytes() == b"mine"
