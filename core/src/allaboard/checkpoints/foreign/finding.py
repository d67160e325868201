"""Finds the checkpoints below a place: folders and files, each with its family."""

from __future__ import annotations

import re
from collections.abc import Container, Iterable, Iterator
from dataclasses import replace
from itertools import islice

from allaboard.checkpoints.foreign import (
    accelerate,
    dcp,
    deepspeed,
    keras,
    lightgbm,
    lightning,
    pretrained,
    safetensors_file,
    torch_file,
    trainer,
    xgboost,
)
from allaboard.checkpoints.foreign.unit import Family, Judgement, NotWhole, Unit, Verdict, judge
from allaboard.checkpoints.names import OURS, RUN_FOLDER, step_of
from allaboard.errors import BadInput
from allaboard.storage.base import Entry, Store

FOLDERS: tuple[Family, ...] = (trainer, accelerate, deepspeed, dcp, pretrained)
FILES: tuple[Family, ...] = (lightning, keras, xgboost, lightgbm, safetensors_file, torch_file)
AT_THE_TOP: tuple[Family, ...] = (dcp, pretrained)
"""Families whose files may lie in the place itself, beside checkpoints in folders of their own."""
MOST_ENTRIES = 20_000
"""Entries of a place that are looked at."""
DEEPEST = 4
"""Levels below a place at which a checkpoint may lie."""
ASIDE = ".torn"
"""The ending of what was moved aside."""

_DIGITS = re.compile(r"\d+")


def judge_place(store: Store, only: str | None = None, known: Container[str] = ()) -> list[Judgement]:
    """The checkpoints of others below a place, with what their families say, in the order of their names.

    ``only``: the name of one unit; ``known``: paths of units that are whole, of which no more is asked. Ours
    are left out, and so are the folders of runs and what was moved aside. Raises StorageError.
    """
    entries = [*islice(_entries(store, only), MOST_ENTRIES + 1)]
    cut_at = entries[MOST_ENTRIES].key if len(entries) > MOST_ENTRIES else None
    tree = _Folder.of(entry for entry in entries[:MOST_ENTRIES] if not _is_ours(entry.key))
    judged = [
        Judgement(unit, "", Verdict.WHOLE) if is_in(unit, known) else _judge(unit, families)
        for unit, families in _units(store, tree, "", 0)
    ]
    beside = _beside_others([item for item in judged if item is not None])
    wanted = (item for item in beside if only in (None, item.unit.name))
    return sorted((_seen_in_part(item, cut_at) for item in wanted), key=lambda item: item.unit.name)


def is_in(unit: Unit, known: Container[str]) -> bool:
    """True if a unit is at one of these paths."""
    try:
        return unit.path in known
    except BadInput:  # a key of a bucket that no path has
        return False


def _beside_others(judged: list[Judgement]) -> Iterator[Judgement]:
    """The judgements, with those of weights alone in a numbered folder by the folders that are named alike:
    weights are the first of several files that a save of a training writes, and none of them says so.
    """
    alike: dict[str, list[Judgement]] = {}
    for item in judged:
        alike.setdefault(_DIGITS.sub("#", item.unit.name), []).append(item)
    for item in judged:
        others = [other for other in alike[_DIGITS.sub("#", item.unit.name)] if other is not item]
        yield _weights_alone(item, others) if pretrained.is_bare(item) else item


def _weights_alone(item: Judgement, others: list[Judgement]) -> Judgement:
    files = item.unit.files.keys()
    more = sorted({name for other in others if files < other.unit.files.keys() for name in other.unit.files})
    if more:
        missing = next(name for name in more if name not in files)
        return replace(
            item, verdict=Verdict.TORN, reason=f"{missing} is missing, which others beside it have"
        )
    if any(files == other.unit.files.keys() for other in others):
        return item
    reason = "it holds weights alone, with which a save of more begins, and is the first of its name"
    return replace(item, verdict=Verdict.UNKNOWN, reason=reason)


