"""Schedules the housekeeping of a home, at most once an hour (`LocalBackend.housekeep`): overdue ttls,
expired records, members that outlived their keepers, unfinished removals. Also keeps which problems were
reported.

A starting supervisor runs it as a separate process of the lowest priority: no command waits for it, and
read-only verbs never start it. The next launch reports once what could not be removed.
"""

from __future__ import annotations

import time
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path

from allaboard.backends.local.host.isolated import isolated_command
from allaboard.backends.local.host.processes import spawn_supervisor
from allaboard.backends.local.state.paths import (
    HOUSEKEEPING,
    locked,
    open_private,
    read_json,
    write_json,
)
from allaboard.errors import SiteError

EVERY = 3600.0
"""Seconds between two housekeepings of one home."""
_TROUBLES = "housekeeping.json"
_LOG = "housekeeping.log"


def is_due(base: Path, now: float) -> bool:
    """Return whether housekeeping of ``base`` (a home's folder of this machine) is due."""
    try:
        at = (base / HOUSEKEEPING).stat().st_mtime
    except OSError:
        return True
    return not 0 <= now - at < EVERY  # the clock may have been set back


def start(base: Path, environ: Mapping[str, str]) -> None:
    """Start housekeeping, if due. A failure to start it never stops a run; the next run tries again."""
    if not is_due(base, time.time()):
        return
    with suppress(OSError, SiteError):
        open_private(base / _LOG, "w").close()
        here = {**environ, "ALLABOARD_HOME": str(base.parent.parent)}
        spawn_supervisor(isolated_command("allaboard.backends.local", str(base)), here, str(base / _LOG))


def take_unreported(base: Path) -> tuple[str, ...]:
    """Sentences about what could not be removed, each returned once. Raises nothing."""
    path = base / _TROUBLES
    with suppress(OSError, SiteError):
        if not _unreported(_read_troubles(path)):
            return ()
        with locked(base / HOUSEKEEPING, wait=False):
            troubles = _read_troubles(path)
            write_json(path, {"version": 1, "troubles": dict.fromkeys(troubles, True)})
            return tuple(f"housekeeping: {trouble}" for trouble in _unreported(troubles))
    return ()


def _unreported(troubles: Mapping[str, bool]) -> list[str]:
    return [trouble for trouble, reported in troubles.items() if not reported]


def _read_troubles(path: Path) -> dict[str, bool]:
    """Each trouble in words, and whether it was reported."""
    body = read_json(path)
    troubles = body.get("troubles") if isinstance(body, dict) else None
    return (
        {str(trouble): reported is True for trouble, reported in troubles.items()}
        if isinstance(troubles, dict)
        else {}
    )


def write_troubles(base: Path, troubles: Iterable[str]) -> None:
    """Store the troubles. A trouble that disappears and comes back is reported again."""
    path = base / _TROUBLES
    try:
        before = _read_troubles(path)
    except SiteError:
        before = {}
    now = {trouble: before.get(trouble, False) for trouble in troubles}
    if now != before:
        write_json(path, {"version": 1, "troubles": now})
