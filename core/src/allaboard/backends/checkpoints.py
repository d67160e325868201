"""The checkpoints of a run, listed from its store; they correct those that the training process reported."""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from allaboard.errors import AllaboardError
from allaboard.runs.layout import Saving
from allaboard.runs.observation import Progress


def with_checkpoints(progress: Progress, saving: Saving, environ: Mapping[str, str]) -> Progress:
    """The progress with the newest and the best existing checkpoint; unchanged if the store does
    not answer.
    """
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
