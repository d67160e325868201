"""A training loop of one's own: a line of counters and named numbers with a loss among them and nothing else,
``iter 10: loss 4.2013, time 120.31ms``; or an object of JSON. Known loops have their names.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from typing import Any

from allaboard.follow.printed.form import LOSS, Format, Part, Printed
from allaboard.follow.printed.numbers import NUMBER, number_of, whole_of
from allaboard.follow.printed.prefixes import prefix_end
from allaboard.text.untrusted import Limits, Unreadable, parse_json

_UNITS = (
    r"(?:%|[A-Za-zµ]{1,8}(?:/[A-Za-z]{1,8}){0,2}\b"
    r"| (?:[A-Za-z]{1,8}(?:/[A-Za-z]{1,8}){1,2}|m?s|secs?|seconds|[Mm]in(?:ute)?s?|h(?:ours)?|[KMG]i?B)\b)"
)
_COUNT = r"\d{1,3}(?:,\d{3})+|\d{1,15}"
_COUNTER = re.compile(
    r"[\[(]?(?:completed\s)?(?P<counter>(?:train(?:ing)?[ _])?(?:epochs?|(?:global|train|opt)?[ _]?steps?|"
    r"iter(?:ation)?s?|(?:mini[- ]?)?batch|num_updates|updates?|round))"
    rf"(?![A-Za-z_/])\s*(?:[:=#]|no\.?\s)?\s*[\[(]?\s*(?P<n>{_COUNT}(?:\.\d{{1,6}})?)(?![\d.])"
    rf"(?:\s*(?:/|of)\s*(?P<of>{_COUNT}))?\s*(?:\(\s*[\d.]+\s*%\s*\))?\s*[\])]?",
    re.IGNORECASE,
)
_BRACKETS = re.compile(
    r"[\[(]\s*(?P<n>\d{1,15})\s*(?:/|of)\s*(?P<of>\d{1,15})\s*(?:\(\s*[\d.]+\s*%\s*\))?\s*[\])]"
    r"|\[(?P<epoch>\d{1,9}),\s+(?P<batch>\d{1,15})\]"
)
_SPLIT = re.compile(
    r"(?P<val>val(?:id(?:ation)?)?|eval(?:uation)?|test(?:ing)?)\b|train(?:ing)?\b", re.IGNORECASE
)
_OF_VALIDATION = re.compile(r"\[\s*(?:val|eval|test)\w*\s*\]", re.IGNORECASE)
_PAIR = re.compile(
    r"(?P<name>[A-Za-z_][\w./@%-]{0,60}+(?:\([\w ]{1,20}\))?(?: [A-Za-z(][\w./@%()-]{0,60}+){0,2}?)"
    rf"(?:\s{{0,8}}[:=]\s{{0,12}}|\s{{1,12}})\$?(?P<value>{NUMBER})(?P<unit>{_UNITS})?(?![\w:])(?!\.\d)"
    r"(?:\s?\([^()]{0,40}\))?(?:\s?(?:±|\+/-)\s?[\d.]+)?"
)
_CLOCK = re.compile(
    r"(?:(?:eta|elapsed|time|remaining|took|in|left|eta time)\s*[:=]?\s*)?(?:\d+ days?,? )?"
    r"(?:\d{1,4}(?::\d\d){1,2}(?:\.\d+)?|(?:\d+[dhm]\s?){1,3}(?:\d+s)?)(?!\w)",
    re.IGNORECASE,
)
_AMOUNT = re.compile(
    rf"{NUMBER}[kKMG]?\s?(?:(?:% )?\w{{1,6}} MFU|[A-Za-z]{{1,12}}/[A-Za-z]{{1,12}}|ms|s|sec|seconds|%)(?!\w)"
)
_BETWEEN = re.compile(r"(?:[\s,;|/•·\u2013—*>:~+&)-]|#011|===*|\.\.+)*+")
_EPOCHS = re.compile(r"epoch", re.IGNORECASE)
_BATCHES = re.compile(r"batch", re.IGNORECASE)
_WITHIN = re.compile(r"step|iter|batch", re.IGNORECASE)
_HELD = re.compile(r"(?:^|[_ /-])(?:val|valid|validation|eval|test|dev)(?:[_ /-]|$)", re.IGNORECASE)
_TIMES = {
    "dt": {"ms": 1e-3, "s": 1.0},
    "time": {"ms": 1e-3},
    "step_avg": {"ms": 1e-3},
}  # fmt: skip


def _line(text: str) -> Printed | None:
    if _LOSS_HERE.search(text) is None:
        return None
    at = prefix_end(text)
    return _whole_line(text, at)


_LOSS_HERE = re.compile(r"loss|nll|ppl|perplexity|reward|cross.?entropy", re.IGNORECASE)


def _whole_line(text: str, at: int) -> Printed | None:
    """Return what a line says that holds nothing but counters, named numbers and times."""
    step = total = epochs = None
    epoch: float | None = None
    is_validation = _OF_VALIDATION.search(text, 0, at) is not None
    counts_samples = batches = is_marked = False
    metrics: dict[str, float | None] = {}
    per_second = None
    while True:
        between = _BETWEEN.match(text, at)
        at = between.end() if between is not None else at
        if at >= len(text):
            break
        if (match := _COUNTER.match(text, at)) is not None:
            counter, n, of = match["counter"], match["n"], whole_of(match["of"])
            if _EPOCHS.search(counter):
                epoch, epochs = float(n.replace(",", "")), of
            elif step is None or not _BATCHES.search(counter):
                step, total = whole_of(n), of
                batches = batches or bool(_BATCHES.search(counter))
        elif (match := _BRACKETS.match(text, at)) is not None:
            if match["epoch"]:
                epoch, step, batches = float(match["epoch"]), int(match["batch"]), True
            elif step is None:
                step, total, counts_samples = int(match["n"]), int(match["of"]), True
        elif (match := _CLOCK.match(text, at)) is None and (match := _PAIR.match(text, at)) is not None:
            if len(metrics) < 60:
                name, unit = " ".join(match["name"].split()), (match["unit"] or "").strip()
                if (split := _SPLIT.match(name)) is not None and name[split.end() :].startswith(" "):
                    is_validation, is_marked = is_validation or (not metrics and bool(split["val"])), True
                metrics[name] = value = number_of(match["value"], unit)
                scale = _TIMES.get(name.lower(), {}).get(unit)
                per_second = 1 / (value * scale) if scale and value else per_second
        elif match is None and (match := _SPLIT.match(text, at)) is not None:
            is_validation, is_marked = is_validation or match["val"] is not None, True
        elif match is None and (match := _AMOUNT.match(text, at)) is None:
            return None
        at = match.end()
    if not any(LOSS.search(name) for name in metrics):
        return None
    if step is None and epoch is None:
        # The epoch stands in a line of its own.
        part = Part.VALIDATION if is_validation else Part.TRAINING
        return Printed(part, metrics=metrics, sure=False) if is_marked else None
    part = (
        Part.VALIDATION
        if is_validation or all(_HELD.search(n) for n in metrics if LOSS.search(n))
        else Part.TRAINING
    )
    within = (
        epoch is not None and step is not None and (batches or (epochs is not None and total is not None))
    )
    return Printed(
        part, step, total, epoch, epochs, metrics, per_second,
        per_epoch=within or (step is not None and counts_samples),
    )  # fmt: skip


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
    return _object(body)


def _object(body: Mapping[str, Any]) -> Printed | None:
    numbers = {name: value for name, value in body.items() if _is_number(value)}
    inner: Mapping[str, Any] = next(
        (body[n] for n in ("metrics", "data", "logs") if isinstance(body.get(n), Mapping)), {}
    )
    numbers |= {name: value for name, value in inner.items() if _is_number(value)}
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


def _is_number(value: Any) -> bool:
    return value is None or (isinstance(value, (int, float)) and not isinstance(value, bool))


def _known(signature: str) -> Any:
    head = re.compile(signature)

    def read(text: str) -> Printed | None:
        return _line(text) if head.search(text) else None

    return read


_NEEDLES = ("loss", "nll", "ppl", "perplexity", "reward", "entropy")
FORMATS = (
    Format("nanoGPT", ("iter", "step "), (_known(r"\b(?:iter|step) \d+: (?:train )?loss \S+, "),)),
    Format("llm.c", ("| loss",), (_known(r"\bstep\s+\d+/\d+ \| (?:train )?loss "),)),
    Format("torchtune", ("| loss:",), (_known(r"\bStep \d+ \| loss:\S+ lr:"),)),
    Format("PyTorch's examples", ("train epoch: ",), (_known(r"\bTrain Epoch: \d+ \[\s*\d+/\d+ \("),)),
)  # fmt: skip
PLAIN = (
    Format("JSON lines", _NEEDLES, (_json,), plain=True, counts_epochs=True),
    Format("a training loop of its own", _NEEDLES, (_line,), plain=True, counts_epochs=True),
)
