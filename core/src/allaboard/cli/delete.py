"""``allaboard delete``: the job goes, logs included; its record and its checkpoints stay."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

import click

from allaboard.cli.place import Place, json_option, place_options
from allaboard.cli.saying import say, show
from allaboard.errors import SiteError
from allaboard.status import state_of

if TYPE_CHECKING:
    from allaboard.backends.local.backend import LocalBackend

EPILOG = """\b
Example:
  allaboard delete digits-1f0c9a77

A run that lives is stopped first. The record stays for 30 days, so that its key is still known; checkpoints
are never touched (`allaboard checkpoints prune` does that). The record of a run whose files are damaged goes
as well.
"""


@click.command(epilog=EPILOG)
@click.argument("run", metavar="RUN")
@place_options
@json_option
def delete(run: str, at: Place, as_json: bool) -> None:
    """Remove a run and its logs, stopping it first if it lives."""
    try:
        backend, seen = at.own(run, "deleted")
    except SiteError as error:
        if error.code != "run_damaged":
            raise
        return _delete_damaged(at, run, as_json)
    lived = not state_of(seen).is_final
    if lived and not as_json:
        say(f"{seen.run} is {state_of(seen)}: stopping it first")
    backend.delete(seen.run)
    if as_json:
        show({"run": seen.run, "deleted": True})
    else:
        how = "stopped and deleted" if lived else "deleted"
        say(f"{seen.run} is {how}; its record and checkpoints stay")


def _delete_damaged(at: Place, run: str, as_json: bool) -> None:
    """What nobody can look at goes with its record."""
    backend = at.open()
    name = cast("LocalBackend", backend).find(run).name
    backend.delete(name)
    if as_json:
        show({"run": name, "deleted": True})
    else:
        say(f"{name} was damaged: nothing of it is left here; its checkpoints stay")
