"""Following: the same conversation whoever holds it; every ending has its word and its exit code."""

from __future__ import annotations

import asyncio

import pytest

import allaboard
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
from allaboard.observation import Limit, State
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
    assert Launch(2, "what ran it is gone without a word: no process runs it any more") in asks
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
