"""Following from a step: what its log says and when, who reads it, and where a pod may put things."""

from __future__ import annotations

import os
import shlex
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.base import LogLine, Plan
from allaboard.backends.kubernetes.client import loader
from allaboard.backends.local.backend import LocalBackend
from allaboard.diagnosis import Diagnosis
from allaboard.errors import BadInput
from allaboard.follow.loop import Outcome
from allaboard.report.commands import HERE
from allaboard.report.ending import ending_lines
from allaboard.report.output import LONGEST
from allaboard.report.plain import launch_lines
from allaboard.running import new_owner
from allaboard.runs.observation import Condition, Objects, PodSeen, Progress, State
from allaboard.testing import FakeBackend, a_job, a_member, seen
from allaboard_kfp.inputs import job_of
from allaboard_kfp.step import (
    KEEPALIVE,
    MAY_PASS,
    Place,
    StepView,
    attempts_of,
    finish,
    keep_reason,
    place_of,
    reader_is_gone,
    run_to_the_end,
    step_errors,
)
from tests.core.report import one_output

OUTPUT = "/tmp/out/pipe-2026-11-21-12-00-00-000001/train/report"


class Clock:
    """Time as data."""

    def __init__(self) -> None:
        self.now = 1000.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock() -> Clock:
    return Clock()


@pytest.fixture
def backend() -> FakeBackend:
    made = FakeBackend()
    made.launch(Plan(a_job(), "k"), new_owner())
    return made


def write(backend: FakeBackend, *lines: str) -> None:
    backend.lines += [LogLine("master-0", 0, 0, None, line) for line in lines]


# --- the log ---


def test_the_log_of_a_step_shows_none_of_the_secrets_of_its_run(capfd: pytest.CaptureFixture[str]) -> None:
    """Also where a long line is cut."""
    backend = FakeBackend()
    write(backend, "plainWordOfTheJob77", "x" * (LONGEST - 5) + "plainWordOfTheJob77", "and *** itself")
    outcome, _ = run_to_the_end(backend, a_job(environment={"API_KEY": "plainWordOfTheJob77"}), "k", HERE)
    said = capfd.readouterr()
    assert outcome.ok and "[rank0] ***" in said.out and "and *** itself" in said.out
    assert "plain" not in said.out + said.err


