"""Tables with a row for each epoch or evaluation: fastai, skorch, spaCy, and those of which a head names the
counter and a loss. A head names the columns.
"""

from __future__ import annotations

import re

from allaboard.follow.printed.form import Format, Part, Printed, Reading
from allaboard.follow.printed.numbers import NUMBER, number_of

_COLUMNS = re.compile(r"\s{2,}")
_ROW = re.compile(
    rf"^\s*(?P<epoch>\d{{1,9}})(?P<cells>(?:\s+{NUMBER}(?=\s|$)){{1,40}})(?:\s+(?:\d+:)?\d+:\d\d)?\s*$"
)
_MARK = re.compile(r"\s\+(?=\s|$)")
_COUNTED = r"(?:step|iter(?:ation)?)s?"
_LOST = r"(?:loss|rmse|nll|ppl|perplexity|cost)"
_NAMES = rf"\s{{2,}}(?=[A-Za-z])[^:=|]*{_LOST}[^:=|]*$"
_HEAD = re.compile(
    rf"^[ #]*(?:(?:epochs?|{_COUNTED}) {{2,}}[A-Za-z][^\n:=|]*{_LOST}|E {{2,}}# {{2,}}LOSS )".encode(),
    re.MULTILINE,
)
OWN = "a table of its own"
_ASIDE = frozenset({"time", "cp"})
"""Columns without a number: a time, and the mark of a checkpoint."""


def has_head(data: bytes) -> bool:
    """True if a head stands in a chunk of a log."""
    return _HEAD.search(data) is not None


def _table(head: str, has_step: bool = False, has_epoch: bool = True) -> tuple[Reading, Reading]:
    """The readings of a head and of a row, which begins with the epoch if ``has_epoch``, then the step if
    ``has_step``.
    """
    shape = re.compile(head)

    def names(text: str) -> Printed | None:
        if shape.match(text) is None:
            return None
        columns = _COLUMNS.split(text.strip(" #\t"))[has_step + has_epoch :]
        return Printed(Part.EPOCH, columns=tuple(name for name in columns if name not in _ASIDE))

    def row(text: str) -> Printed | None:
        match = _ROW.match(_MARK.sub("  ", text))
        if match is None:
            return None
        step, values = None, match["cells"].split()
        if not has_epoch:
            step = int(match["epoch"])
        elif has_step:
            if not values[0].isdigit():
                return None
            step, values = int(values[0]), values[1:]
        cells = tuple(number_of(value) for value in values)
        epoch = float(match["epoch"]) if has_epoch else None
        return Printed(Part.TRAINING, step, epoch=epoch, columns=cells, sure=False)

    return names, row


FORMATS = (
    Format(
        "fastai", ("train_loss", "."), _table(r"^epoch\s+train_loss\s.*\stime\s*$"), counts_epochs=True
    ),
    Format(
        "skorch", ("train_loss", "."), _table(r"^\s*epoch\s{2,}.*\btrain_loss\s.*\sdur\s*$"),
        counts_epochs=True,
    ),
    Format(
        OWN, ("iter", "step", "."),
        _table(rf"^epochs?\s{{2,}}{_COUNTED}{_NAMES}", has_step=True),
    ),
    Format(
        OWN, ("iter", "step", "."),
        _table(rf"^[\s#]*{_COUNTED}{_NAMES}", has_step=True, has_epoch=False),
    ),
    Format(OWN, ("epoch", "."), _table(rf"^epochs?{_NAMES}"), counts_epochs=True),
    Format("spaCy", ("loss ", "."), _table(r"^E\s+#\s+LOSS\s", has_step=True)),
)  # fmt: skip
