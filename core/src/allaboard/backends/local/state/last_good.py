"""What the last good run of a job tells of its next one. Reads the records and states of this machine."""

from __future__ import annotations

from contextlib import suppress

from allaboard.backends.local.state.paths import AttemptFolder, RunFolder, read_json
from allaboard.backends.local.state.records import read_record
from allaboard.errors import SiteError
from allaboard.follow.progress import progress_of
from allaboard.follow.run_record import RunRecord
from allaboard.observation import State

MOST_RUNS = 2000


def longest_pause_of_last_good(run: RunFolder) -> float:
    """The longest time in seconds between two signs of progress of the last run of the same job that
    succeeded; 0 where there is none, or it cannot be read. Takes a millisecond for each three runs or so.
    """
    with suppress(SiteError, OSError):
        own = read_record(run)
        good = _last_good(run, own) if own is not None else None
        if good is not None:
            record, folder = good
            state = read_json(AttemptFolder(folder.attempt(record.generation, record.attempt).path).state)
            seen = state.get("seen") if isinstance(state, dict) else None
            return progress_of(seen.get("progress") if isinstance(seen, dict) else None).longest_pause
    return 0.0


def _last_good(run: RunFolder, own: RunRecord) -> tuple[RunRecord, RunFolder] | None:
    found: tuple[RunRecord, RunFolder] | None = None
    for path in [*run.path.parent.iterdir()][:MOST_RUNS]:
        with suppress(SiteError, OSError):
            folder = RunFolder(path)
            record = read_record(folder) if path.name != run.name else None
            if record is None or record.outcome is None or record.job != own.job:
                continue
            succeeded = record.outcome.state == State.SUCCEEDED.value
            if succeeded and (found is None or record.outcome.at > _ended(found[0])):
                found = record, folder
    return found


def _ended(record: RunRecord) -> float:
    return record.outcome.at if record.outcome is not None else 0.0
