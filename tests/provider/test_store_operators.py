"""Preparing, collecting, evaluating and promoting as tasks: on a real store, from what other tasks leave in
XCom.
"""

from __future__ import annotations

import hashlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from airflow.providers.common.compat.sdk import AirflowException, AirflowFailException
from airflow.sdk import DAG

from allaboard.checkpoints import Manifest, Part, RunFlags, save
from allaboard.checkpoints.flags import FLAGS
from allaboard.shards import load_index, verify
from allaboard.storage import open_store
from allaboard_provider.operators import (
    CollectCheckpointOperator,
    EvaluateOperator,
    PrepareShardsOperator,
    PromoteOperator,
)
from tests.provider.building import a_context


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """The store of this test's home."""
    return tmp_path / "home" / "store"


def done(kind: type, **fields: Any) -> Any:
    """What a task of this kind returns."""
    operator = kind(task_id="a_task", allaboard_conn_id=None, **fields)
    return operator.execute(a_context())


def samples() -> Iterator[dict[str, Any]]:
    for n in range(10):
        yield {"__key__": f"{n:04d}", "txt": f"sample {n}"}


def saved(folder: Path, step: int, **metrics: float) -> str:
    """The uri of a checkpoint that a training saved."""
    return save(
        open_store(folder), Manifest(step=step, run=folder.name, metrics=metrics), {"state": b"x" * step}
    ).uri


# --- shards
# -----------------------------------------------------------------------------------------------------------


def test_samples_become_shards_and_the_result_says_where(store: Path) -> None:
    result = done(PrepareShardsOperator, source=samples, into="store://shards", samples_per_shard="4")
    assert (result["into"], result["samples"], result["shards"]) == (str(store / "shards"), 10, 3)
    assert Path(result["uri"]).parent == store / "shards"
    assert verify(str(store / "shards")) == verify(result["uri"]) == []


def test_another_preparation_leaves_the_version_of_a_result_as_it_is(store: Path) -> None:
    first = done(PrepareShardsOperator, source=samples, into="store://shards", samples_per_shard="4")
    before = load_index(first["uri"])
    second = done(PrepareShardsOperator, source=samples, into="store://shards", samples_per_shard="5")
    assert first["uri"] != second["uri"] and load_index(first["uri"]) == before
    assert verify(first["uri"]) == verify(second["uri"]) == []


def test_what_is_prepared_already_is_not_prepared_again(store: Path, tmp_path: Path) -> None:
    (tmp_path / "raw").mkdir()
    for n in range(3):
        (tmp_path / "raw" / f"{n}.txt").write_text(str(n))
    first = done(PrepareShardsOperator, source=tmp_path / "raw", into="store://shards")
    created = load_index(open_store(store / "shards")).created
    assert done(PrepareShardsOperator, source=str(tmp_path / "raw"), into="store://shards") == first
    assert load_index(open_store(store / "shards")).created == created


def test_a_function_in_a_file_is_found_relative_to_the_dag_file(store: Path, tmp_path: Path) -> None:
    (tmp_path / "made.py").write_text("def samples():\n    yield {'__key__': 'a', 'txt': 'b'}\n")
    with DAG("shards") as dag:
        operator = PrepareShardsOperator(
            task_id="prepare", source="made.py:samples", into="store://shards", allaboard_conn_id=None
        )
    dag.fileloc = str(tmp_path / "dag.py")
    assert operator.execute(a_context())["samples"] == 1


@pytest.mark.parametrize("source", ["no/such/folder", "no_such_module:samples", [], ""], ids=repr)
def test_data_that_cannot_be_read_fails_without_a_retry(source: Any) -> None:
    with pytest.raises(AirflowFailException):
        done(PrepareShardsOperator, source=source, into="store://shards")


def test_a_worker_that_is_told_to_end_stops_preparing() -> None:
    operator = PrepareShardsOperator(
        task_id="prepare", source=samples, into="store://shards", samples_per_shard=1, allaboard_conn_id=None
    )
    operator.on_kill()
    with pytest.raises(AirflowException, match="the next try continues"):
        operator.execute(a_context())


# --- collecting
# -------------------------------------------------------------------------------------------------------


