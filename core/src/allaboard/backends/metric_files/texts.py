"""Tables of metrics (Lightning's and Keras' CSVLogger, Ultralytics' results.csv and others of their kind) and
the state that Hugging Face's Trainer keeps. Values in, values out.
"""

from __future__ import annotations

import csv
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from allaboard.backends.metric_files.series import Series
from allaboard.text.reportline import whole
from allaboard.text.untrusted import Limits, Unreadable, parse_json

TABLE = "a table of metrics"
STATE = "Hugging Face's trainer_state.json"
STATE_NAME = "trainer_state.json"
TABLES = (".csv", ".tsv", ".log")
"""Ends of the names that tables have; Keras' own example is ``training.log``."""
_STEPS = (
    "step", "steps", "global_step", "total_timesteps", "timesteps", "num_updates", "updates", "update",
    "iteration", "iterations", "iter",
)  # fmt: skip
_NOT_METRICS = frozenset({*_STEPS, "epoch"})
_MOST_COLUMNS, _LONGEST_LINE, _LONGEST_NUMBER = 400, 20_000, 40
_STATE_LIMITS = Limits(size=32 << 20, depth=16, values=1_000_000)


def read_table(lines: Sequence[bytes]) -> Series | None:
    """The columns of a table whose head names a step or an epoch; None for other texts. An empty cell is no
    value: a row of a validation has none of the training. Epochs are steps where nothing counts steps.
    """
    texts = (line.decode("utf-8", "replace").rstrip("\r") for line in lines)
    head = next(texts, "").removeprefix("\ufeff")
    delimiter = next((sign for sign in ",;\t" if _counter(_cells(head, sign)) is not None), None)
    if delimiter is None:
        return None
    names = _cells(head, delimiter)
    counter = _counter(names)
    assert counter is not None
    series, first = Series(), None
    for row in _rows(texts, delimiter):
        step = whole(_number(row[counter])) if counter < len(row) else None
        if step is None:
            continue
        if names[counter].rpartition("/")[2].lower() == "epoch":
            first = step if first is None else min(first, step)
            step += 1 - min(first, 1)  # the first epoch is 0 or 1
        for name, cell in zip(names, row, strict=False):
            if name.rpartition("/")[2].lower() not in _NOT_METRICS and (value := _number(cell)) is not None:
                series.add(name, step, value if math.isfinite(value) else None)
    return series


def _cells(line: str, delimiter: str) -> list[str]:
    if len(line) > _LONGEST_LINE:
        return []
    try:
        cells = next(csv.reader([line], delimiter=delimiter), [])
    except csv.Error:
        return []
    return [cell.strip() for cell in cells[:_MOST_COLUMNS]]


def _counter(names: Sequence[str]) -> int | None:
    """The column that counts: steps, else epochs. None: this is no head of a table of metrics."""
    low = [name.rpartition("/")[2].lower() for name in names]
    known = next((name for name in (*_STEPS, "epoch") if name in low), None)
    return None if known is None or len(low) < 2 else low.index(known)


def _rows(texts: Iterator[str], delimiter: str) -> Iterator[list[str]]:
    short = (text for text in texts if len(text) <= _LONGEST_LINE and "\0" not in text)
    rows = csv.reader(short, delimiter=delimiter, strict=False)
    while True:
        try:
            yield next(rows)[:_MOST_COLUMNS]
        except StopIteration:
            return
        except csv.Error:  # a field that never ends
            continue


def _number(cell: str) -> float | None:
    """The number of a cell, which may be nan or infinite; None where it is none."""
    text = cell.strip()
    if not text or len(text) > _LONGEST_NUMBER or "_" in text:
        return None
    try:
        return float(text)
    except ValueError:
        return None


def read_state(data: bytes) -> tuple[Series, int | None] | None:
    """The history in a state of the Trainer, and its number of steps; None for other texts."""
    try:
        state = parse_json(data, _STATE_LIMITS, nonfinite=True, spelling=False, any_text=True, unique=False)
    except Unreadable:
        return None
    rows = state.get("log_history") if isinstance(state, Mapping) else None
    if not isinstance(rows, list):
        return None
    series = Series()
    for row in rows:
        step = whole(row.get("step")) if isinstance(row, Mapping) else None
        for name, value in row.items() if step is not None else ():
            if name not in _NOT_METRICS and _is_value(value):
                series.add(name, step or 0, value)
    return series, whole(state.get("max_steps")) or None


def _is_value(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def is_table(name: str) -> bool:
    return name.lower().endswith(TABLES)
