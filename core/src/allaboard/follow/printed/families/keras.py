"""Keras, and what draws as it does: ``Epoch 3/10``, then a bar of the batches with the metrics behind it."""

from __future__ import annotations

import re

from allaboard.follow.printed.form import COLON, Format, Part, Pattern, Printed, pairs, pattern
from allaboard.follow.printed.prefixes import is_prefix

_EPOCH = Pattern(
    pattern(r"\bEpoch <EPOCH>(?:/<EPOCHS>)?\s*[.:]*\s*$"),
    Part.EPOCH,
    metrics=None,
    requires=None,
    sure=False,
    first_epoch=1,
)
_BAR = re.compile(
    r"(?<![\w/.])(?P<step>\d{1,12})/(?P<total>\d{1,12}|Unknown|None)\s+"
    r"(?:\[[=>.]{3,}\]|[━╸╺─]{3,}[━╸╺─\s]*|- (?=\d+m?s\b))\s*"
    r"(?:[^-]|- (?=\d|ETA: )){0,80}?- (?!ETA: )(?=[A-Za-z_]\w*: )"
)
_PER_STEP = re.compile(r"\b(?P<value>\d[\d.]{0,12})(?P<unit>ms|s|us)/(?:step|sample|epoch)")
_SECONDS = {"s": 1.0, "ms": 1e-3, "us": 1e-6}


def _bar(text: str) -> Printed | None:
    match = _BAR.search(text)
    return None if match is None or not is_prefix(text, match.start()) else _read(text, match)


def _paddle(text: str) -> Printed | None:
    """As Keras, with a word before the counter."""
    match = _BAR.search(text)
    return _read(text, match) if match is not None and _STEP.fullmatch(text, 0, match.start()) else None


_STEP = re.compile(r"\s*step\s+")


def _read(text: str, match: re.Match[str]) -> Printed | None:
    metrics = dict(pairs(COLON, text[match.end() :].replace(" - ", "  ")))
    if not any("loss" in name for name in metrics):
        return None
    pace = _PER_STEP.search(text)
    seconds = float(pace["value"]) * _SECONDS[pace["unit"]] if pace and pace["value"].count(".") <= 1 else 0.0
    total = int(match["total"]) if match["total"].isdigit() else None
    return Printed(
        Part.TRAINING, int(match["step"]), total, metrics=metrics,
        per_second=1 / seconds if seconds > 0 else None, per_epoch=True, first_epoch=1,
    )  # fmt: skip


FORMATS = (
    Format("Paddle's Model", ("step ", "epoch "), (_paddle, _EPOCH.read)),
    Format("Keras", ("loss: ", "epoch "), (_bar, _EPOCH.read)),
)
