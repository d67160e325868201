"""Following: the same conversation whoever holds it; every ending has its word and its exit code."""

from __future__ import annotations

import asyncio
from dataclasses import replace

import pytest

import allaboard
from allaboard.backends.base import Plan
from allaboard.diagnosis import Diagnosis
from allaboard.errors import BackendUnreachable, BadInput
from allaboard.follow.loop import (
    Answer,
    Effect,
    Enforce,
    FollowPolicy,
    Launch,
    Observe,
    Wait,
    follow,
    run_async,
    run_sync,
)
from allaboard.follow.restart import FREE, INTERRUPTIONS, REPEATS, UNKNOWN, Refusal, Restart, may_restart
from allaboard.running import Follower, follow_policy, new_owner
from allaboard.runs.observation import Condition as ConditionSeen
from allaboard.runs.observation import Limit, Objects, Observation, PodSeen, State
from allaboard.testing import FakeBackend, a_job, a_member, seen


def played(script: list[Answer], policy: FollowPolicy) -> tuple[list[Effect], object]:
    """The conversation against a list of looks."""
    asks: list[Effect] = []
    looks = iter(script)

    def answer(ask: Effect) -> Answer:
        asks.append(ask)
        return next(looks) if isinstance(ask, Observe) else None

    return asks, run_sync(follow(policy), answer)


def test_it_looks_waits_and_ends_with_evidence() -> None:
    asks, outcome = played([seen("running"), seen("succeeded"), seen("succeeded")], FollowPolicy())
    assert asks == [Observe(), Wait(1.0), Observe(), Observe(evidence=True)]
    assert outcome.ok and outcome.exit_code == 0  # type: ignore[attr-defined]


def test_a_limit_that_nobody_keeps_is_enforced_when_it_has_passed_and_awaited_before() -> None:
    near, past = Limit(5.0, "a deadline"), Limit(-1.0, "a deadline")
    looks = [seen("running", limit=near), seen("running", limit=past), seen("timed_out"), seen("timed_out")]
    asks, _ = played([*looks], FollowPolicy(poll=30.0))
    assert asks == [
        Observe(), Wait(5.0), Observe(), Enforce("a deadline"), Wait(30.0), Observe(), Observe(evidence=True)
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("state", "code"), [("succeeded", 0), ("failed", 1), ("lost", 1), ("stopped", 3), ("timed_out", 4)]
)
def test_every_ending_has_its_exit_code(state: str, code: int) -> None:
    _, outcome = played([seen(state)] * 2, FollowPolicy())
    assert outcome.state == State(state) and outcome.exit_code == code  # type: ignore[attr-defined]


def test_a_lost_run_is_launched_again_as_long_as_there_are_attempts() -> None:
    lost, won = seen("lost"), seen("succeeded", attempt=2)
    asks, outcome = played([lost, lost, won, won], FollowPolicy(attempts=2))
    (launched,) = (ask for ask in asks if isinstance(ask, Launch))
    assert launched.attempt == 2 and not launched.interrupted
    assert (
        launched.reason.startswith("what ran it is gone without a word")
        and "1 of 2 attempts" in launched.reason
    )
    assert outcome.ok  # type: ignore[attr-defined]
    _, outcome = played([seen("lost", attempt=2)] * 2, FollowPolicy(attempts=2))
    assert outcome.state is State.LOST and "2 of 2 attempts used" in outcome.message  # type: ignore[attr-defined]


def test_the_users_fault_is_not_repeated() -> None:
    failed = seen(
        "failed", members=(a_member(phase="failed", exit_code=1),), tails={"worker-0": "ValueError: no"}
    )
    asks, outcome = played([failed, failed], FollowPolicy(attempts=3))
    assert not any(isinstance(ask, Launch) for ask in asks)
    assert "would repeat it" in outcome.message  # type: ignore[attr-defined]


NODE_GONE = Diagnosis("node_lost", "node gpu-7 went away with worker-1", (), "gpu-7", True, "wait")
BUG = Diagnosis("python_exception", "KeyError: 'x' in train.py:3", (), "worker-0", False, "mend it")
PULL = Diagnosis("image_pull_network", "the registry does not answer", (), "worker-0", True, "wait")


