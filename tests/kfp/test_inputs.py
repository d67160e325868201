"""Inputs as kfp.local mangles them, and as their author wrote them."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
from kfp.local.subprocess_task_handler import replace_python_executable

from allaboard.errors import BadInput
from allaboard_kfp.inputs import as_written, job_of

JOB = {"name": "digits", "command": ["python", "train.py"], "workers": 2}


@pytest.mark.parametrize(
    ("mangled", "written"),
    [
        ({"workers": 2.0}, {"workers": 2}),
        ({"a": [1.0, 2.5, {"b": 3.0}]}, {"a": [1, 2.5, {"b": 3}]}),
        (True, True),
        (float("inf"), float("inf")),
        (0.25, 0.25),
        ("2.0", "2.0"),
    ],
)
def test_whole_numbers_are_whole_again(mangled: Any, written: Any) -> None:
    found = as_written(mangled, {})
    assert found == written
    assert repr(found) == repr(written)


@pytest.mark.parametrize("interpreter", ["/opt/venv/bin/python", "/usr/bin/python3", "/usr/bin/python3.11"])
@pytest.mark.parametrize(
    "text",
    ["python3", "python3.12", "/data/python3/x", "python3-python3", "python", "--with=python3", "/x/y"],
)
def test_what_kfp_takes_for_the_interpreter_is_undone(interpreter: str, text: str) -> None:
    (mangled,) = replace_python_executable([text], interpreter)
    assert as_written(mangled, {}, interpreter) == text


def test_on_a_cluster_nothing_is_undone() -> None:
    pod = {"KFP_POD_NAME": "retrain-1"}
    assert as_written({"a": 2.0, "b": sys.executable}, pod) == {"a": 2.0, "b": sys.executable}


def test_floats_of_a_cluster_are_taken_for_what_they_mean() -> None:
    assert job_of({**JOB, "workers": 2.0}, "", "").get("workers") == 2


def test_the_folder_is_where_the_step_runs_unless_somebody_says(tmp_path: Path) -> None:
    (tmp_path / "job.yaml").write_text("name: digits\ncommand: [python, train.py]\n")
    assert job_of(JOB, "", "").folder == str(Path.cwd())
    assert job_of(JOB, "", str(tmp_path)).folder == str(tmp_path)
    assert job_of({}, str(tmp_path / "job.yaml"), "").folder == str(tmp_path)
    assert job_of({}, str(tmp_path / "job.yaml"), str(Path.cwd())).folder == str(Path.cwd())


def test_shards_become_the_jobs_data_and_the_rest_of_it_stays() -> None:
    assert job_of(JOB, "", "", shards="s3://b/s").get("data") == {"shards": "s3://b/s"}
    given = {**JOB, "data": {"shards": "store://other"}}
    assert job_of(given, "", "", shards="s3://b/s").get("data") == {"shards": "s3://b/s"}
    assert job_of(given, "", "").get("data") == {"shards": "store://other"}


@pytest.mark.parametrize(
    ("job", "text", "folder", "words"),
    [
        ({}, "", "", "neither job nor job_text is given"),
        (JOB, "name: digits", "", "both job and job_text are given"),
        ({}, "absent.yaml", "", "absent.yaml: no such file"),
        ({}, "a: b: c", "", r"job_text: .* is not a mapping \(is not YAML"),
        ({}, "just words", "", r"job_text: .* is not a mapping \(it holds text\)"),
        (JOB, "", "/not/there", "folder /not/there is not there"),
        ({**JOB, "wrokers": 2}, "", "", "did you mean 'workers'"),
        ({**JOB, "workers": 2.5}, "", "", "expected a whole number"),
        ({**JOB, "wrokers": 2, "workers": 0}, "", "", "2 problems"),
    ],
)
def test_a_job_that_cannot_be_read_is_said(job: Any, text: str, folder: str, words: str) -> None:
    with pytest.raises(BadInput, match=words.replace("'", ".")):
        job_of(job, text, folder)


MANIFEST = {
    "apiVersion": "kubeflow.org/v1",
    "kind": "JAXJob",
    "metadata": {"name": "digits"},
    "spec": {
        "jaxReplicaSpecs": {
            "Worker": {
                "replicas": 2.0,
                "template": {"spec": {"containers": [{"name": "jax", "image": "x", "command": ["python3"]}]}},
            }
        }
    },
}


def test_a_manifest_is_a_job_too() -> None:
    for job, text in ((MANIFEST, ""), ({}, json.dumps(MANIFEST))):
        found = job_of(job, text, "")
        assert (found.name, found.get("framework")) == ("digits", "jax")
        assert found.get("groups") == {"worker": 2} and found.get("command") == ["python3"]
        assert found.source == "jaxjob"


def test_what_a_job_cannot_say_of_a_manifest_is_refused_with_its_path() -> None:
    manifest = {**MANIFEST, "spec": {**MANIFEST["spec"], "runPolicy": {"backofLimit": 3}}}  # type: ignore[dict-item]
    with pytest.raises(BadInput, match=r"spec\.runPolicy\.backofLimit: a job cannot say it"):
        job_of(manifest, "", "")
