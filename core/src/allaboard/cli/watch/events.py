"""``allaboard events``: what happened to a run, over all its attempts, oldest first."""

from __future__ import annotations

import time

import click

from allaboard.cli.place import Place, json_option, place_options
from allaboard.report import localtime
from allaboard.report.phrases import table
from allaboard.report.terminal import say, show_json, style
from allaboard.text.units import rfc3339

EPILOG = """\b
Example:
  allaboard events digits
"""


@click.command(epilog=EPILOG)
@click.argument("run", metavar="RUN")
@place_options
@json_option
def events(run: str, at: Place, as_json: bool) -> None:
    """Show the events of a run, in order."""
    backend, seen = at.open_to_watch(run)
    listed = backend.events(seen.run)
    if as_json:
        body = [
            {
                "time": rfc3339(e.time),
                "type": e.type,
                "reason": e.reason,
                "object": e.object,
                "message": e.message,
            }
            for e in listed
        ]
        show_json({"events": body})
        return
    now = time.time()
    rows = ((localtime.moment(e.time, now), e.type, e.object, e.reason, e.message) for e in listed)
    head, *lines = table(("time", "type", "object", "reason", "message"), rows)
    say(style(head, dim=True))
    for event, line in zip(listed, lines, strict=True):
        say(style(line, "yellow") if event.type == "Warning" else line)
