"""The pages that people look at after a step: one file each, nothing fetched, no script. Values in, text out.

Kubeflow shows them in a frame without an origin of its own, so styles and pictures are in the page. They
are as readable on a telephone, in the dark, printed, and years later in an archive.
"""

from __future__ import annotations

import html
import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from importlib import resources
from typing import Any

import allaboard
from allaboard.cli import words
from allaboard.follow.loop import Outcome
from allaboard.observation import PHASES, Observation, State
from allaboard.printable import visible
from allaboard.promotion.champion import Decision, Promotion
from allaboard.redaction import hide_known, redact_job, redact_text, secret_values
from allaboard.spec.job import TrainingJob
from allaboard.units import rfc3339, show_seconds
from allaboard_kfp.chart import Mark, Series, chart
from allaboard_kfp.history import History

LAST_LINES = 40
NONE = "\N{EN DASH}"
_MOST_CHARTS = 12
"""Each is some 10 KB of the page; what is not drawn is named."""
_SPEED = words.SPEED
_TONES = {State.SUCCEEDED: "good", State.STOPPED: "calm"}


def training_page(
    outcome: Outcome,
    job: TrainingJob,
    told: History,
    kind: str = "training",
    window: tuple[float, float] | None = None,
) -> str:
    """All about a run that ended: how, its curves, its members, its checkpoints, and why if it failed.
    ``window``: when the step that followed it began, and now.
    """
    seen, tone = outcome.seen, _TONES.get(outcome.state, "bad")
    headline, _, rest = outcome.message.partition("\n")
    lead = headline.removeprefix("run ").removeprefix(outcome.run).strip()
    parts = [
        _head(f"{kind} run", job.name or seen.job, str(outcome.state), tone, f"{outcome.run} {lead}"),
        f'<pre class="lead">{escape(rest)}</pre>' if rest else "",
        _tiles(outcome),
        _reasons(outcome),
        _curves(outcome, told, job),
        _timeline(outcome, window),
        _members(outcome),
        _checkpoints(outcome, told),
        _facts(outcome),
        _job(job),
    ]
    page = _page(f"{seen.job}: {outcome.state}", parts)
    # The job's own secrets, where a member printed them and where a server repeated them.
    known = secret_values(job.as_mapping())
    return hide_known(page, [*known, *(html.escape(value) for value in known)])


def promotion_page(
    decision: Decision, checkpoint: str, metrics: Mapping[str, Any], past: Sequence[Promotion]
) -> str:
    """What the gate said and why, and who has been champion so far (``past``, newest first)."""
    promoted, new = decision.promoted, decision.promotion
    if new is not None:
        lead = f"{checkpoint} is champion number {new.number} now."
    elif decision.champion is not None:
        lead = f"The champion stays number {decision.champion.number}: {decision.champion.checkpoint}"
    else:
        lead = "There is no champion yet."
    checks = [
        (
            '<span class="good">✓</span>' if check.passed else '<span class="bad">✗</span>',
            escape(check.reason),
            _cell(check.value),
            _cell(check.needed),
            _cell(check.champion),
        )
        for check in decision.verdict.checks
    ]
    records = [
        (
            str(record.number) + (" ★" if n == 0 else ""),
            escape(record.at or NONE),
            escape(words.metrics(record.metrics) or NONE),
            f"<code>{escape(record.checkpoint)}</code>",
            escape(record.reason or (f"restores {record.restores}" if record.restores else NONE)),
        )
        for n, record in enumerate(past)
    ]
    state, tone = ("promoted", "good") if promoted else ("not promoted", "calm")
    parts = [
        _head("promotion", "The gate", state, tone, lead),
        _section("Checks", _table(("", "check", "value", "needed", "champion's"), checks)),
        _section("This model", _definitions([("checkpoint", checkpoint), *_shown(metrics)])),
        _section("Champions", _table(("number", "at", "metrics", "checkpoint", "why"), records)),
        *(f'<p class="warning">{escape(problem)}</p>' for problem in decision.problems),
    ]
    return _page(f"promotion: {state}", parts)


# --- the parts of a training's page ---------------------------------------------------------------------


def _tiles(outcome: Outcome) -> str:
    seen, progress = outcome.seen, outcome.seen.progress
    tiles = [
        (name, words.number(value)) for name, value in outcome.metrics.items() if _is_number(name, value)
    ][:6]
    if progress.step is not None:
        tiles.append(("steps", words.step(seen).removeprefix("step ")))
    took = words.took(seen, seen.finished or 0.0)
    tiles.append(("took", show_seconds(took)))
    tiles.append(("members", words.gang(seen.members) or NONE))
    if seen.restarts or seen.attempt > 1:
        tiles.append(
            ("restarts", f"{seen.restarts}" + (f", attempt {seen.attempt}" if seen.attempt > 1 else ""))
        )
    if progress.lost_steps:
        tiles.append(("steps done twice", str(progress.lost_steps)))
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in tiles)
    return f'<dl class="tiles">{cells}</dl>'


