"""`allaboard run`: what it answers, how signals are obeyed, and who may die and be replaced. Real processes
throughout."""

from __future__ import annotations

import json
import os
import signal
import subprocess
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from allaboard.runs.observation import State
from allaboard.runs.status import state_of
from tests.core.cli.terminal import STATUS, STUBBORN, TRAINS, WAITS, Terminal, finished, wait_for

PHASES = {"admitted", "scheduled", "image", "rendezvous", "first_step", "training"}
MEMBER = {"group", "index", "rank", "phase", "exit_code", "restarts", "log"}
FAILS = """
import sys
print("about to fail", flush=True)
raise ValueError("the data is odd")
"""


def test_a_run_that_succeeds(ab: Terminal) -> None:
    said = ab("run", ab.job(workers=2))
    assert said.code == 0 and said.err == ""
    (run,) = ab.runs()
    assert f"{run} is on its way" in said.out and "running: 1 master + 1 worker" in said.out
    assert f"✓ {run} succeeded" in said.out and "accuracy 0.9, loss 0.1" in said.out
    assert str(ab.backend.find(run).path) in said.out, "where the logs are"
    assert f"allaboard logs {run}" in said.out, "what to try next"
    assert ab.seen(run).handed_over


def test_the_json_of_a_run_is_that_of_its_status(ab: Terminal) -> None:
    said = ab("run", ab.job(workers=2), "--json")
    assert said.code == 0 and "running" in said.err, "what happens is said beside the object"
    body = said.json
    assert set(body) == STATUS
    assert set(body["phases"]) == PHASES and all(set(m) == MEMBER for m in body["members"])
    assert set(body["checkpoints"]) == {"latest", "best"}
    assert set(body["progress"]) == {"step", "total", "lost_steps"}
    assert body["state"] == "succeeded" and body["name"] == "digits" and body["attempt"] == 1
    assert body["metrics"] == {"accuracy": 0.9, "loss": 0.1}
    assert body["progress"] == {"step": 10, "total": 10, "lost_steps": 0}
    assert body["started"].endswith("Z") and body["finished"].endswith("Z")
    assert [c["type"] for c in body["conditions"]] == ["Created", "Running", "Succeeded"]
    assert ab("status", "digits", "--json").json == body


def test_a_run_that_fails_says_why_and_what_to_do(ab: Terminal) -> None:
    said = ab("run", ab.job(FAILS, policy={"restart": "never"}))
    (run,) = ab.runs()
    assert said.code == 1
    first, *rest = said.err.splitlines()
    assert run in first and "failed after" in first and "ValueError: the data is odd" in first, "one sentence"
    text = "\n".join(rest)
    assert "because" in text and "master-0 wrote: ValueError: the data is odd" in text, "the evidence, quoted"
    assert "fix the script" in text, "what to do"
    assert "│ about to fail" in text and "│ ValueError: the data is odd" in text, "its last lines"
    assert f"allaboard logs {run} master-0" in text and "--key once/" in text


@pytest.mark.thorough
def test_the_last_lines_are_those_of_the_member_that_failed_first(ab: Terminal) -> None:
    script = """
import os, sys, time
if os.environ["RANK"] == "1":
    for n in range(100): print("line", n)
    sys.exit(7)
print("the peer went away", flush=True)
time.sleep(60)
"""
    said = ab("run", ab.job(script, workers=3, policy={"restart": "never"}))
    assert said.code == 1 and "worker-0 exited with 7" in said.err
    quoted = [line.strip() for line in said.err.splitlines() if "│" in line]
    assert quoted == [f"│ line {n}" for n in range(80, 100)]


def test_a_failed_run_in_json(ab: Terminal) -> None:
    said = ab("run", ab.job(FAILS, policy={"restart": "never"}), "--json")
    assert said.code == 1 and set(said.json) == STATUS and said.json["state"] == "failed"
    first = said.json["diagnoses"][0]
    told = {"code", "summary", "evidence", "blame", "retryable", "fix", "confidence", "also"}
    assert set(first) == told
    assert first["code"] == "python_exception" and first["blame"] == "master-0"
    assert all(set(e) == {"object", "field", "text"} for e in first["evidence"])


