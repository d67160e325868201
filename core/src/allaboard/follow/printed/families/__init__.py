"""The formats by family, a file for each: which library prints what, as data."""

from __future__ import annotations

from allaboard.follow.printed.families import (
    bars,
    boosting,
    huggingface,
    json_lines,
    keras,
    large,
    others,
    own,
    tables,
    vision,
)
from allaboard.follow.printed.form import Format

LIBRARIES: tuple[Format, ...] = (
    *huggingface.FORMATS, *bars.FORMATS, *large.FORMATS, *vision.FORMATS, *keras.FORMATS, *boosting.FORMATS,
    *others.FORMATS, *own.FORMATS, *tables.FORMATS,
)  # fmt: skip
PLAIN: tuple[Format, ...] = (*json_lines.PLAIN, *own.PLAIN, *bars.PLAIN)
FORMATS = (*LIBRARIES, *PLAIN)
