"""Versions of a data set side by side: what one preparation does, no reader of another ever notices."""

from __future__ import annotations

import json
import os
import threading
import time
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from allaboard.errors import BadInput, StorageMissing
from allaboard.inside import ShardReader
from allaboard.shards import Index, load_index, prepare, verify
from allaboard.shards import versions as of_versions
from allaboard.shards.index import Shard, place_of
from allaboard.shards.journal import Journal
from allaboard.storage import Store, open_store
from tests.core.shards.building import a_folder, contents, keys_of, some_files, some_samples

WEEK = 7 * 86400.0


def in_place(store: Store, index: Index) -> Index:
    """The data set as releases before versions have prepared it: shards and index in the place itself."""
    for shard in index.shards:
        store.copy(shard.name, shard.name.rpartition("/")[2])
    body = {name: value for name, value in index.own.to_dict().items() if name != "folder"}
    store.delete([key for key in keys_of(store) if key.startswith("version-")])
    store.write("index.json", json.dumps(body).encode())
    return index.own


def made_older(folder: Path, seconds: float) -> None:
    then = time.time() - seconds
    for path in folder.rglob("*"):
        if path.is_file():
            os.utime(path, (then, then))


# --- two at once


def test_a_reader_reads_its_version_to_the_end_whatever_is_prepared_meanwhile(tmp_path: Path) -> None:
    prepare(some_samples(20), tmp_path / "out", samples_per_shard=2)
    reader = ShardReader(
        tmp_path / "out", batch_size=4, shuffle=False, rank=0, world_size=1, cache=tmp_path / "cache"
    )
    batches = iter(reader)
    seen = list(next(batches))
    prepare(some_samples(30, seed=1), tmp_path / "out", samples_per_shard=3)
    prepare(a_folder(tmp_path / "raw", some_files(9)), tmp_path / "out")
    seen += [sample for batch in batches for sample in batch]
    assert [sample["bin"] for sample in seen] == [sample["bin"] for sample in some_samples(20)]


def test_the_uri_of_a_version_is_that_data_set_for_good(store: Store, tmp_path: Path) -> None:
    first = prepare(some_samples(8), store, samples_per_shard=3)
    raw = a_folder(tmp_path / "raw", some_files(5))
    second = prepare(raw, store)
    assert load_index(store) == second and first.folder != second.folder
    for index in (first, second):
        own = store.below(index.folder)
        assert own.uri == index.version_uri(store.uri) and place_of(own.uri) == store.uri
        assert load_index(own) == index.own and index.own.within(index.folder) == index
        assert verify(own) == [] and contents(own, index.own) == contents(store, index)
        assert load_index(own).content == index.content


@pytest.mark.thorough(but=("disk",))
@pytest.mark.parametrize("kind", ["files", "iterable"])
@pytest.mark.parametrize("same", [True, False])
def test_two_preparations_at_the_same_moment_both_end_whole(
    store: Store, tmp_path: Path, kind: str, same: bool
) -> None:
    meet = threading.Barrier(2, timeout=60)
    raws = [a_folder(tmp_path / f"raw-{n}", some_files(24, size=100 + n, seed=n)) for n in (0, 1)]

    def source(seed: int) -> Any:
        if kind == "files":
            return raws[seed]

        def samples() -> Iterator[dict[str, object]]:
            for number, sample in enumerate(some_samples(24, seed=seed)):
                if number in (6, 18):
                    meet.wait()
                yield sample

        return samples

    def one(seed: int) -> Index:
        own = open_store(store.uri) if store.local_path() else store
        return prepare(source(seed), own, samples_per_shard=4)

    with ThreadPoolExecutor(2) as pool:
        made = [*pool.map(one, [0, 0 if same else 1])]
    assert load_index(store) in made
    for index in made:
        assert verify(store.below(index.folder)) == [] and index.samples == 24
    assert (made[0].content == made[1].content) is same
    assert keys_of(store).isdisjoint({"journal.json", *(f"{one.folder}/journal.json" for one in made)})


# --- again


@pytest.mark.thorough(but=("disk",))
def test_the_data_of_an_earlier_version_is_that_version_again(store: Store, tmp_path: Path) -> None:
    """Two DAG runs prepare their own data in turns: nothing is written but which is the newest."""
    raws = [a_folder(tmp_path / f"raw-{n}", some_files(12 + n, seed=n)) for n in (0, 1)]
    sources: list[Callable[[], Any]] = [
        lambda: raws[0],
        lambda: raws[1],
        lambda: some_samples(9),
        lambda: some_samples(9, seed=1),
        lambda: some_samples(6),  # begins like another one
    ]
    first = [prepare(source(), store, samples_per_shard=3) for source in sources]
    before = {entry.key: entry.modified for entry in store.entries() if "/holds/" not in entry.key}
    for source, index in zip(sources, first, strict=True):
        assert prepare(source(), store, samples_per_shard=3) == index
        assert load_index(store) == index
    after = {entry.key: entry.modified for entry in store.entries() if "/holds/" not in entry.key}
    assert {**after, "index.json": 0} == {**before, "index.json": 0}
    assert len({index.folder for index in first}) == len(sources)


