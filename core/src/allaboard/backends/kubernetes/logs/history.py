"""History of one attempt of a run, from one look to the next: its members, and the logs that they wrote
before their pods went.
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
"""Seconds until the stacks of a stalled run are asked for again, doubling up to the longest: each request
starts a process in every container.
"""


@dataclass(slots=True)
class AttemptHistory:
    """``recorded``: rank 0's reports in the record, once the attempt has ended. ``is_shared``: the logs that
    other processes read are known here. ``stall``: the attempt makes no progress, as of ``asked``, the time
    (server's clock) at which its members were asked for their last lines. ``stacks_due``: the time at which
    they are asked for their stacks again, ``pause``: seconds from then to the next time. ``knows_last_good``:
    the silence of the last good run of its job was read. ``word``: the question that its members are asked by
    a file and have time to answer, "" for none; ``word_at``: since when.
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
        """Note that it makes progress, or does not run."""
        self.stall, self.stacks_due, self.pause, self.word = None, 0.0, STACKS_AGAIN, ""
        self.rounds = ()

    def take_turn(self, now: float) -> bool:
        """True when its members are to be asked for their stacks now; each time after a longer pause."""
        if now < self.stacks_due:
            return False
        self.stacks_due, self.pause = now + self.pause, min(STACKS_SELDOM, 2 * self.pause)
        return True

    @classmethod
    def of(cls, stored: Stored, progress_every: float, cache: LogCache) -> AttemptHistory:
        """The history in its record. The logs of an ended attempt are not read again for its reports."""
        memory = Memory.from_dict(stored.memory) if stored.memory else Memory()
        report, expression = progress.from_dict(stored.report), _expression(stored)
        report = replace(report, progress=replace(report.progress, expression=expression))
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
        """The reports of rank 0 so far; None when they are not read."""
        return self.collector.report if self.recorded is None else self.recorded

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """The fields of the record."""
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


def _expression(stored: Stored) -> str | None:
    """The field ``progress`` of its job."""
    spec = (stored.layout or {}).get("progress")
    return spec if isinstance(spec, str) else None
