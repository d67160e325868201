"""Keeps the whole checkpoints of a folder in a bucket, for scripts that know folders alone, and brings the
newest back.

    out/checkpoint-500/                                    the script's
    out/digits-1f0c9a77/step-000000000500/manifest.json    its sums, made once by `adopting`
    s3://bucket/digits-1f0c9a77/step-000000000500/...      the copy: parts first, its manifest last

The copy is one of ours, which every command knows. Its manifest says in ``origin`` where the files were.
Both ways may be killed at any moment, and go on with the parts that are there. There is one copier of a run.
"""

from __future__ import annotations

import os
import socket
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path

from allaboard.checkpoints.collecting import copy_parts
from allaboard.checkpoints.foreign import deepspeed
from allaboard.checkpoints.foreign.adopting import Places, step_of_judgement
from allaboard.checkpoints.foreign.handing import put_aside
from allaboard.checkpoints.foreign.unit import Judgement, Unit, Verdict
from allaboard.checkpoints.holds import hold_checkpoint
from allaboard.checkpoints.listing import (
    Torn,
    complete_checkpoint,
    list_checkpoints,
    object_problem,
    part_key,
    place_of,
    scan,
    verify,
)
from allaboard.checkpoints.manifest import MANIFEST, RETIRED, Checkpoint, Manifest, folder_name
from allaboard.checkpoints.retention import prune
from allaboard.errors import Corrupt, StorageConflict, StorageError, StorageMissing
from allaboard.storage.base import OWN, Store
from allaboard.storage.disk import translate_os_errors

Clock = Callable[[], float]
"""Epoch seconds."""


@dataclass(frozen=True, slots=True)
class Copied:
    """``checkpoint``: the newest of the folder, as it is in the bucket now; None: the folder has none.
    ``passed``: steps that get no copy, because a newer checkpoint was there. ``is_new``: the bucket lacked
    it.
    """

    checkpoint: Checkpoint | None = None
    passed: tuple[int, ...] = ()
    is_new: bool = False


@dataclass(frozen=True, slots=True)
class Fetched:
    """``files``: the checkpoint that was brought back, None: the folder lacked none. ``notes``: a sentence
    for each that was passed over or moved aside.
    """

    files: str | None = None
    step: int | None = None
    notes: tuple[str, ...] = ()


def copy_newest(
    own: Store, into: Store, keep: int | None, best: tuple[str, str] | None, clock: Clock
) -> Copied:
    """Copy the newest whole checkpoint of a run's own folder on a disk into its folder in a bucket, and
    retire there what ``keep`` and ``best`` let go. Raises StorageError.
    """
    given_up: set[int] = set()
    while True:
        here = [item for item in list_checkpoints(own) if item.step not in given_up]
        there = {item.step: item for item in list_checkpoints(into)}
        if not here:
            return Copied()
        item = here[-1]
        other = there.get(item.step)
        if other is not None and other.manifest.fingerprint == item.manifest.fingerprint:
            return Copied(other)
        try:
            copy = _copy(own, item, into)
        except (Corrupt, StorageMissing):
            # Its library has removed or replaced it meanwhile, or the disk has lost bytes of it.
            if item in list_checkpoints(own) and not _is_damaged(own, item):
                raise
            _remove_parts(into, item.step)
            given_up.add(item.step)
            continue
        with suppress(StorageError):  # the next copy retires them
            prune(into, keep, best, clock())
        before = max((step for step in there if step < item.step), default=-1)
        return Copied(copy, tuple(known.step for known in here[:-1] if known.step > before), True)


def fetch_newest(places: Places, source: Store, clock: Clock) -> Fetched:
    """Bring the newest whole checkpoint of a bucket back to where it was, unless the folder has it or a newer
    one. A checkpoint that stands in its way is moved aside. To be called while no member lives. Raises
    StorageError.
    """
    judged, known = _judged(places)
    have = max((step_of_judgement(item)[0] for item in judged if item.verdict is Verdict.WHOLE), default=-1)
    have = max([have, *(c.step for c in list_checkpoints(places.own) if c.manifest.format is None)])
    notes: list[str] = []
    for item in reversed(scan(source)):
        if item.step <= have:
            break
        if isinstance(item, Torn):
            notes.append(f"step {item.step} of {source.uri} was passed over: {'; '.join(item.problems)}")
            continue
        try:
            files = _fetch(source, item, places.own, known, notes, clock)
        except (Corrupt, StorageConflict, StorageMissing) as error:
            notes.append(f"step {item.step} of {source.uri} was passed over: {error}")
            continue
        return Fetched(files, item.step, (*notes,))
    return Fetched(notes=(*notes,))


def fetch_step(places: Places, source: Store, step: int, clock: Clock) -> Fetched:
    """As `fetch_newest`, exactly this step, whatever the folder has. Raises StorageError."""
    item = next((item for item in list_checkpoints(source) if item.step == step), None)
    if item is None:
        raise StorageMissing(f"{source.uri}: step {step} is not there any more; see who else writes there")
    notes: list[str] = []
    try:
        files = _fetch(source, item, places.own, _judged(places)[1], notes, clock)
    except Corrupt as error:
        raise StorageConflict(str(error)) from error
    return Fetched(files, step, (*notes,))


