"""Logs as libraries write them, each with what is to be read of it; and logs that tell no progress.

``logs/known.txt``, ``real.txt``, ``aside.txt``, ``wild.txt``, ``more.txt``, ``unseen.txt`` and ``blind.txt``
hold trainings: those of ``real`` were written by the libraries for this, those of ``aside`` (libraries),
``wild`` (loops of people's own), ``more``, ``unseen`` and ``blind`` (programs that no family names) were put
aside until the formats were written. All else is in ``logs/others.txt``.

A log begins with ``# name | format``. Its lines follow a ``|``; ``␍`` is a carriage return, ``␛`` an escape.
``= line step/total {metrics}`` is what that line tells at its end, ``~ line`` may tell something, and any
other line tells nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import pytest

from allaboard.follow.printed import ProgressReader
from allaboard.text.reportline import Report

LOGS = Path(__file__).parent / "logs"


@dataclass
class Log:
    name: str
    format: str
    lines: list[str] = field(default_factory=list)
    expected: dict[int, tuple[int | None, int | None, dict[str, Any]]] = field(default_factory=dict)
    free: set[int] = field(default_factory=set)

    def read(self) -> dict[int, list[Report]]:
        reader = ProgressReader()
        return {n: reports for n, line in enumerate(self.lines, 1) if (reports := reader.read(line))}

    def wrong(self) -> list[str]:
        """A sentence for each line that is not read as it should be."""
        read = self.read()
        return [
            trouble for n in range(1, len(self.lines) + 1) if (trouble := self._trouble(n, read.get(n, [])))
        ]

    def _trouble(self, n: int, reports: list[Report]) -> str | None:
        if n in self.free or (not reports and n not in self.expected):
            return None
        where = f"{self.name}:{n} {self.lines[n - 1][:60]!r}"
        if n not in self.expected:
            return f"{where}: tells {dict(reports[-1].fields)}"
        if not reports:
            return f"{where}: tells nothing"
        step, total, metrics = self.expected[n]
        fields = reports[-1].fields
        told = {name: fields.get(name, "nothing") for name in metrics}
        right = (fields.get("step"), told, reports[-1].printed) == (step, metrics, self.format)
        is_right = right and total in (None, fields.get("total"))
        return (
            None
            if is_right
            else f"{where}: {step}/{total} {metrics}, not {dict(fields)} of {reports[-1].printed}"
        )


def logs(file: str) -> Iterator[Log]:
    log: Log | None = None
    for line in (LOGS / file).read_text().split("\n"):
        mark, rest = line[:1], line[1:]
        if mark == "#":
            if log is not None:
                yield log
            name, _, format = rest.partition("|")
            log = Log(name.strip(), format.strip())
        elif log is not None and mark == "|":
            log.lines.append(rest.replace("␍", "\r").replace("␛", "\x1b"))
        elif log is not None and mark == "~":
            log.free.add(int(rest))
        elif log is not None and mark == "=":
            number, count, metrics = rest.split(maxsplit=2)
            step, _, total = count.partition("/")
            log.expected[int(number)] = (int(step), int(total) if total else None, json.loads(metrics))
    if log is not None:
        yield log


TRAININGS = [
    log
    for file in ("known.txt", "real.txt", "aside.txt", "wild.txt", "more.txt", "unseen.txt", "blind.txt")
    for log in logs(file)
]
OTHERS = [*logs("others.txt")]


@pytest.mark.parametrize("log", TRAININGS, ids=lambda log: log.name)
def test_each_line_of_a_training_tells_what_it_says(log: Log) -> None:
    assert log.wrong() == []


@pytest.mark.parametrize("log", TRAININGS, ids=lambda log: log.name)
def test_a_whole_log_at_once_tells_as_much(log: Log) -> None:
    by_line = [report for reports in log.read().values() for report in reports]
    reader = ProgressReader()
    lines = reader.candidates("".join(f"{line}\n" for line in log.lines).encode())
    at_once = [report for _, line in lines for report in reader.read(line.decode())]
    assert {tuple(r.fields.items()) for r in at_once} >= {tuple(r.fields.items()) for r in by_line}


@pytest.mark.parametrize("log", OTHERS, ids=lambda log: log.name)
def test_nothing_else_is_progress(log: Log) -> None:
    assert log.read() == {}


def test_nothing_else_is_progress_after_a_loop_of_its_own() -> None:
    """A format that is no library's own does not open the door to the rest."""
    for log in OTHERS:
        reader = ProgressReader()
        assert len(reader.read("iteration 3 | step 10, loss: 0.5")) == 1
        assert [line for line in log.lines if reader.read(line)] == []


def test_there_are_enough_of_them() -> None:
    assert len(TRAININGS) >= 60 and len(OTHERS) >= 60
