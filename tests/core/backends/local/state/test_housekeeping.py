"""What is tidied up by the way: overdue ttls, old records, lost runs. Whatever is killed, full or busy
meanwhile, a run is there as a whole or not at all."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

import pytest

from allaboard import BadInput, State
from allaboard.backends.base import LogLine, Plan, Selection
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host.clock import Moment
from allaboard.backends.local.state import housekeeping
from allaboard.backends.local.state.paths import HOUSEKEEPING, RunFolder, write_json
from allaboard.backends.local.state.records import locked_record, read_record
from allaboard.errors import SiteError
from allaboard.follow.run_record import RunRecord
from allaboard.runs.observation import Owner
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import a_plan, ended, processes_of, supervisor_and_keeper, wait_for
from tests.core.backends.local.state.test_paths import everything, fill
from tests.core.backends.local.test_backend import ME, QUICK, SLEEP, running
from tests.core.storage.mounts import mounted

DAY = 86400.0


def base(backend: LocalBackend) -> Path:
    return backend.runs.parent


def an_hour_later(backend: LocalBackend) -> float:
    """From now on it is due. The time at which it was last done."""
    stamp = base(backend) / HOUSEKEEPING
    os.utime(stamp, (time.time() - 3700, time.time() - 3700))
    return stamp.stat().st_mtime


def last_done(backend: LocalBackend) -> float:
    return (base(backend) / HOUSEKEEPING).stat().st_mtime


def kept(backend: LocalBackend, plan: Plan, age: float, count: int = 1) -> list[RunFolder]:
    """Runs that ended so many seconds ago, before the machine was last booted."""
    first = backend.launch(plan, ME)
    ended(backend, first.run)
    made = [RunFolder(backend.runs / first.run)]
    state = made[0].attempt(1, 1).state
    write_json(state, {**json.loads(state.read_text()), "boot": "before"})
    for n in range(1, count):
        copy = RunFolder(backend.runs / f"job-{n:08x}")
        shutil.copytree(made[0].path, copy.path, ignore=shutil.ignore_patterns("wake"))
        made.append(copy)
    for folder in made:
        body = json.loads(folder.record.read_text() if folder is made[0] else made[0].record.read_text())
        body["run"], body["outcome"]["at"] = folder.name, time.time() - age
        write_json(folder.record, body)
    return made


def files_of(folder: RunFolder) -> bool:
    return bool(folder.attempts())


# When.


def test_the_next_launch_applies_an_overdue_ttl_and_forgets_old_records(
    backend: LocalBackend, folder: Path
) -> None:
    (overdue,) = kept(backend, a_plan(folder, QUICK, key="a", policy={"ttl": "1h"}), 2 * 3600)
    (stays,) = kept(backend, a_plan(folder, QUICK, key="b", policy={"ttl": "3h"}), 2 * 3600)
    (old,) = kept(backend, a_plan(folder, QUICK, key="c"), 31 * DAY)
    (young,) = kept(backend, a_plan(folder, QUICK, key="d"), 29 * DAY)
    an_hour_later(backend)
    ended(backend, backend.launch(a_plan(folder, QUICK, key="e"), ME).run)
    wait_for(lambda: not old.path.exists() and not files_of(overdue))
    assert state_of(backend.observe(overdue.name)) is State.SUCCEEDED, "its record stays"
    assert files_of(stays) and files_of(young)
    wait_for(lambda: not list((base(backend) / "removed").iterdir()))


@pytest.mark.thorough
def test_a_home_is_tidied_once_an_hour_and_by_no_verb_that_looks(backend: LocalBackend, folder: Path) -> None:
    (overdue,) = kept(backend, a_plan(folder, QUICK, policy={"ttl": "1h"}), 2 * 3600)
    assert time.time() - last_done(backend) < 600, "a fresh home has nothing to tidy"
    due = an_hour_later(backend)
    before = everything(Path(backend.home))
    assert backend.list() and backend.observe(overdue.name, evidence=True) and backend.events(overdue.name)
    assert list(backend.logs(overdue.name, Selection()))
    assert everything(Path(backend.home)) == before and last_done(backend) == due
    ended(backend, backend.launch(a_plan(folder, QUICK, key="b"), ME).run)
    wait_for(lambda: not files_of(overdue))
    done = last_done(backend)
    assert time.time() - done < 600
    kept(backend, a_plan(folder, QUICK, key="c", policy={"ttl": "1h"}), 2 * 3600)
    ended(backend, backend.launch(a_plan(folder, QUICK, key="d"), ME).run)
    assert last_done(backend) == done


@pytest.mark.parametrize("offset", [-4000.0, 4000.0])
def test_a_clock_that_was_set_back_puts_it_off_by_no_more_than_an_hour(
    backend: LocalBackend, folder: Path, offset: float
) -> None:
    ended(backend, backend.launch(a_plan(folder, QUICK), ME).run)
    os.utime(base(backend) / HOUSEKEEPING, (0, time.time() + offset))
    assert housekeeping.is_due(base(backend), time.time())
    assert not housekeeping.is_due(base(backend), time.time() + offset + 10)


def test_how_long_records_are_kept_is_a_setting(backend: LocalBackend, folder: Path) -> None:
    backend.environ["ALLABOARD_KEEP_RECORDS"] = "2d"
    (old,) = kept(backend, a_plan(folder, QUICK), 3 * DAY)
    assert backend.housekeep() == () and not old.path.exists()
    backend.environ["ALLABOARD_KEEP_RECORDS"] = "soon"
    with pytest.raises(BadInput, match="ALLABOARD_KEEP_RECORDS: "):
        backend.launch(a_plan(folder, QUICK), ME)


def test_members_that_outlived_their_keepers_end_and_the_run_is_recorded_as_lost(
    backend: LocalBackend, folder: Path
) -> None:
    handle = backend.launch(a_plan(folder, SLEEP), ME)
    running(backend, handle.run)
    for pid in supervisor_and_keeper(backend, handle.run):
        os.kill(pid, signal.SIGKILL)
    wait_for(lambda: state_of(backend.observe(handle.run)) is State.LOST)
    assert backend.housekeep() == ()
    record = read_record(backend.find(handle.run))
    assert record is not None and record.outcome is not None and record.outcome.state == "lost"
    assert processes_of(backend, handle.run) == []


def test_a_live_run_is_left_alone_whatever_its_age(backend: LocalBackend, folder: Path) -> None:
    handle = backend.launch(a_plan(folder, SLEEP, policy={"ttl": "1s"}), ME)
    running(backend, handle.run)
    backend.housekeep(Moment.now().later(1000 * DAY))
    assert state_of(backend.observe(handle.run)) is State.RUNNING and files_of(backend.find(handle.run))


def test_what_a_launch_that_was_killed_left_without_a_record_goes(
    backend: LocalBackend, folder: Path
) -> None:
    (done,) = kept(backend, a_plan(folder, QUICK), 0)
    left = RunFolder(backend.runs / "left-12345678")
    shutil.copytree(done.attempt(1, 1).path, left.attempt(1, 1).path, ignore=shutil.ignore_patterns("wake"))
    assert backend.housekeep() == () and not left.path.exists() and done.path.exists()


# Beside others.

KEEP = """
import os, sys, time
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host.clock import Moment
print(LocalBackend(os.environ).housekeep(Moment.now().later(float(sys.argv[1]))), flush=True)
"""


@contextmanager
def keepers(backend: LocalBackend, count: int, ahead: float, code: str = KEEP) -> Iterator[list[str]]:
    """Processes that tidy up at once, and what they have said by the end of the block."""
    started = [
        subprocess.Popen(
            [sys.executable, "-c", code, str(ahead)],
            env=backend.environ,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for _ in range(count)
    ]
    said: list[str] = []
    try:
        yield said
    finally:
        said += [process.communicate(timeout=120)[0] for process in started]


@pytest.mark.thorough
def test_several_at_once_remove_each_run_once(backend: LocalBackend, folder: Path) -> None:
    made = kept(backend, a_plan(folder, QUICK, policy={"ttl": "1h"}), 2 * 3600, count=30)
    old = made[::2]
    for one in old:
        body = json.loads(one.record.read_text())
        body["outcome"]["at"] = time.time() - 31 * DAY
        write_json(one.record, body)
    with keepers(backend, 3, 0.0) as said:
        pass
    assert said == ["()\n"] * 3
    assert not any(one.path.exists() for one in old)
    assert not any(files_of(one) for one in made) and not list((base(backend) / "removed").iterdir())
    assert len(backend.list()) == 15


def test_the_program_itself_runs_once_at_a_time(backend: LocalBackend, folder: Path) -> None:
    kept(backend, a_plan(folder, QUICK, policy={"ttl": "1h"}), 2 * 3600)
    due = an_hour_later(backend)
    with (base(backend) / HOUSEKEEPING).open() as held:
        import fcntl

        fcntl.flock(held, fcntl.LOCK_EX)
        program = [sys.executable, "-m", "allaboard.backends.local", str(base(backend))]
        done = subprocess.run(program, env=backend.environ, capture_output=True, text=True, check=True)
        assert (done.stdout, done.stderr, last_done(backend)) == ("", "", due)
    subprocess.run(program, env=backend.environ, check=True)
    assert last_done(backend) > due


OFTEN = KEEP.replace("print(", "end = time.time() + 6\nwhile time.time() < end: said = (").replace(
    ", flush=True)", ")\nprint(said)"
)


@pytest.mark.thorough
def test_a_launch_under_the_key_of_a_run_that_is_just_removed_is_a_run_of_its_own(
    backend: LocalBackend, folder: Path
) -> None:
    plan = a_plan(folder, "print('done')", workers=1)
    with keepers(backend, 2, 31 * DAY, OFTEN) as said:
        end = time.time() + 6
        launched = 0
        while time.time() < end or launched <= 3:
            handle = backend.launch(plan, ME)
            launched += 1
            attempt = RunFolder(backend.runs / handle.run).attempt(handle.generation, handle.attempt)
            wait_for(lambda attempt=attempt: not attempt.is_live(), 30)  # type: ignore[misc]
            found = [state_of(seen) for seen in backend.list()]
            assert found in ([], [State.SUCCEEDED]), found
    assert launched > 3 and said == ["()\n"] * 2


@pytest.mark.thorough
def test_logs_that_are_being_read_end_where_their_files_go(backend: LocalBackend, folder: Path) -> None:
    script = "for n in range(200_000): print('line', n)"
    (one,) = kept(backend, a_plan(folder, script, workers=1, policy={"ttl": "1h"}), 2 * 3600)
    lines = backend.logs(one.name, Selection())
    first = next(lines)
    assert isinstance(first, LogLine) and first.text == "line 0"
    assert backend.housekeep() == () and not files_of(one)
    rest = [line.text for line in lines if isinstance(line, LogLine)]
    assert rest == [f"line {n}" for n in range(1, len(rest) + 1)]


def test_a_run_that_somebody_changes_just_now_is_left_for_the_next_time(
    backend: LocalBackend, folder: Path
) -> None:
    (one,) = kept(backend, a_plan(folder, QUICK), 31 * DAY)
    with locked_record(one):
        begun = time.monotonic()
        assert backend.housekeep() == () and one.path.exists() and time.monotonic() - begun < 5
    assert backend.housekeep() == () and not one.path.exists()


# Killed, full, read-only, in the way.

KILLED = """
import os, shutil, signal, sys, time
from allaboard.backends.local.backend import LocalBackend
calls, fatal = 0, int(sys.argv[1])
def deadly(real):
    def call(*words, **named):
        global calls
        calls += 1
        if calls == fatal:
            os.kill(os.getpid(), signal.SIGKILL)
        return real(*words, **named)
    return call
