"""Copy one complete checkpoint elsewhere, disk or bucket: verified at both ends, its manifest last.

It lands in ``<into>/<run>/step-<12 digits>/``, so that checkpoints of many runs can be collected into one
place; those of a further generation in ``<run>-g2``, as their own folder is called. Verified parts are not
copied again, so an interrupted copy continues where it stopped. Another checkpoint under that name is never
overwritten: the folder's name then ends in the digest of what it holds.

A source that is torn or corrupted is passed over for the next one (the one before for ``latest``, the
second best for ``best``), and `Collected.notes` says so; a step that was named is that step or an error.
"""

from __future__ import annotations

import hashlib
import os
import re
import socket
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

from allaboard.checkpoints.flags import FLAGS, RunFlags, decode_flags, flags_file
from allaboard.checkpoints.holds import hold_checkpoint
from allaboard.checkpoints.listing import (
    Torn,
    complete_checkpoint,
    find,
    object_digest,
    object_problem,
    part_key,
    part_problem,
    place_of,
    scan,
)
from allaboard.checkpoints.manifest import MANIFEST, Checkpoint, Manifest, Part, folder_name
from allaboard.checkpoints.metrics import best_of, parse_best
from allaboard.errors import BadInput, Corrupt, StorageError, StorageMissing
from allaboard.storage import open_store
from allaboard.storage.base import Store, join, read_small
from allaboard.storage.scratch import scratch

Progress = Callable[[int, int], None]
"""Called with the bytes done and the bytes in all."""


@dataclass(frozen=True, slots=True)
class Collected:
    """Copy of a checkpoint: its place, its kind, its bytes, and those that were copied now. ``flags``: of its
    run, as `allaboard.checkpoints.flags` has them; None: nothing is known of the end of the run.
    """

    uri: str
    source: str
    checkpoint: Checkpoint
    copied: int
    notes: tuple[str, ...] = ()
    flags: tuple[str, ...] | None = None

    @property
    def step(self) -> int:
        """The step of the checkpoint."""
        return self.checkpoint.step

    @property
    def bytes(self) -> int:
        """The size of all parts."""
        return self.checkpoint.bytes

    def to_dict(self) -> dict[str, Any]:
        """The copy as ``allaboard checkpoints collect --json`` prints it."""
        manifest = self.checkpoint.manifest
        return {
            "uri": self.uri,
            "source": self.source,
            "run": manifest.run,
            "step": manifest.step,
            "metrics": dict(manifest.metrics),
            "nonfinite": list(manifest.nonfinite),
            "fingerprint": manifest.fingerprint,
            "bytes": manifest.size,
            "copied": self.copied,
            "notes": list(self.notes),
            "flags": None if self.flags is None else list(self.flags),
        }


@dataclass(slots=True)
class _Meter:
    """Turns the stores' increments into "so much of so much"."""

    total: int
    tell: Progress | None
    done: int = 0

    def add(self, count: int) -> None:
        self.done += count
        if count and self.tell is not None:
            self.tell(self.done, self.total)


def collect(
    source: str | os.PathLike[str],
    into: str | os.PathLike[str],
    which: str | int = "latest",
    *,
    metric: str | None = None,
    mode: str = "min",
    progress: Progress | None = None,
    clock: Callable[[], float] = time.time,
    handed: RunFlags | None = None,
) -> Collected:
    """Copy one checkpoint of the run's folder ``source`` (or of exactly that step's folder, or the files
    of an adopted one) below ``into``.

    ``which`` is ``latest``, ``best`` (by ``metric``, smaller or larger by ``mode``; ``best:val_loss:min``
    says it in one word) or a step. ``handed``: the flags of the run, for a folder that has none beside the
    checkpoints. Safe to repeat. Raises StorageMissing when nothing complete is there,
    `Corrupt` when all of it is damaged, BadInput, StorageError.
    """
    folder, step = find(os.fspath(source))
    store, target = open_store(folder), open_store(into)
    notes: list[str] = []
    for checkpoint in candidates(store, which if step is None else step, metric, mode, notes):
        try:
            return _copy(store, checkpoint, target, notes, progress, clock, handed)
        except (Corrupt, StorageMissing) as error:
            if isinstance(error, StorageMissing) and store.stat(f"{folder_name(checkpoint.step)}/{MANIFEST}"):
                raise  # the checkpoint is there, so it is the other end that is missing
            notes.append(f"step {checkpoint.step} was passed over: {error}")
    if notes:
        raise Corrupt(
            f"{store.uri}: no whole checkpoint to collect: {'; '.join(notes)}; train on, or take another step"
        )
    raise StorageMissing(
        f"{store.uri}: no complete checkpoint is there; "
        "check the folder (<checkpoints.uri>/<run>), or wait for the first"
    )


