"""The run record on disk: read at any time, changed under its lock (compare-and-swap by reading again)."""

from __future__ import annotations

import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass

from allaboard.backends.local.folders import RunFolder, locked, read_json, write_json
from allaboard.errors import SiteError
from allaboard.ledger import RunRecord


def read(folder: RunFolder) -> RunRecord | None:
    """The record of a run; None when it has none."""
    data = read_json(folder.record)
    if data is None:
        return None
    try:
        return RunRecord.from_dict(data)
    except (KeyError, TypeError, AttributeError) as error:
        raise SiteError(
            f"{folder.record} is no run record ({error}); delete {folder.path} if it is not needed"
        ) from error


@dataclass
class Transaction:
    """The record while it is locked: `record` as it stands, `write` to change it."""

    folder: RunFolder
    record: RunRecord | None

    def write(self, record: RunRecord) -> RunRecord:
        write_json(self.folder.record, record.to_dict())
        self.record = record
        return record


@contextmanager
def changing(folder: RunFolder) -> Iterator[Transaction]:
    """Nobody else changes the record meanwhile. Where this ends without a record, nothing of the run is left
    behind.
    """
    with locked(folder.lock):
        try:
            yield Transaction(folder, read(folder))
        finally:
            if not folder.record.exists():
                shutil.rmtree(folder.path, ignore_errors=True)


def change(folder: RunFolder, how: Callable[[RunRecord], RunRecord]) -> RunRecord | None:
    """Apply ``how`` to the record under its lock; None when there is no record."""
    with changing(folder) as transaction:
        if transaction.record is None:
            return None
        return transaction.write(how(transaction.record))
