"""The machine-wide pool of CPU, memory, GPU and port slots, shared by every run and every user of the machine."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from allaboard.backends.local.machine import Capacity
from allaboard.backends.local.procs import Identity


@dataclass(frozen=True, slots=True)
class Need:
    """What one member states: None takes no slot. ``cpu`` in cores, ``memory`` in bytes, ``gpu`` whole devices."""

    cpu: float | None = None
    memory: int | None = None
    gpu: int = 0


@dataclass(frozen=True, slots=True)
class Request:
    """A gang that wants to start: at least the first ``minimum`` members (None: all), together or not at all."""

    mark: str
    members: tuple[Need, ...]
    minimum: int | None = None
    run: str = ""


class Ticket:
    """A place in the queue, held while this process lives. ``fileno()`` becomes readable when a new try is worthwhile."""

    def fileno(self) -> int:
        raise NotImplementedError

    def cancel(self) -> None:
        raise NotImplementedError


class Grant:
    """Slots that are ours. Members are named by their index in ``request.members``."""

    request: Request

    @property
    def admitted(self) -> tuple[int, ...]:
        raise NotImplementedError

    def gpus(self, member: int) -> tuple[str, ...]:
        """For CUDA_VISIBLE_DEVICES of this member."""
        raise NotImplementedError

    def fds(self, member: int) -> tuple[int, ...]:
        """Locks the member must inherit: its slots stay taken while any process of it lives."""
        raise NotImplementedError

    @property
    def owner_fds(self) -> tuple[int, ...]:
        """For `Keeper.hold`: the gang counts as alive while supervisor or keeper has them."""
        raise NotImplementedError

    def record(self, identities: Sequence[Identity]) -> None:
        """Write down who runs (all of them, each time), for whoever must sweep after us."""
        raise NotImplementedError

    def shrink(self, members: Sequence[int]) -> None:
        """Give back the slots of members that ended for good."""
        raise NotImplementedError

    def release(self) -> None:
        """Give back everything. Slots that a process still holds stay taken until it ends."""
        raise NotImplementedError


class Pool:
    def __init__(self, path: str, capacity: Capacity) -> None:
        """Open or create the pool folder. SiteError when it cannot be trusted or used."""
        raise NotImplementedError

    def ask(self, request: Request) -> Ticket:
        """Queue up. BadInput when the request can never fit this machine."""
        raise NotImplementedError

    def try_admit(self, ticket: Ticket) -> Grant | None:
        """Slots for the gang if it is its turn and it fits; sweeps dead gangs first."""
        raise NotImplementedError

    def grow(self, grant: Grant) -> tuple[int, ...]:
        """Admit further members of an elastic gang if nobody queues for the same; returns the new ones."""
        raise NotImplementedError

    def port(self, grant: Grant) -> int:
        """Reserve a port on 127.0.0.1 for the grant's life; members inherit the reservation through `Grant.fds`."""
        raise NotImplementedError

    def describe(self) -> dict[str, Any]:
        """{"capacity", "gangs": [...], "queue": [...], "gpus": [...]}: who holds what, who waits."""
        raise NotImplementedError

    def close(self) -> None:
        raise NotImplementedError


def default_path(environ: Any = None) -> str:
    """ALLABOARD_POOL, or /tmp/allaboard-pool."""
    raise NotImplementedError


def shrink(members: Sequence[Need], capacity: Capacity, minimum: int | None = None) -> tuple[tuple[Need, ...], list[str]]:
    """Make a gang fit the machine; one sentence for each thing taken away."""
    raise NotImplementedError