@pytest.mark.thorough(but=("disk",))
def test_an_iterable_that_goes_on_differently_shares_what_is_the_same(store: Store) -> None:
    first = prepare(some_samples(20), store, samples_per_shard=5)
    longer = [*some_samples(20), *({**one, "__key__": f"x{n}"} for n, one in enumerate(some_samples(5)))]
    second = prepare(longer, store, samples_per_shard=5)
    assert second.own.shards[:4] == first.own.shards and second.samples == 25
    shorter = prepare(some_samples(10), store, samples_per_shard=5)
    assert shorter.own.shards == first.own.shards[:2]
    for index in (first, second, shorter):
        assert verify(store.below(index.folder)) == []


def test_a_data_set_of_an_earlier_release_is_read_and_becomes_a_version(store: Store, tmp_path: Path) -> None:
    raw = a_folder(tmp_path / "raw", some_files(12))
    old = in_place(store, prepare(raw, store, samples_per_shard=4))
    assert verify(store) == [] and load_index(store) == old and old.folder == ""
    assert old.version_uri(store.uri) == store.uri
    for path in raw.rglob("*.png"):  # whoever reads it now would get something else
        moment = path.stat().st_mtime_ns
        path.write_bytes(bytes(100))
        os.utime(path, ns=(moment, moment))
    index = prepare(raw, store, samples_per_shard=4)
    assert index.own.shards == old.shards and index.folder and verify(store) == []
    assert {shard.name for shard in old.shards} <= keys_of(store)  # somebody may still read it there


def test_a_reader_of_a_data_set_of_an_earlier_release_is_not_disturbed(tmp_path: Path) -> None:
    store = open_store(tmp_path / "out")
    in_place(store, prepare(some_samples(20), store, samples_per_shard=2))
    reader = ShardReader(tmp_path / "out", batch_size=4, shuffle=False, rank=0, world_size=1)
    batches = iter(reader)
    seen = list(next(batches))
    prepare(some_samples(20, seed=1), store, samples_per_shard=2)
    seen += [sample for batch in batches for sample in batch]
    assert [sample["bin"] for sample in seen] == [sample["bin"] for sample in some_samples(20)]


def test_an_unfinished_preparation_of_an_earlier_release_is_gone_on_with(tmp_path: Path) -> None:
    store, raw = open_store(tmp_path / "out"), a_folder(tmp_path / "raw", some_files(12))
    whole = prepare(raw, open_store(tmp_path / "whole"), samples_per_shard=4)
    for shard in whole.own.shards[:2]:
        store.write(shard.name, (tmp_path / "whole" / whole.folder / shard.name).read_bytes())
    journal = Journal(store, whole.fingerprint)
    for shard in whole.own.shards[:2]:
        journal.add(shard, written=True)
    journal.save()
    told: list[str] = []
    index = prepare(raw, store, samples_per_shard=4, notice=told.append)
    assert told == ["going on after 2 shards of an earlier call"]
    assert index.own.shards == whole.own.shards and verify(store) == []


# --- what nobody uses


def test_a_version_that_nobody_uses_goes_after_a_week_and_one_sentence_says_so(tmp_path: Path) -> None:
    store = open_store(tmp_path / "out")
    old = prepare(some_samples(6), store, samples_per_shard=2)
    told: list[str] = []
    prepare(some_samples(6, seed=1), store, samples_per_shard=2, notice=told.append)
    made_older(tmp_path / "out" / old.folder, WEEK - 3600)
    newest = prepare(some_samples(6, seed=2), store, samples_per_shard=2, notice=told.append)
    assert not [line for line in told if "removed" in line] and (tmp_path / "out" / old.folder).is_dir()
    made_older(tmp_path / "out" / old.folder, WEEK + 1)
    prepare(some_samples(6, seed=2), store, samples_per_shard=2, notice=told.append)
    assert told[-1] == f"removed 1 version that nobody has used for 7d: {old.folder}"
    assert not (tmp_path / "out" / old.folder).exists()
    assert verify(store) == [] and load_index(store) == newest
    with pytest.raises(StorageMissing, match="nobody used it for long and it was removed"):
        load_index(store.below(old.folder))


