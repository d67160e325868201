"""Every problem of a job at once, each with its path and the nearest right word."""

from __future__ import annotations

from typing import Any

import pytest

from allaboard import BadInput, TrainingJob, check
from allaboard.checking.job import require_valid
from allaboard.job.fields import MOST_PROBLEMS
from allaboard.job.identity import spec_hash, spec_of
from allaboard.testing import a_job


def said(job: Any) -> dict[str, str]:
    return {p.path: p.message for p in check(job)}


def test_a_right_job_has_no_problem() -> None:
    assert check(a_job()) == []


FULL = {
    "name": "resnet50-ddp",
    "framework": "pytorch",
    "engine": "auto",
    "image": "registry.lab/ml/resnet50-train:v3",
    "command": ["python", "train.py", "--epochs=20"],
    "groups": {"master": 1, "worker": {"replicas": 2, "resources": {"gpu": 2}}},
    "resources": {
        "cpu": 8,
        "memory": "32Gi",
        "gpu": 1,
        "gpu_type": "nvidia-h100",
        "mig": "1g.10gb",
        "shared": False,
    },
    "processes_per_member": "auto",
    "gang": {
        "scheduler": "auto",
        "queue": "research",
        "priority": "high",
        "timeout": "10m",
        "topology": {"require": "rack"},
    },
    "policy": {
        "restart": "on_failure",
        "backoff_limit": 3,
        "deadline": "12h",
        "ttl": "1d",
        "clean_pods": "running",
        "suspend": False,
        "attempts": 3,
        "clocks": {"rendezvous": "10m"},
    },
    "storage": [
        {"mount": "/data", "pvc": "datasets", "read_only": True},
        {"mount": "/scratch", "empty_dir": "memory", "size": "16Gi"},
    ],
    "checkpoints": {
        "uri": "s3://bucket/resnet50",
        "every": "10m",
        "keep": 3,
        "best": {"metric": "val_loss", "mode": "min"},
        "start_from": "none",
    },
    "data": {"shards": "s3://bucket/imagenet-shards"},
    "spot": {"tolerate": True, "prefer": True, "grace": "2m"},
    "code": ["train.py"],
    "environment": {"NCCL_DEBUG": "WARN"},
    "secrets": [{"name": "aws-credentials", "env": True}],
    "pod": {"spec": {"hostNetwork": True}},
    "engine_spec": {"runPolicy": {"managedBy": "kueue.x-k8s.io/multikueue"}},
}


