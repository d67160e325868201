"""Differences from the last good run of the same job: in its inputs, and in the lines that its members wrote.
Values in, values out; `allaboard.report.last_good` looks both runs up.
"""

from __future__ import annotations

import difflib
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allaboard.diagnosis.case import quote
from allaboard.diagnosis.tracebacks import strip_prefixes
from allaboard.job.identity import differences
from allaboard.runs.observation import MemberSeen
from allaboard.text.redaction import redact_text
from allaboard.text.reportline import PREFIX
from allaboard.text.units import counted

MOST_LINES = 10
"""New lines that are told."""
MOST_CHANGES = 20
SHOWN = 3
"""Changes in one line."""
COMPARED = 4000
"""Lines of a file up to which those that differ are counted."""
_VARIABLE = re.compile(r"0x[0-9a-fA-F]+|[0-9a-f]{8,}|[0-9]+")


@dataclass(frozen=True, slots=True)
class SinceLastGood:
    """``run``: the last run of this job that succeeded, and when (epoch seconds); ``changes``: how what this
    one was started with differs, a line each; ``lines``: (member, line) that the good run did not write, in
    the order in which they were written.
    """

    run: str
    finished: float | None
    changes: tuple[str, ...] = ()
    lines: tuple[tuple[str, str], ...] = ()

    @property
    def headline(self) -> str:
        """The changes in one line; "" where there are none."""
        rest = len(self.changes) - SHOWN
        shown = (*self.changes[:SHOWN], *([f"and {rest} more"] if rest > 0 else []))
        return f"since the last good run, {self.run}: {', '.join(shown)}" if shown else ""

    def to_dict(self) -> dict[str, Any]:
        return {
            "run": self.run,
            "finished": self.finished,
            "changes": [*self.changes],
            "lines": [{"member": member, "text": text} for member, text in self.lines],
        }


@dataclass(frozen=True, slots=True)
class RanWith:
    """The inputs of a run. ``spec``: its job; ``code``: the text of the files that it ships, by path;
    ``inputs``: as of `allaboard.runs.observation.Progress`; ``images``: group -> the digests of its members'
    images. What is empty is not known.
    """

    spec: Mapping[str, Any] = field(default_factory=dict)
    code: Mapping[str, str] = field(default_factory=dict)
    inputs: Mapping[str, str] = field(default_factory=dict)
    images: Mapping[str, frozenset[str]] = field(default_factory=dict)


def images_of(members: Iterable[MemberSeen]) -> dict[str, frozenset[str]]:
    """Group -> the digests of its members' images, as far as nodes have told them."""
    digests: dict[str, frozenset[str]] = {}
    for member in members:
        if member.image is not None:
            digests[member.group] = digests.get(member.group, frozenset()) | {member.image}
    return digests


def changes_since(good: RanWith, now: RanWith) -> tuple[str, ...]:
    """The inputs of a run that differ from those of the good run: ``workers: 2 -> 4``, ``image of worker:
    other content under the same name``, ``torch: 2.14.0 -> 2.15.0``, ``train.py: 2 lines changed``. An input
    that is not known of both runs is left out.
    """
    changes = differences(good.spec, now.spec)
    if not any("image: " in line for line in changes):
        changes += _image_changes(good.images, now.images)
    if good.inputs and now.inputs:
        changes += _input_changes(good.inputs, now.inputs)
    if good.code and now.code:
        paths = sorted({*good.code, *now.code})
        changes += [line for path in paths if (line := _change(path, good.code, now.code))]
    rest = len(changes) - MOST_CHANGES
    return (
        *map(quote, changes[:MOST_CHANGES]),
        *([f"and {counted(rest, 'more change')}"] if rest > 0 else []),
    )


def _image_changes(good: Mapping[str, frozenset[str]], now: Mapping[str, frozenset[str]]) -> list[str]:
    return [
        f"image of {group}: other content under the same name, {_short(good[group])} -> {_short(digests)}"
        for group, digests in sorted(now.items())
        if group in good and good[group] != digests
    ]


def _short(digests: frozenset[str]) -> str:
    return " and ".join(sorted(digest[:19] for digest in digests))


def _input_changes(good: Mapping[str, str], now: Mapping[str, str]) -> list[str]:
    """Of packages that only one of them had imported nothing is said: when they report first differs."""
    changed = [name for name in good if now.get(name, good[name]) != good[name]]
    return [
        f"{name}: other content" if name.startswith("data ") else f"{name}: {good[name]} -> {now[name]}"
        for name in changed
    ]


def _change(path: str, before: Mapping[str, str], after: Mapping[str, str]) -> str | None:
    old, new = before.get(path), after.get(path)
    if old == new:
        return None
    if old is None or new is None:
        return f"{path}: {'is new' if old is None else 'is gone'}"
    lines = old.splitlines(), new.splitlines()
    if max(map(len, lines)) > COMPARED:
        return f"{path}: changed"
    steps = difflib.SequenceMatcher(None, *lines, autojunk=False).get_opcodes()
    count = sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in steps if tag != "equal")
    return f"{path}: {counted(count, 'line')} changed" if count else f"{path}: its line ends changed"


def new_lines(
    good: Iterable[str], now: Mapping[str, Sequence[str]], most: int = MOST_LINES
) -> tuple[tuple[str, str], ...]:
    """The last lines of each shape that the good run did not write. ``now``: member -> its lines. A line's
    shape leaves out numbers, addresses and what launchers put before it. Nothing where the good run's lines
    are not known: everything would be new.
    """
    known = {_shape(line) for line in good}
    if not known:
        return ()
    fresh: dict[str, tuple[str, str]] = {}
    for member, lines in now.items():
        for line in lines:
            shape = _shape(line)
            if shape.strip(" #-=*.") and PREFIX not in line and shape not in known:
                fresh.setdefault(shape, (member, quote(redact_text(strip_prefixes(line).text))))
    return tuple(fresh.values())[-most:]


def _shape(line: str) -> str:
    return _VARIABLE.sub("#", strip_prefixes(line).text)
