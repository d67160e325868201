"""What was seen of one attempt of a run, from one look to the next: its members, and what they wrote before
their pods went.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, replace
from typing import Any

from allaboard.backends.kubernetes.logs.cache import LogCache
from allaboard.backends.kubernetes.logs.collector import EvidenceCollector
from allaboard.backends.kubernetes.observe import progress
from allaboard.backends.kubernetes.observe.observation import Memory, ProgressState
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.diagnosis.stacks import ProcessLook
from allaboard.runs.observation import Doubt, Stall

STACKS_AGAIN, STACKS_SELDOM = 60.0, 3600.0
"""Seconds until the stacks of a run that stands are asked for again, doubling up to the longest: each time a
process is started in every container.
"""


@dataclass(slots=True)
class AttemptHistory:
    """``recorded``: what the record knows of what rank 0 reported, once the attempt has ended. ``is_shared``:
    whether what other processes have read is known here. ``stall``: that it makes no progress, as of
    ``asked``, when its members were asked for their last lines (server's time); ``stacks_due``: when they are
    asked for their stacks again, ``pause``: seconds from then to the next time; ``knows_last_good``: whether
    the last good run of its job was asked how long it was silent. ``word``: what its members are asked by a
    file and have time to answer, "" for nothing; ``word_at``: since when.
    """

    memory: Memory
    collector: EvidenceCollector
    recorded: ProgressState | None = None
    is_shared: bool = False
    stall: Stall | None = None
    asked: float = 0.0
    stacks_due: float = 0.0
    pause: float = STACKS_AGAIN
    knows_last_good: bool = False
    word: str = ""
    word_at: float = 0.0
    rounds: tuple[tuple[ProcessLook, ...], ...] = ()
    """The last looks at the processes of members that have written nothing yet."""

    def moves(self) -> None:
        """It makes progress, or does not run."""
        self.stall, self.stacks_due, self.pause, self.word = None, 0.0, STACKS_AGAIN, ""
        self.rounds = ()

    def take_turn(self, now: float) -> bool:
        """Whether its members are to be asked for their stacks now; each time later than the last."""
        if now < self.stacks_due:
            return False
        self.stacks_due, self.pause = now + self.pause, min(STACKS_SELDOM, 2 * self.pause)
        return True

    @classmethod
    def of(cls, stored: Stored, progress_every: float, cache: LogCache) -> AttemptHistory:
        """What its record knows. Of an attempt that has ended nothing is read that was reported already."""
        memory = Memory.from_dict(stored.memory) if stored.memory else Memory()
        report = progress.from_dict(stored.report)
        if stored.record.outcome is not None:
            return cls(memory, EvidenceCollector(progress_every=0, cache=cache), report)
        collector = EvidenceCollector(progress_every=progress_every, own=_own_folder(stored), cache=cache)
        if collector.report is not None:
            collector.report = report
        return cls(memory, collector)

    def doubt(self, doubts: tuple[Doubt, ...]) -> None:
        """The run has succeeded, and its logs contradict that."""
        report = self.collector.report
        if report is not None and doubts:
            self.collector.report = replace(report, doubts=doubts)

    @property
    def report(self) -> ProgressState | None:
        """What rank 0 reported so far; None when its reports are not read."""
        return self.collector.report if self.recorded is None else self.recorded

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """For the record."""
        report = self.report
        if report is not None and self.recorded is None:
            longest = max(report.progress.longest_pause, round(self.collector.movement.longest, 1))
            report = replace(report, progress=replace(report.progress, longest_pause=longest))
        return {"memory": self.memory.to_dict(), **({"report": progress.to_dict(report)} if report else {})}


def _own_folder(stored: Stored) -> str | None:
    """The folder of the run's checkpoints."""
    saving = (stored.layout or {}).get("saving")
    uri = saving.get("uri") if isinstance(saving, Mapping) else None
    return uri if isinstance(uri, str) else None
