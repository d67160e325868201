"""Engines: the controllers that run a job, one file each. Values in, values out; no client is ever imported
here.

An engine is a module of this package with the names of `Engine`; it is found by being there, so adding one
touches no other file.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from importlib import import_module
from typing import TYPE_CHECKING, Protocol, cast

from allaboard.engines.base import Counts, Place, Verdict

if TYPE_CHECKING:  # `allaboard check` asks the engines too, and needs no layout for it
    from allaboard.job import TrainingJob
    from allaboard.layout import Layout, Member


class Engine(Protocol):
    """What every engine module has. ROLES: role -> how many at most (None: any), in rank order."""

    NAME: str
    KIND: str
    FRAMEWORK: str
    ROLES: Mapping[str, int | None]
    DEFAULT_RESTART: str

    def environment(self, layout: Layout, member: Member, place: Place) -> dict[str, str]:
        """What the engine's operator injects into a member."""

    def judge(self, layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
        """Who decides whether the job runs or has succeeded."""

    def message(self, condition: str, job: str, *, master: bool, role: str = "", count: int = 0) -> str:
        """The operator's own words for a condition."""


def _engines() -> Iterator[Engine]:
    for found in pkgutil.iter_modules(__path__):
        module = import_module(f"{__name__}.{found.name}")
        if hasattr(module, "NAME"):
            yield cast(Engine, module)


ENGINES: Mapping[str, Engine] = {engine.NAME: engine for engine in _engines()}
BY_FRAMEWORK: Mapping[str, Engine] = {engine.FRAMEWORK: engine for engine in ENGINES.values()}


def engine_of(job: TrainingJob) -> Engine:
    """The engine of a checked job; ``auto`` is the framework's own."""
    name = job.get("engine", "auto")
    return BY_FRAMEWORK[job.get("framework", "pytorch")] if name == "auto" else ENGINES[name]
