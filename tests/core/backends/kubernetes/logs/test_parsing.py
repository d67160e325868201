"""Bytes and times in, lines out: what is new in an answer, and what is lost."""

from __future__ import annotations

import random
from typing import Any

import pytest

from allaboard.backends.kubernetes.logs import parsing as module
from allaboard.backends.kubernetes.logs.parsing import SECOND, START, LogGap, LogParser, Merge, Position
from tests.core.backends.kubernetes.kubelet import NOON, written

Line = tuple[int, str]


def body(lines: list[Line], position: Position = START) -> bytes:
    """What a kubelet sends when it is asked from a position on."""
    since = (position.second or 0) * SECOND
    return b"".join(written(at, text) for at, text in lines if at >= since)


def texts(found: list[Any]) -> list[str]:
    return ["LOST" if isinstance(item, LogGap) else item.text for item in found]


def test_times_are_read_to_the_nanosecond_and_in_any_zone() -> None:
    tape = LogParser()
    found = tape.feed(
        b"2026-11-21T12:00:02.000000007Z a\n"
        b"2026-11-21T13:00:02.25+01:00 b\r\n"
        b"2026-11-21T12:00:03Z  c d\n"
        b"2026-11-21T12:00:04.5Z \n"
        b"2026-11-21T12:00:05.5Z caf\xc3\xa9 \xff\n"
    )
    assert [(i.at - NOON, i.text) for i in found if not isinstance(i, LogGap)] == [
        (2 * SECOND + 7, "a"),
        (2 * SECOND + SECOND // 4, "b"),
        (3 * SECOND, " c d"),
        (4 * SECOND + SECOND // 2, ""),
        (5 * SECOND + SECOND // 2, "café �"),
    ]


def test_half_a_line_waits_for_its_end() -> None:
    tape = LogParser()
    whole = written(NOON, "one") + written(NOON + 1, "two")
    assert texts(tape.feed(whole[:-5])) == ["one"]
    assert texts(tape.feed(whole[-5:])) == ["two"]


def test_the_last_line_of_a_try_may_lack_its_end() -> None:
    tape = LogParser()
    assert tape.feed(written(NOON, "dying wor")[:-1]) == []
    assert texts(tape.close()) == ["dying wor"]


def test_a_line_without_a_time_belongs_to_the_one_before() -> None:
    assert [i[:2] for i in LogParser().feed(written(NOON, "one") + b"and more\n")] == [
        (NOON, "one"),
        (NOON, "and more"),
    ]


def test_a_kubelet_that_has_no_log_says_so_in_its_place() -> None:
    tape = LogParser()
    assert tape.feed(b"unable to retrieve container logs for containerd://1234\n") == []
    assert tape.refused == "unable to retrieve container logs for containerd://1234"


def test_a_line_without_an_end_comes_in_pieces_always_the_same(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "LONGEST", 64)
    whole = written(NOON, "x" * 200) + written(NOON + 1, "short")
    expected = texts(LogParser().feed(whole))
    assert len(expected) == 5 and "".join(expected[:4]) == "x" * 200
    for size in (1, 7, 63, 64, 65, 1000):
        tape = LogParser()
        found = [item for n in range(0, len(whole), size) for item in tape.feed(whole[n : n + size])]
        assert texts(found) == expected, size


@pytest.mark.parametrize("seed", range(40))
def test_a_log_read_in_pieces_that_break_anywhere_is_read_once(seed: int) -> None:
    """Lines share times, and two streams of one container write a little out of order."""
    random_ = random.Random(seed)
    at, log = NOON, list[Line]()
    for n in range(200):
        at += random_.choice((0, 0, 1, 1000, SECOND // 50, SECOND // 3, 2 * SECOND))
        early = random_.random() < 0.2 and at % SECOND > 5000
        log.append((at - random_.randint(0, 4000) if early else at, f"line {n}"))
    position, read = START, list[str]()
    while len(read) < len(log):
        there = log[: random_.randint(len(read), len(log))]
        answer = body(there, position)
        tape = LogParser(position)
        read += texts(tape.feed(answer[: random_.randint(0, len(answer))]))
        position = tape.position
    assert read == [text for _, text in log]


@pytest.mark.parametrize("seed", range(20))
def test_after_the_last_lines_alone_reading_goes_on_where_they_ended(seed: int) -> None:
    random_ = random.Random(seed)
    log = [(NOON + n * SECOND // 10, f"line {n}") for n in range(60)]
    shown = random_.randint(1, 30)
    begin = random_.randint(shown, 40)
    tape = LogParser(whole=False)
    read = texts(tape.feed(body(log[begin - shown : begin])))
    for end in (begin + 3, begin + 7, 60):
        tape = LogParser(tape.position)
        read += texts(tape.feed(body(log[:end], tape.position)))
    assert read == [text for _, text in log[begin - shown :]]


def test_what_a_rotation_took_is_one_gap() -> None:
    log = [(NOON + n * SECOND, f"line {n}") for n in range(10)]
    tape = LogParser()
    tape.feed(body(log[:3]))
    later = LogParser(tape.position)
    found = later.feed(body(log[6:]))
    assert found[0] == LogGap(NOON + 2 * SECOND, NOON + 6 * SECOND)
    assert texts(found[1:]) == ["line 6", "line 7", "line 8", "line 9"]


def test_a_rotation_that_took_only_what_was_read_is_no_gap() -> None:
    log = [(NOON + n * SECOND // 10, f"line {n}") for n in range(10)]
    tape = LogParser()
    tape.feed(body(log[:5]))
    assert texts(LogParser(tape.position).feed(body(log[3:]))) == [
        "line 5",
        "line 6",
        "line 7",
        "line 8",
        "line 9",
    ]


def test_a_gap_is_not_told_before_there_is_something_after_it() -> None:
    tape = LogParser()
    tape.feed(body([(NOON, "line 0")]))
    assert LogParser(tape.position).feed(b"") == []


# --- merging


def test_lines_leave_in_the_order_of_their_times() -> None:
    merge: Merge[str] = Merge(hold=2.0)
    merge.put(50, "later", 5, now=100.0)
    merge.put(40, "earlier", 7, now=101.9)
    merge.put(60, "fresh", 5, now=101.9)
    assert [*merge.take(101.9)] == [] and merge.due() == 102.0
    assert [*merge.take(102.0)] == ["earlier", "later"]
    assert merge.due() == 103.9
    assert [*merge.take(103.9)] == ["fresh"] and len(merge) == 0 and merge.due() is None


def test_what_comes_too_late_still_comes() -> None:
    merge: Merge[str] = Merge(hold=2.0)
    merge.put(50, "later", 5, now=0.0)
    assert [*merge.take(2.0)] == ["later"]
    merge.put(40, "earlier", 7, now=3.0)
    assert [*merge.take(5.0)] == ["earlier"]


def test_merging_holds_no_more_than_it_may() -> None:
    merge: Merge[int] = Merge(hold=2.0, most=100)
    for n in range(50):
        merge.put(n, n, 10, now=0.0)
    assert [*merge.take(0.0)] == [*range(40)]
    assert [*merge.take(0.0, everything=True)] == [*range(40, 50)]
