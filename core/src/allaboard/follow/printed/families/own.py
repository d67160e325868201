"""A training loop of one's own: a line of counters and named numbers with a loss among them and nothing else,
``iter 10: loss 4.2013, time 120.31ms``. Known loops have their names.
"""

from __future__ import annotations

import re
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from allaboard.follow.printed.form import LOSS, LOSSES, SPACE, Format, Part, Pattern, Printed, pattern
from allaboard.follow.printed.numbers import NUMBER, number_of, whole_of
from allaboard.follow.printed.prefixes import prefix_end

_UNITS = (
    r"(?:%|[A-Za-zµ]{1,8}(?:/[A-Za-z]{1,8}){0,2}\b"
    r"| (?:[A-Za-z]{1,8}(?:/[A-Za-z]{1,8}){1,2}|m?s|secs?|seconds|[Mm]in(?:ute)?s?|h(?:ours)?|[KMG]i?B)\b)"
)
_COUNT = r"\d{1,3}(?:,\d{3})+|\d{1,15}"
_COUNTER = re.compile(
    r"[\[(]?(?:(?:completed|end of|after)\s)?(?P<counter>(?:train(?:ing)?[ _])?"
    r"(?:epochs?|(?:global|train|opt)?[ _]?steps?|"
    r"iter(?:ation)?s?|(?:mini[- ]?)?batch|num_updates|updates?|round|episodes?))"
    rf"(?![A-Za-z_/])\s*(?:[:=#]|no\.?\s)?\s*[\[(]?\s*(?P<n>{_COUNT}(?:\.\d{{1,6}})?)(?![\d.])"
    rf"(?:\s*(?:/|of)\s*(?P<of>{_COUNT}))?\s*(?:\(\s*[\d.]+\s*%\s*\))?\s*[\])]?"
    r"(?:\s*\b(?:done|finished|completed?|summary|results?)\b)?",
    re.IGNORECASE,
)
_BRACKETS = re.compile(
    r"\[(?P<outer>\d{1,9})/(?P<outers>\d{1,9})\]\s?\[\s*(?P<inner>\d{1,15})/\s*(?P<inners>\d{1,15})\]"
    r"|[\[(]\s*(?P<n>\d{1,15})\s*(?:/|of)\s*(?P<of>\d{1,15})\s*(?:\(\s*[\d.]+\s*%\s*\))?\s*[\])]"
    r"|\[(?P<epoch>\d{1,9}),\s+(?P<batch>\d{1,15})\]"
)
_COUNTED = re.compile(
    rf"(?P<n>{_COUNT})\s?/\s{{0,8}}(?P<of>{_COUNT})\s(?P<counter>batch(?:es)?|steps?|iter(?:ation)?s?)\b",
    re.IGNORECASE,
)
_ABSENT = re.compile(
    r"[A-Za-z_][\w./@-]{0,60}\s?[:=]\s{0,3}(?:n/?a|none|null|-{1,2})(?=[\s,;|)]|$)", re.IGNORECASE
)
_SPLIT = re.compile(
    r"(?P<val>val(?:id(?:ation)?)?|eval(?:uation)?|test(?:ing)?)\b|train(?:ing)?\b", re.IGNORECASE
)
_OF_VALIDATION = re.compile(
    r"\[\s*(?:val|eval|test)\w*\s*\]|\b(?:val(?:id(?:ation)?)?|eval(?:uation)?):\s*$", re.IGNORECASE
)
_PAIR = re.compile(
    r"(?P<name>[A-Za-z_][\w./@%-]{0,60}+(?:\([\w ]{1,20}\)| \(%\))?(?: [A-Za-z(][\w./@%()-]{0,60}+){0,2}?)"
    rf"(?:\s{{0,8}}[:=]\s{{0,12}}|\s{{1,12}}(?:is\s{{1,4}})?)\$?(?P<value>{NUMBER})(?P<unit>{_UNITS}(?!\s?[:=]))?(?![\w:])(?!\.\d)"
    r"(?:\s?\([^()]{0,40}\))?(?:\s?(?:±|\+/-)\s?[\d.]+)?"
)
_CLOCK = re.compile(
    r"(?:(?:eta|elapsed|time|remaining|took|in|left|eta time)\s*[:=]?\s*)?"
    r"(?:\d+ days?,? |>?\d{4}-\d\d-\d\d[ T])?"
    r"(?:\d{1,4}(?::\d\d){1,2}(?:\.\d+)?|(?:\d+[dhm]\s?){1,3}(?:\d+s)?)(?!\w)",
    re.IGNORECASE,
)
_AMOUNT = re.compile(
    rf"{NUMBER}[kKMG]?\s?(?:(?:% )?\w{{1,6}} MFU|[A-Za-z]{{1,12}}/[A-Za-z]{{1,12}}|ms|s|sec|seconds|%)(?!\w)"
)
_BETWEEN = re.compile(r"(?:[\s,;|/•·\u2013—*>:~+&)\]-]|\[(?=[A-Za-z])|#011|===*|\.\.+)*+")
_EPOCHS = re.compile(r"epoch", re.IGNORECASE)
_BATCHES = re.compile(r"batch", re.IGNORECASE)
_HELD = re.compile(r"(?:^|[_ /-])(?:val|valid|validation|eval|test|dev)(?:[_ /-]|$)", re.IGNORECASE)
_TIMES = {
    "dt": {"ms": 1e-3, "s": 1.0},
    "time": {"ms": 1e-3},
    "step_avg": {"ms": 1e-3},
}  # fmt: skip


