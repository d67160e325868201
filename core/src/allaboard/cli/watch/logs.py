"""``allaboard logs``: what the members wrote, every try of every member, merged by time."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import replace
from functools import cache, lru_cache
from json.encoder import encode_basestring

import click

from allaboard.backends.base import Backend, Cursor, LogLine, Selection
from allaboard.cli.folding import Folds
from allaboard.cli.place import Place, json_option, place_options
from allaboard.errors import BadInput, ExitCode
from allaboard.report.terminal import json_line, say, supports_colour
from allaboard.runs.observation import Observation
from allaboard.text.printable import last_state, visible, visible_json
from allaboard.text.units import rfc3339, seconds

EPILOG = """\b
Examples:
  allaboard logs digits                        every member of the newest run, merged by time
  allaboard logs digits worker-0 -f            one member, as it grows
  allaboard logs digits worker-0 --restart 1   its second try
  allaboard logs digits --rank 0 --tail 50
"""
_PALETTE = ("cyan", "green", "magenta", "yellow", "blue", "bright_red")
_BATCH = 64 << 10
"""Characters that are written at once."""


@click.command(epilog=EPILOG)
@click.argument("run", metavar="RUN")
@click.argument("member", metavar="[MEMBER]", required=False)
@click.option("--rank", type=click.IntRange(min=0), metavar="N", help="The member of this node rank.")
@click.option("-f", "--follow", is_flag=True, help="Go on until the run ends.")
@click.option(
    "--attempt",
    type=click.IntRange(min=1),
    metavar="A",
    help="This attempt of the run; default: the newest.",
)
@click.option(
    "--restart", type=click.IntRange(min=0), metavar="R", help="This try of each member; 0 is the first."
)
@click.option("--tail", type=click.IntRange(min=0), metavar="N", help="The last N lines.")
@click.option("--since", metavar="10m", help="Only lines of the last 90s, 10m, 2h, 1d.")
@click.option("--raw", is_flag=True, help="As they were written, with escapes for a terminal in them.")
@click.option("--init", is_flag=True, help="All lines of init containers; default: folded to one line.")
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
    init: bool,
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
        since=None if since is None else time.time() - _parse_since(since),
    )
    backend, seen = at.open_to_watch(run)
    if seen.deleted:
        raise BadInput(f"run {seen.run} was deleted, and its logs with it")
    if seen.elsewhere:
        raise BadInput(f"no log of run {seen.run} is here: {seen.notes[0]}")
    printer = _Printer(
        seen,
        single=member is not None or rank is not None or len(seen.members) == 1,
        as_json=as_json,
        raw=raw,
    )
    folds = None if init or as_json else Folds({m.name: m for m in seen.members}, eager=follow)
    try:
        _print(printer, folds, _choose_attempts(backend, seen, selection, follow))
    except KeyboardInterrupt:
        return ExitCode.INTERRUPTED
    return 0


def _print(printer: _Printer, folds: Folds | None, tries: Iterator[Attempt]) -> None:
    folded = False
    try:
        for printer.attempt, items in tries:
            for line in items:
                if not isinstance(line, LogLine):  # no further line at the moment
                    printer.flush()
                elif folds is not None and (folded or line.container):
                    folded = True
                    for shown in folds.add(line):
                        printer.line(shown)
                else:
                    printer.line(line)
    finally:
        if folds is not None:
            for shown in folds.close_all():
                printer.line(shown)
        printer.close()


def _parse_since(text: str) -> float:
    try:
        return seconds(text)
    except ValueError as error:
        raise BadInput(f"--since: {error}") from None


Attempt = tuple[int, Iterator[LogLine | Cursor]]


def _choose_attempts(
    backend: Backend, seen: Observation, selection: Selection, follow: bool
) -> Iterator[Attempt]:
    """The lines of an attempt. With ``follow`` also those of later attempts, until the run ends."""
    while True:
        attempt = selection.attempt or seen.attempt
        yield attempt, backend.logs(seen.run, replace(selection, attempt=attempt), follow=follow)
        if not follow or selection.attempt is not None:
            return
        now = backend.observe(seen.run)
        if (now.attempt, now.generation) == (attempt, seen.generation):
            return
        seen = now


Source = tuple[str, int, str]


class _Printer:
    """Prints lines, prefixed by their member if there are several, and a note on stderr where another try
    begins. Lines are written in batches, at the latest by `flush`.
    """

    def __init__(self, seen: Observation, *, single: bool, as_json: bool, raw: bool = False) -> None:
        self.single, self.as_json, self.raw = single, as_json, raw
        self.width = max((len(m.name) for m in seen.members), default=0)
        self.coloured = supports_colour()
        self.attempt = 1
        self.told: tuple[int, int] | None = None
        self.unended: Source | None = None
        self.source: Source | None = None
        self.prefix = ""
        self.batch: list[str] = []
        self.size = 0

    def line(self, line: LogLine) -> None:
        if self.as_json:
            self._write(_json_line(self.attempt, line))
            return
        member, _, restart, _, text, container, gap, more = line
        source = (member, restart, container)
        goes_on = self.unended == source and gap is None  # the next piece of a long line
        if self.unended is not None and not goes_on:
            self._write("\n")
        self.unended = source if more else None
        if gap is not None:
            self._write_note(f"--- {_line_name(line)}: {text} ---")
            return
        if self.single and not container and self.told != (self.attempt, restart):
            self._print_try_heading(line)
        if source != self.source:
            self.source, self.prefix = source, self._prefix(line)
        # A member's own output is shown unredacted. Its control characters are made visible.
        text = text if self.raw else visible(last_state(text), tabs=True)
        end = "" if more else "\n"
        self._write(f"{text}{end}" if goes_on else f"{self.prefix}{text}{end}")

    def flush(self) -> None:
        """Write everything that was printed so far."""
        if self.batch:
            text, self.batch, self.size = "".join(self.batch), [], 0
            click.echo(text.encode("utf-8", "surrogateescape") if self.raw else text, nl=False)

    def close(self) -> None:
        """Write the rest, after the end of the input."""
        if self.unended is not None:
            self._write("\n")
        self.flush()

    def _write(self, text: str) -> None:
        self.batch.append(text)
        self.size += len(text)
        if self.size > _BATCH:
            self.flush()

    def _write_note(self, text: str) -> None:
        self.flush()
        say(text, to_stderr=True)

    def _print_try_heading(self, line: LogLine) -> None:
        if self.told is not None or line.restart or self.attempt > 1:
            where = f"attempt {self.attempt}, " if self.attempt > 1 else ""
            self._write_note(f"--- {line.member}, {where}restart {line.restart} ---")
        self.told = (self.attempt, line.restart)

    def _prefix(self, line: LogLine) -> str:
        if self.single and not line.container:
            return ""
        name = f"[{_line_name(line)}{f' restart {line.restart}' if line.restart else ''}]"
        padded = f"{visible(name):<{self.width + 2}}"
        if self.coloured:
            padded = click.style(padded, fg=_PALETTE[line.rank % len(_PALETTE)])
        return f"{padded} "


def _line_name(line: LogLine) -> str:
    return f"{line.member} {line.container}" if line.container else line.member


def _json_line(attempt: int, line: LogLine) -> str:
    """One object of JSON Lines, with its newline. ``more``: the line continues in the next object."""
    gap = "null"
    if line.gap is not None:
        gap = json_line({"from": rfc3339(line.gap.since), "to": rfc3339(line.gap.until)})
    head = _json_head(attempt, line.member, line.rank, line.restart, line.container)
    more = ',"more":true' if line.more else ""
    text = visible_json(encode_basestring(line.text))
    return f'{head}"time":{_json_time(line.time)},"text":{text},"gap":{gap}{more}}}\n'


@cache
def _json_head(attempt: int, member: str, rank: int, restart: int, container: str) -> str:
    who = {"attempt": attempt, "member": member, "rank": rank, "restart": restart}
    return json_line({**who, "container": container or None})[:-1] + ","


@lru_cache(maxsize=1024)
def _json_time(epoch: float | None) -> str:
    return json_line(rfc3339(epoch))
