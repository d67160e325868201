"""Objects made meaning: every trap of job objects and pods ends in the right state, and no clock guesses."""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from allaboard.backends.kubernetes.observe.deadlines import limit_of
from allaboard.backends.kubernetes.observe.observation import (
    Memory,
    ProgressState,
    apply_reports,
    observation,
    of_object,
    remembered,
)
from allaboard.diagnosis import diagnose
from allaboard.engines.base import JobSeen
from allaboard.engines.pytorchjob import PyTorchJob
from allaboard.follow.run_record import Ended, RunRecord
from allaboard.gangs.kueue import WorkloadSeen
from allaboard.render import labels
from allaboard.runs.layout import Policy
from allaboard.runs.observation import Observation, Owner, State, Stop
from allaboard.runs.status import has_released_slots, state_of
from allaboard.testing import a_job, a_layout
from allaboard.testing.objects import (
    BEGUN,
    JOB,
    LAUNCH,
    a_condition_of,
    a_pod,
    a_pytorchjob,
    an_event,
    at,
)
from allaboard.text.reportline import encode

GPU = "0/2 nodes are available: 2 Insufficient nvidia.com/gpu. preemption: not helpful."


def a_record(**fields: Any) -> RunRecord:
    return RunRecord(
        **{
            "run": JOB,
            "key": "k",
            "job": "digits",
            "spec": a_job().as_mapping(),
            "spec_hash": "v1:x",
            "owner": Owner("me"),
            "uid": LAUNCH,
            "created": BEGUN,
            **fields,
        }
    )


def seen(
    job: Any, *pods: Any, now: float = 60.0, record: RunRecord | None = None, **given: Any
) -> Observation:
    given = {"submitted": True, **given}
    return observation(record or a_record(), job, pods=pods, now=BEGUN + now, **given)


def off(kind: str, **fields: Any) -> dict[str, Any]:
    return a_condition_of(kind, "False", **fields)


BOTH = (a_pod("master-0"), a_pod("worker-0"))
DEADLINE = "Job digits has failed because it was active longer than specified deadline"
LOOP = "CrashLoopBackOff"
BACKOFF = "Job digits has failed because it has reached the specified backoff limit"

TRAPS = {
    "no status at all": (a_pytorchjob(), (), State.STARTING),
    "created, no pods yet": (a_pytorchjob("Created"), (), State.STARTING),
    "running": (a_pytorchjob("Created", "Running"), BOTH, State.RUNNING),
    "running, created was never written": (a_pytorchjob("Running"), BOTH, State.RUNNING),
    "succeeded beside the old running": (
        a_pytorchjob("Created", off("Running"), "Succeeded"),
        (),
        State.SUCCEEDED,
    ),
    "succeeded before anybody saw it run": (a_pytorchjob("Created", "Succeeded"), (), State.SUCCEEDED),
    "succeeded, and a worker runs on": (
        a_pytorchjob("Created", off("Running"), "Succeeded"),
        (a_pod("master-0", "Succeeded", ended=9), a_pod("worker-0")),
        State.SUCCEEDED,
    ),
    "failed and succeeded, both true": (a_pytorchjob("Failed", "Succeeded"), (), State.FAILED),
    "succeeded and failed, the other way round": (a_pytorchjob("Succeeded", "Failed"), (), State.FAILED),
    "restarting stays beside succeeded": (
        a_pytorchjob("Created", "Restarting", "Succeeded"),
        (),
        State.SUCCEEDED,
    ),
    "restarting": (a_pytorchjob("Created", "Restarting"), BOTH, State.RESTARTING),
    "a container waits to be restarted": (
        a_pytorchjob("Created", "Running"),
        (a_pod("master-0", waiting="CrashLoopBackOff", restarts=2), a_pod("worker-0")),
        State.RESTARTING,
    ),
    "created suspended": (a_pytorchjob("Created", "Suspended", suspend=True), (), State.SUSPENDED),
    "suspended, its pods still end": (
        a_pytorchjob("Created", off("Running"), "Suspended", suspend=True),
        (a_pod("worker-0", deleted=50),),
        State.SUSPENDED,
    ),
    "asked to suspend, the operator has not looked": (
        a_pytorchjob("Created", "Running", suspend=True),
        BOTH,
        State.SUSPENDED,
    ),
    "resumed: the last condition says nothing": (
        a_pytorchjob("Created", "Running", off("Suspended")),
        BOTH,
        State.RUNNING,
    ),
    "resumed, not running yet": (
        a_pytorchjob("Created", off("Running"), off("Suspended")),
        (),
        State.STARTING,
    ),
    "suspended after its end does nothing": (a_pytorchjob("Succeeded", suspend=True), (), State.SUCCEEDED),
    "the deadline, in the operator's words": (
        a_pytorchjob(a_condition_of("Failed", message=DEADLINE)),
        (),
        State.TIMED_OUT,
    ),
    "a deadline by its reason": (
        a_pytorchjob(a_condition_of("Failed", reason="DeadlineExceeded")),
        (),
        State.TIMED_OUT,
    ),
    "the backoff limit": (a_pytorchjob(a_condition_of("Failed", message=BACKOFF)), (), State.FAILED),
    "a word that nobody knows": (a_pytorchjob("Levitating"), BOTH, State.UNKNOWN),
    "a word that nobody knows beside others": (a_pytorchjob("Created", "Levitating"), BOTH, State.STARTING),
    "half of the gang has places": (
        a_pytorchjob("Created", "Running"),
        (a_pod("master-0"), a_pod("worker-0", "Pending", unschedulable=GPU)),
        State.QUEUED,
    ),
    "nobody has a place": (
        a_pytorchjob("Created"),
        (a_pod("master-0", "Pending", unschedulable=GPU), a_pod("worker-0", "Pending", unschedulable=GPU)),
        State.QUEUED,
    ),
    "being deleted": (a_pytorchjob("Created", "Running", deleted=30), BOTH, State.STOPPING),
    "deleted after its end": (a_pytorchjob("Succeeded", deleted=30), (), State.SUCCEEDED),
}


