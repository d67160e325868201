"""Read a prepared data set: each rank its share, every sample once, whatever happens to the ranks in between.

    reader = ShardReader(batch_size=32, epochs=10, seed=1)
    for batch in reader:                     # a list of {"__key__": "cat/1", "png": b"...", "cls": b"3"}
        train(batch)
        save({..., "data": reader.state_dict()})

**One stream, one position.** All epochs form one stream whose order follows from the seed and the epoch alone
(`shards/order.py`). A global batch is the next ``batch_size * world_size`` samples of it, cut into one piece
per rank; the position counts the samples that all ranks together were given so far. So the state is one
number, the same on every rank, and means the same with any number of ranks: after load_state_dict, 3 ranks go
on exactly where 4 were.

**The last batch.** Batches do not end with epochs, so all are full but the very last of the stream. That one
is split as evenly as possible; a rank may get one sample less than another, or an empty list, so that all
ranks take the same number of steps. Let such a rank take part in the step with nothing to learn, or leave the
last batch out on all ranks alike.

**One version.** What somebody prepares there later (`shards/versions.py`) does not change what this reader
reads; it holds its version.

**Iterating again goes on** where the reader is; it does not begin anew. Let ``epochs`` say how often the data
is to be seen.
"""

from __future__ import annotations

import mmap
import os
import threading
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Any

from allaboard.errors import BadInput, Corrupt, Problem, StorageMissing
from allaboard.inside.context import context, ranks
from allaboard.inside.report import write_report
from allaboard.shards.cache import Cache
from allaboard.shards.index import Index, Shard, place_of
from allaboard.shards.order import Order, Slice, next_position, own_slice
from allaboard.shards.tar import Table, table
from allaboard.shards.verify import load_index
from allaboard.shards.versions import Hold, pinned
from allaboard.storage import open_store
from allaboard.storage.base import Store, shown

STATE_VERSION = 1
_OPEN = 4  # shards kept open: the current one, the next, and all of a small data set

Sample = dict[str, Any]
"""``"__key__"`` and, by extension, the bytes of each part."""


