"""Facts of the last good run of a job, for its next run. Reads the records and states of this machine."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

from allaboard.backends.local.state.paths import RunFolder, read_json
from allaboard.backends.local.state.records import read_record
from allaboard.errors import SiteError
from allaboard.follow.progress import progress_of
from allaboard.follow.run_record import RunRecord, last_good

MOST_RUNS = 2000


def longest_pause_of_last_good(run: RunFolder) -> float:
    """The longest time in seconds between two signs of progress of the last run of the same job that
    succeeded; 0 where there is none, or it cannot be read. Takes a millisecond for each three runs or so.
    """
    with suppress(SiteError, OSError):
        own = read_record(run)
        good = last_good(own, _records(run.path.parent)) if own is not None else None
        if good is not None:
            folder = RunFolder(run.path.with_name(good.run))
            state = read_json(folder.attempt(good.generation, good.attempt).state)
            seen = state.get("seen") if isinstance(state, dict) else None
            return progress_of(seen.get("progress") if isinstance(seen, dict) else None).longest_pause
    return 0.0


def _records(runs: Path) -> Iterator[RunRecord]:
    """Those that can be read."""
    for path in [*runs.iterdir()][:MOST_RUNS]:
        with suppress(SiteError, OSError):
            record = read_record(RunFolder(path))
            if record is not None:
                yield record
