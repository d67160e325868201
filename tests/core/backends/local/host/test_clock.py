"""A clock that follows the machine's where somebody has set it, and goes evenly in between."""

from __future__ import annotations

import pytest

from allaboard.backends.local.host.clock import Clock, Moment, steady


class Machine:
    """A machine whose clock the test sets."""

    def __init__(self) -> None:
        self.wall, self.since_boot = 1_000_000.0, 50.0

    def passes(self, seconds: float) -> None:
        self.wall, self.since_boot = self.wall + seconds, self.since_boot + seconds

    def clock(self, offset: float | None = None) -> Clock:
        return Clock(offset, lambda: self.wall, lambda: self.since_boot)


@pytest.mark.parametrize("by", [86_400.0, -86_400.0, 2.5, -1e6])
def test_it_goes_on_evenly_until_it_is_told_to_follow(by: float) -> None:
    machine = Machine()
    clock = machine.clock()
    machine.passes(10)
    machine.wall += by
    assert clock.now() == 1_000_010.0, "nothing that is counted by it is early or late"
    assert clock.follow() == by and clock.now() == machine.wall
    assert clock.follow() == 0.0 and clock.at(55.0) == machine.wall - 5.0


def test_slow_corrections_add_up() -> None:
    machine = Machine()
    clock = machine.clock()
    found = []
    for _ in range(30):
        machine.passes(1)
        machine.wall += 0.1
        found.append(clock.follow())
    assert found.count(0.0) >= 27 and abs(machine.wall - clock.now()) < 1.1


def test_a_program_that_goes_on_for_another_counts_by_its_clock() -> None:
    machine = Machine()
    before = machine.clock()
    machine.wall += 3600
    after = machine.clock(before.offset)
    assert after.now() == before.now() and after.follow() == 3600


def test_both_clocks_of_a_moment() -> None:
    first, second = Moment.now(), Moment.now().later(60)
    assert 60 <= second.steady - first.steady < 90 and first.steady <= steady()
