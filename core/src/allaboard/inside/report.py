"""Tell the follower how the training goes: lines on stdout that `allaboard.text.reportline` reads.

Rank 0 speaks for all. At most ten progress lines a second are written: what comes sooner waits, the latest
replaces what waits, and a small thread writes it when its time has come; so a tight loop costs next to
nothing, and the last report of a burst is not lost when the next one takes an hour. The final step, a result
and the end of the process do not wait. A report never ends a training: when stdout is gone, it is silent.
"""

from __future__ import annotations

import atexit
import math
import operator
import os
import sys
import threading
import time
from collections import deque
from collections.abc import Callable, Mapping
from contextlib import suppress
from types import ModuleType
from typing import Any

from allaboard.errors import BadInput
from allaboard.inside.context import ranks
from allaboard.text.reportline import LONGEST, encode

EVERY = 0.1  # seconds between two progress lines
_SPEED_OVER = 10.0  # seconds
MOST_VERSIONS = 50
_FRAMEWORKS = (
    "torch", "tensorflow", "jax", "paddle", "xgboost", "lightgbm", "numpy", "transformers", "accelerate",
    "deepspeed", "lightning", "datasets", "allaboard",
)  # fmt: skip
_TERMINATION_LOG, _MOST_OF_A_STATUS = "/dev/termination-log", 4096
_RESERVED = ("v", "kind", "nonfinite", "steps_per_second")


def report(step: int, total: int | None = None, loss: Any = None, **numbers: Any) -> None:
    """Report that ``step`` of ``total`` steps is done. Call it as often as you like, on every rank.

    Rank 0 writes the line, at most ten lines a second; the last report is never lost. ``loss`` and the other
    ``numbers`` are numbers, or scalars of numpy or torch; a number that is not finite is written as null and
    flagged. Steps per second are measured here. Raises BadInput for a value that is no number.
    """
    fields = _check_fields(step, total, {"loss": loss, **numbers})
    if ranks()[0] == 0:
        if not _writer.told_versions:
            _writer.told_versions = True
            _writer.write_line(_encode_line("inputs", versions=loaded_versions()))
        _writer.progress(fields)


def loaded_versions() -> dict[str, str]:
    """Python's version and those of the packages that this process has imported so far, by their names for
    ``import``: what has a ``__version__``, `MOST_VERSIONS` at most, frameworks first. Nothing is imported for
    it.
    """
    versions = {"python": ".".join(map(str, sys.version_info[:3]))}
    for name in [*(name for name in _FRAMEWORKS if name in sys.modules), *sorted(sys.modules)]:
        module = sys.modules.get(name)
        if "." in name or name.startswith("_") or name in sys.stdlib_module_names:
            continue
        if len(versions) >= MOST_VERSIONS:
            break
        version = vars(module).get("__version__") if isinstance(module, ModuleType) else None
        if isinstance(version, str) and 0 < len(version) <= 60:
            versions[name] = str(version)  # torch's is a str of its own
    return versions


def result(**metrics: Any) -> None:
    """Report the metrics that the training ends with, such as ``result(val_loss=0.03, accuracy=0.98)``:
    numbers, strings, lists and mappings of them.

    The last result of a run counts. Raises BadInput for values that JSON cannot represent. A result of more
    than 64 KiB is dropped and the run is flagged: no training fails at its end because of a long line.
    """
    write_report("result", metrics=metrics)


def write_report(kind: str, **fields: Any) -> None:
    """A line of another kind, for the rest of `allaboard.inside`: a checkpoint, a resume, a flag."""
    line = _encode_line(kind, **fields)
    if len(line) > LONGEST:
        text = f"a {kind} of {len(line):,} characters is not kept; {LONGEST:,} are read, write it to a file"
        line = _encode_line("flag", code="report_too_large", text=text)
    if ranks()[0] == 0:
        _writer.write_line(line)
        if kind == "result":
            _keep_in_pod_status(_writer.last_progress + line)


