"""Decides which gang gets slots when, and shrinks a gang that would never fit. Pure functions of values.

First come, first served; a later request passes an earlier one that waits only where, in whatever order the
running gangs may end, the earlier one starts no later and no smaller for it. How long a gang runs is not
known, so a passing gang counts as if it ran for ever: every set of gangs that leaves room for the earlier one
must leave room for the passing one too. So no gang starts later than without passing, and a large gang cannot
starve.

A GPU counts by its id: users who divide the GPUs by CUDA_VISIBLE_DEVICES do not wait for each other.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from allaboard.backends.local.host.machine import Capacity
from allaboard.text.units import show_bytes


@dataclass(frozen=True, slots=True)
class Need:
    """Resources of one member, in cores, bytes and whole devices; None takes no slot."""

    cpu: float | None = None
    memory: int | None = None
    gpu: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A gang that wants to start: its first ``minimum`` members (None: all) together, or none."""

    mark: str
    members: tuple[Need, ...]
    minimum: int | None = None
    run: str = ""

    def claim(self, capacity: Capacity) -> Claim:
        minimum = len(self.members) if self.minimum is None else self.minimum
        return Claim(self.members, min(max(minimum, 0), len(self.members)), capacity)


@dataclass(frozen=True, slots=True)
class Claim:
    """A request with the capacity of the requesting process."""

    members: tuple[Need, ...]
    minimum: int
    capacity: Capacity

    @property
    def wants_gpu(self) -> bool:
        return any(member.gpu for member in self.members)

    @property
    def kinds(self) -> frozenset[str]:
        """The kinds of slots that it competes for; GPUs by id."""
        cpu = ["cpu"] if any(member.cpu for member in self.members) else []
        memory = ["memory"] if any(member.memory for member in self.members) else []
        gpus = [f"gpu {gpu}" for gpu in self.capacity.gpus] if self.wants_gpu else []
        return frozenset([*cpu, *memory, *gpus])


@dataclass(frozen=True, slots=True)
class Used:
    """The slots in use on this machine."""

    cpu: float = 0.0
    memory: int = 0
    gpus: frozenset[str] = frozenset()

    def plus(self, members: Iterable[Need], gpus: Iterable[str] = ()) -> Used:
        members = tuple(members)
        return Used(
            self.cpu + sum(member.cpu or 0 for member in members),
            self.memory + sum(member.memory or 0 for member in members),
            self.gpus.union(gpus),
        )

    def joined(self, other: Used) -> Used:
        return Used(self.cpu + other.cpu, self.memory + other.memory, self.gpus | other.gpus)


Allotment = tuple[tuple[str, ...], ...]
"""GPU ids for each admitted member, in the order of the request; its length says how many were admitted."""


def decide(queue: Sequence[Claim], running: Sequence[Used]) -> list[Allotment | None]:
    """For each claim, oldest first: its allotment now, or None if it waits. ``running``: the slots of each
    gang, one value for everything that is released together.
    """
    answers: list[Allotment | None] = []
    used = Used()
    for gang in running:
        used = used.joined(gang)
    promises: list[_Reservation] = []
    rivals = [_Rival.of(gang) for gang in running]
    for claim in queue:
        answer = fit(claim, used)
        if answer is not None:
            taken = Used().plus(claim.members[: len(answer)], (gpu for gpus in answer for gpu in gpus))
            if not all(promise.holds_beside(taken) for promise in promises):
                answer = None
        if answer is None:
            # Only a limited number of reservations is weighed; behind them no claim on the same kinds may
            # pass.
            promises.append(_Reservation(claim, tuple(rivals) if len(promises) < _WEIGHED else None))
            rivals.append(_Rival.waiting(claim))
        else:
            # Reserved even before its owner takes it: later claims must not take it first.
            used = used.joined(taken)
            rivals.append(_Rival.of(taken))
            for promise in promises:
                promise.met_by(rivals[-1])
        answers.append(answer)
    return answers


_WEIGHED, _SUMS = 50, 4096


@dataclass(frozen=True, slots=True)
class _Rival:
    """A gang that may delay a claim: one that runs, or one before it in the queue."""

    cpu: tuple[int, ...]
    memory: tuple[int, ...]
    """Amounts that are taken and released together."""
    gpus: frozenset[str]
    might: int = 0
    """The most of ``gpus`` that it may hold, if not known yet; 0: all of them."""

    @classmethod
    def of(cls, used: Used) -> _Rival:
        return cls((_millionths(used.cpu),), (used.memory,), used.gpus)

    @classmethod
    def waiting(cls, claim: Claim) -> _Rival:
        first = Used().plus(claim.members[: claim.minimum])
        rest = claim.members[claim.minimum :]
        devices = sum(member.gpu for member in claim.members)
        return cls(
            (_millionths(first.cpu), *(_millionths(member.cpu or 0) for member in rest)),
            (first.memory, *(member.memory or 0 for member in rest)),
            frozenset(claim.capacity.gpus if devices else ()),
            devices,
        )


