"""Checkpoints for tests, made as the product makes them; a test says only what matters to it."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allaboard.checkpoints import Checkpoint, Manifest, save
from allaboard.checkpoints.manifest import MANIFEST, folder_name
from allaboard.storage.base import Store

NOW = 1_800_000_000.0
HOUR = 3600.0


def a_checkpoint(
    store: Store,
    step: int,
    metrics: Mapping[str, Any] | None = None,
    parts: Mapping[str, bytes | Path] | None = None,
    **fields: Any,
) -> Checkpoint:
    """A saved checkpoint; its bytes tell its step."""
    content = parts or {"model.bin": b"model of step %d" % step, "optimizer.bin": b"optimizer %d" % step * 50}
    return save(store, Manifest(step=step, **fields).with_metrics(metrics), content)


def corrupt(store: Store, step: int, part: str = "model.bin") -> None:
    """Other bytes of the same length, as a bad disk makes them."""
    key = f"{folder_name(step)}/{part}"
    content = store.read(key)
    store.write(key, bytes([content[0] ^ 1]) + content[1:])


def cut(store: Store, step: int, part: str = "model.bin") -> None:
    """Half of a part."""
    key = f"{folder_name(step)}/{part}"
    content = store.read(key)
    store.write(key, content[: len(content) // 2])


def without_manifest(store: Store, step: int) -> None:
    store.delete([f"{folder_name(step)}/{MANIFEST}"])


def keys(store: Store, prefix: str = "") -> list[str]:
    return [entry.key for entry in store.entries(prefix)]


def steps(store: Store) -> list[int]:
    from allaboard.checkpoints import list_checkpoints

    return [found.step for found in list_checkpoints(store)]
