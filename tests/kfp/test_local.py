"""Under kfp.local, for real: each component, the example's pipeline, and what kfp.local does to steps."""

# kfp reads the annotations of a pipeline: no `from __future__ import annotations` here.

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import psutil
import pytest
from kfp import dsl, local

from allaboard.checkpoints import list_checkpoints
from allaboard.errors import BadInput
from allaboard.runs.status import state_of
from allaboard.shards import load_index
from allaboard.storage import open_store
from allaboard_kfp import collect_checkpoint, evaluate, prepare_shards, promote, start_local, train
from tests.kfp.conftest import JOBS, Here
from tests.kfp.golden import ROOT
from tests.kfp.test_steps import PICTURES
from tests.kfp.waiting import until

QUICK = {"name": "quick", "command": ["python", "quick.py"], "workers": 1}
SAVING = {"uri": "store://checkpoints", "every": 2, "best": {"metric": "val_loss", "mode": "min"}}


@pytest.fixture
def started(here: Here) -> Here:
    start_local(here.out)
    return here


def test_each_component_runs(started: Here) -> None:
    data = prepare_shards(
        source="counting.py:samples", into="store://numbers", samples_per_shard=4, folder=str(JOBS)
    )
    uri = data.outputs["Output"]
    assert load_index(open_store(uri)).samples == 10
    assert data.outputs["dataset"].metadata["uri"] == uri
    assert json.loads(Path(data.outputs["dataset"].path).read_text())["uri"] == uri

    trained = train(job={**QUICK, "checkpoints": SAVING}, shards=uri, folder=str(JOBS))
    assert trained.outputs["model"].metadata["uri"] == trained.outputs["checkpoint"]
    assert trained.outputs["metrics"].metadata == {"val_loss": 0.1, "accuracy": 0.99}
    page = Path(trained.outputs["report"].path).read_text()
    assert page.startswith("<!doctype html>")

    kept = collect_checkpoint(source=trained.outputs["checkpoints"], into="store://models").outputs["Output"]
    assert [found.step for found in list_checkpoints(open_store(Path(kept).parent))] == [10]

    pictures = {"PICTURES": json.dumps(PICTURES)}
    judge = {"name": "judge", "command": ["python", "judge.py"], "workers": 1, "environment": pictures}
    judged = evaluate(job=judge, checkpoint=kept, folder=str(JOBS))
    assert judged.outputs["results"] == {"accuracy": 0.98, "step": 10.0, "nested": {"loss": 0.1}}
    drawn = judged.outputs["classification"].metadata
    assert [row["row"] for row in drawn["confusionMatrix"]["rows"]] == [[48, 2], [1, 49]]
    assert [point["recall"] for point in drawn["confidenceMetrics"]] == [0.0, 0.9, 1.0]
    assert "| accuracy | 0.98 |" in Path(judged.outputs["summary"].path).read_text()

    ended = promote(
        checkpoint=kept, into="store://champions", results=judged.outputs["results"], metric="accuracy"
    )
    assert (ended.outputs["promoted"], ended.outputs["number"], ended.outputs["champion"]) == (True, 1, kept)


# --- failing ---


@dsl.pipeline(name="chain")
def chain(job: dict, folder: str, again: int = 0):  # type: ignore[no-untyped-def, type-arg]
    """Train, then collect."""
    trained = train(job=job, folder=folder)
    collect_checkpoint(source=trained.outputs["checkpoints"], into="store://models")


def test_a_failed_training_fails_its_step_and_the_pipeline_with_the_reason(
    started: Here, capfd: pytest.CaptureFixture[str]
) -> None:
    job = {**QUICK, "checkpoints": SAVING, "environment": {"FAIL_AT": "5"}, "policy": {"restart": "never"}}
    with pytest.raises(RuntimeError, match=r"Inner task failed:.*train"):
        chain(job=job, folder=str(JOBS))
    output = capfd.readouterr().out
    assert "the data is not what it should be" in output
    assert "exited with 7" in output
    assert not (started.store / "models").exists()


@pytest.mark.thorough(but=("bug",))
@pytest.mark.parametrize(
    ("code", "why", "cause"),
    [
        ("raise ValueError('bad batch 7')", "ValueError: bad batch 7", "python_exception; another try would"),
        ("import os; os.kill(os.getpid(), 9)", "", "killed_externally; another try may succeed"),
    ],
    ids=["bug", "killed"],
)
def test_a_failed_step_says_the_first_diagnosis_and_whether_a_retry_is_worth_it(
    started: Here, capfd: pytest.CaptureFixture[str], code: str, why: str, cause: str
) -> None:
    job = {"name": "quick", "command": ["python", "-c", code], "policy": {"restart": "never"}}
    with pytest.raises(RuntimeError):
        train(job=job, folder=str(JOBS))
    output = capfd.readouterr().out
    error = next(line for line in output.splitlines() if "error: run quick-" in line)
    assert why in error and f"cause: {cause}" in output
    assert started.the_run().attempt == 1


