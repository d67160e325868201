"""Checkpoints of a run: they are found by listing its folder, never by a pointer that can lie.

A checkpoint is **complete** when its manifest is valid and every part is there in the size that the
manifest says; that is one listing and one small read per checkpoint. `verify` reads every byte as well.
One that a process saved after another had taken over from it is left out, as if it were not there
(`allaboard.checkpoints.writers`).
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from itertools import islice

from allaboard.checkpoints.hashing import file_digest
from allaboard.checkpoints.manifest import MANIFEST, Checkpoint, Manifest, Part, folder_name
from allaboard.checkpoints.metrics import best_of
from allaboard.checkpoints.names import RUN_FOLDER, step_of
from allaboard.checkpoints.writers import FOLDER as WRITERS
from allaboard.checkpoints.writers import is_superseded, newest_writer, numbers_of
from allaboard.errors import BadInput, Corrupt, StorageMissing
from allaboard.storage import open_store
from allaboard.storage.base import Entry, Store, join, read_small
from allaboard.storage.disk import translate_os_errors

#: Bytes are hashed in pieces of this size, so that a checkpoint of any size fits into memory.
CHUNK = 16 * 2**20


@dataclass(frozen=True, slots=True)
class Torn:
    """A step's folder whose manifest is there and does not hold: the manifest is not valid, or a part is
    missing or cut.
    """

    step: int
    uri: str
    problems: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Folder:
    """Listing of one step: file name -> entry."""

    step: int
    files: dict[str, Entry] = field(default_factory=dict)

    @property
    def name(self) -> str:
        return folder_name(self.step)


def folders(store: Store) -> dict[int, Folder]:
    """Every step's folder in a run's folder, complete or not, by step."""
    return _by_step(_entries(store))


def _by_step(entries: Iterable[Entry]) -> dict[int, Folder]:
    by_step: dict[int, Folder] = {}
    for entry in entries:
        top, _, rest = entry.key.partition("/")
        step = step_of(top)
        if step is not None and rest:
            by_step.setdefault(step, Folder(step)).files[rest] = entry
    return dict(sorted(by_step.items()))


def _entries(store: Store) -> Iterator[Entry]:
    """Entries that may belong to a checkpoint, or name its writer. A bucket lists a whole tree in one
    request; on a disk a folder that is not a run's, such as ``/``, must not be walked to its last leaf to
    find that out.
    """
    if store.local_path() is None:
        yield from store.entries()
        return
    for name in store.folders():
        if step_of(name) is not None or name == WRITERS:
            yield from store.entries(name)


def save_times(store: Store, at_most: int) -> list[float]:
    """Times at which the checkpoints of a run's folder were completed (their manifests written), ascending,
    by the clock of the store. One listing, of which ``at_most`` entries are looked at; no manifest is read.
    """
    times = []
    for entry in islice(_entries(store), at_most):
        top, _, rest = entry.key.partition("/")
        if rest == MANIFEST and step_of(top) is not None:
            times.append(entry.modified)
    return sorted(times)


def scan(store: Store) -> list[Checkpoint | Torn]:
    """All checkpoints in a run's folder, oldest step first: complete ones, and torn ones with the reasons.

    A folder without a manifest is no checkpoint (unfinished, or retired) and is left out.
    """
    return scan_all(store).items


@dataclass(frozen=True, slots=True)
class Scan:
    """``items``: as of `scan`. ``superseded``: complete checkpoints that do not count, because their writer
    had been taken over. ``writer``: the number of the present writer, None where that decided nothing.
    """

    items: list[Checkpoint | Torn]
    superseded: list[Checkpoint]
    writer: int | None = None


def scan_all(store: Store) -> Scan:
    """As `scan`, and what it leaves out."""
    entries = [*_entries(store)]
    inspected = (_inspect_folder(store, folder) for folder in _by_step(entries).values())
    items = [item for item in inspected if item is not None]
    numbers = numbers_of(entry.key for entry in entries)
    highest = max(numbers, default=0)
    saved_by = [item.manifest.writer for item in items if isinstance(item, Checkpoint)]
    if all(number is None or number >= highest for number in saved_by):
        return Scan(items, [])
    newest = newest_writer(store, numbers)
    superseded = [
        item for item in items if isinstance(item, Checkpoint) and is_superseded(item.manifest, newest)
    ]
    gone = {checkpoint.step for checkpoint in superseded}
    left = [item for item in items if item.step not in gone]
    return Scan(left, superseded, newest.number if newest is not None else None)


def _inspect_folder(store: Store, folder: Folder) -> Checkpoint | Torn | None:
    if MANIFEST not in folder.files:
        return None
    uri = join(store.uri, folder.name)
    try:
        manifest = read_manifest(store, folder.step)
    except StorageMissing:
        return None  # retired since the listing
    except Corrupt as error:
        return Torn(folder.step, uri, (str(error),))
    files = folder.files if manifest.place is None else files_elsewhere(store, manifest, folder)
    if files is None:
        return None
    problems = tuple(_size_problems(manifest, files))
    return Torn(folder.step, uri, problems) if problems else complete_checkpoint(store, manifest)


def complete_checkpoint(store: Store, manifest: Manifest) -> Checkpoint:
    """The checkpoint of a manifest of this run's folder, whose files are known to be there."""
    base, prefix = place_of(store, manifest)
    return Checkpoint(
        join(store.uri, folder_name(manifest.step)), manifest, join(base.uri, prefix, manifest.file or "")
    )