def test_every_field_of_the_vocabulary_is_understood() -> None:
    assert check(FULL) == []
    assert TrainingJob(**FULL).as_mapping() == FULL


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"wrokers": 2}, "wrokers", "no such field"),
        ({"policy": {"backof_limit": 3}}, "policy.backof_limit", "no such field"),
        ({"workers": 0}, "workers", "0 is too few; give 1 or more"),
        ({"workers": -2}, "workers", "-2 is too few; give 1 or more"),
        ({"workers": "two"}, "workers", "expected a whole number, not 'two'"),
        ({"workers": True}, "workers", "expected a whole number, not True"),
        ({"workers": 1.5}, "workers", "expected a whole number, not 1.5"),
        ({"name": "x" * 41}, "name", "at most 40 fit"),
        ({"name": "Digits_1"}, "name", "not a legal name"),
        ({"name": "1digits"}, "name", "not a legal name"),
        ({"command": []}, "command", "expected a program and its arguments"),
        ({"command": "python train.py --lr=0.1"}, "command", "write [python, train.py, --lr=0.1]"),
        ({"command": ["python", None]}, "command[1]", "expected text"),
        ({"policy": {"hang": {"after": "0s"}}}, "policy.hang.after", "0 is no time to make progress in"),
        ({"policy": {"hang": {"after": "soon"}}}, "policy.hang.after", "known: auto or off"),
        (
            {"policy": {"orphan": {"after": "59s"}}},
            "policy.orphan.after",
            "'59s' is out of range; give 1m to 1d",
        ),
        ({"policy": {"orphan": {"after": "25h"}}}, "policy.orphan.after", "give 1m to 1d"),
        ({"policy": {"orphan": {"after": "soon"}}}, "policy.orphan.after", "is not a duration"),
        ({"policy": {"orphan": {"then": "delete"}}}, "policy.orphan.then", "stop"),
        ({"progress": r"(?P<step>\d+"}, "progress", "is no regular expression: missing )"),
        ({"progress": r"loss (\S+)"}, "progress", "has no group named step"),
        ({"progress": "x" * 1001}, "progress", "has 1001 characters; 1 to 1000 are allowed"),
        ({"progress": ""}, "progress", "has 0 characters; 1 to 1000 are allowed"),
        ({"progress": True}, "progress", "expected a regular expression or off, not True"),
        ({"progress": ["off"]}, "progress", "expected a regular expression or off"),
        (
            {"policy": {"restart": "never", "hang": {"then": "restart"}}},
            "policy.hang.then",
            "policy.restart: never forbids",
        ),
        ({"policy": {"deadline": "12 parsecs"}}, "policy.deadline", "write 90s, 10m, 12h, 1d or 1h30m"),
        (
            {"policy": {"restart": "on-failure"}},
            "policy.restart",
            "known: never, on_failure, always or exit_code",
        ),
        ({"resources": {"memory": "32 Gb"}}, "resources.memory", "not a size"),
        ({"resources": {"cpu": 0}}, "resources.cpu", "0 cores cannot run anything"),
        ({"resources": []}, "resources", "expected fields"),
        ({"resources": {"mig": "1g.11gb"}}, "resources.mig", "no GPU is known to have the MIG profile"),
        ({"resources": {"mig": "3c.3g.40gb"}}, "resources.mig", "no GPU is known to have the MIG profile"),
        ({"groups": {"worker": {"resources": {"mig": "1g.1gb"}}}}, "groups.worker.resources.mig", "1g.1gb"),
        ({"spot": {"prefer": True, "tolerate": False}}, "spot.prefer", "give one of the two"),
        ({"framework": "pytorhc"}, "framework", "not known"),
        ({"engine": "pytorchjobs"}, "engine", "not known"),
        ({"environment": {"A B": "1"}}, "environment.A B", "not a legal variable name"),
        ({"environment": {"DEBUG": True}}, "environment.DEBUG", "quote it"),
        ({"checkpoints": {"keep": 3}}, "checkpoints.uri", "is missing"),
        ({"checkpoints": {"uri": "x", "best": {"mode": "max"}}}, "checkpoints.best.metric", "is missing"),
        ({"storage": [{"mount": "data", "pvc": "x"}]}, "storage[0].mount", "absolute path"),
        (
            {"storage": [{"mount": "/data"}]},
            "storage[0]",
            "give one of pvc, claim, empty_dir, ephemeral, host_path and volume",
        ),
        ({"secrets": [{"name": "x"}]}, "secrets[0]", "is not used"),
    ],
)
def test_a_wrong_value_is_named_with_what_is_allowed(change: dict[str, Any], path: str, words: str) -> None:
    found = said({"name": "digits", "command": ["python", "train.py"], **change})
    assert words in found.get(path, f"nothing; said {found}")


@pytest.mark.parametrize(
    ("groups", "path", "words"),
    [
        ({"master": 2}, "groups.master", "takes exactly 1"),
        ({"master": 1, "worker": 0}, "groups.worker", "0 is too few"),
        ({"mastr": 1}, "groups.mastr", "no such role"),
        ({"worker": {"replica": 2}}, "groups.worker.replica", "no such field"),
        ({}, "groups", "expected members by role"),
    ],
)
def test_groups_keep_the_rules_of_their_engine(groups: dict[str, Any], path: str, words: str) -> None:
    assert words in said({"name": "digits", "command": ["a"], "groups": groups}).get(path, "")


def test_elastic_limits_must_fit_each_other_and_the_members() -> None:
    assert "above elastic.max" in said(a_job(workers=3, elastic={"min": 4, "max": 2}))["elastic.min"]
    assert "outside" in said(a_job(workers=5, elastic={"min": 2, "max": 4}))["workers"]
    assert (
        "needs workers"
        in said(a_job(workers=None, groups={"master": 1}, elastic={"min": 1, "max": 2}))["groups"]
    )


