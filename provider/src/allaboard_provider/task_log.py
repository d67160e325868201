"""What a task log says of a run: changes, progress now and then, and rank 0's own output, all bounded.

The same teller speaks on a worker and in a triggerer, and each goes on where the other left off: what was
told (`LogState`) travels with the trigger to the triggerer, and back with its event. What a triggerer told
itself is also kept in a small file of its machine (``<home>/airflow/<try>.json``), for the one that takes its
place there. So no line stands twice in the log of a try, but for a triggerer on another machine that takes
over from one which was killed: it begins where the worker left off.

It formats; `wrote` and `awrote` read what rank 0 wrote, and the caller logs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from allaboard.backends.base import Backend, Cursor, LogLine, Selection
from allaboard.backends.local.state.paths import write_json
from allaboard.errors import AllaboardError, SiteError
from allaboard.follow.loop import Outcome
from allaboard.observation import MemberSeen, Observation, Progress, State
from allaboard.printable import last_state, visible
from allaboard.redaction import redact_text
from allaboard.reportline import PREFIX
from allaboard.spec.site import home
from allaboard.status import state_of
from allaboard.units import counted, show_seconds
from allaboard.untrusted import LIMITS, parse_json

MOST_LINES, MOST_BYTES, LONGEST = 200, 1 << 16, 2000
LAST_LINES = 50
"""Of the member that failed first."""
LAST_OF_A_TRY = 10
"""Of a member that is started again, and left no traceback."""
MOST_MEMBERS = 4
"""Whose restarts are told at once with what they wrote."""
_TRACEBACK = "Traceback (most recent call last)"
_FORGET_AFTER = 30 * 86400
_SPEED = "steps_per_second"


@dataclass
class LogState:
    """What the log has already. ``uid``: of the attempt that it is about; ``at``: when it was told, epoch
    seconds, below zero for never; ``over``: how it ended is told too.
    """

    uid: str | None = None
    at: float = -1.0
    cursor: dict[str, Any] | None = None
    state: str | None = None
    waiting: str | None = None
    step: int | None = None
    progress_at: float = 0.0
    checkpoint: str | None = None
    resumed_from: int | None = None
    restarts: dict[str, int] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    over: bool = False

    @classmethod
    def of(cls, body: Any) -> LogState:
        """From its JSON; of another release's what is understood."""
        if not isinstance(body, Mapping):
            return cls()
        return cls(**{name: body[name] for name in cls.__dataclass_fields__ if name in body})


