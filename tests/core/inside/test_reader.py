from __future__ import annotations

import itertools
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from collections import Counter
from pathlib import Path
from typing import Any

import pytest

from allaboard.errors import BadInput, Corrupt, StorageMissing
from allaboard.inside.reader import ShardReader
from allaboard.shards import load_index, prepare
from allaboard.storage import open_store
from tests.core.s3server import S3Server

RANK = Path(__file__).with_name("rank.py")


@pytest.fixture(autouse=True)
def own_settings(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [
        name
        for name in os.environ
        if name.startswith(("AWS_", "ALLABOARD_")) or name in ("RANK", "WORLD_SIZE")
    ]:
        monkeypatch.delenv(name)
    (tmp_path / "tmp").mkdir()
    monkeypatch.setenv("TMPDIR", str(tmp_path / "tmp"))
    monkeypatch.setattr(tempfile, "tempdir", str(tmp_path / "tmp"))


def a_data_set(folder: Path, samples: int, per_shard: int) -> Path:
    if not (folder / "index.json").exists():
        items = (
            {"__key__": f"k{number}", "bin": number.to_bytes(4, "big") * 5, "cls": number % 3}
            for number in range(samples)
        )
        prepare(items, folder, samples_per_shard=per_shard)
    return folder


@pytest.fixture
def data(tmp_path: Path) -> Path:
    """100 samples in shards of 12, the last of 4."""
    return a_data_set(tmp_path / "data", 100, 12)


def readers(data: Path | str, world_size: int, **options: Any) -> list[ShardReader]:
    return [ShardReader(data, rank=rank, world_size=world_size, **options) for rank in range(world_size)]


def keys(batch: list[dict[str, Any]]) -> list[str]:
    return [sample["__key__"] for sample in batch]


def stream_of(data: Path, **options: Any) -> list[str]:
    return [
        key
        for batch in ShardReader(data, batch_size=7, rank=0, world_size=1, **options)
        for key in keys(batch)
    ]


# --- what a batch is


def test_a_sample_is_its_key_and_the_bytes_of_its_parts(data: Path) -> None:
    batch = next(iter(ShardReader(data, batch_size=3, shuffle=False)))
    assert batch == [
        {"__key__": f"k{number}", "bin": number.to_bytes(4, "big") * 5, "cls": str(number % 3).encode()}
        for number in range(3)
    ]


def test_every_sample_comes_with_its_own_bytes(data: Path) -> None:
    for batch in ShardReader(data, batch_size=9, epochs=3):
        for sample in batch:
            assert sample["bin"] == int(sample["__key__"][1:]).to_bytes(4, "big") * 5


def test_decode_makes_of_each_sample_what_the_script_wants(data: Path) -> None:
    batches = list(ShardReader(data, batch_size=40, decode=lambda sample: int(sample["cls"])))
    assert [len(batch) for batch in batches] == [40, 40, 20]
    assert Counter(label for batch in batches for label in batch) == Counter(
        number % 3 for number in range(100)
    )


def test_epochs_are_one_stream_of_full_batches(data: Path) -> None:
    batches = [keys(batch) for batch in ShardReader(data, batch_size=30, epochs=4)]
    assert [len(batch) for batch in batches] == [30] * 13 + [10]
    stream = [key for batch in batches for key in batch]
    everything = {f"k{number}" for number in range(100)}
    epochs = [stream[start : start + 100] for start in range(0, 400, 100)]
    assert all(set(epoch) == everything for epoch in epochs)
    assert len({tuple(epoch) for epoch in epochs}) == 4


def test_all_ranks_take_the_same_number_of_steps_and_share_the_last_batch_evenly(data: Path) -> None:
    for world_size, batch_size in [(3, 16), (8, 12), (7, 14), (6, 16), (101, 1)]:
        group = readers(data, world_size, batch_size=batch_size)
        assert len({len(reader) for reader in group}) == 1
        steps = [[len(batch) for batch in reader] for reader in group]
        assert len({len(sizes) for sizes in steps}) == 1
        assert all(size == batch_size for sizes in steps for size in sizes[:-1])
        last = [sizes[-1] for sizes in steps]
        assert max(last) - min(last) <= 1 and sum(map(sum, steps)) == 100


def test_reading_stays_within_few_shards(data: Path) -> None:
    stream = stream_of(data)
    shards = [int(key[1:]) // 12 for key in stream]
    assert sum(one != other for one, other in itertools.pairwise(shards)) == 8  # each of 9 shards once


def test_len_counts_the_batches_that_are_left(data: Path) -> None:
    reader = ShardReader(data, batch_size=9, epochs=2, rank=1, world_size=2)
    left = len(reader)
    assert left == 12
    for _ in reader:
        left -= 1
        assert len(reader) == left
    assert left == 0


def test_iterating_again_goes_on(data: Path) -> None:
    reader = ShardReader(data, batch_size=10)
    first = [keys(batch) for batch, _ in zip(reader, range(4), strict=False)]
    rest = [keys(batch) for batch in reader]
    assert [key for batch in first + rest for key in batch][:40] == stream_of(data)[:40]
    assert list(reader) == [] and reader.position == 100 and reader.epoch == 1


# --- the order


def test_the_order_follows_from_the_seed_alone_whatever_the_world_size(data: Path) -> None:
    stream = stream_of(data, epochs=2, seed=5)
    assert stream == stream_of(data, epochs=2, seed=5) != stream_of(data, epochs=2, seed=6)
    for world_size, batch_size in [(2, 5), (3, 7), (8, 4)]:
        group = [
            iter(reader) for reader in readers(data, world_size, batch_size=batch_size, epochs=2, seed=5)
        ]
        together = [key for step in zip(*group, strict=True) for batch in step for key in keys(batch)]
        assert together == stream


def test_without_shuffling_samples_come_as_they_lie(data: Path) -> None:
    assert stream_of(data, shuffle=False, epochs=2) == [f"k{number}" for number in range(100)] * 2


# --- going on


def chain(data: Path, worlds: list[tuple[int, int, int]], total: int, **options: Any) -> list[str]:
    """What all ranks were given, in order, over (world size, batch size, batches) one after the other."""
    given: list[str] = []
    state: dict[str, Any] | None = None
    for number, (world_size, batch_size, stop) in enumerate(worlds):
        group = readers(data, world_size, batch_size=batch_size, **options)
        if state:
            for reader in group:
                reader.load_state_dict(json.loads(json.dumps(state)))
        last = number == len(worlds) - 1
        iterators = [iter(reader) for reader in group]
        step = 0
        while last or step < stop:
            batches = [next(iterator, None) for iterator in iterators]
            assert len({batch is None for batch in batches}) == 1
            if batches[0] is None:
                break
            given += [key for batch in batches for key in keys(batch or [])]
            step += 1
        states = [reader.state_dict() for reader in group]
        assert all(one == states[0] for one in states)
        state = states[0]
        assert state["position"] == min(total, len(given)) == len(given)
    return given


@pytest.mark.parametrize("shuffle", [True, False])
def test_four_two_three_eight_ranks_lose_and_repeat_nothing(data: Path, shuffle: bool) -> None:
    stream = stream_of(data, epochs=3, seed=1, shuffle=shuffle)
    options = {"epochs": 3, "seed": 1, "shuffle": shuffle}
    assert chain(data, [(4, 5, 3), (2, 5, 4), (3, 5, 2), (8, 5, 0)], 300, **options) == stream


@pytest.mark.parametrize("rounds", [20, pytest.param(200, marks=pytest.mark.thorough)])
def test_any_chain_of_world_sizes_loses_and_repeats_nothing(tmp_path: Path, rounds: int) -> None:
    """Random shapes: data, shards, epochs, seeds, and up to six world and batch sizes in turn."""
    rng = random.Random(20261121)
    for _ in range(rounds):
        samples, per_shard = rng.choice([1, 2, 7, 30, 64, 101]), rng.choice([1, 3, 10, 64])
        data = a_data_set(tmp_path / f"{samples}-{per_shard}", samples, per_shard)
        options = {"epochs": rng.randrange(1, 4), "seed": rng.randrange(5), "shuffle": rng.random() < 0.8}
        worlds = [
            (rng.randrange(1, 9), rng.randrange(1, 9), rng.randrange(5)) for _ in range(rng.randrange(1, 7))
        ]
        total = samples * int(options["epochs"])
        given = chain(data, worlds, total, **options)
        assert given == stream_of(data, **options), (samples, per_shard, options, worlds)


def test_the_state_is_that_of_the_batch_given_out_last_not_of_what_is_read_ahead(data: Path) -> None:
    reader = ShardReader(data, batch_size=12, seed=3)
    for step, _ in enumerate(reader, 1):
        assert reader.state_dict()["position"] == min(100, 12 * step)


def test_a_state_is_plain_json(data: Path) -> None:
    reader = ShardReader(data, batch_size=12, seed=3)
    next(iter(reader))
    state = reader.state_dict()
    assert json.loads(json.dumps(state)) == state
    assert state == {
        "version": 1,
        "position": 12,
        "seed": 3,
        "shuffle": True,
        "samples": 100,
        "data": reader.index.content,
    }


def test_a_state_brings_its_order_along(data: Path) -> None:
    before = ShardReader(data, batch_size=10, seed=3)
    first = keys(next(iter(before)))
    after = ShardReader(data, batch_size=10, seed=4)
    next(iter(after))
    after.load_state_dict(before.state_dict())
    assert first + [key for batch in after for key in keys(batch)] == stream_of(data, seed=3)
    assert after.state_dict()["seed"] == 3


def test_a_state_may_be_loaded_in_the_middle_of_an_iteration(data: Path) -> None:
    reader = ShardReader(data, batch_size=10)
    start, iterator = reader.state_dict(), iter(reader)
    first = [keys(next(iterator)) for _ in range(4)]
    reader.load_state_dict(start)
    assert [keys(next(iterator)) for _ in range(4)] == first


def test_more_epochs_after_a_resume_go_on_in_the_stream(data: Path) -> None:
    reader = ShardReader(data, batch_size=50)
    assert len(list(reader)) == 2
    longer = ShardReader(data, batch_size=50, epochs=2)
    longer.load_state_dict(reader.state_dict())
    assert [key for batch in longer for key in keys(batch)] == stream_of(data, epochs=2)[100:]


@pytest.mark.parametrize(
    ("state", "words"),
    [
        ({}, "this is not a state of a ShardReader"),
        (None, "this is not a state of a ShardReader"),
        ({"version": 2}, "has version 2, not 1"),
        ({"data": "content:v1:00"}, "belongs to other data"),
        ({"position": -1}, "is damaged: position is -1"),
        ({"position": 1.5}, "is damaged: position is 1.5"),
    ],
)
def test_what_is_no_state_of_this_data_is_refused(
    data: Path, state: dict[str, Any] | None, words: str
) -> None:
    reader = ShardReader(data, batch_size=10)
    whole = {**reader.state_dict(), **state} if state else state
    with pytest.raises(BadInput, match=words):
        reader.load_state_dict(whole)  # type: ignore[arg-type]


# --- where it reads, and as whom


def test_uri_and_ranks_come_from_the_environment(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLABOARD_DATA", str(data))
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "3")
    assert keys(next(iter(ShardReader(batch_size=10)))) == stream_of(data)[10:20]


def test_a_process_group_made_after_the_reader_counts(data: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    reader = ShardReader(data, batch_size=10)
    monkeypatch.setenv("RANK", "2")
    monkeypatch.setenv("WORLD_SIZE", "4")
    assert len(reader) == 3
    assert keys(next(iter(reader))) == stream_of(data)[20:30]


def test_all_wrong_arguments_are_named_at_once(data: Path) -> None:
    with pytest.raises(BadInput) as caught:
        ShardReader(data, batch_size=0, epochs=-1, seed="a", rank=1)  # type: ignore[arg-type]
    assert [problem.path for problem in caught.value.problems] == [
        "batch_size",
        "epochs",
        "seed",
        "world_size",
    ]
    with pytest.raises(BadInput, match="rank: 2 is not below world_size=2"):
        ShardReader(data, batch_size=1, rank=2, world_size=2)


def test_without_data_it_says_what_to_give(tmp_path: Path) -> None:
    with pytest.raises(BadInput, match=r"give uri=, or set data.shards in the job"):
        ShardReader(batch_size=1)
    with pytest.raises(StorageMissing, match="run `allaboard shards prepare`"):
        ShardReader(tmp_path / "nothing", batch_size=1)


# --- damage


def shard_path(data: Path, number: int) -> Path:
    return data / json.loads((data / "index.json").read_text())["shards"][number]["name"]


def test_a_damaged_shard_is_named_and_its_samples_never_given_out(data: Path) -> None:
    path = shard_path(data, 3)
    content = bytearray(path.read_bytes())
    content[1100] ^= 1
    path.write_bytes(content)
    reader = ShardReader(data, batch_size=12, shuffle=False)
    given: list[str] = []
    with pytest.raises(Corrupt, match=f"{path.name} is damaged: .* prepare the data set again"):
        for batch in reader:
            given += keys(batch)
    assert given == [f"k{number}" for number in range(36)] and reader.position == 36


def test_a_shard_that_vanished_is_corruption(data: Path) -> None:
    shard_path(data, 1).unlink()
    with pytest.raises(Corrupt, match="is in the index but missing"):
        list(ShardReader(data, batch_size=12, shuffle=False))


def test_data_that_is_prepared_anew_while_it_is_read_is_read_as_it_was(data: Path) -> None:
    expected = stream_of(data, epochs=1, shuffle=False)
    reader = ShardReader(data, batch_size=12, shuffle=False)
    seen = next(iter(reader))
    prepare(({"cls": number} for number in range(50)), data, samples_per_shard=10)
    seen += [sample for batch in reader for sample in batch]
    assert [sample["__key__"] for sample in seen] == expected


def test_data_that_is_removed_while_it_is_read_is_said(data: Path) -> None:
    index = load_index(data)
    reader = ShardReader(data, batch_size=12, shuffle=False)
    next(iter(reader))
    shutil.rmtree(data / index.folder)
    with pytest.raises(BadInput, match="the data set was removed, or prepared again in its place, while"):
        list(reader)


def test_a_foreign_tar_under_a_right_checksum_is_refused(data: Path) -> None:
    import hashlib

    index = json.loads((data / "index.json").read_text())
    shard = index["shards"][0]
    content = os.urandom(shard["size"])
    (data / shard["name"]).write_bytes(content)
    shard["sha256"] = hashlib.sha256(content).hexdigest()
    (data / "index.json").write_text(json.dumps(index))
    with pytest.raises(Corrupt, match="cannot be read: byte 0 is not the header of a file"):
        list(ShardReader(data, batch_size=12, shuffle=False))


# --- from a bucket


@pytest.fixture
def remote(moto: S3Server, data: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in moto.environ.items():
        monkeypatch.setenv(name, value)
    uri = f"s3://{moto.make_bucket()}/data"
    store = open_store(uri)
    for entry in open_store(data).entries():
        store.upload(data / entry.key, entry.key)
    return uri


def test_a_bucket_reads_like_a_disk(remote: str, data: Path, tmp_path: Path) -> None:
    reader = ShardReader(remote, batch_size=7, epochs=2, cache=tmp_path / "cache")
    assert [key for batch in reader for key in keys(batch)] == stream_of(data, epochs=2)
    assert len(list((tmp_path / "cache").glob("*.tar"))) == 9


def test_the_next_shard_is_fetched_while_the_script_trains(remote: str, tmp_path: Path) -> None:
    reader = ShardReader(remote, batch_size=2, cache=tmp_path / "cache")
    next(iter(reader))  # six batches of two lie in the first shard
    deadline = time.monotonic() + 60
    while len(list((tmp_path / "cache").glob("*.tar"))) < 2:
        assert time.monotonic() < deadline
        threading.Event().wait(0.01)
    assert reader.position == 2


def test_a_damaged_shard_of_a_bucket_is_named(remote: str, tmp_path: Path, data: Path) -> None:
    name = str(shard_path(data, 0).relative_to(data))
    store = open_store(remote)
    store.write(name, bytes(len(store.read(name))))
    with pytest.raises(Corrupt, match=f"{remote}/{name} is damaged"):
        list(ShardReader(remote, batch_size=7, cache=tmp_path / "cache"))


# --- with kills


@pytest.mark.thorough
def test_ranks_killed_again_and_again_train_on_every_sample_once(tmp_path: Path) -> None:
    """Real processes, 4 -> 2 -> 3 -> 8 ranks, each group killed with -9 in the middle of a step.

    A step counts once all its ranks are done and rank 0 has saved the state, as with a checkpoint; what a
    killed group did after its last saved state is done again. The counted steps must be the stream.
    """
    data = a_data_set(tmp_path / "data", 500, 24)
    environ = {**os.environ, "PYTHONPATH": os.pathsep.join(filter(None, sys.path))}
    done = tmp_path / "done"
    done.mkdir()
    for world_size, kill_after in [(4, 9), (2, 7), (3, 11), (8, None)]:
        command = [sys.executable, str(RANK), str(data), str(done), str(world_size)]
        ranks = [subprocess.Popen([*command, str(rank)], env=environ) for rank in range(world_size)]
        try:
            if kill_after is None:
                assert [rank.wait(120) for rank in ranks] == [0] * world_size
                continue
            before = steps_saved(done)
            deadline = time.monotonic() + 120
            while steps_saved(done) < before + kill_after:
                assert time.monotonic() < deadline and all(rank.poll() is None for rank in ranks)
                threading.Event().wait(0.001)
        finally:
            for rank in ranks:
                rank.kill()
                rank.wait()
    position, given = 0, []
    while (done / f"{position}.json").exists():
        step = json.loads((done / f"{position}.json").read_text())
        given += step["keys"]
        position = step["state"]["position"]
    assert given == stream_of(data, epochs=2, seed=11)
    assert Counter(Counter(given).values()) == {2: 500}


def steps_saved(done: Path) -> int:
    return sum(path.suffix == ".json" for path in done.iterdir())
