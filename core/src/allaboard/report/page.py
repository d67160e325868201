"""The page of a run: one file, nothing fetched, no script. Values in, text out.

Kubeflow shows it in a frame without an origin of its own, so styles and pictures are in the page. It is
readable on a telephone, in dark mode, printed, and in an archive. The page stays small, however much a run
has written: what is left out is counted.
"""

from __future__ import annotations

import html as markup
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from allaboard.diagnosis.last_good import SinceLastGood
from allaboard.follow.loop import Outcome
from allaboard.observation import PHASES, Event, MemberSeen, Observation, State
from allaboard.redaction import hide_known, redact_job, redact_text, secret_values
from allaboard.report import words
from allaboard.report.chart import Mark, Series, chart
from allaboard.report.history import History
from allaboard.report.html import NONE, definitions, escape, head, is_number, page, section, table
from allaboard.spec.job import TrainingJob
from allaboard.status import state_of
from allaboard.units import counted, rfc3339, show_seconds

LAST_LINES = 40
LONGEST_LINE = 2000
MOST_MEMBERS = 300
MOST_EVENTS = 100
MOST_CHECKPOINTS = 100
MOST_METRICS = 100
_MOST_CHARTS = 12
"""A chart takes some 10 KB. Curves that are not drawn are named."""
_MOST_MARKS = 20
_LONGEST_NAME = 100
_TONES = {State.SUCCEEDED: "good", State.FAILED: "bad", State.TIMED_OUT: "bad", State.LOST: "bad"}


@dataclass(frozen=True, slots=True)
class PageData:
    """The data of a page. ``lines``: the last lines of a member, by its name. ``events``: over all attempts,
    oldest first. ``secrets``: values that the page must not show. ``gaps``: what could not be read, in
    sentences.
    """

    history: History = field(default_factory=History)
    lines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    events: Sequence[Event] = ()
    secrets: Sequence[str] = ()
    gaps: Sequence[str] = ()


def run_page(
    outcome: Outcome,
    data: PageData,
    now: float,
    *,
    job: TrainingJob | None = None,
    kind: str = "training",
    window: tuple[float, float] | None = None,
    since: SinceLastGood | None = None,
) -> str:
    """The page of a run, ended or not: its state, phases, curves, members, checkpoints and events, and why it
    waits or failed. ``now``: the time of the observation. ``job``: shown if known. ``window``: begin and end
    of the pipeline step that followed the run. ``since``: what differs from the last good run of its job.
    """
    seen, state = outcome.seen, outcome.state
    # The run's own secrets may be in output of members and in messages of servers.
    known = [*data.secrets, *(secret_values(job.as_mapping()) if job is not None else ())]
    headline, rest = _headline(outcome, now)
    title = seen.job or seen.run
    parts = [
        head(f"{kind} run", title, _state_word(state), _TONES.get(state, "calm"), headline),
        f'<pre class="lead">{escape(rest)}</pre>' if rest else "",
        _tiles(outcome, now),
        _reasons_html(outcome),
        _since_last_good(since) if since is not None else "",
        _curves(outcome, data.history, job),
        _timeline(seen, now, window),
        _members(seen),
        _last_lines(outcome, data, known),
        _checkpoints(outcome, data.history),
        _events(data.events),
        _facts(outcome, data, now),
        _job(job) if job is not None else "",
    ]
    text = page(f"{title}: {_state_word(state)}", parts, {"allaboard-run": seen.run})
    return hide_known(text, [*known, *(markup.escape(value) for value in known)])


def _state_word(state: State) -> str:
    return str(state).replace("_", " ")


def _headline(outcome: Outcome, now: float) -> tuple[str, str]:
    """The first sentence, and what more its message says."""
    seen = outcome.seen
    if not outcome.state.is_final:
        words_of_it = f"{seen.run} {_state_word(outcome.state)} {words.duration_phrase(seen, now)}".strip()
        return f"{words_of_it}, when it was looked at: {rfc3339(now)}", ""
    headline, _, rest = outcome.message.partition("\n")
    return f"{seen.run} {headline.removeprefix('run ').removeprefix(outcome.run).strip()}", rest


# --- the parts -------------------------------------------------------------------------------------------


