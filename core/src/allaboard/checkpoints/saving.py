"""Writes one checkpoint atomically: a kill at any moment never leaves a partial checkpoint under its name.

**On a disk** everything goes into a staging folder below ``<run>/.saving/``, parts first, then the manifest;
every file and folder is flushed; one rename gives the folder its final name. What a killed writer left in
``.saving`` has a free lock and is removed by the next save.

**In a bucket** the parts go first and the manifest last; before it the checkpoint does not exist.

**A step that exists already** (a rerun after a resume, or the leftovers of a writer that died) is never
overwritten part by part: the new parts get fresh names, then one manifest replaces the other. So one whole
checkpoint is there at every moment, and a reader of the old one has an hour to finish; retention removes
the old parts then.

**A writer that was taken over** (`allaboard.checkpoints.writers`) touches nothing of the later one: the parts
of every writer but the first have fresh names, and where a step had no manifest when its save began, the
manifest is created exclusively.
"""

from __future__ import annotations

import errno
import hashlib
import os
import secrets
import shutil
import sys
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import ExitStack, contextmanager, suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import BinaryIO

from allaboard.checkpoints.hashing import HashedFile, file_digest, hashed_file
from allaboard.checkpoints.listing import CHUNK
from allaboard.checkpoints.manifest import (
    MANIFEST,
    RETIRED,
    Checkpoint,
    Manifest,
    Part,
    check_part_name,
    folder_name,
)
from allaboard.errors import (
    BadInput,
    OwnershipConflict,
    StorageConflict,
    StorageError,
    StorageFull,
    StorageUnreachable,
    StorageUnsupported,
)
from allaboard.storage.base import Store, join
from allaboard.storage.disk import link_exclusively, translate_os_errors
from allaboard.storage.locks import SUFFIX, Lock, ask_lock, lock_of, locked_name
from allaboard.storage.scratch import scratch

STAGING = ".saving"
_LEFT_AFTER = 86400.0
_TRIES = 20

Source = bytes | bytearray | memoryview | Path | Callable[[HashedFile], object]
"""A part: its bytes, a file to copy, or a function that writes to the file it is given."""


def save(
    store: Store,
    manifest: Manifest,
    parts: Mapping[str, Source],
    *,
    check: Callable[[], None] = lambda: None,
) -> Checkpoint:
    """Write a checkpoint: ``manifest`` has everything but the parts. The result is complete and durable.

    ``store`` is the run's folder. ``check`` is called right before the manifest appears: what it raises ends
    the save. Raises BadInput for illegal names or no parts, StorageError when it cannot be written. Existing
    data then stays unchanged, and nothing partial stays under the final name.
    """
    if not parts:
        raise BadInput(f"checkpoint of step {manifest.step}: it has no parts; give at least one")
    for name in parts:
        check_part_name(name)
    folder = folder_name(manifest.step)
    place = _Place({entry.key for entry in store.entries(folder)}, f"{folder}/{MANIFEST}", check)
    # A process that was taken over may still write its parts.
    is_fresh = place.is_taken or (manifest.writer or 1) > 1
    names = {called: _random_name(called) if is_fresh else called for called in parts}
    root = store.local_path()
    write = _save_in_bucket if root is None else _save_on_disk
    done = write(
        store, manifest, {names[called]: (called, source) for called, source in parts.items()}, place
    )
    return Checkpoint(join(store.uri, folder), done)


@dataclass(frozen=True, slots=True)
class _Place:
    """Content of the step's folder when its save began: ``keys``."""

    keys: set[str]
    manifest: str
    check: Callable[[], None]

    @property
    def is_taken(self) -> bool:
        return bool(self.keys)

    @property
    def has_manifest(self) -> bool:
        return self.manifest in self.keys

    def conflict(self, where: str) -> OwnershipConflict:
        """The error for a manifest that appeared meanwhile. Raises TakenOver where that is the reason."""
        self.check()
        return OwnershipConflict(
            f"{where}: another process saved this step meanwhile; only rank 0 may save in a run's folder"
        )


def _random_name(name: str) -> str:
    """``state.pt`` -> ``state~1f0c9a77e2b4.pt``: '~' is not legal in a part's own name, so the two never
    meet.
    """
    stem, dot, ending = name.partition(".")
    return f"{stem}~{secrets.token_hex(6)}{dot}{ending}"


def _part(name: str, called: str, size: int, sha256: str) -> Part:
    return Part(name, size, sha256, part=None if called == name else called)


# --- on a disk