def _reasons(outcome: Outcome) -> str:
    parts = []
    for n, found in enumerate(outcome.diagnoses):
        tone = "bad" if n == 0 and not outcome.ok else "warning"
        quotes = "".join(
            f"<li><code>{escape(e.object)} {escape(e.field)}</code> <q>{escape(e.text)}</q></li>"
            for e in found.evidence
        )
        parts.append(
            f'<div class="reason {tone}"><h3>{escape(found.summary)}</h3>'
            + (f"<ul>{quotes}</ul>" if quotes else "")
            + f"<p>{escape(found.fix[:1].upper() + found.fix[1:])}. "
            + f'<span class="code">{escape(found.code)}</span></p></div>'
        )
    member = None if outcome.ok else words.first_failing(outcome)
    lines = words.tail(outcome, member, LAST_LINES) if member is not None else []
    if member is not None and lines:
        text = escape("\n".join(lines))
        parts.append(
            f"<h3>The last lines of {escape(member.name)}</h3><pre>{text}</pre>"
            + (f'<p class="fine">All of them: <code>{escape(member.log)}</code></p>' if member.log else "")
        )
    title = "What went wrong" if not outcome.ok else "What to look at"
    return _section(title, "".join(parts)) if parts else ""


def _curves(outcome: Outcome, told: History, job: TrainingJob) -> str:
    losses = [
        Series(name, points, noisy=True) for name, points in told.curves.items() if "loss" in name.lower()
    ] + [Series(name, points, dots=True) for name, points in told.measured.items() if "loss" in name.lower()]
    others = [
        Series(name, points, dots=True)
        for name, points in told.measured.items()
        if "loss" not in name.lower()
    ] + [
        Series(name.replace("_", " "), points, noisy=True)
        for name, points in told.curves.items()
        if "loss" not in name.lower()
    ]
    marks = [Mark(step, f"resumed from step {step}") for step in told.resumed]
    big = _figure("Loss", losses, marks, _best(told, job)) if losses else ""
    small = "".join(_figure(s.name, [s], marks, size=(430, 220)) for s in others[:_MOST_CHARTS])
    if not big and not small:
        text = (
            "This run told no numbers on its way. "
            "<code>allaboard.inside.report(step=, total=, loss=)</code> in the script draws its curve here."
        )
        return "" if outcome.metrics else _section("Curves", f'<p class="fine">{text}</p>')
    odd = ""
    if told.nonfinite:
        step, name = told.nonfinite[0]
        odd = f'<p class="warning">{escape(name)} was not a finite number at step {step}'
        odd += f" and {len(told.nonfinite) - 1} more times.</p>" if len(told.nonfinite) > 1 else ".</p>"
    rest = [s.name for s in others[_MOST_CHARTS:]]
    more = f"Not drawn are {len(rest)} more: {', '.join(rest)}." if rest else ""
    return _section(
        "Curves",
        big
        + odd
        + (f'<div class="pair">{small}</div>' if small else "")
        + (f'<p class="fine">{escape(more)}</p>' if more else ""),
    )


def _best(told: History, job: TrainingJob) -> tuple[float, float] | None:
    """Where the best checkpoint lies among the losses, if it is chosen by one of them."""
    best = (job.get("checkpoints") or {}).get("best") or {}
    points = told.measured.get(str(best.get("metric")), [])
    if not points or "loss" not in str(best.get("metric")).lower():
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


def _timeline(outcome: Outcome, window: tuple[float, float] | None) -> str:
    spans = timeline(outcome.seen, window)
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
    return _section(
        "Where the time went",
        f'<div class="bar">{bars}</div><p class="keys">{legend}</p>'
        f'<p class="fine">{show_seconds(total)} in all.</p>',
    )


def timeline(seen: Observation, window: tuple[float, float] | None = None) -> list[tuple[str, float]]:
    """What the time was spent on, in order, in seconds. ``window``: the beginning and the end of the step;
    the spans sum to it, and what of the run lies outside of it (another try of the step began it) is left
    out. Without: the spans sum to the time of the run.
    """
    phases = [(name, seconds) for name in PHASES if (seconds := seen.phases.get(name))]
    created = seen.created
    if created is None:
        return [(name.replace("_", " "), seconds) for name, seconds in phases]
    known = sum(seconds for _, seconds in phases)
    finished = seen.finished if seen.finished is not None else created + known
    began, ended = window or (created, max(created, finished))
    before = "start" if seen.attempt == 1 else f"before attempt {seen.attempt}"
    # Nobody tells the phase of a run that reports no step, nor what a suspension took.
    untold = "no phase told" if seen.phases.get("training") else "running, no step told"
    marks = [(before, created)]
    for name, seconds in phases:
        marks.append((name.replace("_", " "), marks[-1][1] + seconds))
    marks += [(untold, finished), ("end", ended)]
    spans, at = [], began
    for name, until in marks:
        until = min(max(until, at), ended)  # clocks of two machines may differ
        spans.append((name, until - at))
        at = until
    return [(name, seconds) for name, seconds in spans if seconds > 0]


