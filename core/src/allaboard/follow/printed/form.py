"""The parts of which the formats of all families are made: patterns as data, and what a line says by one.

A *format* is how one library prints its training: a name and patterns. A *pattern* is one kind of line of
it. What stands in a line before a pattern must be a logger's or a launcher's prefix (`prefixes`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator, Mapping
from dataclasses import dataclass, field
from enum import Enum
from itertools import islice
from typing import Any

from allaboard.follow.printed.numbers import NUMBER, number_of, whole_of
from allaboard.follow.printed.prefixes import is_prefix

MOST_METRICS = 100
"""Metrics of one line."""

_LETTERS = r"[\w./@%'()-]{0,80}+"
_NAME = rf"(?<!\w)(?P<name>[A-Za-z_]{_LETTERS}(?: [A-Za-z(]{_LETTERS}){{0,5}}?)"
_RATES = re.compile(r"^(?:[A-Za-z]{1,12}/s(?:ec|econd)?s? )+")
"""Units of the number before a name."""
_UNIT = r"(?P<unit>%|[A-Za-z][\w/]{0,20}%?)?"
_END = r"(?![\w:]|\.\d)"
COLON = re.compile(rf"{_NAME}\s{{0,8}}[:=]\s{{0,12}}(?P<value>{NUMBER}){_UNIT}{_END}")
"""``name: 1.5`` and ``name=1.5``"""
SPACE = re.compile(rf"{_NAME}(?:\s{{0,8}}[:=]\s{{0,12}}|\s{{1,12}})(?P<value>{NUMBER}){_UNIT}{_END}")
"""``name 1.5`` as well"""
QUOTED = re.compile(
    rf"['\"](?P<name>[^'\"]{{1,100}})['\"]:\s*(?:(?:np\.\w+|tensor|array)\()?(?P<quote>['\"]?)"
    rf"(?P<value>{NUMBER})(?P<unit>)(?P=quote)(?=\s*[,)}}])"
)
"""``'name': 1.5`` and ``'name': '1.5'``"""

LOSS = re.compile(r"loss|nll|perplexity|\bppl\b|cross.?entropy|\bce\b|\bcost\b|reward", re.IGNORECASE)
"""Names of what a training makes smaller, or larger."""

LOSSES = ("loss", "nll", "ppl", "perplexity", "reward", "entropy", "cost")
"""Small letters of which the name of a loss holds some."""


class Part(Enum):
    """Subject of a line: training, validation, the beginning of an epoch, a bar beside loss lines; a counter
    alone, and a loss alone of which the counter tells when; or what announces that the next line tells once
    more of an earlier step.
    """

    TRAINING = "training"
    VALIDATION = "validation"
    EPOCH = "epoch"
    BAR = "bar"
    ASIDE = "aside"
    COUNTER = "counter"
    INNER = "inner"


@dataclass(frozen=True, slots=True)
class Printed:
    """Content of a line, as it says it. ``step`` and ``total`` count within ``epoch`` if ``per_epoch``.
    ``last_epoch``: the number of the last epoch, where a line says that in the place of how many there are.
    ``per_second``: steps; ``columns``: metrics by their place in a table, or of its head their names;
    ``sure``: the line is of its format without doubt.
    """

    part: Part = Part.TRAINING
    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    epochs: int | None = None
    metrics: Mapping[str, float | None] = field(default_factory=dict)
    per_second: float | None = None
    per_epoch: bool = False
    first_epoch: int | None = None
    last_epoch: int | None = None
    columns: tuple[Any, ...] = ()
    sure: bool = True


Reading = Callable[[str], Printed | None]


@dataclass(frozen=True, slots=True)
class Pattern:
    """One kind of line. ``head``: a regular expression with any of the groups step, total, epoch, epochs;
    ``metrics``: how numbers are named in what follows (``whole``: in all of the line); ``requires``: a name
    that one of them must match. ``first_epoch``: the number of the first epoch, None: the first that is
    seen. ``speed``: metric -> how many seconds its unit of time has, if it says how long a step takes.
    ``only``: the names that are kept; ``counts``: metrics that are step, total or epoch.
    """

    head: re.Pattern[str]
    part: Part = Part.TRAINING
    metrics: re.Pattern[str] | None = COLON
    whole: bool = False
    requires: re.Pattern[str] | None = LOSS
    sure: bool = True
    per_epoch: bool = False
    first_epoch: int | None = None
    speed: Mapping[str, float] = field(default_factory=dict)
    rates: tuple[str, ...] = ()
    counts: Mapping[str, str] = field(default_factory=dict)

    def read(self, text: str) -> Printed | None:
        match = self.head.search(text)
        if match is None or not is_prefix(text, match.start()):
            return None
        groups = match.groupdict()
        rest = text[match.start() :] if self.whole else text[match.end() :]
        metrics = dict(pairs(self.metrics, rest)) if self.metrics is not None else {}
        if self.requires is not None and not any(self.requires.search(name) for name in metrics):
            return None
        counted = {count: metrics.pop(name, None) for name, count in self.counts.items() if name in metrics}
        epoch = groups.get("epoch")
        return Printed(
            self.part,
            whole_of(groups.get("step")) if groups.get("step") else _whole(counted.get("step")),
            whole_of(groups.get("total")) if groups.get("total") else _whole(counted.get("total")),
            float(epoch) if epoch else counted.get("epoch"),
            whole_of(groups.get("epochs")),
            metrics,
            self._per_second(metrics),
            self.per_epoch,
            self.first_epoch,
            sure=self.sure,
        )

    def _per_second(self, metrics: Mapping[str, float | None]) -> float | None:
        for name, scale in self.speed.items():
            if (value := metrics.get(name)) is not None and value > 0:
                return 1 / (value * scale)
        return next((value for name in self.rates if (value := metrics.get(name)) is not None), None)


def _whole(value: float | None) -> int | None:
    return int(value) if value is not None and value >= 0 and value == int(value) else None


@dataclass(frozen=True, slots=True)
class Format:
    """Way in which one library prints. ``needles``: of these small letters every line of it has one;
    ``plain``: no library's own, so that it stands back when a library's is seen; ``any_rank``: its lines are
    of one rank, whichever that is. ``by_bar``: a bar without a name tells its steps. ``counts_epochs``: where
    nothing counts steps, epochs are steps. ``counts_anew``: its steps begin at 0 in each process, after those
    of the checkpoint that the process was handed.
    """

    name: str
    needles: tuple[str, ...]
    readings: tuple[Reading, ...]
    plain: bool = False
    any_rank: bool = False
    by_bar: bool = False
    counts_epochs: bool = False
    counts_anew: bool = False

    def read(self, text: str, low: str) -> Printed | None:
        if not any(needle in low for needle in self.needles):
            return None
        for reading in self.readings:
            if (printed := reading(text)) is not None:
                return printed
        return None


def pairs(style: re.Pattern[str], text: str) -> Iterator[tuple[str, float | None]]:
    """Named numbers in a text, as they stand there."""
    for match in islice(style.finditer(text), MOST_METRICS):
        name = match["name"]
        if name.count("(") > name.count(")"):  # the number stands in brackets: "step 10 (loss: 1.5)"
            name = name.rpartition("(")[2]
        name = _RATES.sub("", " ".join(name.split()))
        yield name, number_of(match["value"], match["unit"] or "")


def pattern(head: str, flags: int = 0) -> re.Pattern[str]:
    """A compiled head. ``<STEP>``, ``<TOTAL>``, ``<EPOCH>`` and ``<EPOCHS>`` stand for their groups."""
    for name in ("step", "total", "epoch", "epochs"):
        head = head.replace(f"<{name.upper()}>", rf"(?P<{name}>\d{{1,15}})")
    return re.compile(head, flags)
