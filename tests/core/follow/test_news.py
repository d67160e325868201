"""When a log says again why a run is held."""

from __future__ import annotations

import random
from collections.abc import Iterable, Iterator
from itertools import pairwise

import pytest

from allaboard.backends.local.host.machine import Capacity
from allaboard.backends.local.pool.admission import Need, Used
from allaboard.backends.local.pool.waiting import Holder, why_waiting
from allaboard.follow.news import EVERY, MOST_REASONS, Said, kind_of_reason, news, reason_of
from allaboard.runs.observation import Observation, Obstacle


def waits(why: str | None) -> Observation:
    return Observation("r", waiting=why)


def said_of(looks: Iterable[tuple[float, str, Observation]]) -> Iterator[tuple[float, str | None]]:
    """When what was said of these looks: (time, state, what was seen)."""
    log = Said()
    for now, state, seen in looks:
        told = news(log, state, kind_of_reason(seen), reason_of(seen), now)
        if told is not None:
            log = told
            yield now, seen.held_by


def on_this_machine(before: int, short: int, holders: list[str]) -> Observation:
    """One of many that wait for cores, while small runs come and go."""
    used = Used(cpu=float(4), memory=0, gpus=frozenset())
    asked = Need(float(short), None, 0)
    held_by = [Holder(f"run {name}", Used(cpu=1.0)) for name in holders]
    return waits(why_waiting(asked, Capacity(cpu=4.0, memory=1 << 34, gpus=()), used, held_by, before))


def test_a_sentence_of_this_machine_is_said_once_a_minute_whoever_has_its_slots() -> None:
    """Its place, the amount and the holders' names and number change at each look."""
    draw = random.Random(7)
    looks = [
        (
            float(now),
            "queued",
            on_this_machine(
                draw.randrange(9),
                draw.randint(1, 3),
                [f"sweep-{draw.randrange(1 << 32):08x}" for _ in range(draw.randrange(6))],
            ),
        )
        for now in range(600)
    ]
    assert len({seen.waiting for _, _, seen in looks}) > 400
    times = [now for now, _ in said_of(looks)]
    assert times[0] == 0.0 and len(times) == 10
    assert all(later - now >= EVERY for now, later in pairwise(times))


def test_seconds_and_counts_in_any_sentence_are_said_once_a_minute() -> None:
    looks = [
        (now / 2, "queued", waits(f"waits for {now % 7} of 12 nodes since {now / 2} s")) for now in range(480)
    ]
    assert [now for now, _ in said_of(looks)] == [0.0, 60.0, 120.0, 180.0]


def test_a_state_is_said_at_once_and_so_is_another_reason() -> None:
    looks = [
        (0.0, "queued", waits("it needs 2 more cpu in flavor any, which others use")),
        (1.0, "queued", waits("LocalQueue team is stopped")),
        (2.0, "starting", waits(None)),
        (3.0, "starting", Observation("r", obstacle=Obstacle("image_pull_auth", "registry.lab refuses"))),
        (
            4.0,
            "starting",
            Observation("r", obstacle=Obstacle("image_pull_auth", "registry.lab refuses (try 2)")),
        ),
        (5.0, "starting", waits(None)),
        (6.0, "queued", waits("LocalQueue team is stopped")),
    ]
    assert [now for now, _ in said_of(looks)] == [0.0, 1.0, 2.0, 3.0, 5.0, 6.0]


def test_reasons_that_alternate_are_said_once_a_minute_each() -> None:
    reasons = [
        "LocalQueue team is stopped",
        "no node fits",
        "a check is pending",
        "a flavor is missing",
        "no quota",
    ]
    looks = [(float(now), "queued", waits(reasons[now % 2])) for now in range(120)]
    assert [now for now, _ in said_of(looks)] == [0.0, 1.0, 60.0, 61.0]
    looks = [(float(now), "queued", waits(reasons[now % 5])) for now in range(60)]
    assert len([*said_of(looks)]) == MOST_REASONS


@pytest.mark.parametrize("step", [-3600.0, 3600.0])
def test_a_clock_that_was_set_silences_nothing(step: float) -> None:
    looks = [
        (1e9, "queued", waits("1 before it")),
        (1e9 + step, "queued", waits("next in line, 2 before it")),
    ]
    assert len([*said_of(looks)]) == 2
