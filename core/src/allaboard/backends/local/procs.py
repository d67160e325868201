"""Processes as the kernel sees them: who is alive, who descends from whom, and how to leave none behind."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import NamedTuple


class Identity(NamedTuple):
    """One process, for ever: pids are reused, a pid together with its start time is not (within one boot)."""

    pid: int
    start: int


class Reaped(NamedTuple):
    """A child that ended: ``code`` is its exit code, or minus the signal; ``maxrss`` its peak memory in bytes."""

    pid: int
    code: int
    maxrss: int


def identity(pid: int) -> Identity | None:
    """Who has this pid now; None when nobody has, or only a zombie."""
    raise NotImplementedError


def start_time(pid: int) -> int | None:
    """When the process started, in clock ticks since boot (Linux) or epoch seconds (macOS); None when there is none."""
    raise NotImplementedError


def alive(who: Identity) -> bool:
    """True while this very process runs. A zombie is dead; another process under the same pid is another."""
    raise NotImplementedError


def descendants(pid: int) -> list[Identity]:
    """The whole tree below ``pid``, all depths, without ``pid`` itself and without zombies."""
    raise NotImplementedError


def find_marked(mark: str, member: str | None = None) -> list[Identity]:
    """Processes started with ALLABOARD_MARK (and ALLABOARD_MEMBER) in their environment, that we may look into."""
    raise NotImplementedError


def kill_tree(roots: Iterable[int], keep: Iterable[int] = (), within: float = 2.0) -> tuple[Identity, ...]:
    """Kill ``roots`` and all that descends from them; returns who is still there after ``within`` seconds."""
    raise NotImplementedError


def kill_all(find: Callable[[], Iterable[Identity]], within: float = 2.0) -> tuple[Identity, ...]:
    """Kill whatever ``find`` finds until it finds nothing; returns who is still there after ``within`` seconds."""
    raise NotImplementedError


def sweep(mark: str, identities: Iterable[Identity] = (), within: float = 2.0, uid: int | None = None) -> tuple[Identity, ...]:
    """Kill what a dead run left: processes with its mark, the recorded ones, and their trees. Returns survivors."""
    raise NotImplementedError


def reap() -> list[Reaped]:
    """Collect every child that has ended, without waiting."""
    raise NotImplementedError


def has_prctl() -> bool:
    """Linux, and not switched off by ALLABOARD_NO_PRCTL=1."""
    raise NotImplementedError


def set_subreaper() -> bool:
    """Orphans among our descendants become our children instead of init's. False where the system cannot."""
    raise NotImplementedError


def set_pdeathsig(sig: int) -> bool:
    """The kernel sends us ``sig`` when our parent dies. False where the system cannot."""
    raise NotImplementedError


def spawn_supervisor(argv: Sequence[str], env: Mapping[str, str], log_path: str) -> int:
    """Start ``argv`` as a daemon that outlives us; returns its pid once it called `detach`. SiteError otherwise."""
    raise NotImplementedError


def detach() -> None:
    """First thing in a daemon's main: leave the caller's tree, session and file descriptors, and report our pid."""
    raise NotImplementedError
