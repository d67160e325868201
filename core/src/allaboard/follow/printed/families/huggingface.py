"""Hugging Face's Trainer, and TRL, which is built on it: a dictionary of a line, and a bar without a name
that counts its steps. Accelerate's examples print the epoch before a dictionary.
"""

from __future__ import annotations

import re
from dataclasses import replace

from allaboard.follow.printed.families.bars import unnamed_bar
from allaboard.follow.printed.form import COLON, QUOTED, Format, Part, Pattern, Printed, pairs, pattern
from allaboard.follow.printed.prefixes import is_prefix

_DICTIONARY = re.compile(r"\{'\w[^{}]*\}\s*$")
_COUNTED = re.compile(r"'global_step/max_steps': '(\d{1,15})/(\d{1,15})'")
_TRAINS = frozenset({"loss", "learning_rate", "grad_norm", "train_loss", "train_runtime"})


def _dictionary(text: str) -> Printed | None:
    match = _DICTIONARY.search(text)
    if match is None or not is_prefix(text, match.start()):
        return None
    metrics = dict(pairs(QUOTED, match[0]))
    epoch = metrics.pop("epoch", None)
    is_validation = any(name.startswith(("eval_", "test_")) for name in metrics)
    if epoch is None or not (is_validation or _TRAINS & metrics.keys()):
        return None
    part = Part.VALIDATION if is_validation or "train_runtime" in metrics else Part.TRAINING
    counted = _COUNTED.search(match[0])
    step, total = (int(counted[1]), int(counted[2])) if counted is not None else (None, None)
    return Printed(part, step, total, epoch, metrics=metrics, sure=part is Part.TRAINING or is_validation)


def _bar(text: str) -> Printed | None:
    bar = unnamed_bar(text)
    return None if bar is None else replace(bar, part=Part.BAR, sure=False)


_ACCELERATE = Pattern(
    pattern(r"epoch <EPOCH>: (?=\{'\w[^{}]*\}\s*$)"), Part.VALIDATION, QUOTED, requires=None, first_epoch=0
)
_DIFFUSERS = Pattern(
    pattern(r"Steps:\s*\d+%\|[^|]*\|\s*<STEP>/<TOTAL> \[[^\]]*?(?=, (?:lr|step_loss|loss)=)"),
    Part.TRAINING,
    COLON,
)

_TOTAL = Pattern(
    pattern(r"\bTotal optimization steps\s*=\s*(?P<total>[\d,]{1,20})\s*$"), Part.BAR, metrics=None,
    requires=None, sure=False,
)  # fmt: skip
"""The steps of the training, by which its bar is told from others."""

FORMATS = (
    Format(
        "Hugging Face's Trainer",
        ("'epoch':", "%|", "total optimization steps"),
        (_dictionary, _bar, _TOTAL.read),
        by_bar=True,
    ),
    Format(
        "Accelerate's examples",
        ("epoch ", "steps:", "%|"),
        (_ACCELERATE.read, _DIFFUSERS.read, _bar),
        counts_epochs=True,
    ),
)
