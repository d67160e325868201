"""The lines of a run in the task log: changes, progress now and then, and rank 0's own output, all bounded.

A worker and a triggerer write into the same log, and each goes on where the other stopped: `LogState` travels
with the trigger to the triggerer, and back with its event. A triggerer also keeps its state in a small file
of its machine (``<home>/airflow/<try>.json``), for the triggerer that takes its place there. So no line
stands twice in the log of a try, except after a triggerer was killed and one on another machine takes over:
that one starts where the worker stopped.

`TaskLog` formats, over a reader of rank 0's output (`allaboard.report.output`); the caller logs.
"""

from __future__ import annotations

import os
import time
from collections.abc import Iterable, Iterator, Mapping
from contextlib import suppress
from dataclasses import asdict, dataclass, field
from pathlib import Path
from typing import Any

from allaboard.backends.base import Backend, Cursor, Selection
from allaboard.backends.local.state.paths import write_json
from allaboard.errors import AllaboardError, SiteError
from allaboard.follow.loop import Outcome
from allaboard.follow.news import Said, kind_of_reason, news, reason_of
from allaboard.job.site import home
from allaboard.report import phrases
from allaboard.report.commands import Place
from allaboard.report.output import KEPT, MOST_LINES, OutputReader
from allaboard.runs.observation import MemberSeen, Observation, State
from allaboard.runs.status import state_of
from allaboard.text.printable import visible
from allaboard.text.redaction import redact_text
from allaboard.text.untrusted import LIMITS, parse_json

LAST_OF_A_TRY = 10
"""The last lines of a restarted member without a traceback."""
MOST_MEMBERS = 4
"""Members whose restarts are logged at once, with their last lines."""
_TRACEBACK = "Traceback (most recent call last)"
_FORGET_AFTER = 30 * 86400
_PLACE = ("backend", "context", "namespace")


@dataclass
class LogState:
    """Contents of the log so far. ``uid``: of the attempt; ``at``: the time of the last line, epoch seconds,
    below zero for none; ``over``: the failure is logged, too; ``place``: of the run, for commands.
    """

    uid: str | None = None
    at: float = -1.0
    cursor: dict[str, Any] | None = None
    state: str | None = None
    waiting: str | None = None
    why: str | None = None
    why_at: float = 0.0
    reasons: dict[str, float] = field(default_factory=dict)
    step: int | None = None
    progress_at: float = 0.0
    checkpoint: str | None = None
    resumed_from: int | None = None
    restarts: dict[str, int] = field(default_factory=dict)
    flags: list[str] = field(default_factory=list)
    over: bool = False
    place: dict[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, body: Any) -> LogState:
        """From its JSON; unknown fields of another release are left out."""
        if not isinstance(body, Mapping):
            return cls()
        return cls(**{name: body[name] for name in cls.__dataclass_fields__ if name in body})


