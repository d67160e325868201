"""Reading the members' logs: every try is a file of its own; times come from the supervisor's notes beside
it.
"""

from __future__ import annotations

import bisect
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path

from allaboard.backends.base import Cursor, LogLine, Selection
from allaboard.backends.choosing import refuse_strangers
from allaboard.backends.local.folders import AttemptFolder
from allaboard.observation import MemberSeen


@dataclass(frozen=True, slots=True)
class Try:
    """One try of one member."""

    member: str
    rank: int
    number: int
    path: Path

    @property
    def id(self) -> str:
        return f"{self.member}.{self.number}"


def tries(attempt: AttemptFolder, members: Sequence[MemberSeen]) -> list[Try]:
    """Every log of an attempt, by rank and try."""
    ranks = {m.name: m.rank for m in members}
    found = []
    for path in attempt.logs.glob("*.log"):
        member, _, number = path.stem.rpartition(".")
        if number.isdecimal():
            found.append(Try(member, ranks.get(member, 0), int(number), path))
    return sorted(found, key=lambda t: (t.rank, t.member, t.number))


def read(
    attempt: AttemptFolder, members: Sequence[MemberSeen], selection: Selection, cursor: Cursor | None
) -> Iterator[LogLine | Cursor]:
    """The lines selected, after the cursor, merged by time; the last item is the new cursor (log id ->
    offset).

    Raises BadInput for a member or rank that the run does not have.
    """
    chosen = _chosen(tries(attempt, members), members, selection)
    positions: dict[str, int] = dict(cursor or {})
    return _merged(chosen, positions, selection, first=cursor is None)


def _chosen(found: list[Try], members: Sequence[MemberSeen], selection: Selection) -> list[Try]:
    refuse_strangers(selection, members)
    return [
        t
        for t in found
        if (selection.members is None or t.member in selection.members)
        and (selection.ranks is None or t.rank in selection.ranks)
        and (selection.restart is None or t.number == selection.restart)
    ]


def _merged(
    chosen: list[Try], positions: dict[str, int], selection: Selection, first: bool
) -> Iterator[LogLine | Cursor]:
    lines = [line for one in chosen for line in _lines(one, positions)]
    if len({line.member for line in lines}) > 1:
        # Stable: lines of one member keep their order, and lines of one moment stay together by rank.
        lines.sort(key=lambda line: line.time or 0.0)
    if selection.since is not None:
        lines = [line for line in lines if line.time is None or line.time >= selection.since]
    if first and selection.tail is not None:
        lines = lines[-selection.tail :] if selection.tail else []
    yield from lines
    yield dict(positions)


def _lines(one: Try, positions: dict[str, int]) -> list[LogLine]:
    """Whole lines after the position, which moves on. A last line without its end is left for later unless
    the try ended.
    """
    start = positions.get(one.id, 0)
    notes = _notes(one.path.with_suffix(".times"))
    offsets = [offset for offset, _ in notes]
    found, offset = [], start
    with one.path.open("rb") as file:
        file.seek(start)
        for raw in file:
            if not raw.endswith(b"\n") and _is_open(one):
                break
            at = bisect.bisect_right(offsets, offset) - 1
            when = notes[at][1] if at >= 0 else None
            text = raw.decode("utf-8", "replace").rstrip("\r\n")
            found.append(LogLine(one.member, one.rank, one.number, when, text))
            offset += len(raw)
    positions[one.id] = offset
    return found


def _is_open(one: Try) -> bool:
    """Whether the try may still write: it is the member's last, and the attempt is live."""
    attempt = AttemptFolder(one.path.parent.parent)
    return attempt.is_live() and not attempt.log(one.member, one.number + 1).exists()


def _notes(path: Path) -> list[tuple[int, float]]:
    found: list[tuple[int, float]] = []
    try:
        lines = path.read_text(errors="replace").splitlines()
    except OSError:
        return found
    for line in lines:
        offset, _, when = line.partition(" ")
        with suppress(ValueError):  # the last may be half written: the disk was full
            found.append((int(offset), float(when)))
    return found
