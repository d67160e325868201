"""Runs, checkpoints and data that an older allaboard left on this machine, in the hands of this one."""

from __future__ import annotations

import json
import signal
from pathlib import Path

from tests.core.cli.terminal import TRAINS, WAITS, Terminal, finished, wait_for

SAVES = """
import sys, time
from pathlib import Path
from allaboard.inside import Checkpointer, report, result
saves = Checkpointer(every=2)
found = saves.resume()
step = found.step if found else 0
print("starts at", step, flush=True)
while not Path("finish").exists():
    step += 1
    report(step=step, total=1000, loss=1 / step)
    saves.step(step, lambda: b"state", metrics={"loss": 1 / step})
    time.sleep(0.05)
result(accuracy=0.9, steps=step)
"""
FAILS = """
import sys
from allaboard.inside import report
report(step=1, total=10)
raise ValueError("shapes (3,4) and (5,6) not aligned")
"""
STORE = {"uri": "store://models", "every": 2, "keep": 3, "best": {"metric": "loss", "mode": "min"}}


def begun(then: Terminal, script: str, key: str = "nightly", **fields: object) -> str:
    """A run that the older allaboard started and follows no more; its name."""
    said = then("run", then.job(script, **fields), "--key", key, "--detach", "--json")
    assert said.code == 0, said.text
    run: str = said.json["run"]
    return run


def saved(now: Terminal, run: str) -> list[str]:
    """The checkpoints of a run, by their places."""
    return [found["uri"] for found in now("checkpoints", "list", run, "--json").json["checkpoints"]]


def status(now: Terminal, run: str) -> dict[str, object]:
    answer: dict[str, object] = now("status", run, "--json").json
    return answer


def test_a_run_goes_on_and_is_followed_to_its_end(then: Terminal, now: Terminal) -> None:
    run = begun(then, SAVES, checkpoints=STORE)
    then.until_said("starts at", run)
    assert run in now("list").out
    assert status(now, run)["state"] == "running"
    following = now.start("follow", run)
    (now.folder / "finish").touch()
    assert finished(following).code == 0
    assert status(now, run)["metrics"] == {"accuracy": 0.9, **{"steps": status(now, run)["metrics"]["steps"]}}  # type: ignore[index]


def test_a_run_is_stopped(then: Terminal, now: Terminal) -> None:
    run = begun(then, WAITS)
    then.until_said("ready", run)
    assert now("stop", run).code == 0
    assert not now.processes(run) and status(now, run)["state"] == "stopped"
    assert then("status", run).code in (0, 3)


def test_a_run_whose_follower_was_killed_is_taken_over_under_its_key(then: Terminal, now: Terminal) -> None:
    follower = then.start("run", then.job(SAVES, checkpoints=STORE), "--key", "nightly")
    wait_for(then.runs)
    (run,) = then.runs()
    then.until_said("starts at", run)
    follower.send_signal(signal.SIGKILL)
    follower.communicate()
    again = now.start("run", "job.json", "--key", "nightly", "--json")
    wait_for(lambda: status(now, run)["attempt"] == 1)
    (now.folder / "finish").touch()
    assert finished(again).code == 0
    assert now.runs() == [run] and status(now, run)["restarts"] == 0


def test_a_run_beside_a_follower_of_then_is_looked_at(then: Terminal, now: Terminal) -> None:
    follower = then.start("run", then.job(SAVES, checkpoints=STORE), "--key", "nightly")
    wait_for(then.runs)
    (run,) = then.runs()
    then.until_said("starts at", run)
    assert now("status", run).code == 0 and now("doctor", run).code == 0
    assert "step" in now("logs", run).out or "starts at" in now("logs", run).out
    (now.folder / "finish").touch()
    assert finished(follower).code == 0
    assert status(now, run)["state"] == "succeeded"


def test_a_queue_of_then_moves_on_when_now_stops_its_head(then: Terminal, now: Terminal) -> None:
    for terminal in (then, now):
        terminal.environ["ALLABOARD_CPUS"] = "1"
    first = begun(then, WAITS, "first", resources={"cpu": 1})
    then.until_said("ready", first)
    second = begun(then, TRAINS, "second", resources={"cpu": 1}, file="second.json")
    wait_for(lambda: status(now, second)["state"] in ("queued", "succeeded"))
    assert now("stop", first).code == 0
    assert now("follow", second).code == 0


