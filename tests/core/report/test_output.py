"""What members write is read on from where the last look stopped, in bounds, by one class for all."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from allaboard.backends.base import LogLine, Selection
from allaboard.errors import SiteError
from allaboard.report import phrases
from allaboard.report.commands import HERE, Place
from allaboard.report.output import LONGEST, MOST_BYTES, MOST_LINES, OutputReader
from allaboard.report.page import run_page
from allaboard.report.page_data import page_data
from allaboard.report.reading import read_run
from allaboard.text.reportline import encode
from tests.core.report.one_output import FAILED, FAILING, LINES, PROGRESS, RUNNING, SECRET, TAIL, Wrote


class Growing:
    """What rank 0 writes. ``breaks``: after so many lines of an answer it breaks off."""

    def __init__(self, *lines: str) -> None:
        self.lines, self.breaks = [*lines], -1

    def logs(self, run: str, selection: Selection, cursor: Any = None) -> Iterator[Any]:
        begin = 0 if cursor is None else cursor["at"]
        for number, text in enumerate(self.lines[begin:]):
            if number == self.breaks:
                raise SiteError("the node is gone")
            yield LogLine("master-0", 0, 0, None, text.removesuffix("…"), more=text.endswith("…"))
        yield {"at": len(self.lines)}


def told(reader: OutputReader, output: Growing, now: float = 0.0, **how: Any) -> list[str]:
    reader.is_due(now)
    backend: Any = output
    reader.read(backend, "r", 1)
    return reader.new_lines("r", HERE, **how)


def test_what_was_told_is_not_told_again_and_reports_are_no_lines() -> None:
    output, reader = Growing("one", encode("progress", step=1, loss=2.0)), OutputReader()
    assert told(reader, output) == ["one"]
    output.lines += ["two", "thr…", "ee"]
    assert told(reader, output, 1.0) == ["two", "three"] and told(reader, output, 2.0) == []
    assert reader.history.curves == {"loss": [(1, 2.0)]} and reader.last_lines == ["one", "two", "three"]


def test_an_answer_that_breaks_off_is_told_once_it_is_whole() -> None:
    output, reader = Growing("one", "two"), OutputReader()
    output.breaks = 1
    with pytest.raises(SiteError):
        told(reader, output)
    assert reader.new_lines("r", HERE) == []
    output.breaks = -1
    assert told(reader, output, 1.0) == ["one", "two"]


def test_of_an_answer_that_breaks_off_at_the_end_what_came_is_told() -> None:
    output, reader = Growing("one", "two"), OutputReader()
    output.breaks = 1
    with pytest.raises(SiteError):
        told(reader, output)
    assert reader.new_lines("r", HERE, last=True) == ["one"]


def test_a_flood_is_cut_to_its_end_and_says_where_all_of_it_is() -> None:
    output, reader = Growing(*(f"line {n}" for n in range(10_000))), OutputReader()
    backend: Any = output
    assert reader.is_due(0.0)
    reader.read(backend, "r", 1)
    lines = reader.new_lines("r", Place("kubernetes", namespace="team"))
    assert len(lines) == MOST_LINES + 1 and lines[-1] == "line 9999"
    where = "allaboard logs r --rank 0 --backend kubernetes --namespace team"
    assert lines[0] == f"({10_000 - MOST_LINES:,} lines of rank 0 left out here: {where})"


def test_a_flood_that_goes_on_is_told_some_lines_at_a_time() -> None:
    output, reader, at_once = Growing(), OutputReader(), []
    for second in range(600):
        output.lines += [f"line {n}" for n in range(100)]
        if reader.is_due(float(second)):
            at_once.append(told(reader, output, float(second)))
    lines = [line for some in at_once for line in some]
    assert 150 < len(at_once) < 210 and all("left out here" in some[0] for some in at_once[3:])
    assert len(lines) < 12_600, "twenty a second, and a line for those left out"
    output.lines.append("the end")
    assert told(reader, output, 600.0, last=True)[-1] == "the end", "whatever was told before"


def test_a_long_line_and_many_bytes_are_cut() -> None:
    [line] = told(OutputReader(), Growing("x" * 10 * LONGEST))
    assert line == f"{'x' * LONGEST}... ({10 * LONGEST} characters)"
    kept = told(OutputReader(), Growing(*["y" * LONGEST] * 150))
    assert sum(map(len, kept)) <= MOST_BYTES + 100 and "left out" in kept[0]


def test_of_another_attempt_the_lines_begin_anew() -> None:
    output, reader = Growing("of the first"), OutputReader()
    backend: Any = output
    assert told(reader, output) == ["of the first"]
    output.lines = ["of the second"]
    reader.read(backend, "r", 2)
    assert reader.new_lines("r", HERE) == ["of the second"]


# --- one output, for whoever tells of it


def test_a_report_says_the_same_as_all_others() -> None:
    """The others: tests/kfp/test_step.py, tests/provider/test_task_log.py, tests/provider/ui/test_app.py."""
    backend: Any = Wrote()
    reader = OutputReader(secrets=(SECRET,))
    reader.read(backend, "r", 1)
    assert reader.new_lines("r", HERE) == LINES
    failing = phrases.first_failing(FAILED)
    assert failing is not None and failing.name == FAILING
    assert phrases.tail(FAILED, failing) == [TAIL]
    assert phrases.progress_phrase(RUNNING) == PROGRESS
    page = run_page(page_data(FAILED, read_run(backend, FAILED, (SECRET,)), 10.0, at=HERE))
    assert SECRET not in page and page.index(TAIL) < page.index("opened with ***")


def test_a_bar_of_one_line_without_end_is_read_to_its_last_state() -> None:
    """tqdm writes no end of a line; a log comes in pieces."""
    states = [f"Steps:  50%|███| {n}/4000 [00:12<01:30,  9.80it/s, loss={4000 - n}]" for n in range(1, 4001)]
    text = "\r".join(states)
    pieces = [text[at : at + 50_000] + "…" for at in range(0, len(text), 50_000)]
    for output in (Growing(*pieces, ""), Growing(text)):
        reader = OutputReader()
        assert len(told(reader, output)) == 1
        curve = reader.history.curves["loss"]
        assert curve[-1] == (4000, 0.0) and len(curve) == 4000
