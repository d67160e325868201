"""What each component does, called as a plain function with real folders, processes and artifacts."""

from __future__ import annotations

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from threading import Thread
from typing import Any

import pytest
from kfp import dsl

from allaboard.backends.local.host.processes import kill_run
from allaboard.checkpoints import list_checkpoints
from allaboard.runs.status import state_of
from allaboard.shards import load_index
from allaboard.storage import open_store
from allaboard_kfp import collect_checkpoint, evaluate, prepare_shards, promote, train
from tests.kfp.conftest import JOBS, Artifacts, Here
from tests.kfp.waiting import until

PICTURES = {
    "confusion": {"labels": ["cat", "dog"], "matrix": [[48, 2], [1, 49]]},
    "roc": {"fpr": [0.0, 0.1, 1.0], "tpr": [0.0, 0.9, 1.0], "thresholds": [1.0, 0.5, 0.0]},
}
Of = Callable[..., Artifacts]


def trained(
    of: Of, job: dict[str, Any], task: str = "train", **more: Any
) -> tuple[Any, Artifacts, dict[str, Any]]:
    place = of(task)
    outputs = {"model": place[dsl.Model], "metrics": place[dsl.Metrics], "report": place[dsl.HTML]}
    outputs["summary"] = place[dsl.Markdown]
    return train.python_func(job=job, **{"folder": str(JOBS), **more}, **outputs), place, outputs


# --- train ---


def test_a_training_that_is_lost_resumes_within_its_step_as_often_as_its_job_says(
    here: Here, artifacts: Of, job: Any
) -> None:
    """Its supervisor and its members are killed while it trains."""
    hold, diary = here.folder / "hold", here.folder / "diary"
    environment = {"HOLD": str(hold), "DIARY": str(diary), "TOTAL": "6"}
    job = {**job, "environment": environment, "policy": {"attempts": 2, "restart": "never"}}

    def kill() -> None:
        until(lambda: [run for run in here.runs() if run.progress.step == 3 and run.progress.checkpoint])
        kill_run(here.the_run().uid or "")
        hold.touch()

    killer = Thread(target=kill)
    killer.start()
    made, *_ = trained(artifacts, job)
    killer.join()
    assert made.checkpoint.endswith("step-000000000006")
    assert diary.read_text().split() == ["0", "2"] and here.the_run().attempt == 2


