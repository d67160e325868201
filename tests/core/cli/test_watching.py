"""Looking at runs: status, list, follow, logs, events."""

from __future__ import annotations

import json
import re
import signal
from collections.abc import Iterator

import pytest

from allaboard.runs.observation import State
from allaboard.runs.status import state_of
from tests.core.cli.terminal import STATUS, TRAINS, WAITS, Said, Terminal, a_terminal, finished, wait_for

TALKS = """
import os, pathlib, sys, time
me = os.environ["ALLABOARD_MEMBER"]
tries = pathlib.Path(f"tries-{me}")
number = len(tries.read_text()) if tries.exists() else 0
tries.write_text("x" * (number + 1))
for n in range(3):
    print(f"{me} try {number} line {n}", flush=True)
done = pathlib.Path("done")
if me == "worker-0" and number == 2:
    done.touch()
while me == "master-0" and not done.exists():
    time.sleep(0.02)
sys.exit(me == "worker-0" and number < 2)
"""


# --- status


def test_the_page_of_a_run(ab: Terminal) -> None:
    assert ab("run", ab.job(workers=2), "--key", "nightly").code == 0
    (run,) = ab.runs()
    page = ab("status", "digits").out
    assert page.startswith(f"{run}  succeeded  after")
    for label in ("job", "key", "time", "conditions", "phases", "progress", "result", "next"):
        assert re.search(rf"^  {label} +\S", page, re.MULTILINE), label
    assert "digits: 1 master + 1 worker, attempt 1, 0 restarts" in page and "nightly" in page
    assert re.search(r"Created \S+ → Running \S+ → Succeeded", page)
    assert "step 10/10 (100%)" in page and "accuracy 0.9" in page
    assert re.search(r"worker-0 +1 +succeeded +0 +0 +/\S+worker-0.0.log", page)


def test_the_page_of_a_failed_run_says_why_and_exits_0(ab: Terminal) -> None:
    ab("run", ab.job("raise ValueError('odd')", policy={"restart": "never"}))
    said = ab("status", "digits")
    assert said.code == 0 and "failed" in said.out
    assert re.search(r"why +the training script raised an error \(master-0\): ValueError: odd", said.out)
    assert "to do: fix the script" in said.out


@pytest.mark.thorough
def test_the_page_of_a_live_run(ab: Terminal) -> None:
    assert (
        ab(
            "run",
            ab.job("from allaboard.inside import report\nreport(3, 10, loss=0.5)\n" + WAITS),
            "--detach",
        ).code
        == 0
    )
    ab.until_said("ready")
    wait_for(lambda: ab.seen().progress.step == 3)
    page = ab("status", "digits").out
    assert "running  for" in page and "detached" in page and "step 3/10 (30%)" in page
    assert "allaboard stop" in page
    body = ab("status", "digits", "--json").json
    assert set(body) == STATUS and body["state"] == "running" and body["progress"]["step"] == 3


@pytest.mark.thorough
def test_the_clock_of_the_phase_that_is_on_goes_on_between_two_looks(ab: Terminal) -> None:
    assert ab("run", ab.job(WAITS), "--detach").code == 0
    ab.until_said("ready")
    first, second = (ab("status", "digits", "--json").json["phases"] for _ in range(2))
    assert second["first_step"] > first["first_step"] > 0
    assert (first["admitted"], first["scheduled"]) == (second["admitted"], second["scheduled"])


@pytest.mark.thorough(but=("the beginning",))
@pytest.mark.parametrize("name", ["the id", "the beginning", "the job"])
def test_a_run_is_named_by_its_id_the_beginning_or_its_job(ab: Terminal, name: str) -> None:
    assert ab("run", ab.job()).code == ab("run", ab.job()).code == 0
    newest = max(ab.runs(), key=lambda run: ab.seen(run).created or 0)
    word = {"the id": newest, "the beginning": newest[:-3], "the job": "digits"}[name]
    assert ab("status", word, "--json").json["run"] == newest


def test_an_ambiguous_beginning_is_refused(ab: Terminal) -> None:
    assert ab("run", ab.job()).code == ab("run", ab.job()).code == 0
    said = ab("status", "dig")
    assert said.code == 2 and "matches 2 runs" in said.err and all(run in said.err for run in ab.runs())


# --- list


