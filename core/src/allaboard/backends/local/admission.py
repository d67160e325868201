"""Who gets slots when: a function of values, and what a gang is cut down to that would never fit.

First come, first served: a request waits behind every earlier one that wants any of the same kinds of
resource, even if it would fit itself. So a large gang cannot starve, and unrelated requests pass. A GPU
counts by its id: people who divided the GPUs among themselves by CUDA_VISIBLE_DEVICES do not wait for each
other.
"""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from allaboard.backends.local.machine import Capacity
from allaboard.units import show_bytes


@dataclass(frozen=True, slots=True)
class Need:
    """What one member states; None takes no slot. Cores, bytes, whole devices."""

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
    """A request as it is decided: with the capacity of the process that asks."""

    members: tuple[Need, ...]
    minimum: int
    capacity: Capacity

    @property
    def wants_gpu(self) -> bool:
        return any(member.gpu for member in self.members)

    @property
    def kinds(self) -> frozenset[str]:
        """What it competes for; GPUs by id."""
        cpu = ["cpu"] if any(member.cpu for member in self.members) else []
        memory = ["memory"] if any(member.memory for member in self.members) else []
        gpus = [f"gpu {gpu}" for gpu in self.capacity.gpus] if self.wants_gpu else []
        return frozenset([*cpu, *memory, *gpus])


@dataclass(frozen=True, slots=True)
class Used:
    """What is taken on this machine."""

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


Allotment = tuple[tuple[str, ...], ...]
"""GPU ids for each admitted member, in the order of the request; its length says how many were admitted."""


def decide(queue: Sequence[Claim], used: Used) -> list[Allotment | None]:
    """For each claim, oldest first: what it gets now, or None: it waits."""
    answers: list[Allotment | None] = []
    awaited: set[str] = set()
    for claim in queue:
        answer = None if claim.kinds & awaited else fit(claim, used)
        if answer is None:
            awaited |= claim.kinds
        else:
            # Set aside even if its owner has not come for it yet: later ones must not slip in between.
            used = used.plus(claim.members[: len(answer)], (gpu for gpus in answer for gpu in gpus))
        answers.append(answer)
    return answers


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


def shrink(
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
    words: list[str] = []

    cores = _share([member.cpu or 0 for member in first], capacity.cpu)
    if cores is not None:
        cores = math.floor(cores * 1000) / 1000
        asked = sum(member.cpu or 0 for member in first)
        words.append(f"{asks} for {asked:g} cores, this machine has {capacity.cpu:g}: {gets} {cores:g}")
    size = _share([member.memory or 0 for member in first], capacity.memory)
    if size is not None:
        asked = sum(member.memory or 0 for member in first)
        there = f"this machine has {show_bytes(capacity.memory)}"
        words.append(f"{asks} for {show_bytes(asked)} of memory, {there}: {gets} {show_bytes(int(size))}")
    devices = _share([member.gpu for member in first], len(capacity.gpus))
    if devices is not None:
        devices = math.floor(devices)
        asked = sum(member.gpu for member in first)
        there = f"this machine has {len(capacity.gpus) or 'none'}"
        runs = "it runs" if len(members) == 1 else "all run"
        got = f"{gets} {devices}" if devices else f"{runs} on CPU"
        words.append(f"{asks} for {asked} GPU{'s' if asked != 1 else ''}, {there}: {got}")

    def cut(need: Need) -> Need:
        return Need(
            need.cpu if cores is None or not need.cpu else min(need.cpu, cores),
            need.memory if size is None or not need.memory else min(need.memory, int(size)),
            need.gpu if devices is None else min(need.gpu, int(devices)),
        )

    return tuple(cut(member) for member in members), words


def _share(asked: Sequence[float], there: float) -> float | None:
    """The largest cap under which all fit together; None when they fit without one."""
    if sum(asked) <= there + 1e-6:
        return None
    left = there
    for count, amount in zip(range(len(asked), 0, -1), sorted(asked), strict=True):
        if amount * count > left:
            return left / count
        left -= amount
    return None