@pytest.mark.parametrize(("job", "pods", "state"), TRAPS.values(), ids=TRAPS.keys())
def test_a_job_object_means_one_state(job: Any, pods: Any, state: State) -> None:
    assert state_of(seen(job, *pods)) is state


ABSENT = {
    "never made": ({"submitted": False}, {}, (), State.UNKNOWN),
    "deleted by somebody": ({}, {}, (), State.STOPPED),
    "deleted by somebody, its pods still end": ({}, {}, BOTH, State.STOPPING),
    "stopped by us": ({}, {"stop": Stop("me", "enough", BEGUN)}, (), State.STOPPED),
    "stopped by us, its pods still end": ({}, {"stop": Stop("me", "enough", BEGUN)}, BOTH, State.STOPPING),
    "gone by its ttl, its end was seen": (
        {},
        {"outcome": Ended("succeeded", BEGUN, 1, 1)},
        (),
        State.SUCCEEDED,
    ),
    "gone, and it timed out": ({}, {"outcome": Ended("timed_out", BEGUN, 1, 1)}, (), State.TIMED_OUT),
    "gone with a ttl, its end was not seen": (
        {},
        {"spec": a_job(policy={"ttl": "1m"}).as_mapping()},
        (),
        State.LOST,
    ),
}


@pytest.mark.parametrize(("given", "fields", "pods", "state"), ABSENT.values(), ids=ABSENT.keys())
def test_a_job_that_is_not_there(given: Any, fields: Any, pods: Any, state: State) -> None:
    assert state_of(seen(None, *pods, record=a_record(**fields), **given)) is state


def test_the_members_of_a_job_that_is_gone_are_those_of_its_layout() -> None:
    found = seen(None, layout=a_layout(JOB, workers=3))
    assert [(m.name, m.rank, m.phase) for m in found.members] == [
        ("master-0", 0, "deleted"),
        ("worker-0", 1, "deleted"),
        ("worker-1", 2, "deleted"),
    ]


# Members.


def test_members_have_the_rank_that_the_operator_gives_them() -> None:
    found = seen(a_pytorchjob(worker=2), a_pod("worker-1"), a_pod("master-0"))
    assert [(m.name, m.rank, m.phase) for m in found.members] == [
        ("master-0", 0, "running"),
        ("worker-0", 1, "pending"),
        ("worker-1", 2, "running"),
    ]
    masterless = seen(a_pytorchjob(master=None, worker=2), a_pod("worker-1"))
    assert [(m.name, m.rank) for m in masterless.members] == [("worker-0", 0), ("worker-1", 1)]


REASONS = {
    "oom killed": (
        {"phase": "Failed", "exit_code": 137, "reason": "OOMKilled"},
        ("failed", 137, "OOMKilled"),
    ),
    "evicted": ({"phase": "Failed", "pod_reason": "Evicted", "exit_code": 137}, ("failed", 137, "Evicted")),
    "rejected by the kubelet": (
        {"phase": "Failed", "pod_reason": "UnexpectedAdmissionError"},
        ("failed", None, "UnexpectedAdmissionError"),
    ),
    "no image": ({"phase": "Pending", "waiting": "ImagePullBackOff"}, ("pending", None, "ImagePullBackOff")),
    "being made": ({"phase": "Pending"}, ("pending", None, None)),
    "crashing": (
        {"waiting": "CrashLoopBackOff", "restarts": 3, "last": {"exitCode": 1, "reason": "Error"}},
        ("running", 1, "CrashLoopBackOff"),
    ),
    "restarted after running out of memory": (
        {"restarts": 1, "last": {"exitCode": 137, "reason": "OOMKilled"}},
        ("running", 137, "OOMKilled"),
    ),
    "well": ({"phase": "Succeeded", "ended": 9.0}, ("succeeded", 0, None)),
    "exited": ({"phase": "Failed", "exit_code": 3}, ("failed", 3, None)),
    "unknown to its kubelet": ({"phase": "Unknown"}, ("unknown", 1, None)),
}


@pytest.mark.parametrize(("pod", "member"), REASONS.values(), ids=REASONS.keys())
def test_a_member_says_what_is_wrong_with_it(pod: Any, member: Any) -> None:
    found = seen(a_pytorchjob("Running"), a_pod("master-0", **pod)).members[0]
    assert (found.phase, found.exit_code, found.reason) == member