class ReportWriter:
    """Writes lines through ``write`` (one call each); ``clock`` counts seconds. `due` says when what waits
    is to be written.
    """

    def __init__(self, write: Callable[[str], None], clock: Callable[[], float] = time.monotonic) -> None:
        self._write = write
        self._clock = clock
        self._lock = threading.Condition()
        self._waiting: dict[str, Any] | None = None
        self._odd: dict[str, Any] | None = (
            None  # the latest report with a number that is not finite; no later one replaces it
        )
        self._next = -math.inf
        self._speed = Speed()
        self._thread: threading.Thread | None = None
        self.last_progress = ""
        """The last line about progress, with its newline."""
        self.told_versions = False

    def progress(self, fields: Mapping[str, Any]) -> None:
        with self._lock:
            now = self._clock()
            speed = self._speed.add_step(fields["step"], now)
            waiting = {**fields, "steps_per_second": speed}
            if _has_nonfinite(fields):
                self._odd = waiting
            self._waiting = waiting
            if now >= self._next or fields["step"] == fields.get("total"):
                self._flush()
            else:
                self._wake_later()

    def write_line(self, line: str) -> None:
        """This line now, after what waits."""
        with self._lock:
            self._flush()
            self._write(f"{line}\n")

    def flush(self) -> None:
        """Write what waits."""
        with self._lock:
            self._flush()

    def due(self) -> float | None:
        """Seconds until what waits is to be written, None when nothing waits."""
        return None if self._waiting is None else max(0.0, self._next - self._clock())

    def _flush(self) -> None:
        waiting, odd = self._waiting, self._odd
        self._waiting = self._odd = None
        for fields in (odd if odd is not waiting else None, waiting):
            if fields is not None:
                with suppress(
                    Exception
                ):  # reading a tensor may fail in many ways; the training will hear of it itself
                    self.last_progress = encode("progress", **fields) + "\n"
                    self._write(self.last_progress)
                self._next = self._clock() + EVERY

    def _wake_later(self) -> None:
        if self._thread is None:
            self._thread = threading.Thread(target=self._flush_when_due, name="allaboard-report", daemon=True)
            self._thread.start()
        self._lock.notify()

    def _flush_when_due(self) -> None:
        with self._lock:
            while True:
                due = self.due()
                if due == 0.0:
                    self._flush()
                else:
                    self._lock.wait(due)


class Speed:
    """Steps per second over the last ten seconds, or since the step last went backwards."""

    def __init__(self) -> None:
        self._seen: deque[tuple[float, int]] = deque()

    def add_step(self, step: int, now: float) -> float | None:
        """The speed, now that ``step`` is done; None while there is nothing to compare with."""
        seen = self._seen
        if seen and step < seen[-1][1]:
            seen.clear()
        while len(seen) > 1 and seen[1][0] <= now - _SPEED_OVER:
            seen.popleft()
        speed = None
        if seen and now > seen[0][0]:
            speed = round((step - seen[0][1]) / (now - seen[0][0]), 3)
        if not seen or now >= seen[-1][0] + EVERY:
            seen.append((now, step))
        return speed


def _check_fields(step: Any, total: Any, numbers: Mapping[str, Any]) -> dict[str, Any]:
    fields: dict[str, Any] = {"step": _check_integer("step", step)}
    if total is not None:
        fields["total"] = _check_integer("total", total)
    for name, value in numbers.items():
        if name in _RESERVED:
            raise BadInput(f"report({name}=...): this name is taken by the report line itself; use another")
        if value is not None:
            fields[name] = _number(name, value)
    return fields


def _check_integer(name: str, value: Any) -> int:
    try:
        number = operator.index(value)
    except TypeError:
        number = -1
    if number < 0 or isinstance(value, bool):
        raise BadInput(f"report({name}={value!r}): give a whole number, 0 or more")
    return number


def _number(name: str, value: Any) -> Any:
    """The value itself, cut loose from what it was computed from. A tensor stays one: its value would cost
    a wait for the device.
    """
    elements = value.numel() if hasattr(value, "numel") else getattr(value, "size", 1)
    if elements == 1 and hasattr(value, "detach"):
        return value.detach().clone()
    if elements == 1 and hasattr(value, "item"):
        value = value.item()
    if isinstance(value, (int, float)):
        return value
    raise BadInput(f"report({name}={repr(value)[:60]}): give a number, or a tensor or array of one element")


def _has_nonfinite(fields: Mapping[str, Any]) -> bool:
    return any(isinstance(value, float) and not math.isfinite(value) for value in fields.values())


def _encode_line(kind: str, **fields: Any) -> str:
    try:
        return encode(kind, **fields)
    except (TypeError, ValueError) as error:
        raise BadInput(
            f"{kind}(...) holds what JSON cannot say: {error}; give numbers, strings, lists and mappings"
        ) from error


def _write_stdout(text: str) -> None:
    try:
        sys.stdout.write(text)  # one call: with -u each is one write to the pipe that the ranks share
        sys.stdout.flush()
    except RuntimeError:  # a signal handler reports in the middle of another write, which stdout refuses
        with suppress(OSError):
            os.write(1, text.encode())
    except (OSError, ValueError, AttributeError):
        pass  # the reader is gone


def _keep_in_pod_status(text: str) -> None:
    """The kubelet copies up to 4,096 bytes of this file into the status of the pod, which is known for longer
    than its log: an operator may delete the pod the moment its gang has succeeded. Elsewhere there is no such
    file, and none is made.
    """
    data = text.encode(errors="replace")
    if len(data) > _MOST_OF_A_STATUS:
        return
    with suppress(OSError):
        file = os.open(_TERMINATION_LOG, os.O_WRONLY | os.O_TRUNC | os.O_NOFOLLOW)
        try:
            os.write(file, data)
        finally:
            os.close(file)


_writer = ReportWriter(_write_stdout)
atexit.register(lambda: _writer.flush())


def _after_fork() -> None:
    global _writer  # the child has no thread, and what waits is its parent's to write
    _writer = ReportWriter(_write_stdout)


if hasattr(os, "register_at_fork"):
    os.register_at_fork(after_in_child=_after_fork)