class ShardReader:
    """Batches for this rank: lists of samples, or of what ``decode`` makes of each.

        reader = ShardReader(batch_size=32, epochs=10, seed=1)
        for batch in reader:                     # a list of {"__key__": "cat/1", "png": b"...", "cls": b"3"}
            train(batch)

    All epochs form one stream, whose order follows from the seed and the epoch. Each global batch is the next
    ``batch_size * world_size`` samples, one piece for each rank, so every sample is read once in an
    epoch, also when the number of ranks changes at a resume. Only the last batch of the stream may be
    smaller, or empty on some ranks; every rank gets the same number of batches. A second iteration goes on
    where the first one stopped.

    :param uri: where the data set is; the default is ``ALLABOARD_DATA``.
    :param batch_size: samples per rank and batch.
    :param epochs: how often the whole data set is read.
    :param seed: which order the samples have.
    :param shuffle: False: the order of the data set.
    :param rank: this rank; the default is that of the process group, else ``RANK``, at the time of use.
    :param world_size: the number of ranks, by the same rule.
    :param cache: a folder for shards of remote stores, 20 GiB at most. The default is a folder for temporary
        files that all processes of this user on the machine share.
    :param decode: makes of each sample what the batch holds.

    Raises BadInput (all that is wrong at once), StorageError, and `Corrupt` when a shard is not what the
    index says: every shard is verified before its first sample is given out.
    """

    def __init__(
        self,
        uri: str | os.PathLike[str] | None = None,
        *,
        batch_size: int,
        epochs: int = 1,
        seed: int = 0,
        shuffle: bool = True,
        rank: int | None = None,
        world_size: int | None = None,
        cache: str | os.PathLike[str] | None = None,
        decode: Callable[[Sample], Any] | None = None,
    ) -> None:
        _check(batch_size, epochs, seed, rank, world_size)
        where = uri if uri is not None else context().data
        if where is None:
            raise BadInput("ShardReader does not know what to read: give uri=, or set data.shards in the job")
        store = open_store(where)
        store, self._index = pinned(store, load_index(store))  # whatever is prepared there later
        if not self._index.shards:
            raise BadInput(f"{store.uri} holds no samples; prepare the data set again")
        self._order = Order([shard.samples for shard in self._index.shards], seed, shuffle)
        self._shards = _OpenShards(store, self._index, Cache(Path(cache) if cache is not None else None))
        self._batch_size = batch_size
        self._total = epochs * self._order.samples
        self._fixed = (rank, world_size)
        self._decode = decode
        self._position = 0
        self._hold = Hold(store, context().run or "")
        write_report("inputs", data={shown(place_of(store.uri)): self._index.content})

    @property
    def index(self) -> Index:
        """The index of the version that this reader reads."""
        return self._index

    @property
    def position(self) -> int:
        """Samples of the stream that all ranks together were given so far."""
        return self._position

    @property
    def epoch(self) -> int:
        """The epoch, from 0, that the next sample belongs to."""
        return self._position // self._order.samples

    def __len__(self) -> int:
        """Batches left, the same on every rank."""
        step = self._batch_size * self._ranks()[1]
        return max(0, -(-(self._total - self._position) // step))

    def __iter__(self) -> Iterator[list[Any]]:
        rank, world_size = self._ranks()
        while self._position < self._total:
            own = own_slice(self._position, self._total, self._batch_size, rank, world_size)
            self._renew_hold(rank)
            batch = self._read(own)
            self._look_ahead(own, world_size)
            self._position = min(self._total, self._position + self._batch_size * world_size)
            yield batch

    def state_dict(self) -> dict[str, Any]:
        """Position of all ranks after the batch that was given out last. The same on every rank; numbers and
        strings only.
        """
        return {
            "version": STATE_VERSION,
            "position": self._position,
            "seed": self._order.seed,
            "shuffle": self._order.shuffle,
            "samples": self._order.samples,
            "data": self._index.content,
        }

    def load_state_dict(self, state: Mapping[str, Any]) -> None:
        """Continue at the position of this state, with any number of ranks and any batch size.

        Seed and shuffling of the state replace this reader's: with others, samples would be lost and
        repeated. BadInput if the state is invalid or belongs to other data.
        """
        position, seed, shuffle = _read_state(state, self._index)
        if (seed, shuffle) != (self._order.seed, self._order.shuffle):
            self._order = Order(self._order.sizes, seed, shuffle)
        self._position = position

    def _ranks(self) -> tuple[int, int]:
        rank, world_size = self._fixed
        if rank is None or world_size is None:
            rank, world_size = ranks()
        return rank, world_size

    def _read(self, own: Slice) -> list[Any]:
        samples: list[Sample] = []
        for part in self._order.segments(own.start, own.stop):
            samples += self._shards.read(self._order, part.epoch, part.shard, part.first, part.last)
        return samples if self._decode is None else [self._decode(sample) for sample in samples]

    def _renew_hold(self, rank: int) -> None:
        """Have the version kept. A store that is slow to write to delays no batch."""
        if rank == 0 and self._hold.is_due:
            threading.Thread(target=self._hold.renew, name="allaboard-hold", daemon=True).start()

    def _look_ahead(self, own: Slice, world_size: int) -> None:
        """Begin to open the shard that this rank needs next, while the caller trains."""
        if own.start == own.stop:
            return
        left_at = self._order.end_of_shard(own.stop - 1)
        place = next_position(own.start, left_at, self._batch_size, world_size)
        if place < self._total:
            first = next(self._order.segments(place, place + 1))
            self._shards.open_ahead(first.shard)


class _OpenShards:
    """The few shards that are mapped at a time, and one more on its way."""

    def __init__(self, store: Store, index: Index, cache: Cache) -> None:
        self._store = store
        self._index = index
        self._cache = cache
        self._open: OrderedDict[int, _OpenShard] = OrderedDict()
        self._ahead: _Opening | None = None

    def read(self, order: Order, epoch: int, shard: int, first: int, last: int) -> list[Sample]:
        opened = self._get(shard)
        return opened.samples(opened.order(order, epoch, shard)[first:last])

    def open_ahead(self, shard: int) -> None:
        if shard in self._open or self._ahead is not None:
            return
        self._ahead = _Opening(shard, lambda: self._map(shard))

    def _get(self, shard: int) -> _OpenShard:
        opened = self._open.get(shard)
        if opened is None:
            ahead, self._ahead = self._ahead, None
            fetched = ahead.result() if ahead is not None and ahead.shard == shard else None
            opened = self._open[shard] = fetched or self._map(shard)
            while len(self._open) > _OPEN:
                self._open.popitem(last=False)
        self._open.move_to_end(shard)
        return opened

    def _map(self, number: int) -> _OpenShard:
        shard = self._index.shards[number]
        try:
            with self._cache.open(self._store, shard) as fd:
                return _OpenShard(shard, mmap.mmap(fd, shard.size, access=mmap.ACCESS_READ), self._store.uri)
        except StorageMissing as error:
            where = f"{self._store.uri}/{shard.name}"
            if self._is_replaced():
                raise BadInput(
                    f"{where} is gone: the data set was removed, or prepared again in its place, while it "
                    "was read; prepare it again and train again"
                ) from error
            raise Corrupt(f"{where} is in the index but missing; prepare the data set again") from error

    def _is_replaced(self) -> bool:
        try:
            return load_index(self._store).content != self._index.content
        except StorageMissing:
            return True


class _OpenShard:
    """One shard in memory's reach: where its samples lie, and the order in which this epoch takes them."""

    def __init__(self, shard: Shard, data: mmap.mmap, uri: str) -> None:
        self._data = data
        self._table = _table(shard, data, uri)
        self._epoch: tuple[int, int, bool] | None = None
        self._order: Sequence[int] = ()

    def order(self, order: Order, epoch: int, shard: int) -> Sequence[int]:
        wanted = (epoch, order.seed, order.shuffle)
        if self._epoch != wanted:
            self._order = order.within(epoch, shard)
            self._epoch = wanted
        return self._order

    def samples(self, numbers: Sequence[int]) -> list[Sample]:
        data, keys, parts = self._data, self._table.keys, self._table.parts
        samples = []
        for number in numbers:
            sample: Sample = {"__key__": keys[number]}
            for extension, start, stop in parts[number]:
                sample[extension] = data[start:stop]
            samples.append(sample)
        return samples


def _table(shard: Shard, data: mmap.mmap, uri: str) -> Table:
    try:
        table_of_shard = table(data)
        if len(table_of_shard.keys) != shard.samples:
            raise ValueError(f"it holds {len(table_of_shard.keys)} samples, the index says {shard.samples}")
    except ValueError as error:
        raise Corrupt(
            f"shard {uri}/{shard.name} cannot be read: {error}; prepare the data set again"
        ) from error
    return table_of_shard


class _Opening:
    """A shard that a thread is opening: to fetch and verify it, and to read its headers, takes time."""

    def __init__(self, shard: int, open_it: Callable[[], _OpenShard]) -> None:
        self.shard = shard
        self._open_it = open_it
        self._opened: _OpenShard | None = None
        self._thread = threading.Thread(target=self._run, name="allaboard-shard", daemon=True)
        self._thread.start()

    def result(self) -> _OpenShard | None:
        """The shard, once it is open. None if opening failed: the caller then opens it again and gets the
        error.
        """
        self._thread.join()
        return self._opened

    def _run(self) -> None:
        with suppress(Exception):
            self._opened = self._open_it()


def _check(batch_size: Any, epochs: Any, seed: Any, rank: Any, world_size: Any) -> None:
    wanted = [("batch_size", batch_size, 1), ("epochs", epochs, 1), ("seed", seed, 0)]
    if rank is not None or world_size is not None:
        wanted += [("rank", rank, 0), ("world_size", world_size, 1)]
    problems = [
        Problem(name, f"{value!r} is wrong; give a whole number, {least} or more")
        for name, value, least in wanted
        if not isinstance(value, int) or isinstance(value, bool) or value < least
    ]
    if not problems and rank is not None and rank >= world_size:
        problems.append(Problem("rank", f"{rank} is not below world_size={world_size}; ranks count from 0"))
    if problems:
        raise BadInput("this ShardReader cannot be made", problems)


def _read_state(state: Mapping[str, Any], index: Index) -> tuple[int, int, bool]:
    try:
        names = ("version", "position", "seed", "shuffle", "data")
        version, position, seed, shuffle, data = (state[name] for name in names)
    except (KeyError, TypeError) as error:
        raise BadInput(
            f"this is not a state of a ShardReader ({error}); give what state_dict() returned"
        ) from error
    if version != STATE_VERSION:
        raise BadInput(
            f"this state of a ShardReader has version {version}, not {STATE_VERSION}; "
            "read it with the release of allaboard that made it"
        )
    if data != index.content:
        raise BadInput(
            "this state belongs to other data: the data set was prepared anew since the checkpoint was made; "
            "bring the old one back, or begin without load_state_dict()"
        )
    if not isinstance(position, int) or position < 0:
        raise BadInput(f"this state of a ShardReader is damaged: position is {position!r}")
    return position, int(seed), bool(shuffle)
