"""All that a page shows of a run, as one plain value: `page_data`. The page is drawn from it alone, and a
client that shows a run elsewhere gets the same. Values in, values out.

The value is JSON, without secrets, and bounded, however much a run has written: what is left out is counted.
``version`` changes when a field gets another meaning; new fields do not change it. Times are seconds since
``zero``, an epoch: the creation of the run, else the first moment that is known of it. Unknown is null.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any

from allaboard.diagnosis.last_good import SinceLastGood
from allaboard.follow.loop import Outcome
from allaboard.job.training_job import TrainingJob
from allaboard.report import phrases
from allaboard.report.commands import Place
from allaboard.report.curves import Points, at, gone, retold, spread, straighten, trend
from allaboard.report.history import History
from allaboard.runs.observation import PHASES, Event, MemberSeen, Observation, State
from allaboard.runs.points import thin_out
from allaboard.runs.status import flags_of, state_of
from allaboard.text.redaction import redact_job, redact_text, secret_values
from allaboard.text.units import counted, rfc3339

VERSION = 1
LAST_LINES = 40
LONGEST_LINE = 2000
_LONGEST_NAME = 100
_LONGEST_JOB = 200_000
"""Characters of a job as JSON."""
_FIRST = 4
"""Losses that get more points than their share, because they are drawn large."""
_NOISY_FROM = 20
"""Points of a curve that gets a trend."""
_EXACT = 2000
"""The clock is right to this part of the time of a run."""
_PLACES = 9
"""Digits that a number of a curve keeps: more than a picture or a table shows."""


@dataclass(frozen=True, slots=True)
class Bounds:
    """Upper bounds of the value. ``points``: of all curves together, shared equally; ``of_a_curve``: of one;
    ``lines``: of output, of one member; ``quoted``: members whose last lines are quoted;
    ``earlier``: tries of rank 0 before the last whose lines are.
    """

    curves: int = 200
    points: int = 12_000
    of_a_curve: int = 500
    clock: int = 2000
    members: int = 300
    quoted: int = 16
    lines: int = LAST_LINES
    earlier: int = 3
    events: int = 100
    checkpoints: int = 100
    marks: int = 200
    tries: int = 20
    metrics: int = 100
    diagnoses: int = 10


PAGE = Bounds()
SNAPSHOT = Bounds(
    curves=40, points=2000, of_a_curve=120, clock=200, members=64, quoted=2, lines=20, earlier=0, events=30,
    checkpoints=20, marks=60, tries=20, metrics=40, diagnoses=3,
)  # fmt: skip
"""For whoever keeps the value: usually some 50 KB."""


@dataclass(slots=True)
class Try:
    """One try of rank 0: when it wrote its first and its last line, in epoch seconds."""

    attempt: int
    restart: int
    began: float
    ended: float


@dataclass(frozen=True, slots=True)
class LinesOfTry:
    """The last lines of one try."""

    attempt: int
    restart: int
    lines: Sequence[str]


@dataclass(frozen=True, slots=True)
class Readings:
    """Readings of a run besides its observation. ``lines``: the last lines of a member's last try, by
    its name; ``earlier``: those of the tries before, the newest first, as far as they were read.
    ``events``: over all attempts, oldest first. ``secrets``: values that nobody may see. ``gaps``: what could
    not be read, in sentences. ``tries``: of rank 0, as far as times of its lines are known.
    """

    history: History = field(default_factory=History)
    lines: Mapping[str, Sequence[str]] = field(default_factory=dict)
    events: Sequence[Event] = ()
    secrets: Sequence[str] = ()
    gaps: Sequence[str] = ()
    tries: Sequence[Try] = ()
    earlier: Mapping[str, Sequence[LinesOfTry]] = field(default_factory=dict)


def page_data(
    outcome: Outcome,
    read: Readings,
    now: float,
    *,
    at: Place,
    job: TrainingJob | None = None,
    kind: str = "training",
    window: tuple[float, float] | None = None,
    since: SinceLastGood | None = None,
    bounds: Bounds = PAGE,
) -> dict[str, Any]:
    """Everything that is told of a run, ended or not. ``now``: the time of the observation. ``at``: where the
    run is, for the commands that are told. ``job``: told if known. ``window``: begin and end of the pipeline
    step that followed the run. ``since``: what differs from the last good run of its job.
    """
    seen, state = outcome.seen, outcome.state
    history = read.history.with_files(seen.measured)
    first = [seen.created, seen.started, *(t.began for t in read.tries[:1])]
    zero = next((moment for moment in first if moment is not None), now)
    headline, rest = _headline(outcome, now)
    job_spec, gaps = _job(job), [*read.gaps]
    if job is not None and job_spec is None:
        gaps.append("the job as it was run is too long to be told here")

    def offset(moment: float | None) -> float | None:
        return None if moment is None else round(moment - zero, 3)

    numbers = [(n, v) for n, v in outcome.metrics.items() if len(n) <= _LONGEST_NAME and is_number(n, v)]
    data: dict[str, Any] = {
        "version": VERSION,
        "kind": kind,
        "run": seen.run,
        "job": seen.job,
        "key": None if seen.key.startswith("once/") else seen.key or None,
        "attempt": seen.attempt,
        "generation": seen.generation,
        "restarts": seen.restarts,
        "zero": zero,
        "created": offset(seen.created),
        "started": offset(seen.started),
        "finished": offset(seen.finished),
        "looked_at": offset(now),
        "state": str(state),
        "is_final": state.is_final,
        "ok": outcome.ok,
        "headline": headline,
        "message": rest,
        "held_by": None if state.is_final else seen.held_by,
        "seconds": phrases.duration(seen, now if seen.finished is None else seen.finished),
        "progress": _progress(seen, state),
        "metrics": [{"name": name, "value": value} for name, value in numbers[: bounds.metrics]],
        "metrics_left_out": max(0, len(numbers) - bounds.metrics),
        "goodput": _goodput(seen, read, now),
        "diagnoses": [_diagnosis(d.to_dict(), seen.run, at) for d in outcome.diagnoses[: bounds.diagnoses]],
        "diagnoses_left_out": max(0, len(outcome.diagnoses) - bounds.diagnoses),
        "since_last_good": None if since is None else {**since.to_dict(), "finished": offset(since.finished)},
        **_curves(history, zero, bounds),
        "resumed": [
            {"step": step, "at": offset(moment)}
            for step, moment in [*zip(history.resumed, history.resumed_at, strict=True)][-bounds.marks :]
        ],
        "nonfinite": _nonfinite(history),
        "best": _best(outcome, history, job),
        "tracked": dict(history.tracked),
        "timeline": _timeline(outcome, read, zero, now, window, bounds),
        "members_phrase": phrases.members_phrase(seen.members),
        **_members(outcome, read, zero, bounds),
        **_checkpoints(outcome, history, zero, bounds),
        "events": [
            {
                "at": offset(event.time),
                "type": event.type,
                "reason": event.reason,
                "object": event.object,
                "message": event.message,
            }
            for event in read.events[len(read.events) - min(len(read.events), bounds.events) :]
        ],
        "events_left_out": max(0, len(read.events) - bounds.events),
        "stop": None if seen.stop is None else {**asdict(seen.stop), "at": offset(seen.stop.at)},
        "owner": seen.owner.id if seen.owner else None,
        "conditions": [c.type for c in phrases.conditions_in_order(seen.conditions)][-bounds.events :],
        "flags": flags_of(seen, outcome.diagnoses)[: bounds.events],
        "spec_hash": seen.spec_hash,
        "notes": [at.in_text(note, seen.run) for note in [*seen.notes, *gaps][-bounds.events :]],
        "job_spec": job_spec,
    }
    # The run's own secrets may be in output of members and in messages of servers.
    known = [*read.secrets, *(secret_values(job.as_mapping()) if job is not None else ())]
    masked: dict[str, Any] = _told(data, known)
    return masked


def is_number(name: str, value: Any) -> bool:
    """True if a metric is a number of its own: the speed is told with the progress."""
    return name != phrases.SPEED and isinstance(value, (int, float)) and not isinstance(value, bool)


def _told(value: Any, known: Sequence[str]) -> Any:
    """A plain value without secrets, its texts cut to the length that is told. Secrets are removed before the
    cut, which could leave part of one.
    """
    if isinstance(value, str):
        text = redact_text(value, known)
        if len(text) <= LONGEST_LINE:
            return text
        return text[:LONGEST_LINE] + f" … {counted(len(text), 'character')} in all"
    if isinstance(value, Mapping):
        return {_told(str(name), known): _told(inner, known) for name, inner in value.items()}
    if isinstance(value, (list, tuple)):
        if value and isinstance(value[0], (int, float)):  # points, which are many
            return [*value]
        return [_told(inner, known) for inner in value]
    return value


def _state_word(state: State) -> str:
    return str(state).replace("_", " ")


def _headline(outcome: Outcome, now: float) -> tuple[str, str]:
    """The first sentence, and what more its message says."""
    seen = outcome.seen
    if not outcome.state.is_final:
        words_of_it = f"{seen.run} {_state_word(outcome.state)} {phrases.duration_phrase(seen, now)}".strip()
        return f"{words_of_it}, when it was looked at: {rfc3339(now)}", ""
    headline, _, rest = outcome.message.partition("\n")
    return f"{seen.run} {headline.removeprefix('run ').removeprefix(outcome.run).strip()}", rest


def _progress(seen: Observation, state: State) -> dict[str, Any]:
    progress = seen.progress
    return {
        "step": progress.step,
        "total": progress.total,
        "share": phrases.share_done(seen),
        "lost_steps": progress.lost_steps,
        "steps_per_second": phrases.steps_per_second(seen),
        "seconds_left": None if state.is_final else phrases.seconds_left(seen),
    }


def _goodput(seen: Observation, read: Readings, now: float) -> dict[str, Any] | None:
    """The share of a run that went into steps that counted, over all of its attempts; the lower of two, for
    each misses what the other may know. By ``time``, from the creation of its first attempt that is known:
    the time between reported steps that no restart undid. By ``steps``: of all steps done, those that were
    not done again or thrown away. None: nothing was reported.
    """
    clock = read.history.clock
    begins = [seen.created, *(tried.began for tried in read.tries[:1]), *(at for _, at in clock[:1])]
    created = min((moment for moment in begins if moment is not None), default=None)
    ended = seen.finished if seen.finished is not None else now
    by_time, by_steps = None, None
    if created is not None and seen.created is not None and ended > created and len(clock) > 1:
        whole = ended - created
        useful = min(gone(clock, read.history.breaks), whole)
        share = round(useful / whole, 4)
        by_time = {"by": "time", "share": share, "useful": round(useful, 3), "of": round(whole, 3)}
    done, lost = seen.progress.step, seen.progress.lost_steps
    if done:
        by_steps = {"by": "steps", "share": round(done / (done + lost), 4), "useful": done, "of": done + lost}
    return min((each for each in (by_time, by_steps) if each is not None), key=_share, default=None)


def _share(goodput: Mapping[str, Any]) -> float:
    return float(goodput["share"])


def _diagnosis(fields: dict[str, Any], run: str, place: Place) -> dict[str, Any]:
    return {
        **fields,
        "fix": place.in_text(fields["fix"], run),
        "evidence": [*fields["evidence"]][:20],
        "also": fields["also"][:20],
    }


# --- curves


def _curves(history: History, zero: float, bounds: Bounds) -> dict[str, Any]:
    """The curves: losses first. ``clock``: [step, seconds] between which straight lines tell the time of
    every step; ``breaks``: steps after which the run began again; ``curve_gaps``: steps after which lines
    are lost; ``curve_files``: the file of each curve that was read from one. A metric of checkpoints is no
    curve of its own where the progress tells the same.
    """
    curves = [("progress", name, points) for name, points in history.curves.items() if points]
    curves += [
        ("checkpoint", name, points)
        for name, points in history.measured.items()
        if points and not retold(points, history.curves.get(name, ()))
    ]
    curves.sort(
        key=lambda curve: (
            not is_loss(curve[1]),
            (curve[0] == "progress") != is_loss(curve[1]),
            curve[1] == phrases.SPEED,
        )
    )
    kept, more = curves[: bounds.curves], curves[bounds.curves :]
    share = max(16, min(bounds.of_a_curve, bounds.points // max(1, len(kept))))
    first = min(bounds.of_a_curve, bounds.points // 10)
    return {
        "curves": [
            _curve(name, kind, points, max(share, first) if n < _FIRST and is_loss(name) else share)
            for n, (kind, name, points) in enumerate(kept)
        ],
        "curves_left_out": [name for _, name, _ in more[:20]],
        "curves_left_out_count": len(more),
        "clock": _clock(history, zero, bounds.clock),
        "breaks": history.breaks[-bounds.marks :],
        "curve_gaps": history.gaps[-bounds.marks :],
        "curve_files": {name: history.files[name] for _, name, _ in kept if name in history.files},
    }


def is_loss(name: str) -> bool:
    return "loss" in name.lower()


def _curve(name: str, kind: str, points: Points, most: int) -> dict[str, Any]:
    """``count``: points that were reported and kept; ``points``: some of them, the extremes among them, if
    they are more than ``most``; ``trend``: the mean of neighbours, for a curve of many points.
    """
    noisy = kind == "progress" and len(points) > _NOISY_FROM
    over = most // 5 if most >= 100 else most // 3
    values = [value for _, value in points]
    low, high = points[values.index(min(values))], points[values.index(max(values))]
    return {
        "name": name,
        "kind": kind,
        "count": len(points),
        "first": [*points[0]],
        "last": [*points[-1]],
        "low": [*low],
        "high": [*high],
        "log": spread(points),
        "points": _flat(thin_out(points, most - over if noisy else most)),
        "trend": _flat(trend(points, over)) if noisy else [],
    }


def _value(point: tuple[float, float]) -> float:
    return point[1]


def _flat(points: Points) -> list[list[float]]:
    return [[x, float(f"{y:.{_PLACES}g}")] for x, y in points]


def _clock(history: History, zero: float, most: int) -> list[list[float]]:
    ticks = [(step, round(time - zero, 3)) for step, time in history.clock]
    if len(ticks) < 2 or ticks[-1][1] <= ticks[0][1]:
        return []
    few = straighten(ticks, (ticks[-1][1] - ticks[0][1]) / _EXACT)
    return [[*tick] for tick in thin_out(few, most)]


def _nonfinite(history: History) -> dict[str, Any] | None:
    if not history.nonfinite:
        return None
    step, name = history.nonfinite[0]
    return {"step": step, "name": name, "count": len(history.nonfinite)}


def _best(outcome: Outcome, history: History, job: TrainingJob | None) -> dict[str, Any] | None:
    """The best checkpoint: the one that the run says is best, else the best by the rule of its job.
    ``place``: the step of the curves at which it was saved.
    """
    rule = ((job.get("checkpoints") if job is not None else None) or {}).get("best") or {}
    metric, mode = rule.get("metric"), rule.get("mode", "min")
    uri = outcome.seen.progress.best_checkpoint
    points = history.measured.get(str(metric), [])
    saved = next((s for s in reversed(history.saved) if s.uri and s.uri == uri), None)
    if saved is not None:
        best = {"step": saved.step, "metric": metric, "mode": mode, "value": saved.metrics.get(str(metric))}
        return {**best, "place": saved.place, "uri": saved.uri}
    if not points:
        return None
    step, value = (min if mode == "min" else max)(reversed(points), key=_value)
    return {"step": step, "metric": metric, "mode": mode, "value": value, "place": step, "uri": None}


# --- time

_MARKS = (
    (re.compile(r"evict|preempt|spot|interrupt", re.IGNORECASE), "eviction"),
    (re.compile(r"restart|resumed|backoff|movesagain", re.IGNORECASE), "restart"),
    (re.compile(r"^stop|suspend", re.IGNORECASE), "stop"),
)


def _timeline(
    outcome: Outcome,
    read: Readings,
    zero: float,
    now: float,
    window: tuple[float, float] | None,
    bounds: Bounds,
) -> dict[str, Any]:
    """``spans``: phases, one after another, from ``begin`` to ``end``; ``tries``: of rank 0; ``marks``:
    moments of a kind (save, eviction, restart, stop, failure), in order.
    """
    seen = outcome.seen
    spans = timeline(seen, now, window)
    begin = 0.0 if window is None else window[0] - zero
    edges = [begin]
    for _, seconds in spans:
        edges.append(edges[-1] + seconds)

    def place(time: float) -> float:
        """Not behind the end: what a member writes last may come a moment later than its end is dated."""
        at = time - zero
        return round(at if window is not None else min(at, edges[-1]), 3)

    marks: list[dict[str, Any]] = [
        {"at": place(saved.at), "kind": "save", "text": f"step {saved.step}"}
        for saved in read.history.saved
        if saved.at is not None
    ]
    marks += [
        {"at": place(event.time), "kind": kind, "text": f"{event.object}: {event.message}"[:300]}
        for event in read.events
        if event.time is not None and (kind := _mark_kind(event))
    ]
    marks.sort(key=lambda mark: mark["at"])
    return {
        "begin": round(begin, 3),
        "end": round(edges[-1], 3),
        "whole_step": window is not None,
        "spans": [
            {"name": name, "begin": round(from_, 3), "end": round(to, 3)}
            for (name, _), from_, to in zip(spans, edges, edges[1:], strict=False)
        ],
        "tries": [
            {
                "attempt": tried.attempt,
                "restart": tried.restart,
                "begin": round(tried.began - zero, 3),
                "end": round(tried.ended - zero, 3),
            }
            for tried in read.tries[-bounds.tries :]
        ],
        "tries_left_out": max(0, len(read.tries) - bounds.tries),
        "marks": marks[-bounds.marks :],
        "marks_left_out": max(0, len(marks) - bounds.marks),
    }


def _mark_kind(event: Event) -> str | None:
    kind = next((kind for pattern, kind in _MARKS if pattern.search(event.reason)), None)
    return kind or (
        "failure" if event.type == "Warning" and event.reason in ("Failed", "OOMKilled") else None
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
    on = phrases.current_phase(seen)
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


# --- members and checkpoints


def _members(outcome: Outcome, read: Readings, zero: float, bounds: Bounds) -> dict[str, Any]:
    """Failed and restarted members come first where there is no room for all. ``lines``: of those that failed
    first, and of rank 0.
    """
    seen = outcome.seen
    everyone = [*seen.members]
    if len(everyone) > bounds.members:
        everyone.sort(key=_calm)
    shown = everyone[: bounds.members]
    nodes = {pod.member: pod.node for pod in (seen.objects.pods if seen.objects else ()) if pod.node}
    failing = None if outcome.ok else phrases.first_failing(outcome)
    first = sorted(
        (m for m in shown if read.lines.get(m.name)), key=lambda m: (m != failing, m.rank != 0, _calm(m))
    )
    places = {m.name: n for n, m in enumerate(first[: bounds.quoted])}
    rows = []
    for member in shown:
        name, _, phase, code, restarts = phrases.member_row(member)
        # Error is Kubernetes' word for any exit code that is not 0.
        reason = member.reason if member.phase == "failed" and member.reason != "Error" else None
        # The first two are whom people look at.
        most = 0 if name not in places else bounds.lines if places[name] < 2 else min(10, bounds.lines)
        rows.append({
            "name": name,
            "group": member.group,
            "rank": member.rank,
            "node": nodes.get(name),
            "phase": phase,
            "why": reason,
            "exit_code": None if code == "-" else int(code),
            "restarts": int(restarts),
            "started": None if member.started is None else round(member.started - zero, 3),
            "ended": None if member.ended is None else round(member.ended - zero, 3),
            "log": member.log,
            "lines": [*read.lines[name][-most:]] if most else [],
            "earlier": [
                {"attempt": of.attempt, "restart": of.restart, "lines": [*of.lines[-bounds.lines :]]}
                for of in [*read.earlier.get(name, ())][: bounds.earlier]
            ],
            "order": places.get(name),
        })  # fmt: skip
    return {"members": rows, "members_left_out": len(seen.members) - len(rows)}


def _calm(member: MemberSeen) -> tuple[bool, int]:
    return member.phase != "failed" and not member.restarts, member.rank


def _checkpoints(outcome: Outcome, history: History, zero: float, bounds: Bounds) -> dict[str, Any]:
    """Newest first. Without rank 0's lines the observation may still name the newest and the best."""
    progress = outcome.seen.progress
    rows = [
        {
            "step": saved.step,
            "at": None if saved.at is None else round(saved.at - zero, 3),
            "uri": saved.uri,
            "size": saved.size,
            "metrics": dict([*saved.metrics.items()][: bounds.metrics]),
            "best": bool(saved.uri) and saved.uri == progress.best_checkpoint,
        }
        for saved in reversed(history.saved[-bounds.checkpoints :])
    ]
    return {
        "checkpoints": rows,
        "checkpoints_left_out": len(history.saved) - len(rows),
        "checkpoint": progress.checkpoint,
        "best_checkpoint": progress.best_checkpoint,
    }


def _job(job: TrainingJob | None) -> Any:
    """The job without its secrets; None for one that is too long."""
    if job is None:
        return None
    spec = redact_job(job.as_mapping())
    return spec if len(json.dumps(spec, ensure_ascii=False, default=str)) <= _LONGEST_JOB else None


def seconds_of(clock: Iterable[Sequence[float]], step: float) -> float | None:
    """The time at which a step was reported, in seconds since zero; None outside of the clock of a page."""
    ticks = [(tick[0], tick[1]) for tick in clock]
    if not ticks or not ticks[0][0] <= step <= ticks[-1][0]:
        return None
    return at(ticks, step)
