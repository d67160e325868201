"""The second copy of the newest state, on fast storage that may vanish (``checkpoints.hot``).

It is saved more often than a store far away can take, and only the newest stays. What counts is the run's
own folder: whoever resumes writes a newer hot copy there first, so that all ranks, on whichever node, read
the same. A copy that is damaged, or on a node that is gone, is as if it had never been.
"""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping
from contextlib import suppress

from allaboard.checkpoints import Checkpoint, Manifest, prune, save, scan
from allaboard.checkpoints.saving import Source, sweep_staging
from allaboard.errors import Corrupt, StorageError
from allaboard.inside.every import Every
from allaboard.inside.resumed_checkpoint import ResumedCheckpoint
from allaboard.storage import open_store


class HotCopy:
    """``folder``: the run's own; ``every``: how often."""

    def __init__(self, folder: str | os.PathLike[str], every: Every) -> None:
        self.store = open_store(folder)
        self._every = every
        self._step, self._time = 0, time.monotonic()

    def is_due(self, step: int) -> bool:
        return self._every.due(step, self._step, time.monotonic(), self._time)

    def begin(self, step: int) -> None:
        """The training continues after this step."""
        self._step, self._time = step, time.monotonic()

    def save(self, manifest: Manifest, parts: Mapping[str, Source]) -> None:
        """In place of the one before. Raises StorageError."""
        # It counts as tried: what cannot be saved is not tried again at every step.
        self.begin(manifest.step)
        save(self.store, manifest, parts)
        prune(self.store, 1, None, time.time(), parts_after=0.0, protect=(manifest.step,))

    def newer_than(
        self, step: int, but: Callable[[Manifest], bool] = lambda manifest: False
    ) -> ResumedCheckpoint | None:
        """The newest whole copy of a later step, every byte verified. ``but``: those that do not count."""
        with suppress(StorageError):
            if (root := self.store.local_path()) is not None and root.is_dir():
                sweep_staging(root)
            for item in reversed(scan(self.store)):
                if not isinstance(item, Checkpoint) or item.step <= step or but(item.manifest):
                    continue
                copy = ResumedCheckpoint(self.store, item)
                with suppress(Corrupt):
                    copy.fetch()
                    return copy
        return None
