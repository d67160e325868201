"""This process as the writer of a run's folder (`allaboard.checkpoints.writers`).

A process that only reads is no writer: the claim is made at the first step, or the first save, of rank 0. All
`Checkpointer` of a process share it. A process that was another rank, and becomes rank 0, makes one of its
own.
"""

from __future__ import annotations

import os
import time

from allaboard.checkpoints import list_checkpoints
from allaboard.checkpoints.manifest import Manifest
from allaboard.checkpoints.writers import (
    Writer,
    check_attempt,
    check_writer,
    claim,
    is_superseded,
    newest_writer,
)
from allaboard.errors import StorageUnsupported
from allaboard.storage.base import Store

_of_folders: dict[str, FolderWriter] = {}


def writer_of(store: Store) -> FolderWriter:
    """This process's place among the writers of the folder."""
    return _of_folders.setdefault(store.uri, FolderWriter(store))


def attempt_id() -> str | None:
    """Identity of the attempt that this process belongs to; None outside of a run."""
    known = os.environ.get("ALLABOARD_MARK")
    if known:
        return known
    run = os.environ.get("ALLABOARD_RUN")
    names = ("ALLABOARD_GENERATION", "ALLABOARD_ATTEMPT")
    return "/".join((run, *(os.environ.get(name, "") for name in names))) if run else None


class FolderWriter:
    """``doubt``: why two writers could both win here; None where they cannot."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._writer: Writer | None = None
        self._went_on = False
        self._after: int | None = None
        self.doubt: str | None = None

    @property
    def number(self) -> int | None:
        """None before the claim."""
        return None if self._writer is None else self._writer.number

    def begin(self, after: int | None) -> None:
        """This process goes on after that step of this folder; None: from scratch."""
        if self._writer is None:
            self._went_on, self._after = True, after

    def look(self) -> None:
        """Look at the folder before it is resumed from. Raises TakenOver when this attempt was taken over."""
        newest = newest_writer(self._store)
        check_attempt(self._store, newest, attempt_id())
        if self._writer is not None and newest is not None and newest.number > self._writer.number:
            self._writer = None  # no attempt, but a script by hand, that begins anew

    def follow(self, step: int) -> None:
        """As another rank, this process has done that step: what rank 0 saved up to it is its own history."""
        self._writer = None
        self._went_on, self._after = True, step

    def claim(self) -> int:
        """Become the writer, once. Raises TakenOver, StorageError."""
        if self._writer is None:
            after, attempt, now = self._begins_after(), attempt_id(), time.time()
            try:
                self._writer = claim(self._store, after, attempt, now)
            except StorageUnsupported as error:
                self.doubt = str(error)
                self._writer = claim(self._store, after, attempt, now, exclusive=False)
        return self._writer.number

    def check(self) -> None:
        """Raises TakenOver when another process has become the writer since."""
        if self._writer is not None:
            check_writer(self._store, self._writer.number)

    def is_left_behind(self, manifest: Manifest) -> bool:
        """True if this copy of a state belongs to a history that a later writer has left."""
        return is_superseded(manifest, newest_writer(self._store))

    def _begins_after(self) -> int | None:
        """A script that saves without having resumed leaves all that is there as it is."""
        if self._went_on:
            return self._after
        return max((checkpoint.step for checkpoint in list_checkpoints(self._store)), default=None)
