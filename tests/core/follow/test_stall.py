"""When a silent run counts as hung, and what is said of it."""

from __future__ import annotations

import pytest

from allaboard.follow.stall import FACTOR, FLOOR, Movement, is_overdue, patience, stall_of
from allaboard.runs.observation import Stall
from tests.core.diagnosis.test_stacks import ALL_REDUCE, BARRIER, LOAD, look


def test_nothing_counts_before_the_first_sign_of_progress() -> None:
    assert not is_overdue(5.0, Movement(0.0), 1e6)
    assert is_overdue(5.0, Movement(0.0).moved(1.0), 6.0)
    assert not is_overdue(5.0, Movement(0.0).moved(1.0), 5.9)


def test_its_own_history_gives_it_three_times_its_longest_silence_and_ten_minutes_at_least() -> None:
    quick = Movement(0.0).moved(1.0).moved(2.0).moved(4.0)
    assert patience(None, quick) == FLOOR
    slow = quick.moved(4.0 + 900.0)
    assert patience(None, slow) == FACTOR * 900.0
    assert not is_overdue(None, slow, 904.0 + 2699.0) and is_overdue(None, slow, 904.0 + 2700.0)
    assert patience(60.0, slow) == 60.0


def test_the_time_until_the_first_line_is_no_measure() -> None:
    assert Movement(0.0).moved(5000.0).longest == 0.0


def test_a_restart_begins_anew_and_keeps_what_is_known_of_its_pace() -> None:
    again = Movement(0.0).moved(1.0).moved(500.0).started_again(600.0)
    assert not again.has_begun and again.longest == 499.0 and not is_overdue(5.0, again, 1e6)


def test_while_nobody_looked_no_time_passes() -> None:
    assert not is_overdue(60.0, Movement(0.0).moved(0.0).paused(3600.0), 3659.0)


def test_the_rank_that_does_not_come_is_blamed_with_its_member() -> None:
    looks = (look(0, ALL_REDUCE), look(1, LOAD), look(2, ALL_REDUCE))
    assert stall_of(looks, 0.0, sure=False) == Stall(
        "rank_stalled",
        "rank 1 has not entered all_reduce: it waits at data.py:6 `load`; ranks 0, 2 wait for it at "
        "train.py:23; nothing was written since 1970-01-01T00:00:00.000Z",
        0.0,
        "rank 1",
        "worker-0",
    )


def test_ranks_in_different_collectives_are_a_mismatch() -> None:
    stall = stall_of((look(0, ALL_REDUCE), look(1, BARRIER)), 0.0, sure=False)
    assert stall is not None and stall.code == "collective_mismatch" and stall.blame is None


@pytest.mark.parametrize("sure", [False, True])
def test_ranks_that_all_compute_are_hung_only_by_a_time_in_the_policy(sure: bool) -> None:
    looks = (look(0, LOAD, busy=1.0, state="R"), look(1, LOAD, busy=0.9, state="R"))
    stall = stall_of(looks, 0.0, sure=sure)
    assert (stall is not None) == sure
    assert stall is None or "no rank waits for another: rank 0 computes at data.py:6 `load`" in stall.text


def test_a_rank_that_is_stopped_answers_nothing_and_is_named() -> None:
    stopped = look(1, "", state="T")
    stall = stall_of((look(0, ALL_REDUCE), stopped), 0.0, sure=False)
    assert stall is not None and stall.blame == "rank 1"
    assert "rank 1 has not entered all_reduce: it is stopped by a signal" in stall.text
    disk = stall_of((look(0, ALL_REDUCE), look(1, "", state="D")), 0.0, sure=False)
    assert disk is not None and "it waits for a disk or a network file system" in disk.text


def test_without_stacks_it_says_since_when_and_why_nothing_more_is_known() -> None:
    stall = stall_of((), 0.0, sure=False)
    assert stall is not None and stall.code == "rank_stalled" and stall.blame is None
    assert stall.text.startswith("nothing was written since 1970-01-01") and "stacks" in stall.text


def test_ranks_that_wait_for_one_that_computes_are_no_hang_unless_the_policy_names_a_time() -> None:
    looks = (look(0, BARRIER), look(1, LOAD, busy=0.9), look(2, BARRIER))
    stall = stall_of(looks, 0.0, sure=False)
    assert stall is not None and (stall.code, stall.blame, stall.is_hang) == ("ranks_wait", "rank 1", False)
    assert "rank 1 has not entered barrier: it computes at data.py:6 `load`" in stall.text
    stall = stall_of(looks, 0.0, sure=True)
    assert stall is not None and stall.code == "rank_stalled" and stall.is_hang
