"""The view without a terminal: one line for each change, and one for progress every few seconds."""

from __future__ import annotations

import time
from collections.abc import Callable, Hashable, Iterator, Sequence

from allaboard.backends.base import Handle
from allaboard.follow.loop import Outcome
from allaboard.follow.news import Said, kind_of_reason, news, reason_of
from allaboard.report import localtime, phrases
from allaboard.report.commands import Place
from allaboard.report.ending import ending_lines
from allaboard.report.terminal import WARNING, say, silence_stdout
from allaboard.runs.observation import Event, Observation, State
from allaboard.runs.status import state_of

PROGRESS_EVERY = 5.0
LATE = 2.0
"""An event older than this many seconds is printed with its own time."""


class PlainView:
    """``at``: where the run is. ``aside``: everything goes to stderr, because stdout holds JSON.
    ``again``: the command that continues with the run. ``line_at``: when it printed a line last, by
    ``clock``.
    """

    def __init__(
        self,
        events: Callable[[], Sequence[Event]],
        at: Place,
        *,
        aside: bool = False,
        again: str | None = None,
        clock: Callable[[], float] = time.monotonic,
    ) -> None:
        self.events, self.at, self.aside, self.again, self.clock = events, at, aside, again, clock
        self.before: Observation | None = None
        self.reported: int | None = None
        self.reported_at = float("-inf")
        self.format = ""
        self.events_shown: set[Hashable] = set()
        self.taken: set[tuple[str, str | None]] = set()
        self.latest = 0.0
        self.ran = False
        self.notes: set[str] = set()
        self.last_news = Said()
        self.line_at = float("-inf")

    def launched(self, handle: Handle) -> None:
        for line in launch_lines(handle, self.at):
            self._line(line)
        self.notes.update(handle.notes)
        if handle.adopted or handle.hand_over:
            self.events_shown.update(event.identity for event in self.events())

    def seen(self, seen: Observation) -> None:
        before, self.before = self.before, seen
        for note in seen.notes:
            if note not in self.notes:
                self.notes.add(note)
                self._line(note)
        latest = news(self.last_news, state_of(seen), kind_of_reason(seen), reason_of(seen), self.clock())
        if latest is not None or before is None or _signature(before) != _signature(seen):
            lines = [*self._warnings(), *self._taken_away(before, seen)]
            if latest is not None:
                self.last_news = latest
                lines += self._state(seen)
            for when, text in sorted(lines, key=lambda line: line[0]):
                self._at(when, text)
        self._progress(seen)

    def say(self, text: str) -> None:
        self._line(text)

    def ended(self, outcome: Outcome) -> None:
        aside = self.aside or not outcome.ok
        for line in ending_lines(outcome, self.at, self.again, stderr=aside):
            self._line(line, aside)

    def close(self) -> None:
        return

    def _line(self, text: str, aside: bool = False) -> None:
        self.line_at = self.clock()
        try:
            say(text, to_stderr=self.aside or aside)
        except BrokenPipeError:  # the reader is gone; the run is followed all the same
            silence_stdout()

    def _at(self, when: float, text: str) -> None:
        """A line with its time. Times never go back: a late event gets the time of the line before it, and
        its own time beside it.
        """
        late = f" (at {localtime.clock(when)})" if when < self.latest - LATE else ""
        self.latest = max(self.latest, when)
        self._line(f"{localtime.clock(self.latest)}  {text}{late}")

    def _state(self, seen: Observation) -> Iterator[tuple[float, str]]:
        state = state_of(seen)
        if state.is_final:  # the closing lines say it; but a run may end before its first observation
            started = next((c.since for c in seen.conditions if c.type == "Running"), None)
            if started is not None and not self.ran:
                yield seen.started or started, f"running: {phrases.members_phrase(seen.members)}"
            return
        self.ran = self.ran or state is State.RUNNING
        more = {
            State.QUEUED: seen.held_by or "",
            State.STARTING: seen.held_by or phrases.members_phrase(seen.members),
            State.RESTARTING: seen.held_by or "",
            State.RUNNING: seen.held_by or phrases.members_phrase(seen.members),
            State.STOPPING: f"by {seen.stop.by}: {seen.stop.reason}" if seen.stop else "",
        }.get(state, "")
        yield time.time(), f"{state}{': ' if more else ''}{more}"

    def _warnings(self) -> Iterator[tuple[float, str]]:
        for event in self.events():
            if event.identity in self.events_shown:
                continue
            self.events_shown.add(event.identity)
            taken = event.reason in phrases.TAKEN_AWAY
            if taken or (event.type == "Warning" and event.reason not in phrases.COVERED_BY_STATE):
                reason = f"{event.reason}: " if taken else ""
                yield event.time or self.latest, f"{event.object}: {reason}{phrases.brief(event.message)}"

    def _taken_away(self, before: Observation | None, seen: Observation) -> Iterator[tuple[float, str]]:
        """Members that were taken away since the look before, of whom no event has told."""
        known = {(m.name, m.reason) for m in before.members} if before is not None else set()
        for member in seen.members:
            is_new = member.reason in phrases.TAKEN_AWAY and (member.name, member.reason) not in known
            if is_new and member.phase != "running" and (member.name, member.reason) not in self.taken:
                self.taken.add((member.name, member.reason))
                message = f": {phrases.brief(member.said)}" if member.said else ""
                yield member.ended or time.time(), f"{member.name}: {member.reason}{message}"

    def _progress(self, seen: Observation) -> None:
        now, step = self.clock(), seen.progress.step
        last = step is not None and step == seen.progress.total
        if step is None or step == self.reported:
            return
        if state_of(seen) in (State.QUEUED, State.STARTING):  # from an earlier attempt
            return
        if (format := phrases.format_phrase(seen)) != self.format:
            self.format = format
            if format:
                self._at(time.time(), f"progress: {format}")
        if last or self.reported is None or now - self.reported_at >= PROGRESS_EVERY:
            self.reported, self.reported_at = step, now
            self._at(time.time(), phrases.progress_phrase(seen))


def launch_lines(handle: Handle, at: Place) -> list[str]:
    """The first lines: which run this is, and whether it was started or adopted."""
    if handle.hand_over:
        how = "succeeded before; here is its result, nothing is run"
    elif handle.adopted:
        how = "runs already; following it"
    else:
        how = f"attempt {handle.attempt}" if handle.attempt > 1 else "is on its way"
    first = f"{handle.run} {how}; its output: {at.command('logs', handle.run, '-f')}"
    return [first, *warning_lines(handle), *handle.notes]


def warning_lines(handle: Handle) -> list[str]:
    """The warnings of a launch, one line each."""
    return [f"{WARNING}{warning}" for warning in handle.warnings]


def _signature(seen: Observation) -> tuple[object, ...]:
    """The parts of an observation whose change makes the view read the events again."""
    return (
        seen.conditions,
        seen.members,
        seen.restarts,
        seen.flags,
        seen.attempt,
        seen.held_by,
        seen.stop,
        state_of(seen),
    )
