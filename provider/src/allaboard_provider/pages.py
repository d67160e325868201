"""Data of the tab of a task: of its run, and the snapshot of it that a task leaves for readers that cannot
see the run: the API server on another machine, or after the run was deleted.

A snapshot is an XCom of some 10 KB under `SNAPSHOT_KEY`: the bounded value of
`allaboard.report.page_data`, without secrets, compressed. It is no input of any task.
"""

from __future__ import annotations

import base64
import binascii
import json
import threading
import time
import zlib
from collections.abc import Callable, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from allaboard.errors import BackendUnreachable
from allaboard.text.redaction import redact_text
from allaboard.text.units import rfc3339
from allaboard.text.untrusted import parse_json
from allaboard_provider.identity import are_of_one_dag

if TYPE_CHECKING:
    from allaboard.backends.base import Backend
    from allaboard.follow.loop import Outcome
    from allaboard.report.commands import Place
    from allaboard.report.output import OutputReader
    from allaboard.report.page_data import Bounds
    from allaboard.runs.observation import Observation

RUN_KEY = "allaboard_run"
"""The XCom that names the run as soon as there is one, so that a failed task shows it, too."""
SNAPSHOT_KEY = "allaboard_page"
PROMOTION_KEY = "allaboard_promotion"
VERSION = 1
EVERY = 20.0
"""Least seconds between two snapshots of a run that goes on."""
_SHARE = 100
"""A snapshot that took a second is followed by the next one after so many."""
_LARGEST = 4 << 20
"""Bytes of a snapshot as JSON that are read."""
_LAST_LINES = 50_000
"""Of an output that is too long to be read whole."""
_READING = 10.0
"""Seconds that reading the output of a run may take for a snapshot."""


def page_value(
    backend: Backend,
    outcome: Outcome,
    now: float,
    *,
    at: Place,
    bounds: Bounds,
    kind: str = "training",
    seconds: float = _READING,
    with_output: bool = True,
    output: Output | None = None,
) -> dict[str, Any]:
    """The value of `page_data` for a run. ``at``: where it is. ``seconds``: how long its output may be
    read; where that takes longer, only its end is told. ``with_output``: False where there can be none yet.
    ``output``: what was read for an earlier page of the run. A failed run is compared with the last good one
    of the same DAG: who sees the page need not see other DAGs. Raises AllaboardError.
    """
    from allaboard.report.last_good import since_last_good
    from allaboard.report.page_data import Readings, page_data
    from allaboard.report.reading import job_of, read_run

    seen = outcome.seen
    run = seen.run
    secrets = backend.secrets_of(run)
    read, since = Readings(secrets=secrets), None
    if with_output:
        hurried: Any = _Hurried(backend, seconds, time.monotonic)
        rank0 = (output or Output()).read(hurried, run, seen.attempt, seen.progress.expression)
        read = read_run(hurried, outcome, secrets, rank0)
        since = since_last_good(hurried, seen, lambda good: are_of_one_dag(good.key or "", seen.key or ""))
    return page_data(
        outcome, read, now, at=at, job=job_of(backend, run), kind=kind, since=since, bounds=bounds
    )


class _Hurried:
    """A backend whose logs end with an error when their time is up."""

    def __init__(self, backend: Backend, seconds: float, clock: Callable[[], float]) -> None:
        self.backend, self._seconds, self._clock = backend, seconds, clock
        self._end = clock() + seconds

    def __getattr__(self, name: str) -> Any:
        return getattr(self.backend, name)

    @property
    def is_late(self) -> bool:
        return self._clock() > self._end

    def logs(self, *arguments: Any, **named: Any) -> Iterator[Any]:
        for item in self.backend.logs(*arguments, **named):
            if self.is_late:
                raise BackendUnreachable(
                    f"it is long, and reading it took more than {self._seconds:g} s; "
                    "`allaboard report` on the command line reads all of it"
                )
            yield item


class Output:
    """Output of rank 0 of a run, kept from page to page: each reads only what came since the one before.
    ``lock``: for whoever makes a page of it.
    """

    def __init__(self) -> None:
        self.lock = threading.Lock()
        self._rank0: OutputReader | None = None

    def read(self, hurried: _Hurried, run: str, attempt: int, progress: str | None = None) -> OutputReader:
        """All of it; where the time does not suffice, its last lines. ``progress``: the field of its job."""
        from allaboard.report.output import OutputReader

        known = self._rank0
        reader = known if known is not None and known.can_go_on else OutputReader(progress=progress)
        backend: Any = hurried
        reader.read_all(backend, run, attempt)
        if hurried.is_late and not reader.can_go_on:
            reader = OutputReader(progress=progress)
            reader.read_all(hurried.backend, run, attempt, tail=_LAST_LINES)
        self._rank0 = reader
        return reader


def outcome_of(seen: Observation) -> Outcome:
    """A run as far as it is seen, with why it waits or failed."""
    from allaboard.diagnosis import diagnose
    from allaboard.follow.loop import Outcome

    return Outcome(seen, diagnose(seen))


def pack(page: Mapping[str, Any]) -> dict[str, Any]:
    """The XCom of a snapshot."""
    text = json.dumps(page, ensure_ascii=False, separators=(",", ":"), default=str)
    data = base64.b64encode(zlib.compress(text.encode("utf-8", "backslashreplace"), 6)).decode()
    return {"version": VERSION, "run": page["run"], "state": page["state"], "data": data}