def test_the_list(ab: Terminal) -> None:
    said = ab("list")
    assert said.code == 0 and "no runs on this machine yet" in said.out
    assert ab("list", "--json").json == {"runs": []}
    assert ab("run", ab.job(workers=2)).code == 0
    ab("run", ab.job("raise SystemExit(3)", file="b.json", name="broken", policy={"restart": "never"}))
    head, first, second = ab("list").out.splitlines()
    assert head.split()[:4] == ["run", "state", "created", "took"]
    assert first.startswith("broken-") and "failed" in first
    assert (
        second.startswith("digits-")
        and "succeeded" in second
        and "1 master + 1 worker" in second
        and "10/10" in second
    )
    runs = ab("list", "--json").json["runs"]
    assert [r["name"] for r in runs] == ["broken", "digits"] and all(set(r) == STATUS for r in runs)


def test_the_list_says_who_holds_slots(ab: Terminal) -> None:
    assert ab("run", ab.job(WAITS, resources={"cpu": "10m", "memory": "64Mi"}), "--detach").code == 0
    ab.until_said("ready")
    (run,) = ab.runs()
    last = ab("list").out.splitlines()[-1]
    assert last.startswith("slots: ") and f"{run} (" in last and "holds 0.01 CPUs, 64.0 MiB" in last


# --- follow


def test_following_ends_as_the_run_does(ab: Terminal) -> None:
    assert ab("run", ab.job(), "--detach").code == 0
    said = ab("follow", "digits")
    assert said.code == 0 and "succeeded" in said.out
    ab("run", ab.job("raise SystemExit(3)", policy={"restart": "never"}), "--detach")
    said = ab("follow", "digits")
    assert said.code == 1 and "master-0 exited with 3" in said.err


def test_following_in_json_lines(ab: Terminal) -> None:
    script = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.02)\n" + TRAINS
    assert ab("run", ab.job(script), "--detach").code == 0
    follower = ab.start("follow", "digits", "--json")
    assert follower.stdout is not None
    first = follower.stdout.readline()
    (ab.folder / "go").touch()
    said = finished(follower)
    lines = [json.loads(line) for line in (first, *said.out.splitlines())]
    assert said.code == 0 and said.err == "" and all(set(line) == STATUS for line in lines)
    assert lines[0]["state"] in ("starting", "running")
    assert [line["state"] for line in lines].count("succeeded") == 1 and lines[-1]["state"] == "succeeded"


@pytest.mark.thorough
def test_a_follower_stops_nothing(ab: Terminal) -> None:
    assert ab("run", ab.job(WAITS), "--detach").code == 0
    ab.until_said("ready")
    follower = ab.start("follow", "digits", "--json")
    assert follower.stdout is not None and json.loads(follower.stdout.readline())["state"] in (
        "starting",
        "running",
    )
    follower.send_signal(signal.SIGINT)
    assert finished(follower).code == 130
    assert state_of(ab.seen()) is State.RUNNING and ab.seen().stop is None


@pytest.mark.thorough
def test_a_follower_of_a_stopped_run_ends_with_3(ab: Terminal) -> None:
    assert ab("run", ab.job(WAITS), "--detach").code == 0
    ab.until_said("ready")
    follower = ab.start("follow", "digits")
    assert follower.stdout is not None and follower.stdout.readline()
    assert ab("stop", "digits").code == 0
    said = finished(follower)
    assert said.code == 3 and "was stopped" in said.err


# --- logs


@pytest.fixture(scope="module")
def talked(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Terminal]:
    """A run of a master and two workers, of which worker 0 needed three tries; for tests that only read."""
    with a_terminal(tmp_path_factory.mktemp("talked")) as ab:
        assert ab("run", ab.job(TALKS, workers=3)).code == 0
        yield ab


def lines(said: Said) -> list[str]:
    assert said.code == 0, said.text
    return said.out.splitlines()


def test_all_members_with_their_names_in_front(talked: Terminal) -> None:
    found = lines(talked("logs", "digits"))
    assert "[master-0] master-0 try 0 line 0" in found and "[worker-1] worker-1 try 0 line 2" in found
    assert (
        "[worker-0] worker-0 try 0 line 0" in found and "[worker-0 restart 1] worker-0 try 1 line 0" in found
    )


