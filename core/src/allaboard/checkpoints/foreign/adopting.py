"""Puts our manifest beside whole checkpoints of other libraries, which `list`, `verify`, `collect`,
`evaluate` and `promote` know from then on.

The manifest stands in the run's folder, under the step; the files stay where they are. Every byte is read
once, for the sums. A checkpoint that its library removes or writes anew is not there any more, and its
manifest goes.
"""

from __future__ import annotations

from collections.abc import Container, Iterator, Mapping
from dataclasses import dataclass, replace
from typing import Any

from allaboard.checkpoints.foreign import pretrained
from allaboard.checkpoints.foreign.finding import is_in, judge_place, written
from allaboard.checkpoints.foreign.unit import Judgement, Unit, Verdict
from allaboard.checkpoints.listing import (
    Folder,
    complete_checkpoint,
    files_elsewhere,
    folders,
    object_digest,
    read_manifest,
    scan,
)
from allaboard.checkpoints.manifest import (
    FOREIGN_VERSION,
    MANIFEST,
    RETIRED,
    STEP_FROM_EPOCH,
    STEP_FROM_TIME,
    Checkpoint,
    Manifest,
    Part,
    folder_name,
)
from allaboard.errors import Corrupt, StorageMissing
from allaboard.storage import open_store
from allaboard.storage.base import Store
from allaboard.text.filenames import relative_name
from allaboard.text.units import rfc3339

_LARGEST_STEP = 10**12


@dataclass(frozen=True, slots=True)
class Adopted:
    """``added``: the checkpoints that have a manifest now. ``known``: steps that had one. ``left``: what was
    judged otherwise, or whole and without room: (judgement, reason).
    """

    added: tuple[Checkpoint, ...] = ()
    known: tuple[int, ...] = ()
    left: tuple[tuple[Judgement, str], ...] = ()


@dataclass(frozen=True, slots=True)
class Places:
    """Places of the checkpoints of a run: ``own``, its own folder, which takes the manifests; with ``job``
    the folder above it, too, which the job names. Of that only what was written ``since`` then (epoch
    seconds) belongs to the run.
    """

    own: Store
    job: bool = False
    since: float = 0.0

    def judged(self, only: str | None = None, known: Container[str] = ()) -> Iterator[tuple[str, Judgement]]:
        """(``.`` or ``..``, what a family says) of each checkpoint. ``only`` and ``known`` are those of
        `judge_place`. Raises StorageError.
        """
        for item in judge_place(self.own, only, known):
            yield ".", item
        if self.job:
            for item in judge_place(self.own.above(), only, known):
                if written(item.unit) >= self.since:
                    yield "..", item


def adopt(places: Places, template: Manifest, only: str | None = None) -> Adopted:
    """Write a manifest for each whole checkpoint that has none. ``template``: run, attempt, generation and
    world size of the manifests. ``only``: the name of one checkpoint. Safe to repeat and to be killed at any
    moment. Raises StorageError.
    """
    own = places.own
    _drop_outdated(own)
    taken = {item.step: item for item in scan(own)}
    vouched = {item.files: item.step for item in taken.values() if isinstance(item, Checkpoint)}
    added: list[Checkpoint] = []
    known: list[int] = []
    left: list[tuple[Judgement, str]] = []
    # Of several of one step the one whose name stays the same is the copy: `last.ckpt`.
    # Of many checkpoints most have a manifest: their files are not read once more.
    for top, judgement in sorted(places.judged(only, vouched), key=lambda pair: _moving(pair[1].unit)):
        if is_in(judgement.unit, vouched):
            known.append(vouched[judgement.unit.path])
            continue
        if judgement.verdict is not Verdict.WHOLE:
            left.append((judgement, judgement.reason))
            continue
        draft = _draft(top, judgement, template)
        if draft.step in taken:
            left.append((judgement, f"step {draft.step} has a manifest already"))
        elif isinstance(done := _hashed(judgement.unit, draft, judgement.facts.ranks), str):
            left.append((judgement, done))
        else:
            own.write(f"{folder_name(done.step)}/{MANIFEST}", done.encode())
            checkpoint = complete_checkpoint(own, done)
            taken[done.step] = checkpoint
            added.append(checkpoint)
    return Adopted(tuple(added), tuple(sorted(known)), tuple(left))


