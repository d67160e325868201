"""The metrics files of a run: which of a place are of it, each read by its own reader, all within bounds."""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from itertools import islice
from posixpath import basename

from allaboard.backends.metric_files import event_files, texts
from allaboard.backends.metric_files.bounds import (
    MOST_ENTRIES,
    MOST_FILES,
    MOST_OF_A_FILE,
    SECONDS,
    Budget,
    Window,
)
from allaboard.backends.metric_files.series import FileRead, put_together
from allaboard.errors import AllaboardError
from allaboard.follow.progress import with_measured
from allaboard.runs.observation import Measured, Observation
from allaboard.storage import Entry, Store, open_store
from allaboard.text.untrusted import show

_SKEW = 5.0
"""Seconds by which the clock of a bucket may be behind ours."""


def with_metrics(
    seen: Observation,
    place: str,
    since: float,
    environ: Mapping[str, str],
    clock: Callable[[], float] = time.monotonic,
) -> Observation:
    """The observation with the metrics of files. ``place``: a folder, a file or a uri; ``since``: when the
    run's generation began, because older files are of other runs. What cannot be read is a note.
    """
    measured = read_metrics(place, since, environ, clock)
    return replace(
        seen,
        measured=measured,
        progress=with_measured(seen.progress, measured),
        notes=(*seen.notes, *measured.gaps),
    )


def read_metrics(
    place: str, since: float, environ: Mapping[str, str], clock: Callable[[], float] = time.monotonic
) -> Measured:
    """The metrics of the files of a place that were written since then (epoch seconds). Raises nothing."""
    budget, gaps = Budget(clock, clock() + SECONDS), list[str]()
    files: list[FileRead] = []
    try:
        store, entries = _entries(place, environ)
        after = since if store.local_path() is not None else since - _SKEW
        chosen, note = _chosen(entries, after, budget)
        gaps += [note] if note else []
        for entry in chosen:
            if budget.is_spent:
                gaps.append(f"metrics: not all files of {_shown(place)} were read, which takes too long")
                break
            try:
                files += _read(store, entry, budget)
            except AllaboardError as error:
                gaps.append(f"metrics: {error}")
                continue
            if entry.size > MOST_OF_A_FILE:
                most = MOST_OF_A_FILE >> 20
                gaps.append(f"metrics: only the first {most} MiB of {_shown(entry.key)} count")
    except AllaboardError as error:
        gaps.append(f"metrics: {_shown(place)} cannot be read: {error}")
    return put_together(files, dict.fromkeys(gaps))


def _entries(place: str, environ: Mapping[str, str]) -> tuple[Store, Iterator[Entry]]:
    above, _, name = place.rstrip("/").rpartition("/")
    if above and is_metrics_file(name):
        store = open_store(above, environ=environ)
        if (entry := store.stat(name)) is not None:
            return store, iter([entry])
    store = open_store(place, environ=environ)
    return store, store.entries()


def is_metrics_file(key: str) -> bool:
    """True for a name that files of metrics have."""
    name = basename(key)
    return "tfevents" in name or name == texts.STATE_NAME or texts.is_table(name)


def _chosen(entries: Iterator[Entry], after: float, budget: Budget) -> tuple[list[Entry], str]:
    """The files to read, the oldest first, and a sentence where some are left out."""
    kept, note = [], ""
    for looked, entry in enumerate(islice(entries, MOST_ENTRIES + 1)):
        if looked == MOST_ENTRIES or (looked % 500 == 499 and budget.is_spent):
            note = f"metrics: only the first {looked:,} files of the place count; name a nearer folder"
            break
        if is_metrics_file(entry.key) and entry.modified >= after:
            kept.append(entry)
    kept.sort(key=lambda entry: (entry.modified, entry.key))
    if len(kept) > MOST_FILES:
        note = note or f"metrics: only the newest {MOST_FILES} of {len(kept):,} files count"
    return kept[-MOST_FILES:], note


def _read(store: Store, entry: Entry, budget: Budget) -> Iterator[FileRead]:
    window, name = Window(store, entry.key, entry.size, budget), basename(entry.key)
    if "tfevents" in name:
        series, began = event_files.read(window, budget)
        yield FileRead(entry.key, event_files.FORMAT, series, began or entry.modified)
    elif name == texts.STATE_NAME:
        if (state := texts.read_state(window.at(0, window.size))) is not None:
            yield FileRead(entry.key, texts.STATE, state[0], entry.modified, state[1])
    elif (table := texts.read_table(window.lines())) is not None:
        yield FileRead(entry.key, texts.TABLE, table, entry.modified)


def _shown(text: str) -> str:
    return show(text, 200, quote=False)
