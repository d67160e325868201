"""The files of one checkpoint, as a family sees them, and its answer. Values and bounded reads."""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from enum import StrEnum
from functools import partial
from typing import Any, Protocol

from allaboard.errors import StorageMissing
from allaboard.storage.base import Entry, Store, join
from allaboard.text.untrusted import Limits, Unreadable, parse_json, show

_LONGEST = 500
MOST_READ = 8 * 2**20
"""Bytes that are read of one file at a time; of what needs more the answer is `Verdict.UNKNOWN`."""
_JSON = Limits(size=MOST_READ, values=1_000_000)

_STEP = re.compile(
    r"(?:global_step|step|iteration|iter|checkpoint|ckpt)[-_=]?(\d{1,12})(?!\d)", re.IGNORECASE
)
_EPOCH = re.compile(r"epoch[-_=]?(\d{1,9})(?!\d)", re.IGNORECASE)
_LAST_NUMBER = re.compile(r"(?<![\d.])(\d{1,12})$")
_ENDINGS = re.compile(r"(?:\.[A-Za-z]\w*)+$")
_METRIC = re.compile(r"([A-Za-z]\w*)=(-?\d+(?:\.\d+)?(?:e[-+]?\d+)?)(?![\d.]*\d)")
_COUNTERS = ("epoch", "step")


class Verdict(StrEnum):
    """Verdict by what a format promises: all is there, something is not, or it promises too little."""

    WHOLE = "whole"
    TORN = "torn"
    UNKNOWN = "unknown"


class NotWhole(Exception):
    """Something that the format promises is missing or cut."""


class NotKnown(Exception):
    """The format does not promise enough to be judged."""


@dataclass(frozen=True, slots=True)
class Unit:
    """The files of one checkpoint: a folder, or a single file.

    ``name``: its path below the place where it was found; empty for the place itself. ``files``: the name of
    a file below the unit -> its entry, whose key is below ``store``.
    """

    store: Store
    name: str
    files: Mapping[str, Entry]
    is_file: bool = False

    @property
    def base(self) -> str:
        """The last level of the name."""
        return self.name.rpartition("/")[2]

    @property
    def path(self) -> str:
        """The folder or the file that a library calls the checkpoint."""
        return join(self.store.uri, self.name)

    def size(self, name: str) -> int:
        """Bytes of a file of the unit. Raises KeyError for a name that it has not."""
        return self.files[name].size

    def read(self, name: str, start: int = 0, length: int = MOST_READ) -> bytes:
        """``length`` bytes of a file from ``start`` on. Raises NotWhole when it is gone, StorageError."""
        if length > MOST_READ:
            raise NotKnown(f"{name}: {length} bytes are too many to look at")
        try:
            return self.store.read(self.files[name].key, start, length)
        except StorageMissing:
            raise NotWhole(f"{name} is gone") from None

    def json(self, name: str) -> Any:
        """The value of a JSON file. Raises NotWhole for what is no JSON, NotKnown for what is too large."""
        if self.size(name) > MOST_READ:
            raise NotKnown(f"{name}: {self.size(name)} bytes are too many to look at")
        try:
            return parse_json(
                self.read(name), _JSON, nonfinite=True, spelling=False, any_text=True, unique=False
            )
        except Unreadable as error:
            raise NotWhole(f"{name} {error}") from None

    def matching(self, pattern: re.Pattern[str]) -> Iterator[tuple[str, re.Match[str]]]:
        """The files whose whole name fits."""
        for name in self.files:
            if match := pattern.fullmatch(name):
                yield name, match


@dataclass(frozen=True, slots=True)
class Facts:
    """Content of a whole checkpoint. ``ranks``: the rank that wrote a file, where its name says so."""

    step: int | None = None
    epoch: float | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    ranks: Mapping[str, int] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class Judgement:
    """Verdict of a family on a unit. ``reason``: a sentence, for what is not whole."""

    unit: Unit
    format: str
    verdict: Verdict
    reason: str = ""
    facts: Facts = Facts()


class Family(Protocol):
    """One kind of checkpoint: a module."""

    FORMAT: str

    def claims(self, unit: Unit) -> bool:
        """Return whether the unit is of this family, torn or not: by names, and the first bytes of a file."""
        ...

    def facts(self, unit: Unit) -> Facts:
        """The content of a whole unit. Raises NotWhole, NotKnown."""
        ...


def name_step(name: str) -> int | None:
    """The step that a name tells: ``checkpoint-500``, ``epoch=0-step=4.ckpt``, ``model_7.ubj``."""
    if steps := _STEP.findall(name):
        return int(steps[-1])
    if _EPOCH.search(name):
        return None
    number = _LAST_NUMBER.search(_ENDINGS.sub("", name))
    return int(number[1]) if number else None


def name_epoch(name: str) -> int | None:
    """The epoch that a name tells: ``epoch-01.keras``."""
    epochs = _EPOCH.findall(name)
    return int(epochs[-1]) if epochs else None


def name_metrics(name: str) -> dict[str, float]:
    """Metrics that a name tells: ``epoch=3-val_loss=0.25.ckpt``."""
    return {key: float(value) for key, value in _METRIC.findall(name) if key not in _COUNTERS}


def ranks_of(unit: Unit, pattern: re.Pattern[str]) -> dict[str, int]:
    """File -> rank, by the group of a pattern of names. Raises NotWhole when a rank between 0 and the highest
    has no file.
    """
    ranks = {name: int(match[1]) for name, match in unit.matching(pattern)}
    missing = next(
        (rank for rank in range(max(ranks.values(), default=-1)) if rank not in ranks.values()), None
    )
    if missing is not None:
        raise NotWhole(f"the file of rank {missing} is missing beside those of other ranks")
    return ranks


def check_last(unit: Unit, markers: Collection[str], written: float | None = None) -> None:
    """No file is newer than those that its library writes last, or than that time. Raises NotKnown."""
    last = written if written is not None else max(unit.files[name].modified for name in markers)
    late = [name for name, entry in unit.files.items() if entry.modified > last and name not in markers]
    if late:
        raise NotKnown(
            f"{late[0]} is newer than what is written last: it is being saved again, or is a copy that did "
            "not keep the times (cp -p does)"
        )


def judge(unit: Unit, family: Family) -> Judgement:
    """The family's answer. Never raises for what stands in the files; raises StorageError."""
    answer = partial(Judgement, unit, family.FORMAT)
    try:
        return answer(Verdict.WHOLE, "", family.facts(unit))
    except NotWhole as error:
        return answer(Verdict.TORN, show(str(error), _LONGEST, quote=False))
    except NotKnown as error:
        return answer(Verdict.UNKNOWN, show(str(error), _LONGEST, quote=False))
    except (
        ValueError,
        OverflowError,
        RecursionError,
    ) as error:  # hostile: no library writes numbers like that
        return answer(Verdict.UNKNOWN, show(f"it cannot be read: {error}", _LONGEST, quote=False))
