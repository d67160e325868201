"""The jobs of a sweep: their values, their names, and every problem at once."""

from __future__ import annotations

import json
import math
import random
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from allaboard import TrainingJob, grid
from allaboard.errors import BadInput
from allaboard.job.grid import MOST_POINTS, POINT, point_of
from allaboard.text.names import why_not_a_job_name

JOB: dict[str, Any] = {"name": "net", "command": ["python", "a.py"], "resources": {"cpu": 1, "gpu": 1}}


def fields(job: Any, over: Any) -> list[dict[str, Any]]:
    return [dict(made.as_mapping()) for made in grid(job, over)]


def names(jobs: list[dict[str, Any]]) -> dict[str, Any]:
    """Name -> point."""
    return {str(job["name"]): point_of(job) for job in jobs}


def test_a_job_for_each_combination_and_the_last_field_changes_fastest() -> None:
    jobs = fields(JOB, {"resources.gpu": [1, 2], "environment.LR": [0.1, 1e-5], "args": [["-x"], []]})
    seen = [(job["resources"]["gpu"], job["environment"]["LR"], job["args"]) for job in jobs]
    assert seen[:3] == [(1, "0.1", ["-x"]), (1, "0.1", []), (1, "1e-05", ["-x"])] and len(seen) == 8
    assert all(job["resources"]["cpu"] == 1 and job["command"] == JOB["command"] for job in jobs)
    assert JOB["resources"] == {"cpu": 1, "gpu": 1}, "the job itself is as it was"


def test_a_name_is_of_the_values_alone() -> None:
    values = {"environment.LR": [0.1, 0.2], "workers": [1, 2]}
    first = names(fields(JOB, values))
    more = names(fields(JOB, {"workers": [4, 2, 1], "environment.LR": [0.3, 0.2, 0.1]}))
    assert first.items() <= more.items() and len(more) == 9
    assert names(fields({**JOB, "image": "other:1"}, values)) == first
    assert all(why_not_a_job_name(name) is None and name.startswith("net-") for name in more)
    long = fields({**JOB, "name": "a" * 39 + "b"}, values)
    assert all(why_not_a_job_name(str(job["name"])) is None for job in long)
    assert len(names(fields(JOB, {"environment.SEED": range(MOST_POINTS)}))) == MOST_POINTS


def test_members_and_readers_know_the_values() -> None:
    (job,) = fields({**JOB, "environment": {"A": "b"}}, {"environment.ON": [True], "elastic.min": [2]})
    assert json.loads(job["environment"][POINT]) == {"environment.ON": "true", "elastic.min": 2}
    assert job["environment"]["A"] == "b" and job["environment"]["ON"] == "true"
    assert point_of(TrainingJob(**job)) == {"environment.ON": "true", "elastic.min": 2}
    for odd in ({}, {POINT: "["}, {POINT: "7"}, {POINT: "[1]"}, {POINT: 7}, {POINT: "{" * 10_000}, None):
        assert point_of({"environment": odd}) is None


def test_templates_stay_templates() -> None:
    (job,) = fields({**JOB, "name": "{{ params.name }}"}, {"environment.LR": ["{{ params.lr }}"]})
    assert job["environment"]["LR"] == "{{ params.lr }}" and str(job["name"]).startswith("{{ params.name }}-")
    assert job["environment"][POINT] == '{"environment.LR":"{{ params.lr }}"}'


@pytest.mark.parametrize("suffix", ["yaml", "json"])
def test_a_job_file_keeps_its_folder(tmp_path: Path, suffix: str) -> None:
    file = tmp_path / f"job.{suffix}"
    file.write_text(json.dumps(JOB))
    for path in (file, str(file)):
        jobs = grid(path, {"workers": [1, 2]})
        assert [job.get("workers") for job in jobs] == [1, 2] and {job.folder for job in jobs} == {
            str(tmp_path)
        }
    assert {job.folder for job in grid(TrainingJob(folder="/f", **JOB), {"workers": [1]})} == {"/f"}
    with pytest.raises(BadInput, match=r"none\.yaml"):
        grid(tmp_path / "none.yaml", {"workers": [1]})


def test_every_problem_is_told_at_once() -> None:
    with pytest.raises(BadInput) as refused:
        grid(
            {"command": ["a"], "policy": {"attempts": 1}},
            {
                "environmet.LR": [1],
                "command.0": ["a"],
                "policy.attempts.x": [1],
                "workers": [],
                "resources.cpu": "12",
                "resources.gpu": 3,
                "name": ["a"],
                "args": [["a"], ["a"]],
                "environment": [{}],
                "environment.LR": [math.nan],
                "image": [object()],
                "data..x": [1],
            },
        )
    said = {problem.path: str(problem) for problem in refused.value.problems}
    assert "did you mean 'environment'" in said["environmet.LR"]
    assert "command is no mapping" in said["command.0"]
    assert "policy.attempts is no mapping" in said["policy.attempts.x"]
    assert all("give a list of them" in said[path] for path in ("workers", "resources.cpu", "resources.gpu"))
    assert "twice" in said["args"] and "name" in said
    assert "is within environment" in said["environment.LR"] and "JSON" in said["image"]
    assert any("no path of a field" in text for text in said.values())
    assert len(refused.value.problems) >= 13


@pytest.mark.parametrize("over", [{}, None, [("workers", [1])], "workers"])
def test_what_names_no_field_is_refused(over: Any) -> None:
    with pytest.raises(BadInput, match="names no field"):
        grid(JOB, over)


def test_a_sweep_has_an_end() -> None:
    with pytest.raises(BadInput, match="1001 combinations; 1000 are the most"):
        grid(JOB, {"workers": range(10**9)})
    with pytest.raises(BadInput, match="combinations"):
        grid(JOB, {"workers": range(1, 100), "environment.A": range(100)})


def test_no_input_leaves_it_with_anything_but_jobs_or_problems() -> None:
    chance = random.Random(7)
    odd: list[Any] = [
        None,
        1,
        -1,
        0.5,
        "",
        "x",
        "a.b",
        [],
        [1],
        {},
        {"a": 1},
        (),
        b"x",
        True,
        [[]],
        [{}],
        {1: 2},
    ]
    paths: list[Any] = [
        "workers",
        "a",
        "",
        ".",
        "environment.A",
        "environment",
        "pod.x.y",
        1,
        None,
        "name",
        "\x00",
    ]
    for _ in range(3000):
        job = chance.choice([JOB, {}, {"name": chance.choice(odd)}, *odd])
        if isinstance(job, (str, bytes)):
            continue
        over = {chance.choice(paths): chance.choice(odd) for _ in range(chance.randrange(3))}
        try:
            jobs = grid(job, over)
        except BadInput as error:
            assert str(error)
        else:
            assert jobs and all(isinstance(job, TrainingJob) for job in jobs)


def test_a_dag_file_pays_little_for_it() -> None:
    code = (
        "import sys; from allaboard import grid; grid({'name': 'a'}, {'workers': [1]}); print(*sys.modules)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True)
    assert not {"yaml", "allaboard.storage", "allaboard.backends", "airflow"} & set(done.stdout.split())
