"""Make a data set: samples in, shards and an index out, on a disk or in a bucket.

**A version of its own.** What is prepared goes to the folder of its version, and nowhere else; at the end the
index of the place names it the newest (`versions.py`). So a training that reads another version is not
disturbed, whoever prepares what meanwhile, and of two preparations at the same moment both end whole. A shard
that another version has already is linked, or copied by the server of the bucket. Versions that nobody has
used for a while are removed.

**Killed at any instant, the next call goes on.** A shard appears whole under a name that tells its content,
then the journal knows it, and at the end the index appears in one piece; until then readers see the data set
as it was before, or none. Files whose names, sizes and times of change are those of the journal (or the
index) are not read again. What an iterable gives is known only by reading it, so it is read again from its
start, and shards that come out as they were are not written again.

**A changed source starts over**, and says so; shards that did not change are kept.
"""

from __future__ import annotations

import hashlib
import logging
import os
import secrets
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

from allaboard.errors import (
    BadInput,
    Corrupt,
    OwnershipConflict,
    Problem,
    StorageDenied,
    StorageError,
    StorageMissing,
)
from allaboard.shards.cache import checksum
from allaboard.shards.index import INDEX, VERSION_NAME, Index, Shard, content_of
from allaboard.shards.journal import JOURNAL, Journal
from allaboard.shards.samples import Files, Sample, Source, Stream, find_samples
from allaboard.shards.verify import load_index
from allaboard.shards.versions import Hold, keep_seconds, remove_unused
from allaboard.shards.write import Limits, ShardFile, headers_of
from allaboard.storage import open_store
from allaboard.storage.base import Store, read_small
from allaboard.storage.disk import Unnamed, sweep, translate_os_errors, unnamed_file
from allaboard.storage.scratch import own_folder, scratch
from allaboard.text.filenames import relative_name
from allaboard.text.units import counted, rfc3339, show_seconds
from allaboard.text.units import size as as_bytes
from allaboard.text.untrusted import RECORDS

Progress = Callable[[int, int | None, int], None]
"""Called with the samples done, all samples (None: unknown), and the bytes of their shards; ten times a
second at most, and at the end.
"""

BYTES_PER_SHARD = 256 * 2**20
_EVERY = 0.1
_STARTING_OVER = "starting over; shards that come out as before are kept"
_HOLDER = "prepared"


def prepare(
    source: Source,
    into: str | os.PathLike[str] | Store,
    *,
    samples_per_shard: int | None = None,
    bytes_per_shard: int | str | None = None,
    progress: Progress | None = None,
    notice: Callable[[str], None] | None = None,
) -> Index:
    """Turn ``source`` into tar shards and `index.json` below ``into``; returns the index, whose
    ``version_uri(into)`` is the place of this very version.

    ``source`` is a folder, a list of files, an iterable of samples, a callable that returns one, or
    ``"module:function"`` (`samples.py` has the rules). A shard ends at ``samples_per_shard`` samples or
    ``bytes_per_shard`` bytes (``"64Mi"``), whichever comes first; with neither given, at 256 MiB. ``notice``
    is told, in a sentence, when earlier work is continued, reused or removed (default: the log).

    An unchanged folder or list of files that is prepared already returns at once. Versions that nobody has
    used for ``ALLABOARD_KEEP_SHARDS`` (7 days) are removed. Raises BadInput, which names all samples and
    paths that are wrong; then a data set that was there before is still there.
    """
    limits = _limits(samples_per_shard, bytes_per_shard)
    unused_for = keep_seconds(os.environ)
    place = open_store(into) if isinstance(into, (str, os.PathLike)) else into
    samples = find_samples(source)
    if isinstance(samples, Files):
        _refuse_overlap(samples, place)
        samples.refuse_above(limits.size)
    say = notice or logging.getLogger(__name__).info
    index = _Preparation(place, samples, limits, progress, say).run()
    with suppress(StorageDenied):  # whoever may write and not remove leaves that to others
        _remove_unused(place, index, unused_for, say)
    return index


def _remove_unused(place: Store, own: Index, unused_for: float, notice: Callable[[str], None]) -> None:
    newest = _index_at(place, lambda _: None)
    keep = {own.folder, newest.folder if newest is not None else own.folder}
    removed = remove_unused(place, keep, unused_for, Hold(place.below(own.folder), _HOLDER).write)
    if removed:
        names = ", ".join(name or "the one in the place itself, of an earlier release" for name in removed)
        age = show_seconds(unused_for).removesuffix(" 00h")
        notice(f"removed {counted(len(removed), 'version')} that nobody has used for {age}: {names}")


