"""A run whose files are damaged: the others are listed and found, it says what is wrong, and it can be
deleted."""

from __future__ import annotations

import json
import os
import shutil
import signal
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from pathlib import Path

import pytest

from allaboard import State
from allaboard.backends.base import Selection
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.state.paths import DAMAGED, NEWER, RunFolder, remove, write_json
from allaboard.backends.local.state.records import locked_record
from allaboard.diagnosis import diagnose
from allaboard.errors import OwnershipConflict, SiteError, UnknownRun
from allaboard.report import localtime
from allaboard.runs.status import state_of, summary
from tests.core.backends.local.helpers import a_plan, ended, processes_of, wait_for
from tests.core.backends.local.test_backend import ME, QUICK, SLEEP, running
from tests.core.cli.terminal import Terminal, a_terminal

pytestmark = pytest.mark.thorough


def _wrong(field: str, value: object) -> Callable[[RunFolder], None]:
    def damage(run: RunFolder) -> None:
        write_json(run.record, {**json.loads(run.record.read_text()), field: value})

    return damage


def _linked(run: RunFolder) -> None:
    elsewhere = run.path.parent.parent / "elsewhere"
    run.path.rename(elsewhere)
    run.path.symlink_to(elsewhere)


def _dangling(run: RunFolder) -> None:
    remove(run.path)
    run.path.symlink_to("nowhere")


def _folder_for_a_record(run: RunFolder) -> None:
    run.record.unlink()
    run.record.mkdir()


DAMAGES: dict[str, tuple[Callable[[RunFolder], object], str]] = {
    "half a record": (lambda run: os.truncate(run.record, 40), "record.json is not JSON"),
    "an empty record": (lambda run: os.truncate(run.record, 0), "record.json is not JSON"),
    "a record of bytes": (lambda run: run.record.write_bytes(b"\xff\x00"), "record.json is not UTF-8 text"),
    "a list": (lambda run: run.record.write_text("[1]"), "record.json is no run record"),
    "a number": (lambda run: run.record.write_text("1"), "record.json is no run record"),
    "a record of another run": (_wrong("run", "other-1"), "holds the record of another run, 'other-1'"),
    "a date in words": (_wrong("created", "yesterday"), "holds no number that can be one (created)"),
    "an attempt that is none": (_wrong("attempt", None), "holds no number that can be one (attempt)"),
    "a key that is none": (_wrong("key", 7), "holds no text (key)"),
    "an end that is none": (
        _wrong("outcome", {"state": "eaten", "at": 1.0, "attempt": 1, "generation": 1}),
        "no run record ('eaten' is not a valid State",
    ),
    "no record": (lambda run: run.record.unlink(), "has no record.json"),
    "a folder for a record": (_folder_for_a_record, "record.json is a folder"),
    "nothing at all": (lambda run: (remove(run.path), run.path.mkdir()), "has no record.json"),
    "a link": (_linked, "is a symbolic link"),
    "a link to nothing": (_dangling, "is a symbolic link"),
    "half a state": (lambda run: os.truncate(run.attempt(1, 1).state, 10), "state.json is not JSON"),
    "a state of nothing": (lambda run: run.attempt(1, 1).state.write_text("{}"), "is not the state of a run"),
    "a state that is none": (
        lambda run: run.attempt(1, 1).state.write_text("[]"),
        "is not the state of a run",
    ),
}


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalBackend, Terminal]]:
    """A home with two good runs of one job, to which each test adds a damaged one."""
    top = tmp_path_factory.mktemp("damaged")
    with a_terminal(top) as ab:
        backend = LocalBackend(ab.environ)
        for key in ("a", "b"):
            ended(backend, backend.launch(a_plan(top, QUICK, key=key), ME).run)
        yield backend, ab