def test_the_best_checkpoint_of_a_run_is_collected_from_its_result(store: Path, tmp_path: Path) -> None:
    run = tmp_path / "checkpoints" / "digits-1"
    best, latest = saved(run, 1, loss=0.1), saved(run, 2, loss=0.3)
    result = {"run": "digits-1", "state": "succeeded", "checkpoints": {"latest": latest, "best": best}}
    for source, which, step in (
        (result, "best", 1),
        (result, "latest", 2),
        (result, "best:loss:max", 2),
        (str(result), "latest", 2),
        (str(run), 1, 1),
        (best, "latest", 1),
    ):
        found = done(CollectCheckpointOperator, source=source, which=which, into="store://models")
        assert found["step"] == step
        assert found["uri"] == str(store / "models" / "digits-1" / f"step-{step:012d}")
    found = done(
        CollectCheckpointOperator,
        source=result,
        which="best",
        metric="loss",
        mode="max",
        into="store://models",
    )
    assert found["step"] == 2


@pytest.mark.parametrize("where", ["in the result", "in the file"])
def test_the_flags_of_a_run_follow_its_checkpoint_from_a_volume(
    store: Path, tmp_path: Path, where: str
) -> None:
    """A run on a cluster leaves none there; where a file is, it goes first."""
    run = tmp_path / "checkpoints" / "digits-1"
    latest = saved(run, 2, accuracy=0.9)
    if where == "in the file":
        (run / FLAGS).write_bytes(RunFlags("digits-1", "succeeded", {}).encode())
    result = {
        "run": "digits-1", "state": "succeeded", "attempt": 1, "flags": ["success_doubtful"],
        "diagnoses": [{"code": "success_doubtful", "summary": "it stopped at step 2 of 100"}],
        "checkpoints": {"latest": latest, "best": None},
    }  # fmt: skip
    copy = done(CollectCheckpointOperator, source=result, into="store://models")
    assert copy["flags"] == ([] if where == "in the file" else ["success_doubtful"])
    (store / "models" / "digits-1" / FLAGS).unlink()  # as a copy of an older release is
    for candidate in (copy, copy["uri"]):
        decision = done(PromoteOperator, checkpoint=candidate, store="store://champions", metric="accuracy")
        known = candidate is copy and where == "in the result"
        assert decision["promoted"] == (not known)
        assert ("success_doubtful" in str(decision["verdict"])) == known
        assert bool(decision["notes"]) == (candidate is not copy)


def test_a_run_without_checkpoints_is_said_to_have_none() -> None:
    result = {"run": "digits-1", "state": "succeeded", "checkpoints": {"latest": None, "best": None}}
    with pytest.raises(AirflowFailException, match="digits-1 reported no checkpoint"):
        done(CollectCheckpointOperator, source=result, into="store://models")


def test_a_source_that_a_template_made_into_nothing_is_refused() -> None:
    with pytest.raises(AirflowFailException, match="source: 'None' names no place"):
        done(CollectCheckpointOperator, source="None", into="store://models")


# --- evaluating
# -------------------------------------------------------------------------------------------------------

READS = (
    "import os; from allaboard.inside import open_checkpoint, result; found = open_checkpoint();"
    "result(size=len(found.load()['state']), step=found.step)"
)


def evaluation(code: str = READS) -> dict[str, Any]:
    return {"name": "judge", "command": ["python", "-c", code], "policy": {"restart": "never"}}


def test_a_checkpoint_is_evaluated_by_a_job_of_its_own(tmp_path: Path) -> None:
    uri = saved(tmp_path / "digits-1", 7)
    for checkpoint in (uri, {"uri": uri, "step": 7}, str({"uri": uri})):
        result = done(EvaluateOperator, job=evaluation(), checkpoint=checkpoint, deferrable=False)
        assert result["metrics"] == {"size": 7, "step": 7} and result["name"] == "judge"


def test_an_evaluation_of_another_checkpoint_is_another_one(store: Path) -> None:
    uri = saved(store / "digits-1", 7)
    result = done(
        EvaluateOperator, job=evaluation(), checkpoint="store://digits-1/step-000000000007", deferrable=False
    )
    assert result["metrics"]["step"] == 7 and uri