class _Preparation:
    """One call. ``_own``: the store of the version that it writes."""

    def __init__(
        self,
        place: Store,
        samples: Files | Stream,
        limits: Limits,
        progress: Progress | None,
        notice: Callable[[str], None],
    ) -> None:
        self._place = place
        self._found = samples
        self._limits = limits
        self._notice = notice
        self._meter = _Meter(progress, samples.total)
        self._fingerprint = _fingerprint(samples, limits)
        self._folder = _version_name(self._fingerprint)
        self._own = place.below(self._folder)
        self._hold = Hold(self._own, _HOLDER)
        self._newest = _index_at(place, notice)
        self._folders = [*filter(VERSION_NAME.fullmatch, place.folders())]
        self._versions = self._complete_versions()
        self._known: dict[str, tuple[str, Shard]] = {}  # a shard's own name -> its key in the place
        for index in self._versions.values():
            self._learn(index.shards)

    def _complete_versions(self) -> dict[str, Index]:
        """Folder -> its index as it stands in the place; that of an earlier release has none."""
        complete = {"": self._newest} if self._newest is not None and not self._newest.folder else {}
        for name in self._folders:
            with suppress(StorageMissing, Corrupt):
                complete[name] = load_index(self._place.below(name)).within(name)
        return complete

    def _learn(self, shards: Iterable[Shard]) -> None:
        self._known |= {shard.name.rpartition("/")[2]: (shard.name, shard) for shard in shards}

    def run(self) -> Index:
        sweep(_work_folder(self._place), time.time())  # what a killed call left
        ready = self._find_ready()
        if ready is not None:
            self._meter.set(ready.samples, ready.size)
            return self._make_newest(ready)
        journal = self._new_journal()
        try:
            same = self._write_rest(journal)
            if not journal.shards:
                raise BadInput("the source holds no samples, so there is nothing to prepare")
        except BadInput:
            if isinstance(self._found, Stream):  # it has to be read from its start anyway
                self._drop(journal)
            else:
                journal.save()
            raise
        except BaseException:
            journal.save()
            raise
        if same is not None:
            self._drop(journal)
            return self._make_newest(same)
        return self._publish(journal)

    def _find_ready(self) -> Index | None:
        """The version of these very files, whole, made by an earlier call."""
        if self._fingerprint is None:
            return None
        own = self._versions.get(self._folder)
        if own is not None and own.fingerprint == self._fingerprint and not _absent(self._place, own.shards):
            return own
        return None

    def _new_journal(self) -> Journal:
        """The journal of this call, with the shards of earlier calls that still exist."""
        journal = Journal(self._own, self._fingerprint)
        newest, unfinished = self._newest, self._unfinished()
        self._learn(unfinished)
        if self._fingerprint is None:
            if unfinished:
                self._notice("reading the source from its start; shards that come out as before are kept")
            return journal
        before = self._versions.get(self._folder, self._versions.get(""))
        earlier = Journal.read(self._own)
        of_old = Journal.read(self._place)
        if before and before.fingerprint == self._fingerprint:
            journal.shards = self._taken(before.shards)
        elif earlier and earlier.fingerprint == self._fingerprint:
            journal.shards = self._taken(earlier.within(self._folder))
            self._notice(f"going on after {counted(len(journal.shards), 'shard')} of an earlier call")
        elif of_old and of_old.fingerprint == self._fingerprint:
            journal.shards = self._taken(of_old.shards)
            self._notice(f"going on after {counted(len(journal.shards), 'shard')} of an earlier call")
        elif newest or unfinished:
            since = newest.created if newest else "an earlier call"
            self._notice(f"the source or the limits changed since {since}: {_STARTING_OVER}")
        self._meter.set(sum(s.samples for s in journal.shards), sum(s.size for s in journal.shards))
        return journal

    def _unfinished(self) -> list[Shard]:
        """The shards of all preparations that did not come to their end."""
        unfinished = []
        for name in ["", *self._folders]:
            if name not in self._versions or not name:
                journal = Journal.read(self._place.below(name))
                unfinished += journal.within(name) if journal else []
        return unfinished

    def _taken(self, shards: Iterable[Shard]) -> list[Shard]:
        """These shards of the place, in the own version from here on, up to the first that is damaged."""
        taken = []
        for shard in shards:
            own = replace(shard, name=relative_name(shard.name.rpartition("/")[2]))
            if not _is_intact(self._place, shard):
                self._notice(f"{shard.name} is missing or damaged: going on from there")
                break
            self._take(shard.name, own)
            taken.append(own)
        return taken

    def _take(self, key: str, shard: Shard) -> None:
        """The shard under this key of the place is one of the own version."""
        self._hold.renew()
        own = f"{self._folder}/{shard.name}"
        if key == own:
            return
        try:
            self._place.copy(key, own)
        except StorageError:  # not every server copies
            with scratch() as folder:
                self._place.download(key, folder / "shard")
                self._place.upload(folder / "shard", own)

    def _write_rest(self, journal: Journal) -> Index | None:
        """Write what the journal lacks. Returns the version that has the same shards already, if an iterable
        came out as one does; then nothing was written.
        """
        alike = list(self._versions.values()) if isinstance(self._found, Stream) else []
        samples = self._samples(sum(shard.samples for shard in journal.shards))
        sample = next(samples, None)
        while sample is not None:
            with unnamed_file(_work_folder(self._place)) as file:
                number = len(journal.shards)
                shard, sample = self._fill(file, number, sample, samples)
                still = [index for index in alike if index.own.shards[number : number + 1] == (shard,)]
                self._repair(file, [index.shards[number] for index in still])
                if alike and not still:
                    for earlier in journal.shards:
                        self._take(self._known[earlier.name][0], earlier)
                alike = still
                written = not alike and self._store_shard(file, shard)
            journal.add(shard, written=written)
        same = [index for index in alike if index.folder and len(index.shards) == len(journal.shards)]
        if same:
            return same[0]
        for shard in journal.shards if alike else ():
            self._take(self._known[shard.name][0], shard)
        return None

    def _repair(self, file: Unnamed, shards: Iterable[Shard]) -> None:
        """These shards of the place are what is in the file, also where they were damaged or lost."""
        there: str | None = None
        for shard in shards:
            if not _is_intact(self._place, shard):
                self._notice(f"{shard.name} is missing or damaged: it is written again")
                if there is None:
                    _store_file(file, self._place, shard.name)
                else:
                    self._place.copy(there, shard.name)
                there = shard.name

    def _store_shard(self, file: Unnamed, shard: Shard) -> bool:
        """The shard is one of the own version. False when it was somewhere in the place already."""
        key, known = self._known.get(shard.name, ("", None))
        own = replace(shard, name=relative_name(f"{self._folder}/{shard.name}"))
        if _is_intact(self._place, own):
            return False
        if known is not None and _is_intact(self._place, known) and known.sha256 == shard.sha256:
            self._take(key, shard)
            return False
        self._hold.renew()
        _store_file(file, self._own, shard.name)
        return True

    def _samples(self, done: int) -> Iterator[Sample]:
        if isinstance(self._found, Files):
            return self._found.samples(skip=done)
        return self._found.samples(largest=self._limits.size)

    def _fill(
        self, file: Unnamed, number: int, sample: Sample, samples: Iterator[Sample]
    ) -> tuple[Shard, Sample | None]:
        """Write one shard that begins with ``sample``. Returns it, and the first sample that is left."""

        def write(data: bytearray) -> None:
            with translate_os_errors(file.path.parent, "writing to"):
                file.file.write(data)

        shard = ShardFile(write)
        more: Sample | None = sample
        while more is not None:
            headers = headers_of(more)
            if not shard.has_room(headers, more, self._limits):
                break
            before = shard.size
            shard.add(headers, more)
            self._meter.add(1, shard.size - before)
            more = next(samples, None)
        return shard.finish(number), more

    def _drop(self, journal: Journal) -> None:
        """Remove what an iterable has left in the own version."""
        with suppress(StorageError):
            self._own.delete([*(shard.name for shard in journal.shards), JOURNAL, self._hold.key])

    def _publish(self, journal: Journal) -> Index:
        index = Index(
            tuple(journal.shards),
            self._fingerprint or content_of(journal.shards),
            rfc3339(time.time()) or "",
        )
        absent = _absent(self._own, index.shards)
        if absent:
            raise OwnershipConflict(
                f"{absent[0]} vanished from {self._own.uri} while the rest was prepared; another "
                "process seems to remove files there; stop it, and prepare again"
            )
        if self._newest and self._fingerprint is None:
            self._notice(f"the source changed since {self._newest.created}: it was prepared again")
        before = self._versions.get(self._folder)
        if before and before.own.shards == index.shards and before.fingerprint == index.fingerprint:
            index = before.own
        else:
            self._own.write(INDEX, index.to_bytes())
        self._meter.set(index.samples, index.size)
        return self._make_newest(index.within(self._folder))

    def _make_newest(self, index: Index) -> Index:
        """The index of the place is this one, and both versions count as used now."""
        own = self._place.below(index.folder)
        Hold(own, _HOLDER).renew()
        if own.stat(JOURNAL) is not None:  # a call was killed after its end, and before it could tidy up
            own.delete([JOURNAL])
        newest = _index_at(self._place, lambda _: None)
        if newest != index:
            if newest is not None:
                Hold(self._place.below(newest.folder), "replaced").renew()
            self._place.write(INDEX, index.to_bytes())
        return index