def test_restarts_are_the_sum_over_all_containers() -> None:
    pod = a_pod("master-0", restarts=2)
    pod["status"]["initContainerStatuses"] = [{"name": "init-pytorch", "restartCount": 1}]
    pod["status"]["containerStatuses"].append({"name": "sidecar", "restartCount": 4})
    assert seen(a_pytorchjob("Running"), pod, a_pod("worker-0", restarts=1)).restarts == 8


def test_of_two_pods_of_one_member_the_new_one_counts() -> None:
    old = a_pod("worker-0", "Failed", exit_code=1, created=1, deleted=40, uid="old")
    new = a_pod("worker-0", created=1, uid="new")
    for pods in ((old, new), (new, old)):
        worker = seen(a_pytorchjob("Running"), *pods).members[1]
        assert worker.phase == "running"


def test_a_pod_that_is_made_anew_was_restarted_and_what_clean_up_took_is_remembered() -> None:
    job = a_pytorchjob("Created", "Running")
    first = a_pod("worker-0", "Failed", exit_code=139, ended=20, uid="one")
    memory = remembered(Memory(), job, (a_pod("master-0"), first))
    memory = remembered(memory, job, (a_pod("master-0"), a_pod("worker-0", uid="two", restarts=2)))
    memory = Memory.from_dict(memory.to_dict())
    over = a_pytorchjob(off("Running"), a_condition_of("Failed", since=50, message=BACKOFF))
    found = seen(over, memory=remembered(memory, over, ()))
    assert [(m.name, m.phase, m.restarts) for m in found.members] == [
        ("master-0", "deleted", 0),
        ("worker-0", "deleted", 3),
    ]
    assert found.restarts == 3 and found.members[1].log == "default/digits-00000000-worker-0"


def test_the_memory_of_a_member_that_is_made_anew_for_ever_stays_small() -> None:
    job, memory = a_pytorchjob("Running"), Memory()
    for n in range(100):
        memory = remembered(memory, job, (a_pod("worker-0", uid=f"pod-{n}", restarts=1),))
    assert memory.restarts("worker-0") == 100 + 99
    assert len(memory.pods["worker-0"]) <= 8


def test_a_resume_is_no_restart() -> None:
    before = remembered(Memory(), a_pytorchjob("Running"), (a_pod("master-0", restarts=1, uid="one"),))
    resumed = a_pytorchjob("Running", off("Suspended", since=100))
    after = remembered(before, resumed, (a_pod("master-0", created=101, uid="two"),))
    assert after.restarts("master-0") == 1


def test_a_resume_is_no_restart_though_its_pods_are_there_before_the_operator_says_so() -> None:
    suspended = a_pytorchjob("Suspended", suspend=True)
    asked, resumed = a_pytorchjob("Suspended"), a_pytorchjob("Running", off("Suspended", since=100))
    old = a_pod("master-0", restarts=1, uid="one", deleted=99)
    new = a_pod("master-0", created=100, uid="two")
    memory = remembered(Memory(), a_pytorchjob("Running"), (a_pod("master-0", restarts=1, uid="one"),))
    for job, *pods in ((suspended, old), (asked, old, new), (resumed, old, new), (resumed, new)):
        memory = remembered(memory, job, pods)
    assert memory.restarts("master-0") == 1
    memory = remembered(memory, resumed, (a_pod("master-0", created=120, uid="three"),))
    assert memory.restarts("master-0") == 2
    again = remembered(memory, a_pytorchjob("Running", off("Suspended", since=200)), ())
    assert again.restarts("master-0") == 2


def test_how_a_member_ended_is_known_until_it_has_begun_again() -> None:
    """However often one looks while its new pod waits, and when the job ends meanwhile."""
    job = a_pytorchjob("Running")
    memory = remembered(Memory(), job, (a_pod("worker-0", "Failed", exit_code=3, uid="one"),))
    anew = a_pod("worker-0", "Pending", created=41, uid="two")
    for _ in range(3):
        memory = remembered(memory, job, (anew,))
        (worker,) = [m for m in seen(job, anew, memory=memory).members if m.name == "worker-0"]
        assert (worker.phase, worker.exit_code, worker.restarts) == ("pending", 3, 1)
    over = a_pytorchjob(off("Running"), a_condition_of("Failed", message=BACKOFF), completionTime=at(41))
    memory = remembered(memory, over, (anew,))
    (worker,) = [m for m in seen(over, anew, memory=memory).members if m.name == "worker-0"]
    assert worker.exit_code == 3


@pytest.mark.parametrize(
    ("how", "code", "words"),
    [
        ({"waiting": LOOP, "last": {"exitCode": 137, "reason": "OOMKilled"}}, "oom_killed", "memory"),
        ({"waiting": LOOP, "last": {"exitCode": 127, "reason": "Error"}}, "bad_entrypoint", "127"),
        ({"phase": "Failed", "exit_code": 126}, "bad_entrypoint", "126"),
        ({"phase": "Failed", "exit_code": 139}, "native_crash", "SIGSEGV"),
        (
            {"phase": "Failed", "exit_code": 143, "conditions": [
                {"type": "DisruptionTarget", "status": "True", "reason": "EvictionByEvictionAPI"}
            ]},
            "drained_by_eviction_api", "drained",
        ),
    ],
)  # fmt: skip
def test_what_is_known_at_the_end_is_known_when_the_pods_are_gone(
    how: dict[str, Any], code: str, words: str
) -> None:
    """`clean_pods: running` takes the pods away; another process reads the memory from the record."""
    pod = a_member_pod(how)
    memory = remembered(Memory(), a_pytorchjob("Running"), (pod,))
    over = a_pytorchjob(off("Running"), a_condition_of("Failed", message=BACKOFF), completionTime=at(50))
    memory = Memory.from_dict(json.loads(json.dumps(remembered(memory, over, (pod,)).to_dict())))
    for _ in range(2):
        memory = remembered(memory, over, ())
        gone = seen(over, memory=memory, tails={})
        for thorough in (True, False):
            top = diagnose(gone, thorough=thorough)[0]
            assert top.code == code, (thorough, top.summary)
            assert words in f"{top.summary} {top.evidence}"
            assert "worker-0" in (top.blame or "")


