"""``allaboard logs``: what the members wrote, every try of every member, merged by time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace

import click

from allaboard.backends.base import Backend, LogLine, Selection
from allaboard.cli.failing import INTERRUPTED
from allaboard.cli.place import Place, json_option, place_options
from allaboard.cli.saying import coloured, colours, say, show_line, style
from allaboard.errors import BadInput
from allaboard.observation import Observation
from allaboard.printable import last_state, visible
from allaboard.units import rfc3339, seconds

EPILOG = """\b
Examples:
  allaboard logs digits                        every member of the newest run, merged by time
  allaboard logs digits worker-0 -f            one member, as it grows
  allaboard logs digits worker-0 --restart 1   its second try
  allaboard logs digits --rank 0 --tail 50
"""
_PALETTE = ("cyan", "green", "magenta", "yellow", "blue", "bright_red")


@click.command(epilog=EPILOG)
@click.argument("run", metavar="RUN")
@click.argument("member", metavar="[MEMBER]", required=False)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="The member of this node rank.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends.")
@click.option(
    "--attempt",
    type=click.IntRange(min=1),
    metavar="A",
    help="This attempt of the run; the newest if not said.",
)
@click.option(
    "--restart", type=click.IntRange(min=0), metavar="R", help="This try of each member; 0 is the first."
)
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="The last N lines.")
@click.option("--since", metavar="10m", help="What was written in the last 90s, 10m, 2h, 1d.")
@click.option("--raw", is_flag=True, help="As they were written, with escapes for a terminal in them.")
@place_options
@json_option
def logs(
    run: str,
    member: str | None,
    rank: int | None,
    follow: bool,
    attempt: int | None,
    restart: int | None,
    tail: int | None,
    since: str | None,
    raw: bool,
    at: Place,
    as_json: bool,
) -> int:
    """Print what the members of a run wrote."""
    if member is not None and rank is not None:
        raise BadInput(f"give either the member {member!r} or --rank {rank}, not both")
    selection = Selection(
        members=None if member is None else (member,),
        ranks=None if rank is None else (rank,),
        attempt=attempt,
        restart=restart,
        tail=tail,
        since=None if since is None else time.time() - _ago(since),
    )
    backend = at.open()
    seen = backend.observe(run)
    if seen.deleted:
        raise BadInput(f"run {seen.run} was deleted, and its logs with it")
    printer = _Printer(
        seen,
        single=member is not None or rank is not None or len(seen.members) == 1,
        as_json=as_json,
        raw=raw,
    )
    try:
        for line in _lines(backend, seen, selection, follow):
            printer.line(line)
    except KeyboardInterrupt:
        return INTERRUPTED
    return 0


def _ago(text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise BadInput(f"--since: {error}") from None


def _lines(
    backend: Backend, seen: Observation, selection: Selection, follow: bool
) -> Iterator[tuple[int, LogLine]]:
    """Lines with their attempt; followed over all further attempts, until the run has ended."""
    while True:
        attempt = selection.attempt or seen.attempt
        for item in backend.logs(seen.run, replace(selection, attempt=attempt), follow=follow):
            if isinstance(item, LogLine):
                yield attempt, item
        if not follow or selection.attempt is not None:
            return
        now = backend.observe(seen.run)
        if (now.attempt, now.generation) == (attempt, seen.generation):
            return
        seen = now


class _Printer:
    """Lines with their member in front when there are several, and a word (on stderr) where another try
    begins."""

    def __init__(self, seen: Observation, *, single: bool, as_json: bool, raw: bool = False) -> None:
        self.single, self.as_json, self.raw = single, as_json, raw
        self.width = max((len(m.name) for m in seen.members), default=0)
        self.told: tuple[int, int] | None = None

    def line(self, found: tuple[int, LogLine]) -> None:
        attempt, line = found
        if self.as_json:
            gap = line.gap and {"from": rfc3339(line.gap.since), "to": rfc3339(line.gap.until)}
            who = {"attempt": attempt, "member": line.member, "rank": line.rank, "restart": line.restart}
            what = {"time": rfc3339(line.time), "text": line.text, "gap": gap}
            show_line({**who, "container": line.container or None, **what})
        elif line.gap is not None:
            say(f"--- {self._name(line)}: {line.text} ---", to_stderr=True)
        elif self.single:
            if self.told not in (None, (attempt, line.restart)) or (
                self.told is None and (line.restart or attempt > 1)
            ):
                where = f"attempt {attempt}, " if attempt > 1 else ""
                say(f"--- {line.member}, {where}restart {line.restart} ---", to_stderr=True)
            self.told = (attempt, line.restart)
            self._print(line.text)
        else:
            self._print(line.text, f"{self._prefix(line)} ")

    def _print(self, text: str, prefix: str = "") -> None:
        # What a member prints is its own business, secrets included; what it does to a terminal is not.
        prefix = coloured(visible(prefix), colours())
        if self.raw:
            click.echo(prefix.encode() + text.encode("utf-8", "surrogateescape"))
        else:
            click.echo(prefix + visible(last_state(text), tabs=True), color=colours())

    def _prefix(self, line: LogLine) -> str:
        name = f"[{self._name(line)}{f' restart {line.restart}' if line.restart else ''}]"
        padded = f"{name:<{self.width + 2}}"
        return style(padded, _PALETTE[line.rank % len(_PALETTE)])

    def _name(self, line: LogLine) -> str:
        return f"{line.member} {line.container}" if line.container else line.member