def _judged(places: Places) -> tuple[list[Judgement], set[Path]]:
    """The checkpoints of the folder, and their paths."""
    judged = [item for _, item in places.judged()]
    return judged, {path for item in judged for path in _paths(item.unit)}


def _copy(own: Store, item: Checkpoint, into: Store) -> Checkpoint:
    folder, manifest = folder_name(item.step), item.manifest
    copy = replace(manifest, place=None, origin=manifest.place)
    # The step may be there with other bytes: it is no checkpoint while they are replaced.
    into.delete([f"{folder}/{MANIFEST}", f"{folder}/{RETIRED}"])
    copy_parts(place_of(own, manifest), into, manifest)
    into.delete(_other_files(into, copy))
    into.write(f"{folder}/{MANIFEST}", copy.encode())
    return complete_checkpoint(into, copy)


def _other_files(store: Store, manifest: Manifest) -> list[str]:
    folder = folder_name(manifest.step)
    parts = {f"{folder}/{part.name}" for part in manifest.parts}
    return [entry.key for entry in store.entries(folder) if entry.key not in parts]


def _remove_parts(store: Store, step: int) -> None:
    store.delete([entry.key for entry in store.entries(folder_name(step))])


def _is_damaged(own: Store, item: Checkpoint) -> bool:
    return bool(verify(own, item.step))


def _paths(unit: Unit) -> Iterator[Path]:
    """The paths of a checkpoint: its folder or file; of one at the top its files."""
    for name in [unit.name] if unit.name else [entry.key for entry in unit.files.values()]:
        if (path := unit.store.local_path(name)) is not None:
            yield path


def _fetch(
    source: Store, item: Checkpoint, own: Store, known: set[Path], notes: list[str], clock: Clock
) -> str:
    """The path of what was fetched. Raises `Corrupt`, StorageConflict, StorageError."""
    folder, manifest = folder_name(item.step), item.manifest
    back = replace(manifest, place=manifest.origin, origin=None)
    if manifest.origin is not None and _is_there(own, back):
        _set_times(back, _at(own, back), clock())
        own.write(f"{folder}/{MANIFEST}", back.encode())
        return complete_checkpoint(own, back).files
    who = f"fetch on {socket.gethostname()}, process {os.getpid()}"
    with hold_checkpoint(source, item.step, who, clock) as renew:
        own.delete([f"{folder}/{MANIFEST}"])
        copy_parts(place_of(source, manifest), own, manifest, renew)
    own.delete(_other_files(own, manifest))
    if manifest.origin is None:
        own.write(f"{folder}/{MANIFEST}", manifest.encode())
        return complete_checkpoint(own, manifest).files
    notes.extend(_put_back(own, back, known, clock()))
    own.write(f"{folder}/{MANIFEST}", back.encode())
    return complete_checkpoint(own, back).files


def _is_there(own: Store, manifest: Manifest) -> bool:
    """Return whether the place of the manifest has all of its parts, by their sums."""
    base, below = place_of(own, manifest)
    return not any(object_problem(base, part_key(below, part), part) for part in manifest.parts)


def _at(own: Store, manifest: Manifest) -> Path:
    """The folder of the files of a manifest, which is on a disk."""
    base, below = place_of(own, manifest)
    path = base.local_path(below)
    assert path is not None
    return path


def _set_times(manifest: Manifest, folder: Path, now: float) -> None:
    """Of the files of a checkpoint none may be newer than that which its library writes last."""
    with translate_os_errors(folder, "writing"):
        for part in manifest.parts:
            os.utime(folder / part.name, (now, now))


def _put_back(own: Store, manifest: Manifest, known: set[Path], now: float) -> list[str]:
    """Move the parts from the step's folder to the place of the manifest; a sentence for what stood there."""
    staged, target = _at(own, replace(manifest, place=None)), _at(own, manifest)
    _set_times(manifest, staged, now)
    is_folder = manifest.file is None and "/" in str(manifest.place)
    names = sorted((part.name for part in manifest.parts), key=_comes_last)
    moves = [(staged, target)] if is_folder else [(staged / name, target / name) for name in names]
    moved = []
    with translate_os_errors(target, "writing"):
        for left in [*staged.rglob(f"{OWN}*")]:  # of a fetch that was killed
            left.unlink()
        for origin, place in moves:
            moved += _make_room(place, known)
            place.parent.mkdir(parents=True, exist_ok=True)
            origin.rename(place)
        if manifest.format == deepspeed.FORMAT and is_folder:
            target.with_name(deepspeed.LATEST).write_text(target.name)
    return moved


def _comes_last(name: str) -> tuple[bool, str]:
    """By which what a library writes last (``.metadata``, an index) comes last."""
    return name.startswith(".") or name.endswith(".json"), name


def _make_room(place: Path, known: set[Path]) -> list[str]:
    """Move aside a checkpoint that is not the one of the bucket; nothing else. Raises StorageConflict."""
    with suppress(OSError):
        place.rmdir()  # an empty folder, which a killed process made
    if not os.path.lexists(place):
        return []
    if place not in known:
        raise StorageConflict(f"{place} is there, and is no checkpoint; move it, or name another folder")
    return [put_aside(place, "is not the one that the bucket has whole")]
