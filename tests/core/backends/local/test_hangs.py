"""Runs that make no progress, for real: what is told, restarted and ended, and what is no hang."""

from __future__ import annotations

import os
import time
from pathlib import Path

import pytest

from allaboard.backends.local.backend import LocalBackend
from allaboard.diagnosis import diagnose
from allaboard.follow.loop import Outcome
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of, summary
from tests.core.backends.local import silent
from tests.core.backends.local.hangs import all_told, good_enough, some_hangs, table
from tests.core.backends.local.healthy import table as table_of_healthy
from tests.core.backends.local.healthy import watch
from tests.core.backends.local.helpers import a_plan, ended, wait_for

pytestmark = [pytest.mark.slow, pytest.mark.timeout(300)]

STANDS = """
import pathlib, time

def waits():
    while not pathlib.Path("go-on").exists():
        time.sleep(0.2)

print("step 1", flush=True)
waits()
print("step 2", flush=True)
time.sleep(1.5)
"""
ENDS = STANDS.replace('print("step 2", flush=True)', "").replace("time.sleep(1.5)", "")
ONCE = """
import os, pathlib, time

print("step 1", flush=True)
mark = pathlib.Path("hung-" + os.environ["RANK"])
if not mark.exists():
    mark.touch()
    time.sleep(600)
"""


def stalls(backend: LocalBackend, run: str) -> list[str]:
    return [e.message for e in backend.events(run) if e.reason in ("rank_stalled", "collective_mismatch")]


@pytest.mark.thorough
def test_it_is_told_in_state_and_diagnosis_and_taken_back_when_it_moves(
    backend: LocalBackend, tmp_path: Path
) -> None:
    run = backend.launch(a_plan(tmp_path, STANDS, policy={"hang": {"after": "1s"}}), Owner("test")).run
    seen = wait_for(lambda: seen if (seen := backend.observe(run)).stall else None, 60.0)
    assert state_of(seen) is State.RUNNING and seen.held_by and "`waits`" in seen.held_by
    assert summary(seen, diagnose(seen))["flags"] == ["rank_stalled"]
    assert diagnose(seen)[0].code == "rank_stalled" and diagnose(seen)[0].summary == seen.held_by
    (tmp_path / "go-on").touch()
    last = ended(backend, run)
    assert state_of(last) is State.SUCCEEDED and last.stall is None and "rank_stalled" not in last.flags
    assert "MovesAgain" in [e.reason for e in backend.events(run)]


@pytest.mark.thorough
def test_one_that_stood_and_then_ends_at_once_has_succeeded(backend: LocalBackend, tmp_path: Path) -> None:
    run = backend.launch(a_plan(tmp_path, ENDS, policy={"hang": {"after": "1s"}}), Owner("test")).run
    wait_for(lambda: backend.observe(run).stall, 60.0)
    (tmp_path / "go-on").touch()
    last = ended(backend, run)
    assert state_of(last) is State.SUCCEEDED and last.stall is None and "rank_stalled" not in last.flags


def test_it_is_ended_and_the_outcome_says_where_it_stood(backend: LocalBackend, tmp_path: Path) -> None:
    policy = {"hang": {"after": "1s", "then": "fail"}}
    run = backend.launch(a_plan(tmp_path, STANDS, policy=policy), Owner("test")).run
    last = ended(backend, run)
    outcome = Outcome(last, diagnose(last))
    assert outcome.state is State.FAILED and outcome.diagnoses[0].code == "rank_stalled"
    assert outcome.diagnoses[0].retryable and "`waits`" in outcome.message


@pytest.mark.thorough
def test_it_is_started_again_and_comes_through(backend: LocalBackend, tmp_path: Path) -> None:
    policy = {"hang": {"after": "1s", "then": "restart"}}
    run = backend.launch(a_plan(tmp_path, ONCE, policy=policy), Owner("test")).run
    last = ended(backend, run)
    assert state_of(last) is State.SUCCEEDED and last.restarts == 1
    assert len(stalls(backend, run)) == 1


AFTER = 6.0
QUIET = {
    "evaluates": "[(print('step', n, flush=True), time.sleep(4)) for n in range(4)]",
    "compiles for long before its first line": "time.sleep(15); print('step 1', flush=True)",
    "saves for long": """
print('saving', flush=True)
folder = pathlib.Path(os.environ['ALLABOARD_CHECKPOINTS']) / 'step-000000000001'
folder.mkdir(parents=True, exist_ok=True)
for n in range(12):
    with open(folder / ('part-' + os.environ['RANK']), 'a') as part:
        part.write('x' * 1000)
    time.sleep(1)
""",
    "one of two writes": """
for n in range(8):
    if os.environ['RANK'] == '1':
        print('still loading', flush=True)
    time.sleep(2)
""",
}


