"""The home of runs: private whatever the umask, untouched by looking, and a sentence where a disk refuses."""

from __future__ import annotations

import fcntl
import os
import stat
import subprocess
import sys
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import pytest

from allaboard import State
from allaboard.backends.base import LogLine, Selection
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.state.paths import RunFolder, make_private, prepare, write_text
from allaboard.errors import SiteError, UnknownRun
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import a_plan, ended, supervisor_and_keeper, wait_for
from tests.core.backends.local.test_backend import ME, SLEEP, running

NOBODY = 65534
as_root = pytest.mark.skipif(os.geteuid() != 0, reason="acts as somebody else")


@contextmanager
def umask(mask: int) -> Iterator[None]:
    old = os.umask(mask)
    try:
        yield
    finally:
        os.umask(old)


def modes(top: Path) -> dict[str, int]:
    return {str(p.relative_to(top)): stat.S_IMODE(p.lstat().st_mode) for p in (top, *top.rglob("*"))}


def as_nobody(code: str, *words: str) -> str:
    """What a program of another user prints."""

    def become() -> None:
        os.setgid(NOBODY)
        os.setuid(NOBODY)

    done = subprocess.run(
        ["/bin/sh", "-c", code, "sh", *words], preexec_fn=become, capture_output=True, text=True, cwd="/"
    )
    return done.stdout + done.stderr


@pytest.mark.parametrize("mask", [0o000, 0o022, 0o277])
def test_all_of_a_run_is_for_its_user_alone(backend: LocalBackend, folder: Path, mask: int) -> None:
    script = "import os, sys\nos.umask(m := os.umask(0))\nprint(m, flush=True)\nopen('made', 'w').close()"
    with umask(mask):
        if mask == 0o277:
            prepare(backend.home)
        else:
            plan = a_plan(folder, script, storage=[{"mount": "/scratch", "empty_dir": "disk"}])
            handle = backend.launch(plan, ME)
            ended(backend, handle.run)
            lines = backend.logs(handle.run, Selection())
            said = [line.text for line in lines if isinstance(line, LogLine)]
            assert said == [str(mask)] * 2, "the members' own umask stays"
    found = modes(Path(backend.home))
    assert {m for m in found.values()} <= {0o700, 0o600}, found


def test_a_home_that_an_older_version_left_open_is_closed(backend: LocalBackend, folder: Path) -> None:
    handle = backend.launch(a_plan(folder, "print('done')"), ME)
    ended(backend, handle.run)
    home, run = Path(backend.home), backend.runs / handle.run
    for path in (home, backend.runs.parent, run):
        path.chmod(0o755)
    assert len(LocalBackend(backend.environ).list()) == 1
    assert {stat.S_IMODE(p.stat().st_mode) for p in (home, backend.runs.parent, run)} == {0o700}


def test_a_folder_that_others_share_is_not_closed(backend: LocalBackend, folder: Path) -> None:
    home = Path(backend.home)
    (home / "papers").mkdir(parents=True)
    home.chmod(0o755)
    ended(backend, backend.launch(a_plan(folder, "print('done')"), ME).run)
    assert stat.S_IMODE(home.stat().st_mode) == 0o755
    assert stat.S_IMODE(backend.runs.parent.stat().st_mode) == 0o700


@as_root
def test_another_user_reads_nothing_of_a_run_and_cannot_make_it_look_alive(
    backend: LocalBackend, folder: Path, tmp_path: Path
) -> None:
    for path in (tmp_path, *tmp_path.parents):
        if path != Path("/") and path != Path("/tmp"):
            path.chmod(0o755)
    handle = backend.launch(a_plan(folder, SLEEP, environment={"KEY": "hush"}), ME)
    running(backend, handle.run)
    attempt = RunFolder(backend.runs / handle.run).attempt(1, 1)
    for pid in supervisor_and_keeper(backend, handle.run):
        os.kill(pid, 9)
    wait_for(lambda: not attempt.is_live())
    said = as_nobody(
        'cat "$1"/* "$1"/logs/*; flock -n "$2" -c "echo held"', str(attempt.path), str(attempt.live)
    )
    assert "hush" not in said and "held" not in said and "ermission denied" in said
    assert state_of(backend.observe(handle.run)) is State.LOST


@as_root
def test_runs_of_another_user_are_not_ours_to_look_at(backend: LocalBackend) -> None:
    prepare(backend.home)
    os.chown(backend.runs.parent, NOBODY, NOBODY)
    with pytest.raises(SiteError, match=r"belongs to (nobody|65534), .*ALLABOARD_HOME"):
        LocalBackend(backend.environ)


# Looking.