@pytest.mark.parametrize("words", [["worker-0"], ["--rank", "1"]], ids=" ".join)
def test_one_member_without_its_name_and_every_try(talked: Terminal, words: list[str]) -> None:
    said = talked("logs", "digits", *words)
    assert lines(said) == [f"worker-0 try {t} line {n}" for t in range(3) for n in range(3)]
    assert "worker-0, restart 1" in said.err and "worker-0, restart 2" in said.err, (
        "where a try begins, beside the output"
    )


def test_one_try(talked: Terminal) -> None:
    for number in range(3):
        found = lines(talked("logs", "digits", "worker-0", "--restart", str(number)))
        assert found == [f"worker-0 try {number} line {n}" for n in range(3)]
    assert lines(talked("logs", "digits", "--restart", "2")) == [
        f"[worker-0 restart 2] worker-0 try 2 line {n}" for n in range(3)
    ]


def test_the_tail(talked: Terminal) -> None:
    assert lines(talked("logs", "digits", "worker-0", "--tail", "2")) == [
        "worker-0 try 2 line 1",
        "worker-0 try 2 line 2",
    ]
    assert lines(talked("logs", "digits", "--tail", "0")) == []


def test_since(talked: Terminal) -> None:
    everything = lines(talked("logs", "digits"))
    assert lines(talked("logs", "digits", "--since", "1h")) == everything
    assert lines(talked("logs", "digits", "--since", "0s")) == []


def test_logs_in_json_lines(talked: Terminal) -> None:
    said = talked("logs", "digits", "--json")
    found = [json.loads(line) for line in lines(said)]
    assert len(found) == 15 and said.err == ""
    keys = {"attempt", "member", "rank", "restart", "container", "time", "text", "gap"}
    assert all(set(line) == keys for line in found)
    assert {(line["member"], line["restart"]) for line in found} == {
        ("master-0", 0), ("worker-0", 0), ("worker-0", 1), ("worker-0", 2), ("worker-1", 0),
    }  # fmt: skip
    assert all(line["time"].endswith("Z") for line in found)


def test_a_member_or_rank_that_is_not_there(talked: Terminal) -> None:
    said = talked("logs", "digits", "worker-7")
    assert said.code == 2 and "there is no member 'worker-7'" in said.err
    said = talked("logs", "digits", "--rank", "3")
    assert said.code == 2 and "there is no rank 3; ranks are 0 to 2" in said.err
    said = talked("logs", "digits", "--attempt", "4")
    assert said.code == 2 and "no attempt 4" in said.err


def test_logs_as_they_come_until_the_end(ab: Terminal) -> None:
    script = """
import pathlib, time
for n in range(3):
    print("line", n, flush=True)
    while not pathlib.Path(f"go-{n}").exists():
        time.sleep(0.02)
"""
    assert ab("run", ab.job(script), "--detach").code == 0
    process = ab.start("logs", "digits", "-f")
    assert process.stdout is not None
    for n in range(3):
        assert process.stdout.readline() == f"line {n}\n"
        assert process.poll() is None
        (ab.folder / f"go-{n}").write_text("")
    assert finished(process) == Said(0, "", "")


def test_logs_of_each_attempt(ab: Terminal) -> None:
    job = ab.job("print('first attempt')\nraise SystemExit(1)", policy={"restart": "never"})
    assert ab("run", job, "--key", "nightly").code == 1
    ab.job("print('second attempt')", policy={"restart": "never"})
    assert ab("run", job, "--key", "nightly").code == 0
    assert ab("logs", "digits").out == "second attempt\n"
    assert ab("logs", "digits", "--attempt", "1").out == "first attempt\n"
    assert [
        json.loads(ab("logs", "digits", "--attempt", a, "--json").out)["attempt"] for a in ("1", "2")
    ] == [1, 2]


# --- events


def test_events_in_order(talked: Terminal) -> None:
    body = talked("events", "digits", "--json").json
    assert set(body) == {"events"}
    assert all(set(e) == {"time", "type", "reason", "object", "message"} for e in body["events"])
    reasons = [e["reason"] for e in body["events"]]
    assert (
        reasons[0] == "PyTorchJobCreated"
        and reasons.count("BackOff") == 2
        and "PyTorchJobSucceeded" in reasons
    )
    assert [e["time"] for e in body["events"]] == sorted(e["time"] for e in body["events"])
    table = talked("events", "digits").out.splitlines()
    assert (
        table[0].split() == ["time", "type", "object", "reason", "message"] and len(table) == len(reasons) + 1
    )