def test_a_memory_of_an_older_release_is_read() -> None:
    kept = remembered(
        Memory(), a_pytorchjob("Running"), (a_pod("worker-0", "Failed", exit_code=3),)
    ).to_dict()
    for member in kept["members"].values():
        del member["end_reason"]
    assert Memory.from_dict(kept).members["worker-0"].end_reason is None


def a_member_pod(how: dict[str, Any]) -> Any:
    """The pod of worker-0, which ended so."""
    how = dict(how)
    conditions = how.pop("conditions", [])
    pod = a_pod("worker-0", how.pop("phase", "Running"), **how)
    pod["status"].setdefault("conditions", []).extend(conditions)
    return pod


def test_pods_that_the_operator_makes_anew_after_the_end_are_no_restarts() -> None:
    """It may look at the job once more before it has read its own word that it failed."""
    first = a_pod("worker-0", restarts=3, uid="one", last={"exitCode": 1, "finishedAt": 40})
    memory = remembered(Memory(), a_pytorchjob("Running"), (first,))
    over = a_pytorchjob(off("Running"), a_condition_of("Failed", message=BACKOFF), completionTime=at(50))
    memory = remembered(memory, over, (a_pod("worker-0", "Pending", created=51, uid="two"),))
    memory = remembered(memory, over, ())
    (worker,) = [m for m in seen(over, memory=memory).members if m.name == "worker-0"]
    assert (worker.phase, worker.exit_code, worker.restarts) == ("deleted", 1, 3)


def test_members_of_a_job_that_was_created_suspended_are_still_to_come() -> None:
    held = a_pytorchjob("Created", "Suspended", suspend=True)
    assert {m.phase for m in seen(held).members} == {"pending"}
    begun = a_pytorchjob("Created", "Suspended", suspend=True, startTime=at(1))
    assert {m.phase for m in seen(begun).members} == {"deleted"}


def test_a_suspended_run_has_given_its_slots_back_once_its_pods_are_gone() -> None:
    asked = a_pytorchjob("Created", "Running", suspend=True, startTime=at(1))
    held = a_pytorchjob("Created", off("Running"), "Suspended", suspend=True, startTime=at(1))
    ends = a_pod("master-0", deleted=50), a_pod("worker-0", "Pending", deleted=50)
    never = a_pytorchjob("Created", "Suspended", suspend=True)
    resumed = a_pytorchjob("Created", off("Suspended"), startTime=at(1))
    wanted = [
        (asked, ()),
        (held, ends),
        (held, ends[:1]),
        (held, ends[1:]),
        (resumed, ()),
    ]
    assert not any(has_released_slots(seen(job, *pods)) for job, pods in wanted)
    done = a_pod("worker-0", "Succeeded", ended=9)
    assert all(
        has_released_slots(seen(job, *pods)) for job, pods in [(held, ()), (held, (done,)), (never, ())]
    )


# Clocks.


def clocks(found: Observation) -> dict[str, float | None]:
    return {name: seconds for name, seconds in found.phases.items() if seconds is not None}


PENDING = a_pytorchjob("Created")
STEPS = {
    "no pod yet": (PENDING, (), {"admitted": 60}),
    "no place yet": (
        PENDING,
        (a_pod("master-0", "Pending", placed=None), a_pod("worker-0", "Pending", unschedulable=GPU)),
        {"admitted": 1, "scheduled": 59},
    ),
    "one of two has a place": (
        PENDING,
        (a_pod("master-0"), a_pod("worker-0", "Pending", unschedulable=GPU)),
        {"admitted": 1, "scheduled": 59},
    ),
    "an image is pulled": (
        PENDING,
        (a_pod("master-0"), a_pod("worker-0", "Pending", placed=4)),
        {"admitted": 1, "scheduled": 3, "image": 56},
    ),
    "all have started, and nobody reads": (
        a_pytorchjob("Running"),
        (a_pod("master-0", started=9), a_pod("worker-0", started=7)),
        {"admitted": 1, "scheduled": 1, "image": 7},
    ),
}


@pytest.mark.parametrize(("job", "pods", "expected"), STEPS.values(), ids=STEPS.keys())
def test_each_phase_has_its_own_clock(job: Any, pods: Any, expected: Any) -> None:
    assert clocks(seen(job, *pods)) == expected


