"""As a cluster would run the components: s3:// places, files below /s3, a strict reader of outputs, a
bucket as store.
"""

from __future__ import annotations

import json
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

import allaboard_kfp
from allaboard.checkpoints import list_checkpoints
from allaboard.promotion.champion import history
from allaboard.storage import open_store
from tests.core.s3server import S3Server, s3_server
from tests.kfp.conftest import JOBS, Here
from tests.kfp.ir import RELEASES, compiled
from tests.kfp.pod import BUCKET, as_pod, why_not

pytestmark = pytest.mark.skipif(why_not() is not None, reason=f"no mounts of our own: {why_not()}")

RUN = str(uuid.UUID(int=7))


@pytest.fixture(scope="module")
def s3() -> Iterator[S3Server]:
    with s3_server("moto") as server:
        server.make_bucket(BUCKET)
        yield server


class Pods:
    """Steps of one pipeline run; each pod has a disk of its own, so nothing of a run is left to the next."""

    def __init__(self, here: Here, server: S3Server) -> None:
        self.here, self.server = here, server
        self.store = f"s3://{server.make_bucket()}/team"
        self.pods = 0
        self.release: Path | None = None
        """The folder of components that an earlier release has compiled."""

    def run(self, name: str, task: int = 1, **parameters: Any) -> dict[str, Any]:
        self.pods += 1
        disk = self.here.folder / f"disk-{self.pods}"
        spec = {
            "run": RUN,
            "task": str(uuid.UUID(int=task)),
            "parameters": {"store": self.store, **parameters},
        }
        file = (self.release or self.here.folder) / f"{name}.yaml"
        if self.release is None:
            compiled(getattr(allaboard_kfp, name), file)
        environ = {
            **self.server.environ,
            "ALLABOARD_HOME": str(disk / "home"),
            "ALLABOARD_POOL": str(disk / "pool"),
        }
        return as_pod(self.here.folder, file, spec, environ)


@pytest.fixture
def pods(here: Here, s3: S3Server, monkeypatch: pytest.MonkeyPatch) -> Pods:
    for name, value in s3.environ.items():
        monkeypatch.setenv(name, value)
    return Pods(here, s3)


@pytest.mark.thorough
@pytest.mark.parametrize("release", [None, *RELEASES], ids=lambda one: one and one.name)
def test_the_whole_chain_in_pods_with_a_bucket_as_its_store(
    pods: Pods, job: dict[str, Any], release: Path | None
) -> None:
    """Also components that a release has compiled, in the image of today."""
    pods.release = release
    data = pods.run(
        "prepare_shards",
        source="counting.py:samples",
        into="store://numbers",
        samples_per_shard=4,
        folder=str(JOBS),
    )
    assert data["code"] == 0, data["log"]
    version = data["parameters"]["Output"]
    assert version.startswith(f"{pods.store}/numbers/version-")
    dataset = data["artifacts"]["dataset"]["metadata"]
    assert (dataset["uri"], dataset["into"]) == (version, f"{pods.store}/numbers")
    assert dataset["samples"] == 10

    done = pods.run("train", job=job, shards=version, folder=str(JOBS))
    assert done["code"] == 0, done["log"]
    made = done["parameters"]
    assert made["checkpoint"] == f"{pods.store}/checkpoints/{made['run']}/step-000000000010"
    # The model is where it is, and nothing of it is carried through the step: a small file names it.
    model = done["artifacts"]["model"]
    assert model["metadata"]["uri"] == json.loads(model["file"])["uri"] == made["checkpoint"]
    assert all(one["uploaded"] == [one["uri"]] for one in done["artifacts"].values())
    assert done["artifacts"]["metrics"]["metadata"] == {"val_loss": 0.1, "accuracy": 0.99}
    assert done["artifacts"]["report"]["file"].startswith("<!doctype html>")
    assert f"/{RUN}/train/" in done["artifacts"]["report"]["uri"]

    kept = pods.run(
        "collect_checkpoint",
        source=made["checkpoints"],
        into="store://models",
        which="best",
        metric="val_loss",
    )
    checkpoint = kept["parameters"]["Output"]
    assert checkpoint == f"{pods.store}/models/{made['run']}/step-000000000010"

    judge = {"name": "judge", "command": ["python", "judge.py"], "workers": 1}
    judged = pods.run("evaluate", job=judge, checkpoint=checkpoint, folder=str(JOBS))
    assert judged["parameters"]["results"] == {"accuracy": 0.98, "step": 10, "nested": {"loss": 0.1}}

    gate = {"results": judged["parameters"]["results"], "metric": "accuracy", "thresholds": "accuracy>=0.97"}
    ended = pods.run("promote", checkpoint=checkpoint, into="store://champions", **gate)
    assert ended["parameters"] == {"promoted": True, "number": 1, "champion": checkpoint}
    assert history(open_store(f"{pods.store}/champions")).champion is not None


