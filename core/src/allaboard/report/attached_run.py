"""Follows a run from a terminal. Signal handlers only record signals; the loop acts on them between two
observations.

First Ctrl-C or SIGTERM: stop it, and wait until its members have saved and ended. Second: kill it. Third:
leave at once. SIGHUP: leave it running as a detached run. A handler never acts itself: it could interrupt an
observation that holds a lock.
"""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Sequence
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any, Protocol

from allaboard.backends.actor import user_at_host
from allaboard.backends.base import Backend, Handle, NotYours, Plan, handle_of
from allaboard.errors import AllaboardError, ExitCode, OwnershipConflict
from allaboard.follow.loop import Answer, Effect, Launch, Outcome, Wait
from allaboard.report.commands import Place
from allaboard.report.exits import maybe_started_on_error, untouched_on_error
from allaboard.report.terminal import hide, say
from allaboard.running import ATTEMPTS, Follower, follow_policy, new_owner
from allaboard.runs.observation import Event, Observation, Owner
from allaboard.runs.status import state_of

AGAIN = "the same command with its --key"
SLICE = 0.1
"""The longest time in seconds before a recorded signal is handled."""


class View(Protocol):
    """The view that a person has of a run that is followed."""

    def launched(self, handle: Handle) -> None:
        """An attempt was started or adopted."""

    def seen(self, seen: Observation) -> None:
        """A new observation of the run."""

    def say(self, text: str) -> None:
        """Show a sentence beside the view, about the effect of a signal."""

    def ended(self, outcome: Outcome) -> None:
        """Show the end of the run. Called once, last."""

    def close(self) -> None:
        """Leave the terminal as it was. Always called."""


class FollowerLeft(Exception):
    """The client leaves before the end of the run. ``code`` is the exit code; ``str`` says what happens to
    the run.
    """

    def __init__(self, code: ExitCode, message: str) -> None:
        super().__init__(message)
        self.code = code


class Signals:
    """Records signals while it is entered. SIGHUP stays ignored if it was ignored before (nohup)."""

    def __init__(self) -> None:
        self.interrupts: list[str] = []
        self.hung_up = False
        self.launching = False
        self._before: dict[int, Any] = {}

    def __enter__(self) -> Signals:
        for number in (signal.SIGINT, signal.SIGTERM):
            self._before[number] = signal.signal(number, self._interrupt)
        hangup = getattr(signal, "SIGHUP", None)
        if hangup is not None and signal.getsignal(hangup) is not signal.SIG_IGN:
            self._before[hangup] = signal.signal(hangup, self._hang_up)
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        for number, before in self._before.items():
            signal.signal(number, before)

    def _interrupt(self, number: int, _: FrameType | None) -> None:
        self.interrupts.append("Ctrl-C" if number == signal.SIGINT else signal.Signals(number).name)
        if self.launching and len(self.interrupts) > 1:
            raise KeyboardInterrupt
        if self.launching:
            # No view is open yet. A single write, because the interrupted code may itself be writing.
            os.write(2, b"stopping it as soon as it has started; once more: at once\n")

    def _hang_up(self, *_: Any) -> None:
        self.hung_up = True


