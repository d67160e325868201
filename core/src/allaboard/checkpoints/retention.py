"""Retention: keeps the newest few checkpoints, and never removes the newest complete one, the best, or one
that a reader holds.

Removal takes two steps, so that a reader that has just read a manifest finds its parts. First the manifest is
replaced by `retired.json`, which names the parts. An hour later the parts are removed, unless a reader holds
them. `prune` does both; every save of a `Checkpointer` calls it. What a process saved after it had been taken
over (`allaboard.checkpoints.writers`) counts for nobody, and the present writer retires it, too.
"""

from __future__ import annotations

import json
from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from typing import Any

from allaboard.checkpoints.holds import list_holds
from allaboard.checkpoints.listing import Folder, folders, scan_all
from allaboard.checkpoints.manifest import MANIFEST, RETIRED, Checkpoint, Manifest, folder_name
from allaboard.checkpoints.metrics import best_of
from allaboard.errors import BadInput, Corrupt, StorageFull
from allaboard.storage.base import Store, read_small
from allaboard.text.units import rfc3339
from allaboard.text.untrusted import parse_json

VERSION = 1
#: The parts of a checkpoint that was let go stay for this long.
PARTS_AFTER = 3600.0
#: A folder that never got a manifest belongs to a writer that died, once nothing was written to it for this
#: long.
ABANDONED_AFTER = 86400.0


@dataclass(frozen=True, slots=True)
class Pruned:
    """``retired`` were retired now, ``kept`` are the complete ones that stay, ``held`` stay only because a
    reader holds them.

    ``removed`` are the steps whose files were removed now, ``bytes`` their size; ``waiting`` are retired
    steps whose parts still exist.
    """

    kept: tuple[int, ...] = ()
    retired: tuple[int, ...] = ()
    held: tuple[int, ...] = ()
    removed: tuple[int, ...] = ()
    waiting: tuple[int, ...] = ()
    bytes: int = 0

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        return {
            "kept": list(self.kept),
            "retired": list(self.retired),
            "held": list(self.held),
            "removed": list(self.removed),
            "waiting": list(self.waiting),
            "bytes": self.bytes,
        }


def check_keep(keep: Any) -> int | None:
    if keep is None:
        return None
    if isinstance(keep, bool) or not isinstance(keep, int) or keep < 1:
        raise BadInput(f"keep {keep!r}: at least the newest checkpoint is always kept; give 1 or more")
    return keep


def steps_to_keep(
    complete: Sequence[Checkpoint],
    keep: int | None,
    best: tuple[str, str] | None = None,
    protect: Collection[int] = (),
) -> set[int]:
    """The steps that retention wants: the ``keep`` newest, the best by (metric, mode), and the protected
    ones.

    ``keep=None`` keeps all. The newest complete one is always among them.
    """
    steps = sorted(checkpoint.step for checkpoint in complete)
    if keep is None:
        return set(steps)
    wanted = set(steps[-keep:]) | (set(protect) & set(steps))
    if best is not None:
        ranked = best_of(complete, lambda checkpoint: checkpoint.metrics, *best)
        wanted |= {checkpoint.step for checkpoint in ranked[:1]}
    return wanted


def prune(
    store: Store,
    keep: int | None,
    best: tuple[str, str] | None,
    now: float,
    *,
    parts_after: float = PARTS_AFTER,
    protect: Collection[int] = (),
    writer: int | None = None,
) -> Pruned:
    """Retire checkpoints that are not kept, and remove the files of those retired earlier. ``now`` is epoch
    seconds. ``writer``: the number of the writer that calls; nobody else may retire what a taken-over process
    has left, because the present writer may be about to save that very step.

    Safe to repeat and to be killed at any moment. A torn checkpoint is kept for inspection. Raises BadInput
    for ``keep`` below 1, StorageError.
    """
    check_keep(keep)
    seen = scan_all(store)
    # The files of another library are that library's to remove.
    complete = [item for item in seen.items if isinstance(item, Checkpoint) and item.manifest.place is None]
    wanted = steps_to_keep(complete, keep, best, protect)
    placed = list_holds(store)
    held = {hold.step for hold in placed if hold.expires > now}
    going = [checkpoint for checkpoint in complete if checkpoint.step not in wanted | held]
    if writer is not None and writer == seen.writer:
        going += [checkpoint for checkpoint in seen.superseded if checkpoint.step not in held]
    freed = sum(_retire_checkpoint(store, checkpoint, now) for checkpoint in going)
    swept = _sweep(store, held, now, parts_after)
    store.delete(hold.key for hold in placed if hold.expires <= now)
    return replace(
        swept,
        kept=tuple(checkpoint.step for checkpoint in complete if checkpoint not in going),
        retired=tuple(checkpoint.step for checkpoint in going),
        held=tuple(checkpoint.step for checkpoint in complete if checkpoint.step in held - wanted),
        bytes=swept.bytes + freed,
    )


