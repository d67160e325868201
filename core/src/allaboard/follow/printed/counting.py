"""Steps of a whole training out of what its lines say, which may count anew in each epoch, beside a bar, or
in epochs alone. Values in, reports out.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from allaboard.follow.printed.form import Format, Part, Printed
from allaboard.text.reportline import MOST_STEPS, Report

SPEED = "steps_per_second"
_MOST_NAMES = 400
"""Names of metrics that are remembered."""


@dataclass(slots=True)
class _Epochs:
    """Place of a training that counts its steps anew in each epoch. ``first``: the number of the first epoch;
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
    ``step``, ``before``: step and epoch of the last dictionary; ``epoch``: the same while no bar was drawn
    after it; ``digits``: the most that an epoch had behind its point; ``pace``: steps of an epoch;
    ``is_sure``: two dictionaries agree on it; ``waiting``: a dictionary that came before the first step was
    drawn, whose step is that of the next bar.
    """

    last: Printed | None = None
    total: int | None = None
    step: int = -1
    epoch: float | None = None
    before: float | None = None
    digits: int = 1
    pace: float | None = None
    is_sure: bool = False
    waiting: Printed | None = None

    def draw(self, step: int) -> None:
        """A bar of the training: the first one behind a dictionary is drawn by what prints that."""
        if self.epoch:
            pace, error = step / self.epoch, 10**-self.digits / self.epoch
            self.is_sure = self.pace is not None and abs(pace - self.pace) <= error * self.pace
            self.pace, self.epoch = pace, None

    def wait(self, printed: Printed) -> Printed | None:
        """Keep a dictionary for the next bar; the one that was kept before."""
        before, self.waiting = self.waiting, printed
        if printed.epoch is not None:
            self.epoch = self.before = printed.epoch
            self.digits = max(self.digits, _places(printed.epoch))
        return before

    def step_of(self, epoch: float, drawn: int) -> int | None:
        """The step of a dictionary. A bar is drawn ten times a second at most: of fast steps the last one
        that was drawn may be an earlier one, and the epoch tells. None: nothing does.
        """
        if epoch == self.before and drawn <= self.step:  # the same once more, by another callback
            return self.step if self.step >= 0 else drawn
        self.digits, self.before = max(self.digits, _places(epoch)), epoch
        if self.is_sure and self.pace is not None and self.pace * 10**-self.digits <= 1:
            step: int | None = max(drawn, round(epoch * self.pace))
        else:
            step = drawn if drawn > self.step else None
        self.step, self.epoch = self.step if step is None else step, epoch
        return step


def _places(number: float) -> int:
    """Digits behind the point."""
    return len(repr(number).partition(".")[2])


@dataclass(slots=True)
class Counting:
    """The counters of one stream. ``step``: the last one that was reported; ``trained``: names of the metrics
    of the training; ``has_steps``: its lines count steps; ``columns``: names in the head of a table;
    ``is_aside``: the next line tells once more of an earlier step; ``handed``: the step of the
    checkpoint that its process was handed; ``counter``: step and total of the last line that was a counter
    alone.
    """

    step: int | None = None
    has_steps: bool = False
    trained: set[str] = field(default_factory=set)
    columns: tuple[str, ...] = ()
    is_aside: bool = False
    handed: int | None = None
    counter: tuple[int | None, int | None] | None = None
    epochs: _Epochs = field(default_factory=_Epochs)
    bar: _Bar = field(default_factory=_Bar)

    @property
    def is_in_epoch(self) -> bool:
        """True once a line has told that an epoch or a step begins."""
        return self.epochs.now is not None or self.counter is not None

    def begin_again(self) -> None:
        """Another format was recognised: what the one before counted says nothing of it."""
        self.step, self.has_steps = None, False
        self.epochs = _Epochs(now=self.epochs.now, of=self.epochs.of)

    def note(self, printed: Printed) -> None:
        """Keep what a line says that is no report by itself: the beginning of an epoch, a bar."""
        if printed.part is Part.COUNTER:
            self.counter = self._count_steps(printed, printed.step or 0)
        elif printed.columns:
            self.columns = printed.columns
        elif printed.part is Part.EPOCH and printed.step is None:
            self.epochs.now, self.epochs.of, self.epochs.is_over = printed.epoch, printed.epochs, False
        elif printed.part is Part.BAR and printed.step is None:
            self.bar = _Bar(total=printed.total)
        elif printed.part is Part.BAR and self.bar.total in (None, printed.total):
            self.bar.last = printed

    def report(self, format: Format, printed: Printed) -> Report | None:
        """The report of a line of the format that was recognised; None for one that only helps to count."""
        if printed.part is Part.COUNTER or (printed.part is Part.EPOCH and printed.step is None):
            self.note(printed)
            return None
        if printed.step is None and printed.epoch is None and printed.metrics and self.counter is not None:
            return self.made(format.name, *self.counter, printed)
        if printed.part is Part.INNER:
            return self._of_epoch(format, printed)
        if printed.part is Part.ASIDE or self.is_aside:
            self.is_aside = printed.part is Part.ASIDE
            return None
        if format.by_bar:
            return self._beside_a_bar(format, printed)
        if printed.part is Part.BAR:
            self.note(printed)
            return self._drawn(format)
        if printed.part is Part.EPOCH:
            return self._epoch(format, printed)
        if printed.part is Part.VALIDATION:
            self._drawn(format)
            return self._validation(format, printed)
        if not self._is_training(printed):
            return None
        if printed.columns:
            is_row = len(self.columns) == len(printed.columns)
            named = zip(self.columns, printed.columns, strict=True) if is_row else ()
            printed = replace(printed, metrics={**dict(named), **printed.metrics})
        step, total = self._count(format, printed)
        if len(self.trained) < _MOST_NAMES:
            self.trained.update(printed.metrics)
        return self.made(format.name, step, total, printed)

    def made(self, name: str, step: int | None, total: int | None, printed: Printed) -> Report | None:
        """The report; None for one that tells nothing, as a bar at 0 does: that of a training that resumes
        jumps to its step from there.
        """
        if not printed.metrics and not (step and printed.step != 0):
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

    def _of_epoch(self, format: Format, printed: Printed) -> Report | None:
        """A loss alone, of the epoch that a line before has named."""
        now = self.epochs.now
        if now is None or now != int(now) or self.has_steps:
            return None
        return self.made(format.name, int(now), self.epochs.of, printed)

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
        step, epochs = printed.step, self.epochs
        if step is not None and format.counts_anew and self.handed is not None:
            step += self.handed + 1
        if step is None:
            if self.has_steps or not format.counts_epochs:
                return self.step if self.has_steps else None, None
            epoch = printed.epoch if printed.epoch is not None else epochs.now
            if epoch is None or epoch != int(epoch):
                return None, None
            return int(epoch), printed.epochs or epochs.of
        return self._count_steps(printed, step)

    def _count_steps(self, printed: Printed, step: int) -> tuple[int | None, int | None]:
        total, epochs = printed.total, self.epochs
        self.has_steps = True
        if not printed.per_epoch:
            return self._count_anew(printed, step, total)
        before, epochs.now = epochs.now, printed.epoch if printed.epoch is not None else epochs.now
        if epochs.now is None:
            # Bars without a number: one that begins anew after its end is that of the next epoch.
            if total is not None and total == epochs.length == epochs.last and step < total:
                epochs.base += total
            epochs.length, epochs.last = total, step
            return (epochs.base + step, None) if epochs.base else (step, total)
        if epochs.first is None:
            epochs.first = printed.first_epoch if printed.first_epoch is not None else int(epochs.now > 0)
        epochs.of = printed.epochs or epochs.of
        if printed.last_epoch is not None:
            epochs.of = max(1, printed.last_epoch - epochs.first + 1)
        index = max(0, int(epochs.now) - epochs.first)
        if total is None:
            if step < epochs.last or (before is not None and epochs.now > before):
                epochs.base += epochs.last
            epochs.last = step
            return epochs.base + step, None
        epochs.length = total
        return index * total + step, epochs.of * total if epochs.of else None

    def _count_anew(self, printed: Printed, step: int, total: int | None) -> tuple[int | None, int | None]:
        """(step, total) of a line that does not say whether its steps begin anew in each epoch: they do once
        they were seen to. Until the first epoch is over, the total may be that of an epoch.
        """
        epochs, epoch = self.epochs, printed.epoch
        if epoch is None:
            return step, total
        if epochs.now is not None and epoch > epochs.now and step <= epochs.last:
            epochs.base += total or epochs.last
        is_first = epoch in (0, 1) and epochs.first in (None, epoch)
        epochs.first = int(epoch) if is_first else epochs.first
        epochs.now, epochs.last = epoch, step
        return (epochs.base + step, None) if epochs.base or is_first else (step, total)

    def _validation(self, format: Format, printed: Printed) -> Report | None:
        step = printed.step if printed.step is not None and not printed.per_epoch else self.step
        if not self.has_steps and printed.step is None and printed.epoch is not None and format.counts_epochs:
            step = int(printed.epoch)
        total = printed.total if printed.step is not None and not printed.per_epoch else None
        apart = replace(printed, metrics=self._named_apart(printed.metrics), per_second=None)
        return self.made(format.name, step, total, apart) if apart.metrics else None

    def _named_apart(self, metrics: Mapping[str, float | None]) -> dict[str, float | None]:
        """The metrics of a validation; one that has the name of a training's is dated apart from it."""
        return {f"val_{name}" if name in self.trained else name: value for name, value in metrics.items()}

    # A Trainer's bar.

    def _drawn(self, format: Format) -> Report | None:
        """The step of the last bar, where a line told how many steps there are and it has as many."""
        last = self.bar.last
        if last is None or last.step is None or last.total != self.bar.total or last.step == self.step:
            return None
        self.has_steps = True
        return self.made(format.name, last.step, last.total, replace(last, metrics={}))

    def _beside_a_bar(self, format: Format, printed: Printed) -> Report | None:
        """The bar tells the step, dictionaries the metrics. Bars of an evaluation have another total."""
        bar, last = self.bar, self.bar.last
        if printed.part is Part.BAR:
            if printed.step is None:  # another training begins
                self.note(printed)
                self.step = None
                return None
            bar.last = printed
            if printed.total != bar.total:
                return None
            bar.draw(printed.step)
            if bar.waiting is not None and printed.step > 0:
                waiting, bar.waiting, bar.step = bar.waiting, None, printed.step
                return self.made(format.name, printed.step, printed.total, waiting)
            if self.step is not None and (printed.step == self.step or 0 < printed.step < self.step):
                return None
            return self.made(format.name, printed.step, printed.total, replace(printed, metrics={}))
        if printed.part is Part.VALIDATION:
            return self.made(format.name, self.step, None, printed)
        if last is not None and last.total != bar.total and (bar.total is None or last.step != last.total):
            self.bar, self.step = _Bar(last, last.total), None
            bar = self.bar
        if printed.step is not None:
            return self.made(format.name, printed.step, printed.total, printed)
        step = self.step if last is None or last.total != bar.total else last.step
        if step == 0 and printed.epoch and bar.step < 0:
            # One that was waiting already keeps its numbers, and has no step.
            before = bar.wait(printed)
            return None if before is None else self.made(format.name, None, bar.total, before)
        if step is not None and printed.epoch is not None:
            step = bar.step_of(printed.epoch, step)
        return self.made(format.name, step, bar.total, printed)
