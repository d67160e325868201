"""Folders that belong to one user each, and pipes that tell whether he lives."""

from __future__ import annotations

import errno
import os
import select
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.local.host import shared_files as files

root = pytest.mark.skipif(os.geteuid() != 0, reason="needs root to act as two users")
ME = os.geteuid()
NOBODY = 65534


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, files.FOLDER)
    yield fd
    os.close(fd)


def test_a_lock_excludes_others_until_its_descriptor_is_closed(folder: int, tmp_path: Path) -> None:
    fd = files.take_lock(folder, "lock")
    assert fd is not None
    assert (tmp_path / "lock").stat().st_mode & 0o077 == 0, "no other user can take it"
    assert files.take_lock(folder, "lock") is None
    os.close(fd)
    again = files.take_lock(folder, "lock")
    assert again is not None
    os.close(again)


def test_a_pipe_is_read_until_the_last_who_has_it_closes_it(folder: int, tmp_path: Path) -> None:
    fd = files.new_pipe(folder, "owner", str(tmp_path / "owner"))
    other = os.dup(fd)
    assert files.has_reader(folder, "owner")
    os.close(fd)
    assert files.has_reader(folder, "owner")
    assert not select.select([other], [], [], 0)[0], "a look does not wake"
    files.wake_reader(folder, "owner")
    assert select.select([other], [], [], 0)[0]
    files.drain(other)
    assert not select.select([other], [], [], 0)[0]
    os.close(other)
    assert not files.has_reader(folder, "owner")


def test_what_is_no_pipe_is_not_read(folder: int, tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    (tmp_path / "link").symlink_to("/dev/null")
    assert not any(files.has_reader(folder, name) for name in ("file", "link", "nothing"))
    files.wake_reader(folder, "file")
    assert (tmp_path / "file").read_bytes() == b""


def test_our_folder_is_made_once_and_found_again(tmp_path: Path) -> None:
    path = str(tmp_path / "pool")
    at, fd = files.own_folder(path)
    again, other = files.own_folder(path)
    assert at == again == f"{path}.{ME}"
    assert os.path.samestat(os.fstat(fd), os.fstat(other))
    assert files.is_same_folder(at, fd)
    (tmp_path / f"pool.{ME}").rmdir()
    assert not files.is_same_folder(at, fd)
    os.close(fd)
    os.close(other)


@root
def test_whose_a_folder_is_tells_its_owner_and_not_its_name(tmp_path: Path) -> None:
    path = str(tmp_path / "pool")
    squatted, theirs = tmp_path / f"pool.{ME}", tmp_path / f"pool.{NOBODY}"
    for one in (squatted, theirs):
        one.mkdir()
        os.chown(one, NOBODY, NOBODY)
    (tmp_path / f"pool.{ME}.not-one").mkdir()
    (tmp_path / f"pool.{ME}.00000000").symlink_to("/tmp")
    (tmp_path / f"pool.{ME + 1}").touch()
    at, fd = files.own_folder(path)
    os.close(fd)
    assert at.startswith(f"{path}.{ME}.")
    assert dict(files.user_folders(path)) == {ME: at, NOBODY: str(theirs)}
    again, fd = files.own_folder(path)
    os.close(fd)
    assert again == at


def test_what_cannot_be_written_leaves_nothing_half(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.replace_file(folder, "entry", b"old")

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC))

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        files.replace_file(folder, "entry", b"new")
    assert (tmp_path / "entry").read_bytes() == b"old"
    assert os.listdir(folder) == ["entry"]


def test_only_plain_small_files_are_read(folder: int, tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"words")
    assert files.read_small_file(folder, "plain") == b"words"
    (tmp_path / "large").write_bytes(b"x" * 9)
    (tmp_path / "link").symlink_to(tmp_path / "plain")
    os.mkfifo(tmp_path / "pipe")
    os.link(tmp_path / "large", tmp_path / "twin")
    for name in ("large", "link", "pipe", "twin", "nothing"):
        with pytest.raises(OSError):
            files.read_small_file(folder, name, limit=8 if name == "large" else 64)
