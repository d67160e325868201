"""The three exercises work as written: the files of dags_examples/exercises, by the command that each begins
with."""

from __future__ import annotations

import json
import re
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allaboard.runs.observation import State
from allaboard.runs.status import state_of
from tests.core.cli.terminal import Said, Terminal, a_terminal, finished, wait_for

EXERCISES = Path(__file__).parents[3] / "dags_examples" / "exercises"
MINUTES = 240.0
"""Torch is imported ten times over in the third exercise, on machines that have two cores."""

pytestmark = [pytest.mark.slow, pytest.mark.timeout(900)]


@pytest.fixture
def ab(tmp_path: Path) -> Iterator[Terminal]:
    pytest.importorskip("torch")
    with a_terminal(tmp_path) as terminal:
        yield terminal


def exercise(number: int) -> str:
    (found,) = EXERCISES.glob(f"{number}-*.yaml")
    return str(found)


def status(ab: Terminal, run: str) -> dict[str, Any]:
    body: dict[str, Any] = ab("status", run, "--json").json
    return body


def ended(ab: Terminal, process: subprocess.Popen[str]) -> Said:
    wait_for(lambda: process.poll() is not None, MINUTES * 2)
    return finished(process)


def test_each_opens_with_the_question_that_it_answers_and_the_command_to_type() -> None:
    names = [exercise(number) for number in (1, 2, 3)]
    for name in names:
        first, *rest = Path(name).read_text().splitlines()
        assert re.fullmatch(r"# [A-Z].*\?", first)
        assert f"#   allaboard run dags_examples/exercises/{Path(name).name}" in rest
        assert first[2:] in (EXERCISES / "README.md").read_text()


def test_every_file_is_a_good_job(ab: Terminal) -> None:
    for number in (1, 2, 3):
        said = ab("check", exercise(number))
        assert said.code == 0 and "is good" in said.out and "warning" not in said.out


# --- 1


@pytest.mark.thorough
def test_one_master_and_four_workers_march_from_created_to_succeeded(ab: Terminal) -> None:
    process = ab.start("run", exercise(1), "--json")
    marches = set()

    def marched() -> bool:
        if ab.runs():
            marches.add(tuple(c.type for c in ab.seen("conditions").conditions if c.status == "True"))
        return process.poll() is not None

    wait_for(marched, MINUTES)
    said = finished(process)
    assert said.code == 0, said.text
    body = said.json
    times = [c["lastTransitionTime"] for c in body["conditions"]]
    assert [c["type"] for c in body["conditions"]] == ["Created", "Running", "Succeeded"] and times == sorted(
        times
    )
    assert ("Created", "Running") in marches, "Running was seen while it ran"
    assert [m["group"] for m in body["members"]] == ["master", *["worker"] * 4]
    assert [m["rank"] for m in body["members"]] == [0, 1, 2, 3, 4]
    assert all((m["phase"], m["exit_code"], m["restarts"]) == ("succeeded", 0, 0) for m in body["members"])
    assert body["progress"]["step"] == body["progress"]["total"] == 100 and body["metrics"]["members"] == 5
    assert (
        body["flags"] == []
        and body["phases"]["rendezvous"] is not None
        and body["phases"]["training"] is not None
    )
    logs = ab("logs", "conditions").out
    assert all(f"rank {rank} of 5" in logs for rank in range(5))


# --- 2


@pytest.mark.thorough
def test_a_command_that_exits_1_is_retried_three_times_and_every_try_is_there_to_read(ab: Terminal) -> None:
    said = ab("run", exercise(2), "--json")
    body = said.json
    assert said.code == 1 and body["state"] == "failed"
    assert body["restarts"] == sum(m["restarts"] for m in body["members"]) == 3
    failed = body["conditions"][-1]
    assert (failed["type"], failed["status"]) == ("Failed", "True") and "backoff limit" in failed["message"]
    assert {d["code"] for d in body["diagnoses"]} >= {"backoff_limit_exceeded"}
    (run,) = ab.runs()
    for member in body["members"]:
        name = f"{member['group']}-{member['index']}"
        for number in range(member["restarts"] + 1):
            lines = ab("logs", run, name, "--restart", str(number)).out.splitlines()
            assert len(lines) == 1 and f"{name}: this cannot work" in lines[0], (name, number)
    assert len(ab("logs", run).out.splitlines()) == 5 + 3
    assert ab.processes(run) == [], "clean_pods: running"
    events = ab("events", run, "--json").json["events"]
    assert [e["message"][-9:] for e in events if e["reason"] == "BackOff"] == [
        "restart 1",
        "restart 2",
        "restart 3",
    ]