def _members(outcome: Outcome) -> str:
    rows = []
    for member in outcome.seen.members:
        name, rank, phase, code, restarts = words.member_row(member)
        tone = {"succeeded": "good", "failed": "bad"}.get(member.phase, "calm")
        log = f"<code>{escape(member.log)}</code>" if member.log else NONE
        rows.append((escape(name), rank, f'<span class="{tone}">{escape(phase)}</span>', code, restarts, log))
    return (
        _section("Members", _table(("member", "rank", "phase", "exit code", "restarts", "log"), rows))
        if rows
        else ""
    )


def _checkpoints(outcome: Outcome, told: History) -> str:
    best = outcome.seen.progress.best_checkpoint
    rows = [
        (
            str(saved.step) + (" ★" if saved.uri and saved.uri == best else ""),
            escape(words.metrics(saved.metrics) or NONE),
            f"<code>{escape(saved.uri)}</code>",
        )
        for saved in reversed(told.saved)
    ]
    if not rows:
        return ""
    starred = "★ the best. " if any(saved.uri == best for saved in told.saved) else ""
    note = f'<p class="fine">{starred}Retention may have removed older ones since.</p>'
    return _section("Checkpoints", _table(("step", "metrics", "place"), rows) + note)


def _facts(outcome: Outcome) -> str:
    seen = outcome.seen
    facts: list[tuple[str, Any]] = [
        ("run", outcome.run),
        ("key", seen.key),
        ("attempt", seen.attempt),
        ("generation", seen.generation if seen.generation > 1 else None),
        ("created", rfc3339(seen.created)),
        ("started", rfc3339(seen.started)),
        ("finished", rfc3339(seen.finished)),
        ("followed by", seen.owner.id if seen.owner else None),
        ("conditions", " → ".join(c.type for c in words.in_order(seen.conditions))),
        ("flags", ", ".join(seen.flags)),
        ("spec", seen.spec_hash),
    ]
    notes = "".join(f"<li>{escape(note)}</li>" for note in seen.notes)
    return _section(
        "Facts", _definitions((k, v) for k, v in facts if v) + (f"<ul>{notes}</ul>" if notes else "")
    )


def _job(job: TrainingJob) -> str:
    text = escape(json.dumps(redact_job(job.as_mapping()), indent=2, ensure_ascii=False))
    return f"<details><summary>The job as it was run</summary><pre>{text}</pre></details>"


# --- pieces of HTML -------------------------------------------------------------------------------------


def escape(text: str) -> str:
    """Foreign words in a page that others will read: no markup, no secret, nothing hidden."""
    return html.escape(visible(redact_text(text), newlines=True, tabs=True))


def _head(kicker: str, title: str, state: str, tone: str, lead: str) -> str:
    return (
        f'<header class="{tone}"><p class="kicker">{escape(kicker)}</p>'
        f'<h1>{escape(title)} <span class="badge {tone}">{escape(state)}</span></h1>'
        f'<p class="lead">{escape(lead)}</p></header>'
    )


def _section(title: str, body: str) -> str:
    return f"<section><h2>{escape(title)}</h2>{body}</section>"


def _table(head: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """``rows`` are HTML already."""
    top = "".join(f"<th>{escape(name)}</th>" for name in head)
    body = "".join("<tr>" + "".join(f"<td>{cell}</td>" for cell in row) + "</tr>" for row in rows)
    return f'<div class="wide"><table><thead><tr>{top}</tr></thead><tbody>{body}</tbody></table></div>'


def _definitions(facts: Iterable[tuple[str, Any]]) -> str:
    rows = "".join(f"<dt>{escape(str(name))}</dt><dd>{escape(str(value))}</dd>" for name, value in facts)
    return f'<dl class="facts">{rows}</dl>'


def _shown(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in metrics.items():
        yield name, words.number(value) if _is_number(name, value) or value is None else str(value)


def _cell(value: float | None) -> str:
    return NONE if value is None else f"{value:.6g}"


def _is_number(name: str, value: Any) -> bool:
    return name != _SPEED and isinstance(value, (int, float)) and not isinstance(value, bool)


def _page(title: str, parts: Iterable[str]) -> str:
    style = resources.files("allaboard_kfp").joinpath("page.css").read_text(encoding="utf-8")
    body = "\n".join(part for part in parts if part)
    return (
        f'<!doctype html>\n<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title>'
        f'<meta name="viewport" content="width=device-width,initial-scale=1"><style>{style}</style></head>\n'
        f"<body><main>{body}\n"
        f"<footer>allaboard {escape(allaboard.__version__)}</footer></main></body></html>\n"
    )