@pytest.mark.thorough
def test_a_pod_that_failed_is_tried_again_on_another_machine_and_resumes(
    pods: Pods, job: dict[str, Any], here: Here
) -> None:
    diary, once = here.folder / "diary", here.folder / "once"
    environment = {"FAIL_AT": "5", "ONCE": str(once), "DIARY": str(diary)}
    job = {**job, "environment": environment, "policy": {"restart": "never"}}
    first = pods.run("train", job=job, folder=str(JOBS))
    assert first["code"] == 1
    assert "the data is not what it should be" in first["log"]
    # Argo shows it as the message of the node.
    assert first["message"].startswith("run quick-") and "exited with 7" in first["message"]
    # Of a failed step the launcher keeps the log alone, so the page is in the store.
    page, _ = sorted(open_store(f"{pods.store}/reports").entries(), key=lambda entry: entry.key)
    assert b"exited with 7" in open_store(f"{pods.store}/reports").read(page.key)

    second = pods.run("train", job=job, folder=str(JOBS))
    assert second["code"] == 0, second["log"]
    assert diary.read_text() == "0\n4\n"
    steps = [c.step for c in list_checkpoints(open_store(second["parameters"]["checkpoints"]))]
    assert steps == [2, 4, 6, 8, 10]


@pytest.mark.thorough
def test_tasks_of_a_loop_are_told_apart(pods: Pods, job: dict[str, Any]) -> None:
    runs = {pods.run("train", task, job=job, folder=str(JOBS))["parameters"]["run"] for task in (1, 2)}
    assert len(runs) == 2


@pytest.mark.thorough
def test_results_that_are_no_numbers_do_not_fail_a_step_that_succeeded(
    pods: Pods, job: dict[str, Any]
) -> None:
    done = pods.run("train", job={**job, "environment": {"ODD": "1"}}, folder=str(JOBS))
    assert done["code"] == 0, done["log"]
    assert done["artifacts"]["metrics"]["metadata"] == {"accuracy": 0.99}


def test_with_a_mounted_folder_as_store_the_artifacts_name_the_place(
    pods: Pods, job: dict[str, Any], here: Here
) -> None:
    done = pods.run("train", job=job, folder=str(JOBS), store=str(here.store))
    model = done["artifacts"]["model"]
    assert f'"uri": "{done["parameters"]["checkpoint"]}"' in model["file"]
    assert Path(done["parameters"]["checkpoint"]).is_dir()


@pytest.mark.thorough
def test_a_job_that_asks_for_more_than_the_pod_has_fails_and_says_how_to_ask_for_it(
    pods: Pods, job: dict[str, Any]
) -> None:
    hungry = {**job, "resources": {"gpu": 512}}
    refused = pods.run("train", job=hungry, folder=str(JOBS))
    assert refused["code"] == 2
    assert "the member asks for 512 GPUs, this pod has" in refused["log"]
    assert "fit is strict, the default in a pod" in refused["log"]
    assert ".set_accelerator_limit(" in refused["log"]
    assert "on its way" not in refused["log"]

    agreed = pods.run("train", job={**hungry, "fit": "shrink"}, folder=str(JOBS))
    assert agreed["code"] == 0, agreed["log"]
    assert "runs on CPU" in agreed["log"] or "it gets" in agreed["log"]


@pytest.mark.thorough
def test_bad_input_and_an_absent_bucket_are_said_and_leave_nothing(pods: Pods, job: dict[str, Any]) -> None:
    wrong = pods.run("train", job={**job, "wrokers": 2}, folder=str(JOBS))
    assert (wrong["code"], "did you mean 'workers'" in wrong["log"]) == (2, True)
    assert "wrokers: no such field" in wrong["message"]
    absent = pods.run("train", job=job, folder=str(JOBS), store="s3://no-such-bucket/x")
    assert absent["code"] == 2
    assert "no-such-bucket" in absent["log"]
    assert "Traceback" not in wrong["log"] + absent["log"]
