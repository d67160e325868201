"""Streams of members whose pods will go: how many, what is kept of them, and when that is all there was."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from allaboard.backends.kubernetes.logs.cache import AttemptLogs, KeptTry
from allaboard.backends.kubernetes.logs.capture import TAIL
from allaboard.backends.kubernetes.logs.listening import MOST, SILENCE, TOGETHER, Listened, Room, to_listen
from allaboard.backends.kubernetes.logs.parsing import Stamped
from allaboard.backends.kubernetes.observe.containers import ContainerRun

ONE = ContainerRun("c1", "net-worker-0", "u1", "pytorch", False, "worker-0", 1, 0, False, True, False)


def row(second: int, text: str) -> bytes:
    return f"2027-01-01T00:00:{second:02d}.000000000Z {text}\n".encode()


def a_pod(state: dict[str, Any], *, id: str = "c1", going: bool = False) -> dict[str, Any]:
    began = {"startedAt": "2027-01-01T00:00:00Z"}
    state = {
        name: {**began, **value, **({"containerID": id} if name == "terminated" else {})}
        for name, value in state.items()
    }
    status = {"name": "pytorch", "containerID": id, "restartCount": 0, "state": state}
    metadata = {
        "name": ONE.pod,
        "uid": "u1",
        **({"deletionTimestamp": "2027-01-01T00:01:00Z"} if going else {}),
    }
    phase = "Running" if "running" in state else "Succeeded"
    return {
        "metadata": metadata,
        "spec": {"restartPolicy": "Never"},
        "status": {"phase": phase, "containerStatuses": [status]},
    }


RUNS = a_pod({"running": {}})


def ended(code: int, *, going: bool = False) -> dict[str, Any]:
    return a_pod({"terminated": {"exitCode": code}}, going=going)


class Heard:
    """One stream after the other of one try."""

    def __init__(self) -> None:
        self.logs = AttemptLogs()
        self.listened = Listened(ONE, self.logs)
        self.now = 1000.0

    def stream(self, *rows: bytes, pod: dict[str, Any] | None = RUNS) -> dict[str, Any]:
        asked = self.listened.begin(self.now)
        for data in rows:
            if self.listened.feed(data, self.now) and not self.listened.prove(pod):
                break
        return asked

    @property
    def kept(self) -> KeptTry:
        (kept,) = self.logs.tries()
        return kept

    @property
    def texts(self) -> list[str]:
        return [line.text for kept in self.logs.tries() for line in kept.lines]


@pytest.fixture
def heard() -> Heard:
    return Heard()


def test_members_beside_rank_0_are_listened_to_once_each() -> None:
    tries = [replace(ONE, id=f"c{n}", rank=n) for n in range(4)]
    prepares = replace(ONE, id="i", init=True)
    over = replace(ONE, id="o", running=False)
    chosen = to_listen([*tries, prepares, over], {"c2"}, 1, rank_0=False)
    assert [one.id for one in chosen] == ["c1", "c3"]
    assert [one.id for one in to_listen(tries, (), 0, rank_0=True)] == ["c0", "c1", "c2", "c3"]


@pytest.mark.parametrize("open_streams", [0, 5, MOST, MOST + 3])
def test_a_large_gang_has_so_many_streams_and_no_more(open_streams: int) -> None:
    tries = [replace(ONE, id=f"c{n}", rank=n) for n in range(1000)]
    chosen = to_listen(tries, (), open_streams, rank_0=False)
    assert [one.rank for one in chosen] == [*range(1, 1 + max(0, MOST - open_streams))]


def test_what_comes_is_kept(heard: Heard) -> None:
    asked = heard.stream(row(1, "one"), row(2, "two")[:9], row(2, "two")[9:])
    assert (asked["tail"], asked["since"], asked["follow"]) == (TAIL, None, True)
    assert heard.texts == ["one", "two"] and not heard.kept.whole and not heard.kept.cut


def test_a_stream_that_is_opened_anew_goes_on_from_the_last_line(heard: Heard) -> None:
    heard.stream(row(1, "one"), row(2, "two"))
    asked = heard.stream(row(2, "two"), row(3, "three"), pod=None)
    assert (asked["tail"], asked["since"]) == (None, "2027-01-01T00:00:02.000Z")
    assert heard.texts == ["one", "two", "three"] and not heard.kept.cut


def test_where_the_node_rotated_the_log_the_rest_is_an_end(heard: Heard) -> None:
    heard.stream(row(1, "one"))
    heard.stream(row(9, "nine"))
    assert heard.texts == ["nine"] and heard.kept.cut


@pytest.mark.parametrize(("pause", "cut"), [(0.0, True), (60.0, False)])
def test_of_a_log_that_was_longer_it_is_told_that_it_was_cut(heard: Heard, pause: float, cut: bool) -> None:
    """So many lines at once were there before; those that come by and by are all that there are."""
    heard.stream(*(row(1, f"{n}") for n in range(TAIL - 1)))
    heard.now += pause
    heard.listened.feed(row(2, "more"), heard.now)
    assert heard.kept.cut is cut and len(heard.texts) == TAIL


def test_what_the_next_container_wrote_is_not_taken_for_it(heard: Heard) -> None:
    heard.stream(row(1, "of the next"), pod=a_pod({"running": {}}, id="c2"))
    assert heard.texts == []


def test_a_line_that_is_known_proves_whose_it_is(heard: Heard) -> None:
    heard.stream(row(1, "one"))
    heard.listened.begin(heard.now)
    assert not heard.listened.feed(row(1, "one"), heard.now), "its pod need not be asked for"


def test_a_stream_that_was_only_silent_is_opened_at_once(heard: Heard) -> None:
    heard.stream(row(1, "one"))
    assert heard.listened.end(heard.now + SILENCE) == 0.0


def test_streams_that_end_at_once_are_opened_ever_more_seldom(heard: Heard) -> None:
    rests = []
    for _ in range(12):
        heard.stream()
        rests.append(heard.listened.end(heard.now))
        assert heard.listened.goes_on(RUNS, heard.now)
    assert rests[:3] == [0.3, 0.6, 1.2] and rests[-1] == 60.0
    heard.stream()
    assert heard.listened.end(heard.now + 30) == 0.3, "one that lived is another matter"


@pytest.mark.parametrize(
    ("pod", "whole"),
    [
        (None, True),
        (ended(0), True),
        (ended(0, going=True), True),
        (ended(143, going=True), True),
        (ended(1), False),
        (a_pod({"running": {}}, id="c2"), False),
    ],
)
def test_what_came_was_all_where_the_stream_ended_with_it(
    heard: Heard, pod: dict[str, Any] | None, whole: bool
) -> None:
    """Of one that failed its node is asked nevertheless, while the pod is there."""
    heard.stream(row(1, "one"))
    heard.listened.end(heard.now)
    assert not heard.listened.goes_on(pod, heard.now + 0.3)
    assert heard.kept.whole is whole


def test_who_was_not_heard_to_its_end_may_have_said_more(heard: Heard) -> None:
    """The stream was cut, and the pod was gone a while later."""
    heard.stream(row(1, "one"))
    heard.listened.end(heard.now)
    assert not heard.listened.goes_on(None, heard.now + 60)
    assert not heard.kept.whole


def test_a_last_line_without_its_end_is_one(heard: Heard) -> None:
    heard.stream(row(1, "one"), row(2, "two").rstrip())
    assert heard.texts == ["one"]
    heard.listened.end(heard.now)
    heard.listened.goes_on(None, heard.now)
    assert heard.texts == ["one", "two"]


def test_there_is_room_for_so_many_streams_in_a_process() -> None:
    room = Room()
    taken = [room.take(0) for _ in range(TOGETHER + 1)]
    assert taken.count(True) == TOGETHER and not taken[-1]
    room.leave()
    assert room.take(0) and not room.take(0)


def test_a_few_large_gangs_do_not_take_all_the_room() -> None:
    room = Room()
    got = [sum(room.take(held) for held in range(MOST)) for _ in range(40)]
    assert got[:2] == [MOST, MOST] and got[7] >= 1 and sum(got) == TOGETHER


def test_what_is_known_is_an_end_of_its_log_whoever_read_it(heard: Heard) -> None:
    """A capture that came before is where a stream begins."""
    heard.logs.add(ONE, [Stamped(1_798_761_605_000_000_000, "five")])
    assert heard.stream()["since"] == "2027-01-01T00:00:05.000Z"
