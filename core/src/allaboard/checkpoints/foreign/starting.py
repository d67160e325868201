"""One checkpoint for all members of a gang that start each by itself, as containers do.

    <run>/starts/began                when the run began, by the clock of its file system
    <run>/starts/000000000002.json    a choice: {"version": 1, "attempt": 1, "place": "../checkpoint-500",
                                      "step": 500}; place is null where there was no checkpoint
    <run>/starts/worker-1             the number of the choice with which this member started last

A member takes the last choice of its attempt, unless it has started with that one before: then the gang has
trained since, and a new choice is due. The leader makes it, after it has moved aside what is torn; where no
leader starts in time (it runs on, or waits for a node), the member that waits does, and the leader takes
that.
A number is created once, so that of several that choose at once one wins.

The leader keeps to a choice that others took before it as long as that checkpoint is whole and `stands`.

The choices lie where all members see them: in the run's folder on a shared disk, or in that of the bucket
(`allaboard.checkpoints.foreign.copied`).
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass
from typing import Any

from allaboard.checkpoints.foreign.adopting import Places
from allaboard.checkpoints.foreign.finding import order
from allaboard.checkpoints.foreign.handing import Handed, given, move_torn, stands
from allaboard.checkpoints.foreign.unit import Judgement, Verdict
from allaboard.checkpoints.manifest import checked_place
from allaboard.checkpoints.names import STARTS
from allaboard.errors import StorageConflict, StorageMissing, StorageUnsupported
from allaboard.storage.base import Store, join, read_small
from allaboard.text.untrusted import Unreadable, parse_json

VERSION = 1
_BEGAN = f"{STARTS}/began"
_CHOICE = re.compile(r"starts/(\d{12})\.json")
_KEPT, _TRIES = 3, 20
"""Choices that stay; how often somebody else may be faster."""
_LARGEST = 10**12


@dataclass(frozen=True, slots=True)
class Starter:
    """A member that starts. ``name``: ``worker-1``; ``leads``: it is rank 0."""

    name: str
    attempt: int
    leads: bool


@dataclass(frozen=True, slots=True)
class Choice:
    """``place``: where the checkpoint is, as in a manifest; None: there was none."""

    number: int
    attempt: int
    place: str | None
    step: int | None = None


def began(own: Store) -> float:
    """The time at which the first member of a run started, by the clock of its file system. Raises
    StorageError.
    """
    while (entry := own.stat(_BEGAN)) is None:
        with suppress(StorageConflict):
            own.create(_BEGAN, b"")
    return entry.modified


def choose(places: Places, me: Starter, start_from: str | None, wait: Callable[[], bool]) -> Handed:
    """The checkpoint with which this member starts, the same for all of its gang. ``wait``: waits a moment;
    False once the leader had its time. Raises StorageError.
    """
    moved: list[str] = []
    own = places.own

    def whole() -> Mapping[str, tuple[int, float]]:
        judged = [*places.judged()]
        if me.leads:
            moved.extend(move_torn(places, [item for _, item in judged]))
        return {_place(top, item): order(item) for top, item in judged if item.verdict is Verdict.WHOLE}

    choice = agree(own, me, whole, lambda choice: _is_there(own, choice), wait)
    if choice.place is None:
        return given(start_from, (*moved,))
    return Handed(_path(own, choice.place), choice.step, (*moved,))


def agree(
    starts: Store,
    me: Starter,
    whole: Callable[[], Mapping[str, tuple[int, float]]],
    is_there: Callable[[Choice], bool],
    wait: Callable[[], bool],
) -> Choice:
    """The choice of this member's gang. ``starts``: where the choices are; ``whole``: place of each whole
    checkpoint -> its order, as of `finding.order`; ``is_there``: whether this member can take a choice of
    another one. Raises StorageError.
    """
    known: Mapping[str, tuple[int, float]] | None = whole() if me.leads else None
    for _ in range(_TRIES):
        numbers = _numbers(starts)
        choice = _fresh_choice(starts, me, numbers)
        while known is None and (choice is None or not is_there(choice)):
            if not wait():
                known = whole()
            numbers = _numbers(starts)
            choice = _fresh_choice(starts, me, numbers)
        if known is not None and (choice is None or not _stands(choice, known)):
            choice = _create(starts, me, known, numbers)
        if choice is not None:
            starts.write(f"{STARTS}/{me.name}", b"%d" % choice.number)
            return choice
    raise StorageConflict(f"{join(starts.uri, STARTS)}: others choose again and again; see who else runs")


def _fresh_choice(own: Store, me: Starter, numbers: Sequence[int]) -> Choice | None:
    """The last choice, if it is of this attempt and this member has not started with it."""
    last = max(numbers, default=0)
    choice = _read(own, last) if last > _started_with(own, me.name) else None
    return choice if choice is not None and choice.attempt == me.attempt else None


def _stands(choice: Choice, whole: Mapping[str, tuple[int, float]]) -> bool:
    if choice.place is None:
        return stands(None, whole.values())
    return choice.place in whole and stands(whole[choice.place], whole.values())


def _create(
    starts: Store, me: Starter, whole: Mapping[str, tuple[int, float]], numbers: Sequence[int]
) -> Choice | None:
    """A new choice after those with ``numbers``; None: somebody else was faster."""
    place = max(whole, key=lambda known: whole[known], default=None)
    step = None if place is None or whole[place][0] < 0 else whole[place][0]
    number = max(numbers, default=0) + 1
    choice = Choice(number, me.attempt, place, step)
    body = {"version": VERSION, "attempt": choice.attempt, "place": choice.place, "step": choice.step}
    content = json.dumps(body).encode()
    try:
        starts.create(_key(number), content)
    except StorageConflict:
        return None
    except StorageUnsupported:  # of two that choose at the same moment, both may win
        if starts.stat(_key(number)) is not None:
            return None
        starts.write(_key(number), content)
    starts.delete(_key(old) for old in numbers if old <= number - _KEPT)
    return choice


def _numbers(own: Store) -> list[int]:
    return [int(match[1]) for entry in own.entries(STARTS) if (match := _CHOICE.fullmatch(entry.key))]


def _key(number: int) -> str:
    return f"{STARTS}/{number:012d}.json"


def _started_with(own: Store, name: str) -> int:
    """The number of the last choice of a member; 0: it has not started yet, or left nothing readable."""
    try:
        text = own.read(f"{STARTS}/{name}", 0, 20)
    except StorageMissing:
        return 0
    return int(text) if text.isdigit() and int(text) < _LARGEST else 0


def _read(own: Store, number: int) -> Choice | None:
    """The choice of this number; None for one that cannot be read."""
    try:
        body = parse_json(read_small(own, _key(number)), spelling=False)
        place = body["place"] if body["place"] is None else checked_place(body["place"])
        return Choice(number, _whole(body, "attempt") or 0, place, _whole(body, "step"))
    except (StorageMissing, Unreadable, ValueError, TypeError, KeyError):
        return None


def _whole(body: Mapping[str, Any], name: str) -> int | None:
    value = body.get(name)
    is_whole = isinstance(value, int) and not isinstance(value, bool) and 0 <= value < _LARGEST
    return value if is_whole else None


def _place(top: str, item: Judgement) -> str:
    return f"{top}/{item.unit.name}" if item.unit.name else top


def _path(own: Store, place: str) -> str:
    top, _, below = place.partition("/")
    return join((own.above() if top == ".." else own).uri, below)


def _is_there(own: Store, choice: Choice) -> bool:
    if choice.place is None:
        return True
    top, _, below = choice.place.partition("/")
    path = (own.above() if top == ".." else own).local_path(below)
    return path is not None and path.exists()