def test_a_run_of_now_waits_behind_one_of_then(then: Terminal, now: Terminal) -> None:
    first = begun(then, SAVES, "first", checkpoints=STORE)
    then.until_said("starts at", first)
    (now.folder / "finish").touch()
    assert now("run", now.job(TRAINS, file="second.json"), "--key", "second").code == 0
    assert now("follow", first).code == 0


def test_a_success_is_shown_and_removed(then: Terminal, now: Terminal, tmp_path: Path) -> None:
    said = then("run", then.job(TRAINS), "--key", "nightly", "--json")
    assert said.code == 0
    (run,) = then.runs()
    before = then("status", run, "--json").json
    after = status(now, run)
    assert {key: after.get(key) for key in before} == before, "keys are added, and none changes"
    assert now("report", run, "--output", str(tmp_path / "page.html")).code == 0
    assert "succeeded" in (tmp_path / "page.html").read_text()
    assert now("logs", run).code == now("events", run).code == now("doctor", run).code == 0
    assert now("run", "job.json", "--key", "nightly").code == 0 and now.runs() == [run]
    assert now("delete", run).code == 0 and "(deleted)" in now("list").out


def test_a_failure_has_the_same_diagnosis(then: Terminal, now: Terminal) -> None:
    assert then("run", then.job(FAILS, policy={"restart": "never"}), "--key", "nightly").code == 1
    (run,) = then.runs()
    codes = [
        [found["code"] for found in terminal("doctor", run, "--json").json["diagnoses"]]
        for terminal in (then, now)
    ]
    assert codes[0] == codes[1] and codes[0]
    assert now("status", run).code == then("status", run).code


def test_a_suspended_run_is_resumed(then: Terminal, now: Terminal) -> None:
    run = begun(then, SAVES, checkpoints=STORE)
    then.until_said("starts at", run)
    wait_for(lambda: saved(now, run))
    assert then("suspend", run).code == 0
    wait_for(lambda: status(now, run)["state"] == "suspended")
    assert now("resume", run).code == 0
    (now.folder / "finish").touch()
    assert now("follow", run).code == 0


def test_a_stopped_run_goes_on_from_the_checkpoint_of_then(then: Terminal, now: Terminal) -> None:
    run = begun(then, SAVES, checkpoints=STORE)
    wait_for(lambda: saved(now, run))
    assert then("stop", run).code == 0
    (now.folder / "finish").touch()
    assert now("run", "job.json", "--key", "nightly").code == 0
    assert "starts at 0" not in now("logs", run, "--attempt", "2").out
    assert now("checkpoints", "verify", run).code == 0
    assert now("checkpoints", "list", run).code == 0
    collected = now("checkpoints", "collect", run, str(now.folder / "best"), "--json")
    assert collected.code == 0, collected.text


def test_a_champion_of_then_is_beaten_or_kept(then: Terminal, now: Terminal) -> None:
    run = begun(then, SAVES, checkpoints=STORE)
    wait_for(lambda: saved(now, run))
    (now.folder / "finish").touch()
    assert then("follow", run).code == 0
    best = saved(then, run)[0]
    first = then("promote", best, "--into", "store://champion", "--metric", "loss", "--mode", "min", "--json")
    assert first.code == 0, first.text
    history = now("promote", "--into", "store://champion", "--history")
    assert history.code == 0 and "loss" in history.text, history.text
    again = now("promote", best, "--into", "store://champion", "--metric", "loss", "--mode", "min", "--json")
    assert again.code in (0, 3), again.text


def test_shards_of_then_are_read(then: Terminal, now: Terminal) -> None:
    (now.folder / "data.py").write_text(
        "def samples():\n    for n in range(20):\n        yield {'__key__': f'{n:04d}', 'txt': str(n)}\n"
    )
    made = then("shards", "prepare", "data:samples", "store://shards", "--samples-per-shard", "5", "--json")
    assert made.code == 0, made.text
    assert now("shards", "verify", "store://shards").code == 0
    assert now("shards", "list", "store://shards").code == 0
    again = now("shards", "prepare", "data:samples", "store://shards", "--samples-per-shard", "5", "--json")
    assert again.code == 0 and json.loads(again.out)["uri"] == made.json["uri"]
