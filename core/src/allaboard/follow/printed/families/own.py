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
    r"(?:%| [A-Za-zµÅ]{1,8}(?: ?/ ?[A-Za-zÅ]{1,8}(?:\^?\d)?){0,2}(?=[,;|)\]]|$)"
    r"|[A-Za-zµ]{1,8}(?:/[A-Za-z]{1,8}){0,2}\b"
    r"| (?:[A-Za-z]{1,8}(?:/[A-Za-z]{1,8}){1,2}|m?s|secs?|seconds|[Mm]in(?:ute)?s?|h(?:ours)?|[KMG]i?B)\b)"
)
_COUNT = r"\d{1,3}(?:,\d{3})+|\d{1,15}"
_COUNTER = re.compile(
    r"[\[(]?(?:(?:completed|finished|end of|after)\s(?:training\s)?)?"
    r"(?P<counter>(?:(?:train(?:ing)?|learning)[ _])?"
    r"(?:epochs?|(?:global|train|opt)?[ _]?steps?|(?:total[ _])?timesteps|"
    r"iter(?:ation)?s?|it(?=\s\d+/\d)|(?:mini[- ]?)?batch|num_updates|updates?|round|episodes?))"
    rf"(?![A-Za-z_/])\s*(?:[:=#]|no\.?\s)?\s*[\[(]?\s*(?P<n>{_COUNT}(?:\.\d{{1,6}})?)(?!\d|\.\d)"
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
    r"(?P<val>val(?:id(?:ation)?)?|eval(?:uation)?|test(?:ing)?)\b(?:\s(?:metrics|results?):)?"
    r"|train(?:ing)?\b(?:\s(?:metrics|results?):)?",
    re.IGNORECASE,
)
_OF_VALIDATION = re.compile(
    r"\[\s*(?:val|eval|test)\w*\s*\]|\b(?:val(?:id(?:ation)?)?|eval(?:uation)?):\s*$", re.IGNORECASE
)
_PAIR = re.compile(
    r"(?P<name>[A-Za-z_][\w./@%-]{0,60}+(?:\([\w ]{1,20}\)| \(%\))?(?: [A-Za-z(][\w./@%()-]{0,60}+){0,2}?"
    r"(?: [A-Za-z_]{0,20}loss)?)"
    rf"(?:\s{{0,8}}[:=]\s{{0,12}}|\s{{1,12}}(?:is\s{{1,4}})?)\$?(?P<value>{NUMBER})(?P<unit>{_UNITS}(?!\s?[:=]))?(?![\w:])(?!\.\d)"
    r"(?:\s?\([^()]{0,40}\))?(?:\s?(?:±|\+/-)\s?[\d.]+)?"
)
_CLOCK = re.compile(
    r"(?:(?:(?:total|elapsed|remaining|epoch|wall)\s)?"
    r"(?:eta|elapsed|time|remaining|took|in|left|eta time|time cost)\s*[:=]?\s*|[A-Za-z_]{1,20}=)?\[?"
    r"(?:\d+ days?,? |\d+d |>?\d{4}-\d\d-\d\d[ T])?"
    r"(?:\d{1,4}(?::\d\d){1,2}(?:\.\d+)?|(?:\d+[dhm]\s?){1,3}(?:\d+s)?)(?!\w)",
    re.IGNORECASE,
)
_AMOUNT = re.compile(
    r"\[\s*\d+(?:\.\d+)?\s?%\s*\]|"
    rf"{NUMBER}[kKMG]?\s?(?:(?:% )?\w{{1,6}} MFU|[A-Za-z]{{1,12}}/[A-Za-z]{{1,12}}|ms|s|sec|seconds|%)(?!\w)"
)
_BETWEEN = re.compile(r"(?:[\s,;|/•·\u2013—*>:~+&)\]-]|\[(?=\s?[A-Za-z])|\.(?=\s|$)|#011|===*|\.\.+)*+")
_WORD = re.compile(r"[A-Za-z_][\w./-]{0,40}\s?[:=]\s?[A-Za-z_][\w./-]{0,60}(?=[\s,;|)\]]|$)(?!\s?[:=])")
"""A name whose value is a word."""
_NOTE = re.compile(r"\([^()]{1,60}\)")
_PERCENT = re.compile(r"progress\s{0,3}:?\s{0,6}(?P<percent>\d{1,3})(?:\.\d{1,4})?\s?%", re.IGNORECASE)
_BOX = re.compile(r"\|\s+(?P<name>[A-Za-z_][\w/. -]{0,60}?)\s*\|\s*(?P<value>\S{1,30})\s*\|")
"""A row of a box of names and values."""
_ITEM = re.compile(rf"(?P<value>{NUMBER})(?: (?P<name>[A-Za-z][A-Za-z_ ]{{0,40}}))?")
_FIRST = re.compile(r"\s*(?:(?:step|iter(?:ation)?)\s)?(?P<step>\d{1,15}): ", re.IGNORECASE)
_FRACTION = re.compile(r"[A-Za-z_]{1,30}=\d{1,15}/\d{1,15}(?![\w.])")
_LIST = re.compile(r"(?:[A-Za-z_][\w./-]{0,40}\s?[:=]\s?)?\[[^\[\]]{0,200}\]")
_DATE = re.compile(
    r"(?:[A-Za-z_]{1,20}\s?[:=]\s?)?(?:Mon|Tue|Wed|Thu|Fri|Sat|Sun)[a-z]*,? [A-Za-z]{3} {1,2}\d{1,2}"
    r" [\d:]{5,8}(?: \d{4})?"
)
_BARE = re.compile(r"(?P<n>\d{1,15})\s?/\s?(?P<of>\d{1,15})(?=[:,]?\s{1,4}[A-Za-z])")
"""A counter without a name: at the beginning of a line, or behind an epoch."""
_MORE = re.compile(rf"(?<=\s){NUMBER}(?=\s|$)")
"""A number without a name, of several."""
_OF = re.compile(r"(?:of|in|for)\s(?=epoch|step|iter|batch)", re.IGNORECASE)
_NUMBERED = re.compile(
    r"(?P<name>(?:train(?:ing)?|val(?:id(?:ation)?)?|test)?[ _]?loss)\s(?P<step>\d{1,15}):?\s{1,3}"
    r"(?P<value>-?\d{1,15}\.\d{1,15})(?![\w.])",
    re.IGNORECASE,
)
"""A loss whose step stands between its name and its value."""
_EPOCHS = re.compile(r"epoch", re.IGNORECASE)
_BATCHES = re.compile(r"batch", re.IGNORECASE)
_HELD = re.compile(r"(?:^|[_ /-])(?:val|valid|validation|eval|test|dev)(?:[_ /-]|$)", re.IGNORECASE)
_TIMES = {
    "dt": {"ms": 1e-3, "s": 1.0},
    "time": {"ms": 1e-3},
    "step_avg": {"ms": 1e-3},
}  # fmt: skip


