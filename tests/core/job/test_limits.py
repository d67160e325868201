"""A job is held to the same limits and names wherever it comes from, and keeps what its author wrote."""

# ruff: noqa: E501  (tables of wrong jobs)

from __future__ import annotations

import datetime
import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allaboard import BadInput, TrainingJob, check
from allaboard.checking.job import require_valid
from allaboard.job.identity import spec_hash
from allaboard.job.loader import load, parse
from allaboard.running import read_job

GOLDEN = "v1:d14291399f18ec28a833c2159f1847c57691fde454ade514985708c8ea0accfd"
"""Of the job below, before there were limits."""
DIGITS = {"name": "digits", "command": ["python", "train.py"]}


def knot() -> Any:
    within: dict[str, Any] = {}
    within["again"] = within
    return within


def paths(job: Any) -> set[str]:
    return {p.path for p in check(job) if p.severity == "error"}


@pytest.mark.parametrize(
    ("change", "path", "words"),
    [
        ({"workers": 1_000_000_000}, "workers", "give 10000 or fewer"),
        ({"workers": 10_001}, "workers", "give 10000 or fewer"),
        ({"groups": {"master": 1, "worker": 10_000}}, "groups", "10001 members are too many"),
        ({"resources": {"gpu": 1_001}}, "resources.gpu", "give 1000 or fewer"),
        ({"policy": {"backoff_limit": 2**31}}, "policy.backoff_limit", "too many"),
        ({"policy": {"deadline": "9" * 400}}, "policy.deadline", "is not a duration"),
        ({"policy": {"ttl": "24856d"}}, "policy.ttl", "68 years"),
        ({"policy": {"ttl": 1e300}}, "policy.ttl", "68 years"),
        ({"resources": {"memory": "8Ei"}}, "resources.memory", "too large"),
        ({"resources": {"cpu": "1" * 30}}, "resources.cpu", "too many"),
        ({"resources": {"cpu": "0m"}}, "resources.cpu", "0 cores cannot run anything"),
        ({"image": "a b:c"}, "image", "holds a blank"),
        ({"image": "Repo/Train:v1"}, "image", "lower case"),
        ({"image": "train:"}, "image", "the tag after ':' is empty"),
        ({"image": "train@sha256:abc"}, "image", "64 hexadecimal digits"),
        ({"image": "a//b"}, "image", "is not an image"),
        ({"storage": [{"mount": "/a", "pvc": "a..b"}]}, "storage[0].pvc", "not an object name"),
        ({"secrets": [{"name": "HF_TOKEN", "env": True}]}, "secrets[0].name", "not an object name"),
        ({"gang": {"priority": "Very High"}}, "gang.priority", "not an object name"),
        ({"gang": {"queue": "q" * 64}}, "gang.queue", "at most 63"),
        (
            {"storage": [{"mount": "/a", "pvc": "x"}, {"mount": "//a/./", "pvc": "y"}]},
            "storage[1].mount",
            "mounted twice",
        ),
        ({"storage": [{"mount": "/a:b", "pvc": "x"}]}, "storage[0].mount", "cannot be mounted"),
        ({"environment": {"A": "x" * 131_072}}, "environment.A", "a process takes"),
        ({"environment": {"A": None}}, "environment.A", "nothing"),
        ({"checkpoints": {"uri": "x" * 300}}, "checkpoints.uri", "255 bytes"),
        ({"code": ["../secret.py"]}, "code[0]", "not below the job's folder"),
        ({"pod": {1: 2}}, "pod", "is not text"),
        ({"pod": {"spec": {"since": datetime.date(2026, 11, 22)}}}, "pod.spec.since", "date"),
        ({"pod": {"spec": {"weight": float("nan")}}}, "pod.spec.weight", "not a finite number"),
        ({"pod": {"metadata": {"labels": {"team": "a b"}}}}, "pod.metadata.labels.team", "not a label value"),
        (
            {"pod": {"spec": {"containers": [{"name": "pytorch", "resources": {"limits": {"cpu": "2 c"}}}]}}},
            "pod.spec.containers[0].resources.limits.cpu",
            "not a quantity",
        ),
        ({"pod": {"metadata": {"annotations": {"a": "x" * 250_000, "b": "y" * 250_000}}}}, "pod", "256 KiB"),
        ({"engine_spec": {"a": ["x" * 1000] * 600}}, "engine_spec", "fit into the objects of a cluster"),
        ({"command": ["python", "\ud800"]}, "command[1]", "surrogate"),
        ({"command": ["python", "a\0b"]}, "command[1]", "NUL"),
        ({"pod": knot()}, "pod", "64 deep"),
        ({"workers": 10**5000}, "workers", "digits"),
    ],
)  # fmt: skip
def test_what_would_fail_later_is_said_by_every_entrance(
    change: dict[str, Any], path: str, words: str
) -> None:
    job = {**DIGITS, **change}
    found = check(job)
    assert any(p.path.startswith(path) and words in p.message for p in found), found
    with pytest.raises(BadInput) as of_mapping:
        read_job(job)
    with pytest.raises(BadInput) as of_python:
        require_valid(TrainingJob(**job))
    with pytest.raises(BadInput) as of_airflow:
        require_valid(job, lenient=True)
    for caught in (of_mapping, of_python, of_airflow):
        assert any(p.path.startswith(path) for p in caught.value.problems)
    assert len(str(of_mapping.value)) < 2_000


