"""Metrics as they are kept, and which of two is better. Values in, values out.

JSON has no NaN: a number that is not finite is kept as null and its name is listed beside it. Such a number
is never the best one and never passes a gate. Names of nested metrics are written with dots: ``val.loss``.
"""

from __future__ import annotations

import math
import sys
from collections.abc import Callable, Iterable, Mapping
from typing import Any, TypeVar

from allaboard.errors import BadInput
from allaboard.text.untrusted import show

MODES = ("min", "max")
_LARGEST = sys.float_info.max
Item = TypeVar("Item")


def plain(metrics: Mapping[str, Any] | None) -> tuple[dict[str, Any], tuple[str, ...]]:
    """Metrics as JSON values, and the names of those that are not finite (they become None).

    Takes numbers of any kind (numpy and torch scalars included), booleans, text, None, and mappings and
    lists of them. Raises BadInput, naming the metric, for anything else.
    """
    if metrics is not None and not isinstance(metrics, Mapping):
        raise BadInput(f"metrics: {type(metrics).__name__} is not a mapping; give names and numbers")
    nonfinite: list[str] = []
    clean = {str(name): _plain(value, str(name), nonfinite) for name, value in (metrics or {}).items()}
    return clean, tuple(nonfinite)


def _plain(value: Any, path: str, nonfinite: list[str]) -> Any:
    if value is None or isinstance(value, (bool, int, str)):
        return value
    if isinstance(value, Mapping):
        return {str(k): _plain(v, f"{path}.{k}", nonfinite) for k, v in value.items()}
    if isinstance(value, (list, tuple)):
        return [_plain(v, f"{path}[{i}]", nonfinite) for i, v in enumerate(value)]
    try:
        if not isinstance(value, float) and callable(getattr(value, "item", None)):
            return _plain(value.item(), path, nonfinite)
        number = float(value)
    except (TypeError, ValueError, RuntimeError) as error:
        raise BadInput(f"metrics.{path}: {type(value).__name__} is not a number; give one number") from error
    if math.isfinite(number):
        return number
    nonfinite.append(path)
    return None


def find(metrics: Mapping[str, Any], name: str, default: Any = None) -> Any:
    """The value of that name; ``val.loss`` also finds ``{"val": {"loss": 0.3}}``."""
    if name in metrics:
        return metrics[name]
    first, dot, rest = name.partition(".")
    inner = metrics.get(first)
    return find(inner, rest, default) if dot and isinstance(inner, Mapping) else default


def number(metrics: Mapping[str, Any], name: str) -> float | None:
    """The finite number of that name, or None: missing, null, NaN, infinite, text and booleans are no
    numbers.
    """
    value = find(metrics, name)
    if isinstance(value, bool) or not isinstance(value, (int, float)):
        return None
    return value if -_LARGEST <= value <= _LARGEST else None


def number_trouble(metrics: Mapping[str, Any], name: str) -> str:
    """A sentence on why `number` gives None for these metrics, which `plain` made."""
    value = find(metrics, name, metrics)
    if value is metrics:
        known = ", ".join(sorted(metrics)) or "none"
        return f"{name} is missing (the metrics are: {show(known, 500, quote=False)})"
    if value is None or (isinstance(value, (int, float)) and not isinstance(value, bool)):
        return f"{name} is not a finite number"
    return f"{name} is {show(repr(value), quote=False)}, not a number"


def best_of(
    items: Iterable[Item], metrics_of: Callable[[Item], Mapping[str, Any]], metric: str, mode: str
) -> list[Item]:
    """The items that have the metric, best first; of equals, the later one first. ``mode`` is min or max."""
    check_mode(mode)
    sign = 1 if mode == "min" else -1
    having = [(value, item) for item in items if (value := number(metrics_of(item), metric)) is not None]
    return [item for _, item in sorted(reversed(having), key=lambda pair: sign * pair[0])]


def check_mode(mode: str) -> str:
    if mode not in MODES:
        raise BadInput(f"mode {mode!r} is not known; write min (smaller is better) or max")
    return mode


def parse_best(text: str) -> tuple[str, str]:
    """``val_loss:min`` -> (``val_loss``, ``min``). Raises BadInput."""
    metric, colon, mode = text.rpartition(":")
    if not colon or not metric:
        raise BadInput(f"best {text!r} names no metric and mode; write val_loss:min or accuracy:max")
    return metric, check_mode(mode)
