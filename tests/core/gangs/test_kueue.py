"""Why a queue of Kueue holds a job back, from what Kueue 0.19 and its predecessors write."""

# ruff: noqa: E501  (messages)

from __future__ import annotations

from typing import Any

import pytest

from allaboard.gangs.kueue import (
    IMPOSSIBLE,
    MISCONFIGURED,
    NOT_READY,
    OVERTIME,
    PENDING,
    Held,
    sent_away,
    waited_since,
    why_held,
)
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
        ("WaitingForQuota", f"{NEVER.format('0')}, insufficient unused quota for cpu in flavor spare, 1 more needed", PENDING,
         "it needs 1 more cpu in flavor spare, which others use"),
        ("Pending", f"{NEVER.format('0')}, insufficient unused quota for cpu in flavor spare, 1 more needed", PENDING,
         "it needs 1 more cpu in flavor spare, which others use"),
        ("Inadmissible", SHORT, PENDING, "it needs 2 more cpu in flavor any, which others use"),
        ("Inadmissible", "ClusterQueue cores not found", MISCONFIGURED, "ClusterQueue cores not found"),
        ("WaitingForQuota", SHORT, PENDING, "it needs 2 more cpu in flavor any, which others use"),
        ("Pending", SHORT, PENDING, "it needs 2 more cpu in flavor any, which others use"),
        ("WaitingForPreemptedWorkloads", f"{SHORT}. Pending the preemption of 1 workload(s)", PENDING,
         "it needs 2 more cpu in flavor any, which others use until those that it preempts have gone"),
        ("ExceedsMaxQuota", NEVER.format("0"), IMPOSSIBLE,
         "it asks for more than its queue can ever have of nvidia.com/gpu (16 asked, at most 8 in flavor h100)"),
        ("Pending", NEVER.format("4"), IMPOSSIBLE,
         "it asks for more than its queue can ever have of nvidia.com/gpu (4 and 16 asked, at most 8 in flavor h100)"),
        ("Pending", f"{SHORT}; {NEVER.format('0')}", IMPOSSIBLE,
         "it asks for more than its queue can ever have of nvidia.com/gpu (16 asked, at most 8 in flavor h100)"),
        ("NoMatchingFlavor", "couldn't assign flavors to pod set w: resource nvidia.com/gpu unavailable in ClusterQueue", IMPOSSIBLE,
         "its queue has no quota of nvidia.com/gpu"),
        ("Pending", "couldn't assign flavors to pod set w: flavor h100 doesn't match node affinity", IMPOSSIBLE,
         "couldn't assign flavors to pod set w: flavor h100 doesn't match node affinity"),
        ("Pending", f"{SHORT}, flavor spot doesn't match node affinity", PENDING,
         "it needs 2 more cpu in flavor any, which others use"),
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
    never = code == IMPOSSIBLE or message == "LocalQueue team doesn't exist"
    assert held(waits(reason, message)) == Held(code, f"Kueue holds it back in queue team: {words}", never)


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
        f"(its members did not become ready in time; not tried again before {at(60.0)}, after 2 starts)"
    )


@pytest.mark.parametrize(
    ("reason", "code", "words"),
    [
        ("DeactivatedDueToRequeuingLimitExceeded", NOT_READY, "it was started again and again, and never became ready"),
        ("DeactivatedDueToMaximumExecutionTimeExceeded", OVERTIME, "it ran longer than its longest time"),
        ("DeactivatedDueToAdmissionCheck", MISCONFIGURED, "an admission check has rejected it"),
        ("Deactivated", MISCONFIGURED, "it was deactivated"),
        ("SomethingNew", MISCONFIGURED, "the words of Kueue"),
    ],
)  # fmt: skip
def test_one_that_is_out_of_its_queue_says_why(reason: str, code: str, words: str) -> None:
    """What Kueue itself has given up does not come back by waiting; a person takes back what a person did."""
    said = held(condition("Evicted", reason=reason, message="the words\nof Kueue."), active=False)
    never = reason.startswith("DeactivatedDueTo")
    assert said == Held(code, f"Kueue has taken it out of queue team: {words}", never)


def test_what_admission_checks_said_is_quoted() -> None:
    out = 'The workload is deactivated due to: AdmissionCheck in Rejected state: "budget" (over its budget)'
    said = held(condition("Evicted", reason="DeactivatedDueToAdmissionCheck", message=out), active=False)
    assert said.text.endswith('an admission check has rejected it: "budget" (over its budget)')
    again = 'Evicted due to AdmissionChecks in Retry state: "a" (no nodes); "b"'
    said = held(condition("Evicted", reason="AdmissionCheck", message=again), waits("Pending", SHORT))
    assert said.text.endswith('(an admission check took its place back: "a" (no nodes); "b")')


@pytest.mark.parametrize(
    ("conditions", "words"),
    [
        ((), "takes it back into queue team: it was preempted"),
        ((condition("Admitted"),), "takes it back into queue team: it was preempted"),
    ],
)
def test_one_that_is_just_being_taken_back(conditions: tuple[dict[str, Any], ...], words: str) -> None:
    gone = condition("Evicted", reason="Preempted")
    assert held(condition("QuotaReserved"), gone, *conditions).text == f"Kueue {words}"


def test_one_that_is_just_being_let_go_on() -> None:
    said = held(condition("QuotaReserved"), condition("Admitted"))
    assert said == Held(PENDING, "Kueue has admitted it to queue team, and it starts now")


MULTIKUEUE = {"name": "far", "state": "Pending", "message": "no cluster yet"}


@pytest.mark.parametrize(
    ("clusters", "words"),
    [
        (["a"], "a place on cluster a"),
        (["a", "b"], "one of the clusters a, b"),
        ([*"abcdefg"], "one of the clusters a, b, c, d, e ..."),
    ],
)
def test_the_clusters_that_are_asked_for_room(clusters: list[str], words: str) -> None:
    said = held(condition("QuotaReserved"), admissionChecks=[MULTIKUEUE], nominatedClusterNames=clusters)
    check = "admission check far (Pending: no cluster yet)"
    assert said.text == f"Kueue has room for it in queue team, and it waits for {words}; {check}"


def test_where_a_job_is_that_runs_on_another_cluster() -> None:
    there = "its members, their logs and what they report are there"
    assert sent_away({"status": {"clusterName": "far\n"}}) == f"Kueue has sent it to cluster far: {there}"
    assert sent_away(None) == sent_away({}) == f"Kueue has sent it to another cluster: {there}"


def test_since_when_a_job_has_waited_this_time() -> None:
    made = {"metadata": {"creationTimestamp": at(5.0)}}
    assert waited_since(made) == BEGUN + 5.0
    again = {**condition("Requeued"), "lastTransitionTime": at(60.0)}
    assert waited_since({**made, "status": {"conditions": [again]}}) == BEGUN + 60.0


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
    assert late.code == MISCONFIGURED and "no Workload of it for more than a minute" in late.text
    assert late == why_held("team", None, 121.0, BEGUN)


def test_what_others_wrote_is_one_line_of_bounded_length() -> None:
    said = held(waits("Pending", "a\n" * 10_000)).text
    assert len(said) < 400 and "\n" not in said
