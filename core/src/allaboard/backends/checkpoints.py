"""What a run has really saved, by listing, beside what its training process reported."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from allaboard.errors import AllaboardError
from allaboard.layout import Saving
from allaboard.observation import Progress


def with_checkpoints(progress: Progress, saving: Saving, environ: Mapping[str, str]) -> Progress:
    """The newest and the best checkpoint that are there; what was reported when the store is silent."""
    from allaboard.checkpoints import best, latest
    from allaboard.storage import open_store

    with suppress(AllaboardError):
        store = open_store(saving.uri, environ=environ)
        newest = latest(store)
        top = best(store, saving.metric, saving.mode) if saving.metric else None
        return replace(
            progress, checkpoint=newest.uri if newest else None, best_checkpoint=top.uri if top else None
        )
    return progress