def adopt_at(uri: str) -> Adopted:
    """`adopt` of every checkpoint in a folder, or of exactly the one at ``uri``. Raises StorageError."""
    store, nobody = open_store(uri), Manifest(step=0)
    above, name = store.above(), store.uri.rpartition("/")[2]
    single = judge_place(above, name)
    # Weights may lie beside checkpoints: the folder of a trained model, with all that it saved before.
    is_single = bool(single) and (single[0].unit.is_file or single[0].format != pretrained.FORMAT)
    if is_single or (single and not any(judgement.unit.name for judgement in judge_place(store))):
        return adopt(Places(above), nobody, name)
    return adopt(Places(store), nobody)


def _moving(unit: Unit) -> bool:
    return not any(character.isdigit() for character in unit.base)


def report_fields(checkpoint: Checkpoint) -> dict[str, Any]:
    """The fields of the report line that tells of an adopted checkpoint. ``flags``: what its step is where it
    is none of the training, then with its ``epoch``, if it says one.
    """
    fields = {
        "step": checkpoint.step,
        "uri": checkpoint.uri,
        "metrics": dict(checkpoint.metrics),
        "bytes": checkpoint.bytes,
    }
    manifest = checkpoint.manifest
    flags = [flag for flag in manifest.flags if flag in (STEP_FROM_EPOCH, STEP_FROM_TIME)]
    return {**fields, "flags": flags, "epoch": manifest.epoch} if flags else fields


def _draft(top: str, judgement: Judgement, template: Manifest) -> Manifest:
    """The manifest of a whole checkpoint, but for the sums of its parts."""
    unit, facts = judgement.unit, judgement.facts
    step, flags = step_of_judgement(judgement)
    folder, file = (unit.name.rpartition("/")[0], unit.base) if unit.is_file else (unit.name, None)
    return replace(
        template.with_metrics(facts.metrics),
        step=step,
        created=rfc3339(written(unit)),
        version=FOREIGN_VERSION,
        format=judgement.format,
        place=f"{top}/{folder}" if folder else top,
        file=file,
        epoch=facts.epoch,
        flags=flags,
    )


def step_of_judgement(judgement: Judgement) -> tuple[int, tuple[str, ...]]:
    """The step of a whole checkpoint, and the flag that says what stands for it."""
    facts = judgement.facts
    flags: tuple[str, ...] = ()
    step = facts.step
    if step is None:
        at = written(judgement.unit)
        flag, step = (STEP_FROM_TIME, int(at)) if facts.epoch is None else (STEP_FROM_EPOCH, int(facts.epoch))
        flags = (flag,)
    return min(step, _LARGEST_STEP - 1), flags


def _hashed(unit: Unit, draft: Manifest, ranks: Mapping[str, int]) -> Manifest | str:
    """The manifest with all parts, or the reason for which it cannot have them."""
    if MANIFEST in unit.files or RETIRED in unit.files:
        return f"it has a file {MANIFEST} or {RETIRED} of its own, where a copy would have ours"
    parts = []
    for name, entry in sorted(unit.files.items()):
        try:
            relative_name(name)
        except ValueError as error:
            return str(error)
        try:
            digest = object_digest(unit.store, entry.key, entry.size)
        except StorageMissing:
            return f"{name} is gone"
        if unit.store.stat(entry.key) != entry:
            return f"{name} was changed while it was read"
        parts.append(Part(name, entry.size, digest, ranks.get(name, 0)))
    return replace(draft, parts=tuple(parts))


def _drop_outdated(own: Store) -> None:
    """Remove the manifests of this kind whose files their library has removed or replaced."""
    own.delete(
        f"{folder.name}/{MANIFEST}"
        for step, folder in folders(own).items()
        if MANIFEST in folder.files and _is_outdated(own, step, folder)
    )


def _is_outdated(own: Store, step: int, folder: Folder) -> bool:
    try:
        manifest = read_manifest(own, step)
    except (Corrupt, StorageMissing):
        return False
    return manifest.place is not None and files_elsewhere(own, manifest, folder) is None