def test_the_first_step_and_the_training_have_clocks_where_somebody_reads() -> None:
    job = a_pytorchjob("Running")
    pods = (a_pod("master-0"), a_pod("worker-0"))
    assert clocks(seen(job, *pods, report=ProgressState()))["first_step"] == 55
    report = apply_reports(
        ProgressState(), [(BEGUN + 20, encode("progress", step=1, total=9, loss=0.5))], BEGUN + 60
    )
    found = seen(job, *pods, report=report)
    assert (found.phases["first_step"], found.phases["training"]) == (15, 40)
    assert found.progress.step == 1 and found.progress.heartbeat == BEGUN + 20
    assert found.phases["rendezvous"] is None


def test_an_elastic_gang_is_placed_when_its_minimum_is() -> None:
    job = a_pytorchjob("Running", master=None, worker=3, elastic={"minReplicas": 2})
    pods = (a_pod("worker-0"), a_pod("worker-1", placed=8), a_pod("worker-2", "Pending", unschedulable=GPU))
    found = seen(job, *pods)
    assert found.phases["scheduled"] == 7 and found.waiting is None
    assert state_of(found) is State.RUNNING


def test_after_a_resume_the_clocks_begin_anew_and_a_suspended_job_has_none_running() -> None:
    held = seen(a_pytorchjob("Created", a_condition_of("Suspended", since=0), suspend=True))
    assert held.phases["scheduled"] is None
    job = a_pytorchjob("Running", off("Suspended", since=100))
    pods = (
        a_pod("master-0", created=104, placed=105, started=109),
        a_pod("worker-0", created=104, placed=105),
    )
    assert clocks(seen(job, *pods, now=200))["admitted"] == 4


def test_a_container_that_was_restarted_often_does_not_tell_when_it_began() -> None:
    pods = (a_pod("master-0", restarts=2, started=50), a_pod("worker-0"))
    found = seen(a_pytorchjob("Running"), *pods, report=ProgressState(first=BEGUN + 50))
    assert (found.phases["image"], found.phases["first_step"], found.phases["training"]) == (None, None, 10)
    known = replace(remembered(Memory(), a_pytorchjob("Running"), BOTH), members={})
    memory = remembered(known, a_pytorchjob("Running"), pods)
    assert seen(a_pytorchjob("Running"), *pods, memory=memory).phases["image"] == 3


def test_what_ended_stands_still() -> None:
    job = a_pytorchjob("Created", "Succeeded", completionTime=at(30))
    pods = (a_pod("master-0", "Succeeded", ended=29), a_pod("worker-0", "Succeeded", ended=29))
    report = ProgressState(first=BEGUN + 10)
    for now in (40.0, 4000.0):
        found = seen(job, *pods, now=now, report=report)
        assert found.finished == BEGUN + 30 and found.phases["training"] == 20


def test_what_is_made_anew_with_the_end_is_no_restart() -> None:
    """By a pass of the operator that has not noticed the end; times are whole seconds."""
    running, ended = a_pytorchjob("Running"), a_pytorchjob(a_condition_of("Failed", since=33))
    first, second = a_pod("master-0", uid="first"), a_pod("master-0", uid="second", created=33)
    known = remembered(Memory(), running, [first])
    assert remembered(known, ended, [second]).restarts("master-0") == 0
    assert remembered(known, running, [second]).restarts("master-0") == 1
    assert "second" in remembered(Memory(), ended, [second]).pods["master-0"], "all of it took a second"


def test_a_permanent_exit_code_leaves_no_completion_time() -> None:
    job = a_pytorchjob(a_condition_of("Failed", since=33))
    assert seen(job).finished == BEGUN + 33


# Waiting, flags, events.


def test_members_that_cannot_be_made_are_told_with_the_servers_words() -> None:
    quota = 'pods "x" is forbidden: exceeded quota: team, requested: pods=1, used: pods=4, limited: pods=4'
    event = an_event("FailedCreatePod", quota, seconds=5, type="Warning")
    found = seen(a_pytorchjob("Created"), a_pod("master-0"), events=(event,))
    assert found.waiting == f"1 of 2 members cannot be made: {quota}"
    later = an_event("SuccessfulCreatePod", "Created pod: y", seconds=9)
    assert seen(a_pytorchjob("Created"), a_pod("master-0"), events=(event, later)).waiting is None


def test_a_gang_that_stays_half_started_is_flagged() -> None:
    pods = (a_pod("master-0"), a_pod("worker-0", "Pending", unschedulable=GPU))
    job = a_pytorchjob("Running")
    assert seen(job, *pods, now=60).flags == ()
    found = seen(job, *pods, now=180)
    assert found.flags == ("gang_partial_scheduling",)
    (cause,) = diagnose(found)
    assert cause.summary == found.waiting and "1 of 2 members hold places" in cause.summary


def test_what_holds_a_gang_is_a_diagnosis() -> None:
    job = a_pytorchjob("Created")
    job["metadata"]["annotations"] = {labels.GANG: "coscheduling"}
    waiting = (
        a_pod("master-0", "Pending", unschedulable=GPU),
        a_pod("worker-0", "Pending", unschedulable=GPU),
    )
    (found,) = diagnose(seen(job, *waiting))
    assert found.code == "gang_unschedulable" and found.retryable
    few = "pre-filter pod x cannot find enough sibling pods, current pods number: 1, minMember of group: 2"
    assert seen(job, *(a_pod(n, "Pending", unschedulable=few) for n in ("master-0", "worker-0"))).flags == ()
    alone = (a_pod("master-0", "Pending", unschedulable=few), a_pod("worker-0", "Succeeded"))
    (found,) = diagnose(seen(job, *alone))
    assert found.code == "gang_unschedulable" and not found.retryable and "can join no more" in found.summary
    quiet = (a_pod("master-0", "Pending", placed=None), a_pod("worker-0", "Pending", placed=None))
    assert [d.code for d in diagnose(seen(job, *quiet, now=90))] == ["gang_scheduler_missing"]
    event = an_event(
        "FailedCreatePod", 'pods "x" is forbidden: exceeded quota: team', seconds=5, type="Warning"
    )
    refused = seen(a_pytorchjob("Created"), a_pod("master-0"), events=(event,))
    assert [d.code for d in diagnose(refused)] == ["resource_quota_exceeded"]


