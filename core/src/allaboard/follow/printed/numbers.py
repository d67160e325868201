"""Numbers as training scripts print them: ``1,234``, ``12.3k``, ``5e-05``, ``nan``. Text in, numbers out."""

from __future__ import annotations

import math
import re

NUMBER = (
    r"[-+]?(?:\d{1,3}(?:,\d{3})+(?:\.\d{1,20})?|\d{1,20}\.?\d{0,20}(?:[eE][-+]?\d{1,3})?|\.\d{1,20}"
    r"|(?i:nan|inf(?:inity)?)(?=m?s\b|%|\b))"
)
"""A number; not one in the middle of a word."""
WHOLE = r"\d{1,3}(?:,\d{3})+|\d{1,15}"
_SCALES = {"k": 1e3, "K": 1e3, "M": 1e6, "B": 1e9, "G": 1e9}
_WHOLE = re.compile(WHOLE)


def number_of(text: str, unit: str = "") -> float | int | None:
    """The value of a number; None for one that is not finite. ``unit``: what follows it directly, of which
    ``k``, ``M``, ``B`` and ``G`` alone are a scale.
    """
    plain = text.replace(",", "")
    if _WHOLE.fullmatch(plain) and unit not in _SCALES:
        return int(plain)
    value = float(plain) * _SCALES.get(unit, 1.0)
    return value if math.isfinite(value) else None


def whole_of(text: str | None) -> int | None:
    """The number of steps that a text says; None for anything else."""
    if text is None or _WHOLE.fullmatch(text.strip()) is None:
        return None
    return int(text.replace(",", ""))


_TEXT = re.compile(rf"\s*(?P<value>{NUMBER})(?P<unit>[kKMBG%]?)\s*")


def number_in(text: str) -> tuple[float | int | None, ...]:
    """The one number that a text is, None in the place of one that is not finite; nothing for other texts."""
    match = _TEXT.fullmatch(text[:60])
    return () if match is None else (number_of(match["value"], match["unit"]),)