def best_checkpoint(sources: Sequence[str | os.PathLike[str]], metric: str, mode: str) -> tuple[int, str]:
    """The best complete checkpoint of several runs, by a metric of its manifest: the place of its run among
    ``sources``, and its uri. Of equals, that of the first run. Raises BadInput where none has a finite number
    under that name, StorageError.
    """
    complete = [
        (number, item)
        for number, source in enumerate(sources)
        for item in scan(open_store(find(os.fspath(source))[0]))
        if isinstance(item, Checkpoint)
    ]
    # Of equals `best_of` puts the later one first, which within a run is the newer one.
    ordered = sorted(complete, key=lambda pair: -pair[0])
    ranked = best_of(ordered, lambda pair: pair[1].metrics, metric, mode)
    if not ranked:
        known = ", ".join(sorted({name for _, item in complete for name in item.metrics})) or "none"
        raise BadInput(
            f"no checkpoint of these {len(sources)} runs has a finite metric {metric!r}; the metrics there "
            f"are: {known}"
        )
    return ranked[0][0], ranked[0][1].uri


def candidates(
    store: Store, which: str | int, metric: str | None, mode: str, notes: list[str]
) -> Iterator[Checkpoint]:
    """The complete checkpoints of a run's folder in the order in which `collect` tries them; ``notes`` takes
    a sentence about each that is passed over. Raises BadInput, StorageMissing.
    """
    wanted = _describe_choice(which)
    items = scan(store)
    complete = [item for item in items if isinstance(item, Checkpoint)]
    if wanted == "latest":
        for item in reversed(items):
            if isinstance(item, Torn):
                notes.append(_skip_note(item))
            else:
                yield item
    elif wanted == "best":
        metric, mode = parse_best(str(which)[5:]) if str(which).startswith("best:") else (metric, mode)
        notes.extend(_skip_note(item) for item in items if isinstance(item, Torn))
        yield from _ranked(store, complete, metric, mode)
    else:
        notes.extend(_skip_note(item) for item in items if isinstance(item, Torn) and item.step == wanted)
        yield from (item for item in complete if item.step == wanted)
        if not any(item.step == wanted for item in items):
            have = ", ".join(str(item.step) for item in complete) or "none"
            raise StorageMissing(
                f"{store.uri}: step {wanted} is not a complete checkpoint there; complete steps are: {have}"
            )


def _describe_choice(which: str | int) -> str | int:
    text = str(which)
    if text == "latest" or text.partition(":")[0] == "best":
        return text.partition(":")[0]
    if re.fullmatch(r"\d{1,12}", text):
        return int(text)
    raise BadInput(f"which {which!r} is not known; write latest, best or the number of a step")


def _ranked(store: Store, complete: Sequence[Checkpoint], metric: str | None, mode: str) -> list[Checkpoint]:
    if not metric:
        raise BadInput("which 'best' needs a metric; name it and min or max, as in val_loss and min")
    ranked = best_of(complete, lambda item: item.metrics, metric, mode)
    if complete and not ranked:
        known = ", ".join(sorted({name for item in complete for name in item.metrics})) or "none"
        raise BadInput(
            f"{store.uri}: no checkpoint has a finite metric {metric!r}; the metrics there are: {known}"
        )
    return ranked


def _skip_note(item: Torn) -> str:
    return f"step {item.step} was passed over: {'; '.join(item.problems)}"


