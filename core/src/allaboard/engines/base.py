"""What every engine speaks of: where members meet, how many of them are where, and what that means for the
job.
"""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Place:
    """Where members find each other: the operator's Services, or the loopback of one machine."""

    master: str
    port: int
    rendezvous: str
    rendezvous_port: int


@dataclass(frozen=True, slots=True)
class Counts:
    """Members of one role: ``active`` run, ``succeeded`` and ``failed`` ended."""

    replicas: int
    active: int = 0
    succeeded: int = 0
    failed: int = 0


@dataclass(frozen=True, slots=True)
class Verdict:
    """What the members' states mean for the job, before limits and policies."""

    running: bool = False
    succeeded: bool = False
