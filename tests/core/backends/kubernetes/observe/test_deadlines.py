"""Limits that only a follower keeps: which is next, and who is to be told of it."""

from __future__ import annotations

from dataclasses import replace

import pytest

from allaboard.backends.kubernetes.observe.deadlines import CARRIED_OUT, REACTS, limit_of, with_stall
from allaboard.runs.layout import Policy
from allaboard.runs.observation import Limit, Observation, Stall, Stop
from allaboard.testing import seen

POLICY = Policy("never", deadline=100.0)
RUNNING = seen("running", started=1000.0)


def left(
    looked: Observation, policy: Policy = POLICY, now: float = 0.0, nudged: float | None = None
) -> Limit:
    found = limit_of(looked, policy, now, nudged)
    assert found is not None
    return found


def test_a_job_without_limits_has_none() -> None:
    assert limit_of(RUNNING, Policy("never"), 5000.0, None) is None


def test_nobody_enforces_anything_on_what_has_ended_is_suspended_or_is_ending() -> None:
    for looked in (seen("succeeded", started=1.0), replace(RUNNING, suspended=True)):
        assert limit_of(looked, POLICY, 5000.0, None) is None
    assert limit_of(RUNNING, POLICY, 5000.0, None, ending=True) is None


def test_the_operator_is_nudged_at_the_deadline_and_has_a_minute() -> None:
    assert left(RUNNING, now=1030.0).left == 70.0
    passed = left(RUNNING, now=1101.0)
    assert (passed.left, passed.nudge) == (-1.0, True) and "deadline of 1m 40s" in passed.why
    waits = left(RUNNING, now=1110.0, nudged=1101.0)
    assert (waits.left, waits.nudge) == (REACTS - 9.0, False)
    over = left(RUNNING, now=1200.0, nudged=1101.0)
    assert over.left < 0 and not over.nudge, "it did not act: the run is ended"


def test_an_operator_that_cannot_be_nudged_is_waited_for_no_longer() -> None:
    assert left(RUNNING, now=1100.0 + REACTS - 1).nudge
    assert not left(RUNNING, now=1100.0 + REACTS + 1).nudge


def test_a_nudge_before_the_last_resume_is_not_of_this_deadline() -> None:
    resumed = replace(RUNNING, started=2000.0)
    assert left(resumed, now=2101.0, nudged=1101.0).nudge


def test_the_clock_of_the_phase_that_is_on_counts() -> None:
    policy = Policy("never", deadline=1000.0, clocks={"scheduled": 60.0, "admitted": 1.0})
    looked = seen("starting", phases={"admitted": 30.0, "scheduled": 50.0})
    found = left(looked, policy, now=0.0)
    assert (found.left, found.nudge) == (10.0, False) and "phase scheduled" in found.why


def test_a_stop_that_nobody_carries_out_is_the_followers() -> None:
    looked = seen("stopping", stop=Stop("me", "because", 50.0))
    assert left(looked, now=51.0).left == CARRIED_OUT - 1


@pytest.mark.parametrize("then", ["tell", "restart", "fail"])
def test_a_follower_ends_no_run_whose_ranks_wait_for_one_that_works(then: str) -> None:
    policy = Policy("never", hang_then=then)
    waits = Stall("ranks_wait", "ranks 0, 2 wait for rank 1", 50.0, "rank 1", "worker-0")
    seen = with_stall(RUNNING, waits, policy)
    assert (seen.held_by, seen.limit, seen.flags) == (waits.text, None, ())
    hangs = with_stall(RUNNING, replace(waits, code="rank_stalled"), policy)
    assert (hangs.limit is None) is (then == "tell") and hangs.flags == ("rank_stalled",)