@pytest.mark.parametrize("how", DAMAGES)
def test_one_damaged_run_is_told_and_stands_in_nobodys_way(
    place: tuple[LocalBackend, Terminal], tmp_path: Path, how: str
) -> None:
    backend, ab = place
    damage, words = DAMAGES[how]
    good = [seen.run for seen in backend.list()]
    bad = RunFolder(backend.runs / backend.launch(a_plan(tmp_path, QUICK, key=how), ME).run)
    ended(backend, bad.name)
    damage(bad)

    listed = ab("list")
    assert listed.code == 0 and all(run in listed.out for run in good) and bad.name not in listed.out
    assert listed.err.count("\n") == 1
    for said in (f"run '{bad.name}' is damaged", words, f"allaboard delete {bad.name}"):
        assert said in listed.err
    (told,) = (run for run in ab("list", "--json").json["runs"] if run["run"] == bad.name)
    assert told["state"] == "unknown" and told["flags"] == [DAMAGED]
    assert (
        words in told["diagnoses"][0]["evidence"][0]["text"]
        and "allaboard delete" in told["diagnoses"][0]["fix"]
    )

    status = ab("status", bad.name)
    assert status.code == 1 and words in status.err and "delete" in status.err
    with pytest.raises(SiteError) as caught:
        list(backend.logs(bad.name, Selection()))
    assert caught.value.code == DAMAGED
    # By prefix and by the job's name the good ones are found.
    assert backend.observe("job").run == good[0]
    assert backend.observe(good[0][:-1]).run == good[0] and list(backend.logs(good[0][:-1], Selection()))
    if "has no record" not in words:  # else it is a run that never began
        with pytest.raises(SiteError, match="damaged"):
            backend.launch(a_plan(tmp_path, QUICK, key=how), ME)
        backend.housekeep()
        assert os.path.lexists(bad.path), "a person may restore it"

    done = ab("delete", bad.name)
    assert done.code == 0 and f"{bad.name} was damaged" in done.out
    assert not os.path.lexists(bad.path) and [seen.run for seen in backend.list()] == good
    elsewhere = backend.runs.parent / "elsewhere"
    assert elsewhere.exists() == (how == "a link"), "nothing behind a link is touched"
    remove(elsewhere)
    with pytest.raises(UnknownRun):
        backend.observe(bad.name)


@pytest.mark.parametrize("how", [lambda run: run.record.write_text("{"), lambda run: run.record.unlink()])
def test_a_live_run_whose_record_is_damaged_goes_on_and_ends_with_delete(
    backend: LocalBackend, folder: Path, how: Callable[[RunFolder], object]
) -> None:
    handle = backend.launch(a_plan(folder, SLEEP), ME)
    running(backend, handle.run)
    pids = processes_of(backend, handle.run)
    run = backend.find(handle.run)
    how(run)
    with pytest.raises(SiteError, match="damaged"):
        backend.observe(handle.run)
    assert pids and all(Path(f"/proc/{pid}").exists() for pid in pids)
    with pytest.raises(SiteError, match="damaged"):
        backend.launch(a_plan(folder, SLEEP), ME)
    backend.housekeep()
    assert run.path.exists() and all(Path(f"/proc/{pid}").exists() for pid in pids)
    backend.delete(handle.run)
    assert not run.path.exists()
    wait_for(lambda: not any(Path(f"/proc/{pid}").exists() for pid in pids))


def test_a_record_that_is_damaged_while_it_runs_costs_the_training_nothing(
    backend: LocalBackend, folder: Path
) -> None:
    script = "import os, time\nwhile not os.path.exists('go'): time.sleep(0.01)\nopen('done', 'w').close()"
    handle = backend.launch(a_plan(folder, script, workers=1), ME)
    running(backend, handle.run)
    run = backend.find(handle.run)
    whole = run.record.read_text()
    run.record.write_text("{")
    (folder / "go").touch()
    wait_for(lambda: not run.attempt(1, 1).is_live())
    assert (folder / "done").exists()
    run.record.write_text(whole)
    assert state_of(backend.observe(handle.run)) is State.SUCCEEDED