def test_an_elastic_job_without_torchrun_is_warned_not_refused() -> None:
    problems = check(a_job(elastic={"min": 1, "max": 2}))
    assert [(p.path, p.severity) for p in problems] == [("command", "warning")]
    require_valid(a_job(elastic={"min": 1, "max": 2}))


def test_all_problems_come_at_once_errors_first() -> None:
    job = {"name": "X", "command": ["a"], "workers": 2, "groups": {"master": 2, "worker": -1}, "polcy": {}}
    found = check(job)
    assert {p.path for p in found} == {"name", "groups.worker", "groups.master", "workers", "polcy"}
    assert next(p for p in found if p.path == "polcy").suggestion == "policy"
    with pytest.raises(BadInput) as caught:
        require_valid(job)
    assert "5 problems" in str(caught.value) and len(caught.value.problems) == 5


def test_adapters_take_numbers_as_templates_make_them() -> None:
    job = {
        "name": "digits",
        "command": ["a"],
        "workers": "4",
        "policy": {"backoff_limit": 3.0, "suspend": "False"},
    }
    assert len(check(job)) == 3
    read = require_valid(job, lenient=True)
    assert read.get("workers") == 4 and read.get("policy") == {"backoff_limit": 3, "suspend": False}


def test_a_field_that_does_not_exist_is_refused_at_once_in_python() -> None:
    with pytest.raises(BadInput, match=r"wrokers: no such field \(did you mean 'workers'\?\)"):
        TrainingJob(name="digits", wrokers=2)


def test_a_job_is_never_changed() -> None:
    job = a_job(environment={"A": "1"})
    other = job.with_(workers=3)
    job.as_mapping()["environment"]["A"] = "2"
    assert job.get("workers") == 2 and other.get("workers") == 3
    assert job.as_mapping()["environment"] == {"A": "1"}
    assert job == a_job(environment={"A": "1"}) and job != other


def test_of_a_file_of_thousands_of_unknown_fields_the_first_are_told_and_the_rest_counted() -> None:
    many = {f"unknown_field_{n}": n for n in range(20_000)}
    problems = check({"name": "x", "command": ["python"], **many})
    assert len(problems) == MOST_PROBLEMS + 1
    assert problems[-1].message == f"and {20_000 - MOST_PROBLEMS:,} more problems"
    assert [p.suggestion for p in check({"name": "x", "comand": ["python"]})][:1] == ["command"]


@pytest.mark.parametrize(
    ("name", "place"),
    [("labels", "pod.metadata.labels"), ("annotations", "pod.metadata.annotations"),
     ("tolerations", "pod.spec.tolerations"), ("nodeSelector", "pod.spec.nodeSelector")],
)  # fmt: skip
def test_a_field_of_pods_is_told_where_a_job_has_it(name: str, place: str) -> None:
    (problem,) = check({"name": "x", "image": "x", "command": ["python"], name: {"team": "a"}})
    assert problem.path == name and place in problem.message
    where, what = place.split(".")[1:]
    value = [{"operator": "Exists"}] if what == "tolerations" else {"team": "a"}
    assert not check({"name": "x", "image": "x", "command": ["python"], "pod": {where: {what: value}}})


@pytest.mark.parametrize("written", ["off", False, r"at (?P<step>\d+), loss (?P<loss>\S+)"])
def test_progress_is_off_or_an_expression(written: Any) -> None:
    job = require_valid({"name": "digits", "command": ["python", "train.py"], "progress": written})
    assert job.get("progress") == (written or "off")


def test_a_job_without_progress_has_the_hash_that_it_had() -> None:
    job = TrainingJob(name="digits", command=["python", "train.py"])
    before = spec_hash({"name": "digits", "command": ["python", "train.py"]})
    assert spec_hash(spec_of(require_valid(job))) == before
    assert spec_hash(spec_of(require_valid(job.with_(progress="off")))) != before