def _version_name(fingerprint: str | None) -> str:
    identity = fingerprint or secrets.token_hex(16)
    return f"version-{hashlib.sha256(identity.encode()).hexdigest()[:16]}"


class _Meter:
    """Tells the progress callback, not too often."""

    def __init__(self, progress: Progress | None, total: int | None) -> None:
        self._progress = progress
        self._total = total
        self._next = 0.0
        self.samples = 0
        self.size = 0

    def add(self, samples: int, size: int) -> None:
        self.samples += samples
        self.size += size
        if self._progress and time.monotonic() >= self._next:
            self._tell()

    def set(self, samples: int, size: int) -> None:
        self.samples, self.size = samples, size
        self._tell()

    def _tell(self) -> None:
        if self._progress:
            self._next = time.monotonic() + _EVERY
            self._progress(self.samples, self._total, self.size)


def _limits(samples: Any, size: Any) -> Limits:
    problems = []
    if samples is not None and (isinstance(samples, bool) or not isinstance(samples, int) or samples < 1):
        problems.append(
            Problem("samples_per_shard", f"{samples!r} is not a number of samples; give 1 or more")
        )
    number = None
    try:
        number = None if size is None else as_bytes(size)
    except ValueError as error:
        problems.append(Problem("bytes_per_shard", str(error)))
    if number is not None and number < 1:
        problems.append(Problem("bytes_per_shard", f"{size!r} is not a size; give 1 byte or more"))
    if problems:
        raise BadInput("these limits of shards cannot be kept", problems)
    if samples is None and number is None:
        number = BYTES_PER_SHARD
    return Limits(samples, number)


