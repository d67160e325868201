"""Tables with a row for each epoch or evaluation: fastai, skorch, spaCy. A head names the columns."""

from __future__ import annotations

import re

from allaboard.follow.printed.form import Format, Part, Printed, Reading
from allaboard.follow.printed.numbers import NUMBER, number_of

_COLUMNS = re.compile(r"\s{2,}")
_ROW = re.compile(
    rf"^\s*(?P<epoch>\d{{1,9}})(?P<cells>(?:\s+{NUMBER}(?=\s|$)){{1,40}})(?:\s+(?:\d+:)?\d+:\d\d)?\s*$"
)
_MARK = re.compile(r"\s\+(?=\s|$)")
_HEAD = re.compile(rb"^ *(?:epoch {2,}[^\n]*\btrain_loss\b|E {2,}# {2,}LOSS )", re.MULTILINE)
_ASIDE = frozenset({"time", "cp"})
"""Columns without a number: a time, and the mark of a checkpoint."""


def has_head(data: bytes) -> bool:
    """True if a head stands in a chunk of a log."""
    return (b"train_loss" in data or b" LOSS " in data) and _HEAD.search(data) is not None


def _table(head: str, has_step: bool = False) -> tuple[Reading, Reading]:
    """The readings of a head and of a row, which begins with the epoch, then the step if ``has_step``."""
    shape = re.compile(head)

    def names(text: str) -> Printed | None:
        if shape.match(text) is None:
            return None
        columns = _COLUMNS.split(text.strip())[2 if has_step else 1 :]
        return Printed(Part.EPOCH, columns=tuple(name for name in columns if name not in _ASIDE))

    def row(text: str) -> Printed | None:
        match = _ROW.match(_MARK.sub("  ", text))
        if match is None:
            return None
        step, values = None, match["cells"].split()
        if has_step:
            if not values[0].isdigit():
                return None
            step, values = int(values[0]), values[1:]
        cells = tuple(number_of(value) for value in values)
        return Printed(Part.TRAINING, step, epoch=float(match["epoch"]), columns=cells, sure=False)

    return names, row


FORMATS = (
    Format(
        "fastai", ("train_loss", "."), _table(r"^epoch\s+train_loss\s.*\stime\s*$"), counts_epochs=True
    ),
    Format(
        "skorch", ("train_loss", "."), _table(r"^\s*epoch\s{2,}.*\btrain_loss\s.*\sdur\s*$"),
        counts_epochs=True,
    ),
    Format("spaCy", ("loss ", "."), _table(r"^E\s+#\s+LOSS\s", has_step=True)),
)  # fmt: skip
