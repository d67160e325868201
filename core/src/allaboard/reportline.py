"""The line with which a training process tells its follower how it goes.

    [allaboard] {"v":1,"kind":"progress","step":120,"total":400,"loss":0.31}

One line on stdout, so that it works wherever logs do: local files, ``kubectl logs``, a task log. Kinds of
version 1:

``progress`` step, total, loss and any other number · ``resumed`` step, source · ``checkpoint`` step, uri,
metrics · ``result`` metrics · ``flag`` code, text.

Unknown kinds and fields are kept; a line of a newer version is read as far as it is understood. JSON has no
NaN: a number that is not finite is written as null and its name listed in ``nonfinite``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

PREFIX = "[allaboard] "
VERSION = 1


@dataclass(frozen=True, slots=True)
class Report:
    """One decoded line. ``fields`` is everything but version, kind and ``nonfinite``."""

    kind: str
    fields: Mapping[str, Any] = field(default_factory=dict)
    nonfinite: tuple[str, ...] = ()
    version: int = VERSION


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
    """The report in a log line, or None when the line is something else (also when it was cut short).

    Of a writer that put NaN or Infinity there, which JSON has not, they are null and named, as `encode` does.
    """
    start = line.find(PREFIX + "{")
    if start < 0:
        return None
    try:
        body = json.loads(line[start + len(PREFIX) :])
    except (ValueError, RecursionError):
        return None
    version, kind = body.pop("v", None), body.pop("kind", None)
    nonfinite = body.pop("nonfinite", ())
    if not isinstance(version, int) or not isinstance(kind, str):
        return None
    names = [n for n in nonfinite if isinstance(n, str)] if isinstance(nonfinite, (list, tuple)) else []
    fields = {name: _plain(value, name, names) for name, value in body.items()}
    return Report(kind, fields, tuple(names), version)


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