def _save_on_disk(
    store: Store, manifest: Manifest, parts: Mapping[str, tuple[str, Source]], place: _Place
) -> Manifest:
    root = store.local_path()
    assert root is not None
    folder = folder_name(manifest.step)
    with translate_os_errors(root / folder, "saving"), _staging(root) as area:
        staged = area / folder
        staged.mkdir()
        written = tuple(_stage(staged / name, called, source) for name, (called, source) in parts.items())
        done = replace(manifest, parts=written)
        _write_file(staged / MANIFEST, done.encode())
        _sync_folder(staged)
        place.check()
        if place.is_taken:
            _publish_into_existing(staged, root / folder, place)
        else:
            _publish(staged, root / folder, place)
        _sync_folder(root)
    return done


def _stage(path: Path, called: str, source: Source) -> Part:
    """Write one part, in one pass over its bytes."""
    with hashed_file(path) as file:
        if isinstance(source, (bytes, bytearray, memoryview)):
            file.write(source)
        elif isinstance(source, Path):
            _copy(source, file)
        else:
            _write_with(source, file, path)
    return _part(path.name, called, file.size, file.sha256)


def _publish(staged: Path, final: Path, place: _Place) -> None:
    try:
        staged.rename(final)
    except OSError as error:
        if not final.is_dir():
            raise
        # No object was there when this save began, and only one process saves for a run.
        if any((final / path.name).exists() for path in staged.iterdir()):
            raise place.conflict(str(final)) from error
        # What is in the way is no object: the temporary file of a killed writer.
        _publish_into_existing(staged, final, place)


def _publish_into_existing(staged: Path, final: Path, place: _Place) -> None:
    """Move fresh parts beside what is there, then replace the manifest: one whole checkpoint at every
    moment.
    """
    final.mkdir(exist_ok=True)  # retention may have emptied it
    moved = []
    try:
        for path in sorted(staged.iterdir()):
            if path.name != MANIFEST:
                path.rename(final / path.name)
                moved.append(final / path.name)
        _sync_folder(final)
        if place.has_manifest:
            (staged / MANIFEST).replace(final / MANIFEST)
        else:
            _publish_manifest(staged / MANIFEST, final / MANIFEST, place)
    except BaseException:
        if not _is_published(staged / MANIFEST, final / MANIFEST):  # else its parts are needed
            for path in moved:
                with suppress(OSError):
                    path.unlink()
        raise
    _sync_folder(final)
    with suppress(OSError):
        (final / RETIRED).unlink(missing_ok=True)


def _is_published(staged: Path, final: Path) -> bool:
    """True if the staged manifest was moved, or linked, to its final name."""
    try:
        return staged.samefile(final) if staged.exists() else True
    except FileNotFoundError:
        return False


def _publish_manifest(staged: Path, final: Path, place: _Place) -> None:
    try:
        link_exclusively(staged, final)
    except FileExistsError as error:
        raise place.conflict(str(final.parent)) from error
    except StorageUnsupported:
        staged.replace(final)
    else:
        with suppress(FileNotFoundError):  # it was renamed
            staged.unlink()


@contextmanager
def _staging(root: Path) -> Iterator[Path]:
    """A folder of this process alone on the same file system, gone afterwards whatever happens."""
    make_folder(root)
    sweep_staging(root)
    with ExitStack() as stack:
        stack.callback(_remove_quietly, root / STAGING)
        own, lock = _locked_name(root / STAGING)
        stack.callback(_remove_quietly, lock_of(own))
        stack.callback(os.close, lock)
        stack.callback(shutil.rmtree, own, ignore_errors=True)
        own.mkdir()
        yield own


def _locked_name(base: Path) -> tuple[Path, int]:
    """An unused name, and the file whose lock shows that its writer lives."""
    for _ in range(_TRIES):
        base.mkdir(exist_ok=True)
        with suppress(FileNotFoundError):  # another writer has just removed the empty folder
            return locked_name(base, 0o666)
    raise FileNotFoundError(errno.ENOENT, os.strerror(errno.ENOENT), str(base))


def _remove_quietly(path: Path) -> None:
    with suppress(OSError):  # the folder of another writer may still be in it
        path.rmdir() if path.is_dir() else path.unlink(missing_ok=True)


def sweep_staging(root: Path) -> None:
    """Remove what killed writers left below ``root``; never raises for one that cannot be removed."""
    base = root / STAGING
    now = time.time()
    with suppress(OSError):
        for own in {path.with_name(path.name.removesuffix(SUFFIX)) for path in base.iterdir()}:
            with suppress(OSError):
                _sweep_one(own, now)
        base.rmdir()


def _sweep_one(own: Path, now: float) -> None:
    """Remove a staging folder without a writer: its lock is free, or nothing changed for a day where locks do
    not work.
    """
    try:
        with ask_lock(lock_of(own)) as (answer, opened):
            if answer is Lock.FREE or (answer is Lock.UNKNOWN and now - opened.st_mtime > _LEFT_AFTER):
                _remove_left(own)
    except FileNotFoundError:  # the lock file is made first
        if now - own.lstat().st_mtime > _LEFT_AFTER:
            _remove_left(own)