def _retire_checkpoint(store: Store, checkpoint: Checkpoint, now: float) -> int:
    """Bytes that were freed at once: none, unless the disk is so full that not even the note fits."""
    parts = [part.name for part in checkpoint.manifest.parts]
    try:
        retire(store, checkpoint.step, parts, now)
    except StorageFull:
        folder = folder_name(checkpoint.step)
        store.delete([f"{folder}/{MANIFEST}"])
        store.delete(f"{folder}/{name}" for name in parts)
        return checkpoint.bytes
    return 0


def retire(store: Store, step: int, parts: Iterable[str], now: float, reason: str | None = None) -> None:
    """Take the manifest away, so that the step is no checkpoint any more; its parts go later."""
    folder = folder_name(step)
    body = {"version": VERSION, "step": step, "retired": rfc3339(now), "reason": reason, "parts": list(parts)}
    # The note first: a kill in between leaves a checkpoint that is still complete.
    store.write(f"{folder}/{RETIRED}", (json.dumps(body) + "\n").encode())
    store.delete([f"{folder}/{MANIFEST}"])


def _sweep(store: Store, held: Collection[int], now: float, parts_after: float) -> Pruned:
    removed, waiting, freed = [], [], 0
    for step, folder in folders(store).items():
        keys = [] if step in held else list(_overdue_files(store, folder, now, parts_after))
        if keys:
            _remove(store, folder, keys)
            freed += sum(folder.files[name].size for name in keys)
            removed.append(step)
        if MANIFEST not in folder.files and RETIRED in folder.files and RETIRED not in keys:
            waiting.append(step)
    return Pruned(removed=tuple(removed), waiting=tuple(waiting), bytes=freed)


def _remove(store: Store, folder: Folder, names: Sequence[str]) -> None:
    # The note that names the parts goes after them, so that a sweep that was killed is taken up again.
    store.delete(f"{folder.name}/{name}" for name in names if name != RETIRED)
    store.delete(f"{folder.name}/{name}" for name in names if name == RETIRED)


def _overdue_files(store: Store, folder: Folder, now: float, parts_after: float) -> Iterator[str]:
    """The names of the files in a step's folder that may go now."""

    def older_than(name: str, seconds: float) -> bool:
        return seconds <= 0 or now - folder.files[name].modified >= seconds

    if MANIFEST in folder.files:
        # Parts of an earlier save of the same step. They are readable under the earlier manifest until it
        # was replaced.
        if older_than(MANIFEST, parts_after):
            known = _parts_of(store, folder)
            yield from (name for name in folder.files if name not in known and older_than(name, parts_after))
    elif RETIRED in folder.files:
        if older_than(RETIRED, parts_after):
            # Only what the note names: a new save of this step may be under way beside it.
            yield from (name for name in _parts_in_note(store, folder) if name in folder.files)
            yield RETIRED
    elif all(older_than(name, ABANDONED_AFTER) for name in folder.files):
        yield from folder.files


def _parts_of(store: Store, folder: Folder) -> set[str]:
    where = f"{folder.name}/{MANIFEST}"
    try:
        manifest = Manifest.decode(read_small(store, where), where)
    except Corrupt:
        return set(folder.files)  # torn: kept for inspection
    return {MANIFEST, *(part.name for part in manifest.parts)}


def _parts_in_note(store: Store, folder: Folder) -> list[str]:
    try:
        parts = parse_json(read_small(store, f"{folder.name}/{RETIRED}"), spelling=False)["parts"]
    except (ValueError, KeyError, TypeError):
        return [name for name in folder.files if name != RETIRED]
    return [str(name) for name in parts] if isinstance(parts, list) else []