class TaskLog:
    """Turns observations of one run into lines for the task log of one try. ``told``: what the log has
    already, as far as the caller knows; ``home``: where else that is kept, None: nowhere; ``options``: of the
    command line, by which the run is found there.
    """

    def __init__(
        self,
        run: str,
        ti_id: str,
        *,
        told: Mapping[str, Any] | None = None,
        home: str | None = None,
        output: bool = True,
        options: str = "",
        known: Iterable[str] | None = (),
    ) -> None:
        """``output``: rank 0's own lines too. ``known``: the run's secrets, which no line shows; None for one
        who has yet to find out, and sets `known` before he tells.
        """
        self.run, self.output, self.options = run, output, options
        self.known = known
        self.path = Path(home) / "airflow" / f"{ti_id}.json" if home is not None else None
        self.told = max(LogState.of(told), self._remembered(), key=lambda known: known.at)

    def about(self, seen: Observation) -> None:
        """What follows is about the attempt that is seen here. Until its own rank 0 has said something, the
        progress that is seen is that of the attempt before, from which its steps are counted on.
        """
        if seen.uid != self.told.uid:
            self.told = LogState(uid=seen.uid, checkpoint=self.told.checkpoint)
        if seen.progress.heartbeat is None:
            self.told.step, self.told.checkpoint = seen.progress.step, seen.progress.checkpoint

    @property
    def told_so_far(self) -> dict[str, Any]:
        """For whoever goes on after us. Plain JSON."""
        return asdict(self.told)

    def news(self, seen: Observation, now: float, lines: Iterable[str] = ()) -> list[str]:
        """The lines that this look adds to the log. ``lines``: what rank 0 wrote since the last one."""
        self.about(seen)
        before = asdict(self.told)
        state = list(self._state(seen))
        newest = Newest(lines)
        rest = [
            *self._bounded(newest),
            *self._progress(seen, now),
            *self._flags(seen),
        ]
        if rest or state or asdict(self.told) != before:
            self.told.at = now
            self._remember()
        # What a run wrote belongs between its start and its end.
        told = [*rest, *state] if state_of(seen).is_final else [*state, *rest]
        return [self._clean(line) for line in told]

    def failed_tries(self, seen: Observation) -> list[MemberSeen]:
        """The members that failed and were started again since the last time."""
        self.about(seen)
        known = self.told.restarts
        found = [m for m in seen.members if m.restarts > known.get(m.name, 0)]
        if found:
            self.told.restarts = {m.name: m.restarts for m in seen.members if m.restarts}
            self._remember()
        return found[:MOST_MEMBERS]

    def restart_words(self, member: MemberSeen, lines: Iterable[str]) -> list[str]:
        """A warning for the log. ``lines``: the last ones of the try that failed."""
        end = self._end_of([line for line in lines if not line.startswith(PREFIX)])
        ended = _exit_words(member) if member.exit_code is not None else f"{visible(member.name)} ended"
        words = f"{self.run}: {ended} and is started again, restart {member.restarts}"
        return [f"{words}; its last lines:", *end] if end else [words]

    def last_words(self, outcome: Outcome) -> list[str]:
        """Of a run that failed: the last lines of the member that failed first. Once. Nothing of one that
        somebody stopped: its members were told to end, and what they wrote explains nothing.
        """
        self.about(outcome.seen)
        if outcome.ok or outcome.state is State.STOPPED:
            return []
        member = first_failing(outcome)
        text = outcome.seen.tails.get(member or "", "")
        if not text or self.told.over:
            return []
        self.told.over = True
        lines = [line for line in text.split("\n") if line.strip() and not line.startswith(PREFIX)]
        cut = [f"  {self._line(line)}" for line in lines[-LAST_LINES:]]
        first = ", which failed first" if outcome.state is State.FAILED else ""
        return [f"the last lines of {member}{first}:", *cut]

    def forget(self) -> None:
        """The try is over; what was told in long-gone tries is forgotten as well."""
        if self.path is None:
            return
        self.path.unlink(missing_ok=True)
        with suppress(OSError):
            for left in self.path.parent.glob("*.json"):
                if time.time() - left.stat().st_mtime > _FORGET_AFTER:
                    left.unlink(missing_ok=True)

    def _remembered(self) -> LogState:
        try:
            if self.path is None:
                return LogState()
            with self.path.open("rb") as file:
                return LogState.of(parse_json(file.read(LIMITS.size + 1), spelling=False, any_text=True))
        except (OSError, ValueError, TypeError):
            return LogState()

    def _remember(self) -> None:
        # A log line told twice is a lesser evil than a task that ends because a disk is full.
        if self.path is None:
            return
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, asdict(self.told))

    # Lines.

    def _bounded(self, newest: Newest) -> list[str]:
        # Hidden before they are cut: half a secret is known to nobody.
        shown = [self._hidden(last_state(line)) for line in newest[-MOST_LINES:]]
        return bounded(shown, self.run, self.options, newest.dropped + len(newest) - len(shown))

    def _end_of(self, lines: list[str]) -> list[str]:
        """The last traceback and what follows it, else the last lines; indented."""
        kept = lines[-LAST_LINES:]
        starts = [n for n, line in enumerate(kept) if _TRACEBACK in line]
        end = kept[starts[-1] :] if starts else kept[-LAST_OF_A_TRY:]
        return [f"  {self._line(line)}" for line in end]

    def _line(self, line: str) -> str:
        """Of what a member wrote."""
        return visible(_short(self._hidden(last_state(line))), tabs=True)

    def _clean(self, line: str) -> str:
        """A line of a task log stays one line, whatever a member, a server or another user wrote into it, and
        carries no secret into it.
        """
        return visible(self._hidden(line), tabs=True)

    def _hidden(self, text: str) -> str:
        return redact_text(text, self.known or ())

    # What is told of.

    def _state(self, seen: Observation) -> Iterator[str]:
        state = state_of(seen)
        # The words about an obstacle come and go with each try; its code stands. It is kept by triggers.
        kept = (
            seen.obstacle.code if seen.obstacle is not None else seen.waiting and self._hidden(seen.waiting)
        )
        if state.value == self.told.state and kept == self.told.waiting:
            return
        self.told.state, self.told.waiting = state.value, kept
        yield f"{self.run}: {_state_words(seen, state)}"

    def _progress(self, seen: Observation, now: float) -> Iterator[str]:
        progress, told = seen.progress, self.told
        if progress.resumed_from is not None and progress.resumed_from != told.resumed_from:
            told.resumed_from = progress.resumed_from
            if progress.step == progress.resumed_from:
                told.step = progress.step  # reached before; what was measured there is told already
            yield f"{self.run}: resumed from step {progress.resumed_from}"
        if progress.step is not None and progress.step != told.step and self._is_due(seen, now):
            told.step, told.progress_at = progress.step, now
            yield f"{self.run}: {progress_words(progress)}"
        if progress.checkpoint is not None and progress.checkpoint != told.checkpoint:
            told.checkpoint = progress.checkpoint
            best = ", the best so far" if progress.checkpoint == progress.best_checkpoint else ""
            yield f"{self.run}: checkpoint {progress.checkpoint}{best}"

    def _is_due(self, seen: Observation, now: float) -> bool:
        """The last step always."""
        if seen.progress.step == seen.progress.total or state_of(seen).is_final:
            return True
        return now - self.told.progress_at >= pause_after(seen, now)

    def _flags(self, seen: Observation) -> Iterator[str]:
        for flag in seen.flags:
            if flag not in self.told.flags:
                self.told.flags.append(flag)
                yield f"{self.run}: warning: {flag.replace('_', ' ')} (see diagnoses)"