def test_bad_input_fails_the_step_in_a_sentence(started: Here, capfd: pytest.CaptureFixture[str]) -> None:
    with pytest.raises(RuntimeError):
        train(job={**QUICK, "wrokers": 3}, folder=str(JOBS))
    output = capfd.readouterr().out
    assert "wrokers: no such field (did you mean 'workers'?)" in output
    assert "Traceback" not in output
    assert not started.runs()


@dsl.pipeline(name="patient")
def patient(job: dict, folder: str):  # type: ignore[no-untyped-def, type-arg]
    """A training that is tried again."""
    train(job=job, folder=folder).set_retry(2, backoff_duration="1s")


@pytest.mark.thorough
def test_the_retry_of_a_step_resumes_its_training(started: Here) -> None:
    diary = started.folder / "diary"
    environment = {"FAIL_AT": "5", "ONCE": str(started.folder / "once"), "DIARY": str(diary)}
    job = {**QUICK, "checkpoints": SAVING, "environment": environment, "policy": {"restart": "never"}}
    patient(job=job, folder=str(JOBS))
    run = started.the_run()
    assert (run.attempt, run.progress.step, run.handed_over) == (2, 10, True)
    assert diary.read_text() == "0\n4\n"


@dsl.pipeline(name="loop")
def loop(folder: str):  # type: ignore[no-untyped-def]
    """Two trainings that are alike, side by side."""
    with dsl.ParallelFor(["0.1", "0.2"]):
        train(job={"name": "quick", "command": ["python", "quick.py"], "workers": 1}, folder=folder)


@pytest.mark.thorough
def test_steps_of_a_loop_are_runs_of_their_own(started: Here) -> None:
    loop(folder=str(JOBS))
    assert len(started.runs()) == 2
    assert {str(state_of(run)) for run in started.runs()} == {"succeeded"}


# --- what kfp.local does to its steps ---


@pytest.mark.thorough
def test_what_kfp_local_changes_is_undone(started: Here) -> None:
    """Whole numbers in a mapping arrive as floats there, and every python3 as the interpreter's path."""
    words = started.folder / "words"
    output = ["--lr=0.5", "--with=python3.12", "/data/python3/x", "python3"]
    job = {
        **QUICK, "command": ["python3", "quick.py", *output], "environment": {"WORDS": str(words)},
        "checkpoints": {**SAVING, "keep": 2}, "policy": {"backoff_limit": 1},
    }  # fmt: skip
    train(job=job, folder=str(JOBS))
    assert words.read_text().splitlines() == output
    run = started.the_run()
    saved = list_checkpoints(open_store(started.store / "checkpoints" / run.run))
    assert [found.step for found in saved] == [8, 10]


def test_a_pipeline_root_that_kfp_local_would_garble_is_refused(
    here: Here, capfd: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(BadInput, match="'python3'"):
        start_local(here.folder / "python3.12" / "out")
    local.init(
        local.SubprocessRunner(use_venv=False),
        pipeline_root=str(here.folder / "python3.12"),
        raise_on_error=True,
    )
    with pytest.raises(RuntimeError):
        train(job=QUICK, folder=str(JOBS))
    assert "give kfp.local.init a pipeline_root without it" in capfd.readouterr().out
    assert not here.runs()


@pytest.mark.thorough
def test_a_workspace_that_kfp_local_would_delete_is_refused(here: Here) -> None:
    theirs = here.folder / "work" / "my-files"
    theirs.mkdir()
    (theirs / "thesis.txt").write_text("years")
    with pytest.raises(BadInput, match="deletes it after every pipeline"):
        start_local(here.out, workspace_root=str(theirs))
    start_local(here.out, workspace_root=str(here.folder / "empty"))
    loop(folder=str(JOBS))
    assert (theirs / "thesis.txt").read_text() == "years"


PIPELINE = """
import json, sys
from tests.kfp.test_local import chain
from allaboard_kfp import start_local
out, job, folder = sys.argv[1:]
start_local(out)
chain(job=json.loads(job), folder=folder)
"""


@contextmanager
def _pipeline(here: Here, path: str = "", **environment: str) -> Iterator[subprocess.Popen[str]]:
    """The pipeline in a process of its own, at step 3 of its training."""
    job = {**QUICK, "checkpoints": SAVING, "environment": {"HOLD": "/never", **environment}}
    with subprocess.Popen(
        [sys.executable, "-c", PIPELINE, str(here.out), json.dumps(job), str(JOBS)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
        env={**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, [path, str(ROOT)]))},
    ) as pipeline:  # fmt: skip
        try:
            until(lambda: (here.runs() or [None])[0] and here.the_run().progress.step == 3)
            yield pipeline
        finally:
            pipeline.kill()


