"""Steps of a whole training out of what its lines say, which may count anew in each epoch, beside a bar, or
in epochs alone. Values in, reports out.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from allaboard.follow.printed.form import Format, Part, Printed
from allaboard.text.reportline import MOST_STEPS, Report

SPEED = "steps_per_second"
_APART = re.compile(r"val|eval|test|dev|valid|train|best", re.IGNORECASE)
_ROUNDED = 0.005
"""Half of the last digit of an epoch that a Trainer rounds."""


@dataclass(slots=True)
class _Epochs:
    """Where a training is that counts its steps anew in each epoch. ``first``: the number of the first epoch;
    ``now``: that of the present one; ``of``: how many there are; ``length``: steps of each, as far as known;
    ``base``: steps of the epochs before, ``last``: step of the present one, where a line does not say how
    many steps an epoch has; ``outside``: a bar of its own counts them; ``is_over``: the last step was seen.
    """

    first: int | None = None
    now: float | None = None
    of: int | None = None
    length: int | None = None
    base: int = 0
    last: int = 0
    outside: bool = False
    is_over: bool = False


@dataclass(slots=True)
class _Bar:
    """The bar of a Trainer. ``last``: the last one seen, of whatever; ``total``: steps of the training;
    ``epoch``: that of the dictionary after which no bar was drawn yet; ``pace``: steps of an epoch.
    """

    last: Printed | None = None
    total: int | None = None
    epoch: float | None = None
    pace: float | None = None


@dataclass(slots=True)
class Counting:
    """The counters of one stream. ``step``: the last one that was reported."""

    step: int | None = None
    has_steps: bool = False
    epochs: _Epochs = field(default_factory=_Epochs)
    bar: _Bar = field(default_factory=_Bar)

    def begin_again(self) -> None:
        """Another format was recognised: what the one before counted says nothing of it."""
        self.step, self.has_steps = None, False
        self.epochs = _Epochs(now=self.epochs.now, of=self.epochs.of)

    def note(self, printed: Printed) -> None:
        """Keep what a line says that is no report by itself: the beginning of an epoch, a bar."""
        if printed.part is Part.EPOCH and printed.step is None:
            self.epochs.now, self.epochs.of, self.epochs.is_over = printed.epoch, printed.epochs, False
        elif printed.part is Part.BAR:
            self.bar.last = printed

    def report(self, format: Format, printed: Printed) -> Report | None:
        """The report of a line of the format that was recognised; None for one that only helps to count."""
        if printed.part is Part.EPOCH and printed.step is None:
            self.note(printed)
            return None
        if format.by_bar:
            return self._beside_a_bar(format, printed)
        if printed.part is Part.EPOCH:
            return self._epoch(format, printed)
        if printed.part is Part.VALIDATION:
            return self._validation(format, printed)
        if not self._is_training(printed):
            return None
        step, total = self._count(format, printed)
        return self.made(format.name, step, total, printed)

    def made(self, name: str, step: int | None, total: int | None, printed: Printed) -> Report | None:
        """The report; None for one that tells nothing."""
        if step is None and not printed.metrics:
            return None
        step = step if step is None or step <= MOST_STEPS else None
        again = step is not None and self.step is not None and step < self.step
        self.step = self.step if step is None else step
        epoch = printed.epoch if printed.epoch is not None else self.epochs.now
        fields: dict[str, Any] = {"step": step, "total": total if total and total >= (step or 0) else None}
        fields["epoch"] = int(epoch) if epoch is not None and epoch == int(epoch) else epoch
        fields = {key: value for key, value in fields.items() if value is not None}
        fields |= printed.metrics
        if printed.per_second is not None and printed.per_second > 0:
            fields[SPEED] = printed.per_second
        bad = tuple(key for key, value in printed.metrics.items() if value is None)
        return Report("progress", fields, bad, printed=name, again=again)

    # Epochs.

    def _epoch(self, format: Format, printed: Printed) -> Report | None:
        """A bar that counts the epochs."""
        epochs = self.epochs
        epochs.outside, epochs.now, epochs.of, epochs.first = True, printed.step, printed.total, 0
        length = epochs.length or 1
        step = (printed.step or 0) * length
        total = printed.total * length if printed.total else None
        report = replace(printed, per_second=None if epochs.length else printed.per_second)
        return (
            None if step == self.step and not printed.metrics else self.made(format.name, step, total, report)
        )

    def _is_training(self, printed: Printed) -> bool:
        """False for a bar that follows the last step of an epoch before the next one begins, as that of an
        evaluation does.
        """
        epochs = self.epochs
        if not printed.per_epoch or printed.epoch is not None or epochs.now is None or epochs.outside:
            return True
        if epochs.is_over and (printed.total != epochs.length or printed.step != printed.total):
            return False
        epochs.is_over = printed.total is not None and printed.step == printed.total
        return True

    def _count(self, format: Format, printed: Printed) -> tuple[int | None, int | None]:
        """(step, total) over all epochs."""
        step, total, epochs = printed.step, printed.total, self.epochs
        if step is None:
            if self.has_steps or not format.counts_epochs:
                return self.step if self.has_steps else None, None
            epoch = printed.epoch if printed.epoch is not None else epochs.now
            if epoch is None or epoch != int(epoch):
                return None, None
            return int(epoch), printed.epochs or epochs.of
        self.has_steps = True
        if not printed.per_epoch:
            return step, total
        epochs.now = printed.epoch if printed.epoch is not None else epochs.now
        epochs.of = printed.epochs or epochs.of
        if epochs.now is None:
            return step, total
        if epochs.first is None:
            epochs.first = printed.first_epoch if printed.first_epoch is not None else int(epochs.now > 0)
        index = max(0, int(epochs.now) - epochs.first)
        if total is None:
            if step < epochs.last:
                epochs.base += epochs.last
            epochs.last = step
            return epochs.base + step, None
        epochs.length = total
        return index * total + step, epochs.of * total if epochs.of else None

    def _validation(self, format: Format, printed: Printed) -> Report | None:
        step = printed.step if printed.step is not None and not printed.per_epoch else self.step
        if step is None and printed.epoch is not None and format.counts_epochs:
            step = int(printed.epoch)
        apart = replace(printed, metrics=_named_apart(printed.metrics), per_second=None)
        return self.made(format.name, step, None, apart) if apart.metrics else None

    # A Trainer's bar.

    def _beside_a_bar(self, format: Format, printed: Printed) -> Report | None:
        """The bar tells the step, dictionaries the metrics. Bars of an evaluation have another total."""
        bar, last = self.bar, self.bar.last
        if printed.part is Part.BAR:
            bar.last = printed
            if printed.total != bar.total or printed.step is None:
                return None
            if bar.epoch:
                bar.pace, bar.epoch = printed.step / bar.epoch, None
            is_back = self.step is not None and 0 < printed.step < self.step
            same = printed.step == self.step
            return None if is_back or same else self.made(format.name, printed.step, printed.total, printed)
        if printed.part is Part.VALIDATION:
            return self.made(format.name, self.step, None, printed)
        if last is not None and last.total != bar.total and (bar.total is None or last.step != last.total):
            bar.total, bar.pace, self.step = last.total, None, None
        step = last.step if last is not None and last.total == bar.total else self.step
        if bar.total is not None and printed.epoch is not None:
            step = self._by_epoch(printed.epoch, step)
            bar.epoch = printed.epoch or None
        return self.made(format.name, step, bar.total, printed)

    def _by_epoch(self, epoch: float, drawn: int | None) -> int | None:
        """The step of a dictionary. A bar is drawn ten times a second at most: of fast steps the last one
        that was drawn may be an earlier one, and the epoch tells.
        """
        pace = self.bar.pace
        if pace is None:
            return drawn
        rounding = _ROUNDED * pace if round(epoch, 2) == epoch else 0.0
        step = round(epoch * pace)
        return step if rounding <= 0.5 and (drawn is None or step >= drawn) else drawn


def _named_apart(metrics: Mapping[str, float | None]) -> dict[str, float | None]:
    """The metrics of a validation under names that those of the training do not have."""
    return {name if _APART.search(name) else f"val_{name}": value for name, value in metrics.items()}
