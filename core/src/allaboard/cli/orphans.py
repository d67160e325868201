"""``allaboard list --orphans`` and ``allaboard stop --orphans``: runs and objects on a cluster whose clients
died.
"""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from allaboard.cli.place import Place
from allaboard.report import localtime
from allaboard.report.phrases import table
from allaboard.report.terminal import say, show_json
from allaboard.text.units import show_seconds

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.backend import KubernetesBackend
    from allaboard.backends.kubernetes.lifecycle.orphans import Orphan

_NONE_ON_THIS_MACHINE = "runs of this machine are watched by their own supervisors; they leave no orphans"


def list_orphans(at: Place, as_json: bool) -> None:
    """List orphans, why each is one, and when it may be cleaned up."""
    backend = _cluster_backend(at)
    orphans = backend.orphans() if backend is not None else []
    if as_json:
        show_json({"orphans": [orphan.to_dict() for orphan in orphans]})
        return
    if backend is None:
        say(_NONE_ON_THIS_MACHINE)
        return
    if not orphans:
        say(f"no orphans {backend.where}")
        return
    now = time.time()
    rows = (
        (
            o.kind,
            o.name,
            localtime.moment(o.since, now),
            "now" if o.left <= 0 else f"in {show_seconds(o.left)}",
            o.reason,
        )
        for o in orphans
    )
    for line in table(("kind", "name", "since", "may go", "why"), rows):
        say(line)
    if any(o.left <= 0 for o in orphans):
        say(f"tidy up with: {at.command('stop', '--orphans')}")


def _due_in(orphan: Orphan) -> str:
    return "now" if orphan.left <= 0 else f"in {show_seconds(orphan.left)}"


def stop_orphans(at: Place, as_json: bool) -> int:
    """Clean up the orphans that are due, and print what was done with each."""
    backend = _cluster_backend(at)
    done = backend.tidy_up() if backend is not None else []
    if as_json:
        show_json({"orphans": [tidied.to_dict() for tidied in done]})
        return 0
    if backend is None:
        say(_NONE_ON_THIS_MACHINE)
    elif not done:
        say(f"no orphans {backend.where}")
    for tidied in done:
        say(f"{tidied.orphan.kind} {tidied.orphan.name}: {tidied.action} ({tidied.orphan.reason})")
    return 0


def _cluster_backend(at: Place) -> KubernetesBackend | None:
    from allaboard.backends.kubernetes.backend import KubernetesBackend

    backend = at.open()
    return backend if isinstance(backend, KubernetesBackend) else None
