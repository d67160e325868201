"""What was seen of one attempt of a run, from one look to the next: its members, and what they wrote before
their pods went.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from allaboard.backends.kubernetes.logs.cache import LogCache
from allaboard.backends.kubernetes.logs.collector import EvidenceCollector
from allaboard.backends.kubernetes.observe import progress
from allaboard.backends.kubernetes.observe.observation import Memory, ProgressState
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.observation import Stall


@dataclass(slots=True)
class AttemptHistory:
    """``recorded``: what the record knows of what rank 0 reported, once the attempt has ended. ``is_shared``:
    whether what other processes have read is known here. ``stall``: that it makes no progress, as of
    ``asked``, when its members were asked for their last lines (server's time).
    """

    memory: Memory
    collector: EvidenceCollector
    recorded: ProgressState | None = None
    is_shared: bool = False
    stall: Stall | None = None
    asked: float = 0.0

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

    @property
    def report(self) -> ProgressState | None:
        """What rank 0 reported so far; None when its reports are not read."""
        return self.collector.report if self.recorded is None else self.recorded

    def to_dict(self) -> dict[str, dict[str, Any]]:
        """For the record."""
        report = self.report
        return {"memory": self.memory.to_dict(), **({"report": progress.to_dict(report)} if report else {})}


def _own_folder(stored: Stored) -> str | None:
    """The folder of the run's checkpoints."""
    saving = (stored.layout or {}).get("saving")
    uri = saving.get("uri") if isinstance(saving, Mapping) else None
    return uri if isinstance(uri, str) else None
