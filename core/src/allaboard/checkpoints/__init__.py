"""Checkpoints: complete or not there. The manifest's format is pure; files are touched through a store alone.

store = open_store("s3://bucket/digits/digits-1f0c9a77")       # a run's own folder
latest(store), best(store, "val_loss", "min"), verify(store, 120)
collect("s3://bucket/digits/digits-1f0c9a77", "models/", "best", metric="val_loss")
"""

from __future__ import annotations

from allaboard.checkpoints.collecting import Collected, best_checkpoint, collect
from allaboard.checkpoints.flags import RunFlags, handed_flags, read_flags
from allaboard.checkpoints.listing import (
    Torn,
    best,
    checkpoint_at,
    find,
    latest,
    list_checkpoints,
    locate,
    read_manifest,
    scan,
    verify,
)
from allaboard.checkpoints.manifest import Checkpoint, Manifest, Part, folder_name
from allaboard.checkpoints.metrics import parse_best
from allaboard.checkpoints.names import step_of
from allaboard.checkpoints.retention import Pruned, prune
from allaboard.checkpoints.saving import save

__all__ = [
    "Checkpoint",
    "Collected",
    "Manifest",
    "Part",
    "Pruned",
    "RunFlags",
    "Torn",
    "best",
    "best_checkpoint",
    "checkpoint_at",
    "collect",
    "find",
    "folder_name",
    "handed_flags",
    "latest",
    "list_checkpoints",
    "locate",
    "parse_best",
    "prune",
    "read_flags",
    "read_manifest",
    "save",
    "scan",
    "step_of",
    "verify",
]