def _copy(
    store: Store,
    checkpoint: Checkpoint,
    into: Store,
    notes: Sequence[str],
    progress: Progress | None,
    clock: Callable[[], float],
    handed: RunFlags | None,
) -> Collected:
    folder = folder_name(checkpoint.step)
    with hold_checkpoint(
        store, checkpoint.step, f"collect on {socket.gethostname()}, process {os.getpid()}", clock
    ) as keep:
        raw = read_small(store, f"{folder}/{MANIFEST}")
        manifest = Manifest.decode(raw, join(checkpoint.uri, MANIFEST))
        source = place_of(store, manifest)
        if manifest.place is not None:  # the files of the copy lie beside its manifest
            manifest = replace(manifest, place=None)
            raw = manifest.encode()
        target = _target(into, _step_folder(store, manifest), folder, raw)
        copied = copy_parts(source, target, manifest, keep, progress)
        flags = flags_file(store)
        known = decode_flags(flags) if flags is not None else None
        if known is None and handed is not None:
            known, flags = handed, handed.encode()
        if flags is not None and known is not None:
            target.write(FLAGS, flags)
        target.write(f"{folder}/{MANIFEST}", raw)
    copy = complete_checkpoint(target, manifest)
    codes = None if known is None else (*known.flags,)
    return Collected(copy.uri, checkpoint.uri, copy, copied, tuple(notes), codes)


def copy_parts(
    source: tuple[Store, str],
    target: Store,
    manifest: Manifest,
    keep: Callable[[], None] = lambda: None,
    progress: Progress | None = None,
) -> int:
    """Copy the parts that the step's folder of ``target`` lacks, each verified by its sum. Returns the bytes
    that were copied. ``source``: as of `place_of`; ``keep`` is called now and then. Raises `Corrupt`,
    StorageError.
    """
    meter = _Meter(manifest.size, progress)
    copied = 0
    for part in manifest.parts:
        before = meter.done
        if part_problem(target, manifest.step, part) is None:
            meter.add(part.size)
            continue
        _copy_part(source, target, manifest.step, part, meter, keep)
        meter.add(before + part.size - meter.done)
        copied += part.size
    return copied


def _step_folder(store: Store, manifest: Manifest) -> str:
    own = store.uri.rpartition("/")[2]
    # Of a further generation: a copy of the first may be under way.
    is_further = manifest.run and re.fullmatch(re.escape(manifest.run) + r"-g\d+", own)
    name = own if is_further else manifest.run or own
    return re.sub(r"[^A-Za-z0-9._-]+", "-", name).strip(".-")[:200] or "run"


def _target(into: Store, name: str, folder: str, raw: bytes) -> Store:
    """Folder of the copy: the run's name, unless another checkpoint of that run and step is there."""
    try:
        other = into.read(f"{name}/{folder}/{MANIFEST}") != raw
    except StorageMissing:
        other = False
    return into.below(f"{name}-{hashlib.sha256(raw).hexdigest()[:8]}" if other else name)


def _copy_part(
    source: tuple[Store, str], target: Store, step: int, part: Part, meter: _Meter, keep: Callable[[], None]
) -> None:
    store, origin = source[0], part_key(source[1], part)

    def moved(count: int) -> None:
        keep()
        meter.add(count)

    key = f"{folder_name(step)}/{part.name}"
    with _as_file(store, origin, target, key, moved) as path:
        if path is not None:
            target.upload(path, key, moved)
    entry = target.stat(key)
    # One read of the copy proves both ends: it can only match when the source did.
    if entry is not None and entry.size == part.size and object_digest(target, key, part.size) == part.sha256:
        return
    target.delete([key])
    if problem := object_problem(store, origin, part):
        raise Corrupt(problem)
    raise StorageError(
        f"{join(target.uri, key)}: the copy has other bytes than its source, and was removed; "
        "collect again, and check that disk or bucket"
    )


@contextmanager
def _as_file(
    store: Store, origin: str, target: Store, key: str, moved: Callable[[int], None]
) -> Iterator[Path | None]:
    """The source as a file; None when it went straight to where it belongs."""
    here, there = store.local_path(origin), target.local_path(key)
    if here is not None:
        yield here
    elif there is not None:
        store.download(origin, there, moved)
        yield None
    else:
        with scratch() as own:
            store.download(origin, own / "part")
            yield own / "part"
