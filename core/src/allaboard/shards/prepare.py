"""Make a data set: samples in, shards and an index out, on a disk or in a bucket.

**Killed at any instant, the next call goes on.** A shard appears whole under a name that tells its content,
then the journal knows it, and at the end the index appears in one piece; until then readers see the data set
as it was before, or none. Files whose names, sizes and times of change are those of the journal (or the
index) are not read again. What an iterable gives is known only by reading it, so it is read again from its
start, and shards that come out as they were are not written again.

**A changed source starts over**, and says so; shards that did not change are kept. One preparation at a time
may write to a place: at its end it removes every shard there that its index does not name.
"""

from __future__ import annotations

import hashlib
import logging
import os
import time
from collections.abc import Callable, Iterable, Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path
from typing import Any

from allaboard.errors import BadInput, Corrupt, OwnershipConflict, Problem, StorageError, StorageMissing
from allaboard.shards.cache import checksum
from allaboard.shards.index import INDEX, Index, Shard, content_of
from allaboard.shards.journal import JOURNAL, Journal
from allaboard.shards.samples import Files, Sample, Source, Stream, find_samples
from allaboard.shards.write import SHARD_NAME, Limits, ShardFile, headers_of
from allaboard.storage import open_store
from allaboard.storage.base import Store, read_small
from allaboard.storage.disk import Unnamed, sweep, translate_os_errors, unnamed_file
from allaboard.storage.scratch import own_folder
from allaboard.units import counted, rfc3339
from allaboard.units import size as as_bytes
from allaboard.untrusted import RECORDS

Progress = Callable[[int, int | None, int], None]
"""Called with the samples done, all samples (None: unknown), and the bytes of their shards; ten times a
second at most, and at the end.
"""

BYTES_PER_SHARD = 256 * 2**20
_EVERY = 0.1
_STARTING_OVER = "starting over; shards that come out as before are kept"


def prepare(
    source: Source,
    into: str | os.PathLike[str] | Store,
    *,
    samples_per_shard: int | None = None,
    bytes_per_shard: int | str | None = None,
    progress: Progress | None = None,
    notice: Callable[[str], None] | None = None,
) -> Index:
    """Turn ``source`` into tar shards and `index.json` below ``into``; returns the index.

    ``source`` is a folder, a list of files, an iterable of samples, a callable that returns one, or
    ``"module:function"`` (`samples.py` has the rules). A shard ends at ``samples_per_shard`` samples or
    ``bytes_per_shard`` bytes (``"64Mi"``), whichever comes first; with neither given, at 256 MiB. ``notice``
    is told, in a sentence, when earlier work is continued, reused or thrown away (default: the log).

    An unchanged folder or list of files that is prepared already returns at once. Raises BadInput, which
    names all samples and paths that are wrong; then a data set that was there before is still there.
    """
    limits = _limits(samples_per_shard, bytes_per_shard)
    store = open_store(into) if isinstance(into, (str, os.PathLike)) else into
    samples = find_samples(source)
    if isinstance(samples, Files):
        _refuse_overlap(samples, store)
        samples.refuse_above(limits.size)
    work = _Preparation(store, samples, limits, progress, notice or logging.getLogger(__name__).info)
    return work.run()