def test_a_deadline_is_exit_code_4(ab: Terminal) -> None:
    said = ab("run", ab.job(WAITS, policy={"deadline": "1s"}))
    assert said.code == 4 and "ran out of time" in said.err and "policy.deadline" in said.err


@pytest.mark.thorough
def test_a_run_stopped_from_elsewhere_is_exit_code_3(ab: Terminal) -> None:
    process = ab.start("run", ab.job(WAITS))
    ab.until_said("ready")
    stopped = ab("stop", "digits", "--reason", "the GPUs are needed")
    said = finished(process)
    assert stopped.code == 0 and "the GPUs are needed" in stopped.out
    assert said.code == 3 and "was stopped" in said.err and "the GPUs are needed" in said.err


@pytest.mark.thorough
def test_a_deleted_run_is_exit_code_3(ab: Terminal) -> None:
    process = ab.start("run", ab.job(WAITS))
    ab.until_said("ready")
    assert ab("delete", "digits").code == 0
    assert finished(process).code == 3


@pytest.mark.thorough
def test_restarts_are_told_as_they_happen(ab: Terminal) -> None:
    script = """
import pathlib, sys
tries = pathlib.Path("tries")
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
sys.exit(len(tries.read_text()) < 3)
"""
    said = ab("run", ab.job(script))
    assert said.code == 0
    assert "exited with code 1; restart 1" in said.out and "exited with code 1; restart 2" in said.out


@pytest.mark.thorough
def test_every_call_trains_anew_without_a_key(ab: Terminal) -> None:
    job = ab.job()
    assert ab("run", job).code == ab("run", job).code == 0
    assert len(ab.runs()) == 2


def test_a_result_is_handed_over_once_and_then_the_run_trains_from_scratch(ab: Terminal) -> None:
    script = TRAINS + "\nopen('trained', 'a').write('x')\n"
    job = ab.job(script)
    assert ab("run", job, "--key", "nightly", "--detach").code == 0
    wait_for(lambda: state_of(ab.seen()) is State.SUCCEEDED)
    again = ab("run", job, "--key", "nightly")
    assert again.code == 0 and "nothing is run" in again.out and "accuracy 0.9" in again.out
    assert (ab.folder / "trained").read_text() == "x"
    third = ab("run", job, "--key", "nightly")
    assert third.code == 0 and "trains again from scratch" in third.out
    assert (ab.folder / "trained").read_text() == "xx" and len(ab.runs()) == 1


def test_detached(ab: Terminal) -> None:
    said = ab("run", ab.job(WAITS), "--detach")
    (run,) = ab.runs()
    assert said.code == 0 and f"allaboard follow {run}" in said.out and f"allaboard stop {run}" in said.out
    owner = ab.seen(run).owner
    assert owner is not None and (owner.kind, owner.phase) == ("detached", "detached")
    said = ab("run", ab.job(WAITS, file="other.json"), "--detach", "--json")
    assert (
        said.code == 0
        and set(said.json) == STATUS
        and said.json["state"] in ("starting", "running", "queued")
    )


def test_a_killed_client_leaves_the_run_and_the_same_key_finds_it(ab: Terminal) -> None:
    job = ab.job("open('started', 'a').write('x')\n" + WAITS, checkpoints=None)
    first = ab.start("run", job, "--key", "nightly")
    ab.until_said("ready")
    first.kill()
    assert first.wait() == -signal.SIGKILL
    assert ab.processes(ab.runs()[0]), "the run goes on without its client"
    second = ab.start("run", job, "--key", "nightly")
    assert second.stdout is not None
    assert "runs already; following it" in second.stdout.readline()
    second.send_signal(signal.SIGINT)
    assert finished(second).code == 3
    assert (ab.folder / "started").read_text() == "x" and len(ab.runs()) == 1


def test_a_live_run_with_another_job_is_refused_and_the_difference_shown(ab: Terminal) -> None:
    assert ab("run", ab.job(WAITS), "--key", "nightly", "--detach").code == 0
    said = ab("run", ab.job(WAITS, workers=2), "--key", "nightly")
    assert said.code == 2 and "workers: absent -> 2" in said.err and "allaboard stop" in said.err
    said = ab("run", ab.job(WAITS, workers=2), "--key", "nightly", "--json")
    assert said.code == 2 and said.json["error"]["code"] == "spec_changed"
    assert all(" -> " in problem["message"] for problem in said.json["error"]["problems"])
    assert said.json["error"]["problems"]
    assert state_of(ab.seen()) in (State.STARTING, State.RUNNING)


