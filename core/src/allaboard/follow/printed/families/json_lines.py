"""Objects of JSON, one a line, with a step or an epoch and a loss among their numbers."""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from allaboard.follow.printed.form import LOSS, LOSSES, Format, Part, Printed
from allaboard.follow.printed.numbers import number_in
from allaboard.follow.printed.prefixes import prefix_end
from allaboard.text.untrusted import Limits, Unreadable, parse_json

_HELD = re.compile(r"(?:^|[_ /-])(?:val|valid|validation|eval|test|dev)(?:[_ /-]|$)", re.IGNORECASE)
_LIMITS = Limits(size=1 << 14, depth=4, values=400, digits=40)
_STEPS = (
    "step",
    "global_step",
    "steps",
    "_step",
    "iteration",
    "iter",
    "num_updates",
    "trainer/global_step",
    "batches_seen",
    "round",
)
_TOTALS = ("total", "total_steps", "max_steps", "num_steps", "max_iters")
_ASIDE = frozenset({
    "ts", "time", "timestamp", "pid", "tid", "lineno", "rank", "local_rank", "world_size", "level",
    "levelno", "thread", "process", "created", "asctime",
})  # fmt: skip


def _json(text: str) -> Printed | None:
    start = text.find("{")
    if start < 0 or not text.endswith("}") or '"' not in text or prefix_end(text) < start:
        return None
    try:
        body = parse_json(text[start:], _LIMITS, nonfinite=True, spelling=False)
    except Unreadable:
        return None
    if not isinstance(body, Mapping):
        return None
    printed = _object(body)
    if printed is None or any(
        value is not None for name, value in printed.metrics.items() if LOSS.search(name)
    ):
        return printed
    # A loss that is not finite is one; null is none.
    return printed if "NaN" in text or "Infinity" in text else None


def _object(body: Mapping[str, Any]) -> Printed | None:
    if len(body) == 1 and isinstance(inside := next(iter(body.values())), Mapping):
        body = {"split": next(iter(body)), **inside}  # {"train": {"step": 10, "loss": 0.5}}
    numbers = _numbers(body)
    inner: Mapping[str, Any] = next(
        (body[n] for n in ("metrics", "data", "logs") if isinstance(body.get(n), Mapping)), {}
    )
    numbers |= _numbers(inner)
    step = next((numbers[name] for name in _STEPS if numbers.get(name) is not None), None)
    total = next((numbers[name] for name in _TOTALS if numbers.get(name) is not None), None)
    epoch = numbers.get("epoch")
    counters = {*_STEPS, *_TOTALS, "epoch"}
    metrics = {n: v for n, v in numbers.items() if n not in counters and n.lower() not in _ASIDE}
    if (step is None and epoch is None) or not any(LOSS.search(name) for name in metrics):
        return None
    if step is not None and (step < 0 or step != int(step)):
        return None
    split = str(
        next((body[n] for n in ("mode", "split", "phase", "stage") if isinstance(body.get(n), str)), "")
    )
    losses = [name for name in metrics if LOSS.search(name)]
    held = bool(_HELD.search(split)) or all(_HELD.search(name) for name in losses)
    return Printed(
        Part.VALIDATION if held else Part.TRAINING,
        None if step is None else int(step),
        int(total) if total else None,
        epoch,
        None,
        metrics,
    )


def _numbers(body: Mapping[str, Any]) -> dict[str, Any]:
    """Named numbers, of which some writers make texts."""
    read = {name: number_in(value) if isinstance(value, str) else (value,) for name, value in body.items()}
    return {name: value[0] for name, value in read.items() if value and _is_number(value[0])}


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


PLAIN = (Format("a logger of JSON lines", LOSSES, (_json,), plain=True, counts_epochs=True),)