def _tiles(outcome: Outcome, now: float) -> str:
    seen, progress = outcome.seen, outcome.seen.progress
    tiles = [(name, words.number(value)) for name, value in _numbers(outcome.metrics)][:6]
    if progress.step is not None:
        share = words.share_done(seen)
        done = f" ({share:.0%})" if share is not None and not outcome.state.is_final else ""
        tiles.append(("steps", words.step_phrase(seen).removeprefix("step ") + done))
    rest = words.seconds_left(seen)
    if rest and not outcome.state.is_final:
        tiles.append(("left, at this speed", show_seconds(rest)))
    took = words.duration(seen, now if seen.finished is None else seen.finished)
    tiles.append(("took" if outcome.state.is_final else "so far", show_seconds(took)))
    tiles.append(("members", words.members_phrase(seen.members) or NONE))
    if seen.restarts or seen.attempt > 1:
        attempt = f", attempt {seen.attempt}" if seen.attempt > 1 else ""
        tiles.append(("restarts", f"{seen.restarts}{attempt}"))
    if progress.lost_steps:
        tiles.append(("steps done twice", str(progress.lost_steps)))
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in tiles)
    return f'<dl class="tiles">{cells}</dl>'


def _numbers(metrics: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(n, v) for n, v in metrics.items() if len(n) <= _LONGEST_NAME and is_number(n, v)]


def _reasons_html(outcome: Outcome) -> str:
    seen, state = outcome.seen, outcome.state
    parts = []
    if not state.is_final and seen.held_by and seen.held_by not in [d.summary for d in outcome.diagnoses]:
        parts.append(f'<div class="reason warning"><h3>{escape(seen.held_by)}</h3></div>')
    for n, diagnosis in enumerate(outcome.diagnoses):
        tone = "bad" if n == 0 and state.is_final and not outcome.ok else "warning"
        quotes = "".join(
            f"<li><code>{escape(e.object)} {escape(e.field)}</code> <q>{escape(e.text)}</q></li>"
            for e in diagnosis.evidence
        )
        parts.append(
            f'<div class="reason {tone}"><h3>{escape(diagnosis.summary)}</h3>'
            + (f"<ul>{quotes}</ul>" if quotes else "")
            + f"<p>{escape(diagnosis.fix[:1].upper() + diagnosis.fix[1:])}. "
            + f'<span class="code">{escape(diagnosis.code)}</span></p></div>'
        )
    if not parts:
        return ""
    title = "What to look at"
    if state.is_final and not outcome.ok:
        title = "What went wrong"
    elif seen.held_by:
        title = "Why it waits"
    return section(title, "".join(parts))


def _since_last_good(since: SinceLastGood) -> str:
    when = f", which ended {rfc3339(since.finished)}" if since.finished is not None else ""
    changes = "".join(f"<li>{escape(change)}</li>" for change in since.changes)
    lines = escape("\n".join(f"{member}: {line}" for member, line in since.lines))
    nothing = "" if changes or lines else "<p>Nothing is different.</p>"
    return section(
        "Since the last good run",
        f'<p class="fine">{escape(since.run + when)}.</p>{nothing}'
        + (f"<ul>{changes}</ul>" if changes else "")
        + (f'<p class="fine">Lines that it did not write:</p><pre>{lines}</pre>' if lines else ""),
    )


def _curves(outcome: Outcome, history: History, job: TrainingJob | None) -> str:
    losses = [Series(name, points, noisy=True) for name, points in history.curves.items() if _is_loss(name)]
    losses += [Series(name, points, dots=True) for name, points in history.measured.items() if _is_loss(name)]
    others = [
        Series(name, points, dots=True) for name, points in history.measured.items() if not _is_loss(name)
    ]
    others += [
        Series(name.replace("_", " "), points, noisy=True)
        for name, points in history.curves.items()
        if not _is_loss(name)
    ]
    marks = [Mark(step, f"resumed from step {step}") for step in history.resumed[-_MOST_MARKS:]]
    drawn, more = losses[:_MOST_CHARTS], losses[_MOST_CHARTS:] + others[_MOST_CHARTS:]
    big = _figure("Loss", drawn, marks, _best(history, job)) if drawn else ""
    small = "".join(_figure(s.name, [s], marks, size=(430, 220)) for s in others[:_MOST_CHARTS])
    if not big and not small:
        text = (
            "This run reported no numbers. "
            "<code>allaboard.inside.report(step=, total=, loss=)</code> in the script draws its curve here."
        )
        return "" if outcome.metrics else section("Curves", f'<p class="fine">{text}</p>')
    odd = ""
    if history.nonfinite:
        step, name = history.nonfinite[0]
        odd = f'<p class="warning">{escape(name)} was not a finite number at step {step}'
        odd += f" and {len(history.nonfinite) - 1} more times.</p>" if len(history.nonfinite) > 1 else ".</p>"
    undrawn = f"Not drawn are {len(more)} more: {', '.join(s.name for s in more)}." if more else ""
    return section(
        "Curves",
        big
        + odd
        + (f'<div class="pair">{small}</div>' if small else "")
        + (f'<p class="fine">{escape(undrawn)}</p>' if undrawn else ""),
    )


def _is_loss(name: str) -> bool:
    return "loss" in name.lower()