def test_events_are_told_of_members_by_their_names_oldest_first() -> None:
    pod = f"{JOB}-worker-0"
    events = (
        an_event("Killing", about=pod, kind="Pod", seconds=9),
        an_event("PyTorchJobCreated", seconds=1),
        an_event("Gone", about=f"{JOB}-worker-1", kind="Pod", seconds=10),
        {"reason": "Old", "involvedObject": {"kind": "PodGroup", "name": "x"}, "lastTimestamp": None},
    )
    found = seen(a_pytorchjob("Running"), *BOTH, events=events).events
    assert [(e.reason, e.object, e.time) for e in found] == [
        ("Old", "podgroup/x", None),
        ("PyTorchJobCreated", JOB, BEGUN + 1),
        ("Killing", "worker-0", BEGUN + 9),
        ("Gone", "worker-1", BEGUN + 10),
    ]


def test_who_deletes_a_job_is_told_where_it_says_so() -> None:
    said = {labels.STOPPED_BY: "anna@lab", labels.STOP_REASON: "wrong data"}
    stop = seen(a_pytorchjob("Running", deleted=30, annotations=said)).stop
    assert stop == Stop("anna@lab", "wrong data", BEGUN + 30)
    assert seen(a_pytorchjob("Running", deleted=30)).stop == Stop(
        "somebody", "the job object is being deleted", BEGUN + 30
    )


def test_a_job_of_somebody_else_is_read_without_a_record() -> None:
    found = of_object(a_pytorchjob("Running", gang="", name="theirs"), now=BEGUN + 9, pods=BOTH)
    assert (found.run, found.job, state_of(found)) == ("theirs", "theirs", State.RUNNING)
    with pytest.raises(KeyError, match="batch/v1/Job"):
        of_object({"apiVersion": "batch/v1", "kind": "Job", "metadata": {"name": "x"}}, now=0)


def test_rank_0_tells_progress_and_what_looks_wrong() -> None:
    lines = [
        (BEGUN + 1, "hello"),
        (None, encode("progress", step=1, total=2, loss=float("nan"))),
        (BEGUN + 3, encode("progress", step=2, total=2, loss=0.1)),
    ]
    found = apply_reports(ProgressState(), lines, BEGUN + 2)
    assert (found.progress.step, found.flags, found.first) == (2, ("nan_loss",), BEGUN + 2)
    assert apply_reports(found, lines[2:], BEGUN + 9).first == BEGUN + 2


# Held back by a queue.


def queued(*conditions: Any, **fields: Any) -> dict[str, Any]:
    job = a_pytorchjob(*conditions, suspend=True, **fields)
    job["metadata"]["labels"] = {"kueue.x-k8s.io/queue-name": "team"}
    return job


SUSPENDED = a_condition_of("Suspended", since=20.0)
SHORT = "insufficient unused quota for cpu in flavor any, 2 more needed"
WORKLOAD = {
    "status": {
        "conditions": [
            {"type": "QuotaReserved", "status": "False", "reason": "WaitingForQuota", "message": SHORT}
        ]
    }
}


@pytest.mark.parametrize("conditions", [(), ("Created", SUSPENDED)], ids=["new", "told by the operator"])
def test_a_job_that_its_queue_holds_back_is_queued_and_says_why(conditions: tuple[Any, ...]) -> None:
    held = seen(queued(*conditions), workload=WorkloadSeen(WORKLOAD))
    words = "Kueue holds it back in queue team: it needs 2 more cpu in flavor any, which others use"
    assert (state_of(held), held.suspended, held.waiting) == (State.QUEUED, False, words)
    (said,) = diagnose(held)
    assert (said.code, said.summary, said.retryable) == ("queue_quota_pending", words, True)
    unread = seen(queued(*conditions))
    assert (state_of(unread), unread.waiting) == (State.QUEUED, "Kueue holds it back in queue team")
    unknown = seen(queued(*conditions), workload=WorkloadSeen(), now=100.0)
    assert "no Workload of it for more than a minute" in (unknown.waiting or "")
    assert (
        state_of(of_object(queued(*conditions), now=BEGUN + 60, workload=WorkloadSeen(WORKLOAD)))
        == State.QUEUED
    )


def test_a_job_that_a_person_suspended_is_suspended_in_a_queue_too() -> None:
    by_hand = seen(
        queued("Created", SUSPENDED, annotations={labels.SUSPENDED_BY: "me"}), workload=WorkloadSeen(WORKLOAD)
    )
    assert (state_of(by_hand), by_hand.waiting) == (State.SUSPENDED, None)
    resumed = seen(a_pytorchjob("Created", off("Suspended", since=30.0)), *BOTH)
    assert resumed.suspended is False and state_of(resumed) is not State.SUSPENDED


