"""The closing lines of a followed run: how it ended, where its results are, what to do next. For a failure:
the reason with its evidence, the fix, and the last lines of the member that failed first.
"""

from __future__ import annotations

import shlex
from collections.abc import Iterator, Sequence
from dataclasses import replace

from allaboard.diagnosis import Diagnosis
from allaboard.follow.loop import Outcome
from allaboard.report import phrases
from allaboard.report.commands import Place
from allaboard.report.terminal import Ink, supports_colour
from allaboard.runs.observation import State
from allaboard.runs.status import DOUBTFUL
from allaboard.text.units import counted

LINES = 20
_MARKS = {State.SUCCEEDED: "✓", State.STOPPED: "■"}


def ending_lines(
    outcome: Outcome, at: Place, again: str | None = None, *, stderr: bool = False
) -> Iterator[str]:
    """The lines. ``at``: where the run is; ``again``: the command line that continues with it, if any."""
    ink = Ink(supports_colour(stderr))
    is_doubted = any(diagnosis.code == DOUBTFUL for diagnosis in outcome.diagnoses)
    colour = "yellow" if is_doubted else phrases.COLOURS[outcome.state]
    mark = "!" if is_doubted else _MARKS.get(outcome.state, "✗")
    headline, _, rest = replace(outcome, note="").message.partition("\n")
    yield ink(f"{mark} {headline.removeprefix('run ')}", colour, bold=True)
    yield from (f"  {line}" for line in rest.splitlines())
    if outcome.ok:
        yield from _result(outcome)
    else:
        yield from _reason(outcome, at, ink)
    for diagnosis in outcome.diagnoses if outcome.ok else ():
        yield from _warning(diagnosis, outcome.run, at, ink)
    yield from _locations(outcome)
    if at.outlives_its_runs:
        yield from _next_commands(outcome, at, again)


def _result(outcome: Outcome) -> Iterator[str]:
    progress, metrics = outcome.seen.progress, phrases.metrics(outcome.metrics)
    if metrics:
        yield _row("metrics", metrics)
    if progress.lost_steps:
        yield _row("lost", f"{counted(progress.lost_steps, 'step')} done again after restarts")


def _reason(outcome: Outcome, at: Place, ink: Ink) -> Iterator[str]:
    if not outcome.diagnoses:
        return
    first, *others = outcome.diagnoses
    label = "because"
    for evidence in first.evidence:
        yield _row(label, f"{phrases.evidence_source(evidence)}: {ink(evidence.text, 'yellow')}")
        label = ""
    yield _row("do", at.in_text(first.fix, outcome.run))
    for other in others:
        yield _row("also", other.summary)
    if outcome.note:
        yield _row("attempts", outcome.note)
    member = phrases.first_failing(outcome)
    lines = phrases.tail(outcome, member, LINES) if member is not None else []
    if member is not None and lines:
        quoted = f"the last {len(lines)} lines" if len(lines) > 1 else "the last line"
        yield _row("log", f"{quoted} of {member.name}{_restart_suffix(member.restarts)}:")
        yield from (f"    {ink('│', 'red')} {line}" for line in lines)


def _restart_suffix(restarts: int) -> str:
    return f", restart {restarts}" if restarts else ""


def _warning(diagnosis: Diagnosis, run: str, at: Place, ink: Ink) -> Iterator[str]:
    quoted = "; ".join(e.text for e in diagnosis.evidence)
    yield _row(
        "warning", ink(f"{diagnosis.summary}: {quoted}" if quoted != diagnosis.summary else quoted, "yellow")
    )
    yield _row("", at.in_text(diagnosis.fix, run))


def _locations(outcome: Outcome) -> Iterator[str]:
    progress = outcome.seen.progress
    if progress.checkpoint:
        yield _row("checkpoint", progress.checkpoint)
    if progress.best_checkpoint and progress.best_checkpoint != progress.checkpoint:
        yield _row("best", progress.best_checkpoint)
    folder = phrases.log_folder(outcome.seen)
    if folder:
        yield _row("logs", folder)


def _next_commands(outcome: Outcome, at: Place, again: str | None) -> Iterator[str]:
    run, commands = outcome.run, []
    if outcome.ok and outcome.seen.progress.checkpoint:
        commands.append(at.command("checkpoints", "list", run))
    member = phrases.first_failing(outcome) if outcome.diagnoses and not outcome.ok else None
    commands.append(at.command("logs", run, *([member.name] if member is not None else [])))
    if not outcome.ok:
        commands.append(at.command("events", run))
    if again is not None and not outcome.ok:
        resumes = "resumes from its newest checkpoint" if outcome.seen.progress.checkpoint else "tries again"
        commands.append(f"{again}   ({resumes})")
    for label, line in zip(["next", *[""] * len(commands)], commands, strict=False):
        yield _row(label, line)


def command_again(verb: str, arguments: list[str], key: str, of_script: Sequence[str] = ()) -> str:
    """The command line that continues with the run of this key. ``of_script``: those after ``--``."""
    after = ["--", *of_script] if of_script else []
    return shlex.join(["allaboard", verb, *arguments, "--key", key, *after])


def _row(label: str, text: str) -> str:
    return f"  {label:<12}{text}"
