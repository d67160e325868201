"""The report line, with which a training process reports its progress.

    [allaboard] {"v":1,"kind":"progress","step":120,"total":400,"loss":0.31}

One line on stdout, so that it works wherever logs do: local files, ``kubectl logs``, a task log. Kinds of
version 1:

``progress`` step, total, loss and any other number · ``resumed`` step, source · ``checkpoint`` step, uri,
metrics, bytes · ``result`` metrics · ``flag`` code, text · ``inputs`` versions (package -> version), data
(uri -> what identifies what it holds) · ``stacks`` asked, and look or told: what a member answers whom
`allaboard.backends.kubernetes.stacks` asks by a file; no sign of progress · ``handed`` step: of the
checkpoint that a member was started with, written before its first line; no sign of progress.

Unknown kinds and fields are kept; a line of a newer version is read as far as it is understood. JSON has no
NaN: a number that is not finite is written as null and its name listed in ``nonfinite``.

Whoever reads takes nothing on trust: a training process may print anything. A line that is too long, too
deep, no text, or whose fields are not what its kind says is output, not a report.
"""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from allaboard.text.untrusted import Limits, Unreadable, parse_json

PREFIX = "[allaboard] "
VERSION = 1
STACKS, HANDED = "stacks", "handed"
LONGEST = 1 << 16
"""Characters of a report, its prefix left out; what is longer is output."""
MOST_STEPS = 10**15
OF_OBSERVERS = re.compile(r"gang_|node_lost|resource_quota_exceeded|rendezvous_never_happened|home_|clock_")
"""Flags that only an observer outside can raise; those of a script are ignored."""
_COUNTERS = frozenset({"step", "total"})
_LIMITS = Limits(size=LONGEST, depth=32, values=20_000, digits=100)
_CODE = re.compile(r"[A-Za-z0-9][A-Za-z0-9_.-]{0,63}")


@dataclass(frozen=True, slots=True)
class Report:
    """One decoded line. ``fields`` is everything but version, kind and ``nonfinite``. ``printed``: of
    progress that was read from what a script prints by itself, whose format that is; ``again``: its steps
    begin anew in the same process, so that none are lost.
    """

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    nonfinite: tuple[str, ...] = ()
    version: int = VERSION
    printed: str = ""
    again: bool = False


def encode(kind: str, **fields: Any) -> str:
    """The line, without a newline. Values must be JSON values or numbers with ``item()`` (numpy, torch
    scalars).
    """
    nonfinite: list[str] = []
    clean = {name: _plain(value, name, nonfinite) for name, value in fields.items() if value is not None}
    body: dict[str, Any] = {"v": VERSION, "kind": kind, **clean}
    if nonfinite:
        body["nonfinite"] = nonfinite
    return PREFIX + json.dumps(body, separators=(",", ":"), allow_nan=False)


def decode(line: str) -> Report | None:
    """The report in a log line, or None when the line is something else (also when it was cut short). Raises
    nothing, whatever the line holds, and takes time and memory as its length.

    Of a writer that put NaN or Infinity there, which JSON has not, they are null and named, as `encode` does.
    """
    start = line.find(PREFIX + "{")
    if start < 0:
        return None
    text = line[start + len(PREFIX) : start + len(PREFIX) + LONGEST + 2].rstrip("\r\n")
    try:
        parse_json(text, _LIMITS, nonfinite=True)
        # Once more, now that it is known to be harmless: here what is not finite keeps its name.
        body = json.loads(text)
    except (Unreadable, ValueError, RecursionError):
        return None
    version, kind = body.pop("v", None), body.pop("kind", None)
    nonfinite = body.pop("nonfinite", ())
    if isinstance(version, bool) or not isinstance(version, int) or not isinstance(kind, str):
        return None
    names = [n for n in nonfinite if isinstance(n, str)] if isinstance(nonfinite, (list, tuple)) else []
    fields = {name: _plain(value, name, names) for name, value in body.items()}
    if not all(_fits(fields.get(name), fits, name in names) for name, fits in _FIELDS.get(kind, {}).items()):
        return None
    return Report(kind, fields, tuple(names), version)


def is_beginning(report: Report) -> bool:
    """True for progress at 0 that tells no number, as a client writes it that is about to jump to the step at
    which a training goes on: no step was lost.
    """
    return report.kind == "progress" and report.fields.get("step") == 0 and report.fields.keys() <= _COUNTERS


def is_answer(line: str) -> bool:
    """True if a line only answers a question: its writer may stand still all the same."""
    return f'{PREFIX}{{"v":{VERSION},"kind":"{STACKS}",' in line[:200]


def whole(value: Any) -> int | None:
    """A number of steps: 4 for 4 and 4.0; None for anything that cannot be one."""
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return int(value) if 0 <= value <= MOST_STEPS else None


def _fits(value: Any, fits: Callable[[Any], bool], is_odd: bool) -> bool:
    """True if a field has the type of its kind. It may be absent; a number may not be NaN or infinite."""
    return not is_odd if value is None else fits(value)


def _is_whole(value: Any) -> bool:
    return whole(value) is not None


def _is_text(value: Any) -> bool:
    return isinstance(value, str)


def _is_texts(value: Any) -> bool:
    return isinstance(value, Mapping) and all(isinstance(text, str) for text in value.values())


_FIELDS: Mapping[str, Mapping[str, Callable[[Any], bool]]] = {
    "progress": {"step": _is_whole, "total": _is_whole},
    "resumed": {"step": _is_whole},
    HANDED: {"step": _is_whole},
    "checkpoint": {"step": _is_whole, "uri": _is_text},
    "result": {"metrics": lambda value: isinstance(value, Mapping)},
    "inputs": {"versions": _is_texts, "data": _is_texts},
    STACKS: {"asked": _is_text, "look": _is_text, "told": _is_whole},
    "flag": {"code": lambda value: isinstance(value, str) and bool(_CODE.fullmatch(value)), "text": _is_text},
}
"""Requirements on the fields of a kind for a line to be a report."""


def _plain(value: Any, path: str, nonfinite: list[str]) -> Any:
    if isinstance(value, Mapping):
        return {str(k): _plain(v, f"{path}.{k}", nonfinite) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, f"{path}[{i}]", nonfinite) for i, v in enumerate(value)]
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if hasattr(value, "item"):
        return _plain(value.item(), path, nonfinite)
    number = float(value)
    if math.isfinite(number):
        return number
    nonfinite.append(path)
    return None
