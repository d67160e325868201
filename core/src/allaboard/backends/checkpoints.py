"""The checkpoints of a run, listed from its store, which correct those that the training process reported;
and the flags that stay beside them.
"""

from __future__ import annotations

from collections.abc import Mapping
from contextlib import suppress
from dataclasses import replace

from allaboard.errors import AllaboardError
from allaboard.runs.layout import Saving
from allaboard.runs.observation import Observation, Progress
from allaboard.runs.status import flags_of, state_of
from allaboard.text.units import rfc3339


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


def keep_flags(uri: str, seen: Observation, sentences: Mapping[str, str], environ: Mapping[str, str]) -> bool:
    """Write the flags of a run that has ended beside its checkpoints; true if they are there now. ``uri``:
    the run's own folder; ``sentences``: flag -> its sentence. A run that saved nothing leaves no flags.
    """
    from allaboard.checkpoints.flags import FLAGS, RunFlags
    from allaboard.storage import open_store

    store = open_store(uri, environ=environ)
    place = store.local_path(FLAGS)
    if seen.progress.checkpoint is None and (place is None or not place.parent.is_dir()):
        return False
    flags = {code: sentences.get(code, "") for code in flags_of(seen)}
    kept = RunFlags(
        seen.run, state_of(seen).value, flags, seen.attempt, seen.generation, rfc3339(seen.finished)
    )
    with suppress(AllaboardError, OSError):
        store.write(FLAGS, kept.encode())
        return True
    return False