def pause_after(seen: Observation, now: float) -> float:
    """Seconds between two words about a run that goes on: 5 at first, a minute later on."""
    since = seen.started or seen.created or now
    return max(5.0, min(60.0, (now - since) / 10))


def rest_after(backend: Any, seen: Observation | None, seconds: float, now: float) -> float:
    """Seconds until a follower looks again whom nothing wakes, and who asked for ``seconds``. At this machine
    it may look as often as it likes. A look at a cluster is some requests: one that follows no change is as
    rare as the words that it is for.
    """
    if backend.name == "local" or seen is None:
        return seconds
    return min(seconds, pause_after(seen, now))


def kept_at(environ: Mapping[str, str] = os.environ) -> str | None:
    """Where this machine keeps what was told; None for a user without a home."""
    try:
        return home(environ)
    except SiteError:
        return None


# What members wrote.


class Newest(list[str]):
    """The newest of many lines, without those for allaboard. ``dropped``: how many went before them."""

    def __init__(self, lines: Iterable[str] = ()) -> None:
        super().__init__()
        self.dropped = getattr(lines, "dropped", 0)
        for line in lines:
            self.take(line)

    def take(self, line: str) -> None:
        if line.startswith(PREFIX):
            return
        self.append(line)
        if len(self) >= 2 * MOST_LINES:
            self.dropped += MOST_LINES
            del self[:MOST_LINES]


def wrote(backend: Backend, teller: TaskLog) -> list[str]:
    """The lines of rank 0 since the last time. Blocks."""
    if not teller.output:
        return []
    found = Newest()
    try:
        for item in backend.logs(teller.run, _selection(backend, teller), teller.told.cursor):
            _take(item, found, teller)
    except (AllaboardError, OSError):  # not started yet, or cleaned up meanwhile
        return []
    return found


