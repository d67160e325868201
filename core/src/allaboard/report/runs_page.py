"""Pages about several runs: their curves together, and a job's runs one after another. Values of `page_data`
in, text out.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from allaboard.job.identity import differences
from allaboard.report import phrases
from allaboard.report.chart import Axis, Line, chart, number, time_axis
from allaboard.report.html import NONE, escape, head, page, section, table
from allaboard.report.page import TONES, Data, Drawn, axes_of, chosen_axis, curve_names, figure
from allaboard.report.page_data import is_loss
from allaboard.text.units import counted, rfc3339, show_seconds

MOST_COMPARED = 6
"""Runs of one comparison: as many as there are colours."""
MOST_RUNS = 200
_MOST_METRICS = 24
_COLUMNS = 4
_MOST_CHANGES = 20
_ROWS = 1200


def compare_page(runs: Sequence[Data]) -> str:
    """The curves of up to `MOST_COMPARED` runs together, a colour for each, and how their jobs differ from
    the first one's.
    """
    names = [*dict.fromkeys((curve["kind"], curve["name"]) for data in runs for curve in data["curves"])]
    names.sort(key=lambda name: not is_loss(name[1]))
    parts = [
        head("comparison", " and ".join(dict.fromkeys(d["job"] or d["run"] for d in runs)), "", "calm",
             counted(len(runs), "run")),
        section("Runs", _runs_table(runs)),
        _changes(runs),
        section("Curves", _curves(runs, names)) if names else "",
    ]  # fmt: skip
    return page("comparison of " + ", ".join(d["run"] for d in runs), parts, script=bool(names))


def _runs_table(runs: Sequence[Data]) -> str:
    metrics = [*dict.fromkeys(m["name"] for data in runs for m in data["metrics"])][:_COLUMNS]
    rows = [
        [
            f'<span class="key s{n}">{escape(data["run"])}</span>',
            _state(data),
            *_cells(data, metrics),
            escape(str(data["progress"]["step"] if data["progress"]["step"] is not None else NONE)),
            show_seconds(data["seconds"]),
            _goodput(data),
        ]
        for n, data in enumerate(runs)
    ]
    return table(("run", "state", *metrics, "steps", "took", "goodput"), rows)


def _state(data: Data) -> str:
    word = escape(str(data["state"]).replace("_", " "))
    return f'<span class="{TONES.get(data["state"], "calm")}">{word}</span>'


def _cells(data: Data, metrics: Sequence[str]) -> list[str]:
    known = {m["name"]: m["value"] for m in data["metrics"]}
    return [escape(phrases.number(known[name])) if name in known else NONE for name in metrics]


def _goodput(data: Data) -> str:
    good = data["goodput"]
    return (
        NONE if good is None else f"{good['share']:.0%} of the {'time' if good['by'] == 'time' else 'steps'}"
    )


def _changes(runs: Sequence[Data]) -> str:
    first, parts = runs[0], []
    for data in runs[1:]:
        if first["job_spec"] is None or data["job_spec"] is None:
            continue
        changes = differences(first["job_spec"], data["job_spec"])
        rest = len(changes) - _MOST_CHANGES
        items = [*changes[:_MOST_CHANGES], *([f"and {counted(rest, 'more change')}"] if rest > 0 else [])]
        body = "".join(f"<li>{escape(change)}</li>" for change in items) or "<li>nothing is different</li>"
        parts.append(f"<h3>{escape(data['run'])}</h3><ul>{body}</ul>")
    return section(f"What differs from {first['run']}", "".join(parts)) if parts else ""


def _curves(runs: Sequence[Data], names: Sequence[tuple[str, str]]) -> str:
    axes, rows = axes_of(runs), max(6, min(60, _ROWS // (len(names) * len(runs))))
    figures: dict[bool, list[str]] = {True: [], False: []}
    titles = curve_names(names)
    for kind, name in names:
        shown = [
            Drawn(data["run"], curve, data, n, is_plain=True)
            for n, data in enumerate(runs)
            for curve in data["curves"]
            if (curve["kind"], curve["name"]) == (kind, name)
        ]
        wide = is_loss(name) and len(figures[True]) < 2
        title = titles[kind, name].replace("_", " ")
        figures[wide].append(figure(title, shown, axes, rows, wide=wide))
    small = f'<div class="pair">{"".join(figures[False])}</div>' if figures[False] else ""
    text = "Of long curves the mean of neighbours is drawn; the page of a run has every extreme."
    note = f'<p class="fine">{text}</p>'
    return chosen_axis(len(axes) > 1, "".join(figures[True]) + small) + note


def history_page(name: str, runs: Sequence[Data], champions: Mapping[str, int] | None = None) -> str:
    """The runs of a job, oldest first: a metric, the time and the goodput of each. ``champions``: numbers of
    promotions, by run; None: they are not known.
    """
    shown = [*runs][-MOST_RUNS:]
    metrics = [*dict.fromkeys(m["name"] for data in shown for m in data["metrics"])]
    ended = sum(data["ok"] for data in shown)
    parts = [
        head("history", name, "", "calm", f"{counted(len(shown), 'run')}, of which {ended} succeeded"),
        section("From run to run", _trends(shown, metrics, champions or {})),
        section("Runs", _history_table(shown, metrics[:_COLUMNS], champions)),
        f'<p class="fine">{counted(len(runs) - len(shown), "earlier run")} left out here.</p>'
        if len(runs) > len(shown)
        else "",
    ]
    return page(f"history of {name}", parts, script=bool(shown))


def _trends(runs: Sequence[Data], metrics: Sequence[str], champions: Mapping[str, int]) -> str:
    axis = Axis("run", "run, oldest first", 1.0, float(max(2, len(runs))))
    series: list[tuple[str, list[tuple[float, float]]]] = []
    for name in metrics[:_MOST_METRICS]:
        trends = [
            (float(n), float(m["value"]))
            for n, d in enumerate(runs, 1)
            for m in d["metrics"]
            if m["name"] == name
        ]
        series.append((name, trends))
    seconds = [(float(n), d["seconds"]) for n, d in enumerate(runs, 1) if d["seconds"] is not None]
    clock = time_axis(0.0, max((value for _, value in seconds), default=0.0))
    took = [(n, value / clock.per) for n, value in seconds]
    good = [(float(n), 100 * d["goodput"]["share"]) for n, d in enumerate(runs, 1) if d["goodput"]]
    series += [(f"took, {clock.unit.split()[0]}", took), ("goodput, %", good)]
    latest = max(
        ((champions[d["run"]], n) for n, d in enumerate(runs, 1) if d["run"] in champions), default=None
    )
    pictures = []
    for name, points in series:
        star = next((p for p in points if latest is not None and p[0] == latest[1]), None)
        picture = chart(name, [Line(name, points, dots=True)], axis, best=star, wide=False)
        last = f'<span class="value">{number(points[-1][1])}</span>' if points else ""
        if picture:
            title = escape(name.replace("_", " "))
            pictures.append(
                f'<figure class="small"><figcaption><b>{title}</b>{last}</figcaption>{picture}</figure>'
            )
    rest = len(metrics) - _MOST_METRICS
    more = f'<p class="fine">{counted(rest, "more metric")} left out here.</p>' if rest > 0 else ""
    return f'<p class="tools"></p><div class="pair">{"".join(pictures)}</div>{more}'


def _history_table(runs: Sequence[Data], metrics: Sequence[str], champions: Mapping[str, int] | None) -> str:
    numbers = champions or {}
    latest = max(numbers.values(), default=0)
    rows: list[list[Any]] = []
    for n, data in reversed([*enumerate(runs, 1)]):
        number_of = numbers.get(data["run"])
        star = "" if number_of is None else f"{number_of} ★" if number_of == latest else str(number_of)
        created = None if data["created"] is None else data["zero"] + data["created"]
        rows.append([
            str(n),
            escape(data["run"]),
            f"<time>{(rfc3339(created) or NONE)[:16].replace('T', ' ')}</time>",
            _state(data),
            *_cells(data, metrics),
            show_seconds(data["seconds"]),
            _goodput(data),
            str(data["restarts"]),
            *([star or NONE] if champions is not None else []),
        ])  # fmt: skip
    heads = ("", "run", "created", "state", *metrics, "took", "goodput", "restarts")
    note = (
        '<p class="fine">★ the champion. Times are UTC.</p>'
        if numbers
        else '<p class="fine">Times are UTC.</p>'
    )
    return table((*heads, *(["champion"] if champions is not None else [])), rows) + note
