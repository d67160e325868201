"""What init containers wrote is one line of `logs`, and a line of any length is printed as one."""

from __future__ import annotations

import json
import time
from collections.abc import Iterable

import pytest

from allaboard.backends.base import Gap, LogLine
from allaboard.cli.folding import Folds
from allaboard.cli.watch.logs import _print, _Printer
from allaboard.runs.observation import MemberSeen, Observation

BEGUN = time.mktime((2026, 11, 21, 12, 0, 0, 0, 0, -1))
WAITS = "waiting for master"


def waits(member: str, count: int, start: float = 0.0) -> list[LogLine]:
    rank = 0 if member == "master-0" else 1
    return [
        LogLine(member, rank, 0, BEGUN + start + n, f"{WAITS} {n}", container="init-pytorch")
        for n in range(count)
    ]


def trains(member: str, *texts: str, more: bool = False) -> list[LogLine]:
    return [LogLine(member, 0, 0, BEGUN + 500, text, more=more) for text in texts]


def folded(lines: Iterable[LogLine], members: Iterable[MemberSeen] = (), *, eager: bool = False) -> list[str]:
    folds = Folds({m.name: m for m in members}, eager=eager)
    found = [shown for line in lines for shown in folds.add(line)]
    return [f"{line.member}: {line.text}" for line in [*found, *folds.close_all()]]


def test_hundreds_of_lines_of_a_wait_are_one() -> None:
    pairs = zip(waits("worker-0", 400), waits("worker-1", 400), strict=True)
    lines = [line for pair in pairs for line in pair]
    fold = "400 lines from 12:00:00 to 12:06:39, folded (--init shows them): waiting for master 399"
    assert folded(lines) == [f"worker-0: {fold}", f"worker-1: {fold}"]


def test_the_fold_stands_before_the_first_line_of_the_training() -> None:
    begin = [*waits("worker-0", 9), *trains("master-0", "m"), *trains("worker-0", "w")]
    found = folded([*begin, *waits("x", 1)])
    assert [line.partition(" ")[0] for line in found] == ["master-0:", "worker-0:", "worker-0:", "x:"]
    assert found[2] == "worker-0: w"


def test_a_few_lines_stay_as_they_are() -> None:
    assert folded(waits("worker-0", 3)) == [f"worker-0: {WAITS} {n}" for n in range(3)]


def test_who_looks_on_sees_the_first_line_at_once_and_the_rest_folded() -> None:
    folds = Folds({}, eager=True)
    first, *others = waits("worker-0", 9)
    assert [*folds.add(first)] == [first]
    assert [shown for line in others for shown in folds.add(line)] == []
    (rest,) = folds.close_all()
    assert rest.text.startswith("8 more lines from 12:00:00 to 12:00:08, folded")


def test_the_last_lines_of_a_preparation_that_failed_are_shown() -> None:
    found = folded(waits("worker-0", 90), [MemberSeen("worker", 0, 1, "failed", exit_code=1)])
    assert len(found) == 11 and found[-1] == f"worker-0: {WAITS} 89"


def test_a_gap_and_another_try_end_a_fold() -> None:
    gap = waits("worker-0", 1)[0]._replace(text="lost", gap=Gap())
    again = [line._replace(restart=1) for line in waits("worker-0", 6)]
    found = folded([*waits("worker-0", 5), gap, *waits("worker-0", 7), *again])
    assert [line.split()[1] for line in found] == ["5", "lost", "7", "6"]


# --- printing


def printed(
    capsys: pytest.CaptureFixture[str],
    lines: Iterable[LogLine],
    *,
    single: bool = False,
    as_json: bool = False,
    init: bool = False,
) -> tuple[str, str]:
    printer = _Printer(Observation("run"), single=single, as_json=as_json)
    folds = None if init or as_json else Folds({}, eager=False)
    _print(printer, folds, iter([(1, iter([*lines, {"cursor": 1}]))]))
    said = capsys.readouterr()
    return said.out, said.err


def test_pieces_of_a_long_line_are_printed_as_one_line(capsys: pytest.CaptureFixture[str]) -> None:
    pieces = [*trains("master-0", "one ", "two ", more=True), *trains("master-0", "three")]
    assert printed(capsys, pieces)[0] == "[master-0] one two three\n"
    assert printed(capsys, pieces, single=True)[0] == "one two three\n"


def test_a_long_line_that_another_breaks_into_or_nobody_ends_has_an_end(
    capsys: pytest.CaptureFixture[str],
) -> None:
    long, other = trains("master-0", "long ", more=True), trains("worker-0", "other")
    assert printed(capsys, [*long, *other])[0] == "[master-0] long \n[worker-0] other\n"
    assert printed(capsys, long)[0] == "[master-0] long \n"


def test_json_lines_say_all_of_a_line(capsys: pytest.CaptureFixture[str]) -> None:
    odd = 'q"\\\x1b\t€\ud7ff'
    gap = LogLine("worker-0", 1, 2, None, "lost", gap=Gap(1.0, None))
    init = waits("worker-0", 5)
    out, _ = printed(capsys, [*trains("master-0", odd, more=True), gap, *init], as_json=True)
    first, second, *rest = map(json.loads, out.splitlines())
    assert first["text"] == odd and first["more"] is True and first["container"] is None
    assert second == {
        "attempt": 1, "member": "worker-0", "rank": 1, "restart": 2, "container": None,
        "time": None, "text": "lost", "gap": {"from": "1970-01-01T00:00:01.000Z", "to": None},
    }  # fmt: skip
    assert [line["text"] for line in rest] == [line.text for line in init]


def test_init_shows_every_line_of_a_preparation(capsys: pytest.CaptureFixture[str]) -> None:
    out, _ = printed(capsys, waits("worker-0", 9), init=True)
    assert out.count(WAITS) == 9 and out.startswith("[worker-0 init-pytorch] ")
