"""What a process has seen of the runs it looks at, from one look to the next: their members, and what these
wrote before their pods went.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from allaboard.backends.kubernetes.client.effects import Json
from allaboard.backends.kubernetes.logs.capture import PodCapture
from allaboard.backends.kubernetes.logs.collector import EvidenceCollector
from allaboard.backends.kubernetes.observe import progress
from allaboard.backends.kubernetes.observe.containers import PodRole
from allaboard.backends.kubernetes.observe.lookup import AttemptObjects
from allaboard.backends.kubernetes.observe.observation import Memory, ProgressState, remembered
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.follow.run_record import RunRecord

REMEMBERED, ENDED = 20_000, 100
"""Runs whose past is kept in a process, live ones and others; those that were looked at longest ago are
forgotten.
"""


@dataclass(slots=True)
class AttemptHistory:
    """What was seen of one attempt so far: its members, and what they wrote. ``told``: what its record knows
    of what rank 0 reported, once it has ended. ``which``: run, generation and attempt. ``shared``: whether
    what others have read is known here.
    """

    memory: Memory
    witness: EvidenceCollector
    told: ProgressState | None = None
    which: tuple[str, int, int] = ("", 1, 1)
    shared: bool = False

    @classmethod
    def of(cls, stored: Stored, progress_every: float) -> AttemptHistory:
        """What its record knows. Of an attempt that has ended nothing is read that was reported already."""
        memory = Memory.from_dict(stored.memory) if stored.memory else Memory()
        known = progress.from_dict(stored.report)
        which = (stored.record.run, stored.record.generation, stored.record.attempt)
        if stored.record.outcome is not None:
            return cls(memory, EvidenceCollector(progress_every=0), known, which)
        witness = EvidenceCollector(progress_every=progress_every, own=_own(stored))
        if witness.report is not None:
            witness.report = known
        return cls(memory, witness, which=which)

    @property
    def report(self) -> ProgressState | None:
        """What rank 0 said so far; None when nobody listens."""
        return self.witness.report if self.told is None else self.told

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """For the record."""
        told = self.report
        return {"memory": self.memory.to_dict(), **({"report": progress.to_dict(told)} if told else {})}


def _own(stored: Stored) -> str | None:
    """The folder of the run's checkpoints."""
    saving = (stored.layout or {}).get("saving")
    uri = saving.get("uri") if isinstance(saving, Mapping) else None
    return uri if isinstance(uri, str) else None


class HistoryCache:
    """Of all runs that this process looks at. Several threads may use it. ``progress_every``: as of
    `EvidenceCollector`.
    """

    def __init__(self, progress_every: float) -> None:
        self.progress_every = progress_every
        self._lock = threading.Lock()
        self._live: OrderedDict[str, AttemptHistory] = OrderedDict()
        self._ended: OrderedDict[str, AttemptHistory] = OrderedDict()
        self._rescued: dict[str, list[tuple[PodCapture, PodRole]]] = {}

    def with_look(self, found: AttemptObjects) -> AttemptHistory:
        """What was seen of this attempt so far, by this process or by its record, with this look."""
        past = self.of(found.stored)
        if gone := [*self._taken(found.record.uid, past, {p["metadata"]["uid"] for p in found.pods})]:
            # As it was before others came in their place.
            names = {pod["metadata"]["name"] for pod in gone}
            others = [pod for pod in found.pods if pod["metadata"]["name"] not in names]
            past.memory = remembered(past.memory, found.job, [*gone, *others])
        past.memory = remembered(past.memory, found.job, found.pods)
        return past

    def of(self, stored: Stored) -> AttemptHistory:
        """The same without a look."""
        uid = stored.record.uid
        with self._lock:
            past = self._live.pop(uid, None) or self._ended.pop(uid, None)
            past = past or AttemptHistory.of(stored, self.progress_every)
            # The look that finds the end is followed by the one that asks for evidence.
            self._put(past, uid, ended=stored.record.outcome is not None)
        return past

    def with_words(self, stored: Stored) -> AttemptHistory:
        """The same with what was rescued since the last look, of which the next one makes more."""
        past = self.of(stored)
        for one, seat in [*self._rescued.get(stored.record.uid, ())]:
            past.witness.saved(one, seat)
        return past

    def earlier(self, record: RunRecord, attempt: int) -> AttemptHistory:
        """What this process knows of an earlier attempt, whose uid no record has any more."""
        which = (record.run, record.generation, attempt)
        with self._lock:
            every = (*self._live.values(), *self._ended.values())
            past = next((past for past in every if past.which == which), None)
            if past is None:
                past = AttemptHistory(Memory(), EvidenceCollector(progress_every=0), which=which)
                self._put(past, " ".join(map(str, which)), ended=True)
        return past

    def _put(self, past: AttemptHistory, uid: str, *, ended: bool) -> None:
        where, most = (self._ended, ENDED) if ended else (self._live, REMEMBERED)
        where[uid] = past
        if len(where) > most:
            where.popitem(last=False)

    def rescue(self, uid: str, found: Iterable[PodCapture], seats: Mapping[str, PodRole]) -> None:
        """What was snatched of pods of this attempt, for the next look. ``seats``: by the name of the pod."""
        self._rescued.setdefault(uid, []).extend((one, seats[one.pod]) for one in found)
        if len(self._rescued) > ENDED:  # of runs that nobody looked at again
            self._rescued.pop(next(iter(self._rescued)), None)

    def has_rescued(self, uid: str) -> bool:
        """Whether something was since the last look."""
        return uid in self._rescued

    def _taken(self, uid: str, past: AttemptHistory, here: set[str]) -> Iterator[Json]:
        """What was snatched of pods since the last look goes to their past; those that are gone now are
        given.
        """
        for one, seat in self._rescued.pop(uid, ()):
            past.witness.saved(one, seat)
            if one.thing is not None and one.thing["metadata"]["uid"] not in here:
                yield one.thing