@pytest.mark.thorough
@pytest.mark.parametrize("what", QUIET)
def test_what_takes_long_and_is_no_hang_is_left_alone(
    backend: LocalBackend, tmp_path: Path, what: str
) -> None:
    policy = {"hang": {"after": AFTER, "then": "fail"}}
    script = f"import os, pathlib, time\nprint('begins', flush=True)\n{QUIET[what]}\n"
    if what.startswith("compiles"):
        script = script.replace("print('begins', flush=True)", "")
    places = {"checkpoints": {"uri": str(tmp_path / "checkpoints")}}
    run = backend.launch(a_plan(tmp_path, script, policy=policy, **places), Owner("test")).run
    assert state_of(ended(backend, run)) is State.SUCCEEDED and not stalls(backend, run)


@pytest.mark.thorough
def test_who_waits_for_slots_or_is_suspended_is_not_hung(backend: LocalBackend, tmp_path: Path) -> None:
    policy = {"hang": {"after": 3, "then": "fail"}}
    script = "import time\n[(print(n, flush=True), time.sleep(1)) for n in range(10)]\n"
    job = {"policy": policy, "workers": 1, "resources": {"cpu": 1000}, "fit": "shrink"}
    runs = [backend.launch(a_plan(tmp_path, script, key=k, **job), Owner("test")).run for k in "ab"]
    wait_for(lambda: state_of(backend.observe(runs[1])) is State.QUEUED, 60.0)
    backend.suspend(runs[0])
    wait_for(lambda: state_of(backend.observe(runs[0])) is State.SUSPENDED, 60.0)
    time.sleep(6.0)
    backend.resume(runs[0])
    for run in runs:
        assert state_of(ended(backend, run)) is State.SUCCEEDED and not stalls(backend, run)


@pytest.mark.parametrize(
    "how_many",
    [pytest.param(9, marks=pytest.mark.thorough), pytest.param(100, marks=pytest.mark.endurance)],
)
@pytest.mark.timeout(2000)
def test_hangs_at_random_places_are_told_soon_with_rank_and_line(
    backend: LocalBackend, tmp_path: Path, how_many: int
) -> None:
    told = [*all_told(backend, tmp_path, [*some_hangs(how_many, 7)], time.monotonic() + 1900)]
    assert len(told) == how_many and good_enough(told), "\n".join([*table(told), *(str(one) for one in told)])


MUTE = """
import os, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
if os.environ["RANK"] == "1":
    time.sleep(600)
dist.all_reduce(torch.ones(1))
"""


def test_a_gang_that_hangs_in_its_first_collective_without_a_word_is_ended(
    backend: LocalBackend, tmp_path: Path
) -> None:
    policy = {"hang": {"after": "5s", "then": "fail"}}
    run = backend.launch(a_plan(tmp_path, MUTE, workers=2, policy=policy), Owner("test")).run
    last = ended(backend, run)
    assert state_of(last) is State.FAILED
    assert "rank 1 has not entered all_reduce number 1" in diagnose(last)[0].summary


LATER = """
import os, time
import torch, torch.distributed as dist

dist.init_process_group("gloo")
for step in range(100):
    if os.environ["RANK"] == "1" and step == 11:
        time.sleep(600)
    work = dist.all_reduce(torch.ones(1), async_op=True)
    while not work.is_completed():
        time.sleep(0.05)
"""


@pytest.mark.thorough
def test_a_gang_that_waits_for_a_collective_at_a_later_line_is_told(
    backend: LocalBackend, tmp_path: Path
) -> None:
    policy = {"hang": {"after": "5s", "then": "fail"}}
    run = backend.launch(a_plan(tmp_path, LATER, workers=3, policy=policy), Owner("test")).run
    last = ended(backend, run)
    assert state_of(last) is State.FAILED
    told = diagnose(last)[0].summary
    assert "rank 1 has not entered all_reduce number 12: it waits at" in told
    assert "ranks 0, 2 wait for it at" in told


@pytest.mark.parametrize(
    "how_many",
    [pytest.param(9, marks=pytest.mark.thorough), pytest.param(100, marks=pytest.mark.endurance)],
)
@pytest.mark.timeout(5000)
def test_silent_gangs_are_told_when_they_hang_and_left_alone_when_not(
    backend: LocalBackend, tmp_path: Path, how_many: int
) -> None:
    after = silent.AFTER if how_many > 9 else 8.0
    several = [*silent.gangs(how_many, 7)]
    watched = [*silent.watch_all(backend, tmp_path, several, after, time.monotonic() + 4900)]
    text, good = silent.figures(watched)
    assert len(watched) == len(several) and good, "\n".join([text, *map(str, watched)])


@pytest.mark.endurance
@pytest.mark.timeout(900)
def test_gangs_in_which_all_is_well_are_left_alone(tmp_path: Path) -> None:
    places = {"ALLABOARD_HOME": str(tmp_path / "home"), "ALLABOARD_POOL": str(tmp_path / "pool")}
    watched = watch(LocalBackend({**os.environ, **places}), tmp_path, 120.0)
    assert not any(one.alarms for one in watched), "\n".join(table_of_healthy(watched))