def test_looking_makes_nothing(backend: LocalBackend) -> None:
    assert backend.list() == []
    for look in (backend.observe, backend.events, lambda run: backend.logs(run, Selection())):
        with pytest.raises(UnknownRun):
            look("digits")
    assert not Path(backend.home).exists()


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "x" * 5000, "a\0b", os.fsdecode(b"\xff"), "\ud800"])
def test_a_name_that_no_run_can_have_is_not_known(backend: LocalBackend, name: str) -> None:
    with pytest.raises(UnknownRun):
        backend.observe(name)


def everything(top: Path) -> dict[str, tuple[int, int]]:
    return {str(p): (p.lstat().st_mtime_ns, p.lstat().st_ino) for p in (top, *top.rglob("*"))}


def test_looking_at_a_run_that_was_lost_writes_nothing(backend: LocalBackend, folder: Path) -> None:
    handle = backend.launch(a_plan(folder, SLEEP), ME)
    running(backend, handle.run)
    for pid in supervisor_and_keeper(backend, handle.run):
        os.kill(pid, 9)
    wait_for(lambda: state_of(backend.observe(handle.run)) is State.LOST)
    before = everything(Path(backend.home))
    seen = backend.observe(handle.run, evidence=True)
    assert seen.finished is not None and seen.finished >= (seen.started or 0)
    assert [state_of(s) for s in backend.list()] == [State.LOST]
    assert list(backend.logs(handle.run, Selection())) and backend.events(handle.run)
    assert everything(Path(backend.home)) == before


# Disks that refuse.


@pytest.fixture
def home_on(small_disk: Path) -> Callable[[str], LocalBackend]:
    def made(pool: str) -> LocalBackend:
        environ = {**os.environ, "ALLABOARD_HOME": str(small_disk / "home"), "ALLABOARD_POOL": pool}
        return LocalBackend(environ)

    return made


def fill(disk: Path) -> Path:
    filler = disk / "filler"
    with filler.open("ab", buffering=0) as file:
        for size in (4096, 1):
            try:
                while True:
                    file.write(b"x" * size)
            except OSError:
                pass
    return filler


def test_a_full_home_is_one_sentence_and_can_be_looked_at(
    home_on: Callable[[str], LocalBackend], small_disk: Path, folder: Path, tmp_path: Path
) -> None:
    backend = home_on(str(tmp_path / "pool"))
    handle = backend.launch(a_plan(folder, "print('done')"), ME)
    ended(backend, handle.run)
    filler = fill(small_disk)
    again = LocalBackend(backend.environ)
    with pytest.raises(
        SiteError, match=r"no space is left; free some there, or set ALLABOARD_HOME"
    ) as caught:
        again.launch(a_plan(folder, "print('more')", key="other"), ME)
    assert "\n" not in str(caught.value)
    assert state_of(again.observe(handle.run, evidence=True)) is State.SUCCEEDED
    assert len(again.list()) == 1 and len(list(again.logs(handle.run, Selection()))) == 3
    filler.unlink()
    assert [p.name for p in again.runs.iterdir()] == [handle.run], "nothing half made is left"


def test_a_home_that_fills_under_a_run_costs_it_nothing(
    home_on: Callable[[str], LocalBackend], small_disk: Path, folder: Path, tmp_path: Path
) -> None:
    backend = home_on(str(tmp_path / "pool"))
    script = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\n"
    handle = backend.launch(a_plan(folder, script, workers=1), ME)
    running(backend, handle.run)
    fill(small_disk)
    (folder / "go").touch()
    seen = ended(backend, handle.run)
    assert state_of(seen) is State.SUCCEEDED and "home_unusable" in seen.flags


def test_a_run_can_be_stopped_on_a_full_disk(
    home_on: Callable[[str], LocalBackend], small_disk: Path, folder: Path, tmp_path: Path
) -> None:
    backend = home_on(str(tmp_path / "pool"))
    handle = backend.launch(a_plan(folder, SLEEP, workers=1), ME)
    running(backend, handle.run)
    wait_for(lambda: backend.events(handle.run)[-1].reason == "PyTorchJobRunning")
    fill(small_disk)
    backend.stop(handle, ME, "me", "it fills the disk")
    seen = ended(backend, handle.run)
    assert state_of(seen) is State.STOPPED and seen.stop is not None and seen.stop.by == "me"


