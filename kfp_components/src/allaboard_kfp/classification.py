"""Confusion matrix and ROC curve of an evaluated classifier, for Kubeflow's own pictures. Values in, values
out.

An evaluation reports them beside its numbers, in plain form::

    result(
        accuracy=0.98,
        confusion={"labels": ["cat", "dog"], "matrix": [[48, 2], [1, 49]]},  # rows: what it is
        roc={"fpr": [0.0, 0.1, 1.0], "tpr": [0.0, 0.9, 1.0], "thresholds": [1.0, 0.5, 0.0]},
    )

Any other form is refused with a sentence, and no picture is made of it; the numbers of the evaluation stay.
A curve of many points is thinned.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, Protocol, TypeGuard

from allaboard.errors import BadInput
from allaboard.text.printable import visible
from allaboard.text.redaction import redact_text
from allaboard.text.units import counted

CONFUSION, ROC = "confusion", "roc"
MOST_LABELS = 100
LONGEST_LABEL = 200
MOST_POINTS = 200
LARGEST = 1e308


class Pictures(Protocol):
    """The part of kfp's ClassificationMetrics that is used here."""

    def log_confusion_matrix(self, categories: list[str], matrix: list[list[int]]) -> None: ...

    def log_roc_curve(self, fpr: list[float], tpr: list[float], threshold: list[float]) -> None: ...


@dataclass(frozen=True, slots=True)
class Confusion:
    """Rows: what it is; columns: what it was taken for; both in the order of ``labels``."""

    labels: tuple[str, ...]
    matrix: tuple[tuple[int, ...], ...]


@dataclass(frozen=True, slots=True)
class Roc:
    """Points: the false and the true positive rate at a threshold."""

    fpr: tuple[float, ...]
    tpr: tuple[float, ...]
    thresholds: tuple[float, ...]


def without_pictures(results: Mapping[str, Any]) -> dict[str, Any]:
    """The results without what is drawn: the numbers that a gate compares."""
    return {name: value for name, value in results.items() if name not in (CONFUSION, ROC)}


def draw(results: Mapping[str, Any], pictures: Pictures) -> list[str]:
    """Give Kubeflow what the results hold, and return a sentence for each thing that is refused."""
    troubles = []
    try:
        confusion = confusion_of(results)
        if confusion is not None:
            pictures.log_confusion_matrix([*confusion.labels], [[*row] for row in confusion.matrix])
    except BadInput as error:
        troubles.append(f"no confusion matrix is shown: {error}")
    try:
        roc = roc_of(results)
        if roc is not None:
            pictures.log_roc_curve([*roc.fpr], [*roc.tpr], [*roc.thresholds])
    except BadInput as error:
        troubles.append(f"no ROC curve is shown: {error}")
    return troubles


def confusion_of(results: Mapping[str, Any]) -> Confusion | None:
    """The confusion matrix that the results hold, if any. Raises BadInput with what is wrong."""
    given = results.get(CONFUSION)
    if given is None:
        return None
    labels, matrix = _fields(given, CONFUSION, ("labels", "matrix"))
    if not labels or len(labels) > MOST_LABELS:
        raise BadInput(f"confusion.labels: there are {len(labels)}; give 1 to {MOST_LABELS}")
    names = tuple(map(_label, labels))
    if len(set(names)) < len(names):
        twice = next(name for n, name in enumerate(names) if name in names[:n])
        raise BadInput(f"confusion.labels: {twice!r} is there twice; give each label once")
    if len(matrix) != len(labels):
        raise BadInput(
            f"confusion.matrix has {counted(len(matrix), 'row')} for {counted(len(labels), 'label')}; "
            "give a row of counts for each label"
        )
    return Confusion(names, tuple(_row(row, n, len(labels)) for n, row in enumerate(matrix)))