def test_a_silent_training_is_said_to_live(
    backend: FakeBackend, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    view = StepView(backend, Plan(a_job(), "k").run, HERE, clock)
    running = seen(State.RUNNING, members=(a_member("master-0"), a_member("worker-0", "pending")))
    view.seen(running)
    capsys.readouterr()
    clock.now += KEEPALIVE - 1
    view.seen(running)
    assert capsys.readouterr().out == ""
    clock.now += 1
    view.seen(running)
    assert "still running" in (output := capsys.readouterr().out)
    assert "1 of 2 members running" in output
    view.seen(running)
    assert capsys.readouterr().out == ""


def test_a_place_in_a_queue_and_that_it_lives_are_one_line_a_minute(
    backend: FakeBackend, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    view = StepView(backend, Plan(a_job(), "k").run, HERE, clock)
    for second in range(300):
        who = f"{second % 9} before it: it needs 2 more cores, which run a{second} uses"
        view.seen(seen(State.QUEUED, waiting=f"this machine holds it back, {who}"))
        clock.now += 1
    assert len(capsys.readouterr().out.splitlines()) == 5


def test_one_that_gets_on_is_not(
    backend: FakeBackend, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    view = StepView(backend, Plan(a_job(), "k").run, HERE, clock)
    for step in range(5):
        view.seen(seen(State.RUNNING, progress=Progress(step=step, total=9)))
        clock.now += KEEPALIVE - 1
    assert "still" not in capsys.readouterr().out


def test_rank_0_is_quoted_once_and_without_the_lines_for_us(
    backend: FakeBackend, clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    view = StepView(backend, Plan(a_job(), "k").run, HERE, clock)

    def quoted() -> list[str]:
        view.seen(seen(State.RUNNING))
        lines = (line.strip() for line in capsys.readouterr().out.splitlines())
        return [line for line in lines if line.startswith("[rank0] ")]

    write(backend, "hello", '[allaboard] {"v":1,"kind":"progress","step":1}')
    assert quoted() == ["[rank0] hello"]
    write(backend, "more")
    assert quoted() == []  # looked a moment ago
    clock.now += 1
    assert quoted() == ["[rank0] more"]


def test_a_step_says_the_same_of_an_output_as_all_others(
    clock: Clock, capsys: pytest.CaptureFixture[str]
) -> None:
    backend = one_output.Wrote()
    handle = backend.launch(Plan(a_job(), "k"), new_owner())
    view = StepView(backend, handle.run, HERE, clock)
    view.launched(handle)
    capsys.readouterr()
    view.seen(one_output.RUNNING)
    # Stripped: kfp.local, once it ran a loop, indents whatever its process prints from then on.
    lines = [line.strip() for line in capsys.readouterr().out.splitlines()]
    assert [line for line in lines if "[rank0] " in line] == [f"[rank0] {line}" for line in one_output.LINES]
    assert lines[-1].endswith(f"  {one_output.PROGRESS}")
    view.ended(one_output.FAILED)
    ending = capsys.readouterr()
    assert f"last line of {one_output.FAILING}" in ending.err and one_output.TAIL in ending.err


# --- who reads it ---


def test_a_pipe_whose_reader_is_gone_is_noticed() -> None:
    reader, writer = os.pipe()
    assert not reader_is_gone(writer)
    os.write(writer, b"not read yet")
    assert not reader_is_gone(writer)
    os.close(reader)
    assert reader_is_gone(writer)
    os.close(writer)


def test_a_file_and_a_closed_stdout_count_as_read(tmp_path: Any) -> None:
    with (tmp_path / "log").open("w") as file:
        assert not reader_is_gone(file.fileno())
    assert not reader_is_gone(1_000_000)


# --- how it ends ---


@pytest.mark.parametrize(
    ("ending", "code"),
    [(State.SUCCEEDED, 0), (State.FAILED, 1), (State.LOST, 1), (State.STOPPED, 3), (State.TIMED_OUT, 4)],
)
def test_the_outcome_is_what_the_backend_saw(ending: State, code: int) -> None:
    backend = FakeBackend((State.QUEUED, State.RUNNING, ending))
    outcome, handle = run_to_the_end(backend, a_job(), "k", HERE)
    assert (outcome.exit_code, handle.attempt) == (code, 1)
    # Retries are the pipeline's, and the result is handed over only when it is published.
    assert [call[0] for call in backend.calls if call[0] in ("launch", "hand_over")] == ["launch"]


def test_a_job_that_wants_attempts_gets_them() -> None:
    backend = FakeBackend((State.RUNNING, State.LOST), (State.RUNNING, State.SUCCEEDED))
    outcome, handle = run_to_the_end(backend, a_job(policy={"attempts": 2}), "k", HERE)
    assert (outcome.ok, handle.attempt) == (True, 2)


def failing(code: str, state: State = State.FAILED, *, retryable: bool = False) -> Outcome:
    found = Diagnosis(code, f"it is a {code}", (), None, retryable, "do something about it")
    return Outcome(seen(state), (found,))


@pytest.mark.parametrize(
    ("outcome", "code", "verdict"),
    [
        (failing("python_exception"), 1, "another try would repeat it"),
        (failing("bad_entrypoint"), 1, "another try would repeat it"),
        (failing("node_lost", retryable=True), MAY_PASS, "another try may succeed"),
        (failing("image_pull_network", retryable=True), MAY_PASS, "another try may succeed"),
        (failing("unknown"), 1, "is not known"),
        (failing("killed_externally", State.LOST, retryable=True), 1, "another try may succeed"),
    ],
    ids=lambda value: value.diagnoses[0].code if isinstance(value, Outcome) else None,
)
def test_the_error_is_the_first_diagnosis_and_its_code_says_whether_a_retry_is_worth_it(
    outcome: Outcome, code: int, verdict: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        finish(outcome, HERE)
    assert ended.value.code == code
    error, cause = capsys.readouterr().err.splitlines()
    found = outcome.diagnoses[0]
    assert error.startswith("error: run digits-00000000 ") and error.endswith(found.summary)
    assert cause.startswith(f"cause: {found.code}; ") and verdict in cause and found.fix in cause


def test_an_interrupted_training_goes_on_within_its_step() -> None:
    gone = Condition("DisruptionTarget", "True", "PreemptionByScheduler", "preempted by a pod of team-b")
    pod = PodSeen("worker-0", "worker-0", "worker-0", phase="Failed", conditions=(gone,))
    taken = seen(State.FAILED, objects=Objects(pods=(pod,)))
    backend = FakeBackend((State.RUNNING, taken), (State.RUNNING, State.SUCCEEDED))
    outcome, handle = run_to_the_end(backend, a_job(), "k", HERE)
    assert outcome.ok and handle.attempt == 2
    (record,) = backend.records.values()
    assert (record.attempt, record.interruptions) == (2, 1)


def test_errors_of_ours_become_a_sentence_and_an_exit_code(capsys: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(SystemExit) as ended, step_errors():
        raise BadInput("that is not how it is spelt")
    assert ended.value.code == 2
    assert capsys.readouterr().err == "error: that is not how it is spelt\n"


def test_the_reason_of_a_failure_is_where_the_kubelet_reads_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    log = tmp_path / "termination-log"
    keep_reason("not in a pod", str(log))
    monkeypatch.setenv("KFP_POD_NAME", "retrain-1")
    keep_reason("there is no such file, and none is made", str(log))
    assert not log.exists()
    log.write_text("what a member wrote before, and longer than what follows")
    keep_reason(
        "run a failed:\n  master-0 exited with 7; AWS_SECRET_ACCESS_KEY=wJalrXUtnFEMIK7MDENGbPxRfiCY",
        str(log),
    )
    assert log.read_text().startswith("run a failed: master-0 exited with 7; ")
    assert "wJalrXUtn" not in log.read_text()
    keep_reason("\x1b[31m" + "ü" * 5000, str(log))
    assert "\x1b" not in log.read_text() and log.read_text().endswith("ü...")
    assert len(log.read_bytes()) <= 1000


@pytest.mark.parametrize("kind", ["folder", "pipe", "link", "read-only"])
def test_a_reason_that_cannot_be_written_is_no_error(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("KFP_POD_NAME", "retrain-1")
    log, other = tmp_path / "log", tmp_path / "other"
    other.write_text("mine")
    match kind:
        case "folder":
            log.mkdir()
        case "pipe":
            os.mkfifo(log)
        case "link":
            log.symlink_to(other)
        case "read-only":
            log.touch(0o400)
    keep_reason("why", str(log))
    assert other.read_text() == "mine"


def test_both_ways_in_which_a_step_fails_leave_the_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    kept: list[str] = []
    monkeypatch.setattr("allaboard_kfp.step.keep_reason", kept.append)
    with pytest.raises(SystemExit), step_errors():
        raise BadInput("that is not how it is spelt")
    with pytest.raises(SystemExit):
        finish(failing("python_exception"), HERE)
    assert kept == ["that is not how it is spelt", failing("python_exception").message]


class Cluster(FakeBackend):
    """A backend whose members are pods of their own."""

    name = "kubernetes"


@pytest.mark.parametrize(
    ("kind", "pod", "policy", "attempts"),
    [
        (Cluster, "retrain-1", {}, 3),
        (Cluster, "retrain-1", {"attempts": 1}, 1),
        (Cluster, "retrain-1", {"attempts": 2}, 2),
        (Cluster, "", {}, 1),
        (LocalBackend, "retrain-1", {}, 1),
    ],
)
def test_on_a_cluster_three_attempts_are_the_default(
    kind: type[Any], pod: str, policy: dict[str, int], attempts: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Kubeflow's stock manifests try no failed step again."""
    monkeypatch.setenv("KFP_POD_NAME", pod)
    if kind is LocalBackend:
        assert attempts_of(LocalBackend()) == attempts
        return
    lost = (State.RUNNING, State.LOST)
    outcome, handle = run_to_the_end(Cluster(lost, lost, lost, lost), a_job(policy=policy), "k", HERE)
    assert (outcome.ok, handle.attempt) == (False, attempts)


def test_an_end_that_would_repeat_is_not_tried_again_on_a_cluster(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("KFP_POD_NAME", "retrain-1")
    backend = Cluster((State.RUNNING, State.FAILED), (State.RUNNING, State.SUCCEEDED))
    outcome, handle = run_to_the_end(backend, a_job(), "k", HERE)
    assert (outcome.ok, handle.attempt) == (False, 1)


# --- what the reader of its log can type ---


def test_members_in_the_steps_own_pod_are_asked_inside_of_it(
    pod: Callable[..., Place], monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    """By a kubectl that runs what it is given here; after its end the pod answers nobody."""
    monkeypatch.setattr(loader, "namespace_of_pod", lambda: "team")
    monkeypatch.delenv("ALLABOARD_HOME", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    backend = pod().open_backend()
    at = place_of(backend)
    handle = backend.launch(Plan(job_of({"name": "a", "command": ["sleep", "60"]}, "", ""), "k"), new_owner())
    kubectl = tmp_path / "kubectl"
    kubectl.write_text('#!/bin/sh\n[ "$1 $2 $3 $4" = "exec retrain-1 -n team" ] && shift 5 && exec "$@"\n')
    kubectl.chmod(0o700)
    path = os.pathsep.join([str(tmp_path), str(Path(sys.executable).parent), os.environ["PATH"]])
    (line,) = launch_lines(handle, at)[:1]
    see, stop = (shlex.split(at.command(verb, handle.run)) for verb in ("status", "stop"))
    assert line.endswith(at.command("logs", handle.run, "-f")) and see[0] == "kubectl"
    for words in (see, stop):
        subprocess.run(words, env={"PATH": path, "HOME": "/proc/nobody"}, check=True, timeout=100)
    ended = Outcome(backend.observe(handle.run))
    assert not any("kubectl" in line for line in ending_lines(ended, at))


# --- where a pod may put things ---


@pytest.fixture
def pod(monkeypatch: pytest.MonkeyPatch) -> Iterator[Callable[..., Place]]:
    monkeypatch.setenv("KFP_POD_NAME", "retrain-1")
    monkeypatch.delenv("ALLABOARD_STORE", raising=False)
    yield lambda store="": Place.of(OUTPUT, store=store)


def test_a_pod_without_a_store_refuses_what_would_be_gone_with_it(
    pod: Callable[..., Place], monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(BadInput, match="store:// stands for nothing in this pod"):
        pod().uri("store://models")
    with pytest.raises(BadInput, match="ALLABOARD_STORE"):
        pod().check_store(
            job_of({**a_job(checkpoints={"uri": "store://c"}).as_mapping()}, "", "").as_mapping()
        )
    pod().check_store(a_job(checkpoints={"uri": "s3://b/c"}).as_mapping())
    assert pod().uri("s3://b/c") == "s3://b/c"
    assert pod("s3://b/team").uri("store://models") == "s3://b/team/models"
    monkeypatch.setenv("ALLABOARD_STORE", "/mnt/team")
    assert pod().uri("store://models") == "/mnt/team/models"


def test_a_pod_needs_no_home(
    pod: Callable[..., Place], monkeypatch: pytest.MonkeyPatch, tmp_path: Any
) -> None:
    monkeypatch.setenv("HOME", "/proc/nobody")
    monkeypatch.delenv("ALLABOARD_HOME", raising=False)
    monkeypatch.setattr("tempfile.tempdir", str(tmp_path))
    assert pod().open_backend().list() == []
    assert [path.name for path in tmp_path.iterdir()] == [f"allaboard-{os.getuid()}"]
