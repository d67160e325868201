"""Kubernetes quantities: ``500m``, ``8Gi``, ``1e3``; exact, as Fractions of the plain unit."""

from __future__ import annotations

import math
from fractions import Fraction

SUFFIXES = {
    "n": Fraction(1, 10**9), "u": Fraction(1, 10**6), "m": Fraction(1, 1000), "": Fraction(1),
    "k": Fraction(10**3), "M": Fraction(10**6), "G": Fraction(10**9), "T": Fraction(10**12),
    "P": Fraction(10**15), "E": Fraction(10**18),
    "Ki": Fraction(2**10), "Mi": Fraction(2**20), "Gi": Fraction(2**30), "Ti": Fraction(2**40),
    "Pi": Fraction(2**50), "Ei": Fraction(2**60),
}  # fmt: skip


def quantity(text: str | int | float) -> Fraction:
    """Raises ValueError when it is none."""
    text = str(text).strip()
    digits = text.rstrip("KMGTPEikmnu")
    # `1E` is an exa, `1E3` an exponent: the latter ends in a digit and keeps its E.
    try:
        return Fraction(digits) * SUFFIXES[text[len(digits) :]]
    except (KeyError, ValueError) as error:
        raise ValueError(f"{text!r} is no quantity, such as 500m, 2, 8Gi") from error


def divided(value: Fraction, divisor: str) -> int:
    """What the downward API gives for a resource: whole units of the divisor, rounded up."""
    by = quantity(divisor or "1")
    return math.ceil(value / (by or 1))
