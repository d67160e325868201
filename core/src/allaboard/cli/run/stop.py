"""``allaboard stop``: end a run, whichever client follows it, and wait until its processes are gone."""

from __future__ import annotations

import time

import click

from allaboard.backends.actor import user_at_host
from allaboard.backends.base import Backend, NotYours, handle_of
from allaboard.cli.orphans import stop_orphans, watch_orphans
from allaboard.cli.place import Place, adopt_option, json_option, place_options
from allaboard.diagnosis import diagnose
from allaboard.errors import BadInput, OwnershipConflict, SiteError
from allaboard.report.terminal import say, show_json
from allaboard.runs.observation import Observation, Owner
from allaboard.runs.status import state_of, summary

EPILOG = """\b
Examples:
  allaboard stop digits
  allaboard stop --orphans -n research
  allaboard stop --orphans --watch -n research   until Ctrl-C: the reaper of that namespace
  allaboard stop digits --now --reason "the GPUs are needed"
  allaboard stop nightly --adopt -n research     a job that somebody else started

Members get SIGTERM and their grace to save (spot.grace, 30 s); --now kills them at once. For a run that has
ended, members that `clean_pods: none` left running are ended. A foreign job is deleted with its pods and
their logs: it has no run record, and an event says who deleted it and why.
"""
_TRIES = 5
_PATIENCE = 60.0
"""Seconds for which an object may remain after its members are gone."""
_NO_OWNER = Owner("nobody", "detached", "detached")
"""The owner of a foreign job."""


@click.command(epilog=EPILOG)
@click.argument("run", metavar="RUN", required=False)
@click.option(
    "--orphans", is_flag=True, help="On a cluster: all runs and objects whose clients cannot come back."
)
@click.option(
    "--watch",
    is_flag=True,
    help="With --orphans: look every 20 s, and end the runs whose time is up (policy.orphan).",
)
@click.option("--now", is_flag=True, help="Kill its members, without time to save.")
@click.option("--reason", default="allaboard stop", metavar="TEXT", help="Reason, kept in the run's record.")
@adopt_option
@place_options
@json_option
def stop(
    run: str | None,
    orphans: bool,
    watch: bool,
    now: bool,
    reason: str,
    adopt: bool,
    at: Place,
    as_json: bool,
) -> int:
    """Stop a run and wait until its processes are gone."""
    if orphans:
        if run is not None:
            raise BadInput(f"give either {run!r} or --orphans, not both")
        if adopt:
            raise BadInput("--adopt names one job of others; leave it out with --orphans")
        return watch_orphans(at, as_json) if watch else stop_orphans(at, as_json)
    if watch:
        raise BadInput("--watch looks for orphans; give --orphans, too")
    if run is None:
        raise BadInput("say which run: `allaboard stop RUN`; `allaboard list` shows them")
    backend, seen = at.open_to_change(run, "stop", adopt)
    ended = state_of(seen).is_final
    living = _any_runs(seen)
    if not as_json and not ended:
        say(f"{seen.run}: {'killing it' if now else 'stopping; its members may save and end'}")
    if not ended or living:
        _request_stop(backend, seen, reason, now)
        seen = wait_until_gone(backend, seen.run, at, adopt)
    if as_json:
        show_json(summary(seen, diagnose(seen)))
    elif ended:
        say(
            f"{seen.run} had ended already: {state_of(seen)}"
            + ("; its remaining members are gone" if living else "")
        )
    elif seen.stop is not None:
        say(f"{seen.run} was stopped by {seen.stop.by}: {seen.stop.reason}")
    else:
        say(f"{seen.run} ended by itself: {state_of(seen)}")
    return 0


def _request_stop(backend: Backend, seen: Observation, reason: str, now: bool) -> None:
    """Stop the current attempt, whoever owns it. Retries when the owner changes meanwhile."""
    for _ in range(_TRIES):
        answer = backend.stop(handle_of(seen), seen.owner or _NO_OWNER, user_at_host(), reason, kill=now)
        if not isinstance(answer, NotYours):
            return
        seen = backend.observe(seen.run)
    raise OwnershipConflict(f"{seen.run} changes its owner too often; it was not stopped, try again")


def wait_until_gone(backend: Backend, run: str, at: Place, adopt: bool = False) -> Observation:
    """Wait until the run has ended and none of its members lives. Raises SiteError when members outlive their
    grace, or when the object of a foreign job remains without members.
    """
    deadline = None
    with backend.changes(run) as changes:
        while True:
            seen = backend.observe(run)
            # What was running when its supervisor was lost stays so in what that wrote last.
            if state_of(seen).is_final and (seen.alive is False or not _any_runs(seen)):
                return seen
            late = next((d for d in diagnose(seen) if d.code == "node_lost"), None)
            if late is not None:
                now = at.command("stop", run, "--now", *(["--adopt"] if adopt else []))
                hint = f"the stop is recorded and continues by itself; to kill the members now: {now}"
                raise SiteError(f"{late.summary}\n{hint}", code=late.code)
            if seen.key or _any_runs(seen):
                deadline = None
            elif time.monotonic() > (deadline := deadline or time.monotonic() + _PATIENCE):
                trouble = "was asked to end and still exists, although none of its members runs"
                see = at.command("status", run)
                raise SiteError(f"{run} {trouble}; its finalizers may keep it; see: {see}")
            changes.wait(1.0)
            if not seen.alive:
                time.sleep(0.05)


def _any_runs(seen: Observation) -> bool:
    return any(m.phase == "running" for m in seen.members)
