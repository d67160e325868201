"""The trigger that waits for a checkpoint."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from allaboard.backends.local.host.machine import fingerprint
from allaboard.checkpoints import Checkpoint, latest, step_of
from allaboard.storage import open_store
from allaboard_provider.triggers.polling import PollTrigger


class CheckpointTrigger(PollTrigger):
    """Fires when a complete checkpoint of a step above ``after`` is at ``uri``."""

    def __init__(self, uri: str, after: int | None = None, **common: Any) -> None:
        super().__init__(**common)
        self.uri, self.after = uri, after

    def arguments(self) -> dict[str, Any]:
        return {"uri": self.uri, "after": self.after}

    def is_here(self) -> bool:
        known = dict(self.fingerprint or {})
        try:
            return fingerprint(known.pop("folder")) == known
        except OSError:
            return False

    def is_there(self) -> bool:
        return newest(self.uri, self.after) is not None


def newest(uri: str, after: int | None = None) -> dict[str, Any] | None:
    """The newest complete checkpoint in a run's folder, or in the folder of many runs. Raises
    `AllaboardError`.
    """
    candidates = [each for each in newest_of_runs(uri).values() if after is None or each.step > after]
    if not candidates:
        return None
    last = max(candidates, key=age)
    return {
        "uri": last.uri,
        "step": last.step,
        "run": last.manifest.run,
        "metrics": dict(last.metrics),
        "created": last.manifest.created,
    }


def age(checkpoint: Checkpoint) -> tuple[str, int]:
    """Return what puts checkpoints of several runs in order, the oldest first."""
    return (checkpoint.manifest.created or "", checkpoint.step)


def newest_of_runs(uri: str) -> dict[str, Checkpoint]:
    """The newest complete checkpoint of each run: the name of its folder -> checkpoint; ``""`` -> that of the
    only run, where ``uri`` is a run's folder. Raises `AllaboardError`.
    """
    store = open_store(uri)
    folders = store.folders()
    # A folder of steps belongs to one run; otherwise each folder in it belongs to a run.
    if any(step_of(name) is not None for name in folders):
        stores = {"": store}
    else:
        stores = {name: store.below(name) for name in folders}
    last = {name: latest(of_run) for name, of_run in stores.items()}
    return {name: checkpoint for name, checkpoint in last.items() if checkpoint is not None}


def fingerprint_of(uri: str) -> dict[str, Any] | None:
    """Identifies the disk of this machine: by the folder, or by the part of its path that exists. None for a
    bucket.
    """
    folder: Path | None = open_store(uri).local_path()
    if folder is None:
        return None
    while not folder.exists():
        folder = folder.parent
    return {**fingerprint(str(folder)), "folder": str(folder)}