def unpack(value: Any) -> dict[str, Any] | None:
    """The value in a snapshot; None for one that is damaged, too large or of another release."""
    from allaboard.report.page_data import VERSION as PAGE

    if not isinstance(value, Mapping) or value.get("version") != VERSION:
        return None
    try:
        reader = zlib.decompressobj()
        text = reader.decompress(base64.b64decode(str(value.get("data")), validate=True), _LARGEST)
        page = parse_json(text.decode()) if reader.eof else None
    except (binascii.Error, zlib.error, ValueError):
        return None
    if not isinstance(page, dict) or page.get("version") != PAGE or page.get("run") != value.get("run"):
        return None
    return page if all(isinstance(page.get(name), kind) for name, kind in _FIELDS.items()) else None


def last_seen(page: Mapping[str, Any], host: str | None, task_state: str | None) -> dict[str, Any]:
    """A snapshot of a run that cannot be read now, as what it is: a word about the past. Where its task has
    ended, the run is not said to go on. ``host``: where it lives.
    """
    if page["is_final"]:
        return dict(page)
    seen = f"was {str(page['state']).replace('_', ' ')} as seen at {seen_at(page)}"
    where = f" from {host}" if host else ""
    headline = f"{page['run']} {seen}{where}"
    if task_state not in ENDED_STATES:
        return {**page, "headline": headline}
    over = {"is_final": True, "ok": task_state == "success", "state": "unknown", "held_by": None}
    progress = {**page["progress"], "seconds_left": None}
    return {**page, **over, "progress": progress, "headline": f"{headline}; its task is {task_state} since"}


ENDED_STATES = ("success", "failed", "skipped", "upstream_failed", "removed")


def seen_at(page: Mapping[str, Any]) -> str:
    """Time at which a page was made: RFC 3339, in whole seconds."""
    since = page.get("looked_at")
    try:
        seen = rfc3339(float(round(page["zero"] + (since if isinstance(since, (int, float)) else 0.0))))
        return str(seen).replace(".000Z", "Z")
    except (ArithmeticError, OSError, ValueError):  # a snapshot that some task made up
        return "an unknown time"


_FIELDS: Mapping[str, type | tuple[type, ...]] = {
    "state": str, "headline": str, "zero": (int, float), "is_final": bool, "curves": list, "members": list,
    "timeline": dict, "checkpoints": list, "diagnoses": list, "progress": dict, "metrics": list,
}  # fmt: skip


class Snapshots:
    """Time at which the next snapshot of a run is due. ``clock``: seconds that never go back."""

    def __init__(self, clock: Callable[[], float] = time.monotonic) -> None:
        self._clock, self._next, self._failed = clock, 0.0, 0
        self._state: str | None = None

    def is_due(self, state: str) -> bool:
        """Return whether to leave one now. A new state is due sooner; after three failures none is."""
        if self._failed >= 3:
            return False
        now = self._clock()
        return now >= self._next or (state != self._state and now >= self._next - EVERY / 2)

    def left(self, state: str, took: float) -> None:
        """One was left, which took so many seconds."""
        self._state, self._failed = state, 0
        self._next = self._clock() + max(EVERY, _SHARE * took)

    def failed(self) -> None:
        self._failed += 1
        self._next = self._clock() + EVERY


def snapshot(backend: Backend, outcome: Outcome, now: float, **how: Any) -> dict[str, Any]:
    """The packed snapshot of a run; ``how``: as for `told`. Blocks. Raises AllaboardError."""
    from allaboard.report.page_data import SNAPSHOT

    return pack(page_value(backend, outcome, now, bounds=SNAPSHOT, **how))


def goodput_in(left: Mapping[str, Any] | None) -> float | None:
    """The goodput that a snapshot tells; None where it tells none."""
    page = unpack(left)
    good = page.get("goodput") if page is not None else None
    return float(good["share"]) if isinstance(good, Mapping) else None


def words_of(error: BaseException) -> str:
    """An error in one short line without secrets."""
    text = " ".join(redact_text(str(error) or type(error).__name__).split())
    return text if len(text) <= 300 else text[:300] + " …"


_MOST_PROMOTIONS = 50


def promotions(
    store: str, history: Any, decision: Mapping[str, Any], metric: str | None, now: float
) -> dict[str, Any]:
    """The XCom of a task that promotes: what it decided, and the newest promotions of its store, rollbacks
    among them. ``now``: when they were read, in epoch seconds.
    """
    rows = [
        {
            "number": promotion.number,
            "at": promotion.at,
            "run": promotion.run,
            "step": promotion.step,
            "checkpoint": redact_text(promotion.checkpoint),
            "by": promotion.by,
            "restores": promotion.restores,
            "metric": None if metric is None else promotion.metrics.get(metric),
        }
        for promotion in history.promotions[:_MOST_PROMOTIONS]
    ]
    return {
        "version": VERSION,
        "store": redact_text(store),
        "read_at": now,
        "metric": metric,
        "promoted": decision["promoted"],
        "reason": redact_text(str((decision["verdict"] or {}).get("reason") or ""))[:500],
        "promotions": rows,
        "more": max(0, len(history.promotions) - len(rows)),
    }
