"""Phrases about a run: lines and cells made of an observation. Values in, text out; time is an argument. The
page, the live view, the plain lines and the verbs share these phrases.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from allaboard.diagnosis import Evidence
from allaboard.follow.loop import Outcome
from allaboard.runs.observation import DISRUPTIONS, PHASES, Condition, Event, MemberSeen, Observation, State
from allaboard.runs.status import state_of
from allaboard.text.printable import visible
from allaboard.text.reportline import PREFIX, decode
from allaboard.text.units import show_seconds

COLOURS = {
    State.QUEUED: "yellow",
    State.STARTING: "cyan",
    State.RUNNING: "blue",
    State.RESTARTING: "yellow",
    State.SUSPENDED: "yellow",
    State.STOPPING: "magenta",
    State.SUCCEEDED: "green",
    State.FAILED: "red",
    State.STOPPED: "magenta",
    State.TIMED_OUT: "red",
    State.LOST: "red",
    State.UNKNOWN: "white",
}
MEMBER_COLOURS = {
    "running": "blue",
    "succeeded": "green",
    "failed": "red",
    "pending": "yellow",
    "deleted": "bright_black",
}
SPEED = "steps_per_second"


def members_phrase(members: Sequence[MemberSeen]) -> str:
    """``1 master + 4 workers``"""
    counts: dict[str, int] = {}
    for member in members:
        counts[member.group] = counts.get(member.group, 0) + 1
    return " + ".join(f"{n} {group}{'s' if n > 1 else ''}" for group, n in counts.items())


def duration(seen: Observation, now: float) -> float | None:
    """Seconds from the start of the run (from its creation if it has not started) to its end or
    to ``now``; of one that its queue has taken back, since then, as of the observation.
    """
    waited = seen.phases.get("admitted")
    if seen.queued_before and waited is not None and seen.started is None and seen.finished is None:
        return waited - seen.queued_before
    since = seen.started if seen.started is not None else seen.created
    until = seen.finished if seen.finished is not None else now
    return None if since is None else max(0.0, until - since)


def duration_phrase(seen: Observation, now: float) -> str:
    """``for 42 s``, ``after 3m 05s``"""
    seconds = duration(seen, now)
    if seconds is None:
        return ""
    return f"{'after' if state_of(seen).is_final else 'for'} {show_seconds(seconds)}"


def current_phase(seen: Observation) -> str | None:
    """The current phase: the last one that has begun. None after the end of the run and before it is
    admitted.
    """
    if state_of(seen).is_final or seen.suspended or seen.elsewhere:
        return None
    return next((name for name in reversed(PHASES) if seen.phases.get(name) is not None), None)


def phases(seen: Observation, more: float = 0.0) -> list[tuple[str, str, bool]]:
    """(phase, seconds in it, whether it is the current one) for each known phase; ``more``: seconds since the
    observation.
    """
    on = current_phase(seen)
    parts = []
    for name in PHASES:
        seconds = seen.phases.get(name)
        if seconds is not None:
            parts.append(
                (name.replace("_", " "), show_seconds(seconds + (more if name == on else 0.0)), name == on)
            )
    return parts


def conditions_in_order(conditions: Sequence[Condition]) -> list[Condition]:
    """The conditions by time: Created, Running, Succeeded. A condition that is no longer true is kept, except
    Suspended after a resume.
    """
    came = [c for c in conditions if c.status == "True" or c.type == "Running"]
    return sorted(came, key=lambda c: c.since if c.since is not None else 0.0)


def number(value: Any) -> str:
    """A metric, short: ``0.0312``, ``1.2e-07``, ``nan`` for null."""
    if value is None:
        return "nan"
    if isinstance(value, float):
        return f"{value:.4g}"
    return str(value)


def metrics(values: Mapping[str, Any]) -> str:
    """``accuracy 0.981, loss 0.07``"""
    return ", ".join(
        f"{name} {number(value)}"
        for name, value in values.items()
        if name != SPEED and not isinstance(value, Mapping)
    )


def share_done(seen: Observation) -> float | None:
    """Share of completed steps, 0 to 1; None if unknown."""
    step, total = seen.progress.step, seen.progress.total
    return None if step is None or not total else max(0.0, min(1.0, step / total))


def steps_per_second(seen: Observation) -> float | None:
    per_second = seen.progress.metrics.get(SPEED)
    return per_second if isinstance(per_second, (int, float)) and per_second > 0 else None


def seconds_left(seen: Observation) -> float | None:
    """Seconds for the remaining steps at the present speed."""
    step, total, pace = seen.progress.step, seen.progress.total, steps_per_second(seen)
    return None if step is None or not total or pace is None else max(0, total - step) / pace


def step_phrase(step: int | None, total: int | None) -> str:
    """``step 312/500``; empty before the first step."""
    if step is None:
        return ""
    return f"step {step}/{total}" if total else f"step {step}"


def progress_phrase(seen: Observation, *, brief: bool = False) -> str:
    """``step 312/500 (62%), loss 0.0312, 8.4 steps/s, 22 s left``; empty before the first step. ``brief``:
    without metrics and speed.
    """
    if seen.progress.step is None:
        return ""
    share, pace, rest = share_done(seen), steps_per_second(seen), seconds_left(seen)
    done = f" ({share:.0%})" if share is not None else ""
    parts = [step_phrase(seen.progress.step, seen.progress.total) + done]
    if not brief:
        metrics = {name: value for name, value in seen.progress.metrics.items() if name != SPEED}
        parts += [
            f"{name} {number(value)}" for name, value in _foremost(metrics, seen.progress.format).items()
        ]
        parts += [f"{pace:.3g} steps/s"] if pace is not None else []
    if rest and not state_of(seen).is_final:
        parts.append(f"{show_seconds(rest)} left")
    return ", ".join(parts)


def _foremost(metrics: Mapping[str, Any], format: str | None) -> Mapping[str, Any]:
    """The metrics of a line: all that a script reports; of those that a library prints the losses first."""
    if not format or len(metrics) <= _MOST_TOLD:
        return metrics
    first = sorted(metrics, key=lambda name: "loss" not in name.lower())[:_MOST_TOLD]
    return {name: metrics[name] for name in first}


_MOST_TOLD = 4


def format_phrase(seen: Observation) -> str:
    """``as Hugging Face's Trainer prints it``; empty where the script reports it itself."""
    return f"as {seen.progress.format} prints it" if seen.progress.format else ""