def in_queue(*conditions: Any, **fields: Any) -> dict[str, Any]:
    """The same, which its queue lets run."""
    job = queued(*conditions, **fields)
    job["spec"]["runPolicy"]["suspend"] = False
    return job


def pods(created: float) -> tuple[Any, ...]:
    times = {"created": created, "placed": created + 1, "started": created + 2}
    return tuple(a_pod(name, uid=f"{name}-{created}", **times) for name in ("master-0", "worker-0"))


def spent(found: Observation) -> dict[str, float]:
    return {name: seconds for name, seconds in found.phases.items() if seconds is not None}


def test_seconds_in_a_queue_are_kept_and_summed_and_its_clock_counts_the_last_stay() -> None:
    """It waits 30 s, runs 30 s, is taken back, waits 40 s and runs again."""
    held = queued("Created", a_condition_of("Suspended", since=1.0))
    memory = remembered(Memory(), held, ())
    assert spent(seen(held, now=20.0, memory=memory)) == {"admitted": 19.0}
    # Kueue lets it go on; its operator makes the pods, and says so only then.
    told_late = in_queue("Created", a_condition_of("Suspended", since=1.0))
    memory = remembered(memory, told_late, pods(31.0))
    early = seen(told_late, *pods(31.0), now=31.0, memory=memory)
    assert (state_of(early), spent(early)["admitted"]) == (State.STARTING, 30.0)
    runs = in_queue("Created", "Running", off("Suspended", since=32.0), startTime=at(32.0))
    memory = remembered(memory, runs, pods(31.0))
    first = seen(runs, *pods(31.0), now=60.0, memory=memory)
    assert (state_of(first), first.restarts) == (State.RUNNING, 0)
    assert spent(first) == {"admitted": 30.0, "scheduled": 1.0, "image": 1.0}
    # Taken back. Its pods may still be there.
    back = queued("Created", off("Running"), a_condition_of("Suspended", since=61.0), startTime=at(32.0))
    memory = remembered(memory, back, pods(31.0))
    again = seen(back, now=81.0, memory=memory, workload=WorkloadSeen(WORKLOAD))
    assert (spent(again), again.queued_before) == ({"admitted": 50.0}, 30.0)
    assert (state_of(again), again.started) == (State.QUEUED, None)
    limit = limit_of(again, Policy("never", deadline=40.0, clocks={"admitted": 25.0}), BEGUN + 81, None)
    assert limit is not None and limit.left == 5.0, "of this stay"
    # And again.
    resumed = in_queue("Created", "Running", off("Suspended", since=101.0), startTime=at(101.0))
    memory = remembered(memory, resumed, pods(101.0))
    last = seen(resumed, *pods(101.0), now=110.0, memory=memory)
    assert (spent(last)["admitted"], last.restarts, last.started) == (70.0, 0, BEGUN + 101)
    assert Memory.from_dict(memory.to_dict()) == memory


@pytest.mark.parametrize(
    ("workload", "admitted"),
    [
        pytest.param(None, None, id="nobody knows since when it waited"),
        pytest.param({"metadata": {"creationTimestamp": at(1.0)}}, 30.0, id="from the first"),
        pytest.param(
            {
                "metadata": {"creationTimestamp": at(1.0)},
                "status": {"conditions": [{"type": "Requeued", "lastTransitionTime": at(11.0)}]},
            },
            20.0,
            id="since it came back",
        ),
    ],
)
def test_seconds_in_a_queue_that_nobody_watched_are_told_by_kueue_or_not_at_all(
    workload: Any, admitted: float | None
) -> None:
    runs = in_queue("Created", "Running", off("Suspended", since=32.0))
    given = None if workload is None else WorkloadSeen(workload)
    assert seen(runs, *pods(31.0), workload=given).phases["admitted"] == admitted
    late = remembered(remembered(Memory(), runs, pods(31.0)), runs, pods(31.0), workload=workload)
    assert seen(runs, *pods(31.0), memory=late).phases["admitted"] == admitted
    at_once = in_queue("Created", "Running")
    assert seen(at_once, *pods(31.0)).phases["admitted"] == 31.0, "it was never suspended"


NEVER = "insufficient quota for cpu in flavor any, previously considered podsets requests (0) + "
NEVER += "current podset request (9) > maximum capacity (4)"


def held_by(reason: str, message: str) -> WorkloadSeen:
    condition = {"type": "QuotaReserved", "status": "False", "reason": reason, "message": message}
    return WorkloadSeen({"status": {"conditions": [condition]}})