def test_a_run_that_is_in_order_again_is_not_deleted_by_its_damage(
    backend: LocalBackend, folder: Path
) -> None:
    run = backend.find(backend.launch(a_plan(folder, QUICK), ME).run)
    ended(backend, run.name)
    with pytest.raises(OwnershipConflict, match="in order again"):
        backend._delete_damaged(run)
    assert state_of(backend.observe(run.name)) is State.SUCCEEDED


def test_a_launch_that_is_under_way_is_no_damage(backend: LocalBackend, folder: Path) -> None:
    ended(backend, backend.launch(a_plan(folder, QUICK), ME).run)
    made = RunFolder(backend.runs / "new-12345678")
    with locked_record(made):
        assert made.path.is_dir() and len(backend.list()) == 1
        with pytest.raises(UnknownRun):
            backend.observe(made.name)


def test_what_is_no_run_at_all_is_passed_over(backend: LocalBackend, folder: Path) -> None:
    ended(backend, backend.launch(a_plan(folder, QUICK), ME).run)
    (backend.runs / ".DS_Store").touch()
    (backend.runs / "notes").touch()
    (backend.runs / "lost+found").mkdir()
    assert len(backend.list()) == 1 and backend.housekeep() == ()
    assert (backend.runs / "lost+found").exists()


def test_a_plan_that_is_damaged_hides_no_log_and_no_state(backend: LocalBackend, folder: Path) -> None:
    run = backend.find(backend.launch(a_plan(folder, "print('here')", workers=1), ME).run)
    ended(backend, run.name)
    run.attempt(1, 1).plan.write_text('{"layout": 3}')
    assert state_of(backend.observe(run.name)) is State.SUCCEEDED and len(backend.list()) == 1
    assert list(backend.logs(run.name, Selection()))
    with pytest.raises(SiteError, match=r"plan\.json is not the plan of a run"):
        backend.saving(run.name)
    backend.delete(run.name)
    assert run.attempts() == []


# What hangs or breaks a reader. The files are put back, so that one run serves all.


def _in_state(**fields: object) -> Callable[[RunFolder], None]:
    """A state file with these fields in the observation."""

    def damage(run: RunFolder) -> None:
        state = run.attempt(1, 1).state
        body = json.loads(state.read_text())
        state.write_text(json.dumps({**body, "seen": {**body["seen"], **fields}}))

    return damage


def _instead(name: str, make: Callable[[Path], object]) -> Callable[[RunFolder], None]:
    def damage(run: RunFolder) -> None:
        path = getattr(run if name == "record" else run.attempt(1, 1), name)
        path.unlink(missing_ok=True)
        make(path)

    return damage


def _pipe(path: Path) -> None:
    os.mkfifo(path)


def _zeros(path: Path) -> None:
    path.symlink_to("/dev/zero")


ATTACKS: dict[str, Callable[[RunFolder], object]] = {
    **{f"a pipe for {name}": _instead(name, _pipe) for name in ("record", "state", "plan", "events")},
    **{f"zeros for {name}": _instead(name, _zeros) for name in ("record", "state", "plan", "events")},
    "a pipe for the lock": lambda run: (run.lock.unlink(), os.mkfifo(run.lock)),
    "a date in words": _in_state(created="yesterday"),
    "a date beyond all": _in_state(created=1e300),
    "a date before all": _in_state(started=-1e15),
    "no number": _in_state(created=float("nan")),
    "no end of a number": _in_state(finished=float("inf")),
    "digits without end": _instead("state", lambda path: path.write_text('{"seen": ' + "9" * 5000 + "}")),
    "an attempt of a million digits": _wrong("attempt", 10**4000),
    "a step in words": _in_state(progress={"step": "ten"}),
    "a metric in words": _in_state(progress={"metrics": {"loss": "low"}}),
    "a phase in words": _in_state(phases={"training": "long"}),
    "members that are none": _in_state(members=[1, "two"]),
    "a rank in words": _in_state(
        members=[{"group": "master", "index": 0, "rank": "first", "phase": "running"}]
    ),
    "flags that are none": _in_state(flags=[{}]),
    "a hundred thousand brackets": _instead("state", lambda path: path.write_text("[" * 100_000)),
    "an end of no time": _wrong("outcome", {"state": "failed", "at": "now", "attempt": 1, "generation": 1}),
    "a history that is none": _wrong("history", [1]),
}


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[LocalBackend, RunFolder, str]]:
    """A backend with a run to damage and another one."""
    top = tmp_path_factory.mktemp("attacked")
    with a_terminal(top) as ab:
        backend = LocalBackend(ab.environ)
        runs = [ended(backend, backend.launch(a_plan(top, QUICK, key=key), ME).run).run for key in "ab"]
        yield backend, RunFolder(backend.runs / runs[0]), runs[1]


