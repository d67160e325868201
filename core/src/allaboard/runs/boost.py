"""Boost of a run that is admitted, from the work that it has not saved: a queue preempts first the run that
loses least. Values in, values out.

Kueue orders those that it may preempt by priority plus boost, and of equals takes the one that was admitted
last (0.19.2: pkg/scheduler/preemption/common/ordering.go), whatever it loses. Here the boost grows with the
work that would be lost, in GPU-seconds, and falls with each save: the next victim is whoever has just saved.

- A boost is a whole number from 0 to `LEVELS`. Each level stands for `FACTOR` times the unsaved work of the
  one before, so that a run changes few times between two saves, and small differences change nothing.
- It never lifts a run to the priority of a higher class that is in use: `room` is what lies between them.
  Where that is less than `LEVELS`, the levels share it.
- Nothing flaps: one boost changes at most once in `hold` seconds, and a level is left downwards only for
  good.

What a run says of its saves is its own word, so it must gain nothing by a lie. A save that never happened
lowers the boost. A run that saves seldom or never would be the last to be preempted; therefore only work
within `PATIENCE` times its own interval between saves counts, an interval being `LONGEST` at most. Whoever is
later than that counts as one that does not save, and gets no boost, as does whoever has said nothing of saves
at all. So nobody is boosted for longer than ``PATIENCE * LONGEST + STARTUP`` without a save, and no liar
higher than an honest run of the same size that saves once an hour. The GPUs are those that the queue charges,
not those that the run claims.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from itertools import pairwise
from statistics import median

from allaboard.text.units import counted, show_seconds

LEVELS = 6
FACTOR = 4.0
LEAST = 300.0
"""GPU-seconds of unsaved work from which on there is a boost: 8 GPUs for 40 seconds."""
STAYS = 0.75
"""A level is left downwards when the work is less than this share of where the level begins."""
PATIENCE = 2.0
LONGEST = 3600.0
"""Seconds: a run is expected to save at least so often."""
STARTUP = 600.0
"""Seconds that a run may need, besides, before it trains: images, a rendezvous, the data, the weights."""
GAPS = 5
"""So many of the last intervals between saves tell how often a run saves."""


@dataclass(frozen=True, slots=True)
class Admitted:
    """A run that its queue has admitted, ``since`` then. ``gpus``: those that the queue charges it;
    ``saves``: when it saved, since it was admitted, ascending; ``every``: seconds between saves, as its job
    says, None: it says none; ``boost``, ``changed``: its boost, and when that changed last, None: not known;
    ``room``: how high its boost may be without reaching the next priority class. Times are epoch seconds.
    """

    gpus: float
    since: float
    saves: tuple[float, ...] = ()
    every: float | None = None
    boost: int = 0
    changed: float | None = None
    room: int = LEVELS


@dataclass(frozen=True, slots=True)
class Wanted:
    """The boost that a run is to have, and the reason. ``unsaved``: GPU-seconds that count."""

    boost: int
    unsaved: float
    reason: str


def decide(run: Admitted, now: float, hold: float) -> Wanted:
    """The boost of a run from now on: the one that it has, where it is too early for another."""
    unsaved, reason = unsaved_work(run, now)
    boost = _scaled(_level(unsaved, _unscaled(run.boost, run.room)), run.room)
    if boost != run.boost and run.changed is not None and now - run.changed < hold:
        return Wanted(run.boost, unsaved, reason)
    return Wanted(boost, unsaved, reason)


def unsaved_work(run: Admitted, now: float) -> tuple[float, str]:
    """GPU-seconds that count as unsaved, and the sentence that says so."""
    if run.gpus <= 0:
        return 0.0, "it holds no GPU"
    interval = interval_of(run)
    if interval is None:
        return 0.0, "it has reported no save"
    age = max(0.0, now - (run.saves[-1] if run.saves else run.since))
    last = f"{show_seconds(age)} since its {'last save' if run.saves else 'start'}"
    if age > PATIENCE * interval + (0.0 if run.saves else STARTUP):
        return 0.0, f"{last}, though it is expected to save every {show_seconds(interval)}"
    return run.gpus * age, f"{counted(round(run.gpus), 'GPU')}, {last}"


def interval_of(run: Admitted) -> float | None:
    """Seconds between two saves of a run, as it has been seen to save, else as its job says; None: neither is
    known.
    """
    gaps = [later - earlier for earlier, later in pairwise(run.saves)][-GAPS:]
    if gaps:
        return min(LONGEST, max(1.0, median(gaps)))
    if run.every is not None:
        return min(LONGEST, run.every)
    return min(LONGEST, max(1.0, run.saves[0] - run.since)) if run.saves else None


def room_above(priority: int, others: Iterable[int]) -> int:
    """Highest boost of this priority: below the next higher one of these, `LEVELS` at most."""
    return min((other - priority - 1 for other in others if other > priority), default=LEVELS)


def _level(unsaved: float, now: int) -> int:
    """The level of so much work; ``now``: the one that the run has."""
    level = _plain_level(unsaved)
    if level < now and _plain_level(unsaved / STAYS) >= now:
        return now
    return level


def _plain_level(unsaved: float) -> int:
    if unsaved < LEAST:
        return 0
    return min(LEVELS, 1 + math.floor(math.log(unsaved / LEAST, FACTOR) + 1e-9))


def _scaled(level: int, room: int) -> int:
    """The boost of a level: the level, or its share of less room, rounded up."""
    room = max(0, min(LEVELS, room))
    return -(-level * room // LEVELS)


def _unscaled(boost: int, room: int) -> int:
    """The lowest level that has this boost."""
    return next((level for level in range(LEVELS + 1) if _scaled(level, room) >= boost), LEVELS)
