"""The triggerers that live beside a home of local runs, and whether a run there can be left to them.

A local run is followed on its own machine alone. So each triggerer holds the lock of a file below the home,
for as long as its process lives, and says in it which triggers it takes. A worker defers a local run only to
such a triggerer, and only where no triggerer of another host may take the trigger in its place.
"""

from __future__ import annotations

import os
import secrets
import time
from collections.abc import Collection, Iterable
from contextlib import ExitStack, suppress
from dataclasses import dataclass, replace
from pathlib import Path

from allaboard.backends.local.host.machine import pid_namespace
from allaboard.backends.local.state.paths import (
    is_held,
    locked,
    prepare,
    read_json,
    runs_folder,
    write_json,
)
from allaboard.errors import AllaboardError

VERSION = 1
STALE = 60.0
"""Seconds without a word after which a triggerer is taken for frozen."""
_MOST = 100
"""Triggerers of one home that are looked at."""


@dataclass(frozen=True, slots=True)
class Triggerer:
    """Facts that a triggerer publishes about itself. ``queues``: whose triggers it takes; None: those
    without a queue. ``pid_namespace``: only runs of this namespace are visible to it. ``others``: hosts
    with triggerers of the same Airflow, without its own; None: not known yet. ``silent``: seconds since it
    spoke.
    """

    queues: tuple[str, ...] | None = None
    pid_namespace: str = ""
    others: tuple[str, ...] | None = None
    silent: float = 0.0


class Presence:
    """This triggerer's word below a home; it counts until the process ends. Raises AllaboardError or
    OSError.
    """

    def __init__(self, home: str, queues: Collection[str] | None) -> None:
        prepare(home)
        self._facts = Triggerer(None if queues is None else tuple(sorted(queues)), pid_namespace())
        self._folder = _folder(home)
        self._name = secrets.token_hex(8)
        self._lock = ExitStack()
        self._lock.enter_context(locked(self._folder / f"{self._name}.lock"))
        self._write()

    def say(self, others: Iterable[str]) -> None:
        """Say that the triggerer lives, and which hosts have others."""
        self._facts = replace(self._facts, others=tuple(sorted(set(others))))
        self._write()

    def close(self) -> None:
        for kind in ("json", "lock"):
            with suppress(OSError):
                (self._folder / f"{self._name}.{kind}").unlink()
        self._lock.close()

    def _write(self) -> None:
        facts = self._facts
        body = {"queues": facts.queues, "pid_namespace": facts.pid_namespace, "others": facts.others}
        write_json(self._folder / f"{self._name}.json", {"version": VERSION, **body})


def _folder(home: str) -> Path:
    return runs_folder(home).parent / "triggerers"


def present(home: str, now: float | None = None) -> list[Triggerer]:
    """The triggerers that live beside this home. What dead ones left is removed."""
    now = time.time() if now is None else now
    triggerers = []
    with suppress(AllaboardError, OSError):
        for file in sorted(_folder(home).glob("*.json"))[:_MOST]:
            lock = file.with_suffix(".lock")
            if not is_held(lock):
                if now - file.stat().st_mtime > STALE:
                    file.unlink(missing_ok=True)
                    lock.unlink(missing_ok=True)
                continue
            with suppress(AllaboardError, OSError, TypeError, ValueError, AttributeError):
                triggerers.append(_read(read_json(file), now - file.stat().st_mtime))
    return triggerers


def _read(body: dict[str, object], silent: float) -> Triggerer:
    def names(name: str) -> tuple[str, ...] | None:
        value = body.get(name)
        return tuple(map(str, value)) if isinstance(value, list) else None

    return Triggerer(names("queues"), str(body.get("pid_namespace", "")), names("others"), silent)


def why_not_left(
    triggerers: Iterable[Triggerer], queue: str | None, namespace: str, host: str = os.uname().nodename
) -> str | None:
    """Reason for which a local run cannot be left to the triggerers of its home; None: it can. ``queue``:
    that of its trigger; None where triggers have no queues. ``namespace``: of pids, the worker's.
    """
    here = [
        triggerer
        for triggerer in triggerers
        if triggerer.pid_namespace == namespace and triggerer.silent <= STALE
    ]
    if not here:
        return f"no triggerer of this home runs on {host}"
    if queue is not None:
        if any(triggerer.queues is not None and queue in triggerer.queues for triggerer in here):
            return None
        return f"no triggerer on {host} serves the queue {queue!r} (airflow triggerer --queues {queue})"
    free = [triggerer for triggerer in here if triggerer.queues is None]
    if not free:
        return f"the triggerers on {host} take only triggers of their queues, and this trigger has no queue"
    others = min(
        (triggerer.others for triggerer in free if triggerer.others is not None), key=len, default=None
    )
    if others is None:
        return f"the triggerer on {host} has just started"
    if others:
        return (
            f"the triggerer on {others[0]} could take the trigger, and cannot see a run of {host}; give "
            "each host a queue and a triggerer of its own ([triggerer] queues_enabled)"
        )
    return None