def test_a_stopped_run_goes_on_under_its_key(ab: Terminal) -> None:
    job = ab.job(WAITS)
    first = ab.start("run", job, "--key", "nightly")
    ab.until_said("ready")
    first.send_signal(signal.SIGINT)
    assert "allaboard run job.json --key nightly" in finished(first).err
    ab.job(TRAINS)
    said = ab("run", job, "--key", "nightly")
    assert said.code == 0 and "attempt 2" in said.out and "the one before stopped" in said.out


@pytest.mark.thorough(but=("15-SIGTERM",))
@pytest.mark.parametrize(("number", "word"), [(signal.SIGINT, "Ctrl-C"), (signal.SIGTERM, "SIGTERM")])
def test_the_first_signal_stops_the_run_and_waits_until_it_has_saved(
    ab: Terminal, number: int, word: str
) -> None:
    process = ab.start("run", ab.job(WAITS, workers=2))
    ab.until_said("ready", member="master-0")
    ab.until_said("ready", member="worker-0")
    process.send_signal(number)
    said = finished(process)
    assert said.code == 3 and f"{word}: stopping" in said.out and "was stopped" in said.err
    (run,) = ab.runs()
    seen = ab.seen(run)
    assert seen.stop is not None and seen.stop.reason == word and "@" in seen.stop.by
    assert ab.processes(run) == []
    assert "saved" in ab("logs", run, "master-0").out and "saved" in ab("logs", run, "worker-0").out
    assert [m.exit_code for m in seen.members] == [143, 143]


def test_the_second_signal_kills(ab: Terminal) -> None:
    process = ab.start("run", ab.job(STUBBORN, spot={"grace": "1h"}))
    ab.until_said("ready")
    process.send_signal(signal.SIGINT)
    ab.until_said("no")
    assert process.poll() is None, "it waits for the member"
    process.send_signal(signal.SIGTERM)
    said = finished(process)
    assert said.code == 3 and "killing it" in said.out
    (run,) = ab.runs()
    assert ab.processes(run) == [] and ab.seen(run).members[0].exit_code == 137


def test_a_signal_to_a_run_that_waits_for_slots_ends_it(ab: Terminal) -> None:
    needy = {"resources": {"cpu": 10_000}}
    first = ab.start("run", ab.job(WAITS, **needy))
    ab.until_said("ready")
    second = ab.start("run", ab.job(WAITS, file="second.json", name="second", **needy))
    wait_for(lambda: len(ab.runs()) == 2 and state_of(ab.seen("second")) is State.QUEUED)
    table = ab("list")
    assert "queued" in table.out and "slots: 0 of" in table.out and "waits (1): second-" in table.out
    (holds,) = [run for run in ab.runs() if not run.startswith("second-")]
    why = ab("status", "second", "--json").json["diagnoses"][0]["summary"]
    assert why.startswith("this machine holds it back, next in line: it needs ")
    assert why.endswith(f", which run {holds} uses")
    assert why in " ".join(ab("status", "second").out.split())
    (told,) = ab("status", "second", "--json").json["diagnoses"]
    assert (told["code"], told["summary"], told["retryable"]) == ("queue_quota_pending", why, True)
    queue = ab("queues", "--json").json
    (waiter,) = queue["queues"][0]["waiters"]
    assert (waiter["position"], waiter["why"]) == (1, why) and "whoever came first" in queue["notes"][0]
    assert f"waits (1)  {waiter['name']} ({waiter['user']}) for " in ab("queues").out
    second.send_signal(signal.SIGINT)
    assert finished(second).code == 3
    first.send_signal(signal.SIGINT)
    assert finished(first).code == 3


def test_a_terminal_that_goes_away_leaves_the_run(ab: Terminal) -> None:
    process = ab.start("run", ab.job(WAITS))
    ab.until_said("ready")
    process.send_signal(signal.SIGHUP)
    said = finished(process)
    (run,) = ab.runs()
    assert said.code == 0 and f"allaboard follow {run}" in said.out
    seen = ab.seen(run)
    assert state_of(seen) is State.RUNNING and ab.processes(run)
    assert seen.owner is not None and seen.owner.kind == "detached", "nobody need watch it from now on"
    assert ab("stop", run).code == 0