@pytest.mark.parametrize(
    ("first", "attempts", "attempt", "interruptions", "decided"),
    [
        (NODE_GONE, 1, 1, 0, Restart(2, True, FREE)),
        (NODE_GONE, 1, 20, 19, Restart(21, True, FREE)),
        (NODE_GONE, 1, 21, 20, Refusal("1 of 1 attempts used, beside 20 interruptions")),
        (NODE_GONE, 2, 21, 20, Restart(22, False, "1 of 2 attempts used")),
        (replace(NODE_GONE, confidence=0.75), 1, 1, 0, Refusal("1 of 1 attempts used")),
        (PULL, 1, 1, 0, Refusal("1 of 1 attempts used")),
        (PULL, 2, 4, 3, Restart(5, False, "1 of 2 attempts used")),
        (BUG, 3, 1, 0, Refusal(REPEATS)),
        (replace(BUG, code="unknown"), 3, 1, 0, Refusal(UNKNOWN)),
    ],
)
def test_an_interruption_counts_as_no_attempt_and_a_bug_gets_none(
    first: Diagnosis, attempts: int, attempt: int, interruptions: int, decided: Restart | Refusal
) -> None:
    assert decided == may_restart(
        attempts,
        attempt,
        State.FAILED,
        (first,),
        interruptions=interruptions,
        most_interruptions=INTERRUPTIONS,
    )


def preempted(**fields: object) -> Observation:
    gone = ConditionSeen("DisruptionTarget", "True", "PreemptionByScheduler", "preempted by a pod of team-b")
    pod = PodSeen("worker-0", "worker-0", "worker-0", phase="Failed", conditions=(gone,))
    return seen("failed", objects=Objects(pods=(pod,)), **fields)  # type: ignore[arg-type]


def test_who_owns_a_preempted_run_starts_it_again_and_who_only_looks_does_not() -> None:
    won = seen("succeeded", attempt=2)
    asks, outcome = played([preempted()] * 2 + [won] * 2, FollowPolicy(interruptions=20))
    (launched,) = (ask for ask in asks if isinstance(ask, Launch))
    assert launched.interrupted and "does not count as an attempt" in launched.reason
    assert outcome.ok  # type: ignore[attr-defined]
    asks, outcome = played([preempted()] * 2, FollowPolicy())
    assert not any(isinstance(ask, Launch) for ask in asks)
    assert outcome.diagnoses[0].code == "preempted_by_priority"  # type: ignore[attr-defined]


def test_interruptions_are_remembered_by_the_record_whoever_follows() -> None:
    backend, plan = FakeBackend([preempted()], [preempted()], [State.SUCCEEDED]), Plan(a_job(), "k")
    owner = new_owner()
    handle = backend.launch(plan, owner)
    followed = Follower(backend, handle.run, plan=plan, owner=owner)
    assert followed.follow_to_end(follow_policy(backend, attempts=1)).ok
    record = backend.records[handle.run]
    assert (record.attempt, record.interruptions) == (3, 2)
    assert follow_policy(backend).interruptions == 0, "a follower without the run launches nothing"


def test_an_attempt_that_cannot_start_leaves_the_end_of_the_one_before() -> None:
    def answer(ask: Effect) -> Answer:
        return BadInput("the store does not answer") if isinstance(ask, Launch) else seen("lost")

    outcome = run_sync(follow(FollowPolicy(attempts=3)), answer)
    assert outcome.state is State.LOST and outcome.exit_code == 1
    assert "attempt 2 could not start: the store does not answer" in outcome.message


def test_silence_is_waited_out_and_never_means_failed() -> None:
    silent = BackendUnreachable("no answer")
    asks, outcome = played([silent, silent, seen("succeeded"), seen("succeeded")], FollowPolicy())
    assert outcome.ok and sum(isinstance(a, Wait) for a in asks) == 2  # type: ignore[attr-defined]
    with pytest.raises(BackendUnreachable):
        played([silent] * 3, FollowPolicy(unreachable=3))


def test_both_drivers_hold_the_same_conversation() -> None:
    script = [seen("queued"), seen("running"), seen("failed"), seen("failed")]
    blocking, one = played(list(script), FollowPolicy())
    asks: list[Effect] = []
    looks = iter(script)

    async def answer(ask: Effect) -> Answer:
        asks.append(ask)
        return next(looks) if isinstance(ask, Observe) else None

    other = asyncio.run(run_async(follow(FollowPolicy()), answer))
    assert asks == blocking and other == one


def test_run_follows_a_backend_and_hands_over() -> None:
    backend = FakeBackend()
    outcome = allaboard.run(a_job(), key="k", backend=backend)
    assert outcome.ok and ("hand_over", outcome.run) in backend.calls
    again = allaboard.run(a_job(), key="k", backend=backend)
    assert again.seen.generation == 2


def test_run_retries_a_lost_attempt_under_the_same_run() -> None:
    backend = FakeBackend(("running", "lost"), ("running", "succeeded"))
    outcome = allaboard.run(a_job(), backend=backend)
    assert outcome.ok and outcome.seen.attempt == 2
    assert [c[0] for c in backend.calls].count("launch") == 2
