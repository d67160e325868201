"""The watch over members that no longer move: when it asks for stacks, says something, takes it back."""

from __future__ import annotations

import os
from dataclasses import replace
from pathlib import Path

import pytest

from allaboard.backends.local.supervisor import hang
from allaboard.backends.local.supervisor.hang import HangWatch, newest_file
from allaboard.diagnosis.stacks import ProcessLook
from allaboard.follow.stall import ROUNDS
from allaboard.runs.observation import Stall
from tests.core.diagnosis.test_stacks import ALL_REDUCE, BARRIER, LOAD, look

HELD_UP = (look(0, ALL_REDUCE), look(1, LOAD))


class Asked:
    """What the processes answer, and how often they were asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer: tuple[ProcessLook, ...] = HELD_UP
        self.times = 0
        asked = self

        class Looks:
            def __init__(self, mark: str) -> None:
                asked.times += 1

            def step(self) -> tuple[ProcessLook, ...]:
                return asked.answer

        monkeypatch.setattr(hang, "TwoLooks", Looks)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def walk(
    watch: HangWatch, start: int, end: int, written: int = 10, trains: bool = True
) -> list[tuple[int, Stall | float]]:
    """What is said in each second from ``start`` to ``end``, with nothing written."""
    said = []
    for second in range(start, end):
        news = watch.look(written, trains, float(second), 1000.0 + second)
        said += [(second, news)] if news is not None else []
    return said


def test_it_is_said_once_and_asked_ever_more_seldom(asked: Asked) -> None:
    watch = HangWatch(5.0, "mark")
    said = walk(watch, 1, 200)
    assert [second for second, _ in said] == [6]
    stall = said[0][1]
    assert isinstance(stall, Stall) and stall == watch.stall and stall.blame == "rank 1"
    assert stall.since == 1001.0
    assert asked.times == 3, "at once, after 30 s, and a minute after that"
    walk(watch, 200, 24 * 3600)
    assert asked.times < 9 + 24


def test_it_is_said_again_when_another_rank_is_to_blame(asked: Asked) -> None:
    watch = HangWatch(5.0, "mark")
    walk(watch, 1, 10)
    asked.answer = (look(0, LOAD), look(1, ALL_REDUCE))
    said = walk(watch, 10, 100)
    assert [news.blame for _, news in said if isinstance(news, Stall)] == ["rank 0"]
    asked.answer = (look(0, BARRIER), look(1, ALL_REDUCE))
    assert [n.code for _, n in walk(watch, 100, 300) if isinstance(n, Stall)] == ["collective_mismatch"]


def test_it_is_taken_back_when_a_line_comes(asked: Asked) -> None:
    watch = HangWatch(5.0, "mark")
    walk(watch, 1, 10)
    assert walk(watch, 10, 12, written=11) == [(10, 9.0)]
    assert watch.stall is None


def test_a_healthy_run_is_never_asked(asked: Asked) -> None:
    watch = HangWatch(5.0, "mark")
    for second in range(500):
        assert watch.look(second, True, float(second), 0.0) is None
    assert asked.times == 0


def test_members_that_start_wait_or_end_are_not_judged(asked: Asked) -> None:
    watch = HangWatch(5.0, "mark")
    walk(watch, 1, 3)
    assert walk(watch, 3, 100, trains=False) == []
    assert asked.times == 0


def test_before_the_first_sign_several_looks_must_show_the_same(asked: Asked) -> None:
    watch = HangWatch(5.0, "mark")
    watch.look(0, False, 0.5, 0.0)
    said = walk(watch, 1, 60, written=0)
    assert [stall.blame for _, stall in said if isinstance(stall, Stall)] == ["rank 1"] and said[0][0] <= 15
    assert isinstance(said[0][1], Stall) and "no progress was seen since its members ran" in said[0][1].text
    assert asked.times == ROUNDS, "it is not asked again while it stands"


def test_before_the_first_sign_silence_alone_is_no_hang(asked: Asked) -> None:
    for alone in ((look(0, LOAD), look(1, LOAD)), (look(0, ALL_REDUCE), replace(look(1, LOAD), busy=0.9))):
        asked.answer = alone
        watch = HangWatch(5.0, "mark")
        watch.look(0, False, 0.5, 0.0)
        assert walk(watch, 1, 300, written=0) == []


def test_before_the_first_sign_a_gang_that_moves_is_not_hung(asked: Asked) -> None:
    watch = HangWatch(5.0, "mark")
    watch.look(0, False, 0.5, 0.0)
    waits, held = HELD_UP
    for second in range(1, 200):
        asked.answer = (replace(waits, pending=second), held)
        assert watch.look(0, True, float(second), 1000.0 + second) is None
    asked.answer = (waits, replace(held, switches=500.0))
    assert walk(watch, 200, 260, written=0) == [], "it downloads"


def test_a_supervisor_that_stood_still_itself_does_not_blame_the_run(asked: Asked) -> None:
    watch = HangWatch(60.0, "mark")
    walk(watch, 1, 10)
    assert walk(watch, 3600, 3640) == []
    assert [second for second, _ in walk(watch, 3640, 3700)] == [3652]


def test_a_checkpoint_that_grows_is_progress(asked: Asked, tmp_path: Path) -> None:
    watch = HangWatch(5.0, "mark", str(tmp_path))
    walk(watch, 1, 2)
    part = tmp_path / "step-1" / "part"
    part.parent.mkdir()
    part.touch()
    for second in range(2, 60):
        os.utime(part, (1000.0 + second, 1000.0 + second))
        assert watch.look(10, True, float(second), 1000.0 + second) is None
    assert asked.times == 0
    said = walk(watch, 60, 100)
    assert len(said) == 1 and 62 <= said[0][0] <= 65


def test_where_no_folder_is_nothing_was_saved(tmp_path: Path) -> None:
    assert newest_file(str(tmp_path / "none")) == 0.0


def test_a_job_whose_last_good_run_was_silent_for_long_may_be_so_again(asked: Asked) -> None:
    times = []

    def before() -> float:
        times.append(1)
        return 1000.0

    watch = HangWatch(None, "mark", before=before)
    assert walk(watch, 1, 601, written=1) == [] and not times, "nobody asks before it is overdue"
    assert walk(watch, 601, 3000, written=1) == [] and len(times) == 1
    said = walk(watch, 3000, 3100, written=1)
    assert [second for second, _ in said] == [3001] and len(times) == 1, "three times as long, asked once"


def test_a_time_of_the_policy_asks_no_earlier_run(asked: Asked) -> None:
    watch = HangWatch(5.0, "mark", before=lambda: pytest.fail("it is not asked"))
    assert [second for second, _ in walk(watch, 1, 20)] == [6]