def _remove_left(own: Path) -> None:
    shutil.rmtree(own, ignore_errors=True)
    _remove_quietly(lock_of(own))


def make_folder(folder: Path) -> None:
    """Make a folder and what is missing above it, so that a power cut does not lose their names. Raises
    OSError.
    """
    missing = []
    while not folder.is_dir() and folder != folder.parent:
        missing.append(folder)
        folder = folder.parent
    for path in reversed(missing):
        if path.exists():
            raise NotADirectoryError(errno.ENOTDIR, os.strerror(errno.ENOTDIR), str(path))
        path.mkdir(exist_ok=True)
        _sync_folder(path.parent)


def _write_file(path: Path, data: bytes | bytearray | memoryview) -> None:
    with path.open("xb") as file:
        file.write(data)
        file.flush()
        os.fsync(file.fileno())


def _copy(source: Path, into: HashedFile) -> None:
    with _open_source(source) as reading:
        while piece := reading.read(CHUNK):
            into.write(piece)


@contextmanager
def _open_source(source: Path) -> Iterator[BinaryIO]:
    try:
        file = source.open("rb")
    except OSError as error:
        raise BadInput(
            f"{source}: {error.strerror}; a part of a checkpoint must be a file that can be read"
        ) from error
    with file:
        yield file


def _write_with(write: Callable[[HashedFile], object], file: HashedFile, path: Path) -> None:
    try:
        write(file)
    except StorageError:
        raise
    except Exception as error:
        # torch reports a full disk as a RuntimeError without an errno.
        if not isinstance(error, OSError) and _is_full(path):
            free = shutil.disk_usage(path.parent).free
            raise StorageFull(
                f"{path.parent}: no space left on the disk ({free} bytes free); "
                "free some, keep fewer checkpoints, or use another disk"
            ) from error
        raise


def _is_full(path: Path) -> bool:
    """True if not one more page can be written beside ``path``."""
    probe = path.with_name("probe")
    try:
        with probe.open("wb") as file:
            file.write(bytes(1 << 16))
            file.flush()
            os.fsync(file.fileno())
    except OSError:
        return True
    finally:
        with suppress(OSError):
            probe.unlink()
    return False


def _sync_folder(folder: Path) -> None:
    if sys.platform == "win32":
        return  # folders cannot be opened there
    fd = os.open(folder, os.O_RDONLY)
    try:
        with suppress(OSError):  # not every file system can flush a folder
            os.fsync(fd)
    finally:
        os.close(fd)


# --- anywhere else


def _save_in_bucket(
    store: Store, manifest: Manifest, parts: Mapping[str, tuple[str, Source]], place: _Place
) -> Manifest:
    folder = folder_name(manifest.step)
    written: list[Part] = []
    name = ""
    try:
        for name, (called, source) in parts.items():
            written.append(_upload_part(store, f"{folder}/{name}", called, source))
        place.check()
    except StorageUnreachable:
        raise  # no answer: the parts without a manifest are no checkpoint, and are removed after a day
    except BaseException:
        with suppress(StorageError):
            store.delete(f"{folder}/{sent}" for sent in (*(part.name for part in written), name))
        raise
    done = replace(manifest, parts=tuple(written))
    # From here on the parts stay even when this fails: the answer may be lost while the manifest was kept.
    _write_manifest(store, done, place)
    if place.is_taken:
        with suppress(StorageError):
            store.delete([f"{folder}/{RETIRED}"])
    return done


def _write_manifest(store: Store, manifest: Manifest, place: _Place) -> None:
    if not place.has_manifest and manifest.writer is not None:
        try:
            store.create(place.manifest, manifest.encode())
        except StorageConflict as error:
            raise place.conflict(join(store.uri, place.manifest)) from error
        except StorageUnsupported:
            pass  # the claim of this writer has told of it
        else:
            return
    store.write(place.manifest, manifest.encode())


def _upload_part(store: Store, key: str, called: str, source: Source) -> Part:
    name = key.rpartition("/")[2]
    if isinstance(source, (bytes, bytearray, memoryview)):
        data = bytes(source)
        store.write(key, data)
        return _part(name, called, len(data), hashlib.sha256(data).hexdigest())
    if isinstance(source, Path):
        with _open_source(source) as file:
            size, sha256 = file_digest(file)
        store.upload(source, key)
        return _part(name, called, size, sha256)
    with scratch() as own:
        part = _stage(own / name, called, source)
        store.upload(own / name, key)
    return part
