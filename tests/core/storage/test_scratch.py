"""Scratch folders: private, gone at the end, and gone with the next one when their process was killed."""

from __future__ import annotations

import os
import subprocess
import sys
import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from allaboard.errors import SiteError
from allaboard.storage.scratch import own_folder, scratch, sweep_scratch

HOLD = """
import sys
from allaboard.storage.scratch import scratch
with scratch() as folder:
    (folder / "state").write_bytes(b"x" * 1000)
    print(folder, flush=True)
    sys.stdin.readline()
"""


@pytest.fixture(autouse=True)
def tmp(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """The temporary folder, also of child processes."""
    folder = tmp_path / "tmp"
    folder.mkdir()
    monkeypatch.setenv("TMPDIR", str(folder))
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


@contextmanager
def another_process() -> Iterator[tuple[subprocess.Popen[str], Path]]:
    """One that lives, and its scratch folder."""
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    with subprocess.Popen(
        [sys.executable, "-c", HOLD], env=environ, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as process:
        assert process.stdout is not None
        try:
            yield process, Path(process.stdout.readline().strip())
        finally:
            process.kill()


def left(tmp: Path) -> list[str]:
    return sorted(path.name for path in tmp.glob("allaboard-*/scratch/*"))


def test_a_scratch_folder_is_private_and_goes_with_its_block(tmp: Path) -> None:
    with scratch() as folder:
        assert folder.is_relative_to(tmp)
        assert folder.stat().st_mode & 0o777 == 0o700
        (folder / "deep").mkdir()
    assert left(tmp) == []


def test_it_goes_when_the_block_raises(tmp: Path) -> None:
    with pytest.raises(RuntimeError), scratch():
        raise RuntimeError
    assert left(tmp) == []


def test_what_a_killed_process_left_goes_with_the_next_and_nothing_of_a_live_one(tmp: Path) -> None:
    with another_process() as (dead, its), another_process() as (_, used):
        dead.kill()
        dead.wait()
        assert its.exists()
        os.utime(used, (0, 0))
        os.utime(f"{used}.lock", (0, 0))  # age says nothing where locks do
        with scratch() as ours:
            assert not its.exists()
            assert (used / "state").exists()
            assert left(tmp) == sorted([ours.name, f"{ours.name}.lock", used.name, f"{used.name}.lock"])


def test_two_of_one_process_leave_each_other_alone(tmp: Path) -> None:
    with scratch() as one, scratch() as other:
        assert one.exists() and other.exists()


def test_a_fork_that_leaves_the_block_leaves_its_parents_folder(tmp: Path) -> None:
    holding = scratch()
    folder = holding.__enter__()
    child = os.fork()
    if child == 0:
        holding.__exit__(None, None, None)
        os._exit(0)
    os.waitpid(child, 0)
    assert folder.exists()
    holding.__exit__(None, None, None)
    assert left(tmp) == []


def test_a_sweep_follows_no_link_and_leaves_what_is_not_its_own(tmp: Path, tmp_path: Path) -> None:
    precious = tmp_path / "thesis"
    precious.mkdir()
    (precious / "chapter").write_text("years")
    base = own_folder() / "scratch"
    base.mkdir()
    name = "0123456789abcdef"
    (base / name).symlink_to(precious)
    (base / f"{name}.lock").write_bytes(b"")
    other = "fedcba9876543210"
    (base / other).mkdir()
    (base / f"{other}.lock").symlink_to(precious / "chapter")
    os.mkfifo(base / "00000000000000ff.lock")
    (base / "notes").write_text("of a person")
    sweep_scratch(base, now=1e12)
    assert (precious / "chapter").read_text() == "years"
    assert (base / other).exists()
    assert (base / "notes").exists()


def test_a_folder_that_somebody_else_has_taken_is_not_used(tmp: Path, tmp_path: Path) -> None:
    own = own_folder()
    assert own.stat().st_mode & 0o777 == 0o700
    own.rmdir()
    (tmp_path / "theirs").mkdir()
    own.symlink_to(tmp_path / "theirs")
    with pytest.raises(SiteError, match="belongs to another user"):
        own_folder()
    with scratch() as folder:  # no other user can keep a training from its checkpoint
        assert folder.parent == tmp
    assert list((tmp_path / "theirs").iterdir()) == []
