"""The watch for a slow rank: when it asks, what it needs to be sure, when it takes it back."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import pytest

from allaboard.backends.local.supervisor import slowness
from allaboard.backends.local.supervisor.slowness import SlowWatch
from allaboard.diagnosis.stacks import ProcessLook
from allaboard.diagnosis.stragglers import Arrival
from allaboard.runs.observation import Slow
from tests.core.diagnosis.test_stacks import ALL_REDUCE, LOAD, look
from tests.core.diagnosis.test_stragglers import played

LOOP = "one collective"
WELL = played(1, LOOP, ranks=3)


def slow(who: int, since: int = 0) -> dict[int, list[Arrival]]:
    return played(1, LOOP, lambda rank, step, _: 0.05 * (rank == who and step >= since), ranks=3)


class Asked:
    """What the ranks answer, and how often they were asked."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch) -> None:
        self.answer: Mapping[int, Sequence[Arrival]] = WELL
        self.times = 0
        self.looks = 0
        asked = self

        class Arrivals:
            def __init__(self, mark: str) -> None:
                asked.times += 1

            def step(self) -> Mapping[int, Sequence[Arrival]]:
                return asked.answer

        class Looks:
            def __init__(self, mark: str, between: float, *, records: bool) -> None:
                asked.looks += 1

            def step(self) -> tuple[ProcessLook, ...]:
                return look(0, ALL_REDUCE), look(1, LOAD), look(2, ALL_REDUCE)

        monkeypatch.setattr(slowness, "AskedArrivals", Arrivals)
        monkeypatch.setattr(slowness, "TwoLooks", Looks)


@pytest.fixture
def asked(monkeypatch: pytest.MonkeyPatch) -> Asked:
    return Asked(monkeypatch)


def walk(watch: SlowWatch, start: int, end: int, trains: bool = True) -> list[tuple[int, Slow | str]]:
    """What is said in each second from ``start`` to ``end``."""
    said = []
    for second in range(start, end):
        news = watch.look(trains, float(second))
        said += [(second, news)] if news is not None else []
    return said


def test_a_healthy_run_is_asked_ever_more_seldom(asked: Asked) -> None:
    watch = SlowWatch("mark")
    assert walk(watch, 1, 3600) == []
    assert asked.times <= 2 + 3600 / 120 and asked.looks == 0


def test_a_slow_rank_is_said_once_when_two_looks_agree(asked: Asked) -> None:
    watch, asked.answer = SlowWatch("mark"), slow(1)
    said = walk(watch, 1, 600)
    assert len(said) == 1 and said[0][0] < 60
    assert said[0][1] == watch.slow and watch.slow is not None and watch.slow.rank == 1
    assert "data.py:6 `load` (5 of 5 looks)" in watch.slow.shows


def test_one_look_is_not_enough_for_it_nor_against_it(asked: Asked) -> None:
    watch, asked.answer = SlowWatch("mark"), slow(1)
    walk(watch, 1, 23)
    assert asked.times == 1
    asked.answer = slow(2)
    assert walk(watch, 23, 31) == [] and asked.times == 2
    asked.answer = WELL
    assert walk(watch, 31, 200) == [] and watch.slow is None
    asked.answer = slow(1)
    walk(watch, 200, 500)
    assert watch.slow is not None
    times, asked.answer = asked.times, WELL
    second = 500
    while asked.times == times:
        assert walk(watch, second, second + 1) == []
        second += 1
    assert watch.slow is not None
    assert [news for _, news in walk(watch, second, second + 10)] == ["rank 1 keeps up with the others again"]
    assert watch.slow is None


def test_another_rank_is_said_anew(asked: Asked) -> None:
    watch, asked.answer = SlowWatch("mark"), slow(1)
    walk(watch, 1, 100)
    asked.answer = slow(2)
    assert [news.rank for _, news in walk(watch, 100, 400) if isinstance(news, Slow)] == [2]


def test_the_step_of_its_beginning_is_that_which_rank_0_had_reported(asked: Asked) -> None:
    asked.answer = slow(1, since=100)
    watch = SlowWatch("mark")
    watch.look(True, 0.0)
    begun = asked.answer[0][0].at
    for reported in range(0, 300, 10):
        watch.reached(reported, asked.answer[0][reported].at)
    walk(watch, 1, 100)
    assert watch.slow is not None and watch.slow.step is not None and abs(watch.slow.step - 100) <= 3
    assert watch.slow.since is not None and watch.slow.since > begun


def test_members_that_start_again_are_judged_anew(asked: Asked) -> None:
    watch, asked.answer = SlowWatch("mark"), slow(1)
    walk(watch, 1, 100)
    assert watch.slow is not None
    walk(watch, 100, 101, trains=False)
    assert watch.slow is None and walk(watch, 101, 101 + 20) == []