os.unlink, os.rmdir, os.rename, os.replace = map(deadly, (os.unlink, os.rmdir, os.rename, os.replace))
LocalBackend(os.environ).housekeep()
print("ended by itself", flush=True)
"""


@pytest.mark.thorough
@pytest.mark.parametrize("age", [2 * 3600.0, 31 * DAY])
def test_killed_at_any_call_it_leaves_whole_runs_and_the_next_one_ends_the_work(
    backend: LocalBackend, folder: Path, age: float
) -> None:
    ended(backend, backend.launch(a_plan(folder, QUICK, key="other"), ME).run)
    fatal, through = 1, False
    while not through:
        (one,) = kept(backend, a_plan(folder, QUICK, f"{fatal}", workers=1, policy={"ttl": "1h"}), age)
        code = [sys.executable, "-c", KILLED, str(fatal)]
        through = b"ended by itself" in subprocess.run(code, env=backend.environ, capture_output=True).stdout
        assert len([seen for seen in backend.list() if state_of(seen) is State.SUCCEEDED]) >= 1
        assert all("run_damaged" not in seen.flags for seen in backend.list()), fatal
        assert backend.housekeep() == ()
        assert one.path.exists() == (age < DAY) and not files_of(one)
        assert not list((base(backend) / "removed").iterdir())
        fatal += 3
    assert fatal > 9


def test_on_a_full_disk_it_frees_room(small_disk: Path, folder: Path, tmp_path: Path) -> None:
    environ = {
        **os.environ,
        "ALLABOARD_HOME": str(small_disk / "home"),
        "ALLABOARD_POOL": str(tmp_path / "p"),
    }
    backend = LocalBackend(environ)
    (overdue,) = kept(backend, a_plan(folder, QUICK, key="a", policy={"ttl": "1h"}), 2 * 3600)
    (old,) = kept(backend, a_plan(folder, QUICK, key="b"), 31 * DAY)
    fill(small_disk)
    assert backend.housekeep() == ()
    assert not files_of(overdue) and not old.path.exists()
    assert shutil.disk_usage(small_disk).free > 0


@pytest.mark.skipif(os.geteuid() != 0, reason="mounts")
def test_on_a_read_only_disk_it_raises_nothing_and_changes_nothing(
    small_disk: Path, folder: Path, tmp_path: Path
) -> None:
    environ = {
        **os.environ,
        "ALLABOARD_HOME": str(small_disk / "home"),
        "ALLABOARD_POOL": str(tmp_path / "p"),
    }
    backend = LocalBackend(environ)
    (old,) = kept(backend, a_plan(folder, QUICK), 31 * DAY)
    an_hour_later(backend)
    subprocess.run(["mount", "-o", "remount,ro", str(small_disk)], check=True)
    try:
        program = [sys.executable, "-m", "allaboard.backends.local", str(base(backend))]
        done = subprocess.run(program, env=environ, capture_output=True, text=True)
        assert (done.returncode, done.stdout + done.stderr) == (0, "")
        (words,) = backend.housekeep()
        assert "Read-only file system" in words
        assert old.path.exists()
    finally:
        subprocess.run(["mount", "-o", "remount,rw", str(small_disk)], check=True)


@pytest.mark.thorough
def test_what_cannot_be_removed_is_told_once_by_the_next_launch(backend: LocalBackend, folder: Path) -> None:
    (overdue,) = kept(backend, a_plan(folder, QUICK, key="a", policy={"ttl": "1h"}), 2 * 3600)
    inside = overdue.attempt(1, 1).path / "logs"

    def back_to(place: Path) -> None:
        """Where the mount is looked for at the end: it went with the folder."""
        for where in (base(backend) / "removed").glob("*/logs"):
            subprocess.run(["mount", "--move", str(where), str(_made(place))], check=False)

    def launch(key: str) -> tuple[str, ...]:
        handle = backend.launch(a_plan(folder, "print(1)", key=key, workers=1), ME)
        ended(backend, handle.run)
        return handle.notes

    with mounted(inside, "-t", "tmpfs", "none"), ExitStack() as stack:
        stack.callback(back_to, inside)
        for n in range(3):
            an_hour_later(backend)
            due = last_done(backend)
            launch(f"x{n}")
            wait_for(lambda due=due: last_done(backend) > due)  # type: ignore[misc]
            wait_for(lambda: (base(backend) / "housekeeping.json").exists())
            wait_for(lambda: not _is_busy(backend))
            told = [note for note in launch(f"y{n}") if note.startswith("housekeeping: ")]
            assert len(told) == (1 if n == 0 else 0), told
            if told:
                assert f"{overdue.name}.1-1" in told[0] and "cannot be removed: logs" in told[0]
                assert told[0].endswith("; remove it by hand")
    assert backend.housekeep() == () and not list((base(backend) / "removed").iterdir())


def _is_busy(backend: LocalBackend) -> bool:
    from allaboard.backends.local.state.paths import is_held

    return is_held(base(backend) / HOUSEKEEPING)


def _made(folder: Path) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    return folder


def test_a_folder_that_a_member_closed_to_its_own_user_is_removed(
    backend: LocalBackend, folder: Path
) -> None:
    (one,) = kept(backend, a_plan(folder, QUICK), 31 * DAY)
    closed = _made(one.attempt(1, 1).path / "scratch-0" / "cache")
    (closed / "file").touch()
    (closed / "out").symlink_to(folder)
    closed.chmod(0o500)
    assert backend.housekeep() == () and not one.path.exists() and folder.is_dir()


def test_records_of_a_run_that_is_not_damaged_but_new_stay(backend: LocalBackend, folder: Path) -> None:
    """Fields and versions of a newer writer do not hinder what is known of it."""
    (one,) = kept(backend, a_plan(folder, QUICK), 31 * DAY)
    body = json.loads(one.record.read_text())
    write_json(one.record, {**body, "version": 7, "colour": "green"})
    assert state_of(backend.observe(one.name)) is State.SUCCEEDED
    assert backend.housekeep() == () and not one.path.exists()


def test_a_housekeeper_of_a_home_with_nobody_in_it_is_quiet(backend: LocalBackend) -> None:
    assert backend.housekeep() == () and not Path(backend.home).exists()
    record = RunRecord("job-1", "k", "job", {}, "v1:", Owner("me"), "u", 0.0)
    with pytest.raises(SiteError, match="is damaged"):
        folder = RunFolder(backend.runs / "other-2")
        folder.path.mkdir(parents=True)
        write_json(folder.record, record.to_dict())
        backend.observe("other-2")
    backend.delete("other-2")
