"""``allaboard follow``: watch a run to its end without owning it. Ctrl-C stops the watching only."""

from __future__ import annotations

import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import replace

import click

from allaboard.backends.base import handle_of
from allaboard.cli.place import Place, json_option, place_options
from allaboard.cli.run.run import say_last_good, view_of
from allaboard.diagnosis import diagnose
from allaboard.errors import ExitCode
from allaboard.report.exits import untouched_on_error
from allaboard.report.terminal import say, show_json_line
from allaboard.running import Follower, follow_policy
from allaboard.runs.observation import Observation
from allaboard.runs.status import state_of, summary

EPILOG = """\b
Examples:
  allaboard follow digits
  allaboard follow digits-1f0c --json      one status object per line, whenever something changed

The exit code is the run's: 0 succeeded, 1 failed or lost, 3 stopped, 4 out of time.
Ctrl-C stops the watching (exit code 130); the run goes on.
"""
JSON_INTERVAL = 1.0
"""Seconds between two lines of ``--json`` when nothing but the progress changes."""


@contextmanager
def sigterm_as_ctrl_c() -> Iterator[None]:
    """Turn SIGTERM into KeyboardInterrupt, so that the terminal gets its cursor back."""
    before = signal.signal(signal.SIGTERM, signal.default_int_handler)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, before)


@click.command(epilog=EPILOG)
@click.argument("run", metavar="RUN")
@place_options
@json_option
@sigterm_as_ctrl_c()
def follow(run: str, at: Place, as_json: bool) -> int:
    """Watch a run to its end."""
    backend, seen = at.open_to_watch(run)
    policy = follow_policy(backend)
    if as_json:
        lines = JsonLines()
        try:
            with untouched_on_error(seen.run, at):
                outcome = Follower(backend, seen.run, on_seen=lines.on_seen).follow_to_end(policy)
        except KeyboardInterrupt:
            return ExitCode.INTERRUPTED
        show_json_line(outcome.summary)
        return outcome.exit_code
    view = view_of(backend, seen.run, at, None, False)
    try:
        view.launched(handle_of(seen))
        with untouched_on_error(seen.run, at):
            outcome = Follower(backend, seen.run, on_seen=view.seen).follow_to_end(policy)
        view.ended(outcome)
        say_last_good(backend, outcome)
        return outcome.exit_code
    except KeyboardInterrupt:
        view.close()
        again = at.command("follow", seen.run)
        say(f"{seen.run} goes on; watch it again with: {again}", to_stderr=True)
        return ExitCode.INTERRUPTED
    finally:
        view.close()


class JsonLines:
    """Prints a status object per line: at every change of state or members, and at most once a second for
    other changes. The last line is the outcome with its diagnoses.
    """

    def __init__(self) -> None:
        self.before: Observation | None = None
        self.at = float("-inf")

    def on_seen(self, seen: Observation) -> None:
        before, now = self.before, time.monotonic()
        if state_of(seen).is_final:
            return
        turned = before is None or (state_of(before), before.members) != (state_of(seen), seen.members)
        # The clock of a phase always advances. That alone is no change.
        is_new = before is None or replace(before, phases={}) != replace(seen, phases={})
        if turned or (is_new and now - self.at >= JSON_INTERVAL):
            self.before, self.at = seen, now
            show_json_line(summary(seen, diagnose(seen)))