@pytest.mark.thorough
def test_a_terminal_that_goes_away_beside_a_json_object(ab: Terminal) -> None:
    process = ab.start("run", ab.job(WAITS), "--json")
    ab.until_said("ready")
    process.send_signal(signal.SIGHUP)
    said = finished(process)
    assert said.code == 0 and set(said.json) == STATUS and said.json["state"] == "running"
    assert ab("stop", "digits").code == 0


@pytest.mark.thorough
def test_under_nohup_the_client_stays(ab: Terminal) -> None:
    process = ab.start("run", ab.job(WAITS), preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN))
    ab.until_said("ready")
    process.send_signal(signal.SIGHUP)
    process.send_signal(signal.SIGINT)
    assert finished(process).code == 3


def test_what_somebody_else_took_over_is_left_alone(ab: Terminal) -> None:
    job = ab.job(WAITS)
    first = ab.start("run", job, "--key", "nightly")
    ab.until_said("ready")
    before = ab.seen().owner
    second = ab.start("run", job, "--key", "nightly")
    wait_for(lambda: ab.seen().owner != before)
    first.send_signal(signal.SIGINT)
    said = finished(first)
    assert said.code == 5 and "belongs to" in said.out and "goes on" in said.out
    assert state_of(ab.seen()) is State.RUNNING and second.poll() is None
    second.send_signal(signal.SIGINT)
    assert finished(second).code == 3


@pytest.mark.thorough
def test_nobody_reads_its_output_and_it_still_follows(ab: Terminal) -> None:
    reader, writer = os.pipe()
    process = ab.start("run", ab.job(WAITS), stdout=writer)
    os.close(writer)
    ab.until_said("ready")
    os.close(reader)
    assert ab("stop", "digits").code == 0
    assert finished(process).code == 3


@pytest.mark.thorough
def test_a_lost_run_is_tried_again_as_often_as_it_was_said(ab: Terminal) -> None:
    script = """
import os, pathlib, signal, time
tries = pathlib.Path("tries")
tries.write_text(tries.read_text() + "x" if tries.exists() else "x")
print("ready", len(tries.read_text()), flush=True)
if len(tries.read_text()) < 3:
    time.sleep(600)
"""
    process = ab.start("run", ab.job(script), "--attempts", "2")
    for attempt in (1, 2):
        ab.until_said(f"ready {attempt}")
        for pid in holders(ab, ab.runs()[0]):
            with suppress(ProcessLookupError):  # the keeper ends with its supervisor
                os.kill(pid, signal.SIGKILL)
    said = finished(process)
    assert said.code == 1 and "was lost" in said.err and "2 of 2 attempts used" in said.err
    assert ab.seen().attempt == 2


def holders(ab: Terminal, run: str) -> list[int]:
    """The processes that hold the lock of a run's attempt: supervisor and keeper."""
    found = ab.backend.find(run)
    live = str(found.attempts()[-1].live)
    pids = []
    for process in Path("/proc").iterdir():
        if process.name.isdecimal():
            try:
                if any(str(fd.readlink()) == live for fd in (process / "fd").iterdir()):
                    pids.append(int(process.name))
            except OSError:
                continue
    return pids


def test_a_store_and_mounts_from_the_command_line(ab: Terminal) -> None:
    script = """
import os, sys
from allaboard.inside import context, result
result(checkpoints=context().checkpoints, data=sys.argv[1], other=sys.argv[2])
"""
    job = ab.job(
        script,
        checkpoints={"uri": "store://digits/runs"},
        storage=[{"mount": "/data", "pvc": "sets"}],
        command=["python", "job.py", "/data/train.csv", "store://digits/shards"],
    )
    said = ab("run", job, "--json", "--store", "./team", "--mount", "/data=./sets")
    assert said.code == 0
    (run,) = ab.runs()
    assert said.json["metrics"] == {
        "checkpoints": f"{ab.folder}/team/digits/runs/{run}",
        "data": f"{ab.folder}/sets/train.csv",
        "other": f"{ab.folder}/team/digits/shards",
    }


