"""Why a queue of Kueue holds a job back, from what Kueue 0.19 and its predecessors write."""

# ruff: noqa: E501  (messages)

from __future__ import annotations

from typing import Any

import pytest

from allaboard.gangs.kueue import IMPOSSIBLE, MISCONFIGURED, NOT_READY, PENDING, Held, why_held
from allaboard.testing.objects import BEGUN, at

SHORT = (
    "couldn't assign flavors to pod set worker: insufficient unused quota for cpu in flavor any, 2 more needed; "
    "couldn't assign flavors to pod set master: insufficient unused quota for cpu in flavor any, 2 more needed"
)
TOPOLOGY = (
    'couldn\'t assign flavors to pod set master: topology "racks" allows to fit only 1 out of 1 pod(s). '
    'Total nodes: 3; excluded: resource "cpu": 2'
)
NEVER = (
    "couldn't assign flavors to pod set worker: insufficient quota for nvidia.com/gpu in flavor h100, "
    "previously considered podsets requests ({}) + current podset request (16) > maximum capacity (8)"
)


def condition(kind: str, status: str = "True", reason: str = "", message: str = "") -> dict[str, Any]:
    return {"type": kind, "status": status, "reason": reason, "message": message}


def waits(reason: str, message: str = "") -> dict[str, Any]:
    return condition("QuotaReserved", "False", reason, message)


def held(*conditions: dict[str, Any], active: bool = True, **status: Any) -> Held:
    workload = {"spec": {"active": active}, "status": {"conditions": [*conditions], **status}}
    return why_held("team", workload, 5.0, BEGUN)


@pytest.mark.parametrize(
    ("reason", "message", "code", "words"),
    [
        ("WaitingForQuota", SHORT, PENDING, "it needs 2 more cpu in flavor any, which others use"),
        ("Pending", SHORT, PENDING, "it needs 2 more cpu in flavor any, which others use"),
        ("WaitingForPreemptedWorkloads", f"{SHORT}. Pending the preemption of 1 workload(s)", PENDING,
         "it needs 2 more cpu in flavor any, which others use until those that it preempts have gone"),
        ("ExceedsMaxQuota", NEVER.format("0"), IMPOSSIBLE,
         "it asks for more than its queue can ever have of nvidia.com/gpu (16 asked, at most 8 in flavor h100)"),
        ("Pending", NEVER.format("4"), IMPOSSIBLE,
         "it asks for more than its queue can ever have of nvidia.com/gpu (4 and 16 asked, at most 8 in flavor h100)"),
        ("NoMatchingFlavor", "flavor h100 doesn't match node affinity", IMPOSSIBLE, "flavor h100 doesn't match node affinity"),
        ("Misconfigured", "LocalQueue team doesn't exist", MISCONFIGURED, "LocalQueue team doesn't exist"),
        ("Inadmissible", "ClusterQueue cores is inactive", MISCONFIGURED, "ClusterQueue cores is inactive"),
        ("Suspended", "LocalQueue team is stopped", MISCONFIGURED, "LocalQueue team is stopped"),
        ("TopologyPlacementFailed", 'topology "racks" allows to fit only 1 out of 3 pod(s)', PENDING,
         "no domain of topology racks has room for all of its members"),
        ("TopologyPlacementFailed", TOPOLOGY, PENDING,
         'no domain of topology racks has room for all of its members (of 3 nodes it leaves out, by resource "cpu": 2)'),
        ("Pending", 'topology "racks" doesn\'t allow to fit any of 2 pod(s)', PENDING,
         "no domain of topology racks has room for all of its members"),
        ("PendingEvaluation", "", PENDING, "it has not said why yet"),
    ],
)  # fmt: skip
def test_why_it_has_no_quota(reason: str, message: str, code: str, words: str) -> None:
    assert held(waits(reason, message)) == Held(code, f"Kueue holds it back in queue team: {words}")


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        ("InClusterQueue", "by one of higher priority in the same queue"),
        ("InCohortReclamation", "by a queue that took back what it had lent"),
    ],
)
def test_who_was_preempted_and_by_whom(reason: str, words: str) -> None:
    gone = (condition("Evicted", reason="Preempted"), condition("Preempted", reason=reason))
    said = held(*gone, waits("Pending", SHORT))
    assert said.code == PENDING and said.text.endswith(f"which others use (it was preempted {words})")
    again = held(
        condition("Evicted", "False", "QuotaReserved"), condition("Preempted", "False"), waits("Pending")
    )
    assert "preempted" not in again.text


def test_one_that_did_not_become_ready_says_when_it_is_tried_again() -> None:
    late = condition("Evicted", reason="PodsReadyTimeout")
    said = held(late, waits("Pending"), requeueState={"count": 2, "requeueAt": at(60.0)})
    assert said.code == NOT_READY
    assert said.text.endswith(
        "(its members did not become ready in time; tried again in 1m 00s, after 2 starts)"
    )


@pytest.mark.parametrize(
    ("reason", "code", "words"),
    [
        ("DeactivatedDueToRequeuingLimitExceeded", NOT_READY, "it was started again and again, and never became ready"),
        ("Deactivated", MISCONFIGURED, "it was deactivated"),
        ("SomethingNew", MISCONFIGURED, "the words of Kueue"),
    ],
)  # fmt: skip
def test_one_that_is_out_of_its_queue_says_why(reason: str, code: str, words: str) -> None:
    said = held(condition("Evicted", reason=reason, message="the words\nof Kueue."), active=False)
    assert said == Held(code, f"Kueue has taken it out of queue team: {words}")


def test_one_that_has_its_quota_waits_for_checks() -> None:
    checks = [
        {"name": "budget", "state": "Ready"},
        {"name": "capacity", "state": "Pending", "message": "asked for 2 nodes"},
    ]
    said = held(condition("QuotaReserved"), admissionChecks=checks)
    words = "waits for admission check capacity (Pending: asked for 2 nodes)"
    assert said == Held(PENDING, f"Kueue has room for it in queue team, and it {words}")


def test_a_job_that_kueue_does_not_know_is_told_after_a_minute() -> None:
    assert why_held("team", None, 5.0, BEGUN) == Held(PENDING, "Kueue has not looked at it yet (queue team)")
    late = why_held("team", None, 120.0, BEGUN)
    assert late.code == MISCONFIGURED and "no Workload of it for 2m 00s" in late.text


def test_what_others_wrote_is_one_line_of_bounded_length() -> None:
    said = held(waits("Pending", "a\n" * 10_000)).text
    assert len(said) < 400 and "\n" not in said