def _best(history: History, job: TrainingJob | None) -> tuple[float, float] | None:
    """The point of the best checkpoint, if a drawn loss decides which is best."""
    best = ((job.get("checkpoints") if job is not None else None) or {}).get("best") or {}
    points = history.measured.get(str(best.get("metric")), [])
    if not points or not _is_loss(str(best.get("metric"))):
        return None
    choose = min if best.get("mode", "min") == "min" else max
    return choose(reversed(points), key=lambda point: point[1])


def _figure(
    title: str,
    series: Sequence[Series],
    marks: Sequence[Mark],
    star: tuple[float, float] | None = None,
    size: tuple[int, int] = (880, 320),
) -> str:
    picture = chart(title, series, marks=marks, star=star, size=size)
    names = [s.name for s in series if s.points]
    legend = "".join(f'<span class="key s{n % 6}">{escape(name)}</span>' for n, name in enumerate(names))
    scroll = f'<div class="wide">{picture}</div>'
    return f"<figure>{scroll}<figcaption>{legend}</figcaption></figure>" if picture else ""


def _timeline(seen: Observation, now: float, window: tuple[float, float] | None) -> str:
    spans = timeline(seen, now, window)
    total = sum(seconds for _, seconds in spans)
    if total <= 0:
        return ""
    bars = "".join(
        f'<i class="s{n % 6}" style="flex-grow:{max(seconds / total, 0.004):.4f}" title="{escape(name)}"></i>'
        for n, (name, seconds) in enumerate(spans)
    )
    legend = "".join(
        f'<span class="key s{n % 6}">{escape(name)} {show_seconds(seconds)}</span>'
        for n, (name, seconds) in enumerate(spans)
        if seconds >= 0.05
    )
    return section(
        "Where the time went",
        f'<div class="bar">{bars}</div><p class="keys">{legend}</p>'
        f'<p class="fine">{show_seconds(total)} in all{"" if window else ", from when it was created"}.</p>',
    )


def timeline(
    seen: Observation, now: float, window: tuple[float, float] | None = None
) -> list[tuple[str, float]]:
    """The time spans of a run, in order, in seconds. ``window``: begin and end of the step. The spans then
    sum to the window; parts of the run outside of it (from another try of the step) are left out. Without a
    window the spans sum to the time of the run, until ``now`` if it has not ended.
    """
    phases = [(name, seconds) for name in PHASES if (seconds := seen.phases.get(name))]
    created = seen.created
    if created is None:
        return [(name.replace("_", " "), seconds) for name, seconds in phases]
    known = created + sum(seconds for _, seconds in phases)
    on = words.current_phase(seen)
    finished = seen.finished
    if finished is None:
        finished = known if window or state_of(seen).is_final else max(known, now)
    began, ended = window or (created, max(created, finished))
    before = "start" if seen.attempt == 1 else f"before attempt {seen.attempt}"
    marks = [(before, created)]
    for name, seconds in phases:
        until = finished if name == on and not window else marks[-1][1] + seconds
        marks.append((name.replace("_", " "), until))
    marks += [(_untold_phase(seen), finished), ("end", ended)]
    spans, at = [], began
    for name, until in marks:
        until = min(max(until, at), ended)  # clocks of two machines may differ
        spans.append((name, until - at))
        at = until
    return [(name, seconds) for name, seconds in spans if seconds > 0]


def _untold_phase(seen: Observation) -> str:
    """The name of time without a known phase: a run that reports no step, or a suspension."""
    if seen.phases.get("training"):
        return "no phase told"
    return "running, no step told" if seen.started is not None or state_of(seen).is_final else "not started"


def _members(seen: Observation) -> str:
    shown = (
        sorted(seen.members, key=_member_tone)[:MOST_MEMBERS]
        if len(seen.members) > MOST_MEMBERS
        else seen.members
    )
    rows = []
    for member in shown:
        name, rank, phase, code, restarts = words.member_row(member)
        tone = {"succeeded": "good", "failed": "bad"}.get(member.phase, "calm")
        # Error is Kubernetes' word for any exit code that is not 0.
        why = (
            f" ({member.reason})" if member.phase == "failed" and member.reason not in (None, "Error") else ""
        )
        log = f"<code>{escape(member.log)}</code>" if member.log else NONE
        state = f'<span class="{tone}">{escape(phase + why)}</span>'
        rows.append((escape(name), rank, state, code, restarts, log))
    if not rows:
        return ""
    body = table(("member", "rank", "phase", "exit code", "restarts", "log"), rows)
    return section("Members", body + _left_out_note(len(seen.members) - len(rows), "calmer member"))