@pytest.mark.parametrize(
    "image",
    [
        "busybox", "registry.lab:5000/ml/train:v3", "a/b/c", "localhost/x", "ghcr.io/o/r@sha256:" + "a" * 64, "x__y/z-1.2:T_g-1",
        "[::1]:5000/a", "UPPER.example/a:1",
    ],
)  # fmt: skip
def test_an_image_that_a_registry_takes_is_taken(image: str) -> None:
    assert check({**DIGITS, "image": image}) == []


@pytest.mark.parametrize(
    ("written", "meant"), [("012", "012"), ("1.10", "1.10"), ("0x1F", "0x1F"), ("1_000", "1_000")]
)
def test_a_number_in_a_command_stays_as_it_is_written_with_a_warning(
    tmp_path: Path, written: str, meant: str
) -> None:
    file = tmp_path / "job.yaml"
    file.write_text(f"name: digits\ncommand: [python, {written}]\nenvironment: {{V: {written}}}\n")
    job = require_valid(load(file))
    assert job.get("command") == ["python", meant] and job.get("environment") == {"V": meant}
    problems = check(parse(file.read_text(), "job.yaml"))
    assert [(p.path, p.severity) for p in problems] == [
        ("command[1]", "warning"),
        ("environment.V", "warning"),
    ]
    assert f'quote it: "{written}"' in problems[0].message


def test_numbers_that_are_written_plainly_raise_no_word(tmp_path: Path) -> None:
    file = tmp_path / "job.yaml"
    file.write_text("name: digits\ncommand: [python, 12, 0.5, '012']\nworkers: 2\n")
    assert check(parse(file.read_text(), "job.yaml")) == []
    assert require_valid(load(file)).get("command") == ["python", "12", "0.5", "012"]


def test_a_count_that_yaml_reads_otherwise_is_pointed_out() -> None:
    (problem,) = check(parse("name: digits\ncommand: [a]\nworkers: 012\n", "job.yaml"))
    assert (problem.path, problem.severity) == ("workers", "warning")
    assert "012 means 10 in YAML" in problem.message


def test_yes_in_a_command_is_told_apart_from_text() -> None:
    (problem,) = check(parse("name: digits\ncommand: [a, yes]\n", "job.yaml"))
    assert problem.path == "command[1]" and "quote it" in problem.message


def test_the_hash_of_a_job_is_what_it_was() -> None:
    job = require_valid(
        {**DIGITS, "command": ["python", "train.py", 3, 0.5], "pod": {"spec": {"b": [1, None]}}}
    )
    assert spec_hash(json.loads(json.dumps(job.as_mapping()))) == spec_hash(job.as_mapping()) == GOLDEN


def test_null_in_a_pod_takes_something_away_and_is_kept() -> None:
    pod = {"spec": {"tolerations": None, "b": [1, None]}}
    assert require_valid({**DIGITS, "pod": pod}).as_mapping()["pod"] == pod


@pytest.mark.parametrize("made", [knot, lambda: {"a": [[[[1]]]] * 3}])
def test_the_constructor_never_recurses_without_end(made: Callable[[], Any]) -> None:
    value = made()
    if "again" in value:
        with pytest.raises(BadInput, match="64 deep"):
            TrainingJob(**DIGITS, pod=value)
    else:
        assert TrainingJob(**DIGITS, pod=value).get("pod") == value


def test_code_is_looked_for_where_the_folder_is_known(tmp_path: Path) -> None:
    (tmp_path / "there.py").write_text("")
    with (tmp_path / "large.bin").open("wb") as file:
        file.truncate(10 * 2**30)
    job = TrainingJob(folder=str(tmp_path), **DIGITS, code=["there.py", "lost.py", "large.bin", "."])
    found = {p.path: p.message for p in check(job)}
    assert set(found) == {"code", "code[1]", "code[3]"}
    assert "more than a ConfigMap holds" in found["code"] and "is not there" in found["code[1]"]
    assert check(TrainingJob(**DIGITS, code=["lost.py"])) == []


@pytest.mark.parametrize(
    "change",
    [{"groups": {"x" * 300: "1", "worker": 1}}, {"groups": {"\x1b": "1", "worker": 1}}, {"name": object()}],
)
def test_what_is_wrong_by_itself_takes_no_part_in_further_rules(change: dict[str, Any]) -> None:
    with pytest.raises(BadInput) as caught:
        require_valid({**DIGITS, **change})
    assert "\x1b" not in str(caught.value)


def test_the_text_of_an_error_stays_short_and_its_problems_are_whole() -> None:
    with pytest.raises(BadInput, match="and 4950 more") as caught:
        require_valid({**DIGITS, "groups": {f"role{n}": 1 for n in range(4_999)}, "workers": 2})
    assert len(caught.value.problems) == 5_000 and len(str(caught.value)) < 10_000