@as_root
def test_a_read_only_home_is_one_sentence_and_can_be_looked_at(
    home_on: Callable[[str], LocalBackend], small_disk: Path, folder: Path, tmp_path: Path
) -> None:
    backend = home_on(str(tmp_path / "pool"))
    done = backend.launch(a_plan(folder, "print('done')"), ME)
    ended(backend, done.run)
    lost = backend.launch(a_plan(folder, SLEEP, key="lost"), ME)
    running(backend, lost.run)
    for pid in supervisor_and_keeper(backend, lost.run):
        os.kill(pid, 9)
    wait_for(lambda: state_of(backend.observe(lost.run)) is State.LOST)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    try:
        again = LocalBackend(backend.environ)
        with pytest.raises(SiteError, match=r"the disk is read-only; set ALLABOARD_HOME"):
            again.launch(a_plan(folder, "print('more')", key="other"), ME)
        for act in (lambda: again.delete(done.run), lambda: again.delete(lost.run)):
            with pytest.raises(SiteError, match="read-only"):
                act()
        assert [state_of(s) for s in again.list()] == [State.LOST, State.SUCCEEDED]
        assert again.events(done.run) and len(list(again.logs(done.run, Selection()))) == 3
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)


HOMES: dict[str, tuple[Callable[[Path], Path], str]] = {
    "a file": (lambda f: _file(f / "home"), "a file is where a folder should be"),
    "below a file": (lambda f: _file(f / "file") / "home", "a file is where a folder should be"),
    "a file for its runs": (
        lambda f: _file(f / "home" / "local").parent,
        "a file is where a folder should be",
    ),
    "a circle": (lambda f: _circle(f / "home"), "circle"),
    "overlong": (lambda f: f / ("x" * 300), "the path is too long"),
    "overlong in all": (lambda f: f / "/".join(["x" * 100] * 60), "the path is too long"),
}


def _file(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text("")
    return path


def _circle(path: Path) -> Path:
    path.symlink_to(path)
    return path


@pytest.mark.parametrize("how", HOMES)
def test_a_home_that_is_none_is_one_sentence(tmp_path: Path, folder: Path, how: str) -> None:
    make, words = HOMES[how]
    home = make(tmp_path)
    environ = {**os.environ, "ALLABOARD_HOME": str(home), "ALLABOARD_POOL": str(tmp_path / "pool")}
    with pytest.raises(SiteError, match=words) as caught:
        LocalBackend(environ).launch(a_plan(folder, "print('never')"), ME)
    assert "ALLABOARD_HOME" in str(caught.value) and "\n" not in str(caught.value)


def test_missing_parents_of_a_home_are_made(tmp_path: Path) -> None:
    prepare(str(tmp_path / "a" / "b" / "home"))
    assert stat.S_IMODE((tmp_path / "a" / "b" / "home").stat().st_mode) == 0o700


# The lock.


def test_a_lock_is_waited_for_without_being_made(tmp_path: Path) -> None:
    from allaboard.backends.local.state.paths import wait_for_lock

    with wait_for_lock(tmp_path / "none" / "record.lock"):
        assert list(tmp_path.iterdir()) == []
    lock = tmp_path / "record.lock"
    lock.touch()
    code = (
        "import fcntl, sys, time\n"
        f"file = open({str(lock)!r})\nfcntl.flock(file, fcntl.LOCK_EX)\nprint('held', flush=True)\n"
        "sys.stdin.read()\n"
    )
    holder = subprocess.Popen(
        [sys.executable, "-c", code], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert holder.stdout is not None and holder.stdin is not None and holder.stdout.readline() == "held\n"
    holder.stdin.close()
    with wait_for_lock(lock), lock.open() as file:
        fcntl.flock(file, fcntl.LOCK_SH | fcntl.LOCK_NB)
    holder.wait()
    holder.stdout.close()


@pytest.mark.parametrize("call", ["mkdir", "chmod"])
def test_a_folder_that_is_removed_while_it_is_made_is_made_again(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, call: str
) -> None:
    folder = tmp_path / "run"
    folder.mkdir()
    real = getattr(Path, call)
    calls: list[Path] = []

    def meets_a_remover(self: Path, *words: Any) -> None:
        calls.append(self)
        if len(calls) > 1:
            return real(self, *words)
        folder.rmdir()
        raise FileExistsError if call == "mkdir" else FileNotFoundError

    if call == "chmod":
        folder.rmdir()
    monkeypatch.setattr(Path, call, meets_a_remover)
    make_private(folder)
    assert folder.is_dir() and len(calls) == 2


@pytest.mark.parametrize("thing", ["a file", "a link to nowhere"])
def test_what_is_no_folder_is_refused(tmp_path: Path, thing: str) -> None:
    folder = tmp_path / "run"
    folder.touch() if thing == "a file" else folder.symlink_to(tmp_path / "nowhere")
    with pytest.raises(NotADirectoryError):
        make_private(folder)


def test_threads_of_one_process_write_a_file_beside_each_other(tmp_path: Path) -> None:
    path = tmp_path / "format"
    with ThreadPoolExecutor(8) as threads:
        list(threads.map(lambda n: write_text(path, str(n % 10) * 1000), range(400)))
    assert len(set(path.read_text())) == 1 and [*tmp_path.iterdir()] == [path]