def place_of(store: Store, manifest: Manifest) -> tuple[Store, str]:
    """Store and folder in it of the files of a checkpoint of this run's folder."""
    if manifest.place is None:
        return store, folder_name(manifest.step)
    top, _, below = manifest.place.partition("/")
    return (store.above() if top == ".." else store), below


def part_key(prefix: str, part: Part) -> str:
    """The key of a part in the store of `place_of`."""
    return f"{prefix}/{part.name}" if prefix else part.name


def files_elsewhere(store: Store, manifest: Manifest, folder: Folder) -> dict[str, Entry] | None:
    """The files of a checkpoint that another library wrote, by their names in the manifest. None when that
    library has removed it or written another one in its place: it is not there any more, and nothing is torn.
    """
    base, prefix = place_of(store, manifest)
    entries = {part.name: base.stat(part_key(prefix, part)) for part in manifest.parts}
    files = {name: entry for name, entry in entries.items() if entry is not None}
    written = folder.files[MANIFEST].modified
    is_replaced = any(entry.modified > written for entry in files.values())
    return None if not files or is_replaced else files


def read_manifest(store: Store, step: int) -> Manifest:
    """The manifest of a step. Raises StorageMissing when there is none, `Corrupt` when it is not valid."""
    key = f"{folder_name(step)}/{MANIFEST}"
    where = join(store.uri, key)
    manifest = Manifest.decode(read_small(store, key), where)
    if manifest.step != step:
        raise Corrupt(f"{where}: says step {manifest.step}; the manifest belongs to another folder")
    return manifest


def _size_problems(manifest: Manifest, files: Mapping[str, Entry]) -> Iterator[str]:
    for part in manifest.parts:
        entry = files.get(part.name)
        if entry is None:
            yield f"part {part.name} is missing"
        elif entry.size != part.size:
            yield f"part {part.name} has {entry.size} bytes, the manifest says {part.size}"


def list_checkpoints(store: Store) -> list[Checkpoint]:
    """The complete checkpoints of a run's folder, oldest step first."""
    return [item for item in scan(store) if isinstance(item, Checkpoint)]


def latest(store: Store) -> Checkpoint | None:
    """The complete checkpoint of the highest step."""
    return max(list_checkpoints(store), key=lambda checkpoint: checkpoint.step, default=None)


def best(store: Store, metric: str, mode: str = "min") -> Checkpoint | None:
    """The complete checkpoint that is best by a metric; of equals the newest; None when none has a
    finite one.
    """
    return next(
        iter(best_of(list_checkpoints(store), lambda checkpoint: checkpoint.metrics, metric, mode)), None
    )


def verify(store: Store, step: int) -> list[str]:
    """Problems of one checkpoint, with the names of the parts, after reading every byte. Empty: there are
    none.
    """
    try:
        manifest = read_manifest(store, step)
    except StorageMissing:
        return [f"{folder_name(step)} has no {MANIFEST}; it was never completed, or retention let it go"]
    except Corrupt as error:
        return [str(error)]
    base, prefix = place_of(store, manifest)
    problems = (object_problem(base, part_key(prefix, part), part) for part in manifest.parts)
    return [problem for problem in problems if problem]


def part_problem(store: Store, step: int, part: Part) -> str | None:
    """Problem of one part that lies beside its manifest, or None."""
    return object_problem(store, f"{folder_name(step)}/{part.name}", part)


def object_problem(store: Store, key: str, part: Part) -> str | None:
    """Reason for which this object is not that part, or None."""
    entry = store.stat(key)
    if entry is None:
        return f"part {part.name} is missing"
    if entry.size != part.size:
        return f"part {part.name} has {entry.size} bytes, the manifest says {part.size}"
    if object_digest(store, key, part.size) != part.sha256:
        return f"part {part.name} has other bytes than the manifest says (sha256 differs)"
    return None


def find(uri: str) -> tuple[str, int | None]:
    """As `locate`; of the files of an adopted checkpoint the folder of its manifest's run, and its step."""
    folder, step = locate(uri)
    if step is None and not any(step_of(name) is not None for name in open_store(uri).folders()):
        adopted = adopted_at(uri)
        if adopted is not None:
            return adopted[0].uri, adopted[1].step
    return folder, step


def locate(uri: str) -> tuple[str, int | None]:
    """A run's folder and the step, from the uri of either: ``r-1/step-000000000120`` -> (``r-1``, 120)."""
    parent, slash, last = uri.rstrip("/").rpartition("/")
    step = step_of(last)
    return (uri, None) if step is None else (parent or slash or ".", step)


