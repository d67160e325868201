"""Locks that tell whose process lives: they wait for nobody, and open nothing but plain files."""

from __future__ import annotations

import errno
import fcntl
import os
from pathlib import Path

import pytest

from allaboard.storage.locks import Lock, ask_lock, lock_of, locked_name, take_lock


def answer(path: Path) -> Lock:
    with ask_lock(path) as (found, _):
        return found


def test_a_name_is_held_until_its_descriptor_is_closed(tmp_path: Path) -> None:
    name, fd = locked_name(tmp_path)
    assert answer(lock_of(name)) is Lock.HELD and lock_of(name).stat().st_mode & 0o777 == 0o600
    os.close(fd)
    assert answer(lock_of(name)) is Lock.FREE


def test_what_is_free_is_ours_within_the_block(tmp_path: Path) -> None:
    (tmp_path / "a.lock").touch()
    with ask_lock(tmp_path / "a.lock") as (first, _):
        assert (first, answer(tmp_path / "a.lock")) == (Lock.FREE, Lock.HELD)
    assert answer(tmp_path / "a.lock") is Lock.FREE


@pytest.mark.timeout(30)
def test_nothing_but_a_plain_file_is_opened(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe.lock")
    (tmp_path / "folder.lock").mkdir()
    (tmp_path / "plain").touch()
    (tmp_path / "link.lock").symlink_to("plain")
    (tmp_path / "nowhere.lock").symlink_to("nothing")
    for name in ("pipe", "folder", "link", "nowhere"):
        assert answer(tmp_path / f"{name}.lock") is Lock.UNKNOWN, name
    with pytest.raises(FileNotFoundError), ask_lock(tmp_path / "none.lock"):
        pass


def test_a_file_system_without_locks_cannot_tell(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def without_locks(*_: object) -> None:
        raise OSError(errno.ENOLCK, "No locks available")

    monkeypatch.setattr(fcntl, "flock", without_locks)
    name, fd = locked_name(tmp_path)
    assert take_lock(fd) is Lock.UNKNOWN and answer(lock_of(name)) is Lock.UNKNOWN
    os.close(fd)


def test_a_name_whose_lock_a_sweep_takes_or_removes_is_given_up(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Path] = []
    thieves: list[int] = []
    real = os.open

    def beaten(path: Path, *how: int) -> int:
        fd = real(path, *how)
        opened.append(path)
        if len(opened) == 1:
            thieves.append(real(path, os.O_RDONLY))
            fcntl.flock(thieves[0], fcntl.LOCK_EX)
        elif len(opened) == 2:
            path.unlink()
        return fd

    monkeypatch.setattr(os, "open", beaten)
    name, fd = locked_name(tmp_path)
    assert (
        len(opened) == 3
        and opened[2] == lock_of(name)
        and name not in {p.with_suffix("") for p in opened[:2]}
    )
    for one in (fd, *thieves):
        os.close(one)
