"""``allaboard status``: everything that is known about a run, on one page."""

from __future__ import annotations

import time
from collections.abc import Collection, Iterator

import click

from allaboard.cli.place import Place, json_option, place_options
from allaboard.diagnosis import Diagnosis, diagnose
from allaboard.report import localtime
from allaboard.report.phrases import (
    COLOURS,
    conditions_in_order,
    duration_phrase,
    evidence_source,
    files_phrase,
    format_phrase,
    member_row,
    members_phrase,
    metrics,
    phases,
    progress_phrase,
    share_done,
    table,
)
from allaboard.report.terminal import Ink, say, show_json, supports_colour
from allaboard.runs.observation import Observation
from allaboard.runs.status import state_of, summary
from allaboard.text.units import counted

EPILOG = """\b
Examples:
  allaboard status digits                the newest run of the job digits
  allaboard status digits-1f0c --json

Exit code 0 whenever the run is known, failed runs included.
"""
_EVENTS = 6
_BAR = 24


@click.command(epilog=EPILOG)
@click.argument("run", metavar="RUN")
@place_options
@json_option
def status(run: str, at: Place, as_json: bool) -> None:
    """Show the state of a run: its phases, members, progress, checkpoints, and why it waits or failed."""
    _, seen = at.open_to_watch(run, evidence=True)
    diagnoses = diagnose(seen)
    if as_json:
        show_json(summary(seen, diagnoses))
        return
    for line in page(seen, diagnoses, at, time.time(), supports_colour()):
        say(line)


def page(
    seen: Observation, diagnoses: tuple[Diagnosis, ...], at: Place, now: float, coloured: bool
) -> Iterator[str]:
    """The page, line by line."""

    ink = Ink(coloured)
    state = state_of(seen)
    word = ink(str(state).replace("_", " "), COLOURS[state], bold=True)
    yield f"{seen.run}  {word}  {duration_phrase(seen, now)}"
    yield from _rows(seen, [d.summary for d in diagnoses], now)
    for diagnosis in diagnoses:
        yield _row("why", ink(diagnosis.summary, "red" if state.is_final else "yellow"))
        yield from (
            _row("", f"{evidence_source(e)}: {e.text}")
            for e in diagnosis.evidence
            if e.text not in diagnosis.summary
        )
        yield _row("", f"to do: {at.in_text(diagnosis.fix, seen.run)}")
    if seen.members:
        yield ""
        yield from _members(seen, ink)
    if seen.events:
        yield ""
        yield from _events(seen, ink)
    yield ""
    yield _row("next", "   ".join(_commands(seen, at)))


def _rows(seen: Observation, printed_codes: Collection[str], now: float) -> Iterator[str]:
    progress = seen.progress
    attempt = f"attempt {seen.attempt}, {seen.restarts} restart{'' if seen.restarts == 1 else 's'}"
    yield _row("job", f"{seen.job}: {members_phrase(seen.members) or 'no members yet'}, {attempt}")
    if seen.key and not seen.key.startswith("once/"):
        yield _row("key", seen.key)
    if seen.owner is not None and not state_of(seen).is_final:
        yield _row(
            "owner",
            "none needed (detached)"
            if seen.owner.kind == "detached"
            else f"{seen.owner.id} ({seen.owner.kind})",
        )
    if seen.started is not None:
        until = f" until {localtime.moment(seen.finished, now)}" if seen.finished is not None else ""
        yield _row("time", f"{localtime.moment(seen.started, now)}{until}")
    if seen.held_by and seen.held_by not in printed_codes:
        stands = seen.stall is not None and seen.stall.is_hang
        yield _row("stands" if stands else "waits", seen.held_by)
    if seen.slow is not None and seen.slow.text not in printed_codes:
        yield _row("slow", seen.slow.text)
    if seen.stop is not None:
        yield _row(
            "stopped", f"by {seen.stop.by} at {localtime.moment(seen.stop.at, now)}: {seen.stop.reason}"
        )
    march = " → ".join(
        f"{c.type} {localtime.moment(c.since, now)}" for c in conditions_in_order(seen.conditions)
    )
    if march:
        yield _row("conditions", march)
    phase_line = "   ".join(f"{name} {seconds}{'…' if on else ''}" for name, seconds, on in phases(seen))
    if phase_line:
        yield _row("phases", phase_line)
    if progress.step is not None:
        share = share_done(seen)
        bar = f"{'█' * round(share * _BAR):░<{_BAR}}  " if share is not None else ""
        yield _row("progress", bar + progress_phrase(seen))
        if progress.format:
            yield _row("read", format_phrase(seen))
        if progress.files:
            yield _row("read", files_phrase(seen))
    if progress.lost_steps:
        yield _row("lost", f"{counted(progress.lost_steps, 'step')} done again after restarts")
    if progress.result is not None:
        yield _row("result", metrics(progress.result))
    if progress.checkpoint:
        yield _row("checkpoint", progress.checkpoint)
    if progress.best_checkpoint and progress.best_checkpoint != progress.checkpoint:
        yield _row("best", progress.best_checkpoint)
    for note in seen.notes:
        yield _row("note", note)


def _members(seen: Observation, ink: Ink) -> Iterator[str]:
    head = ("member", "rank", "phase", "exit", "restarts", "log")
    lines = table(head, ([*member_row(m), m.log or "-"] for m in seen.members))
    yield f"  {ink(lines[0], 'bright_black')}"
    for member, line in zip(seen.members, lines[1:], strict=True):
        failed = member.phase == "failed" or member.reason == "CrashLoopBackOff"
        yield f"  {ink(line, 'red') if failed else line}"


def _events(seen: Observation, ink: Ink) -> Iterator[str]:
    last = seen.events[-_EVENTS:]
    for event, line in zip(
        last, table(("", "", "", ""), (localtime.event_row(e) for e in last))[1:], strict=True
    ):
        yield f"  {ink(line, 'yellow') if event.type == 'Warning' else line}"


def _commands(seen: Observation, at: Place) -> list[str]:
    if state_of(seen).is_final:
        return [at.command("logs", seen.run), at.command("events", seen.run)]
    if seen.suspended and seen.key:
        return [at.command("resume", seen.run), at.command("stop", seen.run)]
    watching = [at.command("follow", seen.run), at.command("logs", seen.run, "-f")]
    return [*watching, at.command("stop", seen.run)] if seen.key else watching


def _row(label: str, text: str) -> str:
    return f"  {label:<11} {text}"