_LOSS_HERE = re.compile(r"loss|nll|ppl|perplexity|reward|cross.?entropy|epoch", re.IGNORECASE)
_LEARNT = re.compile(r"loss|av(?:era)?ge?|mean|running|epsilon", re.IGNORECASE)
"""Names beside an episode that is learnt from; one that is played tells its reward alone."""
_MOST_METRICS = 60


@dataclass(slots=True)
class _Content:
    """The parts of one line so far. ``is_marked``: it names the training or the validation; ``batches``,
    ``samples``: its step counts these, which begin anew in each epoch.
    """

    step: int | None = None
    total: int | None = None
    epoch: float | None = None
    epochs: int | None = None
    metrics: dict[str, float | None] = field(default_factory=dict)
    per_second: float | None = None
    is_validation: bool = False
    is_marked: bool = False
    batches: bool = False
    episodes: bool = False
    samples: bool = False

    def count(self, match: re.Match[str]) -> None:
        """A counter by its name."""
        of, is_batch = whole_of(match["of"]), _BATCHES.search(match["counter"]) is not None
        if _EPOCHS.search(match["counter"]):
            self.epoch, self.epochs = float(match["n"].replace(",", "")), of
        elif self.step is None or not is_batch:
            self.episodes = match["counter"].lower().startswith("episode")
            self.step, self.total, self.batches = whole_of(match["n"]), of, self.batches or is_batch

    def count_in_brackets(self, match: re.Match[str]) -> None:
        """Samples or batches of an epoch."""
        if match["epoch"]:
            self.epoch, self.step, self.batches = float(match["epoch"]), int(match["batch"]), True
        elif match["outer"]:
            self.epoch, self.epochs = float(match["outer"]), int(match["outers"])
            self.step, self.total, self.batches = int(match["inner"]), int(match["inners"]), True
        elif self.step is None:
            self.step, self.total, self.samples = int(match["n"]), int(match["of"]), True

    def pair(self, match: re.Match[str]) -> None:
        """A named number."""
        if len(self.metrics) >= _MOST_METRICS:
            return
        name, unit = " ".join(match["name"].split()), (match["unit"] or "").strip()
        split = _SPLIT.match(name)
        if split is not None and name[split.end() :].removeprefix(".").startswith(" "):
            self.is_marked = True
            self.is_validation = self.is_validation or (not self.metrics and split["val"] is not None)
        self.metrics[name] = value = number_of(match["value"], unit)
        scale = _TIMES.get(name.lower(), {}).get(unit)
        if scale and value:
            self.per_second = 1 / (value * scale)

    def mark(self, match: re.Match[str]) -> None:
        """The word for training or validation."""
        self.is_validation, self.is_marked = self.is_validation or match["val"] is not None, True

    def skip(self, match: re.Match[str]) -> None:
        """A time, an amount without a name, or a name without an amount."""

    def printed(self) -> Printed | None:
        """The content of the line, or of its epoch alone; None for one without a loss, or that tells not
        of when.
        """
        losses = [name for name in self.metrics if LOSS.search(name)]
        if not self.metrics and self.epoch is not None and self.step is None:
            return Printed(Part.EPOCH, epoch=self.epoch, epochs=self.epochs, sure=False)
        if not losses or (self.episodes and not any(_LEARNT.search(name) for name in self.metrics)):
            return None
        is_validation = self.is_validation or all(_HELD.search(name) for name in losses)
        part = Part.VALIDATION if is_validation else Part.TRAINING
        if self.step is None and self.epoch is None:
            # The epoch stands in a line of its own.
            return Printed(part, metrics=self.metrics, sure=False) if self.is_marked else None
        in_epoch = self.batches or (self.epochs is not None and self.total is not None)
        return Printed(
            part, self.step, self.total, self.epoch, self.epochs, self.metrics, self.per_second,
            per_epoch=self.step is not None and (self.samples or (self.epoch is not None and in_epoch)),
        )  # fmt: skip