class TaskLog:
    """Turns observations of one run into lines for the task log of one try. ``state``: what the log holds
    already, as far as the caller knows; ``home``: where the state is kept as well, None: nowhere;
    ``at``: where the run is, for the commands that are printed; None for a caller that goes on from a state.
    """

    def __init__(
        self,
        run: str,
        ti_id: str,
        *,
        state: Mapping[str, Any] | None = None,
        home: str | None = None,
        output: bool = True,
        at: Place | None = None,
        secrets: Iterable[str] | None = (),
    ) -> None:
        """``output``: log rank 0's own lines, too. ``secrets``: the run's, which no line shows; None for a
        caller that sets `secrets` before the first line.
        """
        self.run, self.output = run, output
        self.secrets = secrets
        self.reader = OutputReader(secrets=secrets or ())
        self.path = Path(home) / "airflow" / f"{ti_id}.json" if home is not None else None
        self.state = max(LogState.of(state), self._load(), key=lambda state: state.at)
        if at is not None:
            self.state.place = {name: value for name in _PLACE if (value := getattr(at, name))}

    @property
    def at(self) -> Place:
        """Place of the run."""
        place = self.state.place
        return Place(place.get("backend"), None, place.get("context"), place.get("namespace"))

    def track(self, seen: Observation) -> None:
        """Start anew for another attempt. Until its own rank 0 has reported, the observed progress is that of
        the attempt before, and is not logged.
        """
        if seen.uid != self.state.uid:
            if self.state.uid is not None:
                self.reader = OutputReader(secrets=self.secrets or ())
            self.state = LogState(uid=seen.uid, checkpoint=self.state.checkpoint, place=self.state.place)
        if seen.progress.heartbeat is None:
            self.state.step, self.state.checkpoint = seen.progress.step, self._checkpoint_of(seen)

    @property
    def saved_state(self) -> dict[str, Any]:
        """The state for the process that goes on. Plain JSON."""
        return asdict(self.state)

    def read(self, backend: Backend, seen: Observation, now: float) -> None:
        """Read what rank 0 wrote since the last call, for `update`. Blocks."""
        if (asked := self._ask(backend, seen, now)) is not None:
            with suppress(AllaboardError, OSError):  # not started yet, or cleaned up meanwhile
                for item in backend.logs(self.run, *asked):
                    self.reader.take(item)

    async def aread(self, backend: Any, seen: Observation, now: float) -> None:
        """As `read`, of an async backend."""
        if (asked := self._ask(backend, seen, now)) is not None:
            with suppress(AllaboardError, OSError):
                async for item in backend.logs(self.run, *asked):
                    self.reader.take(item)

    def _ask(self, backend: Any, seen: Observation, now: float) -> tuple[Selection, Cursor | None] | None:
        self.track(seen)
        if not self.output or not (self.reader.is_due(now) or state_of(seen).is_final):
            return None
        if self.state.cursor is not None:
            self.reader.cursors.setdefault(seen.attempt, self.state.cursor)
        # Of a long run on a cluster only the newest lines are fetched at first.
        return self.reader.ask(seen.attempt, None if backend.name == "local" else MOST_LINES)

    def update(self, seen: Observation, now: float) -> list[str]:
        """The lines that this observation, and what was read with it, add to the log."""
        self.track(seen)
        before = asdict(self.state)
        self.reader.secrets = self.secrets or ()
        self.state.cursor = self.reader.cursors.get(seen.attempt, self.state.cursor)
        state = list(self._state_lines(seen, now))
        rest = [
            *self.reader.new_lines(self.run, self.at, last=state_of(seen).is_final),
            *self._progress_lines(seen, now),
            *self._flag_lines(seen),
        ]
        if rest or state or asdict(self.state) != before:
            self.state.at = now
            self._save()
        # The output of a run stands between its start and its end.
        lines_in_order = [*rest, *state] if state_of(seen).is_final else [*state, *rest]
        return [self._clean(line) for line in lines_in_order]

    def failed_tries(self, seen: Observation) -> list[MemberSeen]:
        """The members that failed and were started again since the last call."""
        self.track(seen)
        logged = self.state.restarts
        restarted = [m for m in seen.members if m.restarts > logged.get(m.name, 0)]
        if restarted:
            self.state.restarts = {m.name: m.restarts for m in seen.members if m.restarts}
            self._save()
        return restarted[:MOST_MEMBERS]

    def restart_lines(self, member: MemberSeen, lines: Iterable[str]) -> list[str]:
        """A warning for the log. ``lines``: the last ones of the failed try."""
        end = self._end_of([*lines])
        ended = _exit_words(member) if member.exit_code is not None else f"{visible(member.name)} ended"
        sentence = f"{self.run}: {ended} and is started again, restart {member.restarts}"
        return [f"{sentence}; its last lines:", *end] if end else [sentence]

    def failure_lines(self, outcome: Outcome) -> list[str]:
        """The last lines of the member that failed first; only once, and none of a stopped run, whose members
        were told to end.
        """
        self.track(outcome.seen)
        if outcome.ok or outcome.state is State.STOPPED:
            return []
        member = phrases.first_failing(outcome)
        if member is None or self.state.over:
            return []
        lines = phrases.tail(outcome, member, KEPT)
        if not lines:
            return []
        self.state.over = True
        first = ", which failed first" if outcome.state is State.FAILED else ""
        cut = [f"  {self.reader.shown(line)}" for line in lines]
        return [f"the last lines of {member.name}{first}:", *cut]

    def forget(self) -> None:
        """Remove the state of this try, which is over, and that of tries long gone."""
        if self.path is None:
            return
        self.path.unlink(missing_ok=True)
        with suppress(OSError):
            for old in self.path.parent.glob("*.json"):
                if time.time() - old.stat().st_mtime > _FORGET_AFTER:
                    old.unlink(missing_ok=True)

    def _load(self) -> LogState:
        try:
            if self.path is None:
                return LogState()
            with self.path.open("rb") as file:
                return LogState.of(parse_json(file.read(LIMITS.size + 1), spelling=False, any_text=True))
        except (OSError, ValueError, TypeError):
            return LogState()

    def _save(self) -> None:
        # A line that is logged twice is a lesser evil than a task that ends because a disk is full.
        if self.path is None:
            return
        with suppress(OSError):
            self.path.parent.mkdir(parents=True, exist_ok=True)
            write_json(self.path, asdict(self.state))

    # Lines.

    def _end_of(self, lines: list[str]) -> list[str]:
        """The last traceback and what follows it, else the last lines; indented."""
        kept = lines[-KEPT:]
        starts = [n for n, line in enumerate(kept) if _TRACEBACK in line]
        end = kept[starts[-1] :] if starts else kept[-LAST_OF_A_TRY:]
        return [f"  {self.reader.shown(line)}" for line in end]

    def _clean(self, line: str) -> str:
        """One line of the task log, without secrets and line breaks, whoever wrote its text."""
        return visible(self._redact(line), tabs=True)

    def _redact(self, text: str) -> str:
        return redact_text(text, self.secrets or ())

    # The lines of an observation.

    def _state_lines(self, seen: Observation, now: float) -> Iterator[str]:
        state = state_of(seen)
        # Triggers keep what was said, so it holds no secret.
        kind, reason = (text and self._redact(text) for text in (kind_of_reason(seen), reason_of(seen)))
        log = self.state
        last_news = Said(log.state, log.waiting, log.why, log.why_at, log.reasons)
        now_said = news(last_news, state.value, kind, reason, now)
        if now_said is None:
            return
        log.state, log.waiting, log.why = now_said.state, now_said.kind, now_said.reason
        log.why_at, log.reasons = now_said.at, dict(now_said.reasons)
        yield f"{self.run}: {_state_words(seen, state)}"

    def _progress_lines(self, seen: Observation, now: float) -> Iterator[str]:
        progress, state = seen.progress, self.state
        if progress.resumed_from is not None and progress.resumed_from != state.resumed_from:
            state.resumed_from = progress.resumed_from
            if progress.step == progress.resumed_from:
                state.step = progress.step  # reached before; its metrics are logged already
            yield f"{self.run}: resumed from step {progress.resumed_from}"
        if progress.step is not None and progress.step != state.step and self._is_due(seen, now):
            state.step, state.progress_at = progress.step, now
            yield f"{self.run}: {phrases.progress_phrase(seen)}"
        checkpoint = self._checkpoint_of(seen)
        if checkpoint is not None and checkpoint != state.checkpoint:
            state.checkpoint = checkpoint
            best = ", the best so far" if progress.checkpoint == progress.best_checkpoint else ""
            yield f"{self.run}: checkpoint {checkpoint}{best}"

    def _checkpoint_of(self, seen: Observation) -> str | None:
        """Its newest checkpoint, as triggers may keep it."""
        uri = seen.progress.checkpoint
        return uri if uri is None else self._redact(uri)

    def _is_due(self, seen: Observation, now: float) -> bool:
        """Return whether the progress is logged now; the last step always is."""
        if seen.progress.step == seen.progress.total or state_of(seen).is_final:
            return True
        return now - self.state.progress_at >= update_interval(seen, now)

    def _flag_lines(self, seen: Observation) -> Iterator[str]:
        for flag in seen.flags:
            if flag not in self.state.flags:
                self.state.flags.append(flag)
                yield f"{self.run}: warning: {flag.replace('_', ' ')} (see diagnoses)"