def test_what_has_no_meaning_here_is_named_in_one_line(ab: Terminal) -> None:
    said = ab("run", ab.job(image="registry/train:1", gang={"queue": "research"}))
    assert said.code == 0 and "image, gang.queue: ignored on one machine" in said.out
    assert "slots of one machine go to whoever came first" in said.out


@pytest.mark.thorough
def test_a_gang_too_large_is_shrunk_with_a_word(ab: Terminal) -> None:
    job = ab.job(workers=2, resources={"cpu": 10_000})
    said = ab("run", job)
    assert said.code == 0 and "20000 cores" in said.out and "each gets at most" in said.out
    assert ab("run", job, "--fit", "strict").code == 2


def test_members_get_the_callers_environment_and_it_is_not_written_down(ab: Terminal) -> None:
    script = (
        "import os\nprint('found', os.environ.get('MY_TOKEN'), os.environ.get('AIRFLOW__CORE__FERNET_KEY'))"
    )
    said = ab("run", ab.job(script), MY_TOKEN="hush-hush", AIRFLOW__CORE__FERNET_KEY="secret")
    assert said.code == 0
    assert ab("logs", "digits").out == "found hush-hush None\n"
    home = Path(ab.environ["ALLABOARD_HOME"])
    written = [p for p in home.rglob("*") if p.is_file() and p.suffix != ".log"]
    assert written and not any(b"hush-hush" in p.read_bytes() for p in written)


@pytest.mark.thorough
def test_python_dash_m_and_a_job_in_another_folder(ab: Terminal, tmp_path: Path) -> None:
    ab.job("print(open('beside.txt').read())")
    ab.write("beside.txt", "members start beside the job file")
    done = subprocess.run(
        ab.command("run", str(ab.folder / "job.json"), "--json"),
        cwd=tmp_path,
        env=ab.environ,
        capture_output=True,
        text=True,
    )
    assert done.returncode == 0 and json.loads(done.stdout)["state"] == "succeeded"
    assert "beside the job file" in ab("logs", "digits").out


GOES = "print('reads rows')\nprint('epoch 1 loss 0.5')\n"
ODD = "print('reads rows')\nprint('the column age is missing')\nraise ValueError('odd')\n"


@pytest.mark.thorough
def test_the_doctor_says_what_differs_since_the_last_good_run(ab: Terminal) -> None:
    fields: dict[str, Any] = {"code": ["job.py"], "policy": {"restart": "never"}}
    assert ab("run", ab.job(GOES, **fields), "--key", "monday").code == 0
    good = ab.seen().run
    assert "last_good" not in ab("doctor", good, "--json").json
    failed = ab("run", ab.job(ODD, environment={"LR": "3"}, **fields), "--key", "tuesday")
    changes = 'environment: absent -> {"LR": "3"}, job.py: 2 lines changed'
    assert failed.code == 1 and f"since the last good run, {good}: {changes}" in failed.err
    [bad] = set(ab.runs()) - {good}
    told = ab("doctor", bad, "--json").json["last_good"]
    assert told["run"] == good
    assert told["changes"] == ['environment: absent -> {"LR": "3"}', "job.py: 2 lines changed"]
    assert {"member": "master-0", "text": "the column age is missing"} in told["lines"]
    assert not any("reads rows" in line["text"] for line in told["lines"])
    shown = ab("doctor", bad).out
    assert f"since the last good run, {good}" in shown and "│ master-0: the column age is missing" in shown


WITH = """
import sys, types
from allaboard.inside import report
sys.modules["lab"] = lab = types.ModuleType("lab")
lab.__version__ = sys.argv[1]
report(1, total=1)
sys.exit(int(sys.argv[2]))
"""


@pytest.mark.thorough
def test_another_version_of_a_package_is_told(ab: Terminal) -> None:
    script = ab.folder / "with.py"
    script.write_text(WITH)
    for version, code in (("1.0", 0), ("1.1", 1)):
        fields: dict[str, Any] = {"command": ["python", str(script), version, str(code)]}
        done = ab("run", ab.job("", **fields, policy={"restart": "never"}), "--key", version)
        assert done.code == code
    assert "lab: 1.0 -> 1.1" in done.err