async def awrote(backend: Any, teller: TaskLog) -> list[str]:
    """The same of an async backend."""
    if not teller.output:
        return []
    found = Newest()
    try:
        async for item in backend.logs(teller.run, _selection(backend, teller), teller.told.cursor):
            _take(item, found, teller)
    except (AllaboardError, OSError):
        return []
    return found


def warnings(backend: Backend, teller: TaskLog, seen: Observation) -> list[str]:
    """Of each restart since the last time: who failed, how, and what it wrote last. Blocks."""
    found = []
    for member in teller.failed_tries(seen):
        lines: list[str] = []
        with suppress(AllaboardError, OSError):  # cleaned up meanwhile
            items = backend.logs(teller.run, _of_the_try_before(member))
            lines = [item.text for item in items if isinstance(item, LogLine)]
        found += teller.restart_words(member, lines)
    return found


async def awarnings(backend: Any, teller: TaskLog, seen: Observation) -> list[str]:
    """The same of an async backend."""
    found = []
    for member in teller.failed_tries(seen):
        lines = []
        with suppress(AllaboardError, OSError):
            items = backend.logs(teller.run, _of_the_try_before(member))
            lines = [item.text async for item in items if isinstance(item, LogLine)]
        found += teller.restart_words(member, lines)
    return found


def _of_the_try_before(member: MemberSeen) -> Selection:
    return Selection(members=(member.name,), restart=member.restarts - 1, tail=LAST_LINES)


def _selection(backend: Any, teller: TaskLog) -> Selection:
    # Whoever comes late to a run on a cluster does not fetch all that it ever wrote.
    late = backend.name != "local" and teller.told.cursor is None
    return Selection(ranks=(0,), tail=MOST_LINES if late else None)


def _take(item: LogLine | Cursor, found: Newest, teller: TaskLog) -> None:
    if isinstance(item, LogLine):
        found.take(item.text)
    else:
        teller.told.cursor = item


def bounded(lines: list[str], run: str, options: str = "", dropped: int = 0) -> list[str]:
    """The last of the lines, as many as a task log should take at once; first, how many are left out.
    ``dropped``: those before them.
    """
    kept: list[str] = []
    room = MOST_BYTES
    for line in reversed(lines[-MOST_LINES:]):
        short = _short(last_state(line))
        room -= len(short.encode("utf-8", "replace"))
        if room < 0:
            break
        kept.append(short)
    kept.reverse()
    left_out = dropped + len(lines) - len(kept)
    if left_out:
        where = f"allaboard logs {run} --rank 0{options}"
        kept.insert(0, f"({counted(left_out, 'line')} of rank 0 left out here: {where})")
    return kept


def _short(line: str) -> str:
    return line if len(line) <= LONGEST else f"{line[:LONGEST]}... ({len(line)} characters)"


# Words.


def first_failing(outcome: Outcome) -> str | None:
    """The member whose end explains the run's: the one that the diagnosis blames, else the first to fail."""
    seen = outcome.seen
    blamed = outcome.diagnoses[0].blame if outcome.diagnoses else None
    if blamed in {m.name for m in seen.members}:
        return blamed
    failed = [m for m in seen.members if m.exit_code not in (None, 0)]
    return min(failed, key=lambda m: (m.ended or float("inf"), m.rank)).name if failed else None


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
    if state in (State.QUEUED, State.STARTING, State.RESTARTING) and seen.held_by:
        return f"{state}: {seen.held_by}"
    if state is State.RUNNING:
        some = [f"{member.name} {member.phase}" for member in seen.members[:8]]
        return f"running ({', '.join([*some, *(['...'] if len(seen.members) > 8 else [])])})"
    if state is State.RESTARTING:
        return f"restarting, restart {seen.restarts}"
    if state in (State.STOPPING, State.STOPPED) and seen.stop is not None:
        word = "stopped" if state is State.STOPPED else "being stopped"
        return f"{word} by {visible(seen.stop.by)}: {visible(seen.stop.reason)}"
    return state.value.replace("_", " ")


def _exit_words(member: MemberSeen) -> str:
    return f"{visible(member.name)} exited with {member.exit_code}"
