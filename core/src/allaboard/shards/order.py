"""In which order samples are read: a function of the seed and the epoch alone. Pure; no list as long as the
data set exists.

All epochs are one stream. A *position* is the number of samples of that stream which all ranks together have
consumed; it is the whole state of a reader. The order has two levels, so that reading stays local: the shards
are permuted, and within each shard its samples. Neither depends on how many ranks read, so a position means
the same after any change of world size.

A permutation is "sort by a keyed random number": the numbers are the output of SHAKE-128, a standard, so the
order is the same with every Python version on every machine, for as long as checkpoints are kept.
"""

from __future__ import annotations

import hashlib
import sys
from array import array
from bisect import bisect_right
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import accumulate


@dataclass(frozen=True, slots=True)
class Segment:
    """A stretch of the stream that lies in one shard: the samples ``first`` up to, not including, ``last``
    of its order.
    """

    epoch: int
    shard: int
    first: int
    last: int


@dataclass(frozen=True, slots=True)
class Slice:
    """The part of the stream that one rank reads for one batch; empty when ``start == stop``."""

    start: int
    stop: int


def permutation(count: int, *key: object) -> list[int]:
    """All of ``range(count)`` in the order that the key stands for."""
    text = "allaboard order 1 " + " ".join(str(part) for part in key)
    numbers = array("Q", hashlib.shake_128(text.encode()).digest(8 * count))
    if sys.byteorder == "big":
        numbers.byteswap()
    return sorted(range(count), key=numbers.__getitem__)


def own_slice(position: int, total: int, batch_size: int, rank: int, world_size: int) -> Slice:
    """Part of the global batch at ``position`` that this rank reads.

    Every batch is full, but for the very last one of the stream: that is split as evenly as possible, the
    lower ranks one sample more.
    """
    left = max(0, min(total - position, batch_size * world_size))
    each, more = divmod(left, world_size)
    start = position + rank * each + min(rank, more)
    return Slice(start, start + each + (rank < more))


def next_position(start: int, left_at: int, batch_size: int, world_size: int) -> int:
    """The first position from ``left_at`` on that the rank will read whose piece of the current batch
    begins at ``start``.
    """
    step = batch_size * world_size
    batches = max(1, (left_at - batch_size - start) // step + 1)
    return max(left_at, start + batches * step)


class Order:
    """The stream over shards of the given sizes (samples, at least one each)."""

    def __init__(self, sizes: Sequence[int], seed: int, shuffle: bool) -> None:
        self.sizes = tuple(sizes)
        self.samples = sum(self.sizes)
        self.seed = seed
        self.shuffle = shuffle
        self._shards = lru_cache(maxsize=2)(self._shards_of)

    def shards(self, epoch: int) -> tuple[list[int], list[int]]:
        """The shards in the order of this epoch, and the place in the epoch at which each begins."""
        return self._shards(epoch)

    def within(self, epoch: int, shard: int) -> Sequence[int]:
        """The samples of one shard in the order of this epoch."""
        count = self.sizes[shard]
        return permutation(count, self.seed, epoch, shard) if self.shuffle else range(count)

    def segments(self, start: int, stop: int) -> Iterator[Segment]:
        """The stream from position ``start`` up to ``stop``, shard by shard."""
        while start < stop:
            segment, end = self._at(start)
            taken = min(stop, end) - start
            yield Segment(segment.epoch, segment.shard, segment.first, segment.first + taken)
            start += taken

    def end_of_shard(self, position: int) -> int:
        """The position at which the shard that holds this position is left."""
        return self._at(position)[1]

    def _at(self, position: int) -> tuple[Segment, int]:
        epoch, place = divmod(position, self.samples)
        order, begins = self.shards(epoch)
        turn = bisect_right(begins, place) - 1
        shard, first = order[turn], place - begins[turn]
        size = self.sizes[shard]
        return Segment(epoch, shard, first, size), position - first + size

    def _shards_of(self, epoch: int) -> tuple[list[int], list[int]]:
        count = len(self.sizes)
        order = permutation(count, self.seed, epoch, "shards") if self.shuffle else list(range(count))
        begins = [0, *accumulate(self.sizes[shard] for shard in order)][:-1]
        return order, begins