class _Preparation:
    def __init__(
        self,
        store: Store,
        samples: Files | Stream,
        limits: Limits,
        progress: Progress | None,
        notice: Callable[[str], None],
    ) -> None:
        self._store = store
        self._found = samples
        self._limits = limits
        self._notice = notice
        self._meter = _Meter(progress, samples.total)
        self._fingerprint = _fingerprint(samples, limits)
        self._before = _previous_index(store, notice)
        self._journal_before = Journal.read(store)

    def run(self) -> Index:
        before = self._before
        if before and before.fingerprint == self._fingerprint and not _is_absent(self._store, before.shards):
            self._meter.set(before.samples, before.size)
            if self._journal_before:
                self._remove_old_shards(before.shards)
            return before
        sweep(_work_folder(self._store), time.time())  # what a killed call left
        journal = self._new_journal()
        try:
            self._write_rest(journal)
            if not journal.shards:
                raise BadInput("the source holds no samples, so there is nothing to prepare")
        except BadInput:
            if isinstance(self._found, Stream):  # it has to be read from its start anyway
                with suppress(StorageError):
                    self._remove_old_shards(before.shards if before else ())
            else:
                journal.save()
            raise
        except BaseException:
            journal.save()
            raise
        return self._publish(journal)

    def _new_journal(self) -> Journal:
        """The journal of this call, with the shards of earlier calls that still exist."""
        before, earlier = self._before, self._journal_before
        journal = Journal(self._store, self._fingerprint)
        if self._fingerprint is None:
            if earlier:
                self._notice("reading the source from its start; shards that come out as before are kept")
        elif before and before.fingerprint == self._fingerprint:
            journal.shards = list(self._are_shards_present(before.shards))
        elif earlier and earlier.fingerprint == self._fingerprint:
            journal.shards = list(self._are_shards_present(earlier.shards))
            self._notice(f"going on after {counted(len(journal.shards), 'shard')} of an earlier call")
        elif earlier:
            self._notice(f"the source or the limits changed since an earlier call: {_STARTING_OVER}")
        elif before:
            self._notice(f"the source or the limits changed since {before.created}: {_STARTING_OVER}")
        self._meter.set(sum(s.samples for s in journal.shards), sum(s.size for s in journal.shards))
        return journal

    def _are_shards_present(self, shards: Iterable[Shard]) -> Iterator[Shard]:
        for shard in shards:
            if not _is_intact(self._store, shard):
                self._notice(f"{shard.name} is missing or damaged: going on from there")
                return
            yield shard

    def _write_rest(self, journal: Journal) -> None:
        known = {s.name: s for s in [*(self._before.shards if self._before else ()), *self._earlier_shards()]}
        samples = self._samples(sum(shard.samples for shard in journal.shards))
        sample = next(samples, None)
        while sample is not None:
            with unnamed_file(_work_folder(self._store)) as file:
                shard, sample = self._fill(file, len(journal.shards), sample, samples)
                same = known.get(shard.name) == shard and _is_intact(self._store, shard)
                if not same:
                    _store_file(file, self._store, shard.name)
            journal.add(shard, written=not same)

    def _earlier_shards(self) -> list[Shard]:
        return self._journal_before.shards if self._journal_before else []

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

    def _publish(self, journal: Journal) -> Index:
        shards = tuple(journal.shards)
        absent = _is_absent(self._store, shards)
        if absent:
            raise OwnershipConflict(
                f"{absent[0]} vanished from {self._store.uri} while the rest was prepared; somebody else "
                "seems to prepare or clean up there: see to it that they do not, and prepare again"
            )
        index = Index(shards, self._fingerprint or content_of(shards), rfc3339(time.time()) or "")
        before = self._before
        if before and before.shards == index.shards and before.fingerprint == index.fingerprint:
            index = before
        else:
            if before and self._fingerprint is None:
                self._notice(f"the source changed since {before.created}: it was prepared again")
            self._store.write(INDEX, index.to_bytes())
        self._remove_old_shards(index.shards)
        self._meter.set(index.samples, index.size)
        return index

    def _remove_old_shards(self, shards: Iterable[Shard]) -> None:
        """Remove every other shard, and the journal last: it shows the next call that there may be some."""
        keep = {shard.name for shard in shards}
        shards_there = (entry.key for entry in self._store.entries() if SHARD_NAME.fullmatch(entry.key))
        self._store.delete([name for name in shards_there if name not in keep])
        self._store.delete([JOURNAL])


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
        problems.append(Problem("samples_per_shard", f"{samples!r} is no number of samples; give 1 or more"))
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
    """What the shards depend on; None for an iterable, of which nothing is known before it is read."""
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


def _previous_index(store: Store, notice: Callable[[str], None]) -> Index | None:
    try:
        return Index.from_bytes(read_small(store, INDEX, RECORDS.size), f"{store.uri}/{INDEX}")
    except StorageMissing:
        return None
    except Corrupt as error:
        notice(f"{error}: {_STARTING_OVER}")
        return None


def _is_absent(store: Store, shards: Iterable[Shard]) -> list[str]:
    """The names of shards that are not there in their full size."""
    with ThreadPoolExecutor(8) as pool:
        pairs = pool.map(lambda shard: (shard, store.stat(shard.name)), shards)
        return [shard.name for shard, entry in pairs if entry is None or entry.size != shard.size]


def _is_intact(store: Store, shard: Shard) -> bool:
    """Whether the shard is there. On a disk its bytes are checked; in a bucket that would be a download."""
    entry = store.stat(shard.name)
    if entry is None or entry.size != shard.size:
        return False
    path = store.local_path(shard.name)
    return path is None or checksum(path) == shard.sha256


def _work_folder(store: Store) -> Path:
    """The folder in which shards are written: their final one for a disk store, else a temporary folder."""
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
