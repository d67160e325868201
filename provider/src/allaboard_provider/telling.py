"""What a task log says of a run: changes, progress now and then, and rank 0's own output, all bounded.

The same teller speaks on a worker and in a triggerer, and goes on where another left off: what was told is
remembered in a small file beside the runs of this machine (``<home>/airflow/<try>.json``), so that no line
stands twice in the log of a try, whoever followed it when. It reads and formats; the caller logs.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from allaboard.backends.base import LogLine, Selection
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.folders import write_json
from allaboard.errors import AllaboardError
from allaboard.observation import MemberSeen, Observation, Progress, State
from allaboard.reportline import PREFIX
from allaboard.status import state_of
from allaboard.units import show_seconds

MOST_LINES, MOST_BYTES, LONGEST = 200, 1 << 16, 2000
_FORGET_AFTER = 30 * 86400
_SPEED = "steps_per_second"


@dataclass
class Told:
    """What the log has already. ``uid``: of the attempt that the rest is about."""

    uid: str | None = None
    cursor: dict[str, Any] | None = None
    state: str | None = None
    waiting: str | None = None
    step: int | None = None
    progress_at: float = 0.0
    checkpoint: str | None = None
    resumed_from: int | None = None
    flags: list[str] = field(default_factory=list)


class Teller:
    """Turns observations of one run into lines for the task log of one try."""

    def __init__(self, backend: LocalBackend, run: str, ti_id: str, *, output: bool = True) -> None:
        """``output``: rank 0's own lines too."""
        self.backend, self.run, self.output = backend, run, output
        self.path = Path(backend.home) / "airflow" / f"{ti_id}.json"
        self.told = self._remembered()

    def news(self, seen: Observation, now: float) -> list[str]:
        """The lines that this look adds to the log; reads rank 0's output. Blocks on the disk."""
        if seen.uid != self.told.uid:
            self.told = Told(uid=seen.uid)
        before = asdict(self.told)
        state, rest = (
            list(self._state(seen)),
            [*self._output(), *self._progress(seen, now), *self._flags(seen)],
        )
        # What a run wrote belongs between its start and its end.
        lines = [*rest, *state] if state_of(seen).is_final else [*state, *rest]
        if asdict(self.told) != before:
            self._remember()
        return lines

    def forget(self) -> None:
        """The try is over; what was told in long-gone tries is forgotten as well."""
        self.path.unlink(missing_ok=True)
        with suppress(OSError):
            for left in self.path.parent.glob("*.json"):
                if time.time() - left.stat().st_mtime > _FORGET_AFTER:
                    left.unlink(missing_ok=True)

    def _remembered(self) -> Told:
        try:
            body = json.loads(self.path.read_bytes())
            return Told(**{name: body[name] for name in Told.__dataclass_fields__ if name in body})
        except (OSError, ValueError, TypeError):
            return Told()

    def _remember(self) -> None:
        # A log line told twice is a lesser evil than a task that ends because a disk is full.
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, asdict(self.told))

    def _state(self, seen: Observation) -> Iterator[str]:
        state = state_of(seen)
        if state.value == self.told.state and seen.waiting == self.told.waiting:
            return
        self.told.state, self.told.waiting = state.value, seen.waiting
        yield f"{self.run}: {_state_words(seen, state)}"

    def _progress(self, seen: Observation, now: float) -> Iterator[str]:
        progress, told = seen.progress, self.told
        if progress.resumed_from is not None and progress.resumed_from != told.resumed_from:
            told.resumed_from = progress.resumed_from
            yield f"{self.run}: resumed from step {progress.resumed_from}"
        if progress.step is not None and progress.step != told.step and self._is_due(seen, now):
            told.step, told.progress_at = progress.step, now
            yield f"{self.run}: {progress_words(progress)}"
        if progress.checkpoint is not None and progress.checkpoint != told.checkpoint:
            told.checkpoint = progress.checkpoint
            best = ", the best so far" if progress.checkpoint == progress.best_checkpoint else ""
            yield f"{self.run}: checkpoint {progress.checkpoint}{best}"

    def _is_due(self, seen: Observation, now: float) -> bool:
        """Every 5 s at first, every minute later on; the last step always."""
        if seen.progress.step == seen.progress.total or state_of(seen).is_final:
            return True
        running = now - (seen.started or now)
        return now - self.told.progress_at >= max(5.0, min(60.0, running / 10))

    def _flags(self, seen: Observation) -> Iterator[str]:
        for flag in seen.flags:
            if flag not in self.told.flags:
                self.told.flags.append(flag)
                yield f"{self.run}: warning: {flag.replace('_', ' ')} (see diagnoses)"

    def _output(self) -> list[str]:
        """What rank 0 wrote since the last look, without report lines, which are told in better words."""
        if not self.output:
            return []
        found: list[str] = []
        try:
            for item in self.backend.logs(self.run, Selection(ranks=(0,)), self.told.cursor):
                if isinstance(item, LogLine):
                    found.append(item.text)
                else:
                    self.told.cursor = item
        except (AllaboardError, OSError):  # not started yet, or cleaned up meanwhile
            return []
        return bounded([line for line in found if not line.startswith(PREFIX)], self.run)


def bounded(lines: list[str], run: str) -> list[str]:
    """The last of the lines, as many as a task log should take at once; first, how many are left out."""
    kept: list[str] = []
    room = MOST_BYTES
    for line in reversed(lines[-MOST_LINES:]):
        short = line if len(line) <= LONGEST else f"{line[:LONGEST]}... ({len(line)} characters)"
        room -= len(short.encode("utf-8", "replace"))
        if room < 0:
            break
        kept.append(short)
    kept.reverse()
    left_out = len(lines) - len(kept)
    if left_out:
        kept.insert(0, f"({left_out} lines of rank 0 left out here: allaboard logs {run} --rank 0)")
    return kept


def progress_words(progress: Progress) -> str:
    """``step 120/400 (30 %), loss 0.31, 39.8 steps/s, 7 s to go``."""
    step, total = progress.step, progress.total
    words = [f"step {step}" if not total else f"step {step}/{total} ({100 * (step or 0) // total} %)"]
    words += [f"{name} {_number(value)}" for name, value in progress.metrics.items() if name != _SPEED]
    speed = progress.metrics.get(_SPEED)
    if speed:
        words.append(f"{speed:.3g} steps/s")
        if total and step is not None and step < total:
            words.append(f"{show_seconds((total - step) / speed)} to go")
    return ", ".join(words)


def _number(value: float | None) -> str:
    return "not a number" if value is None else f"{value:.4g}"


def _state_words(seen: Observation, state: State) -> str:
    if state is State.QUEUED and seen.waiting:
        return f"queued: {seen.waiting}"
    if state is State.RUNNING:
        some = [f"{member.name} {member.phase}" for member in seen.members[:8]]
        return f"running ({', '.join([*some, *(['...'] if len(seen.members) > 8 else [])])})"
    if state is State.RESTARTING:
        failed = next((m for m in seen.members if m.exit_code), None)
        return f"restarting, restart {seen.restarts}" + (f": {_exit_words(failed)}" if failed else "")
    if state is State.STOPPING and seen.stop is not None:
        return f"stopping: {seen.stop.reason} ({seen.stop.by})"
    return state.value.replace("_", " ")


def _exit_words(member: MemberSeen) -> str:
    return f"{member.name} exited with {member.exit_code}"
