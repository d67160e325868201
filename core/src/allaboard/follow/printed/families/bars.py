"""Bars: tqdm's, rich's, and those of Lightning, torchtune and NeMo, which draw with them.

A bar alone is progress only if its description, each word of it, is of training; one without a description
if it names a loss.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass, replace

from allaboard.follow.printed.form import COLON, LOSS, SPACE, Format, Part, Printed, pairs
from allaboard.follow.printed.numbers import NUMBER
from allaboard.follow.printed.prefixes import prefix_end

_RATE = r"(?P<rate>\?|\d[\d.]{0,20})\s?(?P<unit>[^\s,\]]{1,20})(?:,\s*(?P<rest>.*))?\]?\s*$"
_TQDM = re.compile(
    r"(?P<percent>\d{1,3})%\|[^|]*\|\s*(?P<n>\d{1,15})/(?P<total>\d{1,15})\s*"
    r"\[[\d:]{1,20}<[\d:?]{1,20},\s*" + _RATE
)
_ENDLESS = re.compile(r"(?P<n>\d{1,15})(?:it|step|batch)s? \[[\d:]{1,20},\s*" + _RATE)
_RICH = re.compile(
    r"[━╸╺]{3,}[━╸╺\s]*(?:(?P<percent>\d{1,3})%)?\s*(?:(?P<n>\d{1,15})/(?P<total>\d{1,15}))?\s*"
    r"(?P<times>(?:-?[\d:-]{4,12}\s*(?:•\s*)?){0,2})"
    r"(?:(?P<rate>\d[\d.]{0,20})\s?(?P<unit>it/s|s/it))?\s*(?P<rest>.*)$"
)
_RICH_OF_LIGHTNING = re.compile(
    r"(?<=\d)\s[━╸╺\s]+(?P<n>\d{1,15})/(?P<total>\d{1,15}) (?P<times>\d+:\d\d:\d\d • [\d:-]{7,12})\s+"
    r"(?P<rate>[\d.]{1,20})(?P<unit>it/s)\s*(?P<rest>.*)$"
)
"""Lightning's own columns, which it draws without a logger, too; a bar that has just begun is blank."""
_WORDS = re.compile(r"[A-Za-z]+")
_OF_TRAINING = frozenset({
    "train", "training", "trains", "pretrain", "pretraining", "finetune", "finetuning", "fine",
    "tuning", "epoch", "epochs", "step", "steps", "iteration", "iterations", "iter", "iters",
    "optimization", "fit", "fitting",
})  # fmt: skip
_BESIDE = _OF_TRAINING | frozenset({
    "batch", "batches", "loop", "progress", "global", "rank", "local", "loss", "avg", "mean", "lr",
    "stage", "phase", "fold", "of", "model", "pass", "the", "on", "gpu", "cuda", "device", "acc",
    "accuracy", "it", "ep",
})  # fmt: skip
_OTHERS = re.compile(
    r"val|eval|test|infer|predict|generat|sampl|sanity|download|load|map|token|fetch|filter|shard|cach|"
    r"encod|embed|extract|process|prepar|pars|collect|comput|calcul|build|convert|sav|writ|read|upload|copy|"
    r"scor|rollout|search|index|captur|compil|quantiz|calibrat|merg|creat",
    re.IGNORECASE,
)
_EPOCH = re.compile(
    r"\bep(?:och)?\s*[:#=]?\s*[\[(]?\s*(?P<epoch>\d{1,9})(?:\s*(?:/|of)\s*(?P<epochs>\d{1,9}))?",
    re.IGNORECASE,
)
_BYTES = re.compile(r"(?:[kKMGT]?i?[bB](?:ytes)?)/s$|^s/[kKMGT]?i?B$")
_IN_DESCRIPTION = re.compile(rf"[A-Za-z_.@]+\s*[:=]?\s*{NUMBER}")


@dataclass(frozen=True, slots=True)
class Bar:
    """A bar as it is drawn. ``description``: what stands before it; ``rest``: after it."""

    description: str
    step: int
    total: int | None
    per_second: float | None
    rest: str
    unit: str


def bar_of(text: str) -> Bar | None:
    """The bar of tqdm or rich that a line ends with."""
    for shape in (_TQDM, _ENDLESS, _RICH, _RICH_OF_LIGHTNING):
        match = shape.search(text)
        if match is None:
            continue
        groups = match.groupdict()
        n, total = groups["n"], groups.get("total")
        if n is None:
            if groups.get("percent") is None:
                return None
            n, total = groups["percent"], "100"
        unit, rate = groups["unit"] or "", groups["rate"]
        if _BYTES.search(unit) or "sample" in unit or "example" in unit:
            return None
        before = text[: match.start()]
        description = before[prefix_end(before) :].strip().rstrip(":").strip()
        # What a prefix is made of may be the name of a bar: "Training:" is one before a separator.
        description = description or before.strip().rstrip(":").strip()
        return Bar(
            description,
            int(n),
            int(total) if total else None,
            _per_second(rate, unit),
            groups["rest"] or "",
            unit,
        )
    return None


