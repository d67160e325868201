"""The run record on disk: read at any time, changed under its lock (compare-and-swap by reading again)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass

from allaboard.backends.local.state.paths import (
    RunFolder,
    damaged_error,
    discard,
    is_same_file,
    locked,
    read_json,
    unreadable_error,
    write_json,
)
from allaboard.errors import SiteError
from allaboard.follow.run_record import VERSION, RunRecord
from allaboard.runs.observation import State


def read_record(folder: RunFolder) -> RunRecord | None:
    """The record of a run; None when it has none. Raises SiteError (`paths.DAMAGED`, `paths.NEWER`) for what
    is no record of this run, or none that this version can read.
    """
    refuse_link(folder)
    data = read_json(folder.record)
    if data is None:
        return None
    try:
        record = RunRecord.from_dict(data)
        if record.outcome is not None:
            State(record.outcome.state)
    except (AttributeError, ValueError) as error:
        trouble = f"is no run record ({error})"
        raise unreadable_error(folder.record, data, VERSION, trouble) from error
    if record.run != folder.name:
        raise damaged_error(folder.record, f"holds the record of another run, {record.run!r}")
    return record


def refuse_link(folder: RunFolder) -> None:
    """Raises SiteError (`paths.DAMAGED`) where the folder of a run is a link: it may lead anywhere."""
    if folder.path.is_symlink():
        raise damaged_error(folder.path, "is a symbolic link; a run needs a folder of its own")


@dataclass
class Transaction:
    """The record while it is locked: `record` as it stands, `write` to change it."""

    folder: RunFolder
    record: RunRecord | None

    def write(self, record: RunRecord) -> RunRecord:
        write_json(self.folder.record, record.to_dict())
        self.record = record
        return record

    def restore(self, record: RunRecord | None) -> None:
        """Write the earlier record back; None: there was no run. Raises nothing."""
        with suppress(OSError):
            self.folder.record.unlink(missing_ok=True) if record is None else self.write(record)
            self.record = record


@contextmanager
def locked_record(folder: RunFolder, *, wait: bool = True) -> Iterator[Transaction]:
    """Lock the record for a change. If no record exists at the end, the run's folder is removed. Without
    ``wait``: raises BlockingIOError if another process changes it.
    """
    refuse_link(folder)
    with locked(folder.lock, wait=wait) as lock:
        if not folder.record.exists() and any(attempt.is_live() for attempt in folder.attempts()):
            raise damaged_error(folder.path, "has no record.json, although its supervisor is alive")
        try:
            yield Transaction(folder, read_record(folder))
        finally:
            # After its removal, a folder of that name belongs to a new run.
            if is_same_file(folder.lock, lock) and not folder.record.exists():
                with suppress(OSError, SiteError):
                    discard(folder.path, folder.trash)


def change_record(folder: RunFolder, how: Callable[[RunRecord], RunRecord]) -> RunRecord | None:
    """Apply ``how`` to the record under its lock; None when there is no record."""
    with locked_record(folder) as transaction:
        if transaction.record is None:
            return None
        return transaction.write(how(transaction.record))
