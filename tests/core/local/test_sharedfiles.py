"""Locks and files in folders that others may write to."""

from __future__ import annotations

import errno
import fcntl
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.local import sharedfiles as files


@pytest.fixture
def folder(tmp_path: Path) -> Iterator[int]:
    fd = os.open(tmp_path, files.FOLDER)
    yield fd
    os.close(fd)


def test_a_lock_excludes_others_until_its_descriptor_is_closed(folder: int) -> None:
    fd = files.take_lock(folder, "lock")
    assert fd is not None
    assert files.take_lock(folder, "lock") is None
    assert files.is_held(folder, "lock")
    os.close(fd)
    assert not files.is_held(folder, "lock")
    again = files.take_lock(folder, "lock")
    assert again is not None
    os.close(again)


def test_a_look_at_a_lock_does_not_disturb_another_look(folder: int, tmp_path: Path) -> None:
    (tmp_path / "lock").touch()
    with (tmp_path / "lock").open() as looking:
        fcntl.flock(looking, fcntl.LOCK_SH)
        assert not files.is_held(folder, "lock")


@pytest.mark.parametrize("made_anew", [False, True])
def test_the_lock_is_on_the_file_that_has_the_name(
    made_anew: bool, folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Somebody tidies the folder between our open and our lock: what we locked is nobody's lock any more."""
    real = fcntl.flock

    def tidied(fd: int, how: int) -> None:
        monkeypatch.undo()
        (tmp_path / "lock").unlink()
        if made_anew:
            (tmp_path / "lock").touch()
        real(fd, how)

    (tmp_path / "lock").touch()
    monkeypatch.setattr(fcntl, "flock", tidied)
    fd = files.take_lock(folder, "lock")
    assert fd is not None
    assert os.fstat(fd).st_ino == (tmp_path / "lock").stat().st_ino
    assert files.is_held(folder, "lock")
    os.close(fd)


def test_what_is_no_file_of_ours_is_not_held(folder: int, tmp_path: Path) -> None:
    (tmp_path / "target").touch()
    (tmp_path / "link").symlink_to(tmp_path / "target")
    assert not files.is_held(folder, "gone")
    assert not files.is_held(folder, "link")
    with pytest.raises(OSError, match="symbolic links") as caught:
        files.take_lock(folder, "link")
    assert caught.value.errno == errno.ELOOP


def test_what_we_may_not_open_may_be_held(folder: int, monkeypatch: pytest.MonkeyPatch) -> None:
    def refused(*_: Any, **__: Any) -> int:
        raise PermissionError(errno.EACCES, "Permission denied")

    monkeypatch.setattr(os, "open", refused)
    assert files.is_held(folder, "lock")


def test_a_file_is_replaced_whole_or_not_at_all(
    folder: int, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    files.write_whole(folder, "entry", b"one")

    def full(*_: Any) -> int:
        raise OSError(errno.ENOSPC, "No space left on device")

    monkeypatch.setattr(os, "write", full)
    with pytest.raises(OSError, match="No space"):
        files.write_whole(folder, "entry", b"two")
    assert (tmp_path / "entry").read_bytes() == b"one"
    assert [path.name for path in tmp_path.iterdir()] == ["entry"], "nothing half written is left"


def test_only_plain_small_files_are_read(folder: int, tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"hello")
    assert files.read_small(folder, "plain") == (b"hello", os.geteuid())
    with pytest.raises(OSError, match="not a plain small file"):
        files.read_small(folder, "plain", limit=4)
    (tmp_path / "linked").hardlink_to(tmp_path / "plain")
    with pytest.raises(OSError, match="not a plain small file"):
        files.read_small(folder, "linked")
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(OSError, match="not a plain small file"):
        files.read_small(folder, "pipe")


def test_only_a_pipe_that_somebody_reads_is_written_to(folder: int, tmp_path: Path) -> None:
    (tmp_path / "plain").write_bytes(b"")
    os.mkfifo(tmp_path / "unread")
    for name in ("plain", "unread", "gone"):
        files.poke(folder, name)
    assert (tmp_path / "plain").read_bytes() == b""
    pipe = files.new_pipe(folder, "wake", str(tmp_path / "wake"))
    for _ in range(100_000):
        files.poke(folder, "wake")  # a full pipe is no reason to wait
    assert os.read(pipe, 1) == b"!"
    files.drain(pipe)
    with pytest.raises(BlockingIOError):
        os.read(pipe, 1)
    os.close(pipe)
