from __future__ import annotations

import pytest

from allaboard.errors import Corrupt, StorageMissing
from allaboard.shards import load_index, prepare, verify
from allaboard.storage import Store
from tests.core.shards.building import some_samples


def test_everything_that_is_wrong_is_listed(store: Store) -> None:
    index = prepare(some_samples(10), store, samples_per_shard=2)
    assert verify(store) == []
    missing, short, flipped = (shard.name for shard in index.shards[1:4])
    store.delete([missing])
    store.write(short, store.read(short)[:-1])
    data = bytearray(store.read(flipped))
    data[1000] ^= 1
    store.write(flipped, bytes(data))
    assert verify(store) == [
        f"{missing} is missing; prepare the data set again",
        f"{short} has 10239 bytes, the index says 10240; prepare the data set again",
        f"{flipped} does not have the checksum of the index; remove it and prepare the data set again",
    ]


def test_following_the_advice_repairs_it(store: Store) -> None:
    index = prepare(some_samples(10), store, samples_per_shard=2)
    store.write(index.shards[0].name, b"x" * index.shards[0].size)
    assert verify(store) != []
    store.delete([index.shards[0].name])
    assert prepare(some_samples(10), store, samples_per_shard=2).shards == index.shards
    assert verify(store) == []


def test_a_missing_index_says_what_to_do(store: Store) -> None:
    with pytest.raises(StorageMissing, match="run `allaboard shards prepare`"):
        load_index(store)
    assert len(verify(store)) == 1 and store.uri in verify(store)[0]


def test_a_damaged_index_is_one_more_thing_wrong(store: Store) -> None:
    store.write("index.json", b"{}")
    with pytest.raises(Corrupt):
        load_index(store)
    assert len(verify(store)) == 1 and "index.json" in verify(store)[0]