@pytest.mark.thorough
def test_one_bad_member_is_retried_alone_and_what_still_runs_is_removed(ab: Terminal) -> None:
    script = """
import os, sys, time
print("try of", os.environ["ALLABOARD_MEMBER"], flush=True)
if os.environ["RANK"] == "2":
    sys.exit(1)
time.sleep(600)
"""
    groups, policy = (
        {"master": 1, "worker": 4},
        {"restart": "on_failure", "backoff_limit": 3, "clean_pods": "running"},
    )
    said = ab("run", ab.job(script, groups=groups, policy=policy), "--json")
    body = said.json
    assert said.code == 1 and body["restarts"] == 3
    assert {m["rank"]: (m["phase"], m["restarts"]) for m in body["members"]} == {
        0: ("deleted", 0), 1: ("deleted", 0), 2: ("failed", 3), 3: ("deleted", 0), 4: ("deleted", 0),
    }  # fmt: skip
    assert ab.processes(ab.runs()[0]) == []
    for number in range(4):
        assert ab("logs", "digits", "worker-1", "--restart", str(number)).out == "try of worker-1\n"


# --- 3


@pytest.fixture(scope="module")
def undisturbed(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    """The outcome of the third exercise without its pauses, left alone."""
    with a_terminal(tmp_path_factory.mktemp("undisturbed")) as ab:
        job = ab.write("job.yaml", Path(exercise(3)).read_text().replace("--pause=0.1", "--pause=0"))
        (ab.folder / "train.py").write_bytes((EXERCISES / "train.py").read_bytes())
        said = ended(ab, ab.start("run", job, "--json"))
    assert said.code == 0, said.text
    body: dict[str, Any] = said.json
    assert body["progress"]["lost_steps"] == 0 and body["restarts"] == 0
    return body


def saved(ab: Terminal) -> int:
    body = ab("checkpoints", "list", "elastic", "--json")
    return max((c["step"] for c in body.json["checkpoints"]), default=0)


def disturbed(ab: Terminal, member: str) -> dict[str, Any]:
    """The third exercise, with one member's whole tree killed -9 once two checkpoints are there; its
    outcome."""
    process = ab.start("run", exercise(3), "--json")
    wait_for(lambda: ab.runs() and (ab.seen("elastic").progress.step or 0) >= 25, MINUTES)
    before = saved(ab)
    (run,) = (r for r in ab.runs() if r.startswith("elastic") and not state_of(ab.seen(r)).is_final)
    killed = subprocess.run(
        [sys.executable, str(EXERCISES / "kill_member.py"), run, member],
        capture_output=True,
        text=True,
        env=ab.environ,
    )
    assert killed.returncode == 0 and "killed 2 processes" in killed.stdout, killed.stdout + killed.stderr
    said = ended(ab, process)
    assert said.code == 0, said.text
    body: dict[str, Any] = said.json
    assert before >= 20 and body["progress"]["step"] == 200
    return body


def same_end(one: dict[str, Any], other: dict[str, Any]) -> None:
    assert one["metrics"]["final_loss"] == pytest.approx(other["metrics"]["final_loss"], rel=1e-9)
    assert one["metrics"]["members"] == other["metrics"]["members"] == 4


@pytest.mark.thorough
def test_an_elastic_gang_loses_a_member_and_goes_on_from_its_checkpoint(
    ab: Terminal, undisturbed: dict[str, Any]
) -> None:
    body = disturbed(ab, "worker-2")
    restarts = {f"{m['group']}-{m['index']}": m["restarts"] for m in body["members"]}
    assert restarts == {"worker-0": 0, "worker-1": 0, "worker-2": 1, "worker-3": 0}, (
        "a replacement for it alone"
    )
    lost = body["progress"]["lost_steps"]
    assert 0 <= lost < 20, "at most those since the newest checkpoint"
    told = [
        json.loads(line[line.index("{") :])
        for line in ab("logs", body["run"]).out.splitlines()
        if '"kind":"progress"' in line or '"kind":"resumed"' in line
    ]
    (turn,) = (n for n, line in enumerate(told) if line["kind"] == "resumed")  # they met afresh, once
    resumed = told[turn]["step"]
    assert resumed >= 20
    reported = told[:turn] + told[turn + 1 :]
    last = told[turn - 1]["step"]
    assert lost == max(0, last - resumed), "lost_steps counts what was done twice"
    assert {r["members"] for r in reported} == {4}
    assert "of 4 is worker-2" in ab("logs", body["run"], "worker-2", "--restart", "1").out
    same_end(body, undisturbed)


@pytest.mark.thorough
def test_loss_of_the_rendezvous_host_restarts_the_gang_from_its_checkpoint(
    ab: Terminal, undisturbed: dict[str, Any]
) -> None:
    body = disturbed(ab, "worker-0")
    assert body["restarts"] == 1, "one failure is one restart, though all of the gang started again"
    events = ab("events", body["run"], "--json").json["events"]
    assert [e["object"] for e in events if e["reason"] == "GangRestart"] == ["worker-0"]
    for n in range(4):
        assert f"of 4 is worker-{n}" in ab("logs", body["run"], f"worker-{n}", "--restart", "1").out
    assert 0 <= body["progress"]["lost_steps"] < 20
    same_end(body, undisturbed)
    assert state_of(ab.seen("elastic")) is State.SUCCEEDED