def test_a_training_that_may_fail_leaves_its_step_green_and_no_checkpoint(
    here: Here, artifacts: Of, job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    job = {**job, "environment": {"FAIL_AT": "5"}, "policy": {"restart": "never"}}
    made, _, outputs = trained(artifacts, job, may_fail=True)
    assert made == (here.the_run().run, "", "", 1e308)
    assert outputs["model"].metadata == {"uri": "", "run": made.run}
    assert "exited with 7" in Path(outputs["summary"].path).read_text()
    told = capsys.readouterr()
    assert "error: run quick-" in told.err and "the training may fail: the step goes on" in told.out
    with pytest.raises(SystemExit) as ended:
        trained(artifacts, {**job, "wrokers": 1}, "other", may_fail=True)
    assert ended.value.code == 2  # nothing was trained


def test_a_training_gives_its_run_its_checkpoints_and_their_best(here: Here, artifacts: Of, job: Any) -> None:
    made, _, outputs = trained(artifacts, job)
    folder = here.store / "checkpoints" / made.run
    assert made == (made.run, str(folder), str(folder / "step-000000000010"), 0.1)
    assert outputs["model"].uri == str(artifacts("train").task / "model")
    assert json.loads(Path(outputs["model"].path).read_text())["uri"] == made.checkpoint
    assert outputs["model"].metadata == {
        "uri": made.checkpoint, "framework": "pytorch", "run": made.run, "step": 10, "world_size": 1,
        "bytes": 2, "metrics.val_loss": 0.1, "flags": "none",
    }  # fmt: skip
    assert outputs["metrics"].metadata == {"val_loss": 0.1, "accuracy": 0.99}
    assert here.the_run().handed_over


def test_the_value_to_branch_on_is_the_metric_that_was_named(
    artifacts: Of, job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    assert trained(artifacts, job, metric="accuracy", mode="max")[0].value == 0.99
    assert trained(artifacts, job, "untold", metric="recall", mode="max")[0].value == -1e308
    assert "no finite number 'recall' was reported" in capsys.readouterr().out
    odd = {**job, "environment": {"ODD": "1"}}
    assert trained(artifacts, odd, "odd")[0].value == 1e308  # val_loss is NaN, and small is good


def test_a_metric_without_a_direction_is_refused_before_anything_starts(
    here: Here, artifacts: Of, job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        trained(artifacts, job, metric="accuracy")
    assert ended.value.code == 2
    assert "say mode: max or min" in capsys.readouterr().err
    assert here.runs() == []


def test_the_log_of_the_step_tells_states_progress_and_what_rank_0_writes(
    artifacts: Of, job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made, _, _ = trained(artifacts, job)
    output = capsys.readouterr().out
    assert f"{made.run} is on its way" in output
    assert "running: 1 master" in output
    assert "[rank0] rank 0 is here" in output
    assert "step 10/10 (100%), loss 0.1" in output
    assert "succeeded" in output
    assert "[allaboard] {" not in output


def test_a_training_that_writes_without_end_does_not_fill_the_log(
    artifacts: Of, job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made, _, _ = trained(artifacts, {**job, "environment": {"TALK": "5000"}})
    output = capsys.readouterr().out
    # Stripped: kfp.local, once it ran a loop, indents whatever its process prints from then on.
    lines = [line.strip() for line in output.splitlines() if line.strip().startswith("[rank0]")]
    assert 300 <= len(lines) <= 1000, output
    left_out = [line for line in lines if "of rank 0 left out here: allaboard logs" in line]
    assert lines[-1] == "[rank0] line 4999" and left_out
    assert made.run in left_out[-1]


def test_a_failed_training_fails_the_step_with_its_reason(
    here: Here, artifacts: Of, job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    place = artifacts("train")
    with pytest.raises(SystemExit) as ended:
        trained(artifacts, {**job, "environment": {"FAIL_AT": "4"}, "policy": {"restart": "never"}})
    assert ended.value.code == 1
    output = capsys.readouterr()
    assert "the data is not what it should be" in output.err
    assert "exited with 7" in output.err
    run = here.the_run()
    assert f"error: run {run.run} failed" in output.err
    assert not run.handed_over
    # The page is there, and once more in the store: of a failed step a cluster keeps the log alone.
    page = (place.task / "html").read_text()
    assert "exited with 7" in page
    kept, lines = sorted((here.store / "reports").iterdir())
    assert kept.read_text() == page
    assert str(kept) in output.out
    # So are the few lines about why.
    said = (place.task / "markdown").read_text()
    assert lines.read_text() == said
    assert said.startswith(f"## {run.run} failed")
    assert "**What to do:**" in said and "Another try would repeat it." in said


@pytest.mark.parametrize(
    ("changes", "code"),
    [
        ({"policy": {"deadline": "1s"}, "environment": {"HOLD": "/never"}}, 4),
        ({"command": ["python", "absent.py"]}, 2),
        ({"workers": 0}, 2),
        ({"comand": ["python", "quick.py"]}, 2),
        ({"data": {"shards": "store://nowhere"}}, 2),
    ],
    ids=["out of time", "command not found", "no workers", "unknown field", "no data"],
)
def test_the_step_exits_with_the_code_of_the_contract(
    here: Here,
    artifacts: Of,
    job: Any,
    changes: dict[str, Any],
    code: int,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit) as ended:
        trained(artifacts, {**job, **changes})
    assert ended.value.code == code
    output = capsys.readouterr().err
    assert "error: " in output
    assert "Traceback" not in output
    if code == 2:
        assert not here.runs()


def test_a_result_that_is_no_number_is_left_out_and_flagged(
    here: Here, artifacts: Of, job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    _, _, outputs = trained(artifacts, {**job, "environment": {"ODD": "1"}})
    assert outputs["metrics"].metadata == {"accuracy": 0.99}
    json.dumps(outputs["metrics"].metadata, allow_nan=False)
    assert "not a finite number" in capsys.readouterr().out
    assert "nan_loss" in here.the_run().flags


def test_a_training_without_checkpoints_gives_none(artifacts: Of, job: Any) -> None:
    made, _, outputs = trained(
        artifacts, {name: value for name, value in job.items() if name != "checkpoints"}
    )
    assert made[:3] == (made.run, "", "")
    assert outputs["model"].metadata == {"uri": "", "framework": "pytorch", "run": made.run}


@pytest.mark.parametrize(
    "text",
    [
        '{"name": "quick", "command": ["python", "quick.py"], "workers": 1}',
        "name: quick\ncommand: [python, quick.py]\nworkers: 1\n",
    ],
    ids=["JSON", "YAML"],
)
def test_the_job_may_be_text(artifacts: Of, text: str) -> None:
    made, _, _ = trained(artifacts, {}, job_text=text)
    assert made.run.startswith("quick-")


def test_the_job_may_be_a_file_and_then_starts_in_its_folder(here: Here, artifacts: Of) -> None:
    folder = here.folder / "team"
    folder.mkdir()
    (folder / "job.yaml").write_text("name: quick\ncommand: [python, hello.py]\nworkers: 1\n")
    (folder / "hello.py").write_text("print('hello from', __file__)\n")
    made, _, _ = trained(artifacts, {}, job_text=str(folder / "job.yaml"), folder="")
    assert made.run.startswith("quick-")


def test_a_shards_input_becomes_the_jobs_data(here: Here, artifacts: Of, job: Any, tmp_path: Path) -> None:
    uri = prepare_shards.python_func(
        source="counting.py:samples",
        into="store://numbers",
        folder=str(JOBS),
        dataset=artifacts("prepare")[dsl.Dataset],
    )
    seen = tmp_path / "seen"
    code = f"import os; open({str(seen)!r}, 'w').write(os.environ['ALLABOARD_DATA'])"
    trained(artifacts, {**job, "command": ["python", "-c", code]}, shards=uri)
    assert seen.read_text() == uri and Path(uri).parent == here.store / "numbers"


# --- exactly once ---


def test_a_step_that_succeeded_and_was_killed_before_it_said_so_hands_over_what_it_had(
    here: Here, artifacts: Of, job: Any, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = {**job, "environment": {"DIARY": str(tmp_path / "diary")}}
    with monkeypatch.context() as patched:
        patched.setattr("allaboard_kfp.runtime._publish", _killed)
        with pytest.raises(KeyboardInterrupt):
            trained(artifacts, job)
    first = here.the_run()
    assert not first.handed_over
    again, _, _ = trained(artifacts, job)
    assert (again.run, here.the_run().attempt) == (first.run, 1)
    assert (tmp_path / "diary").read_text() == "0\n"  # it was run once


@pytest.mark.thorough
def test_a_step_that_was_killed_after_the_hand_over_hands_over_once_more(
    here: Here, artifacts: Of, job: Any, tmp_path: Path
) -> None:
    """Argo starts a step again whose pod is lost, however far it was."""
    job = {**job, "environment": {"DIARY": str(tmp_path / "diary")}}
    with _in_a_process(artifacts, job, before=_HELD_AFTER_THE_HAND_OVER) as step:
        until((artifacts("train").task / "handed over").exists)
        step.kill()
    first = here.the_run()
    assert first.handed_over
    outputs = []
    for _ in range(2):
        made, place, _ = trained(artifacts, job)
        outputs.append((made, json.loads((place.task / "model").read_text())))
    assert outputs[0] == outputs[1]
    assert (outputs[0][0].run, outputs[0][0].value, outputs[0][1]["step"]) == (first.run, 0.1, 10)
    run = here.the_run()
    assert (run.run, run.attempt, run.uid) == (first.run, 1, first.uid)
    assert (tmp_path / "diary").read_text() == "0\n"  # nothing trained again


_HELD_AFTER_THE_HAND_OVER = """
import time
from pathlib import Path
from allaboard.backends.local.backend import LocalBackend
hand_over = LocalBackend.hand_over
def held(self, handle):
    hand_over(self, handle)
    Path(task, "handed over").touch()
    time.sleep(600)
LocalBackend.hand_over = held
"""


def _killed(*_: Any, **__: Any) -> None:
    raise KeyboardInterrupt


def test_the_next_try_of_a_failed_step_resumes_it(
    here: Here, artifacts: Of, job: Any, tmp_path: Path
) -> None:
    diary = {"DIARY": str(tmp_path / "diary")}
    never = {"policy": {"restart": "never"}}
    with pytest.raises(SystemExit):
        trained(artifacts, {**job, **never, "environment": {**diary, "FAIL_AT": "5"}})
    made, _, _ = trained(artifacts, {**job, **never, "environment": diary})
    run = here.the_run()
    assert (run.run, run.attempt) == (made.run, 2)
    assert (tmp_path / "diary").read_text() == "0\n4\n"
    page = (artifacts("train").task / "html").read_text()
    assert "resumed from step 4" in page


@pytest.mark.thorough
def test_tasks_and_pipeline_runs_are_told_apart(here: Here, artifacts: Of, job: Any) -> None:
    names = {
        trained(artifacts, job, task)[0].run for task in ("train", "train-2", "for-loop-2-iteration-0/train")
    }
    assert len(names) == 3
    assert len(here.runs()) == 3


@pytest.mark.thorough(but=("SIGTERM",))
@pytest.mark.parametrize("number", [signal.SIGTERM, signal.SIGINT, signal.SIGHUP], ids=lambda n: n.name)
def test_a_signal_to_the_step_stops_the_run_which_saves(
    here: Here, artifacts: Of, job: Any, number: signal.Signals
) -> None:
    with _in_a_process(artifacts, {**job, "environment": {"HOLD": "/never"}}) as step:
        until(lambda: (here.runs() or [None])[0] and here.the_run().progress.step == 3)
        step.send_signal(number)
        out, _ = step.communicate(timeout=60)
    assert step.returncode == 3, out
    run = here.the_run()
    assert str(state_of(run)) == "stopped"
    assert run.stop is not None and number.name.replace("SIGINT", "Ctrl-C") in run.stop.reason
    assert list_checkpoints(open_store(here.store / "checkpoints" / run.run))[-1].step == 3


def test_a_step_that_was_killed_is_followed_on_by_its_next_try(
    here: Here, artifacts: Of, job: Any, tmp_path: Path
) -> None:
    hold = tmp_path / "go on"
    job = {**job, "environment": {"HOLD": str(hold), "DIARY": str(tmp_path / "diary")}}
    with _in_a_process(artifacts, job) as first:
        until(lambda: (here.runs() or [None])[0] and here.the_run().progress.step == 3)
        first.kill()
    with _in_a_process(artifacts, job) as second:
        assert second.stdout is not None
        until(lambda: "runs already; following it" in second.stdout.readline())
        hold.touch()
        out, _ = second.communicate(timeout=60)
    assert second.returncode == 0, out
    run = here.the_run()
    assert (str(state_of(run)), run.attempt, run.handed_over) == ("succeeded", 1, True)
    assert (tmp_path / "diary").read_text() == "0\n"


@contextmanager
def _in_a_process(of: Of, job: dict[str, Any], before: str = "") -> Iterator[subprocess.Popen[str]]:
    """The step of its own, as kfp starts it, after the code ``before``; dead at the end."""
    task = of("train").task
    code = (
        "import json, sys\n"
        "from kfp import dsl\n"
        "from allaboard_kfp import train\n"
        "job, folder, task = json.loads(sys.argv[1]), sys.argv[2], sys.argv[3]\n"
        f"{before}\n"
        "train.python_func(job=job, folder=folder, model=dsl.Model(uri=task + '/model'),\n"
        "                  metrics=dsl.Metrics(uri=task + '/metrics'), report=dsl.HTML(uri=task + '/html'),\n"
        "                  summary=dsl.Markdown(uri=task + '/markdown'))\n"
    )
    with subprocess.Popen(
        [sys.executable, "-c", code, json.dumps(job), str(JOBS), str(task)],
        stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, start_new_session=True,
    ) as step:  # fmt: skip
        try:
            yield step
        finally:
            step.kill()


# --- prepare_shards ---


def test_shards_are_prepared_and_the_data_set_points_to_them(here: Here, artifacts: Of) -> None:
    dataset = artifacts("prepare")[dsl.Dataset]
    uri = prepare_shards.python_func(
        source="counting.py:samples",
        into="store://numbers",
        samples_per_shard=4,
        folder=str(JOBS),
        dataset=dataset,
    )
    index = load_index(open_store(uri))
    assert (index.samples, len(index.shards)) == (10, 3)
    assert dataset.metadata["uri"] == uri and Path(uri).parent == here.store / "numbers"
    assert dataset.metadata["into"] == str(here.store / "numbers")
    assert dataset.metadata["samples"] == 10
    assert dataset.metadata["shards"] == 3


def test_a_folder_of_files_is_a_source_too(here: Here, artifacts: Of) -> None:
    folder = here.folder / "work" / "photos"
    folder.mkdir()
    for n in range(3):
        (folder / f"{n}.txt").write_text(str(n))
    uri = prepare_shards.python_func(
        source="photos", into="store://photos", dataset=artifacts("prepare")[dsl.Dataset]
    )
    assert load_index(open_store(uri)).samples == 3


@pytest.mark.parametrize(
    ("inputs", "words"),
    [
        ({"source": "absent"}, "absent"),
        ({"source": "counting.py:sample"}, "it has samples"),
        ({"source": "counting.py:samples", "bytes_per_shard": "lots"}, "bytes_per_shard"),
        ({"source": "counting.py:samples", "samples_per_shard": -1}, "samples_per_shard"),
    ],
    ids=["no folder", "no function", "no size", "no number"],
)
def test_a_bad_source_or_limit_is_said(
    here: Here, artifacts: Of, inputs: Any, words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        prepare_shards.python_func(
            **inputs, into="store://numbers", folder=str(JOBS), dataset=artifacts("prepare")[dsl.Dataset]
        )
    assert ended.value.code == 2
    assert words in capsys.readouterr().err


# --- collect_checkpoint, evaluate, promote ---


def test_the_best_checkpoint_is_collected_evaluated_and_promoted(here: Here, artifacts: Of, job: Any) -> None:
    made, _, _ = trained(artifacts, job)
    model = artifacts("collect")[dsl.Model]
    kept = collect_checkpoint.python_func(
        source=made.checkpoints, into="store://models", which="best", metric="val_loss", model=model
    )
    assert kept == model.metadata["uri"] == str(here.store / "models" / made.run / "step-000000000010")
    assert model.metadata["source"] == made.checkpoint

    results = judged(artifacts, kept)
    assert results == {"accuracy": 0.98, "step": 10, "nested": {"loss": 0.1}}

    verdict, page = artifacts("promote")[dsl.Metrics], artifacts("promote")[dsl.HTML]
    ended = promote.python_func(
        checkpoint=kept, into="store://champions", results=results, metric="accuracy",
        thresholds="accuracy>=0.97, nested.loss<=0.2", verdict=verdict, report=page,
    )  # fmt: skip
    assert ended == (True, 1, kept)
    assert verdict.metadata == {
        "promoted": 1, "champion": 1, "accuracy": 0.98, "step": 10, "nested.loss": 0.1,
    }  # fmt: skip
    assert "no champion to beat" in Path(page.path).read_text()


def test_the_flags_of_a_training_follow_its_artifact(here: Here, artifacts: Of, job: Any) -> None:
    """Where none stand beside its checkpoints, as on a volume of a cluster."""
    made, _, outputs = trained(artifacts, job)
    (Path(made.checkpoints) / "flags.json").unlink()
    told = outputs["model"]
    told.metadata["flags"] = "nan_loss slow_rank"
    model = artifacts("collect")[dsl.Model]
    kept = collect_checkpoint.python_func(source="", source_artifact=told, into="store://models", model=model)
    flags = json.loads((Path(kept).parent / "flags.json").read_text())
    assert (flags["run"], [*flags["flags"]]) == (made.run, ["nan_loss", "slow_rank"])
    for task, more in (
        ("of the copy", {"checkpoint": kept}),
        ("of the training", {"checkpoint_artifact": told}),
    ):
        place = artifacts(task)
        ended = promote.python_func(
            **{"checkpoint": "", "results": {}, **more}, into="store://champions", metric="val_loss",
            verdict=place[dsl.Metrics], report=place[dsl.HTML],
        )  # fmt: skip
        assert not ended.promoted, task


def test_the_sentences_of_flags_follow_the_artifact_without_secrets(
    here: Here, artifacts: Of, job: Any
) -> None:
    """What a member reports reaches the store of a pipeline's metadata, and then a gate."""
    key = "correct-horse-battery-3f9a"
    job = {**job, "environment": {"LEAK": "MODEL_API_KEY", "MODEL_API_KEY": key}}
    made, _, outputs = trained(artifacts, job)
    told = outputs["model"]
    assert {"nan_loss", "success_doubtful"} <= {*told.metadata["flags"].split()}
    sentence = told.metadata["flag_sentences.success_doubtful"]
    assert sentence == "master-0 exited with 0, and its last words are a traceback"
    assert told.metadata["flag_sentences.nan_loss"] == "the loss is not a finite number"
    assert key not in json.dumps(told.metadata) and key not in Path(told.path).read_text()
    (Path(made.checkpoints) / "flags.json").unlink()
    told.metadata["flag_sentences.nan_loss"] = "\x1b[2J" + 2000 * "n"  # anybody may have written it
    model = artifacts("collect")[dsl.Model]
    kept = collect_checkpoint.python_func(source="", source_artifact=told, into="store://models", model=model)
    flags = json.loads((Path(kept).parent / "flags.json").read_text())["flags"]
    assert flags["success_doubtful"] == sentence
    assert "\x1b" not in flags["nan_loss"] and len(flags["nan_loss"]) <= 500
    place = artifacts("promote")
    ended = promote.python_func(
        checkpoint=kept, results={}, into="store://champions", metric="val_loss",
        verdict=place[dsl.Metrics], report=place[dsl.HTML],
    )  # fmt: skip
    assert not ended.promoted and sentence in Path(place[dsl.HTML].path).read_text()


def judged(
    of: Of, checkpoint: str, task: str = "evaluate", pictures: Any = None, **environment: str
) -> dict[str, Any]:
    place = of(task)
    evaluation = {
        "name": "judge",
        "command": ["python", "judge.py"],
        "workers": 1,
        "environment": environment,
    }
    made = evaluate.python_func(
        job=evaluation,
        checkpoint=checkpoint,
        folder=str(JOBS),
        metrics=place[dsl.Metrics],
        report=place[dsl.HTML],
        summary=place[dsl.Markdown],
        classification=pictures or place[dsl.ClassificationMetrics],
    )
    page = Path(place[dsl.HTML].path).read_text()
    assert "ALLABOARD_CHECKPOINT" in page and checkpoint in page, "the job as it was run"
    return dict(made.results)


def test_a_model_that_is_not_better_is_not_promoted_and_the_step_succeeds(
    here: Here, artifacts: Of, job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made, _, _ = trained(artifacts, job)

    def gate(checkpoint: str, results: dict[str, Any], task: str) -> Any:
        place = artifacts(task)
        return promote.python_func(
            checkpoint=checkpoint, into="store://champions", results=results,
            metric="accuracy", better_by=0.001,
            verdict=place[dsl.Metrics], report=place[dsl.HTML],
        )  # fmt: skip

    earlier = f"{made.checkpoint[:-2]}08"
    assert gate(made.checkpoint, {"accuracy": 0.98}, "first") == (True, 1, made.checkpoint)
    assert gate(earlier, {"accuracy": 0.9805}, "second") == (False, 1, made.checkpoint)
    assert "not promoted; the champion stays number 1" in capsys.readouterr().out
    assert gate(earlier, {"nonfinite": ["accuracy"]}, "third") == (False, 1, made.checkpoint)
    assert "accuracy is not a finite number" in capsys.readouterr().out


def test_without_results_the_checkpoints_own_metrics_count(here: Here, artifacts: Of, job: Any) -> None:
    made, _, _ = trained(artifacts, job)
    place = artifacts("promote")
    ended = promote.python_func(
        checkpoint=made.checkpoint, into="store://champions", metric="val_loss", mode="min",
        thresholds="val_loss<=0.2", verdict=place[dsl.Metrics], report=place[dsl.HTML],
    )  # fmt: skip
    assert ended.promoted


def test_a_confusion_matrix_and_a_roc_curve_are_shown_and_kept_from_the_gate(artifacts: Of, job: Any) -> None:
    made, _, _ = trained(artifacts, job)
    shown = artifacts("pictures")[dsl.ClassificationMetrics]
    results = judged(artifacts, made.checkpoint, pictures=shown, PICTURES=json.dumps(PICTURES))
    assert results["accuracy"] == 0.98 and not {"confusion", "roc"} & set(results)
    assert [row["row"] for row in shown.metadata["confusionMatrix"]["rows"]] == [[48, 2], [1, 49]]
    assert shown.metadata["confidenceMetrics"][1] == {
        "confidenceThreshold": 0.5, "recall": 0.9, "falsePositiveRate": 0.1,
    }  # fmt: skip


@pytest.mark.thorough
def test_a_picture_that_cannot_be_drawn_is_refused_and_the_numbers_stay(
    artifacts: Of, job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made, _, _ = trained(artifacts, job)
    shown = artifacts("pictures")[dsl.ClassificationMetrics]
    wrong = json.dumps({**PICTURES, "confusion": {"labels": ["cat"], "matrix": [[-1]]}})
    assert judged(artifacts, made.checkpoint, pictures=shown, PICTURES=wrong)["accuracy"] == 0.98
    assert "no confusion matrix is shown: confusion.matrix[0][0]: -1 is no count" in capsys.readouterr().out
    assert "confusionMatrix" not in shown.metadata and len(shown.metadata["confidenceMetrics"]) == 3


def test_an_accuracy_that_is_nan_is_named_for_the_gate(artifacts: Of, job: Any) -> None:
    made, _, _ = trained(artifacts, job)
    results = judged(artifacts, made.checkpoint, ACCURACY="nan")
    assert results == {"step": 10, "nested": {"loss": 0.1}, "nonfinite": ["accuracy"]}


def test_an_evaluation_that_tells_nothing_fails_its_step(
    artifacts: Of, job: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    made, _, _ = trained(artifacts, job)
    place = artifacts("evaluate")
    with pytest.raises(SystemExit) as ended:
        evaluate.python_func(
            job={"name": "silent", "command": ["python", "-c", "pass"], "workers": 1},
            checkpoint=made.checkpoint,
            metrics=place[dsl.Metrics], report=place[dsl.HTML], summary=place[dsl.Markdown],
            classification=place[dsl.ClassificationMetrics],
        )  # fmt: skip
    assert ended.value.code == 2
    assert "allaboard.inside.result" in capsys.readouterr().err


def _gate(of: Of, **inputs: Any) -> Any:
    place = of("promote")
    given = {"checkpoint": "store://no", "into": "store://champions", **inputs}
    return promote.python_func(**given, verdict=place[dsl.Metrics], report=place[dsl.HTML])


def _collect(of: Of, source: str) -> Any:
    return collect_checkpoint.python_func(source=source, into="store://c", model=of("collect")[dsl.Model])


@pytest.mark.parametrize(
    ("call", "words"),
    [
        (lambda of: _collect(of, ""), "source is empty"),
        (lambda of: _collect(of, "store://no"), "no complete checkpoint"),
        (lambda of: judged(of, "store://no"), "no complete checkpoint"),
        (lambda of: _gate(of), "no complete checkpoint"),
        (lambda of: _gate(of, thresholds="accuracy=1"), "is not understood"),
        (lambda of: _gate(of, mode="best"), "mode 'best' is not known"),
    ],
    ids=[
        "no source",
        "nothing to collect",
        "nothing to judge",
        "nothing to promote",
        "no threshold",
        "no mode",
    ],
)
def test_what_is_not_there_is_said(
    here: Here, artifacts: Of, call: Callable[[Of], Any], words: str, capsys: pytest.CaptureFixture[str]
) -> None:
    with pytest.raises(SystemExit) as ended:
        call(artifacts)
    assert ended.value.code == 2
    assert words in capsys.readouterr().err
