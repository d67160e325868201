"""Acting on a run from elsewhere: stop, suspend, resume, delete."""

from __future__ import annotations

import os
import signal

import pytest

from allaboard.runs.observation import State
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import supervisor_and_keeper
from tests.core.cli.terminal import LONG, STATUS, STUBBORN, TRAINS, WAITS, Terminal, finished, wait_for


def live(ab: Terminal, script: str = WAITS, **fields: object) -> str:
    """A detached run whose members are ready; its id."""
    assert ab("run", ab.job(script, **fields), "--detach").code == 0
    ab.until_said("ready")
    return ab.runs()[-1]


def test_stop_waits_until_nothing_runs_and_says_who_and_why(ab: Terminal) -> None:
    run = live(ab, workers=2)
    ab.until_said("ready", member="worker-0")
    said = ab("stop", "digits", "--reason", "a better idea")
    assert (
        said.code == 0
        and f"{run} was stopped by " in said.out
        and said.out.rstrip().endswith(": a better idea")
    )
    assert ab.processes(run) == []
    assert "saved" in ab("logs", run, "worker-0").out
    stop = ab.seen(run).stop
    assert stop is not None and stop.reason == "a better idea" and "@" in stop.by
    page = ab("status", run).out
    assert "stopped" in page and "a better idea" in page
    [found] = ab("doctor", run, "--json").json["diagnoses"]
    assert found["code"] == "killed_externally" and found["blame"] == stop.by
    assert found["summary"] == f"it was stopped by {stop.by}: a better idea"


def test_stop_now_gives_no_time(ab: Terminal) -> None:
    run = live(ab, STUBBORN, spot={"grace": "1h"})
    said = ab("stop", "digits", "--now")
    assert said.code == 0 and "killing it" in said.out
    assert ab.processes(run) == [] and ab.seen(run).members[0].exit_code == 137


def test_stop_now_cuts_a_stop_short_that_waits(ab: Terminal) -> None:
    run = live(ab, STUBBORN, spot={"grace": "1h"})
    patient = ab.start("stop", "digits")
    ab.until_said("no")
    assert ab("stop", "digits", "--now").code == 0
    assert finished(patient).code == 0 and ab.processes(run) == []


def test_stopping_in_json(ab: Terminal) -> None:
    live(ab)
    said = ab("stop", "digits", "--json")
    assert said.code == 0 and set(said.json) == STATUS and said.json["state"] == "stopped"


def test_stopping_what_has_ended_changes_nothing(ab: Terminal) -> None:
    assert ab("run", ab.job()).code == 0
    said = ab("stop", "digits")
    assert said.code == 0 and "had ended already: succeeded" in said.out
    assert state_of(ab.seen()) is State.SUCCEEDED and ab.seen().stop is None


@pytest.mark.thorough
def test_stop_ends_what_clean_pods_none_kept(ab: Terminal) -> None:
    script = """
import os, time
print("ready", flush=True)
if os.environ["RANK"] != "0":
    time.sleep(600)
"""
    assert ab("run", ab.job(script, workers=2, policy={"clean_pods": "none"})).code == 0
    (run,) = ab.runs()
    assert ab.processes(run), "the worker lives on"
    said = ab("stop", "digits")
    assert said.code == 0 and "its remaining members are gone" in said.out
    wait_for(lambda: not ab.processes(run))
    assert state_of(ab.seen(run)) is State.SUCCEEDED


def test_suspend_and_resume(ab: Terminal) -> None:
    run = live(ab)
    said = ab("suspend", "digits")
    assert said.code == 0 and f"allaboard resume {run}" in said.out
    assert said.out.startswith(f"{run}: suspending; its members may save and end\n")
    assert ab.processes(run) == [] and state_of(ab.seen(run)) is State.SUSPENDED
    assert "allaboard resume" in ab("status", run).out
    said = ab("resume", "digits", "--json")
    assert said.code == 0 and set(said.json) == STATUS and said.json["state"] != "suspended"
    wait_for(lambda: bool(ab.processes(run)))
    assert ab("stop", run).code == 0


@pytest.mark.thorough
def test_what_has_ended_can_neither_be_suspended_nor_resumed(ab: Terminal) -> None:
    assert ab("run", ab.job()).code == 0
    for verb in ("suspend", "resume"):
        said = ab(verb, "digits")
        assert said.code == 2 and "only a live run can be" in said.err


def test_delete_removes_logs_and_keeps_the_record(ab: Terminal) -> None:
    assert ab("run", ab.job(TRAINS), "--key", "nightly").code == 0
    (run,) = ab.runs()
    said = ab("delete", "digits")
    assert said.code == 0 and f"{run} is deleted" in said.out
    assert not list(ab.backend.find(run).path.glob("*/logs/*"))
    said = ab("logs", run)
    assert said.code == 2 and "was deleted" in said.err
    said = ab("status", run)
    assert said.code == 0 and "succeeded" in said.out
    assert "(deleted)" in ab("list").out
    again = ab("run", ab.job(TRAINS), "--key", "nightly")
    assert again.code == 0 and ab.runs() == [run], "its key is still known"


def test_delete_stops_a_live_run_first(ab: Terminal) -> None:
    run = live(ab)
    said = ab("delete", "digits")
    assert said.code == 0 and "stopping it first" in said.out and "stopped and deleted" in said.out
    assert ab.processes(run) == []
    said = ab("delete", run, "--json")
    assert said.code == 0 and said.json == {"run": run, "deleted": True}


@pytest.mark.thorough
def test_whoever_waits_for_a_stop_may_leave(ab: Terminal) -> None:
    run = live(ab, STUBBORN, spot={"grace": "1h"})
    waiting = ab.start("stop", "digits")
    ab.until_said("no")
    waiting.send_signal(signal.SIGINT)
    assert waiting.wait(LONG) == 130
    assert ab.processes(run), "the stop is under way, the member has its grace"
    assert ab("stop", "digits", "--now").code == 0


@pytest.mark.thorough
def test_a_run_that_was_lost_with_its_members_lets_nobody_wait(ab: Terminal) -> None:
    """The last that its supervisor wrote says that they run."""
    assert ab("run", ab.job(WAITS, workers=2), "--detach").code == 0
    ab.until_said("ready")
    (run,) = ab.runs()
    pids = supervisor_and_keeper(ab.backend, run)
    for sig in (signal.SIGSTOP, signal.SIGKILL):
        for pid in pids:
            os.kill(pid, sig)
    wait_for(lambda: ab.seen().alive is False)
    said = ab("stop", "digits")
    assert said.code == 0 and "had ended already: lost; its remaining members are gone" in said.out
    assert ab.processes(run) == []