class _Reservation:
    """A waiting claim, and every amount that others may hold while it still fits."""

    def __init__(self, claim: Claim, rivals: tuple[_Rival, ...] | None) -> None:
        self.claim = claim
        self.rivals = list(rivals) if rivals is not None else None
        self.sums: dict[str, list[int] | None] = {}

    def met_by(self, rival: _Rival) -> None:
        if self.rivals is not None:
            self.rivals.append(rival)
            self.sums.clear()

    def holds_beside(self, taken: Used) -> bool:
        """Return whether the claim starts as early and as large if ``taken`` is never released."""
        members, there = self.claim.members, self.claim.capacity
        cores, devices = _millionths(taken.cpu), len(taken.gpus.intersection(there.gpus))
        return (
            self._leaves("cpu", cores, _millionths(there.cpu), [_millionths(m.cpu or 0) for m in members])
            and self._leaves("memory", taken.memory, there.memory, [m.memory or 0 for m in members])
            and self._leaves("gpu", devices, len(there.gpus), [m.gpu for m in members])
        )

    def _leaves(self, kind: str, passing: int, there: int, members: list[int]) -> bool:
        if not passing or not any(members):
            return True
        if kind not in self.sums:
            self.sums[kind] = self._sums(kind, there)
        sums = self.sums[kind]
        if sums is None:
            return False
        asked = 0
        for count, amount in enumerate(members, 1):
            asked += amount
            # What others may hold when this many members just fit, but not beside the passing gang.
            if count >= self.claim.minimum and asked:
                room = there - asked
                at = bisect_right(sums, room)
                if at and sums[at - 1] + passing > room:
                    return False
        return True

    def _sums(self, kind: str, there: int) -> list[int] | None:
        """The sums that subsets of the rivals may hold, sorted; None if there are too many."""
        if self.rivals is None:
            return None
        sums = {0}
        for rival in self.rivals:
            for amount in self._amounts(kind, rival):
                sums |= {known + amount for known in sums if known + amount <= there}
                if len(sums) > _SUMS:
                    return None
        return sorted(sums)

    def _amounts(self, kind: str, rival: _Rival) -> Sequence[int]:
        if kind != "gpu":
            return rival.cpu if kind == "cpu" else rival.memory
        shared = len(rival.gpus.intersection(self.claim.capacity.gpus))
        return [1] * min(rival.might, shared) if rival.might else [shared]


def _millionths(cores: float) -> int:
    """Cores in millionths: integers add up exactly."""
    return round(cores * 1_000_000)


def fit(claim: Claim, used: Used) -> Allotment | None:
    """As many members, from the first, as there is room for; None when these are fewer than the minimum."""
    free = [gpu for gpu in claim.capacity.gpus if gpu not in used.gpus]
    given: list[tuple[str, ...]] = []
    for member in claim.members:
        used = used.plus([member])
        cpu_fits = not member.cpu or used.cpu <= claim.capacity.cpu + 1e-6
        memory_fits = not member.memory or used.memory <= claim.capacity.memory
        if not cpu_fits or not memory_fits or member.gpu > len(free):
            break
        given.append(tuple(free[: member.gpu]))
        free = free[member.gpu :]
    return tuple(given) if len(given) >= claim.minimum else None


def shrink_to_fit(
    members: Sequence[Need], capacity: Capacity, minimum: int | None = None
) -> tuple[tuple[Need, ...], list[str]]:
    """Make a gang fit the machine, with one sentence for each kind that is cut; none if it fits as it is.

    Only the first ``minimum`` members (None: all) must fit together. Cores and memory are capped at an equal
    share. So are GPUs, down to none: a gang of which some have a GPU and some have not could not train
    together.
    """
    first = tuple(members)[:minimum]
    asks = "the member asks" if len(first) == 1 else f"{len(first)} members together ask"
    gets = "it gets" if len(first) == 1 else "each gets at most"
    cuts: list[str] = []

    cores = _equal_cap([member.cpu or 0 for member in first], capacity.cpu)
    if cores is not None:
        cores = math.floor(cores * 1000) / 1000
        asked = sum(member.cpu or 0 for member in first)
        cuts.append(f"{asks} for {asked:g} cores, this machine has {capacity.cpu:g}: {gets} {cores:g}")
    size = _equal_cap([member.memory or 0 for member in first], capacity.memory)
    if size is not None:
        asked = sum(member.memory or 0 for member in first)
        there = f"this machine has {show_bytes(capacity.memory)}"
        cuts.append(f"{asks} for {show_bytes(asked)} of memory, {there}: {gets} {show_bytes(int(size))}")
    devices = _equal_cap([member.gpu for member in first], len(capacity.gpus))
    if devices is not None:
        devices = math.floor(devices)
        asked = sum(member.gpu for member in first)
        there = f"this machine has {len(capacity.gpus) or 'none'}"
        runs = "it runs" if len(members) == 1 else "all run"
        got = f"{gets} {devices}" if devices else f"{runs} on CPU"
        cuts.append(f"{asks} for {asked} GPU{'s' if asked != 1 else ''}, {there}: {got}")

    def cut(need: Need) -> Need:
        return Need(
            need.cpu if cores is None or not need.cpu else min(need.cpu, cores),
            need.memory if size is None or not need.memory else min(need.memory, int(size)),
            need.gpu if devices is None else min(need.gpu, int(devices)),
        )

    return tuple(cut(member) for member in members), cuts


def _equal_cap(amounts: Sequence[float], there: float) -> float | None:
    """The largest cap under which all fit together; None when they fit without one."""
    if sum(amounts) <= there + 1e-6:
        return None
    left = there
    for count, amount in zip(range(len(amounts), 0, -1), sorted(amounts), strict=True):
        if amount * count > left:
            return left / count
        left -= amount
    return None
