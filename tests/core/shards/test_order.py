from __future__ import annotations

import random
from collections import Counter

import pytest

from allaboard.shards.order import Order, next_position, own_slice, permutation


def stream(order: Order, start: int, stop: int) -> list[tuple[int, int]]:
    """(shard, sample) at every position."""
    return [
        (part.shard, order.within(part.epoch, part.shard)[place])
        for part in order.segments(start, stop)
        for place in range(part.first, part.last)
    ]


SHAPES = [[1], [5], [3, 1, 2], [10, 10, 10, 4], [1] * 7, [100, 1, 50]]


@pytest.mark.parametrize("sizes", SHAPES, ids=str)
@pytest.mark.parametrize("shuffle", [True, False])
def test_every_epoch_holds_every_sample_once(sizes: list[int], shuffle: bool) -> None:
    order, total = Order(sizes, 7, shuffle), sum(sizes)
    everything = Counter((shard, sample) for shard, size in enumerate(sizes) for sample in range(size))
    for epoch in range(4):
        assert Counter(stream(order, epoch * total, (epoch + 1) * total)) == everything


def test_the_stream_is_the_same_however_it_is_cut() -> None:
    order = Order([10, 3, 8, 1], 3, True)
    whole = stream(order, 0, 100)
    rng = random.Random(0)
    for _ in range(200):
        start = rng.randrange(100)
        stop = rng.randrange(start, 101)
        assert stream(Order([10, 3, 8, 1], 3, True), start, stop) == whole[start:stop]


def test_seed_and_epoch_change_the_order_at_both_levels() -> None:
    sizes = [20] * 10
    first = Order(sizes, 1, True)
    orders = [first.shards(0)[0], first.shards(1)[0], Order(sizes, 2, True).shards(0)[0]]
    samples = [first.within(0, 0), first.within(1, 0), first.within(0, 1), Order(sizes, 2, True).within(0, 0)]
    for found in (orders, samples):
        assert len({tuple(one) for one in found}) == len(found)


def test_without_shuffling_the_order_is_that_of_the_index() -> None:
    assert stream(Order([2, 3], 9, False), 0, 7) == [(0, 0), (0, 1), (1, 0), (1, 1), (1, 2), (0, 0), (0, 1)]


def test_the_order_is_fixed_for_as_long_as_checkpoints_are_kept() -> None:
    # Not to be changed: a state saved by any release must mean the same samples to every later one.
    assert permutation(10, 0, 0, "shards") == [9, 4, 8, 2, 5, 3, 1, 0, 7, 6]
    assert stream(Order([4, 3, 5], 42, True), 10, 15) == [(2, 0), (2, 4), (0, 0), (0, 2), (0, 3)]


def test_permutations_are_fair() -> None:
    """Each number is as often at each place: chi-squared over 24 x 24 cells and 2,400 draws."""
    size, draws = 24, 2400
    seen = Counter(
        (place, number) for draw in range(draws) for place, number in enumerate(permutation(size, draw))
    )
    expected = draws / size
    chi = sum(
        (seen[place, number] - expected) ** 2 / expected for place in range(size) for number in range(size)
    )
    freedom = (size - 1) ** 2
    assert abs(chi - freedom) < 5 * (2 * freedom) ** 0.5


def test_slices_of_all_ranks_make_up_the_batch() -> None:
    for world_size in range(1, 9):
        for total in (1, 7, 40, 41, 64):
            for position in range(total):
                parts = [own_slice(position, total, 5, rank, world_size) for rank in range(world_size)]
                assert parts[0].start == position
                assert [part.stop for part in parts[:-1]] == [part.start for part in parts[1:]]
                assert parts[-1].stop == min(total, position + 5 * world_size)
                sizes = [part.stop - part.start for part in parts]
                assert max(sizes) - min(sizes) <= 1 and max(sizes) <= 5
                if position + 5 * world_size <= total:
                    assert set(sizes) == {5}


def test_the_next_place_is_the_first_own_position_behind_the_shard() -> None:
    rng = random.Random(4)
    for _ in range(2000):
        batch_size, world_size = rng.randrange(1, 9), rng.randrange(1, 6)
        step = batch_size * world_size
        start = rng.randrange(100)
        left_at = start + rng.randrange(1, 100)
        later = (start + turn * step + place for turn in range(1, 300) for place in range(batch_size))
        assert next_position(start, left_at, batch_size, world_size) == next(
            at for at in later if at >= left_at
        )


def test_a_billion_samples_cost_no_list() -> None:
    order = Order([100_000] * 10_000, 5, True)
    part = next(order.segments(987_654_321, 987_654_400))
    assert part.last - part.first <= 79
    assert len(order.within(part.epoch, part.shard)) == 100_000
