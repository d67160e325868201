"""What followers keep of the logs they read is bounded: for each try, and for the whole process."""

from __future__ import annotations

import gc
from dataclasses import replace

import pytest

from allaboard.backends.kubernetes.logs.cache import AttemptLogs, LogCache
from allaboard.backends.kubernetes.logs.parsing import SECOND, Stamped
from allaboard.backends.kubernetes.observe.containers import ContainerRun


def a_try(id: str, member: str = "worker-0") -> ContainerRun:
    return ContainerRun(id, member, "uid", "pytorch", False, member, 0, 0, False, False, True)


def lines(first: int, count: int, text: str = "line") -> list[Stamped]:
    return [Stamped((first + n) * SECOND, f"{text} {first + n}") for n in range(count)]


def texts(kept: AttemptLogs) -> list[str]:
    return [line.text for one in kept.tries() for line in one.lines]


def test_of_each_try_the_end_is_kept() -> None:
    kept = AttemptLogs(each=30)
    kept.add(a_try("a"), lines(0, 10))
    [one] = kept.tries()
    assert texts(kept) == ["line 6", "line 7", "line 8", "line 9"] and one.cut
    assert sum(len(line.text) + 1 for line in one.lines) <= 30


def test_lines_that_are_there_are_passed_over() -> None:
    kept = AttemptLogs()
    kept.add(a_try("a"), lines(0, 4))
    kept.add(a_try("a"), lines(2, 4))
    assert texts(kept) == [f"line {n}" for n in range(6)]


def test_an_end_that_does_not_join_what_was_kept_takes_its_place() -> None:
    kept = AttemptLogs()
    kept.add(a_try("a"), lines(0, 4))
    kept.add(a_try("a"), lines(100, 2), cut=True, whole=True)
    [one] = kept.tries()
    assert texts(kept) == ["line 100", "line 101"] and one.cut and one.whole


def test_what_a_status_says_gives_way_to_the_log() -> None:
    kept = AttemptLogs()
    one = replace(a_try("a"), message="odd\n^^^\n^^^", finished=5.0, code=1)
    kept.add_status(one)
    kept.add_status(one)
    assert texts(kept) == ["odd", "^^^", "^^^"]
    kept.add(one, lines(0, 2), whole=True)
    kept.add_status(one)
    [found] = kept.tries()
    assert texts(kept) == ["line 0", "line 1"] and found.whole and not found.cut and not found.from_status


def test_all_runs_together_have_one_bound_and_the_oldest_goes() -> None:
    cache = LogCache(most=5000)
    runs = [AttemptLogs(cache=cache) for _ in range(10)]
    for n, kept in enumerate(runs):
        kept.add(a_try(f"c{n}"), lines(0, 2))
        runs[0].add(a_try("c0"), lines(2 + n, 1))
    assert cache.weight <= 5000
    assert texts(runs[0]) != [] and texts(runs[9]) != [] and texts(runs[1]) == []


@pytest.mark.thorough
def test_who_is_gone_takes_no_room() -> None:
    cache = LogCache()
    kept = AttemptLogs(cache=cache)
    kept.add(a_try("a"), lines(0, 100))
    kept.add(a_try("b"), lines(0, 100))
    assert cache.weight > 0
    del kept
    gc.collect()
    assert cache.weight == 0


def test_a_try_without_a_line_weighs_the_same_when_it_grows() -> None:
    cache = LogCache()
    kept = AttemptLogs(cache=cache)
    kept.add(a_try("a"), [])
    kept.add(a_try("a"), lines(0, 1))
    kept.add(a_try("a"), lines(1, 1), whole=True)
    assert cache.weight == kept.tries()[0].weight


def test_what_was_kept_since_another_began_is_of_that_one() -> None:
    kept = AttemptLogs()
    kept.add(a_try("a"), [Stamped(SECOND, "its own"), Stamped(5 * SECOND, "another's")], whole=True)
    kept.move(a_try("a"), replace(a_try("b"), begun=5.0))
    told = {found.instance.id: ([one.text for one in found.lines], found.whole) for found in kept.tries()}
    assert told == {"a": (["its own"], False), "b": (["another's"], False)}
    kept.add(a_try("a"), [Stamped(SECOND, "its own"), Stamped(2 * SECOND, "its last")], whole=True)
    assert [one.text for one in kept.tries()[0].lines] == ["its own", "its last"]
    kept.move(a_try("a"), replace(a_try("c"), begun=9.0))
    kept.move(a_try("z"), replace(a_try("c"), begun=0.0))
    assert len(kept.tries()) == 2