@contextmanager
def within(seconds: int) -> Iterator[None]:
    """A reader that hangs is ended by an alarm."""

    def late(*_: object) -> None:
        raise AssertionError("it hangs")

    before = signal.signal(signal.SIGALRM, late)
    signal.alarm(seconds)
    try:
        yield
    finally:
        signal.alarm(0)
        signal.signal(signal.SIGALRM, before)


@contextmanager
def damaged(run: RunFolder, damage: Callable[[RunFolder], object]) -> Iterator[None]:
    kept = run.path.parent.parent / "kept"
    shutil.copytree(run.path, kept, symlinks=True, ignore=shutil.ignore_patterns("wake"))
    damage(run)
    try:
        yield
    finally:
        remove(run.path)
        kept.rename(run.path)


@pytest.mark.parametrize("how", ATTACKS)
def test_no_file_of_a_run_hangs_or_breaks_the_list_of_all(
    pair: tuple[LocalBackend, RunFolder, str], how: str
) -> None:
    backend, bad, good = pair
    with damaged(bad, ATTACKS[how]), within(60):
        listed = {seen.run: seen for seen in backend.list()}
        assert {*listed} == {bad.name, good} and state_of(listed[good]) is State.SUCCEEDED
        for seen in listed.values():
            json.dumps(summary(seen, diagnose(seen)))
            assert localtime.moment(seen.created, 0.0)
        with suppress(SiteError, UnknownRun):
            backend.observe(bad.name, evidence=True)
            backend.events(bad.name)
            backend.secrets_of(bad.name)
            list(backend.logs(bad.name, Selection()))
        assert backend.housekeep() == ()


def _newer_record(run: RunFolder) -> None:
    body = json.loads(run.record.read_text())
    del body["owner"]
    write_json(run.record, {**body, "version": 9})


def _newer_state(run: RunFolder) -> None:
    write_json(run.attempt(1, 1).state, {"version": 9, "look": {}})


@pytest.mark.parametrize("how", [_newer_record, _newer_state])
def test_a_run_of_a_newer_version_is_that_and_nothing_else(
    pair: tuple[LocalBackend, RunFolder, str], how: Callable[[RunFolder], object]
) -> None:
    backend, newer, good = pair
    ab = Terminal(newer.path.parent.parent, backend.environ)
    with damaged(newer, how):
        listed = ab("list")
        words = f"run '{newer.name}' was made by a newer allaboard"
        assert listed.code == 0 and good in listed.out and words in listed.err
        (told,) = (run for run in ab("list", "--json").json["runs"] if run["run"] == newer.name)
        assert (told["state"], told["flags"]) == ("unknown", [NEWER])
        (why,) = told["diagnoses"]
        assert (why["code"], why["retryable"]) == (NEWER, False) and words in why["evidence"][0]["text"]
        assert "pip install -U allaboard" in why["fix"]
        for said in (listed, ab("status", newer.name), ab("delete", newer.name)):
            assert words in said.err and "damaged" not in said.text and "allaboard delete" not in said.text
        assert newer.record.exists(), "it is not deleted by an allaboard that cannot read it"