def _member_tone(member: MemberSeen) -> tuple[bool, int]:
    """The CSS class of a member. Failed and restarted members come first if there is no room for all."""
    return member.phase != "failed" and not member.restarts, member.rank


def _last_lines(outcome: Outcome, data: PageData, known: Sequence[str]) -> str:
    parts = []
    failing = None if outcome.ok else words.first_failing(outcome)
    for member in sorted(outcome.seen.members, key=lambda member: member != failing):
        lines = data.lines.get(member.name)
        if not lines:
            continue
        text = escape("\n".join(_cut_line(line, known) for line in lines[-LAST_LINES:]))
        whole = f'<p class="fine">All of them: <code>{escape(member.log)}</code></p>' if member.log else ""
        parts.append(f"<h3>{escape(member.name)}</h3><pre>{text}</pre>{whole}")
    return section("The last lines", "".join(parts)) if parts else ""


def _cut_line(line: str, known: Sequence[str]) -> str:
    """A line, cut to the length that the page shows. Secrets are removed before the cut, which could leave
    part of one.
    """
    if len(line) <= LONGEST_LINE:
        return line
    return redact_text(line, known)[:LONGEST_LINE] + f" … {counted(len(line), 'character')} in all"


def _checkpoints(outcome: Outcome, history: History) -> str:
    progress = outcome.seen.progress
    best = progress.best_checkpoint
    rows = [
        (
            str(saved.step) + (" ★" if saved.uri and saved.uri == best else ""),
            escape(words.metrics(saved.metrics) or NONE),
            f"<code>{escape(saved.uri)}</code>",
        )
        for saved in reversed(history.saved[-MOST_CHECKPOINTS:])
    ]
    if not rows:  # without rank 0's lines the observation may still name the newest
        named = [("latest", progress.checkpoint), ("best", best if best != progress.checkpoint else None)]
        facts = [(name, uri) for name, uri in named if uri]
        return section("Checkpoints", definitions(facts)) if facts else ""
    starred = "★ the best. " if any(saved.uri == best for saved in history.saved) else ""
    note = f'<p class="fine">{starred}Retention may have removed older ones since.</p>'
    more = _left_out_note(len(history.saved) - len(rows), "older checkpoint")
    return section("Checkpoints", table(("step", "metrics", "place"), rows) + note + more)


def _events(events: Sequence[Event]) -> str:
    shown = events[-MOST_EVENTS:]
    if not shown:
        return ""
    rows = [
        (
            f"<time>{escape(rfc3339(event.time) or NONE)}</time>",
            f'<span class="{"warning" if event.type == "Warning" else "calm"}">{escape(event.reason)}</span>',
            f'<span class="name">{escape(event.object)}</span>',
            escape(event.message),
        )
        for event in shown
    ]
    body = table(("time", "event", "object", "what happened"), rows)
    return section("Events", body + _left_out_note(len(events) - len(shown), "earlier event"))


def _left_out_note(count: int, noun: str) -> str:
    return f'<p class="fine">{counted(count, noun)} left out here.</p>' if count > 0 else ""


def _facts(outcome: Outcome, data: PageData, now: float) -> str:
    seen = outcome.seen
    facts: list[tuple[str, Any]] = [
        ("run", outcome.run),
        ("job", seen.job),
        ("key", None if seen.key.startswith("once/") else seen.key),
        ("attempt", seen.attempt),
        ("generation", seen.generation if seen.generation > 1 else None),
        ("created", rfc3339(seen.created)),
        ("started", rfc3339(seen.started)),
        ("finished", rfc3339(seen.finished)),
        ("looked at", rfc3339(now)),
        (
            "stopped",
            f"by {seen.stop.by} at {rfc3339(seen.stop.at)}: {seen.stop.reason}" if seen.stop else None,
        ),
        ("followed by", seen.owner.id if seen.owner else None),
        ("conditions", " → ".join(c.type for c in words.conditions_in_order(seen.conditions))),
        ("flags", ", ".join(seen.flags)),
        ("spec", seen.spec_hash),
    ]
    measured = _numbers(outcome.metrics)[6:]
    facts += [(name, words.number(value)) for name, value in measured[:MOST_METRICS]]
    notes = "".join(f"<li>{escape(note)}</li>" for note in (*seen.notes, *data.gaps))
    return section(
        "Facts",
        definitions((k, v) for k, v in facts if v not in (None, ""))
        + _left_out_note(len(measured) - MOST_METRICS, "more metric")
        + (f"<ul>{notes}</ul>" if notes else ""),
    )


def _job(job: TrainingJob) -> str:
    text = escape(json.dumps(redact_job(job.as_mapping()), indent=2, ensure_ascii=False))
    return f"<details><summary>The job as it was run</summary><pre>{text}</pre></details>"
