"""What holds of every job, asked of ten thousand of them: right ones render, read back and are stable, wrong
ones are refused with all that is wrong with them.
"""

from __future__ import annotations

import itertools
import random
from collections import Counter
from dataclasses import replace
from typing import Any

import pytest

from allaboard.engines import ENGINES
from allaboard.engines.kubeflow import KubeflowEngine
from tests.torture import properties
from tests.torture.properties import one
from tests.torture.right import a_right_job, a_wrong_job, every_field, fields_of

LONG = [pytest.mark.slow, pytest.mark.thorough]


@pytest.mark.parametrize(
    ("first", "end"),
    [
        (0, 400),
        pytest.param(400, 1_000, marks=LONG),
        *(pytest.param(first, first + 1_500, marks=LONG) for first in range(1_000, 10_000, 1_500)),
    ],
)
def test_what_holds_of_every_job(first: int, end: int) -> None:
    """`python -m tests.torture.properties NUMBER 1` plays one of them again."""
    troubles = [(n, trouble) for n in range(first, end) if (trouble := one(n)) is not None]
    assert troubles == []


def test_every_engine_and_every_field_has_its_jobs() -> None:
    rng = random.Random(3)
    jobs = [a_right_job(rng) for _ in range(1_500)]
    kinds = Counter(job["engine"] for job in jobs if "engine" in job)
    assert kinds.keys() == ENGINES.keys() and min(kinds.values()) > 30
    fields = Counter(field for job in jobs for field in fields_of(job))
    assert {field for field in every_field() if fields[field] < 5} == set()


def test_a_number_makes_the_same_job_again() -> None:
    assert a_right_job(random.Random("1/2")) == a_right_job(random.Random("1/2"))
    assert a_wrong_job(random.Random("1/5")) == a_wrong_job(random.Random("1/5"))


# The properties can be broken.


def troubles() -> str:
    return "; ".join(filter(None, (one(number) for number in range(150))))


def test_members_that_are_read_in_another_order_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = KubeflowEngine.read

    def reversed_(self: Any, job: Any, pods: Any) -> Any:
        seen = whole(self, job, pods)
        return replace(seen, members=seen.members[::-1])

    monkeypatch.setattr(KubeflowEngine, "read", reversed_)
    assert "is read as other members than it was laid out for" in troubles()


def test_an_object_that_differs_from_time_to_time_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole, count = properties.render, itertools.count()

    def counted(*words: Any, **more: Any) -> Any:
        made = whole(*words, **more)
        made.job["metadata"]["annotations"]["n"] = str(next(count))
        return made

    monkeypatch.setattr(properties, "render", counted)
    assert "rendered twice it is not the same" in troubles()


def test_a_problem_that_is_not_told_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    whole = properties.check
    monkeypatch.setattr(properties, "check", lambda fields: whole(fields)[:1])
    assert "nothing is said about" in troubles()


def test_a_right_job_that_is_refused_and_an_exception_are_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allaboard.job.fields.GPUS_MAX", 7)
    assert "a right job is refused: ['resources.gpu: " in troubles()

    def broken(*_: Any) -> Any:
        raise KeyError("worker")

    monkeypatch.setattr("allaboard.checking.job._elastic", broken)
    assert "KeyError at" in troubles()


def test_a_hash_that_follows_the_order_of_fields_is_noticed(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(properties, "spec_hash", lambda spec: "".join(spec))
    assert "the spec is another one" in troubles()