def test_the_newest_stays_however_old_it_is(tmp_path: Path) -> None:
    store = open_store(tmp_path / "out")
    index = prepare(some_samples(6), store)
    made_older(tmp_path / "out", 10 * WEEK)
    assert prepare(some_samples(6), store) == index and verify(store) == []


def test_what_was_the_newest_until_now_is_not_removed_for_its_age(tmp_path: Path) -> None:
    store = open_store(tmp_path / "out")
    index = prepare(some_samples(6), store)
    made_older(tmp_path / "out", 10 * WEEK)
    prepare(some_samples(6, seed=1), store)
    assert verify(store.below(index.folder)) == []


def test_a_version_that_is_read_stays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLABOARD_RUN", "digits-1f0c9a77")
    store = open_store(tmp_path / "out")
    read = prepare(some_samples(40), store, samples_per_shard=2)
    prepare(some_samples(4, seed=1), store)
    made_older(tmp_path / "out" / read.folder, 2 * WEEK)
    reader = ShardReader(tmp_path / "out" / read.folder, batch_size=2, rank=0, world_size=1, shuffle=False)
    batches = iter(reader)
    seen = next(batches)
    hold = tmp_path / "out" / read.folder / "holds" / "digits-1f0c9a77.json"
    wait_until(hold.exists)
    prepare(some_samples(4, seed=2), store)
    seen += [sample for batch in batches for sample in batch]
    assert [sample["bin"] for sample in seen] == [sample["bin"] for sample in some_samples(40)]
    assert not reader._hold.is_due


def wait_until(look: Callable[[], bool]) -> None:
    end = time.monotonic() + 30
    while not look():
        assert time.monotonic() < end
        time.sleep(0.01)


def test_how_long_they_are_kept_is_said_by_a_variable(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    store = open_store(tmp_path / "out")
    old = prepare(some_samples(6), store)
    prepare(some_samples(6, seed=1), store)
    made_older(tmp_path / "out" / old.folder, 7200)
    monkeypatch.setenv("ALLABOARD_KEEP_SHARDS", "soon")
    with pytest.raises(BadInput, match="ALLABOARD_KEEP_SHARDS: "):
        prepare(some_samples(6, seed=1), store)
    monkeypatch.setenv("ALLABOARD_KEEP_SHARDS", "1h")
    prepare(some_samples(6, seed=1), store)
    assert not (tmp_path / "out" / old.folder).exists()


def test_whoever_begins_to_use_a_version_while_it_is_removed_keeps_it(tmp_path: Path) -> None:
    store = open_store(tmp_path / "out")
    old = prepare(some_samples(6), store)
    prepare(some_samples(6, seed=1), store)
    made_older(tmp_path / "out" / old.folder, 2 * WEEK)
    found = of_versions.versions(store)[old.folder]
    of_versions.Hold(store.below(old.folder), "a-run").write()
    assert not of_versions._remove(store, old.folder, found)
    assert verify(store.below(old.folder)) == []


def test_unfinished_versions_and_what_an_earlier_release_left_go_too(tmp_path: Path) -> None:
    store = open_store(tmp_path / "out")
    in_place(store, prepare(some_samples(6), store, samples_per_shard=2))
    dead = "version-00000000000000aa"
    store.write(f"{dead}/shard-000000-0123456789ab.tar", b"of a call that was killed")
    store.write("notes.txt", b"of the user")
    store.write("version-2/notes.txt", b"of the user")
    index = prepare(some_samples(6, seed=1), store)
    made_older(tmp_path / "out", 2 * WEEK)
    told: list[str] = []
    prepare(some_samples(6, seed=1), store, notice=told.append)
    assert len(told) == 1 and told[0].startswith("removed 2 versions") and dead in told[0]
    assert keys_of(store) == {
        "index.json", "notes.txt", "version-2/notes.txt", f"{index.folder}/index.json",
        f"{index.folder}/holds/prepared.json", *(shard.name for shard in index.shards),
    }  # fmt: skip


# --- hostile


@pytest.mark.parametrize("folder", ["..", "version-0", "/etc", 7, "version-00000000000000aa", None])
def test_a_folder_that_is_none_is_no_version(folder: Any) -> None:
    shard = Shard.from_dict({"name": "a.tar", "size": 1, "samples": 1, "sha256": "0" * 64})
    body = {**Index((shard,), "f", "c").to_dict(), "folder": folder}
    assert Index.from_bytes(json.dumps(body).encode(), "x").folder == ""
