"""Logs whose lines are JSON: what a program says in fields, as lines that it would have printed. Values in,
values out.

structlog, loguru, python-json-logger, Elastic's ECS and the log drivers of containers write a traceback as
one field, with its line breaks escaped.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from typing import Any

LONGEST = 256 << 10
"""Characters of a line that are parsed."""
DEEPEST = 6
"""Objects within objects whose fields are read."""
_HEADS = ("msg", "message", "event", "log", "text")
_ASIDE = frozenset(
    {"level", "levelname", "severity", "logger", "name", "module", "func", "filename", "stream"}
)
_TIMES = frozenset({"ts", "time", "timestamp", "@timestamp", "asctime", "datetime"})
_RAISED = re.compile(r"[A-Za-z_][\w.]*")


def unfold(text: str) -> str:
    """The same log; a line that is a JSON object stands as its message, then what its other fields say, each
    on a line of its own. Numbers stand behind the message as ``key=value``; null and empty fields say
    nothing."""
    if '{"' not in text:
        return text
    return "\n".join(piece for line in text.split("\n") for piece in _lines_of(line))


def _lines_of(line: str) -> Iterator[str]:
    at = line.find('{"')
    if at < 0 or at > 200 or len(line) > LONGEST or not line.rstrip().endswith("}"):
        yield line
        return
    try:
        fields = json.loads(line[at:])
    except (ValueError, RecursionError):
        yield line
        return
    yield from (f"{line[:at]}{text}" for text in _said_by(fields))


def _said_by(fields: Mapping[str, Any]) -> Iterator[str]:
    lowered = {str(key).lower(): value for key, value in fields.items()}
    time = next((str(lowered[key]) for key in lowered if key in _TIMES and isinstance(lowered[key], str)), "")
    head_key = next((key for key in _HEADS if isinstance(lowered.get(key), str)), "")
    head, *more = str(lowered.get(head_key, "")).strip("\n").split("\n")
    rank = f"[rank{lowered['rank']}]: " if _is_number(lowered.get("rank")) else ""
    numbers = [f"{key}={value}" for key, value in lowered.items() if _is_number(value)]
    yield rank + " ".join(piece for piece in (time, head, *numbers) if piece)
    yield from (rank + line for line in more)
    rest = {key: value for key, value in lowered.items() if key not in _ASIDE | _TIMES and key != head_key}
    yield from (rank + line for line in _texts(rest, DEEPEST))


def _texts(value: Any, depth: int) -> Iterator[str]:
    """Lines of all texts within a value; a type of an exception and its message stand on one line."""
    if isinstance(value, str):
        yield from value.strip("\n").split("\n") if value.strip() else ()
    elif depth and isinstance(value, list):
        for item in value:
            yield from _texts(item, depth - 1)
    elif depth and isinstance(value, Mapping):
        kind = next((v for k, v in value.items() if k.lower().endswith("type") and isinstance(v, str)), "")
        message = next(
            (v for k, v in value.items() if k.lower().endswith(("value", "message")) and isinstance(v, str)),
            "",
        )
        pair = kind and message and _RAISED.fullmatch(kind) is not None
        for item in value.values():
            if not (pair and item in (kind, message)):
                yield from _texts(item, depth - 1)
        if pair:
            yield f"{kind}: {message}"


def _is_number(value: Any) -> bool:
    return isinstance(value, int | float) and not isinstance(value, bool)