def _per_second(rate: str | None, unit: str) -> float | None:
    if rate is None or rate == "?":
        return None
    try:
        value = float(rate)
    except ValueError:
        return None
    if value <= 0:
        return None
    return 1 / value if unit.startswith("s/") else value if unit.endswith("/s") else None


def unnamed_bar(text: str) -> Printed | None:
    """The bar of a line without a description, or with ``Train``, and without metrics."""
    bar = bar_of(text)
    if bar is None or bar.total is None:
        return None
    if not {name.lower() for name in _WORDS.findall(bar.description)} <= {"train", "training"}:
        return None
    return Printed(Part.BAR, bar.step, bar.total, metrics=dict(_metrics(bar)), per_second=bar.per_second)


def _metrics(bar: Bar) -> Iterator[tuple[str, float | None]]:
    """The numbers beside a bar; the version of a logger is none."""
    for name, value in pairs(COLON, bar.rest.rstrip("]")):
        if name != "v_num":
            yield name, value


def _named(bar: Bar) -> bool:
    """True if the description of a bar is of training, each word of it."""
    names = [word.lower() for word in _WORDS.findall(bar.description)]
    return bool(_OF_TRAINING.intersection(names)) and _BESIDE.issuperset(names)


def _described(description: str) -> dict[str, float | None]:
    """The numbers that a description names, where there is a loss among them."""
    metrics = {n: v for n, v in pairs(SPACE, description) if LOSS.search(n) and n.islower()}
    listed = {n: v for n, v in pairs(COLON, description) if not _OF_TRAINING & {*n.lower().split(), "ep"}}
    return metrics | listed if any(LOSS.search(n) for n in listed) else metrics


def _bar(text: str) -> Printed | None:
    bar = bar_of(text)
    if bar is None:
        return None
    metrics = dict(_metrics(bar))
    described = _described(bar.description)
    metrics = described | metrics
    losses = any(LOSS.search(name) for name in metrics)
    # Beside the loss of a validation stands that of the training.
    trains = any(LOSS.search(name) and not _OTHERS.search(name) for name in described)
    if not _named(bar) and (not losses or (_OTHERS.search(bar.description) and not trains)):
        return None
    epoch = _EPOCH.search(bar.description)
    printed = Printed(
        Part.TRAINING,
        bar.step,
        bar.total,
        metrics=metrics,
        per_second=bar.per_second,
        per_epoch=True,
    )
    if epoch is not None:
        epochs = int(epoch["epochs"]) if epoch["epochs"] else None
        if (int(epoch["epoch"]), epochs) == (bar.step, bar.total):
            return replace(printed, part=Part.EPOCH, per_epoch=False)
        return replace(printed, epoch=float(epoch["epoch"]), epochs=epochs)
    names = {word.lower() for word in _WORDS.findall(bar.description)}
    if names & {"epoch", "epochs"} and not names & {"step", "steps", "batch", "batches", "iter", "iteration"}:
        return replace(printed, part=Part.EPOCH, per_epoch=False)
    return printed


def _lightning(text: str) -> Printed | None:
    bar = bar_of(text)
    if bar is None or ("v_num" not in bar.rest and _RICH_OF_LIGHTNING.search(text) is None):
        return None
    epoch = re.match(r"Epoch (?P<epoch>\d{1,9})(?:/(?P<last>\d{1,9}))?$", bar.description)
    if epoch is None:
        return None
    last = int(epoch["last"]) if epoch["last"] else None
    return Printed(
        Part.TRAINING, bar.step, bar.total, float(epoch["epoch"]), None, dict(_metrics(bar)),
        bar.per_second, per_epoch=True, first_epoch=0, last_epoch=last,
    )  # fmt: skip


_BELOW = re.compile(rf"^\s{{16,}}(?P<name>[A-Za-z_][\w/.-]{{0,80}}): (?P<value>{NUMBER})\s*$")


def _lightning_below(text: str) -> Printed | None:
    """A metric for which there is no room beside the bar of a narrow terminal."""
    if _BELOW.match(text) is None:
        return None
    return Printed(Part.TRAINING, metrics=dict(pairs(COLON, text)), sure=False)


_TUNE = re.compile(
    r"(?P<epoch>\d{1,9})\|(?P<step>\d{1,15})\|(?P<name>Loss): "
    r"(?P<value>[\d.eE+-]{1,25}|nan|inf):\s*\d+%\|"
)


def _torchtune(text: str) -> Printed | None:
    match = _TUNE.search(text)
    if match is None:
        return None
    bar = bar_of(text[match.start() :])
    if bar is None:
        return None
    loss = dict(pairs(COLON, f"Loss: {match['value']}"))
    return Printed(
        Part.TRAINING, bar.step, bar.total, float(match["epoch"]), None, loss, bar.per_second, per_epoch=True,
        first_epoch=1,
    )  # fmt: skip


FORMATS = (
    Format("Lightning", ("v_num", "loss", "it/s"), (_lightning, _lightning_below)),
    Format("torchtune", ("|loss: ",), (_torchtune,)),
)
PLAIN = (Format("tqdm", ("it/s", "s/it", "%|", "━"), (_bar,), plain=True),)
