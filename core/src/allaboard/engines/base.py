"""The values that all engines share: the operator and what it adds to members; the addresses, the replica
counts and the verdict on the job; the state read from a job object and its pods.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Literal, NamedTuple

if TYPE_CHECKING:
    from allaboard.runs.layout import Policy
    from allaboard.runs.observation import Condition, MemberSeen


V1, TRAINER, JOBSET = range(3)
"""The order in which ``engine: auto`` takes what a cluster has. 2026-11: the kinds of kubeflow.org/v1 first,
because they say a whole job themselves and their fields rest, while TrainJob (v1alpha1) has renamed some in
each of its releases; JobSet last, which knows no framework. ALLABOARD_ENGINE names another for a place.
"""


@dataclass(frozen=True, slots=True)
class Operator:
    """The controller of an engine's jobs; several engines may share one. ``home``: the namespace where its
    guide puts it; ``install``: the commands of that guide, where no row of
    `allaboard.backends.kubernetes.discovery.guides` tells how; ``exact``: a kind of the same name in another
    version is another operator's; ``gang_flag``: how it is told to make gangs by itself; ``guide``: the name
    of its row of guides, if that is another than ``id``.
    """

    id: str
    title: str
    home: str
    install: tuple[str, ...] = ()
    exact: bool = False
    gang_flag: str = "--gang-scheduler-name"
    guide: str = ""


@dataclass(frozen=True, slots=True)
class AddedContainer:
    """An init container that an operator adds to members. ``waits_for``: what is not there yet while it
    fails, in words; ``remedy``: what helps where the Pod Security level of a namespace refuses it.
    """

    name: str
    requests: Mapping[str, str]
    waits_for: str
    remedy: str


class Address(NamedTuple):
    host: str
    port: int

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"


Place = Mapping[str, Address]
"""Addresses at which members listen, by their names: the operator's Services, or the loopback of one
machine. It holds the members that `Engine.listeners` names.
"""


@dataclass(frozen=True, slots=True)
class Counts:
    """Members of one role: ``active`` run, ``succeeded`` and ``failed`` ended. ``first_succeeded``: whether
    its member 0 is among those that succeeded, which no operator's replica counts tell.
    """

    replicas: int
    active: int = 0
    succeeded: int = 0
    failed: int = 0
    first_succeeded: bool = False


@dataclass(frozen=True, slots=True)
class Verdict:
    """Verdict of the members' states on the job, before limits and policies."""

    running: bool = False
    succeeded: bool = False


Scope = Literal["member", "gang"]
"""Members that start again when one fails: that member alone, or the whole gang."""


@dataclass(frozen=True, slots=True)
class Rules:
    """Rules of an operator for the members of a job when one fails, and at the end. ``policy``: that of the
    job, as far as the operator keeps it; ``scope``: the members that a failure starts again. A restart of the
    gang ends all members, starts all anew, also those that had succeeded, and counts as one. ``keeps_done``:
    whether a member that has succeeded is left as it is by a suspension; else all start again.
    """

    policy: Policy
    scope: Scope = "member"
    keeps_done: bool = False


@dataclass(frozen=True, slots=True)
class JobSeen:
    """A job object and its pods, read. ``members`` in rank order, those without a pod included; ``counts``:
    the operator's own replica counts by role; ``total``: members that its spec asks for; ``suspended``: what
    its spec says, whether it has come about or not; ``scope``: what a restart is of.
    """

    conditions: tuple[Condition, ...] = ()
    members: tuple[MemberSeen, ...] = ()
    counts: Mapping[str, Counts] = field(default_factory=dict)
    total: int = 0
    started: float | None = None
    finished: float | None = None
    suspended: bool = False
    scope: Scope = "member"


def restarts_in_all(each: Sequence[int], scope: Scope) -> int:
    """Restarts of a run, by those of each member: a restart of the gang is one of all of them."""
    return max(each, default=0) if scope == "gang" else sum(each)
