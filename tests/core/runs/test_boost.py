"""The boost of a run from what it has not saved: alone, and in a day of preemptions."""

from __future__ import annotations

import random
from dataclasses import dataclass, field, replace
from itertools import pairwise

import pytest

from allaboard.runs import boost
from allaboard.runs.boost import LEAST, LEVELS, LONGEST, PATIENCE, STARTUP, Admitted, decide, room_above

HOLD = 60.0
RUN = Admitted(gpus=8, since=0.0, saves=(600.0, 1200.0), every=600.0)


def of(run: Admitted, now: float) -> int:
    return decide(run, now, HOLD).boost


def test_it_grows_with_the_unsaved_work_and_falls_with_a_save() -> None:
    climb = [of(RUN, 1200.0 + age) for age in (0, 30, 60, 200, 700)]
    assert climb == sorted(climb) and climb[0] == 0 and climb[-1] == 3
    assert of(replace(RUN, saves=(*RUN.saves, 1800.0)), 1801.0) == 0


def test_of_runs_that_save_alike_the_larger_one_has_more() -> None:
    assert of(replace(RUN, gpus=256), 1500.0) > of(RUN, 1500.0)


@pytest.mark.parametrize("gpus", [1, 8, 10**6])
def test_it_is_bounded_whatever_the_size(gpus: int) -> None:
    assert all(0 <= of(replace(RUN, gpus=gpus), 1200.0 + age) <= LEVELS for age in range(0, 10_000, 100))


def test_a_run_that_tells_of_no_saves_has_none() -> None:
    silent = decide(Admitted(gpus=64, since=0.0), 5000.0, HOLD)
    assert (silent.boost, silent.reason) == (0, "it has reported no save")


def test_not_saving_is_no_way_to_stay() -> None:
    """Once, or never, though its job says every week: nobody keeps a boost for longer than an honest one."""
    once = Admitted(gpus=64, since=0.0, saves=(600.0,), every=7 * 86400.0)
    never = replace(once, saves=())
    for liar, begins in ((once, 600.0), (never, 0.0)):
        last = PATIENCE * LONGEST + STARTUP
        assert of(liar, begins + LONGEST) > 0
        assert of(liar, begins + last + 1) == 0
        assert "expected to save every 1h" in decide(liar, begins + last + 1, HOLD).reason


def test_an_interval_is_what_was_seen_and_only_then_what_the_job_says() -> None:
    assert boost.interval_of(replace(RUN, saves=(10.0, 20.0, 30.0, 500.0, 510.0))) == 10.0
    assert boost.interval_of(replace(RUN, saves=())) == 600.0
    assert boost.interval_of(replace(RUN, saves=(90.0,), every=None)) == 90.0


def test_a_boost_stands_for_a_while() -> None:
    changed = replace(RUN, boost=3, changed=1190.0)
    assert of(changed, 1201.0) == 3
    assert of(changed, 1190.0 + HOLD) == 1


def test_a_level_is_left_downwards_for_good_only() -> None:
    second = 4 * LEAST / RUN.gpus
    assert of(replace(RUN, boost=2), 1200.0 + second * 0.9) == 2
    assert of(replace(RUN, boost=2), 1200.0 + second * 0.7) == 1


@pytest.mark.parametrize(("room", "tops"), [(0, 0), (-5, 0), (1, 1), (3, 3), (100, LEVELS)])
def test_it_stays_below_the_next_class(room: int, tops: int) -> None:
    run = replace(RUN, gpus=10**6, room=room)
    boosts = [of(replace(run, saves=(*RUN.saves, 1800.0 - age)), 1800.0) for age in (0, 1, 10, 300, 590)]
    assert max(boosts) == tops and boosts == sorted(boosts)


def test_the_room_is_what_lies_between_two_classes() -> None:
    assert room_above(0, [0, 0, 5, 1000]) == 4
    assert room_above(1000, [0, 5, 1000]) == LEVELS
    assert room_above(4, [5]) == 0


# A day of preemptions.


@dataclass
class Run:
    gpus: int
    every: float
    since: float
    due: float
    saves: list[float] = field(default_factory=list)
    boost: int = 0
    changed: float | None = None
    changes: list[float] = field(default_factory=list)

    @property
    def last(self) -> float:
        return self.saves[-1] if self.saves else self.since


def a_day(seed: int, boosting: bool, hours: int = 8) -> tuple[float, list[Run]]:
    """GPU-seconds lost on a full queue whose victims are chosen as Kueue chooses them, and all runs of it."""
    chance = random.Random(seed)
    at = sorted(chance.uniform(3600.0, hours * 3600.0) for _ in range(12 * hours))

    def start(now: float) -> Run:
        every = chance.choice([300.0, 600.0, 1800.0, 3600.0])
        return Run(chance.choice([8, 8, 16, 64]), every, now, now + 300.0 + every)

    runs = [start(chance.uniform(-3600.0, 0.0)) for _ in range(12)]
    over: list[Run] = []
    lost = 0.0
    for now in range(0, hours * 3600, 30):
        for run in runs:
            while run.due <= now:
                run.saves.append(run.due)
                run.due += run.every * chance.uniform(0.9, 1.1)
            if not boosting:
                continue
            seen = Admitted(run.gpus, run.since, tuple(run.saves), run.every, run.boost, run.changed)
            wanted = decide(seen, now, HOLD)
            if wanted.boost != run.boost:
                run.boost, run.changed = wanted.boost, now
                run.changes.append(now)
        while at and at[0] <= now:
            at.pop(0)
            victim = min(runs, key=lambda run: (run.boost, -run.since))
            lost += victim.gpus * (now - victim.last)
            runs.remove(victim)
            over.append(victim)
            runs.append(start(float(now)))
    return lost, [*runs, *over]


@pytest.mark.parametrize("first", range(0, 20, 10))
def test_over_a_day_far_less_is_lost(first: int) -> None:
    pairs = [(a_day(seed, False)[0], a_day(seed, True)[0]) for seed in range(first, first + 10)]
    assert all(with_boost < without for without, with_boost in pairs)
    share = sum(with_boost for _, with_boost in pairs) / sum(without for without, _ in pairs)
    print(f"lost with boosts: {share:.1%} of what is lost without")
    assert share < 0.4


@pytest.mark.parametrize("seed", range(3))
def test_nothing_flaps(seed: int) -> None:
    """One boost changes at most once in the time for which it stands, and few times between two saves."""
    _, runs = a_day(seed, True)
    assert any(run.changes for run in runs)
    for run in runs:
        assert all(later - earlier >= HOLD for earlier, later in pairwise(run.changes))
        assert len(run.changes) <= (LEVELS + 1) * (len(run.saves) + 1)
