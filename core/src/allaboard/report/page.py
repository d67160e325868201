"""The page of a run. A value of `page_data` in, text out.

As a file it fetches nothing: Kubeflow shows it in a frame without an origin of its own, so styles, pictures
and the little script are in the page. It is readable on a telephone, in dark mode, printed, in an archive,
and where no script may run. In a frame of Airflow the same drawing lives: `run_content` is asked for again,
and the script of the frame (live.js) changes what is different. The page stays small, because the value is.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from allaboard.report import phrases
from allaboard.report.chart import Axis, Line, Mark, chart, number, steps_axis, ticks, time_axis
from allaboard.report.curves import at
from allaboard.report.html import NONE, definitions, escape, head, page, prose, section, table
from allaboard.report.page_data import is_loss
from allaboard.report.tracking import is_plain_url
from allaboard.runs.points import thin_out
from allaboard.text.units import counted, rfc3339, show_bytes, show_seconds

Data = Mapping[str, Any]

TONES = {
    "succeeded": "good", "failed": "bad", "timed_out": "bad", "lost": "bad",
    "queued": "warning", "suspended": "warning", "restarting": "warning",
}  # fmt: skip
_SPEED = phrases.SPEED.replace("_", " ")
_ROWS = 2400
"""Rows of the tables behind all curves together."""
_MOST_ROWS = 60
_TILES = 6
_MOST_DOTS = 60
_METRIC_COLUMNS = 5
_SHOWN = 10
"""Checkpoints that are seen at once."""


def run_page(data: Data) -> str:
    """The page of a run, ended or not: its state, phases, curves, members, checkpoints and events, and why it
    waits or failed. ``data``: of `page_data`.
    """
    title, parts = _drawn(data, head_of(data, data["headline"]), _ROWS)
    return page(title, parts, {"allaboard-run": data["run"]}, script=bool(data["curves"]))


def run_content(data: Data, *, live: bool = False, note: str | None = None) -> tuple[str, str]:
    """The title and the HTML of the same for a frame that is drawn again and again: without what only a file
    needs, the tables behind curves and the time of the look. ``live``: it is read where it runs, and goes on;
    ``note``: a word of warning about the whole.
    """
    lead = data["headline"].partition(", when it was looked at: ")[0]
    warning = f'<p class="fine warning">{escape(note)}</p>' if note else ""
    title, parts = _drawn(data, head_of(data, lead, live=live) + warning, 0)
    return title, "\n".join(part for part in parts if part)


def head_of(data: Data, lead: str, *, live: bool = False) -> str:
    title, tone = data["job"] or data["run"], TONES.get(data["state"], "calm")
    return head(f"{data['kind']} run", title, _state_word(data), tone, lead, live=live)


def _drawn(data: Data, top: str, rows: int) -> tuple[str, list[str]]:
    """The title and the parts. ``rows``: of the tables behind all curves together."""
    message = data["message"] if data["message"].strip() not in data["headline"] else ""
    parts = [
        top,
        f'<pre class="lead">{escape(message)}</pre>' if message else "",
        _progress(data),
        _tiles(data),
        _tracked(data),
        _reasons(data),
        _since_last_good(data),
        _curves(data, rows),
        _timeline(data),
        _members(data),
        _last_lines(data),
        _checkpoints(data),
        _events(data),
        _facts(data),
        _job(data),
    ]
    return f"{data['job'] or data['run']}: {_state_word(data)}", parts


def _state_word(data: Data) -> str:
    return str(data["state"]).replace("_", " ")


def _moment(data: Data, seconds: float | None) -> str | None:
    return None if seconds is None else rfc3339(data["zero"] + seconds)


# --- the parts -------------------------------------------------------------------------------------------


def _progress(data: Data) -> str:
    share = data["progress"]["share"]
    if share is None or data["is_final"]:
        return ""
    done = 100 * min(1.0, share)
    return (
        f'<div class="progress" role="progressbar" aria-label="steps done" aria-valuemin="0" '
        f'aria-valuemax="100" aria-valuenow="{done:.0f}"><i style="width:{done:.4g}%"></i></div>'
    )


def _tiles(data: Data) -> str:
    progress = data["progress"]
    tiles = [(m["name"], phrases.number(m["value"])) for m in data["metrics"][:_TILES]]
    if progress["step"] is not None:
        total, share = progress["total"], progress["share"]
        done = f" ({share:.0%})" if share is not None and share >= 0.01 and not data["is_final"] else ""
        tiles.append(("steps", f"{progress['step']}/{total}{done}" if total else str(progress["step"])))
    if progress["seconds_left"]:
        tiles.append(("left, at this speed", show_seconds(progress["seconds_left"])))
    tiles.append(("took" if data["is_final"] else "so far", show_seconds(data["seconds"])))
    if progress["steps_per_second"]:
        tiles.append(("steps per second", f"{progress['steps_per_second']:.3g}"))
    if data["goodput"]:
        of = "of the time" if data["goodput"]["by"] == "time" else "of the steps"
        tiles.append((f"goodput, {of}", f"{data['goodput']['share']:.0%}"))
    tiles.append(("members", data["members_phrase"] or NONE))
    if data["restarts"] or data["attempt"] > 1:
        attempt = f", attempt {data['attempt']}" if data["attempt"] > 1 else ""
        tiles.append(("restarts", f"{data['restarts']}{attempt}"))
    if progress["lost_steps"]:
        tiles.append(("steps done twice", str(progress["lost_steps"])))
    cells = "".join(f"<div><dt>{escape(name)}</dt><dd>{escape(value)}</dd></div>" for name, value in tiles)
    return f'<dl class="tiles">{cells}</dl>'


def _tracked(data: Data) -> str:
    """Links to the pages of the run elsewhere, which its script printed."""
    links = [
        f'{escape(tracker)}: <a href="{escape(url)}" target="_blank" rel="noopener noreferrer">'
        f"{escape(url)}</a>"
        for tracker, url in (data.get("tracked") or {}).items()
        if is_plain_url(url)
    ]
    return f'<p class="fine">Its script tracks this run, too. {" · ".join(links)}</p>' if links else ""


def _reasons(data: Data) -> str:
    ended_badly = data["is_final"] and not data["ok"]
    parts = []
    if data["held_by"] and data["held_by"] not in [d["summary"] for d in data["diagnoses"]]:
        parts.append(f'<div class="reason warning"><h3>{escape(data["held_by"])}</h3></div>')
    for n, diagnosis in enumerate(data["diagnoses"]):
        tone, fix = "bad" if n == 0 and ended_badly else "warning", diagnosis["fix"]
        summary = diagnosis["summary"]
        quotes = "".join(
            f"<li><code>{escape(e['object'])} {escape(e['field'])}</code> <q>{escape(e['text'])}</q></li>"
            for e in diagnosis["evidence"]
            if e["text"] != summary
        )
        heading = "" if summary in data["headline"] else f"<h3>{escape(summary)}</h3>"
        parts.append(
            f'<div class="reason {tone}">{heading}'
            + (f"<ul>{quotes}</ul>" if quotes else "")
            + f"<p>{prose(fix[:1].upper() + fix[1:])}. "
            + f'<span class="code">{escape(diagnosis["code"])}</span></p></div>'
        )
    if not parts:
        return ""
    title = "What to look at"
    if ended_badly:
        title = "What went wrong"
    elif data["held_by"]:
        title = "Why it waits"
    return section(title, "".join(parts) + _left_out(data["diagnoses_left_out"], "more finding"))


def _since_last_good(data: Data) -> str:
    since = data["since_last_good"]
    if since is None:
        return ""
    when = f", which ended {_moment(data, since['finished'])}" if since["finished"] is not None else ""
    changes = "".join(f"<li>{escape(change)}</li>" for change in since["changes"])
    lines = escape("\n".join(f"{line['member']}: {line['text']}" for line in since["lines"]))
    nothing = "" if changes or lines else "<p>Nothing is different.</p>"
    return section(
        "Since the last good run",
        f'<p class="fine">{escape(since["run"] + when)}.</p>{nothing}'
        + (f"<ul>{changes}</ul>" if changes else "")
        + (f'<p class="fine">Lines that it did not write:</p><pre>{lines}</pre>' if lines else ""),
    )


# --- curves


def _curves(data: Data, most: int) -> str:
    curves = data["curves"]
    if not curves:
        text = (
            "This run reported no numbers. "
            "<code>allaboard.inside.report(step=, total=, loss=)</code> in the script draws its curve here."
        )
        may_come = data["metrics"] or not data["is_final"]
        return "" if may_come else section("Curves", f'<p class="fine">{text}</p>')
    first = [curve for curve in curves if is_loss(curve["name"])][:_TILES]
    names = curve_names((c["kind"], c["name"]) for c in curves)
    losses = [Drawn(names[c["kind"], c["name"]], c, data, n) for n, c in enumerate(first)]
    others = [
        Drawn(names[c["kind"], c["name"]], c, data) for c in curves if not any(c is loss for loss in first)
    ]
    axes = axes_of([data])
    rows = max(6, min(_MOST_ROWS, most // len(curves))) if most else 0
    big = _figure("Loss", losses, axes, rows, wide=True) if losses else ""
    small = "".join(_figure(d.name.replace("_", " "), [d], axes, rows, wide=False) for d in others)
    return section(
        "Curves",
        chosen_axis(
            len(axes) > 1,
            big + _nonfinite(data) + (f'<div class="pair">{small}</div>' if small else ""),
        )
        + _curve_notes(data, len(axes) > 1),
    )


def curve_names(curves: Iterable[tuple[str, str]]) -> dict[tuple[str, str], str]:
    """(kind, name) -> what the curve is called in pictures: its name, and where its numbers are from if both
    the progress and the checkpoints tell one of that name.
    """
    all_of_them = {*curves}
    return {
        (kind, name): f"{name}, in checkpoints"
        if kind == "checkpoint" and ("progress", name) in all_of_them
        else name
        for kind, name in all_of_them
    }


def axes_of(runs: Sequence[Data]) -> list[Axis]:
    """The axis of steps, and that of time where the times of all runs are known."""
    ends = [end for d in runs for curve in d["curves"] for end in (curve["first"][0], curve["last"][0])]
    axes, clocks = [steps_axis(min(ends), max(ends))], [d["clock"] for d in runs if d["curves"]]
    if not all(clocks):
        return axes
    return [*axes, time_axis(min(c[0][1] for c in clocks), max(c[-1][1] for c in clocks))]


def chosen_axis(both: bool, charts: str) -> str:
    """Charts over steps or over time, as the reader chooses; no script is needed for that."""
    if not both:
        return f'<p class="tools"></p><div class="charts">{charts}</div>'
    choices = (
        '<input type="radio" name="axis" id="over-steps" checked>'
        '<input type="radio" name="axis" id="over-time">'
        '<p class="tools"><span class="choice"><label for="over-steps">Steps</label>'
        '<label for="over-time">Time</label></span></p>'
    )
    return f'{choices}<div class="charts">{charts}</div>'


@dataclass(frozen=True, slots=True)
class Drawn:
    """A curve of a run, and what it is called in a picture. ``is_plain``: drawn without its noise where it
    has a trend.
    """

    name: str
    curve: Data
    data: Data
    colour: int = 0
    is_plain: bool = False


def _figure(title: str, shown: Sequence[Drawn], axes: Sequence[Axis], rows: int, *, wide: bool) -> str:
    """The figure of a run: with where it resumed, and its best checkpoint."""
    data = shown[0].data
    best = data["best"]
    starred = bool(best) and best["value"] is not None and any(_is_of(d, best) for d in shown)
    note = ""
    if starred:
        note = f'<span class="key-best">★ best {number(best["value"])} at step {best["step"]}</span>'
    return figure(title, shown, axes, rows, wide=wide, note=note, about=data, starred=starred)


def figure(
    title: str,
    shown: Sequence[Drawn],
    axes: Sequence[Axis],
    rows: int,
    *,
    wide: bool,
    note: str = "",
    about: Data | None = None,
    starred: bool = False,
) -> str:
    """Curves in one picture for each axis, and the tables behind them, of ``rows`` rows. ``note``: HTML of
    the caption; ``about``: the run whose marks are drawn.
    """
    pictures = "".join(
        f'<div class="by-{axis.key}">{_picture(title, shown, axis, about, starred, wide)}</div>'
        for axis in axes
    )
    keys = "".join(_key(drawn, len(shown) > 1 or about is None, short=not wide) for drawn in shown)
    behind = "".join(_table_behind(drawn, rows, named=len(shown) > 1) for drawn in shown) if rows else ""
    if about is None and len(shown) > 1:
        behind = f'<details class="data"><summary>as tables</summary>{behind}</details>'
    caption = f"<figcaption><b>{escape(title)}</b>{keys}{note}</figcaption>"
    kind = "big" if wide else "small several" if len(shown) > 1 else "small"
    tables = f'<div class="tables">{behind}</div>' if behind else ""
    return f'<figure class="{kind}" data-part="{escape(title)}">{caption}{pictures}{tables}</figure>'


def _picture(
    title: str, shown: Sequence[Drawn], axis: Axis, about: Data | None, starred: bool, wide: bool
) -> str:
    timed = axis.key == "time"
    lines = []
    for drawn in shown:
        curve, place = drawn.curve, _place_of(drawn.data, timed)
        points, over = curve["points"], curve["trend"]
        if drawn.is_plain and over:
            points, over = over, []
        lines.append(
            Line(
                drawn.name,
                _placed(points, place),
                _placed(over, place),
                dots=curve["kind"] == "checkpoint" and len(points) <= _MOST_DOTS,
                breaks=[
                    x
                    for cut in [*(drawn.data["breaks"] if timed else ()), *drawn.data.get("curve_gaps", ())]
                    if (x := place(cut)) is not None
                ],
                colour=drawn.colour,
            )
        )
    if about is None:
        return chart(title, lines, axis, wide=wide)
    best = about["best"]
    marks = [
        Mark(x, f"resumed from step {again['step']}")
        for again in about["resumed"]
        if (x := again["at" if timed else "step"]) is not None
    ]
    at_step = None if best is None else best.get("place", best["step"])
    x = None if at_step is None else _place_of(about, timed)(at_step)
    if best is not None and x is not None:
        marks.append(Mark(x, f"best checkpoint, step {best['step']}", best=True))
    star = (x, float(best["value"])) if starred and best is not None and x is not None else None
    return chart(title, lines, axis, marks=marks, best=star, wide=wide)


def _place_of(data: Data, timed: bool) -> Callable[[float], float | None]:
    return _placer([(tick[0], tick[1]) for tick in data["clock"]]) if timed else float


def _is_of(drawn: Drawn, best: Data) -> bool:
    """True for the curve of the metric by which a checkpoint is the best; that of checkpoints goes first."""
    kinds = {curve["kind"] for curve in drawn.data["curves"] if curve["name"] == best["metric"]}
    kind = "checkpoint" if "checkpoint" in kinds else "progress"
    return bool(drawn.curve["name"] == best["metric"] and drawn.curve["kind"] == kind)


def _key(drawn: Drawn, coloured: bool, *, short: bool) -> str:
    """The meaning of a colour, and the last value. ``short``: the value alone; the colour is explained
    before.
    """
    value = f'<span class="value">{number(drawn.curve["last"][1])}</span>'
    if not coloured:
        return value
    name = "" if short else escape(drawn.name) + " "
    return f'<span class="key s{drawn.colour % 6}" title="{escape(drawn.name)}">{name}{value}</span>'


def _placer(clock: list[tuple[float, float]]) -> Callable[[float], float | None]:
    def place(step: float) -> float | None:
        return at(clock, step) if clock[0][0] <= step <= clock[-1][0] else None

    return place


def _placed(
    points: Iterable[Sequence[float]], place: Callable[[float], float | None]
) -> list[tuple[float, float]]:
    return [(x, y) for step, y in points if (x := place(step)) is not None]


def _table_behind(drawn: Drawn, most: int, *, named: bool) -> str:
    """The curve in numbers."""
    curve, clock = drawn.curve, drawn.data["clock"]
    place = _place_of(drawn.data, True) if clock else None
    shown = thin_out([(point[0], point[1]) for point in curve["points"]], most)
    rows = []
    for step, value in shown:
        moment = place(step) if place is not None else None
        time = [show_seconds(moment) if moment is not None else NONE] if place is not None else []
        rows.append([f"{step:,.0f}", *time, f"{value:.6g}"])
    heads = ["step", *(["after"] if place is not None else []), curve["name"]]
    whole = (
        f"{curve['count']:,} points"
        if len(shown) == curve["count"]
        else (f"{len(shown)} of {curve['count']:,} points, the extremes among them")
    )
    low, high = curve["low"], curve["high"]
    facts = f"lowest {low[1]:.6g} at step {low[0]}, highest {high[1]:.6g} at step {high[0]}"
    return (
        f'<details class="data"><summary>{escape(drawn.name + " ") if named else ""}as a table</summary>'
        f'<p class="fine">{whole}; {facts}.</p>{table(heads, rows, "figures")}</details>'
    )


def _nonfinite(data: Data) -> str:
    odd = data["nonfinite"]
    if odd is None:
        return ""
    more = f" and {odd['count'] - 1} more times." if odd["count"] > 1 else "."
    text = f"{odd['name']} was not a finite number at step {odd['step']}{more}"
    return f'<p class="warning">{escape(text)}</p>'


def _curve_notes(data: Data, timed: bool) -> str:
    notes = []
    if any(curve["count"] > len(curve["points"]) for curve in data["curves"]):
        notes.append(
            "Of long curves some points are drawn, the lowest and the highest of neighbours among them; the "
            "line on top is the mean of neighbours."
        )
    if not timed:
        notes.append(
            "When each step was reported is not known here, or not closely enough for curves over time."
        )
    if files := [*dict.fromkeys(data.get("curve_files", {}).values())]:
        more = f" and {len(files) - 3} more" if len(files) > 3 else ""
        notes.append(f"Curves that the output does not tell are from {', '.join(files[:3])}{more}.")
    if data["curves_left_out_count"]:
        count, named = data["curves_left_out_count"], data["curves_left_out"]
        rest = f" and {count - len(named)} others" if count > len(named) else ""
        notes.append(f"Not drawn are {count} more: {', '.join(named)}{rest}.")
    return f'<p class="fine">{escape(" ".join(notes))}</p>' if notes else ""


# --- time

_COLOURS = {
    "admitted": "s5",
    "scheduled": "s3",
    "image": "s1",
    "rendezvous": "s4",
    "first step": "s2",
    "training": "s0",
}
_KINDS = (
    ("save", "saves"), ("restart", "restarts"), ("eviction", "evictions"), ("failure", "failures"),
    ("stop", "stops"),
)  # fmt: skip


def _timeline(data: Data) -> str:
    """Phases, tries one after another, and marks, on one scale of time."""
    timeline = data["timeline"]
    begin, end, spans = float(timeline["begin"]), float(timeline["end"]), timeline["spans"]
    if end <= begin:
        return ""

    def left(moment: float) -> float:
        return 100 * min(1.0, max(0.0, (moment - begin) / (end - begin)))

    def bar(from_: float, to: float, colour: str, title: str) -> str:
        place = f"left:{left(from_):.4g}%;width:{max(0.15, left(to) - left(from_)):.4g}%"
        words_of_it = escape(f"{title} {show_seconds(to - from_)}")
        return f'<i class="{colour}" style="{place}" title="{words_of_it}"></i>'

    phases = [bar(s["begin"], s["end"], _COLOURS.get(s["name"], "rest"), s["name"]) for s in spans]
    lanes = [_lane("phases", "".join(phases))]
    for tried in timeline["tries"] if len(timeline["tries"]) > 1 else ():
        name = f"attempt {tried['attempt']}" + (f" ↻ {tried['restart']}" if tried["restart"] else "")
        took = show_seconds(tried["end"] - tried["begin"])
        lanes.append(_lane(name, bar(tried["begin"], tried["end"], "try", name), took))
    for kind, plural in _KINDS:
        marks = [mark for mark in timeline["marks"] if mark["kind"] == kind and begin <= mark["at"] <= end]
        body = "".join(
            f'<b class="{kind}" style="left:{left(m["at"]):.4g}%" '
            f'title="{escape(show_seconds(m["at"]) + " " + m["text"])}"></b>'
            for m in marks
        )
        lanes += [_lane(plural, body, str(len(marks)))] if marks else []
    axis = time_axis(begin, end, "since creation" if data["created"] is not None else "since its start")
    scale = "".join(
        f'<i style="left:{left(value * axis.per):.4g}%">{number(value)}</i>'
        for value in ticks(begin / axis.per, end / axis.per, 6)
    )
    lanes.append(f'<div class="lane scale"><span></span><div>{scale}</div><span></span></div>')
    took_of: dict[str, float] = {}
    for span in spans:
        took_of[span["name"]] = took_of.get(span["name"], 0.0) + span["end"] - span["begin"]
    legend = "".join(
        f'<span class="key {_COLOURS.get(name, "rest")}">{escape(name)} {show_seconds(seconds)}</span>'
        for name, seconds in took_of.items()
        if seconds >= 0.05
    )
    since = "" if timeline["whole_step"] else ", from when it was created"
    return section(
        "Where the time went",
        f'<p class="keys">{legend}</p><div class="lanes">{"".join(lanes)}</div>'
        f'<p class="fine">{show_seconds(end - begin)} in all{since}; in {axis.unit}. {_goodput(data)}</p>'
        + _left_out(timeline["tries_left_out"], "earlier try", "earlier tries")
        + _left_out(timeline["marks_left_out"], "earlier mark")
        + _marks_table(data),
    )


def _lane(name: str, body: str, count: str = "") -> str:
    return f'<div class="lane"><span>{escape(name)}</span><div>{body}</div><span>{escape(count)}</span></div>'


def _goodput(data: Data) -> str:
    good = data["goodput"]
    if good is None:
        return ""
    if good["by"] == "time":
        useful, whole = show_seconds(good["useful"]), show_seconds(good["of"])
        text = f"{useful} of {whole} passed between reported steps that no restart undid."
        return f"Goodput {good['share']:.0%}: {text}"
    return f"Goodput {good['share']:.0%}: {good['useful']:,} of {good['of']:,} steps were not done again."


def _marks_table(data: Data) -> str:
    marks = data["timeline"]["marks"]
    if not marks:
        return ""
    rows = [[show_seconds(m["at"]), escape(m["kind"]), escape(m["text"])] for m in marks]
    body = table(("after", "mark", "what happened"), rows)
    return f'<details class="data"><summary>marks as a table</summary>{body}</details>'


# --- members, checkpoints, events, facts


def _members(data: Data) -> str:
    members = data["members"]
    if not members:
        return ""
    on_nodes = any(member["node"] for member in members)
    rows = []
    for m in members:
        tone = {"succeeded": "good", "failed": "bad"}.get(m["phase"], "calm")
        reason = f" ({m['why']})" if m["why"] else ""
        rows.append([
            escape(m["name"]),
            str(m["rank"]),
            *([escape(m["node"] or NONE)] if on_nodes else []),
            f'<span class="{tone}">{escape(m["phase"] + reason)}</span>',
            "-" if m["exit_code"] is None else str(m["exit_code"]),
            str(m["restarts"]),
            f"<code>{escape(m['log'])}</code>" if m["log"] else NONE,
        ])  # fmt: skip
    heads = ("member", "rank", *(["node"] if on_nodes else []), "phase", "exit code", "restarts", "log")
    return section("Members", table(heads, rows) + _left_out(data["members_left_out"], "calmer member"))


def _last_lines(data: Data) -> str:
    quoted = sorted((m for m in data["members"] if m["lines"]), key=lambda m: int(m["order"]))
    parts = []
    for n, m in enumerate(quoted):
        whole = f'<p class="fine">All of them: <code>{escape(m["log"])}</code></p>' if m["log"] else ""
        parts.append(_lines_of(m["name"], m["lines"], whole, is_open=n < 2))
    for m in data["members"]:
        for of in m["earlier"]:
            name = f"{m['name']}, attempt {of['attempt']}, restart {of['restart']}"
            parts.append(_lines_of(name, of["lines"]))
    return section("The last lines", "".join(parts)) if parts else ""


def _lines_of(name: str, lines: Sequence[str], more: str = "", *, is_open: bool = False) -> str:
    begin = f'<details class="lines" data-part="{escape(name)}"{" open" * is_open}>'
    text = escape("\n".join(lines))
    return f"{begin}<summary>{escape(name)}</summary><pre>{text}</pre>{more}</details>"


def _checkpoints(data: Data) -> str:
    saved, best = data["checkpoints"], data["best_checkpoint"]
    if not saved:
        latest = data["checkpoint"]
        facts = [("latest", latest), ("best", best if best != latest else None)]
        named = [(name, uri) for name, uri in facts if uri]
        return section("Checkpoints", definitions(named)) if named else ""
    timed, sized = any(s["at"] is not None for s in saved), any(s["size"] is not None for s in saved)
    names = [*dict.fromkeys(name for s in saved for name in s["metrics"])]
    apart = len(names) <= _METRIC_COLUMNS
    rows = [
        [
            f"{s['step']}" + (" ★" if s["best"] else ""),
            *([show_seconds(s["at"]) if s["at"] is not None else NONE] if timed else []),
            *(
                [
                    escape(phrases.number(s["metrics"][name]) if name in s["metrics"] else NONE)
                    for name in names
                ]
                if apart
                else [f'<span class="long">{escape(phrases.metrics(s["metrics"]) or NONE)}</span>']
            ),
            *([show_bytes(s["size"]) if s["size"] is not None else NONE] if sized else []),
            f"<code>{escape(s['uri'])}</code>",
        ]
        for s in saved
    ]
    heads = (
        "step",
        *(["after"] if timed else []),
        *(names if apart else ["metrics"]),
        *(["size"] if sized else []),
        "place",
    )
    starred = "★ the best. " if any(s["best"] for s in saved) else ""
    note = f'<p class="fine">{starred}Retention may have removed older ones since.</p>'
    more = _left_out(data["checkpoints_left_out"], "older checkpoint")
    shown = [n for n, s in enumerate(saved) if n < _SHOWN or s["best"] or len(saved) < _SHOWN + 5]
    rest = [row for n, row in enumerate(rows) if n not in {*shown}]
    older = ""
    if rest:
        summary = f"<summary>{counted(len(rest), 'older one')}</summary>"
        older = f'<details class="data">{summary}{table(heads, rest)}</details>'
    return section("Checkpoints", table(heads, [rows[n] for n in shown]) + older + note + more)


def _events(data: Data) -> str:
    if not data["events"]:
        return ""
    rows = [
        (
            f"<time>{escape(_moment(data, event['at']) or NONE)}</time>",
            f'<span class="{_event_tone(event)}">{escape(event["reason"])}</span>',
            f'<span class="name">{escape(event["object"])}</span>',
            escape(event["message"]),
        )
        for event in data["events"]
    ]
    body = table(("time", "event", "object", "what happened"), rows)
    return section("Events", body + _left_out(data["events_left_out"], "earlier event"))


def _event_tone(event: Data) -> str:
    return "warning" if event["type"] == "Warning" else "calm"


def _left_out(count: int, noun: str, plural: str | None = None) -> str:
    words_of_it = f"{count:,} {plural}" if plural and count != 1 else counted(count, noun)
    return f'<p class="fine">{words_of_it} left out here.</p>' if count > 0 else ""


def _facts(data: Data) -> str:
    stop = data["stop"]
    facts: list[tuple[str, Any]] = [
        ("run", data["run"]),
        ("job", data["job"]),
        ("key", data["key"]),
        ("attempt", data["attempt"]),
        ("generation", data["generation"] if data["generation"] > 1 else None),
        ("created", _moment(data, data["created"])),
        ("started", _moment(data, data["started"])),
        ("finished", _moment(data, data["finished"])),
        ("looked at", _moment(data, data["looked_at"])),
        ("stopped", f"by {stop['by']} at {_moment(data, stop['at'])}: {stop['reason']}" if stop else None),
        ("followed by", data["owner"]),
        ("conditions", " → ".join(data["conditions"])),
        ("flags", ", ".join(data["flags"])),
        ("spec", data["spec_hash"]),
    ]
    facts += [(m["name"], phrases.number(m["value"])) for m in data["metrics"][_TILES:]]
    notes = "".join(f"<li>{prose(note)}</li>" for note in data["notes"])
    return section(
        "Facts",
        definitions((k, v) for k, v in facts if v not in (None, ""))
        + _left_out(data["metrics_left_out"], "more metric")
        + (f"<ul>{notes}</ul>" if notes else ""),
    )


def _job(data: Data) -> str:
    if data["job_spec"] is None:
        return ""
    text = escape(json.dumps(data["job_spec"], indent=2, ensure_ascii=False))
    return f"<details><summary>The job as it was run</summary><pre>{text}</pre></details>"
