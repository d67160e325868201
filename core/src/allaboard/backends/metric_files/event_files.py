"""TensorBoard's event files, by TensorBoard's own reader.

A file holds records: 8 bytes that say how long the next part is, 4 of a checksum, that part, 4 of a checksum.
Only short records reach the reader, because a scalar is short; graphs, pictures and a length that lies are
left out without a byte of them in memory.
"""

from __future__ import annotations

import os
import struct
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from typing import Any, BinaryIO

from allaboard.backends.metric_files.bounds import Budget, Window
from allaboard.backends.metric_files.series import Series
from allaboard.errors import SiteError

FORMAT = "TensorBoard's event files"
_HEAD, _TAIL = 12, 4
_LONGEST_RECORD = 64 << 10
_NUMBERS = frozenset({1, 2, 3, 9, 14, 19})
"""Types of a tensor that is a number: float, double, int32, int64, bfloat16, half."""


def read(window: Window, budget: Budget) -> tuple[Series, float | None]:
    """The scalars of a file, and when the first of its records was written. A torn last record ends it.
    Raises SiteError where TensorBoard is not installed.
    """
    try:
        from google.protobuf.message import DecodeError
        from tensorboard.backend.event_processing.event_file_loader import LegacyEventFileLoader
    except ImportError:
        raise SiteError(
            "event files are read by TensorBoard's own reader, which is not installed here; "
            "install allaboard[tensorboard]"
        ) from None
    series, began = Series(), None
    fd, path = tempfile.mkstemp(prefix="allaboard-events-")
    try:
        with os.fdopen(fd, "wb") as file:
            _copy_short_records(window, file)
        try:
            for event in LegacyEventFileLoader(path).Load():
                if budget.is_spent:
                    break
                if began is None and 0 < event.wall_time < 1e11:
                    began = float(event.wall_time)
                for tag, value in _scalars(event):
                    series.add(tag, event.step, value)
        except DecodeError:  # no event at all, from here on
            pass
    finally:
        os.unlink(path)  # noqa: PTH108
    return series, began


def _copy_short_records(window: Window, file: BinaryIO) -> None:
    place = 0
    while len(head := window.at(place, _HEAD)) == _HEAD:
        length = struct.unpack("<Q", head[:8])[0]
        whole = _HEAD + length + _TAIL
        if place + whole > window.size:
            return
        if length <= _LONGEST_RECORD:
            file.write(window.at(place, whole))
        place += whole


def _scalars(event: Any) -> Iterator[tuple[str, float]]:
    for value in event.summary.value:
        kind = value.WhichOneof("value")
        if kind == "simple_value":
            yield value.tag, value.simple_value
        elif kind == "tensor" and _is_number(value.tensor):
            from tensorboard.util.tensor_util import make_ndarray

            with suppress(ValueError, TypeError):  # bytes that are not of its type
                yield value.tag, float(make_ndarray(value.tensor).item())


def _is_number(tensor: Any) -> bool:
    """True for one number: a tensor of a few bytes may say that it is as large as it likes."""
    of_one = all(dim.size == 1 for dim in tensor.tensor_shape.dim) and len(tensor.tensor_shape.dim) <= 2
    if tensor.dtype not in _NUMBERS or not of_one:
        return False
    values = (tensor.float_val, tensor.double_val, tensor.int_val, tensor.int64_val, tensor.half_val)
    return 0 < len(tensor.tensor_content) <= 8 or [len(v) for v in values if len(v)] == [1]