def adopted(folder: Path, step: int) -> str:
    """The uri of a checkpoint whose files another library wrote beside the run's own folder."""
    files = folder.parent / f"checkpoint-{step}"
    files.mkdir(parents=True)
    (files / "state").write_bytes(b"x" * step)
    part = Part("state", step, hashlib.sha256(b"x" * step).hexdigest(), 0)
    manifest = Manifest(
        step=step, run=folder.name, parts=(part,), version=2, format="torch", place=f"../{files.name}"
    )
    at = folder / f"step-{step:012d}" / "manifest.json"
    at.parent.mkdir(parents=True)
    at.write_bytes(manifest.encode())
    return str(at.parent)


def test_an_evaluation_finds_the_files_of_another_library(tmp_path: Path) -> None:
    """In the variable itself: its script knows nothing of manifests."""
    uri = adopted(tmp_path / "digits-1f0c9a77", 7)
    script = (
        "import os; from allaboard.inside import result; place = os.environ['ALLABOARD_CHECKPOINT'];"
        "result(size=os.path.getsize(place + '/state'))"
    )
    result = done(EvaluateOperator, job=evaluation(script), checkpoint=uri, deferrable=False)
    assert result["metrics"] == {"size": 7}


def test_an_evaluation_of_no_checkpoint_is_refused_before_it_starts(tmp_path: Path) -> None:
    with pytest.raises(AirflowFailException, match="no complete checkpoint is there"):
        done(EvaluateOperator, job=evaluation(), checkpoint=str(tmp_path / "empty"), deferrable=False)


def test_an_evaluation_without_metrics_is_none(tmp_path: Path) -> None:
    with pytest.raises(AirflowFailException, match=r"reported no metrics; call allaboard.inside"):
        done(EvaluateOperator, job=evaluation("pass"), checkpoint=saved(tmp_path / "r", 1), deferrable=False)


@pytest.mark.parametrize("checkpoint", ["None", "", {}, None], ids=repr)
def test_an_evaluation_of_nothing_is_refused(checkpoint: Any) -> None:
    with pytest.raises(AirflowFailException, match=r"checkpoint: .* names no place; give a uri like store:"):
        done(EvaluateOperator, job=evaluation(), checkpoint=checkpoint, deferrable=False)


# --- promoting
# --------------------------------------------------------------------------------------------------------


def test_only_a_better_model_becomes_the_champion_and_the_task_succeeds_either_way(tmp_path: Path) -> None:
    def promoted(step: int, accuracy: float) -> Any:
        checkpoint = {"uri": saved(tmp_path / "models" / "digits-1", step), "run": "digits-1", "step": step}
        status = {"run": "judge-1", "state": "succeeded", "metrics": {"accuracy": accuracy}}
        return done(
            PromoteOperator, checkpoint=checkpoint, metrics=status, metric="accuracy",
            thresholds="accuracy>=0.9",
            store="store://digits", reason="nightly",
        )  # fmt: skip

    first, second, third, fourth = promoted(1, 0.95), promoted(2, 0.94), promoted(3, 0.96), promoted(4, 0.2)
    assert [d["promoted"] for d in (first, second, third, fourth)] == [True, False, True, False]
    assert fourth["champion"]["step"] == 3 and fourth["champion"]["reason"] == "nightly"
    assert "not better" in second["verdict"]["reason"] and "at least 0.9" in fourth["verdict"]["reason"]


def test_metrics_may_be_text_and_those_of_the_manifest_are_asked_for_by_name(tmp_path: Path) -> None:
    uri = saved(tmp_path / "r", 1, accuracy=0.5)
    assert done(PromoteOperator, checkpoint=uri, metrics="manifest", metric="accuracy", store="store://a")[
        "promoted"
    ]
    text = {"accuracy": 0.6}
    assert done(PromoteOperator, checkpoint=uri, metrics=str(text), metric="accuracy", store="store://a")[
        "promoted"
    ]


@pytest.mark.parametrize("metrics", ["None", None, "", 3], ids=repr)
def test_metrics_that_never_arrived_promote_nothing(tmp_path: Path, metrics: Any) -> None:
    with pytest.raises(AirflowFailException, match="metrics"):
        done(PromoteOperator, checkpoint=saved(tmp_path / "r", 1), metrics=metrics, store="store://a")


def test_a_checkpoint_that_is_not_there_is_never_promoted(tmp_path: Path) -> None:
    with pytest.raises(AirflowFailException, match="no complete checkpoint"):
        done(
            PromoteOperator,
            checkpoint=str(tmp_path / "step-000000000001"),
            metrics={"a": 1},
            store="store://a",
        )
