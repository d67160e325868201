"""One verdict: what a cluster says of a job that does not start is told by the same cause, and with the same
hope, wherever it is asked: the live view, the doctor, preflight, and who ends a run that can never start.

A line of ``words_of_clusters.jsonl`` is what a registry, a runtime, a scheduler or an API server says,
written from what these systems write and not from the rules; with the cause, and whether it may pass by
itself.
"""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.observe.deadlines import limit_of
from allaboard.backends.kubernetes.observe.observation import of_object
from allaboard.backends.kubernetes.observe.snapshot import read_snapshot
from allaboard.diagnosis import diagnose
from allaboard.runs.layout import Policy
from allaboard.runs.observation import Observation, Stop
from allaboard.text.units import from_rfc3339
from tests.core.backends.kubernetes.preflight.test_gather import Cluster
from tests.core.diagnosis.sayings import SAYINGS, scene

Json = dict[str, Any]
WAITS = ("insufficient_gpu", "unschedulable_constraints")
"""What a full cluster looks like: the live view tells it in the words of the scheduler, as a wait."""


def live(snap: Json) -> Observation:
    now = from_rfc3339(snap["taken"])
    assert now is not None
    return of_object(snap["job"], now=now, pods=snap["pods"], events=snap["events"])


def verdicts(case: Json) -> dict[str, tuple[str | None, bool]]:
    """Who was asked -> the code, and whether it may pass."""
    snap = scene(case)
    top = diagnose(read_snapshot(snap), thorough=True)[0]
    found: dict[str, tuple[str | None, bool]] = {"doctor": (top.code, top.retryable)}
    seen = live(snap)
    limit = limit_of(seen, Policy("never"), 0.0, None)
    told = [d for d in diagnose(seen) if d.code == (seen.obstacle.code if seen.obstacle else "")]
    if seen.obstacle is not None:
        found["live view"] = (seen.obstacle.code, not seen.obstacle.never)
        found["status"] = (told[0].code, told[0].retryable)
        found["its end"] = (limit.code if limit is not None else seen.obstacle.code, limit is None)
    elif not (case["passes"] and case["code"] in WAITS and case["where"] == "placement"):
        found["live view"] = (None, True)
    if case["where"] == "refusal":
        found["preflight"] = refused_in_preflight(case["text"])
    return found


def refused_in_preflight(text: str) -> tuple[str | None, bool]:
    def refuses(body: Json) -> None:
        if body["kind"] == "Pod":
            raise Forbidden(text, status=403)

    (check,) = [c for c in Cluster(refuses=refuses).checks(workers=1) if c.id == "dry_run"]
    assert check.stops and check.fix
    return check.code, bool(check.retryable)


@pytest.mark.parametrize("case", SAYINGS, ids=lambda case: f"{case['where']}: {case['name']}")
def test_whoever_is_asked_says_the_same(case: Json) -> None:
    right = (case["code"], case["passes"])
    assert verdicts(case) == dict.fromkeys(verdicts(case), right)


def test_there_are_words_of_every_place() -> None:
    assert len(SAYINGS) > 100 and {"pull", "container", "event", "placement", "refusal"} == {
        case["where"] for case in SAYINGS
    }


def test_how_it_ended_is_told_by_the_same_cause() -> None:
    """A record keeps the code alone; an older release wrote it, too."""
    for case in SAYINGS:
        if not case["passes"]:
            stop = Stop("allaboard", "it could never start", 9.0, code=case["code"])
            seen = Observation(run="net", recorded="failed", stop=stop)
            assert [(d.code, d.retryable) for d in diagnose(seen)] == [(case["code"], False)]
