"""Times at which the ranks of a run entered their last collectives, asked of their processes as stacks are.

A process answers if it began with `allaboard.inside.startup` and imported torch.distributed. To be asked
costs it some 30 µs for each collective that torch keeps, 2,000 unless TORCH_FR_BUFFER_SIZE says otherwise.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field

from allaboard.backends.local.host.processes import environment, find_marked
from allaboard.backends.local.host.stacks import ask_records, record_of
from allaboard.diagnosis.stragglers import Arrival, arrivals_of

ALL = b"!"
"""As `allaboard.inside.startup` has it."""
PATIENCE = 5.0
_SETTLED = 0.05


@dataclass(slots=True)
class _Asked:
    """One process that was asked. ``before``: when it wrote its last answer; ``told``: its answer."""

    pid: int
    rank: int
    world: int
    path: str
    before: int
    answer: str | None = field(default=None)


def arrivals_in(mark: str, sleep: Callable[[float], None] = time.sleep) -> Mapping[int, tuple[Arrival, ...]]:
    """Rank -> its last collectives, of the run with this mark; empty unless every rank of it tells them.
    Waits `PATIENCE` seconds at most.
    """
    asking = AskedArrivals(mark)
    while (arrivals := asking.step()) is None:
        sleep(_SETTLED)
    return arrivals


class AskedArrivals:
    """`arrivals_in` in small steps, for who must not wait."""

    def __init__(self, mark: str) -> None:
        self.until = time.monotonic() + PATIENCE
        asked = (_ask(who.pid) for who in find_marked(mark))
        self.asked = [each for each in asked if each is not None]

    def step(self) -> Mapping[int, tuple[Arrival, ...]] | None:
        """The answers; None: not all are there yet, ask again soon."""
        for each in self.asked:
            if each.answer is None:
                each.answer = record_of(each.path, each.before)
        if any(each.answer is None for each in self.asked) and time.monotonic() < self.until:
            return None
        latest: dict[int, tuple[Arrival, ...]] = {}
        for each in self.asked:
            # An agent of torchrun has the rank of its member in its environment, and enters nothing.
            latest[each.rank] = max(latest.get(each.rank, ()), arrivals_of(each.answer or ""), key=len)
        worlds = [each.world for each in self.asked if latest[each.rank]]
        known = {rank: arrivals for rank, arrivals in latest.items() if arrivals}
        return known if known and len(known) == max(worlds) else {}


def _ask(pid: int) -> _Asked | None:
    environ = environment(pid)
    rank, world = environ.get("RANK", ""), environ.get("WORLD_SIZE", "")
    if not (rank.isdecimal() and world.isdecimal() and len(rank + world) < 20):
        return None
    asked = ask_records(pid, ALL)
    return None if asked is None else _Asked(pid, int(rank), int(world), *asked)