def update_interval(seen: Observation, now: float) -> float:
    """Seconds between two lines about a run that goes on: 5 at first, a minute later on."""
    since = seen.started or seen.created or now
    return max(5.0, min(60.0, (now - since) / 10))


def poll_delay(backend: Any, seen: Observation | None, seconds: float, now: float) -> float:
    """Seconds until the next observation, when no change wakes the follower; it asked for ``seconds``. A
    local observation is cheap. One of a cluster takes some requests, so it is as rare as the lines that it is
    for.
    """
    if backend.name == "local" or seen is None:
        return seconds
    return min(seconds, update_interval(seen, now))


def state_home(environ: Mapping[str, str] = os.environ) -> str | None:
    """Folder in which this machine keeps the states of task logs; None for a user without a home."""
    try:
        return home(environ)
    except SiteError:
        return None


# The restarts of members.


def restart_warnings(backend: Backend, task_log: TaskLog, seen: Observation) -> list[str]:
    """The warnings of restarts since the last call: who failed, how, and its last lines. Blocks."""
    warnings = []
    for member in task_log.failed_tries(seen):
        reader = OutputReader(_failed_try(member))
        with suppress(AllaboardError, OSError):  # cleaned up meanwhile
            reader.read(backend, task_log.run, seen.attempt, KEPT)
        warnings += task_log.restart_lines(member, reader.last_lines)
    return warnings


async def arestart_warnings(backend: Any, task_log: TaskLog, seen: Observation) -> list[str]:
    """As `restart_warnings`, of an async backend."""
    warnings = []
    for member in task_log.failed_tries(seen):
        reader = OutputReader(_failed_try(member))
        with suppress(AllaboardError, OSError):
            async for item in backend.logs(task_log.run, *reader.ask(seen.attempt, KEPT)):
                reader.take(item)
        warnings += task_log.restart_lines(member, reader.last_lines)
    return warnings


def _failed_try(member: MemberSeen) -> Selection:
    return Selection(members=(member.name,), restart=member.restarts - 1)


# Words.


def _state_words(seen: Observation, state: State) -> str:
    if state in (State.QUEUED, State.STARTING, State.RUNNING, State.RESTARTING) and seen.held_by:
        return f"{state}: {seen.held_by}"
    if seen.elsewhere and seen.notes and state in (State.STARTING, State.RUNNING):
        return f"{state}: {visible(seen.notes[0])}"
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