_LOSS_HERE = re.compile(r"loss|nll|ppl|perplexity|reward|cross.?entropy|epoch|step|iter", re.IGNORECASE)
_LEARNT = re.compile(r"loss|av(?:era)?ge?|mean|running|epsilon", re.IGNORECASE)
"""Names beside an episode that is learnt from; one that is played tells its reward alone."""
_NO_LOSS = re.compile(
    r"time|duration|(?:packet|stop|water|heat|weight|path|power|signal|data)[ _-]?loss", re.IGNORECASE
)
"""Names with a loss in them that no training has: how long it took, and what other people lose."""
_MOST_METRICS = 60


@dataclass(slots=True)
class _Content:
    """The parts of one line so far. ``is_marked``: it names the training or the validation; ``batches``,
    ``samples``: its step counts these, which begin anew in each epoch; ``is_named``: a word
    stands at its counter.
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
    is_named: bool = False

    def count(self, match: re.Match[str]) -> None:
        """A counter by its name."""
        name = match["counter"]
        if self.step is not None and "timestep" in name.lower():
            self.metrics[name] = number_of(match["n"])
            return
        self.is_named = True
        of, is_batch = whole_of(match["of"]), _BATCHES.search(match["counter"]) is not None
        if _EPOCHS.search(match["counter"]):
            self.epoch, self.epochs = float(match["n"].replace(",", "")), of
        elif self.step is None or not (is_batch or name.lower().startswith("episode")):
            self.episodes = name.lower().startswith("episode")
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

    def bare(self, match: re.Match[str]) -> None:
        """A counter without a name, of samples or batches."""
        if self.step is None and int(match["n"]) <= int(match["of"]):
            self.step, self.total, self.samples = int(match["n"]), int(match["of"]), True

    def percentage(self, match: re.Match[str]) -> None:
        """The percentage as a step of 100, where nothing else counts."""
        if self.step is None and int(match["percent"]) <= 100:
            self.step, self.total = int(match["percent"]), 100

    def numbered(self, match: re.Match[str]) -> None:
        """A loss with its step."""
        if self.step is None:
            self.step = whole_of(match["step"])
        self.metrics[" ".join(match["name"].split())] = number_of(match["value"])

    def skip(self, match: re.Match[str]) -> None:
        """A time, an amount without a name, or a name without an amount."""

    def printed(self) -> Printed | None:
        """The content of the line, or of its epoch alone; None for one without a loss, or that tells not
        of when.
        """
        losses = [name for name in self.metrics if LOSS.search(name) and not _NO_LOSS.search(name)]
        if not self.metrics and self.epoch is not None and self.step is None:
            return Printed(Part.EPOCH, epoch=self.epoch, epochs=self.epochs, sure=False)
        in_epoch = self.batches or (self.epochs is not None and self.total is not None)
        per_epoch = self.step is not None and (self.samples or (self.epoch is not None and in_epoch))
        if not losses and self.step is not None and self.is_named and not self.episodes:
            return Printed(
                Part.COUNTER, self.step, self.total, self.epoch, self.epochs, per_epoch=per_epoch, sure=False
            )
        if not losses or (self.episodes and not any(_LEARNT.search(name) for name in self.metrics)):
            return None
        is_validation = self.is_validation or all(_HELD.search(name) for name in losses)
        part = Part.VALIDATION if is_validation else Part.TRAINING
        if self.step is None and self.epoch is None:
            # The epoch stands in a line of its own.
            return Printed(part if self.is_marked else Part.INNER, metrics=self.metrics, sure=False)
        return Printed(
            part, self.step, self.total, self.epoch, self.epochs, self.metrics, self.per_second,
            per_epoch=per_epoch,
        )  # fmt: skip


_PARTS: tuple[tuple[re.Pattern[str], Callable[[_Content, re.Match[str]], None]], ...] = (
    (_COUNTER, _Content.count),
    (_COUNTED, _Content.count),
    (_BRACKETS, _Content.count_in_brackets),
    (_ABSENT, _Content.skip),
    (_CLOCK, _Content.skip),
    (_PERCENT, _Content.percentage),
    (_NUMBERED, _Content.numbered),
    (_FRACTION, _Content.skip),
    (_PAIR, _Content.pair),
    (_SPLIT, _Content.mark),
    (_WORD, _Content.skip),
    (_AMOUNT, _Content.skip),
    (_NOTE, _Content.skip),
    (_OF, _Content.skip),
    (_DATE, _Content.skip),
    (_LIST, _Content.skip),
    (_BARE, _Content.bare),
    (_MORE, _Content.skip),
)


def _line(text: str) -> Printed | None:
    """Return what a line says that holds nothing but counters, named numbers and times."""
    if _LOSS_HERE.search(text) is None:
        return None
    if (row := _BOX.fullmatch(text.strip())) is not None:
        text = f"{row['name']}: {row['value']}"
    at = prefix_end(text)
    is_validation = _OF_VALIDATION.search(text, 0, at) is not None
    content = _Content(is_validation=is_validation, is_marked=is_validation)
    if (lead := _BARE.match(text, len(text) - len(text.lstrip()))) is not None:
        content.bare(lead)
        at = lead.end()
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


def _values_first(text: str) -> Printed | None:
    """A counter, and numbers before their names: ``100: 2.5, 2.7 avg loss, 0.01 rate``."""
    head = _FIRST.match(text)
    if head is None or LOSS.search(text) is None:
        return None
    items = [_ITEM.fullmatch(item.strip()) for item in text[head.end() :].split(",")]
    if not all(items):
        return None
    metrics = {i["name"]: number_of(i["value"]) for i in items[:_MOST_METRICS] if i is not None and i["name"]}
    if not any(LOSS.search(name) for name in metrics):
        return None
    return Printed(Part.TRAINING, int(head["step"]), metrics=metrics)


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
PLAIN = (
    Format(
        "a training loop of its own", (*LOSSES, "epoch", "step", "iter"), (_line, _values_first), plain=True,
        counts_epochs=True,
    ),
)  # fmt: skip
