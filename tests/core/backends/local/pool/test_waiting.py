"""Why a gang waits for slots: its place, what it lacks to start, and who has that."""

from __future__ import annotations

import pytest

from allaboard.backends.local.host.machine import Capacity
from allaboard.backends.local.pool.admission import Need, Request, Used
from allaboard.backends.local.pool.waiting import Holder, places, start_of, why_waiting

GiB = 1 << 30
ROOM = Capacity(4.0, 8 * GiB, ("0", "1", "2", "3"))
MINE = Holder("run a", Used(3.0, 0, frozenset("01")))
THEIRS = Holder("run b", Used(0.0, 6 * GiB, frozenset("2")), "anna")


def why(asked: Need, *holders: Holder, before: int = 0, room: Capacity = ROOM) -> str:
    used = Used()
    for holder in holders:
        used = used.joined(holder.used)
    return why_waiting(asked, room, used, holders, before)


@pytest.mark.parametrize(
    ("asked", "words"),
    [
        (Need(gpu=3), "it needs 2 more GPUs, which run a and run b of user anna use"),
        (Need(cpu=2), "it needs 1 more core, which run a uses"),
        (Need(memory=4 * GiB), "it needs 2.0 GiB more memory, which run b of user anna uses"),
        (
            Need(cpu=2, gpu=2),
            "it needs 1 more core, 1 more GPU, which run a and run b of user anna use",
        ),
    ],
    ids=["GPUs of two", "a core", "memory of another user", "two kinds"],
)
def test_it_says_what_is_missing_and_who_has_it(asked: Need, words: str) -> None:
    assert why(asked, MINE, THEIRS) == f"this machine holds it back, next in line: {words}"


def test_gpus_that_it_may_not_use_are_nobodys() -> None:
    own = Capacity(4.0, 8 * GiB, ("2", "3"))
    assert why(Need(gpu=2), MINE, THEIRS, room=own).endswith(
        "it needs 1 more GPU, which run b of user anna uses"
    )


def test_many_holders_are_counted() -> None:
    each = [Holder(f"run {name}", Used(1.0)) for name in "abcde"]
    said = why(Need(cpu=4), *each, before=3, room=Capacity(5.0, 0, ()))
    assert said == (
        "this machine holds it back, 3 before it: it needs 4 more cores, "
        "which run a, run b, run c and 2 more use"
    )


def test_slots_that_nobody_known_has() -> None:
    assert why_waiting(Need(gpu=1), ROOM, Used(gpus=frozenset("0123")), (), 0).endswith("which others use")


def test_room_alone_is_not_enough_where_others_came_first() -> None:
    assert why(Need(gpu=1), before=2).endswith("there is room for it, and it would delay those")
    assert why(Need(gpu=1)) == "this machine has room for it, and it starts"


def test_an_elastic_gang_lacks_what_its_minimum_lacks() -> None:
    claim = Request("", (Need(1.0, GiB, 1),) * 3, minimum=2).claim(ROOM)
    assert start_of(claim) == Need(2.0, 2 * GiB, 2)


def test_those_that_compete_for_nothing_do_not_count() -> None:
    assert list(places(["c", "g", "cg", "c", "", ""])) == [0, 0, 2, 2, 0, 0]