def files_phrase(seen: Observation) -> str:
    """``loss, val_loss from runs/metrics.csv``; empty where nothing was read from a file."""
    files = seen.progress.files
    by_file = {
        file: [name for name in files if files[name] == file] for file in dict.fromkeys(files.values())
    }
    return "; ".join(f"{', '.join(names)} from {file}" for file, names in by_file.items())


def evidence_source(evidence: Evidence) -> str:
    """The source of a piece of evidence: ``worker-0 wrote``, ``worker-0's exit code``."""
    kind, _, name = evidence.object.partition("/")
    if kind == "log":
        return f"{name} wrote"
    return (
        f"{name}'s {evidence.field.removeprefix('conditions.').replace('_', ' ')}"
        if name
        else evidence.object
    )


def member_row(member: MemberSeen) -> tuple[str, str, str, str, str]:
    """Name, rank, phase, exit code, restarts."""
    backing_off = member.phase == "running" and member.reason == "CrashLoopBackOff"
    phase = "waits to restart" if backing_off else member.phase
    if member.reason in TAKEN_AWAY and member.phase != "running":
        phase = f"{phase} ({member.reason})"
    code = (
        "-"
        if member.exit_code is None or (member.phase == "running" and not member.reason)
        else str(member.exit_code)
    )
    return member.name, str(member.rank), phase, code, str(member.restarts)


def notable_events(events: Iterable[Event]) -> list[Event]:
    """The events without the first start of each member, which its phase already shows."""
    begun: set[str] = set()
    rows = []
    for event in events:
        if event.reason == "Started" and event.object not in begun:
            begun.add(event.object)
        else:
            rows.append(event)
    return rows


TAKEN_AWAY = DISRUPTIONS | {
    "Evicted", "Preempted", "Preempting", "TaintManagerEviction", "DisruptionTerminating", "NodeLost",
    "NodeShutdown", "Terminated",
}  # fmt: skip
"""Reasons of events and members that tell that a member was taken away; not all of them are warnings."""
LONGEST = 200
"""Characters of an event's message in a view that follows a run; `allaboard events` has all of it."""


def brief(text: str) -> str:
    """A message on one line, of bounded length."""
    plain = " ".join(text.split())
    return plain if len(plain) <= LONGEST else f"{plain[: LONGEST - 3]}..."


def table(head: Sequence[str], rows: Iterable[Sequence[str]], gap: int = 2) -> list[str]:
    """Columns of text, each as wide as its widest cell."""
    everything = [[visible(cell) for cell in row] for row in (head, *rows)]
    widths = [max(len(row[n]) for row in everything) for n in range(len(head))]
    return [
        (" " * gap).join(cell.ljust(width) for cell, width in zip(row, widths, strict=True)).rstrip()
        for row in everything
    ]


def first_failing(outcome: Outcome) -> MemberSeen | None:
    """The member that the diagnosis blames, also one without an exit code (a rank that hangs, a pod that is
    gone), else the first that failed.
    """
    by_name = {m.name: m for m in outcome.seen.members}
    blamed = (outcome.diagnoses[0].blame or "").split() if outcome.diagnoses else []
    if first := next((name for word in blamed if (name := word.strip("(),;")) in by_name), None):
        return by_name[first]
    failed = [m for m in outcome.seen.members if m.exit_code not in (None, 0)]
    return min(failed, key=lambda m: (m.ended or float("inf"), m.rank), default=None)


def tail(outcome: Outcome, member: MemberSeen, lines: int = 20) -> list[str]:
    """The last lines that a member wrote, as far as they were kept, without reports."""
    text = outcome.seen.tails.get(member.name, "").rstrip()
    return [line for line in text.splitlines() if PREFIX not in line or decode(line) is None][-lines:]


COVERED_BY_STATE = frozenset({"FailedScheduling"})
"""Reasons of warnings that the state already explains: why a run waits."""


def log_folder(seen: Observation) -> str | None:
    """The folder of the members' logs, if they are files."""
    return next((m.log.rpartition("/")[0] for m in seen.members if m.log and m.log.startswith("/")), None)
