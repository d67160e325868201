"""What was seen, put in order."""

from __future__ import annotations

from allaboard.runs.observation import Event, in_order
from allaboard.text.units import counted


def test_events_are_in_the_order_of_their_times_each_once() -> None:
    first, second = (Event(when, "Normal", "Created", "worker-0", "made it") for when in (1.0, 2.0))
    same = Event(2.0, "Normal", "Scheduled", "worker-0", "placed it")
    again = Event(2.0, "Normal", "Created", "worker-0", "made it", id="of another object")
    assert in_order([second, same, first, again]) == [first, second, same]


def test_one_is_one() -> None:
    assert [counted(n, "member") for n in (0, 1, 2, 12000)] == [
        "0 members", "1 member", "2 members", "12,000 members",
    ]  # fmt: skip
