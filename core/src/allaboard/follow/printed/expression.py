"""The format of one's own: the regular expression of a job's field ``progress``."""

from __future__ import annotations

from typing import Any

from allaboard.follow.printed.form import Part, Printed
from allaboard.follow.printed.numbers import number_in, whole_of
from allaboard.text.expressions import search

OFF = "off"
"""The value of the field `progress` of a job by which nothing but its own reports is read."""
_COUNTS = frozenset({"step", "total", "epoch", "epochs"})


def read(expression: Any, line: str) -> Printed | None:
    """Return what a line says by an expression: a group named step, total or epoch is that, any other group
    with a number is a metric. Raises TimeoutError where the search takes too long.
    """
    groups = search(expression, line)
    if groups is None:
        return None
    numbers = {
        name: number for name, text in groups.items() if text is not None for number in number_in(text)
    }
    metrics = {name: number for name, number in numbers.items() if name not in _COUNTS}
    return Printed(
        Part.TRAINING,
        whole_of(groups.get("step")),
        whole_of(groups.get("total")),
        numbers.get("epoch"),
        None,
        metrics,
    )