def _seen_in_part(item: Judgement, cut_at: str | None) -> Judgement:
    """The judgement; unknown where files may be missing because the listing was cut at a key."""
    if cut_at is None or (item.verdict is Verdict.WHOLE and not cut_at.startswith(f"{item.unit.name}/")):
        return item
    return replace(item, verdict=Verdict.UNKNOWN, reason=f"its place holds more than {MOST_ENTRIES} files")


def newest(judgements: Iterable[Judgement]) -> Judgement | None:
    """The whole checkpoint to go on from: of the highest step, of several that with the newest files. One
    that tells no step comes behind those that do.
    """
    return max((item for item in judgements if item.verdict is Verdict.WHOLE), key=order, default=None)


def order(item: Judgement) -> tuple[int, float]:
    """The order in which checkpoints are newer."""
    step = item.facts.step
    return (-1 if step is None else step, written(item.unit))


def written(unit: Unit) -> float:
    """The time of the newest file of a unit, epoch seconds; 0 for one without files."""
    return max((entry.modified for entry in unit.files.values()), default=0.0)


def _is_ours(key: str) -> bool:
    top = key.partition("/")[0]
    return (
        step_of(top) is not None
        or top in OURS
        or top.startswith(".saving")
        or _is_aside(key)
        or ("/" in key and RUN_FOLDER.fullmatch(top) is not None)
    )


def _is_aside(key: str) -> bool:
    return any(level.endswith(ASIDE) or f"{ASIDE}-" in level for level in key.split("/"))


def _entries(store: Store, only: str | None) -> Iterator[Entry]:
    if only is None:
        yield from store.entries()
        return
    if (entry := store.stat(only)) is not None:
        yield entry
    yield from store.entries(only)


class _Folder:
    """A folder of a listing: its own files, and the folders in it."""

    def __init__(self) -> None:
        self.files: dict[str, Entry] = {}
        self.folders: dict[str, _Folder] = {}

    @classmethod
    def of(cls, entries: Iterable[Entry]) -> _Folder:
        root = cls()
        for entry in entries:
            *levels, name = entry.key.split("/")
            folder = root
            for level in levels:
                folder = folder.folders.setdefault(level, cls())
            folder.files[name] = entry
        return root

    def below(self, prefix: str = "") -> Iterator[tuple[str, Entry]]:
        for name, entry in self.files.items():
            yield f"{prefix}{name}", entry
        for name, folder in self.folders.items():
            yield from folder.below(f"{prefix}{name}/")


def _units(store: Store, folder: _Folder, path: str, depth: int) -> Iterator[tuple[Unit, tuple[Family, ...]]]:
    at_the_top = not path
    whole = Unit(store, path, folder.files if at_the_top else dict(folder.below()))
    families = [family for family in (AT_THE_TOP if at_the_top else FOLDERS) if family.claims(whole)]
    if families:
        yield whole, tuple(families[:1])
    if families and not at_the_top:
        return
    for name, entry in folder.files.items():
        if not families:
            key = f"{path}/{name}" if path else name
            yield Unit(store, key, {name: entry}, is_file=True), FILES
    if depth < DEEPEST:
        for name, inner in folder.folders.items():
            yield from _units(store, inner, f"{path}/{name}" if path else name, depth + 1)


def _judge(unit: Unit, families: tuple[Family, ...]) -> Judgement | None:
    """The answer of the first family that claims the unit; of a file of which one says that it is not its
    own, that of the next.
    """
    first: Judgement | None = None
    for family in families:
        if not _claims(family, unit):
            continue
        judgement = judge(unit, family)
        if judgement.verdict is not Verdict.UNKNOWN:
            return judgement
        first = first or judgement
    return first


def _claims(family: Family, unit: Unit) -> bool:
    try:
        return family.claims(unit)
    except NotWhole:  # gone since the listing
        return False
