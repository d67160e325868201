"""``allaboard suspend`` and ``allaboard resume``: give a run's slots back for a while."""

from __future__ import annotations

import time
from collections.abc import Callable

import click

from allaboard.backends.base import Backend
from allaboard.cli.place import Place, adopt_option, json_option, place_options
from allaboard.diagnosis import diagnose
from allaboard.errors import SiteError
from allaboard.report.terminal import say, show_json
from allaboard.runs.observation import Observation, State
from allaboard.runs.status import has_released_slots, state_of, summary

_PATIENCE = 60.0
"""Seconds to wait beyond the members' grace."""
_SETTLE = 10.0
"""Seconds in which the operator takes back the condition Suspended of a resumed job."""


@click.command(
    epilog="""\b
Examples:
  allaboard suspend digits
  allaboard suspend nightly --adopt -n research     a job that somebody else started

Its members get SIGTERM and their grace to save; they start again with `allaboard resume`, from their
checkpoint. """
)
@click.argument("run", metavar="RUN")
@adopt_option
@place_options
@json_option
def suspend(run: str, adopt: bool, at: Place, as_json: bool) -> None:
    """End a run's members and give its slots back, until it is resumed."""
    backend, seen = at.open_to_change(run, "suspend", adopt)
    name = seen.run
    backend.suspend(name)
    if not as_json:
        say(f"{name}: suspending; its members may save and end")
    seen = _wait_until(backend, name, at, has_released_slots, "suspended")
    again = at.command("resume", name, *(["--adopt"] if adopt and not seen.key else []))
    _print_run(seen, as_json, f"{name} is suspended; resume it with: {again}")


@click.command(
    epilog="""\b
Examples:
  allaboard resume digits
  allaboard resume nightly --adopt -n research     a job that somebody else started

What Kueue holds back is not resumed: it starts when Kueue admits it.
"""
)
@click.argument("run", metavar="RUN")
@adopt_option
@place_options
@json_option
def resume(run: str, adopt: bool, at: Place, as_json: bool) -> None:
    """Start the members of a suspended run again."""
    backend, seen = at.open_to_change(run, "resume", adopt)
    name = seen.run
    backend.resume(name)
    accepted_until = time.monotonic() + _SETTLE

    def is_resumed(seen: Observation) -> bool:
        if seen.suspended:
            return False
        return state_of(seen) is not State.SUSPENDED or time.monotonic() > accepted_until

    seen = _wait_until(backend, name, at, is_resumed, "resumed")
    watch = at.command("follow", name)
    _print_run(seen, as_json, f"{name} is on its way again; follow it with: {watch}")


def _wait_until(
    backend: Backend, run: str, at: Place, reached: Callable[[Observation], bool], goal: str
) -> Observation:
    deadline = None
    with backend.changes(run) as changes:
        while True:
            seen = backend.observe(run)
            if reached(seen) or state_of(seen).is_final:
                return seen
            # Without running members no grace is left: what takes longer is stuck.
            if not any(m.phase == "running" for m in seen.members):
                deadline = deadline or time.monotonic() + _PATIENCE
                if time.monotonic() > deadline:
                    trouble = f"was asked to be {goal} and did not answer for {_PATIENCE:g} s"
                    raise SiteError(f"{run} {trouble}; see: {at.command('status', run)}")
            changes.wait(1.0)


def _print_run(seen: Observation, as_json: bool, message: str) -> None:
    state = state_of(seen)
    if as_json:
        show_json(summary(seen, diagnose(seen)))
    else:
        say(f"{seen.run} ended meanwhile: {state}" if state.is_final else message)