def _steps(pipeline: int) -> list[psutil.Process]:
    return psutil.Process(pipeline).children(recursive=True)


@pytest.mark.thorough(but=("SIGKILL",))
@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM], ids=lambda n: n.name)
def test_a_pipeline_that_is_killed_leaves_no_training_behind(here: Here, how: signal.Signals) -> None:
    with _pipeline(here) as pipeline:
        steps = _steps(pipeline.pid)
        assert steps
        pipeline.send_signal(how)
        pipeline.wait(60)
        until(lambda: state_of(here.the_run()).is_final)
        until(lambda: not any(step.is_running() and step.status() != "zombie" for step in steps))
    run = here.the_run()
    assert str(state_of(run)) == "stopped"
    assert run.stop is not None and run.stop.reason == "the pipeline that ran this step is gone"
    assert [member.phase for member in run.members if member.phase == "running"] == []
    # It had time to save, so that the same training could go on.
    assert list_checkpoints(open_store(here.store / "checkpoints" / run.run))[-1].step == 3


@pytest.mark.thorough
def test_ctrl_c_at_the_terminal_stops_the_training(here: Here) -> None:
    with _pipeline(here) as pipeline:
        os.killpg(pipeline.pid, signal.SIGINT)  # a terminal sends it to the whole group
        pipeline.wait(60)
        until(lambda: state_of(here.the_run()).is_final)
    assert str(state_of(here.the_run())) == "stopped"


def test_a_step_that_is_killed_fails_the_pipeline_and_the_run_is_found_again(here: Here) -> None:
    """The run is attached: who comes next under its key takes it over, else it is stopped as abandoned."""
    with _pipeline(here) as pipeline:
        for step in _steps(pipeline.pid):
            step.kill()
        out, _ = pipeline.communicate(timeout=60)
    assert pipeline.returncode == 1
    assert "Inner task failed" in out
    run = here.the_run()
    assert str(state_of(run)) == "running"
    assert run.owner is not None and run.owner.kind == "attached"


@pytest.mark.thorough
def test_the_training_of_a_step_that_nobody_tries_again_is_stopped_and_may_save(here: Here) -> None:
    patient = "import allaboard_kfp.step as s; s.PATIENCE = 3.0"
    (here.folder / "sitecustomize.py").write_text(patient)
    with _pipeline(here, path=str(here.folder)) as pipeline:
        for step in _steps(pipeline.pid):
            step.kill()
        pipeline.wait(60)
        until(lambda: state_of(here.the_run()).is_final)
    run = here.the_run()
    assert str(state_of(run)) == "stopped"
    assert run.stop is not None and "no client followed this attached run for 3 s" in run.stop.reason
    assert list_checkpoints(open_store(here.store / "checkpoints" / run.run))[-1].step == 3


# --- branching on a number


@dsl.pipeline(name="branching")
def branching(job: dict, folder: str):  # type: ignore[no-untyped-def, type-arg]
    """What is good enough is collected."""
    trained = train(job=job, folder=folder, metric="accuracy", mode="max")
    with dsl.If(trained.outputs["value"] > 0.98):
        collect_checkpoint(source=trained.outputs["checkpoints"], into="store://good")
    with dsl.Else():
        collect_checkpoint(source=trained.outputs["checkpoints"], into="store://poor")


@pytest.mark.thorough(but=("a number that is enough",))
@pytest.mark.parametrize(
    ("script", "branch"),
    [("quick.py", "good"), ("untold.py", "poor")],
    ids=["a number that is enough", "a number that was never told"],
)
def test_a_pipeline_branches_on_a_metric(started: Here, script: str, branch: str) -> None:
    folder = started.folder / "scripts"
    folder.mkdir()
    quick = (JOBS / "quick.py").read_text()
    (folder / "quick.py").write_text(quick)
    (folder / "untold.py").write_text(quick.replace("accuracy=0.99", "speed=1.0"))
    branching(job={**QUICK, "command": ["python", script], "checkpoints": SAVING}, folder=str(folder))
    assert (started.store / branch).exists()
    assert len([name for name in ("good", "poor") if (started.store / name).exists()]) == 1


@dsl.pipeline(name="remembered")
def remembered(folder: str):  # type: ignore[no-untyped-def]
    """One data set."""
    prepare_shards(source="counting.py:samples", into="store://numbers", samples_per_shard=4, folder=folder)


def test_a_step_with_effects_runs_each_time_although_kfp_local_caches(here: Here) -> None:
    start_local(here.out, enable_caching=True)
    numbers = here.store / "numbers"
    for _ in range(2):
        remembered(folder=str(JOBS))
        assert load_index(open_store(numbers)).samples == 10
        (numbers / "index.json").unlink()  # the folder, to which the artifact points, is still there