def checkpoint_at(uri: str) -> tuple[Store, Checkpoint]:
    """The complete checkpoint of that uri (of a run's folder: its latest), and the store of its run's folder.

    Raises BadInput when none is there, StorageError.
    """
    folder, step = locate(uri)
    store = open_store(folder)
    items = [item for item in scan(store) if step in (None, item.step)]
    if not items and (adopted := adopted_at(uri)) is not None:
        return adopted
    complete = [item for item in items if isinstance(item, Checkpoint)]
    if complete:
        return store, complete[-1]
    torn = "; ".join(problem for item in items if isinstance(item, Torn) for problem in item.problems)
    reason = f"the checkpoint there is torn: {torn}" if torn else "no complete checkpoint is there"
    if not items and (format_ := _foreign_format(uri, store)) is not None:
        raise BadInput(
            f"{uri} holds a checkpoint of {format_}, without the manifest by which it is known to be "
            f"complete; `allaboard checkpoints adopt {uri}` writes one where it is whole and its format is "
            "known; else save it with `allaboard.checkpoints.Checkpointer` (load it in a script, then `save`)"
        )
    raise BadInput(f"{uri}: {reason}; give the uri of a complete one (.../step-000000000120)")


def adopted_at(uri: str) -> tuple[Store, Checkpoint] | None:
    """The complete checkpoint of another library whose files are at ``uri``, and the store of the run's
    folder whose manifest vouches for it. None: there is no such manifest. Raises StorageError.
    """
    store = files = open_store(uri)
    if not _has_files(store):
        return None
    for _ in range(_LEVELS_UP):
        if (at := store.local_path()) is not None and at == at.parent:
            return None  # the root of the disk is no job's folder
        names = [name for name in store.folders() if RUN_FOLDER.fullmatch(name)][:LOOKED_AT]
        for run in (store, *(store.below(name) for name in names)):
            if not any(step_of(name) is not None for name in run.folders()):
                continue
            for item in scan(run):
                if isinstance(item, Checkpoint) and item.files == files.uri:
                    return run, item
        try:
            store = store.above()
        except BadInput:
            return None
    return None


def _has_files(store: Store) -> bool:
    """Return whether a checkpoint of another library may be here: a file, or a folder with files of its own.
    The common folder of many runs has none.
    """
    if any("/" not in entry.key for entry in islice(store.entries(), LOOKED_AT)):
        return True
    try:
        return store.above().stat(store.uri.rpartition("/")[2]) is not None
    except BadInput:
        return False


_LEVELS_UP = 6
LOOKED_AT = 1000
"""Names in a folder by which the format of a checkpoint is told."""
_FORMATS = (
    ("Hugging Face's Trainer", re.compile(r"(^|/)trainer_state\.json$")),
    (
        "Hugging Face",
        re.compile(r"(^|/)(model|adapter_model)(-\d+-of-\d+)?\.safetensors$|(^|/)pytorch_model\S*\.bin$"),
    ),
    ("torch.distributed.checkpoint", re.compile(r"\.distcp$")),
    ("DeepSpeed", re.compile(r"(^|/)(zero_pp_rank|mp_rank)_\S*states\.pt$")),
    ("PyTorch Lightning", re.compile(r"\.ckpt$")),
    ("Orbax", re.compile(r"(^|/)_CHECKPOINT_METADATA$")),
    ("TensorFlow", re.compile(r"\.data-\d{5}-of-\d{5}$|(^|/)saved_model\.pb$")),
    ("Keras", re.compile(r"\.(keras|h5)$")),
    ("PyTorch", re.compile(r"\.(pt|pth)$")),
    ("safetensors", re.compile(r"\.safetensors$")),
)


def _foreign_format(uri: str, store: Store) -> str | None:
    """Library that wrote the files: of the folder, or of a single file."""
    if (library := format_of(entry.key for entry in islice(store.entries(), LOOKED_AT))) is not None:
        return library
    parent, slash, last = uri.rstrip("/").rpartition("/")
    library = format_of([last])
    is_there = library is not None and open_store(parent or slash or ".").stat(last) is not None
    return library if is_there else None


def format_of(names: Iterable[str]) -> str | None:
    """Library that wrote files of these names; None: not known."""
    known = [*names]
    return next((name for name, pattern in _FORMATS if any(map(pattern.search, known))), None)


def object_digest(store: Store, key: str, size: int) -> str:
    """The SHA-256 of an object, read in pieces."""
    path = store.local_path(key)
    if path is not None:
        with translate_os_errors(path, "reading"), path.open("rb", buffering=0) as file:
            return file_digest(file)[1]
    whole = hashlib.sha256()
    for start in range(0, size, CHUNK):
        whole.update(store.read(key, start, min(CHUNK, size - start)))
    return whole.hexdigest()