_PARTS: tuple[tuple[re.Pattern[str], Callable[[_Content, re.Match[str]], None]], ...] = (
    (_COUNTER, _Content.count),
    (_COUNTED, _Content.count),
    (_BRACKETS, _Content.count_in_brackets),
    (_ABSENT, _Content.skip),
    (_CLOCK, _Content.skip),
    (_PAIR, _Content.pair),
    (_SPLIT, _Content.mark),
    (_AMOUNT, _Content.skip),
)


def _line(text: str) -> Printed | None:
    """Return what a line says that holds nothing but counters, named numbers and times."""
    if _LOSS_HERE.search(text) is None:
        return None
    at = prefix_end(text)
    is_validation = _OF_VALIDATION.search(text, 0, at) is not None
    content = _Content(is_validation=is_validation, is_marked=is_validation)
    while True:
        between = _BETWEEN.match(text, at)
        at = between.end() if between is not None else at
        if at >= len(text):
            return content.printed()
        for shape, take in _PARTS:
            if (match := shape.match(text, at)) is not None:
                take(content, match)
                at = match.end()
                break
        else:
            return None


def _known(signature: str) -> Any:
    head = re.compile(signature)

    def read(text: str) -> Printed | None:
        return _line(text) if head.search(text) else None

    return read


FORMATS = (
    Format("nanoGPT", ("iter", "step "), (_known(r"\b(?:iter|step) \d+: (?:train )?loss \S+, "),)),
    Format(
        "LitGPT",
        ("| iter ", "val loss "),
        (
            _known(r"\bEpoch \d+ \| iter \d+ step \d+ \| loss "),
            Pattern(pattern(r"\biter \d+: (?=val loss )"), Part.VALIDATION, SPACE, sure=False).read,
        ),
    ),
    Format("llm.c", ("| loss",), (_known(r"\bstep\s+\d+/\d+ \| (?:train )?loss "),)),
    Format("torchtune", ("| loss:",), (_known(r"\bStep \d+ \| loss:\S+ lr:"),)),
    Format("PyTorch's MNIST example", ("train epoch: ",), (_known(r"\bTrain Epoch: \d+ \[\s*\d+/\d+ \("),)),
    Format(
        "PyTorch's DCGAN",
        ("loss_d: ",),
        (
            Pattern(
                pattern(r"\[<EPOCH>/<EPOCHS>\]\s?\[\s*<STEP>/\s*<TOTAL>\]\s+(?=Loss_D: )"),
                per_epoch=True,
                first_epoch=0,
            ).read,
        ),
    ),
)  # fmt: skip
PLAIN = (Format("a training loop of its own", (*LOSSES, "epoch"), (_line,), plain=True, counts_epochs=True),)
