"""What `allaboard convert --to KIND` writes is what `allaboard run` takes: the same members with the same
command, and no variable twice.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from allaboard.cli.tools.render import to_yaml
from allaboard.convert.manifests import convert, documents
from allaboard.engines import ENGINES
from allaboard.errors import BadInput
from allaboard.render.cluster_facts import ClusterFacts
from allaboard.render.manifests import render
from allaboard.running import read_job
from allaboard.runs.layout import lay_out

MANIFEST = """
apiVersion: kubeflow.org/v1
kind: PyTorchJob
metadata: {name: digits}
spec:
  runPolicy: {cleanPodPolicy: Running, backoffLimit: 3}
  pytorchReplicaSpecs:
    Master: &group
      replicas: 1
      restartPolicy: OnFailure
      template:
        spec:
          containers:
          - name: pytorch
            image: example.org/digits:1
            command: [python, train.py, --rank, $(RANK)]
            env: [{name: SEED, value: "7"}]
    Worker: *group
"""
TARGETS = [name for name, engine in ENGINES.items() if "pytorch" in engine.FRAMEWORKS]


def written(target: str, folder: Path) -> Path:
    """The file that `convert --to` writes."""
    (outcome,) = convert(documents(MANIFEST, "job.yaml"), target)
    assert outcome.documents and not outcome.problems, outcome
    file = folder / f"{target}.yaml"
    file.write_text(to_yaml([*outcome.documents]))
    return file


def variables(value: Any) -> list[list[str]]:
    """The names of the variables of each container in a manifest."""
    if isinstance(value, Mapping):
        inner = [names for part in value.values() for names in variables(part)]
        env = value.get("env")
        return [[v["name"] for v in env], *inner] if isinstance(env, list) else inner
    return [names for part in value for names in variables(part)] if isinstance(value, list) else []


@pytest.mark.parametrize("target", TARGETS)
def test_what_was_converted_is_taken_and_rendered_without_a_variable_twice(
    tmp_path: Path, target: str
) -> None:
    job = read_job(written(target, tmp_path))
    assert job.name == "digits" and job.get("engine", "pytorchjob") == target
    layout = lay_out(job, ENGINES[target], "digits-1")
    assert layout.total == 2
    made = render(job, layout, ClusterFacts(namespace="n"), launch="", spec_hash="").manifests
    every = [names for manifest in made for names in variables(manifest)]
    assert every and not [names for names in every if len(names) != len({*names})]


def test_of_several_jobs_in_a_file_none_is_taken(tmp_path: Path) -> None:
    both = tmp_path / "both.yaml"
    both.write_text(f"{MANIFEST}---\n{MANIFEST}")
    with pytest.raises(BadInput, match="holds 2 documents; give one job per file"):
        read_job(both)


def test_other_objects_may_stand_beside_a_job(tmp_path: Path) -> None:
    beside = tmp_path / "beside.yaml"
    beside.write_text(f"{{apiVersion: v1, kind: Namespace, metadata: {{name: n}}}}\n---\n{MANIFEST}")
    assert read_job(beside).get("command") == ["python", "train.py", "--rank", "$(RANK)"]


@pytest.mark.parametrize(("version", "told"), [("v1", ["kubeflow.org/v2beta1"]), ("v2beta1", [])])
def test_that_a_job_runs_as_another_version_of_its_kind_is_told(version: str, told: list[str]) -> None:
    pod = "{template: {spec: {containers: [{name: mpi, image: x, command: [mpirun, train]}]}}}"
    text = f"""
apiVersion: kubeflow.org/{version}
kind: MPIJob
metadata: {{name: digits}}
spec:
  mpiReplicaSpecs: {{Launcher: {pod}, Worker: {pod}}}
"""
    (outcome,) = convert(documents(text, "job.yaml"))
    assert [one.after for one in outcome.changed if one.path == "apiVersion"] == told
