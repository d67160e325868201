"""What a page is made of is read once, and what cannot be read is named."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import pytest

from allaboard.backends.base import Cursor, LogLine, Selection
from allaboard.diagnosis import diagnose
from allaboard.errors import AllaboardError, SiteError, UnknownRun
from allaboard.follow.loop import Outcome
from allaboard.report.commands import HERE
from allaboard.report.output import KEPT, OutputReader
from allaboard.report.page import run_page
from allaboard.report.page_data import page_data
from allaboard.report.reading import read_run
from allaboard.runs.observation import Event, State
from allaboard.testing import a_member, seen
from allaboard.text.reportline import encode

FAILED = (a_member("master-0", "deleted", exit_code=143), a_member("worker-0", "failed", exit_code=1, rank=1))


class Logs:
    """The lines of each attempt, by member; an error is raised instead."""

    def __init__(self, *attempts: dict[str, list[str] | AllaboardError], events: Any = ()) -> None:
        self.attempts, self.told = attempts, events
        self.asked: list[Selection] = []

    def logs(
        self, run: str, selection: Selection, cursor: Cursor | None = None
    ) -> Iterator[LogLine | Cursor]:
        self.asked.append(selection)
        name = (selection.members or ("master-0",))[0]
        found = self.attempts[(selection.attempt or 1) - 1].get(name, [])
        if isinstance(found, AllaboardError):
            raise found
        for text in found:
            yield LogLine(name, 0, 0, None, text.removesuffix("…"), more=text.endswith("…"))
        yield {}

    def started_with(self, run: str) -> Any:
        raise UnknownRun(f"run {run} has no record here")

    def events(self, run: str) -> list[Event]:
        if isinstance(self.told, AllaboardError):
            raise self.told
        return [*self.told]


def told(logs: Logs, state: State = State.SUCCEEDED, **fields: Any) -> Any:
    looked = seen(state, **{"members": (a_member("master-0"),), **fields})
    return read_run(logs, Outcome(looked, diagnose(looked)))  # type: ignore[arg-type]


def test_the_reports_of_all_attempts_are_one_history_and_the_rest_are_lines() -> None:
    first = [encode("progress", step=1, loss=3.0), "one", encode("progress", step=2, loss=2.0)]
    second = [encode("resumed", step=1), "10%\r20%", encode("progress", step=2, loss=1.0), "two"]
    found = told(Logs({"master-0": first}, {"master-0": second}), attempt=2)
    assert found.history.curves == {"loss": [(1, 3.0), (2, 1.0)]}
    assert found.lines == {"master-0": ["20%", "two"]} and found.gaps == []


BOOM = ["Traceback (most recent call last):", "RuntimeError: boom"]


@pytest.mark.parametrize("last", [["all is well"], [encode("progress", step=1)], []])
def test_each_try_has_its_own_last_lines(last: list[str]) -> None:
    """A run that succeeded shows no traceback of an earlier attempt as its last lines."""
    found = told(Logs({"master-0": BOOM}, {"master-0": ["again"]}, {"master-0": last}), attempt=3)
    own = [line for line in last if line == "all is well"]
    assert found.lines == ({"master-0": own} if own else {})
    earlier = [(of.attempt, of.restart, of.lines) for of in found.earlier["master-0"]]
    assert earlier == [(2, 0, ["again"]), (1, 0, BOOM)]


def test_a_page_shows_the_lines_of_earlier_tries_below_their_names() -> None:
    looked = seen(State.SUCCEEDED, members=(a_member("master-0"),), attempt=2)
    outcome = Outcome(looked, ())
    read = read_run(Logs({"master-0": BOOM}, {"master-0": ["all is well"]}), outcome)  # type: ignore[arg-type]
    (member,) = page_data(outcome, read, 0.0, at=HERE)["members"]
    assert member["lines"] == ["all is well"]
    page = run_page(page_data(outcome, read, 0.0, at=HERE))
    assert "master-0, attempt 1, restart 0" in page and page.index("all is well") < page.index("boom")


def test_of_many_lines_the_last_are_kept_and_long_ones_are_put_together() -> None:
    report = encode("progress", step=1, note="x" * 50, loss=3.0)
    found = told(Logs({"master-0": [*map(str, range(1000)), report[:30] + "…", report[30:]]}))
    assert found.lines["master-0"] == [str(n) for n in range(1000 - KEPT, 1000)]
    assert found.history.curves == {"loss": [(1, 3.0)]}


def test_a_line_without_end_is_held_in_part() -> None:
    found = told(Logs({"master-0": ["x" * 50_000 + "…"] * 1000 + ["end"]}))
    assert len(found.lines["master-0"][0]) < 100_000


def test_the_end_of_whoever_failed_is_what_was_kept_of_it_else_what_can_be_read() -> None:
    logs = Logs({"master-0": ["calm"], "worker-0": ["read"]})
    assert told(logs, State.FAILED, members=FAILED).lines == {"master-0": ["calm"], "worker-0": ["read"]}
    assert logs.asked[-1] == Selection(members=("worker-0",), attempt=1, tail=KEPT)
    kept = told(logs, State.FAILED, members=FAILED, tails={"worker-0": "a\nkept\n"})
    assert kept.lines["worker-0"] == ["a", "kept"]


def test_what_cannot_be_read_is_named_and_the_rest_is_told() -> None:
    logs = Logs(
        {"master-0": SiteError("it is gone")},
        {"master-0": ["here"], "worker-0": SiteError("no right")},
        events=SiteError("no right either"),
    )
    found = told(logs, State.FAILED, members=FAILED, attempt=2)
    assert found.lines["master-0"] == ["here"]
    assert found.gaps == [
        "what rank 0 wrote in attempt 1 cannot be read: it is gone",
        "what worker-0 wrote cannot be read: no right",
        "its events cannot be read: no right either",
    ]


def test_what_broke_off_is_not_gone_on_with() -> None:
    output = OutputReader()
    logs: Any = Logs({"master-0": SiteError("it is gone")})
    output.read_all(logs, "digits-1", 1)
    assert not output.can_go_on and output.gaps


def test_attempts_that_were_read_are_not_read_again() -> None:
    logs: Any = Logs({"master-0": ["one"]}, {"master-0": ["two"]})
    output = OutputReader()
    output.read_all(logs, "digits-1", 1)
    output.read_all(logs, "digits-1", 2)
    output.read_all(logs, "digits-1", 2)
    assert [selection.attempt for selection in logs.asked] == [1, 1, 2, 2], "the last one may have gone on"