def _fingerprint(samples: Files | Stream, limits: Limits) -> str | None:
    """Fingerprint of everything that the shards depend on; None for an iterable, of which nothing is known
    before it is read.
    """
    if isinstance(samples, Stream):
        return None
    text = f"{samples.fingerprint} samples={limits.samples} size={limits.size}"
    return f"files:v1:{hashlib.sha256(text.encode()).hexdigest()}"


def _refuse_overlap(samples: Files, store: Store) -> None:
    into, source = store.local_path(), samples.folder
    if into and source and Path(os.path.realpath(into)).is_relative_to(os.path.realpath(source)):
        raise BadInput(
            f"the shards would go to {into}, inside of the source {source}; give a folder elsewhere"
        )


def _index_at(store: Store, notice: Callable[[str], None]) -> Index | None:
    try:
        return Index.from_bytes(read_small(store, INDEX, RECORDS.size), f"{store.uri}/{INDEX}")
    except StorageMissing:
        return None
    except Corrupt as error:
        notice(f"{error}: {_STARTING_OVER}")
        return None


def _absent(store: Store, shards: Iterable[Shard]) -> list[str]:
    """The names of shards that are not there in their full size."""
    with ThreadPoolExecutor(8) as pool:
        pairs = pool.map(lambda shard: (shard, store.stat(shard.name)), shards)
        return [shard.name for shard, entry in pairs if entry is None or entry.size != shard.size]


def _is_intact(store: Store, shard: Shard) -> bool:
    """True if the shard is there. On a disk its bytes are checked; in a bucket that would be a download."""
    entry = store.stat(shard.name)
    if entry is None or entry.size != shard.size:
        return False
    path = store.local_path(shard.name)
    return path is None or checksum(path) == shard.sha256


def _work_folder(store: Store) -> Path:
    """The folder in which shards are written before they get their name: on the disk of their store, else a
    temporary one.
    """
    folder = store.local_path()
    return folder if folder is not None else own_folder() / "unfinished"


def _store_file(file: Unnamed, store: Store, name: str) -> None:
    path: Path | None = store.local_path(name)
    if path is not None:
        file.keep(path)
        return
    with translate_os_errors(file.path, "writing"):
        file.file.flush()
    store.upload(file.path, name)
