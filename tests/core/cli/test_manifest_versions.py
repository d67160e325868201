"""Whatever reads a manifest says in one sentence that its job runs as another version of its kind."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.base import Plan
from allaboard.backends.kubernetes.lifecycle.prepare import prepare_attempt
from allaboard.convert.manifests import convert, documents
from allaboard.engines import ENGINES, other_version
from allaboard.job.site import site_of
from allaboard.job.training_job import TrainingJob
from allaboard.render.cluster_facts import ClusterFacts, assumed_facts
from allaboard.running import read_job
from tests.core.cli.terminal import Terminal

TOLD = (
    "the manifest is a kubeflow.org/v1 MPIJob, and the job runs as kubeflow.org/v2beta1; "
    "engine: mpijob-v1 in the job keeps the manifest's version"
)


def manifest(version: str = "kubeflow.org/v1") -> dict[str, Any]:
    def group(*command: str) -> dict[str, Any]:
        one = {
            "name": "mpi",
            "image": "lab/train:1",
            "command": [*command],
            "resources": {"limits": {"cpu": 1}},
        }
        return {"replicas": 1, "template": {"spec": {"containers": [one]}}}

    groups = {"Launcher": group("mpirun", "hostname"), "Worker": group("sleep", "9")}
    return {
        "apiVersion": version,
        "kind": "MPIJob",
        "metadata": {"name": "net"},
        "spec": {"mpiReplicaSpecs": groups, "runPolicy": {"backoffLimit": 2}},
    }


def notes_of(job: TrainingJob, facts: ClusterFacts | None = None) -> tuple[str, ...]:
    facts = facts or assumed_facts({}, "default")
    return prepare_attempt(Plan(job, "k"), 1, 1, site_of({}), facts, {}).notes


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_check_render_and_convert_say_the_same(ab: Terminal, tmp_path: Path, suffix: str) -> None:
    path = tmp_path / f"net.{suffix}"
    path.write_text(json.dumps(manifest()))
    checked = ab("check", str(path))
    assert checked.code == 0 and f"warning: apiVersion: {TOLD}" in checked.out
    problems = json.loads(ab("check", str(path), "--json").out)["problems"]
    told = {problem["path"]: (problem["message"], problem["severity"]) for problem in problems}
    assert told["apiVersion"] == (TOLD, "warning")
    rendered = ab("render", str(path))
    assert rendered.code == 0 and TOLD in rendered.err and "kubeflow.org/v2beta1" in rendered.out
    assert TOLD in ab("convert", str(path)).err
    [outcome] = convert(documents(path.read_text(), path.name))
    assert [change.reason for change in outcome.changed if change.path == "apiVersion"] == [TOLD]


def test_so_does_a_run_on_this_machine(ab: Terminal, tmp_path: Path) -> None:
    path = tmp_path / "net.yaml"
    path.write_text(json.dumps(manifest()).replace("mpirun", "true").replace('"hostname"', '"x"'))
    said = ab("run", str(path))
    assert said.code == 0 and (said.out + said.err).count(TOLD) == 1


def test_so_does_a_launch_on_a_cluster(tmp_path: Path) -> None:
    for given in (manifest(), str(tmp_path / "net.yaml")):
        (tmp_path / "net.yaml").write_text(json.dumps(manifest()))
        job = read_job(given)
        assert notes_of(job)[0] == TOLD
        assert notes_of(job.with_(name="other"))[0] == TOLD


def test_a_cluster_that_serves_the_version_of_the_manifest_runs_it_as_that() -> None:
    """Only what is served counts there."""
    facts = ClusterFacts(kinds=frozenset({"kubeflow.org/v1/MPIJob"}), namespace="default")
    job = read_job(manifest())
    assert not any("the manifest" in note for note in notes_of(job, facts))


@pytest.mark.parametrize(
    "given",
    [
        manifest("kubeflow.org/v2beta1"),
        {"name": "net", "framework": "mpi", "command": ["mpirun"], "groups": {"launcher": 1, "worker": 1}},
    ],
)
def test_of_what_runs_as_it_is_written_nothing_is_said(given: dict[str, Any]) -> None:
    job = read_job({**given})
    assert other_version(job.source, ENGINES["mpijob"]) is None
    assert other_version(read_job(manifest()).source, ENGINES["mpijob-v1"]) is None
    assert other_version("pytorchjob", ENGINES["mpijob"]) is None