class AttachedRun(Follower):
    """Follows a run that this client owns, and handles signals while it waits. ``open_view`` is called after
    the launch, so that imports of the view delay no start.
    """

    def __init__(
        self,
        backend: Backend,
        plan: Plan,
        owner: Owner,
        open_view: Callable[[], View],
        signals: Signals,
        at: Place,
        again: str = AGAIN,
    ) -> None:
        super().__init__(
            backend, plan.run, plan=plan, owner=owner, on_seen=self._seen, on_launch=self._launched
        )
        self.open_view, self.signals, self.at, self.again = open_view, signals, at, again
        self.view: View | None = None
        self.handled = 0

    def launch(self) -> None:
        """Launch the run. A second signal during the launch aborts it and kills what it started."""
        assert self.plan is not None and self.owner is not None
        self.signals.launching = True
        try:
            with maybe_started_on_error(self.again):
                self.handle = self.backend.launch(self.plan, self.owner)
        except KeyboardInterrupt:
            self._kill_started()
            raise FollowerLeft(
                ExitCode.STOPPED, "the start was interrupted; nothing of it is left running"
            ) from None
        finally:
            self.signals.launching = False
        self.view = self.open_view()
        self._launched(self.handle)

    def say(self, text: str) -> None:
        if self.view is not None:
            self.view.say(text)

    def _launched(self, handle: Handle) -> None:
        # At each launch anew: the values may have changed since the last.
        hide(self.backend.secrets_of(handle.run))
        if self.view is not None:
            self.view.launched(handle)

    def _seen(self, seen: Observation) -> None:
        if self.view is not None:
            self.view.seen(seen)

    def _answer(self, ask: Effect) -> Answer:
        if isinstance(ask, Launch):
            self.say(f"attempt {ask.attempt} follows: {ask.reason}")
        if not isinstance(ask, Wait):
            return super()._answer(ask)
        assert self._changes is not None
        end = time.monotonic() + ask.seconds
        while True:
            self._handle_signals()
            rest = end - time.monotonic()
            if rest <= 0 or self._changes.wait(min(SLICE, rest)):
                return None

    def _handle_signals(self) -> None:
        signals = self.signals
        if signals.hung_up:
            self._detach()
        if len(signals.interrupts) > self.handled:
            self.handled += 1
            self._stop(signals.interrupts[self.handled - 1])

    def _stop(self, reason: str) -> None:
        assert self.handle is not None and self.owner is not None
        if self.handled > 2:
            raise self._left_with(
                ExitCode.STOPPED,
                f"leaving; {self.run} is being killed: {self.at.command('status', self.run)}",
            )
        kill = self.handled == 2
        answer = self.backend.stop(self.handle, self.owner, user_at_host(), reason, kill=kill)
        if isinstance(answer, NotYours):
            message = f"{self.run} belongs to {answer.owner} now and goes on; to stop it: "
            raise self._left_with(ExitCode.UNREACHABLE, message + self.at.command("stop", self.run))
        gently = f"{reason}: stopping; its members may save and end (once more kills them)"
        self.say("killing it" if kill else gently)

    def _detach(self) -> None:
        assert self.handle is not None and self.owner is not None
        with suppress(OwnershipConflict):  # another client has taken it over
            self.backend.adopt(self.handle, self.owner, new_owner("detached"))
        watch = self.at.command("follow", self.run)
        message = f"{self.run} goes on without this terminal; watch it with: {watch}"
        raise self._left_with(ExitCode.OK, message)

    def _left_with(self, code: ExitCode, message: str) -> FollowerLeft:
        self.say(message)
        return FollowerLeft(code, message)

    def _kill_started(self) -> None:
        """Kill whatever an interrupted launch has started."""
        assert self.owner is not None
        with suppress(AllaboardError):
            seen = self.backend.observe(self.run)
            if seen.owner == self.owner and not state_of(seen).is_final:
                self.backend.stop(
                    handle_of(seen), self.owner, user_at_host(), self.signals.interrupts[-1], kill=True
                )


def run_to_end(
    backend: Backend,
    plan: Plan,
    open_view: Callable[[], View],
    at: Place,
    *,
    again: str = AGAIN,
    attempts: int | None = None,
    finish: Callable[[Outcome], None] = lambda outcome: None,
) -> int:
    """Launch and follow a run to its end; returns the exit code. ``at``: where it is; ``again``: the command
    line that continues with it. ``finish`` gets the outcome after the view; when it returns, the result
    counts as handed over. Raises FollowerLeft when the client leaves earlier.
    """
    limit = attempts or (plan.job.get("policy") or {}).get("attempts", ATTEMPTS)
    with Signals() as signals:
        follower = AttachedRun(backend, plan, new_owner(), open_view, signals, at, again)
        try:
            follower.launch()
            with untouched_on_error(plan.run, at):
                outcome = follower.follow_to_end(follow_policy(backend, attempts=limit))
            if follower.view is not None:
                follower.view.ended(outcome)
            finish(outcome)
            if outcome.ok and follower.handle is not None:
                _hand_over(backend, follower.handle)
            return outcome.exit_code
        finally:
            if follower.view is not None:
                follower.view.close()


def _hand_over(backend: Backend, handle: Handle) -> None:
    """Record that the result was taken. A failure here changes nothing: the next launch hands the result over
    again.
    """
    try:
        backend.hand_over(handle)
    except AllaboardError as error:
        say(f"the handover of the result of {handle.run} could not be recorded: {error}", to_stderr=True)


def event_source(backend: Backend, run: str) -> Callable[[], Sequence[Event]]:
    """A function that returns the events of a run so far."""

    def events() -> Sequence[Event]:
        with suppress(AllaboardError):
            return list(backend.events(run))
        return []

    return events