def roc_of(results: Mapping[str, Any]) -> Roc | None:
    """The ROC curve that the results hold, if any. Raises BadInput with what is wrong."""
    given = results.get(ROC)
    if given is None:
        return None
    fpr, tpr, thresholds = _fields(given, ROC, ("fpr", "tpr", "thresholds"))
    if not len(fpr) == len(tpr) == len(thresholds) or not fpr:
        raise BadInput(
            f"roc: fpr, tpr and thresholds have {len(fpr)}, {len(tpr)} and {len(thresholds)} values; "
            "give as many of each, and one at least"
        )
    for name, values in (("fpr", fpr), ("tpr", tpr)):
        for n, value in enumerate(values):
            if not _is_number(value) or not 0 <= value <= 1:
                raise BadInput(f"roc.{name}[{n}]: {_shown(value)} is no rate; give a number from 0 to 1")
    # The first one is infinite in scikit-learn, "nothing is taken", which JSON cannot say.
    rest = thresholds[1:] if thresholds[0] is None else thresholds
    for n, value in enumerate(rest, len(thresholds) - len(rest)):
        if not _is_number(value):
            raise BadInput(f"roc.thresholds[{n}]: {_shown(value)} is no finite number")
    known = [float(value) for value in rest]
    if len(rest) < len(thresholds):
        known = [max(known, default=0.0) + 1.0, *known]
    kept = _thinned(range(len(known)))
    return Roc(
        tuple(float(fpr[n]) for n in kept), tuple(float(tpr[n]) for n in kept), tuple(known[n] for n in kept)
    )


def _fields(given: Any, path: str, names: tuple[str, ...]) -> list[Sequence[Any]]:
    if not isinstance(given, Mapping):
        raise BadInput(f"{path}: {type(given).__name__} is no mapping; give {', '.join(names)}")
    for name in names:
        if not isinstance(given.get(name), (list, tuple)):
            raise BadInput(f"{path}.{name}: {_shown(given.get(name))} is no list; give {', '.join(names)}")
    return [given[name] for name in names]


def _label(value: Any) -> str:
    """Classes are often numbers, and Kubeflow takes texts alone."""
    if isinstance(value, bool) or not isinstance(value, (str, int)):
        raise BadInput(f"confusion.labels: {_shown(value)} is no label; give a text or a whole number")
    text = visible(redact_text(str(value) if isinstance(value, str) else _shown(value)))
    if not text.strip() or len(text) > LONGEST_LABEL:
        raise BadInput(f"confusion.labels: a label has {len(text)} characters; give 1 to {LONGEST_LABEL}")
    return text


def _row(row: Any, n: int, width: int) -> tuple[int, ...]:
    if not isinstance(row, (list, tuple)) or len(row) != width:
        has = f"has {counted(len(row), 'value')}" if isinstance(row, (list, tuple)) else f"is {_shown(row)}"
        raise BadInput(f"confusion.matrix[{n}] {has}; give {counted(width, 'count')}, one for each label")
    for m, value in enumerate(row):
        if not _is_number(value) or value < 0 or value != int(value) or value > 2**53:
            raise BadInput(f"confusion.matrix[{n}][{m}]: {_shown(value)} is no count; give 0 or more")
    return tuple(int(value) for value in row)


def _thinned(points: Sequence[int]) -> list[int]:
    """All of few, or so many of many, evenly, the first and the last among them."""
    if len(points) <= MOST_POINTS:
        return [*points]
    step = (len(points) - 1) / (MOST_POINTS - 1)
    return [points[round(n * step)] for n in range(MOST_POINTS)]


def _is_number(value: Any) -> TypeGuard[int | float]:
    # math.isfinite raises for an int that no float can be.
    return isinstance(value, (int, float)) and not isinstance(value, bool) and -LARGEST <= value <= LARGEST


def _shown(value: Any) -> str:
    if isinstance(value, int) and abs(value) > LARGEST:
        return "a number that is too large"
    try:
        return visible(redact_text(repr(value)))[:80]
    except ValueError:  # Python writes no number of thousands of digits
        return "what it holds"
