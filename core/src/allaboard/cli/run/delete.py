"""``allaboard delete``: remove a job, its logs and the claims that are kept for the run alone; its record
stays, and so do checkpoints elsewhere.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from allaboard.cli.place import Place, adopt_option, json_option, place_options
from allaboard.errors import SiteError
from allaboard.report.terminal import say, show_json
from allaboard.runs.status import state_of

if TYPE_CHECKING:
    from allaboard.backends.local.backend import LocalBackend

EPILOG = """\b
Examples:
  allaboard delete digits-1f0c9a77
  allaboard delete nightly --adopt -n research     a job that somebody else started

A run that lives is stopped first. The record stays for 30 days, so that its key is still known; checkpoints
are not touched (`allaboard checkpoints prune` does that), but claims that are kept for the run go, with what
is in them. The record of a run whose files are damaged goes
as well.
"""


@click.command(epilog=EPILOG)
@click.argument("run", metavar="RUN")
@adopt_option
@place_options
@json_option
def delete(run: str, adopt: bool, at: Place, as_json: bool) -> None:
    """Remove a run and its logs, stopping it first if it lives."""
    try:
        backend, seen = at.open_to_change(run, "delete", adopt)
    except SiteError as error:
        if error.code != "run_damaged":
            raise
        return _delete_damaged(at, run, as_json)
    lived = not state_of(seen).is_final
    if lived and not as_json:
        say(f"{seen.run} is {state_of(seen)}: stopping it first")
    backend.delete(seen.run)
    if as_json:
        show_json({"run": seen.run, "deleted": True})
    else:
        how = "stopped and deleted" if lived else "deleted"
        stays = "its record stays, and so do checkpoints outside of claims of its own"
        say(f"{seen.run} is {how}; {stays if seen.key else 'its pods and their logs went with it'}")


def _delete_damaged(at: Place, run: str, as_json: bool) -> None:
    """Delete a run whose files are damaged, its record included."""
    backend = at.open()
    name = cast("LocalBackend", backend).find(run).name
    backend.delete(name)
    if as_json:
        show_json({"run": name, "deleted": True})
    else:
        say(f"{name} was damaged: nothing of it is left here; its checkpoints stay")
