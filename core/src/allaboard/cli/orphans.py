"""``allaboard list --orphans``, ``allaboard stop --orphans``, and with ``--watch`` the reaper: runs and
objects on a cluster whose clients died.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from contextlib import suppress
from typing import TYPE_CHECKING

from allaboard.cli.place import Place
from allaboard.errors import AllaboardError, BadInput
from allaboard.report import localtime
from allaboard.report.phrases import table
from allaboard.report.terminal import say, show_json, show_json_line
from allaboard.text.units import show_seconds

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.backend import KubernetesBackend
    from allaboard.backends.kubernetes.lifecycle.orphans import Orphan, Tidied

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
            _due_in(o),
            o.reason,
        )
        for o in orphans
    )
    for line in table(("kind", "name", "since", "may go", "why"), rows):
        say(line)
    if any(o.left is not None and o.left <= 0 for o in orphans):
        say(f"tidy up with: {at.command('stop', '--orphans')}")


def _due_in(orphan: Orphan) -> str:
    if orphan.left is None:
        return "at its end"
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
        say(_line(tidied))
    return 0


def watch_orphans(at: Place, as_json: bool, pause: Callable[[float], object] = time.sleep) -> int:
    """Look for runs whose clients do not come back, and end those whose time is up, until Ctrl-C or SIGTERM.
    No trouble of the cluster ends it. Raises BadInput for this machine.
    """
    from allaboard.backends.kubernetes.lifecycle.reaper import EVERY, Look
    from allaboard.cli.watch.follow import sigterm_as_ctrl_c

    backend = _cluster_backend(at)
    if backend is None:
        raise BadInput(f"--watch looks after a cluster, and {_NONE_ON_THIS_MACHINE}")
    notes: tuple[str, ...] = ()
    with suppress(KeyboardInterrupt), sigterm_as_ctrl_c():
        say(f"looking for runs without a client {backend.where}", to_stderr=True)
        while True:
            try:
                look = backend.reap()
            except AllaboardError as error:
                look = Look(notes=(f"trying again soon: {error}",))
            for note in look.notes:
                if note not in notes:
                    say(note, to_stderr=True)
            notes = look.notes
            for tidied in look.tidied:
                if as_json:
                    show_json_line(tidied.to_dict())
                else:
                    say(_line(tidied))
            pause(EVERY)
    return 0


def _line(tidied: Tidied) -> str:
    return f"{tidied.orphan.kind} {tidied.orphan.name}: {tidied.action} ({tidied.orphan.reason})"


def _cluster_backend(at: Place) -> KubernetesBackend | None:
    from allaboard.backends.kubernetes.backend import KubernetesBackend

    backend = at.open()
    return backend if isinstance(backend, KubernetesBackend) else None
