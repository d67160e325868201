"""Gang schedulers, which start all members together or none; one file each. Values in, values out; no client
is imported here.

A gang scheduler is a module of this package with the names of `Gang`; it is discovered by its file, so adding
one touches no other file. Which engine goes with which is `allaboard.render.compatibility`.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import Any, Protocol, cast

from allaboard.gangs.base import GangPlan, GangView


class Gang(Protocol):
    """Interface of every module of a gang scheduler."""

    NAME: str
    TITLE: str
    """Title in sentences."""

    KINDS: tuple[str, ...]
    """``group/version/Kind`` of the object that makes a gang of pods, the preferred one first; empty: there
    is none.
    """

    COMPOSITE: tuple[str, ...]
    """``group/version/Kind`` of the object under which it makes one gang of several, and of what that needs
    beside it: of an elastic job of several roles, where the cluster is known to serve them; empty: none.
    """
    NAMED_BY: str | None
    """An annotation of its members that names this object, where the gang scheduler itself makes it; None:
    allaboard makes it, or the job's operator, and its name is known beforehand.
    """

    SCHEDULER: str | None
    """The ``schedulerName`` that its members carry, unless another is found at work; None: the default
    scheduler.
    """

    AUTO: int | None
    """Its rank in the automatic choice: the lowest that the cluster has is taken; None: never
    automatically.
    """

    POD_FIELD: str | None
    """A field of a pod's spec that its marks write and older definitions of job objects lack."""

    UNDERSTANDS: frozenset[str]
    """Fields of a job's `gang` (timeout, queue, topology) that it understands; the topology in words that
    are no node labels: of these the pods' affinity takes care (`allaboard.gangs.topology`).
    """

    REFUSES: Mapping[str, str]
    """Engines that it cannot serve -> why. The engine's own refusals are in its file."""

    REFUSES_DOMAIN: str | None
    """Reason for which no domain may be required of it; None: one may."""

    def marks(self, plan: GangPlan, role: str) -> Mapping[str, Any]:
        """Labels, annotations and spec of every pod of a role: a pod template to merge."""

    def objects(self, plan: GangPlan) -> tuple[Mapping[str, Any], ...]:
        """The extra objects, in the order of their creation, without labels and annotations."""

    def read(self, view: GangView) -> str | None:
        """Return why the gang is not placed yet, in one sentence; None: nothing holds it, or nothing is
        known.
        """


def _gangs() -> Iterator[Gang]:
    for info in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{info.name}")
        if hasattr(module, "NAME"):
            yield cast(Gang, module)


GANGS: Mapping[str, Gang] = {gang.NAME: gang for gang in _gangs()}


def is_gang_scheduler(gang: Gang) -> bool:
    """True if it starts members together: by an object, or by marks of pods that its own scheduler reads."""
    return bool(gang.KINDS) or gang.SCHEDULER is not None
