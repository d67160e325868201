"""TrainJobs of others become jobs, and the same TrainJobs again."""

from __future__ import annotations

from typing import Any

import pytest
import yaml

from allaboard.checking.job import check, require_valid
from allaboard.convert.manifests import Outcome, convert, documents
from allaboard.engines import ENGINES
from allaboard.render.cluster_facts import ASSUMED
from allaboard.render.manifests import render
from allaboard.runs.layout import lay_out

PATCHED = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: patched, labels: {team: vision}}
spec:
  runtimeRef: {apiGroup: trainer.kubeflow.org, kind: ClusterTrainingRuntime, name: torch-distributed}
  suspend: true
  activeDeadlineSeconds: 3600
  managedBy: trainer.kubeflow.org/trainjob-controller
  trainer:
    numNodes: 2
    numProcPerNode: 4
    image: lab/train:1
    command: [torchrun, train.py]
    env:
      - {name: A, value: "1"}
      - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}
    resourcesPerNode: {requests: {cpu: "2", memory: 4Gi}, limits: {cpu: "4", memory: 8Gi}}
  runtimePatches:
    - manager: example.io/team
      trainingRuntimeSpec: {template: {metadata: {labels: {team: ml}}}}
"""


def only(text: str) -> Outcome:
    (outcome,) = [one for one in convert(documents(text, "x.yaml")) if one.passed is None]
    return outcome


def there_and_back(text: str) -> tuple[dict[str, Any], dict[str, Any]]:
    """The job of a TrainJob, and the spec of the TrainJob that is rendered of it."""
    outcome = only(text)
    assert not outcome.problems and not outcome.lost
    job = require_valid(outcome.documents[0])
    assert [p for p in check(job) if p.severity == "error"] == []
    layout = lay_out(job, ENGINES["trainjob"], f"{job.name}-1f0c9a77")
    return dict(outcome.documents[0]), render(job, layout, ASSUMED, launch="l", spec_hash="h").job["spec"]


def test_a_trainjob_becomes_a_job_and_the_same_trainjob_again() -> None:
    job, spec = there_and_back(PATCHED)
    assert (job["framework"], job["engine"], job["workers"]) == ("pytorch", "trainjob", 2)
    assert job["policy"] == {"deadline": "1h", "suspend": True} and job["processes_per_member"] == 4
    source = yaml.safe_load(PATCHED)["spec"]
    for name in ("runtimeRef", "suspend", "activeDeadlineSeconds", "managedBy"):
        assert spec[name] == source[name]
    assert source["runtimePatches"][0] in spec["runtimePatches"]
    for name in ("numNodes", "numProcPerNode", "image", "command", "resourcesPerNode"):
        assert spec["trainer"][name] == source["trainer"][name]
    assert all(variable in spec["trainer"]["env"] for variable in source["trainer"]["env"])


def test_its_runtime_says_what_the_job_leaves_open() -> None:
    text = """
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainingRuntime
metadata: {name: ours}
spec: {mlPolicy: {numNodes: 3, jax: {}}}
---
apiVersion: trainer.kubeflow.org/v1alpha1
kind: TrainJob
metadata: {name: x}
spec: {runtimeRef: {kind: TrainingRuntime, name: ours}, trainer: {command: [python, x.py]}}
"""
    outcome = only(text)
    assert (outcome.documents[0]["framework"], outcome.documents[0]["workers"]) == ("jax", 3)
    assert [change.path for change in outcome.changed] == ["spec.trainer.numNodes"]
    job, spec = there_and_back(text)
    assert "image" not in job and "image" not in spec["trainer"]


def test_a_runtime_that_says_nothing_of_its_framework_is_told() -> None:
    outcome = only(PATCHED.replace("torch-distributed", "team-default"))
    (change,) = outcome.changed
    assert (change.path, change.after) == ("spec.runtimeRef.name", "pytorch")


MPI = PATCHED.replace("torch-distributed", "deepspeed-distributed").replace(
    "      - {name: HOST, valueFrom: {fieldRef: {fieldPath: status.hostIP}}}\n", ""
)


def test_a_runtime_of_mpi_has_a_launcher_among_its_nodes() -> None:
    (change,) = only(MPI).changed
    assert (change.path, change.after) == ("spec.runtimeRef.name", "runLauncherAsWorker: true")
    job, spec = there_and_back(MPI)
    assert (job["framework"], job["groups"]) == ("mpi", {"launcher": 1, "worker": 1})
    source = yaml.safe_load(MPI)["spec"]
    for name in ("numNodes", "numProcPerNode", "image", "command", "resourcesPerNode"):
        assert spec["trainer"][name] == source["trainer"][name]
    assert source["runtimePatches"][0] in spec["runtimePatches"]


@pytest.mark.parametrize(
    ("works", "said", "workers"),
    [(True, 3, 2), (True, 1, 1), (True, None, 4), (False, 3, 3), (False, None, 4)],
)
def test_its_runtime_says_whether_the_launcher_is_a_node(works: bool, said: int | None, workers: int) -> None:
    runtime = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "ClusterTrainingRuntime",
        "metadata": {"name": "deepspeed-distributed"},
        "spec": {
            "mlPolicy": {"mpi": {"runLauncherAsNode": works}},
            "template": {
                "spec": {
                    "replicatedJobs": [
                        {"name": "node", "template": {"spec": {"parallelism": 4, "template": {}}}},
                        {"name": "launcher", "template": {"spec": {"template": {}}}},
                    ]
                }
            },
        },
    }
    trainjob = yaml.safe_load(MPI)
    del trainjob["spec"]["trainer"]["numNodes"]
    if said is not None:
        trainjob["spec"]["trainer"]["numNodes"] = said
    text = yaml.safe_dump_all([runtime, trainjob])
    job, spec = there_and_back(text)
    assert ("runLauncherAsWorker" in job["engine_spec"]) == works and "runLauncherAsWorker" not in spec
    assert job["groups"]["worker"] == workers
    assert ("resources" in job) == ("environment" in job) == works
    assert spec["trainer"]["resourcesPerNode"] == trainjob["spec"]["trainer"]["resourcesPerNode"]
    assert spec["trainer"]["numNodes"] == workers + works
    numbers = {change.path: change.after for change in only(text).changed}
    assert numbers == ({} if said is not None else {"spec.trainer.numNodes": workers + works})


@pytest.mark.parametrize(
    ("before", "after", "path"),
    [
        ("torch-distributed", "flux-runtime", "spec.runtimeRef.name"),
        (", name: torch-distributed", "", "spec.runtimeRef.name"),
        ("numNodes: 2", "numNodes: two", "spec.trainer.numNodes"),
        ("numProcPerNode: 4", "numProcPerNode: 0", "spec.trainer.numProcPerNode"),
        ("image: lab/train:1", "image: [x]", "spec.trainer.image"),
        ("suspend: true", "suspend: maybe", "spec.suspend"),
        ("name: patched,", "name: patched, annotations: {allaboard.io/launch: x},", "metadata.annotations"),
    ],
)
def test_what_is_wrong_is_said_with_its_path_in_the_trainjob(before: str, after: str, path: str) -> None:
    assert before in PATCHED
    assert path in [problem.path for problem in only(PATCHED.replace(before, after, 1)).problems]


def test_unknown_fields_are_lost_and_said() -> None:
    outcome = only(PATCHED.replace("  suspend: true", "  suspended: true").replace("numNodes: 2", "nodes: 2"))
    assert {loss.path for loss in outcome.lost} == {"spec.suspended", "spec.trainer.nodes"}
