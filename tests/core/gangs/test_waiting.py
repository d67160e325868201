"""Why a gang waits, in one sentence, from what schedulers really say."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

import pytest

from allaboard.backends.kubernetes.observe.objects import event_seen, pod_seen
from allaboard.gangs import GANGS
from allaboard.gangs.base import GangView
from allaboard.gangs.placement import (
    are_only_echoes,
    count_reasons,
    gang_places,
    has_half_started,
    unknown_scheduler_reason,
)
from allaboard.testing.objects import BEGUN, a_pod, an_event

SHORT = "0/4 nodes are available: 1 node(s) had untolerated taint(s), 3 Insufficient nvidia.com/gpu"
NO_GPU = (
    f"{SHORT}. preemption: 0/4 nodes are available: 1 Preemption is not helpful for scheduling, "
    "3 No preemption victims found for incoming pod."
)
FEW = "pre-filter pod x cannot find enough sibling pods, current pods number: 2, minMember of group: 3"
GAP = (
    "0/4 nodes are available: resource gap: map[cpu:{{500 -3} {<nil>} 500m DecimalSI} "
    "memory:{{1073741824 0} {<nil>} 1Gi BinarySI} nvidia.com/gpu:{{2 0} {<nil>}  DecimalSI}]. preemption: x"
)
AWAY = "no scheduler has looked at 3 members for 90 s; they name {!r}: is it running?"
REJECTED = "0/1 nodes are available: 1 optimistic rejection in PostFilter."
GROUP = [{"kind": "PodGroup"}]


def waits(name: str, message: str) -> dict[str, Any]:
    return a_pod(name, "Pending", unschedulable=message)


def silent(name: str, **fields: Any) -> dict[str, Any]:
    return a_pod(name, "Pending", placed=None, **fields)


def gated(name: str) -> dict[str, Any]:
    pod = waits(name, "")
    pod["status"]["conditions"][0]["reason"] = "SchedulingGated"
    pod["spec"]["schedulingGates"] = [{"name": "kueue.x-k8s.io/admission"}]
    return pod


def look(
    *pods: dict[str, Any], needed: int = 3, total: int = 3, now: float = 30.0, **fields: Any
) -> GangView:
    named = {pod["metadata"]["name"].removeprefix("digits-00000000-"): pod_seen(pod) for pod in pods}
    events = [event_seen(event) for event in fields.pop("events", ())]
    rivals = {run: [*map(pod_seen, theirs)] for run, theirs in fields.pop("rivals", {}).items()}
    return GangView(
        needed=needed, total=total, now=BEGUN + now, pods=named, events=events, rivals=rivals, **fields
    )


FIT = {
    "type": "Unschedulable",
    "status": "True",
    "lastTransitionTime": "2026-11-01T10:00:05Z",
    "message": "3/3 tasks in gang unschedulable: pod group is not ready, 3 Pending, 3 minAvailable; "
    "Pending: 1 Unschedulable, 2 Schedulable. Origin reason is w-1: 0/2 nodes are unavailable: "
    "2 Insufficient cpu.",
}


def volcano(phase: str, queue: str = "default", condition: dict[str, Any] | None = None) -> dict[str, Any]:
    said = {"type": "Scheduled", "status": "True", "lastTransitionTime": "2026-11-01T10:00:00Z"}
    status = {"phase": phase, "conditions": [said, condition]} if condition else {"phase": phase}
    created = datetime.fromtimestamp(BEGUN, UTC).strftime("%Y-%m-%dT%H:%M:%SZ")
    metadata = {"name": "g", "creationTimestamp": created}
    return {"kind": "PodGroup", "metadata": metadata, "spec": {"queue": queue}, "status": status}


def about_group(message: str) -> dict[str, Any]:
    return {
        "involvedObject": {"kind": "PodGroup", "name": "g"},
        "reason": "Unschedulable",
        "message": message,
    }


ALL = tuple(f"worker-{n}" for n in range(3))

SENTENCES: dict[str, tuple[str, GangView, str | None]] = {
    "nobody has a place": (
        "none",
        look(*(waits(n, NO_GPU) for n in ALL)),
        f"3 of 3 members wait for a place: {SHORT}",
    ),
    "the trap: half a gang": (
        "none",
        look(a_pod("worker-0"), a_pod("worker-1"), waits("worker-2", NO_GPU)),
        f"2 of 3 members hold places and idle, because 1 has none ({SHORT}); "
        "without a gang scheduler these places are not taken back",
    ),
    "all placed": ("none", look(*(a_pod(n) for n in ALL)), None),
    "some ended well": ("none", look(a_pod("worker-0", "Succeeded"), *(a_pod(n) for n in ALL[1:])), None),
    "just made": ("none", look(*(silent(n) for n in ALL)), None),
    "nobody schedules": (
        "none",
        look(*(silent(n, scheduler="volcano") for n in ALL), now=91),
        AWAY.format("volcano"),
    ),
    "gated": (
        "none",
        look(*(gated(n) for n in ALL)),
        "3 members held back by the scheduling gate kueue.x-k8s.io/admission",
    ),
    "elastic above its minimum": (
        "none",
        look(a_pod("worker-0"), a_pod("worker-1"), waits("worker-2", NO_GPU), needed=2),
        None,
    ),
    "coscheduling: the pod that did not fit tells, not those turned away": (
        "coscheduling",
        look(waits("worker-0", REJECTED), waits("worker-1", NO_GPU), waits("worker-2", REJECTED)),
        f"coscheduling finds no 3 places together: {SHORT}",
    ),
    "coscheduling: too few members": (
        "coscheduling",
        look(
            waits("worker-0", FEW),
            total=3,
        ),
        "coscheduling waits until 3 members exist; so far 2",
    ),
    "coscheduling: minResources": (
        "coscheduling",
        look(*(waits(n, GAP) for n in ALL)),
        "coscheduling finds no 3 places together: "
        "the cluster lacks 0.5 cpu, 1.0 GiB memory, 2 nvidia.com/gpu",
    ),
    "coscheduling: no PodGroup": (
        "coscheduling",
        look(*(waits(n, "0/1 nodes are available: 1 PodGroup not found.") for n in ALL)),
        "coscheduling does not find the PodGroup of this gang; was it deleted?",
    ),
    "coscheduling: its scheduler is not there": (
        "coscheduling",
        look(*(silent(n, scheduler="scheduler-plugins-scheduler") for n in ALL), now=91),
        AWAY.format("scheduler-plugins-scheduler"),
    ),
    "workload: those that fit wait for the rest": (
        "workload",
        look(
            waits("worker-0", "waiting for minCount pods from a gang to be scheduled"),
            waits("worker-1", "0/4 nodes are available: 4 Insufficient cpu."),
            waits("worker-2", "pod group is unschedulable"),
        ),
        "kube-scheduler finds no 3 places together: 0/4 nodes are available: 4 Insufficient cpu",
    ),
    "workload: parked without a word until all exist": (
        "workload",
        look(silent("worker-0"), silent("worker-1"), groups=GROUP),
        "kube-scheduler waits until 3 members exist; so far 2",
    ),
    "workload: parked without a PodGroup": (
        "workload",
        look(*(silent(n) for n in ALL)),
        "the PodGroup of this gang is not there, and kube-scheduler waits for it; was it deleted?",
    ),
    "workload: the scheduler's gates are off, or it is away": (
        "workload",
        look(*(silent(n) for n in ALL), groups=GROUP, now=91),
        AWAY.format("default-scheduler"),
    ),
    "coscheduling: one was made anew, and another has ended": (
        "coscheduling",
        look(a_pod("worker-0"), a_pod("worker-1", "Succeeded"), waits("worker-2", FEW)),
        "worker-2 can join no more: coscheduling places 3 members together or none, and 1 has ended already",
    ),
    "coscheduling: one was made anew, and enough are there": (
        "coscheduling",
        look(a_pod("worker-0"), a_pod("worker-1", "Succeeded"), waits("worker-2", FEW), needed=2),
        None,
    ),
    "workload: one was made anew, and others have ended": (
        "workload",
        look(
            a_pod("worker-0", "Succeeded"), a_pod("worker-1", "Succeeded"), silent("worker-2"), groups=GROUP
        ),
        "worker-2 can join no more: kube-scheduler places 3 members together or none, "
        "and 2 have ended already",
    ),
    "volcano: the pod that did not fit tells": (
        "volcano",
        look(
            waits("worker-0", "Pod x/w-0 can possibly be assigned to n1, once minAvailable is satisfied"),
            waits("worker-1", "0/4 nodes are unavailable: 4 Insufficient nvidia.com/gpu."),
            waits("worker-2", "Pod x/w-2 can possibly be assigned to n1, once minAvailable is satisfied"),
            groups=[volcano("Inqueue", queue="research")],
        ),
        "Volcano finds no 3 places together in queue research: "
        "0/4 nodes are available: 4 Insufficient nvidia.com/gpu",
    ),
    "volcano: pods only wait for each other, and their PodGroup tells": (
        "volcano",
        look(
            *(waits(n, "Pod x/w can possibly be assigned to n, once minAvailable is satisfied") for n in ALL),
            groups=[volcano("Inqueue", condition=FIT)],
        ),
        "Volcano finds no 3 places together: 0/2 nodes are available: 2 Insufficient cpu",
    ),
    "volcano: its queue is full": (
        "volcano",
        look(
            groups=[volcano("Pending", queue="research")],
            events=[about_group("queue resource quota insufficient: insufficient cpu, insufficient memory")],
        ),
        "Volcano does not let the gang in: queue research is short of cpu, memory",
    ),
    "volcano: the cluster is full": (
        "volcano",
        look(
            groups=[volcano("Pending")],
            events=[about_group("resource in cluster is overused: overused nvidia.com/gpu")],
        ),
        "Volcano does not let the gang in: the cluster is short of nvidia.com/gpu",
    ),
    "volcano: not let in, and nothing is said": (
        "volcano",
        look(groups=[volcano("Pending", queue="research")]),
        "Volcano has not let the gang into queue research yet",
    ),
    "volcano: no such queue": (
        "volcano",
        look(*(silent(n, scheduler="volcano") for n in ALL), groups=[volcano("", queue="reserch")], now=91),
        "Volcano has not looked at the gang for 91 s: is there a queue reserch, and is it running?",
    ),
    "volcano: no PodGroup": (
        "volcano",
        look(*(silent(n, scheduler="volcano") for n in ALL)),
        "the PodGroup of this gang is not there, and Volcano passes its members over; was it deleted?",
    ),
    "volcano: placed": ("volcano", look(*(a_pod(n) for n in ALL), groups=[volcano("Running")]), None),
    "yunikorn: no places": (
        "yunikorn",
        look(*(silent(n, scheduler="yunikorn") for n in ALL), now=91),
        "YuniKorn has not placed the gang for 90 s: its placeholders have no 3 places together, or it is not "
        "running",
    ),
    "yunikorn: a moment ago": ("yunikorn", look(*(silent(n, scheduler="yunikorn") for n in ALL)), None),
    "yunikorn: refused": (
        "yunikorn",
        look(*(waits(n, NO_GPU) for n in ALL)),
        f"YuniKorn finds no 3 places together: {SHORT}",
    ),
    "yunikorn: placed": ("yunikorn", look(*(a_pod(n) for n in ALL)), None),
    "workload: placed": ("workload", look(*(a_pod(n) for n in ALL), groups=GROUP), None),
}


@pytest.mark.parametrize(("gang", "at", "sentence"), SENTENCES.values(), ids=SENTENCES.keys())
def test_the_reason_is_one_sentence(gang: str, at: GangView, sentence: str | None) -> None:
    assert GANGS[gang].read(at) == sentence


@pytest.mark.parametrize("gang", GANGS)
def test_a_gang_without_any_pod_is_no_reason(gang: str) -> None:
    assert GANGS[gang].read(look(groups=GROUP)) is None


ONCE = "Pod gangs/digits-00000000-worker-0 can possibly be assigned to node, once minAvailable is satisfied"
CPU = "0/4 nodes are unavailable: 4 Insufficient cpu."


@pytest.mark.parametrize(
    ("at", "sentence"),
    [
        (look(), "no member exists yet: volcano has to let the gang in first"),
        (look(*(silent(n) for n in ALL)), None),
        (look(*(silent(n, scheduler="volcano") for n in ALL), now=91), AWAY.format("volcano")),
        (
            look(waits("worker-0", ONCE), waits("worker-1", ONCE), waits("worker-2", CPU)),
            "volcano finds no 3 places together: 0/4 nodes are available: 4 Insufficient cpu",
        ),
        (
            look(a_pod("worker-0"), waits("worker-1", CPU), silent("worker-2")),
            "volcano finds no 3 places together: 0/4 nodes are available: 4 Insufficient cpu; "
            "1 hold places already",
        ),
        (look(*(a_pod(n) for n in ALL)), None),
    ],
)
def test_of_a_gang_scheduler_without_a_file_its_pods_tell(at: GangView, sentence: str | None) -> None:
    assert unknown_scheduler_reason(at, "volcano") == sentence


def test_the_schedulers_grammar() -> None:
    assert count_reasons(NO_GPU) == {"node(s) had untolerated taint(s)": 1, "Insufficient nvidia.com/gpu": 3}
    assert count_reasons("0/2 nodes are unavailable: 2 Too many pods.") == {"Too many pods": 2}
    assert count_reasons("no nodes available to schedule pods") == {}


def test_members_are_counted_where_they_stand() -> None:
    at = gang_places(
        look(a_pod("worker-0"), a_pod("worker-1", "Failed"), gated("worker-2"), silent("worker-3"), total=6)
    )
    assert (at.held, at.gated, at.silent, at.missing) == (("worker-0",), ("worker-2",), ("worker-3",), 2)


def test_half_a_gang_is_stuck_when_nothing_moves_for_two_minutes() -> None:
    half = (a_pod("worker-0"), waits("worker-1", NO_GPU))
    assert not has_half_started(look(*half, needed=2, now=100))
    assert has_half_started(look(*half, needed=2, now=200))
    assert not has_half_started(look(*half, needed=1, now=200))
    assert not has_half_started(look(waits("worker-0", NO_GPU), needed=2, now=200))


def test_gangs_that_started_in_part_name_those_they_wait_for() -> None:
    half, whole = [a_pod("a"), waits("b", NO_GPU)], [a_pod("a"), a_pod("b")]
    read, mine = GANGS["none"].read, (a_pod("worker-0"), waits("worker-1", NO_GPU))
    told = f"1 of 2 members hold places and idle, because 1 has none ({SHORT}); "
    forever = "stuck the same way, and they wait for each other for ever"

    def of(**rivals: list[dict[str, Any]]) -> str | None:
        return read(look(*mine, needed=2, total=2, rivals=rivals))

    assert (
        of(x=whole, y=[waits("b", NO_GPU)])
        == f"{told}without a gang scheduler these places are not taken back"
    )
    assert of(x=half, y=whole) == f"{told}x is {forever}"
    assert of(x=half, y=half) == f"{told}x, y are {forever}"
    assert of(**{name: half for name in "vwxyz"}) == f"{told}v, w and 3 more are {forever}"


def test_why_is_found_in_what_was_said_before_when_pods_only_say_that_they_were_turned_away() -> None:
    """coscheduling tries the pod that did not fit again, and turns it away with the next that does not."""

    def failed(name: str, message: str) -> dict[str, Any]:
        said = an_event("FailedScheduling", message, about=name, kind="Pod")
        return {**said, "involvedObject": {"kind": "Pod", "name": name, "uid": f"uid-of-{name}"}}

    pods = [waits(name, REJECTED) for name in ALL]
    assert (
        are_only_echoes(map(pod_seen, pods))
        and not are_only_echoes(map(pod_seen, [*pods, waits("worker-3", NO_GPU)]))
        and not are_only_echoes([])
    )
    events = [
        failed("worker-1", "0/4 nodes are available: 4 Insufficient cpu. preemption: none"),
        failed("worker-1", NO_GPU),
        failed("worker-1", REJECTED),
        failed("of-another-run", "0/4 nodes are available: 4 Insufficient memory."),
    ]
    read = GANGS["coscheduling"].read
    assert read(look(*pods, events=events)) == f"coscheduling finds no 3 places together: {SHORT}"
    assert read(look(*pods)) == f"coscheduling finds no 3 places together: {REJECTED.rstrip('.')}"


# Volcano's queues.


def a_queue(allocated: dict[str, Any] | None, **spec: Any) -> dict[str, Any]:
    return {"kind": "Queue", "spec": spec, "status": {"allocated": allocated}}


@pytest.mark.parametrize(
    ("queue", "share"),
    [
        (
            a_queue(
                {"cpu": "6500m", "memory": "1Gi", "nvidia.com/gpu": "6"}, capability={"nvidia.com/gpu": 8}
            ),
            " (it has 6 of 8 nvidia.com/gpu in use)",
        ),
        (
            a_queue({"cpu": "6500m", "memory": "1Gi"}, deserved={"cpu": "8", "memory": "2Gi"}),
            " (it has 6.5 of 8 cpu, 1.0 GiB of 2.0 GiB memory in use)",
        ),
        (a_queue(None, capability={"cpu": "8"}), " (it has 0 of 8 cpu in use)"),
        (a_queue({"cpu": "lots"}, capability={"cpu": "8"}), " (it has lots of 8 cpu in use)"),
        (a_queue({"cpu": "4"}), ""),
        (None, ""),
    ],
)
def test_what_a_queue_of_volcano_has_in_use_is_told_where_it_may_be_read(
    queue: dict[str, Any] | None, share: str
) -> None:
    at = look(*(waits(n, NO_GPU) for n in ALL), groups=[volcano("Inqueue", "research")], queue=queue)
    words = f"Volcano finds no 3 places together in queue research{share}: {SHORT}"
    assert GANGS["volcano"].read(at) == words


# KAI Scheduler.


def of_kai(*reasons: tuple[str, str], queue: str = "research", status: str = "True") -> list[dict[str, Any]]:
    said = [{"reason": reason, "message": message} for reason, message in reasons]
    condition = {"type": "UnschedulableOnNodePool", "status": status, "reasons": said}
    return [{"kind": "PodGroup", "spec": {"queue": queue}, "status": {"schedulingConditions": [condition]}}]


@pytest.mark.parametrize(
    ("reason", "words"),
    [
        (
            ("OverLimit", "research quota has reached the allowable limit of GPUs.\nLimit is 4 GPUs."),
            "KAI Scheduler does not let the gang into queue research: research quota has reached the "
            "allowable limit of GPUs. Limit is 4 GPUs",
        ),
        (("QueueDoesNotExist", ""), "KAI Scheduler does not let the gang in: there is no queue research"),
        (
            ("Not enough resources for the workload", ""),
            f"KAI Scheduler finds no 3 places together in queue research: {SHORT}",
        ),
    ],
)
def test_kai_says_whether_it_is_the_queue_or_the_nodes(reason: tuple[str, str], words: str) -> None:
    members = [waits(name, NO_GPU) for name in ("a", "b", "c")]
    assert GANGS["kai"].read(look(*members, groups=of_kai(reason))) == words


def test_kai_says_nothing_of_a_gang_that_has_its_places_or_has_just_begun() -> None:
    assert GANGS["kai"].read(look(*(a_pod(name, "Running") for name in ("a", "b", "c")))) is None
    assert GANGS["kai"].read(look(silent("a"), silent("b"), silent("c"))) is None
    late = GANGS["kai"].read(look(silent("a"), silent("b"), silent("c"), now=90.0))
    assert late is not None and late.startswith("no scheduler has looked at 3 members")


LACKS = "no nodes with enough resources were found: 3 node(s) didn't have enough resources: CPU cores"


@pytest.mark.parametrize(
    ("said", "words"),
    [
        (f"{LACKS}.", LACKS),
        (f"PodSchedulingErrors: Resources were not found for pod team/x-0-kxhcc due to: {LACKS}..", LACKS),
        (
            f"{LACKS}. \n2 node(s) didn't match pod affinity rules.",
            f"{LACKS}. 2 node(s) didn't match pod affinity rules",
        ),
        (
            "PodSchedulingErrors: topology racks, requirement lab/rack couldn't be satisfied for job "
            "<team/pg-x-d99084b2-247c6139>: not enough resources in the cluster to allocate the job.",
            "topology racks, requirement lab/rack couldn't be satisfied: "
            "not enough resources in the cluster to allocate the job",
        ),
        (
            "Unable to schedule pod",
            "it gives no reason; has queue research others below it? such a queue takes no jobs",
        ),
    ],
)
def test_what_kai_says_of_nodes_is_told_without_its_own_names(said: str, words: str) -> None:
    at = look(*(waits(name, said) for name in ("a", "b", "c")), groups=of_kai())
    assert GANGS["kai"].read(at) == f"KAI Scheduler finds no 3 places together in queue research: {words}"


GROUP_UID = "9776ef04-6d0b-4380-b8cf-3f6e99dd66e7"
BY_A_MORE_URGENT_ONE = (
    f"Pod team/low-worker-0 was preempted by higher priority workload team/pg-high-f8ffdaec-{GROUP_UID}"
)


@pytest.mark.parametrize(
    ("times", "event", "words"),
    [
        ({"start": "08:05:41", "eviction": "08:05:43"}, BY_A_MORE_URGENT_ONE, "high-f8ffdaec"),
        (
            {"start": "08:05:41", "eviction": "08:05:43"},
            f"Pod team/low-0 was preempted by workload other/pg-reclaims-{GROUP_UID}.\nresearch uses <>",
            "reclaims",
        ),
        ({"start": "08:05:50", "eviction": "08:05:43"}, BY_A_MORE_URGENT_ONE, None),
        ({"start": "08:05:41"}, BY_A_MORE_URGENT_ONE, None),
        ({"start": "08:05:41", "eviction": "08:05:43"}, "evicting remaining pod: team/low-0", ""),
        ({"start": "nonsense", "eviction": "08:05:43"}, None, ""),
    ],
)
def test_kai_says_who_has_displaced_a_gang_that_has_not_run_since(
    times: dict[str, str], event: str | None, words: str | None
) -> None:
    at = {f"kai.scheduler/last-{what}-timestamp": f"2026-11-25T{time}Z" for what, time in times.items()}
    groups = [{**of_kai()[0], "metadata": {"annotations": at}}]
    events = [] if event is None else [an_event("Evict", event, kind="PodGroup")]
    found = GANGS["kai"].read(
        look(*(waits(name, NO_GPU) for name in ("a", "b", "c")), groups=groups, events=events)
    )
    by = "" if words is None else f" (it was preempted{' by ' if words else ''}{words})"
    assert found == f"KAI Scheduler finds no 3 places together in queue research: {SHORT}{by}"


def test_what_kai_says_no_more_is_not_told() -> None:
    members = [waits(name, NO_GPU) for name in ("a", "b", "c")]
    gone = of_kai(("OverLimit", "full"), status="False")
    assert GANGS["kai"].read(look(*members, groups=gone)) == (
        f"KAI Scheduler finds no 3 places together in queue research: {SHORT}"
    )