@pytest.mark.parametrize(
    ("workload", "clocks", "code", "ends"),
    [
        pytest.param(held_by("ExceedsMaxQuota", NEVER), {}, "queue_quota_impossible", 600.0, id="never"),
        pytest.param(
            held_by("ExceedsMaxQuota", NEVER), {"admitted": 30.0}, "queue_quota_impossible", 30.0, id="clock"
        ),
        pytest.param(
            held_by("Misconfigured", "LocalQueue team doesn't exist"),
            {},
            "queue_misconfigured",
            600.0,
            id="no such queue",
        ),
        pytest.param(
            held_by("Suspended", "LocalQueue team is stopped"), {}, "queue_misconfigured", None, id="stopped"
        ),
        pytest.param(held_by("WaitingForQuota", SHORT), {}, "queue_quota_pending", None, id="waits"),
        pytest.param(
            held_by("WaitingForQuota", SHORT), {"admitted": 30.0}, "queue_quota_pending", 30.0, id="too long"
        ),
    ],
)
def test_what_its_queue_can_never_admit_fails_and_what_waits_is_waited_for(
    workload: WorkloadSeen, clocks: dict[str, float], code: str, ends: float | None
) -> None:
    held = seen(queued("Created"), now=20.0, workload=workload)
    assert (state_of(held), [d.code for d in diagnose(held)]) == (State.QUEUED, [code])
    limit = limit_of(held, Policy("never", clocks=clocks), BEGUN + 20, None)
    assert (None if limit is None else limit.left + 20.0) == ends
    never = code == "queue_quota_impossible" or "doesn't exist" in (held.waiting or "")
    assert (None if limit is None else limit.code) == (code if never else None)


# On another cluster.


AWAY = {"managedBy": "kueue.x-k8s.io/multikueue"}
FAR = WorkloadSeen({"status": {"clusterName": "far"}})


def test_a_job_that_runs_on_another_cluster_has_no_pod_here_and_no_clock() -> None:
    waits = queued("Created", run_policy=AWAY)
    status = {
        "conditions": [{"type": "QuotaReserved", "status": "True"}],
        "nominatedClusterNames": ["a", "b"],
    }
    held = seen(waits, now=9.0, workload=WorkloadSeen({"status": status}))
    assert (state_of(held), held.elsewhere) == (State.QUEUED, False)
    assert "waits for one of the clusters a, b" in (held.waiting or "")
    memory = remembered(Memory(), waits, ())
    # Let go on, and nothing is copied from there yet.
    begins = in_queue(run_policy=AWAY)
    early = seen(begins, now=5000.0, workload=FAR, memory=remembered(memory, begins, ()))
    assert (state_of(early), early.waiting, early.obstacle) == (State.STARTING, None, None)
    assert early.notes == (
        "Kueue has sent it to cluster far: its members, their logs and what they report are there",
    )
    clocks = dict.fromkeys(("admitted", "scheduled", "image", "first_step", "training"), 1.0)
    assert limit_of(early, Policy("never", clocks=clocks), BEGUN + 5000, None) is None
    # Its status is that of the job there.
    runs = in_queue("Created", "Running", off("Suspended", since=21.0), run_policy=AWAY, startTime=at(21.0))
    memory = remembered(memory, runs, ())
    there = seen(runs, now=5000.0, workload=FAR, memory=memory)
    assert (state_of(there), spent(there)) == (State.RUNNING, {"admitted": 21.0})
    assert {member.phase for member in there.members} == {"unknown"}
    assert (diagnose(there), there.waiting, there.flags) == ((), None, ())
    assert limit_of(there, Policy("never", clocks=clocks), BEGUN + 5000, None) is None
    due = limit_of(there, Policy("never", deadline=100.0), BEGUN + 5000, None)
    assert due is not None and due.left < 0, "its deadline is the job's, wherever it is"
    over = in_queue("Created", "Succeeded", off("Running"), run_policy=AWAY, startTime=at(21.0))
    ended = seen(over, now=5000.0, workload=FAR, memory=memory)
    assert state_of(ended) is State.SUCCEEDED and "cluster far" in ended.notes[0]


def test_a_job_that_names_kueue_as_its_manager_and_no_queue_is_on_no_cluster() -> None:
    stray = a_pytorchjob(run_policy=AWAY)
    assert (seen(stray).elsewhere, seen(stray).notes) == (False, ())


def test_the_clocks_of_a_job_that_its_queue_takes_back_begin_anew() -> None:
    before = remembered(Memory(), a_pytorchjob("Created", "Running"), BOTH)
    assert before.started is not None
    job = queued("Created", off("Running"), SUSPENDED)
    memory = remembered(before, job, ())
    held = seen(job, now=50.0, memory=memory, workload=WorkloadSeen(WORKLOAD))
    assert (spent(held), held.queued_before) == ({"admitted": 31.0}, 1.0)


def test_one_look_reads_its_job_once_and_a_new_version_anew(monkeypatch: pytest.MonkeyPatch) -> None:
    reads: list[Any] = []
    read = PyTorchJob.read

    def counted(engine: PyTorchJob, job: Any, pods: Any) -> JobSeen:
        reads.append((job or {}).get("metadata", {}).get("resourceVersion"))
        return read(engine, job, pods)

    monkeypatch.setattr(PyTorchJob, "read", counted)
    job, pod = a_pytorchjob("Running"), a_pod("master-0")
    for thing in (job, pod):
        thing["metadata"]["resourceVersion"] = "7"
    for _ in range(3):
        assert state_of(seen(job, pod, memory=remembered(Memory(), job, [pod]))) is State.RUNNING
    assert len(reads) == 2, "once, and once for the number of members that start together"
    job["status"] = a_pytorchjob("Succeeded")["status"]
    job["metadata"]["resourceVersion"] = "8"
    assert state_of(seen(job, pod, memory=remembered(Memory(), job, [pod]))) is State.SUCCEEDED
