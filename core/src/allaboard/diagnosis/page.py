"""The page of all causes, written from the rules themselves. Values in, values out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping

from allaboard.diagnosis.causes import all_rules
from allaboard.diagnosis.rule import Cause
from allaboard.text.units import show_seconds

_HEAD = """\
# What `allaboard doctor` says

`allaboard doctor RUN` looks at a run's objects, events, nodes and logs, and says why it waits, failed or
looks wrong: the first cause in time, with what shows it, whom to look at, and what to do.

The codes stay: alerts may match them. They stand in `status --json`, in the exception of an Airflow task
and in the error of a KFP step, too. **Again** says whether the same job, unchanged, may succeed later; a
finding may know better.

This page is written from the rules: `make docs`.
"""
ROOMS: Mapping[str, str] = {
    "submit": "Submit and admission",
    "queue": "Queueing and scheduling",
    "start": "Starting the pod",
    "infrastructure": "Infrastructure while it runs",
    "communication": "Communication",
    "code_and_data": "Code, libraries and data",
    "lifecycle_and_speed": "Lifecycle and speed",
}
"""The file of a rule -> where its cause happens."""


def page() -> str:
    """Markdown: a table of all codes, then each cause."""
    return (
        "\n".join(
            [_HEAD, *_tables(), *(line for entry in all_rules().values() for line in _section(entry.cause))]
        )
        + "\n"
    )


def _tables() -> Iterator[str]:
    for room, title in ROOMS.items():
        yield f"**{title}**"
        yield ""
        yield "| Code | Says | Again |"
        yield "|---|---|---|"
        for cause in (entry.cause for entry in all_rules().values()):
            if cause.room == room:
                yield f"| [`{cause.code}`](#{cause.code}) | {cause.title} | {_again(cause)} |"
        yield ""


def _again(cause: Cause) -> str:
    return "-" if cause.code == "healthy" else "yes" if cause.retryable else "no"


def _since(cause: Cause) -> str:
    """The condition under which the cause counts: often enough, or for long enough."""
    counted = f"said {cause.times} times" if cause.times > 1 else ""
    return " or ".join(filter(None, (counted, f"after {show_seconds(cause.after)}" if cause.after else "")))


def _section(cause: Cause) -> Iterator[str]:
    yield f"## {cause.code}"
    yield ""
    yield f"{cause.title}. {cause.means}"
    yield ""
    yield f"**How it looks:** {cause.looks}"
    yield ""
    yield f"**What to do:** {cause.fix[:1].upper()}{cause.fix[1:]}."
    yield ""
    if cause.fix_for_good:
        yield f"**Where waiting does not help:** {cause.fix_for_good[:1].upper()}{cause.fix_for_good[1:]}."
        yield ""
    needs = ", ".join(cause.needs) or "nothing"
    counts = f" · *counts:* {_since(cause)}" if cause.after or cause.times > 1 else ""
    yield f"*Where:* {ROOMS[cause.room].lower()} · *read from:* {needs} · *again:* {_again(cause)}{counts}"
    yield ""
