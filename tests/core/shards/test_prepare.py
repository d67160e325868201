from __future__ import annotations

import json
import os
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from allaboard.errors import BadInput, OwnershipConflict, StorageFull
from allaboard.shards import Index, load_index, prepare, verify
from allaboard.storage import Store, open_store
from tests.core.shards.building import (
    a_folder,
    a_place_for_all,
    as_nobody,
    contents,
    keys_of,
    keys_with,
    some_files,
    some_samples,
)

Told = list[str]


def lowered(files: dict[str, bytes]) -> dict[str, bytes]:
    return {name.lower(): data for name, data in files.items()}


def test_a_folder_becomes_shards_that_hold_every_byte(store: Store, tmp_path: Path) -> None:
    files = {**some_files(50), "with space/ü.big.json": b"{}", "empty.txt": b""}
    index = prepare(a_folder(tmp_path / "raw", files), store, samples_per_shard=7)
    assert contents(store, index) == files
    assert [shard.samples for shard in index.shards] == [7] * 7 + [3]
    assert index.samples == 52 and index.size == sum(shard.size for shard in index.shards)
    assert keys_of(store) == keys_with(index)
    assert verify(store) == []
    assert load_index(store) == index


def test_the_index_is_what_the_contract_says(tmp_path: Path) -> None:
    prepare(some_samples(5), tmp_path / "out", samples_per_shard=3)
    body = json.loads((tmp_path / "out" / "index.json").read_text())
    assert set(body) == {"version", "samples", "shards", "created", "fingerprint", "folder"}
    assert body["version"] == 1 and body["samples"] == 5
    own = json.loads((tmp_path / "out" / body["folder"] / "index.json").read_text())
    assert own == {
        **{name: value for name, value in body.items() if name != "folder"},
        "shards": [
            {**shard, "name": shard["name"].removeprefix(f"{body['folder']}/")} for shard in body["shards"]
        ],
    }
    assert [set(shard) for shard in body["shards"]] == [{"name", "size", "samples", "sha256"}] * 2
    assert body["created"].endswith("Z")


def test_an_iterable_becomes_shards_in_its_order(store: Store) -> None:
    samples = some_samples(20)
    index = prepare(lambda: iter(samples), store, samples_per_shard=6)
    assert list(contents(store, index)) == [
        f"k{number:05d}.{extension}" for number in range(20) for extension in ("bin", "cls")
    ]


def test_the_same_source_gives_the_same_bytes_anywhere(tmp_path: Path) -> None:
    files = some_files(30)
    indexes = []
    for name in ("one", "two"):
        raw = a_folder(tmp_path / name / "raw", files)
        indexes.append(prepare(raw, tmp_path / name / "out", samples_per_shard=4))
    assert indexes[0].shards == indexes[1].shards
    assert indexes[0].fingerprint == indexes[1].fingerprint
    one, two = (open_store(tmp_path / name / "out") for name in ("one", "two"))
    assert all(one.read(shard.name) == two.read(shard.name) for shard in indexes[0].shards)


def test_a_shard_ends_at_its_bytes_or_its_samples_whichever_comes_first(tmp_path: Path) -> None:
    samples = some_samples(20, size=1000)  # 512 + 1024 for bin, 512 + 512 for cls
    index = prepare(samples, tmp_path / "bytes", bytes_per_shard=8000)
    assert [shard.samples for shard in index.shards] == [3] * 6 + [2]
    index = prepare(samples, tmp_path / "text", bytes_per_shard="10Ki")
    assert [shard.samples for shard in index.shards] == [4] * 5
    index = prepare(samples, tmp_path / "both", bytes_per_shard="10Ki", samples_per_shard=2)
    assert [shard.samples for shard in index.shards] == [2] * 10
    index = prepare(samples, tmp_path / "neither")
    assert [shard.samples for shard in index.shards] == [20]


@pytest.mark.thorough(but=("disk",))
def test_progress_counts_up_to_the_end(store: Store, tmp_path: Path) -> None:
    seen: list[tuple[int, int | None, int]] = []
    index = prepare(
        a_folder(tmp_path / "raw", some_files(30)),
        store,
        samples_per_shard=8,
        progress=lambda *at: seen.append(at),
    )
    assert seen == sorted(seen) and {total for _, total, _ in seen} == {30}
    assert seen[-1] == (30, 30, index.size)
    unknown: list[int | None] = []
    prepare(
        (sample for sample in some_samples(3)),
        store,
        progress=lambda done, total, size: unknown.append(total),
    )
    assert set(unknown) == {None}


# --- again


def test_an_unchanged_source_is_not_read_again(store: Store, tmp_path: Path) -> None:
    raw = a_folder(tmp_path / "raw", some_files(20))
    index = prepare(raw, store, samples_per_shard=6)
    written = {entry.key: entry.modified for entry in store.entries()}
    for path in raw.rglob("*.png"):
        moment = path.stat().st_mtime_ns
        path.write_bytes(bytes(100))  # whoever reads it now would get something else
        os.utime(path, ns=(moment, moment))
    told: Told = []
    seen: list[int] = []
    again = prepare(
        raw, store, samples_per_shard=6, notice=told.append, progress=lambda done, *_: seen.append(done)
    )
    assert again == index and told == [] and seen == [20]
    assert {entry.key: entry.modified for entry in store.entries()} == written


def test_an_unchanged_iterable_changes_nothing(store: Store) -> None:
    index = prepare(some_samples(20), store, samples_per_shard=6)
    written = {entry.key: entry.modified for entry in store.entries()}
    assert prepare(some_samples(20), store, samples_per_shard=6) == index
    assert {entry.key: entry.modified for entry in store.entries()} == written


@pytest.mark.thorough(but=("disk",))
def test_a_changed_source_starts_over_says_so_and_keeps_what_did_not_change(
    store: Store, tmp_path: Path
) -> None:
    files = some_files(20)
    raw = a_folder(tmp_path / "raw", files)
    before = prepare(raw, store, samples_per_shard=5)
    written = {entry.key: entry.modified for entry in store.entries()}
    last = list(contents(store, before))[-1]
    files[last] = b"changed!"
    (raw / last).write_bytes(files[last])
    told: Told = []
    after = prepare(raw, store, samples_per_shard=5, notice=told.append)
    assert contents(store, after) == files
    assert after.own.shards[:3] == before.own.shards[:3] and after.own.shards[3] != before.own.shards[3]
    assert contents(store, before) != files and not verify(store.below(before.folder))
    there = {e.key: e.modified for e in store.entries()}
    assert all(there[shard.name] == written[shard.name] for shard in before.shards)
    assert keys_of(store) == keys_with(before, after) | {f"{before.folder}/holds/replaced.json"}
    assert load_index(store) == after
    if (folder := store.local_path()) is not None:  # one file with two names
        same = [
            (folder / b.name).samefile(folder / a.name)
            for b, a in zip(before.shards, after.shards, strict=True)
        ]
        assert same[:3] == [True] * 3 and not same[3]
    assert len(told) == 1 and "changed" in told[0] and "starting over" in told[0]


@pytest.mark.thorough(but=("disk",))
def test_a_changed_iterable_and_changed_limits_are_other_versions(store: Store) -> None:
    told: Told = []
    first = prepare(some_samples(20), store, samples_per_shard=5)
    second = prepare(some_samples(20, seed=1), store, samples_per_shard=5, notice=told.append)
    index = prepare(some_samples(20, seed=1), store, samples_per_shard=8, notice=told.append)
    assert [shard.samples for shard in index.shards] == [8, 8, 4]
    replaced = {f"{one.folder}/holds/replaced.json" for one in (first, second)}
    assert keys_of(store) == keys_with(first, second, index) | replaced
    assert len(told) == 2 and all("changed" in line for line in told)


def test_readers_keep_the_old_data_set_until_the_new_one_is_whole(tmp_path: Path) -> None:
    store = open_store(tmp_path / "out")
    before = prepare(some_samples(20), store, samples_per_shard=5)

    def watched() -> Any:
        for sample in some_samples(20, seed=1):
            assert verify(store) == [] and load_index(store) == before
            yield sample

    after = prepare(watched, store, samples_per_shard=5)
    assert load_index(store) == after != before


def test_a_missing_shard_is_made_again(store: Store, tmp_path: Path) -> None:
    raw = a_folder(tmp_path / "raw", some_files(20))
    index = prepare(raw, store, samples_per_shard=5)
    store.delete([index.shards[2].name])
    told: Told = []
    again = prepare(raw, store, samples_per_shard=5, notice=told.append)
    assert again.shards == index.shards and verify(store) == []
    assert told == [f"{index.shards[2].name} is missing or damaged: going on from there"]


def test_a_damaged_index_is_made_again(store: Store) -> None:
    index = prepare(some_samples(20), store, samples_per_shard=5)
    store.write("index.json", b'{"version": 1, "shards": [')
    told: Told = []
    assert prepare(some_samples(20), store, samples_per_shard=5, notice=told.append).shards == index.shards
    assert "starting over" in told[0]


# --- interrupted


class Interrupted(Exception):
    pass


def stop_after(samples: int) -> Callable[..., None]:
    def progress(done: int, total: int | None, size: int) -> None:
        if done >= samples:
            raise Interrupted

    return progress


@pytest.fixture
def told_at_every_sample(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys.modules["allaboard.shards.prepare"], "_EVERY", 0.0)


@pytest.mark.thorough(but=("disk",))
@pytest.mark.usefixtures("told_at_every_sample")
def test_an_interrupted_preparation_goes_on_where_it_was(store: Store, tmp_path: Path) -> None:
    files = some_files(40)
    raw = a_folder(tmp_path / "raw", files)
    with pytest.raises(Interrupted):
        prepare(raw, store, samples_per_shard=4, progress=stop_after(22))
    assert store.stat("index.json") is None
    done = {key for key in keys_of(store) if key.endswith(".tar")}
    assert len(done) == 5
    told: Told = []
    seen: list[int] = []
    index = prepare(
        raw, store, samples_per_shard=4, notice=told.append, progress=lambda at, *_: seen.append(at)
    )
    assert told == ["going on after 5 shards of an earlier call"]
    assert seen[0] == 20  # those are not read again
    assert contents(store, index) == files
    assert keys_of(store) == keys_with(index) and done < keys_of(store)


@pytest.mark.usefixtures("told_at_every_sample")
def test_what_was_damaged_meanwhile_is_not_built_upon(tmp_path: Path) -> None:
    store = open_store(tmp_path / "out")
    files = some_files(40)
    raw = a_folder(tmp_path / "raw", files)
    with pytest.raises(Interrupted):
        prepare(raw, store, samples_per_shard=4, progress=stop_after(22))
    third = sorted(key for key in keys_of(store) if key.endswith(".tar"))[2]
    data = bytearray(store.read(third))
    data[600] ^= 1
    (tmp_path / "out" / third).write_bytes(data)
    told: Told = []
    index = prepare(raw, store, samples_per_shard=4, notice=told.append)
    assert told == [
        f"{third} is missing or damaged: going on from there",
        "going on after 2 shards of an earlier call",
    ]
    assert contents(store, index) == files and verify(store) == []


@pytest.mark.thorough(but=("disk",))
@pytest.mark.usefixtures("told_at_every_sample")
def test_a_source_that_changed_after_an_interruption_starts_over(store: Store, tmp_path: Path) -> None:
    files = some_files(40)
    raw = a_folder(tmp_path / "raw", files)
    with pytest.raises(Interrupted):
        prepare(raw, store, samples_per_shard=4, progress=stop_after(22))
    files["class-0/00000.png"] = b"new"
    (raw / "class-0/00000.png").write_bytes(b"new")
    told: Told = []
    index = prepare(raw, store, samples_per_shard=4, notice=told.append)
    assert told == [
        "the source or the limits changed since an earlier call: starting over; "
        "shards that come out as before are kept"
    ]
    assert contents(store, index) == files
    others = keys_of(store) - keys_with(index)  # of the unfinished version, until nobody can need them
    assert len({key.partition("/")[0] for key in others}) == 1 and keys_with(index) <= keys_of(store)


@pytest.mark.thorough(but=("disk",))
@pytest.mark.usefixtures("told_at_every_sample")
def test_an_interrupted_iterable_writes_no_shard_twice(store: Store) -> None:
    with pytest.raises(Interrupted):
        prepare(some_samples(40), store, samples_per_shard=4, progress=stop_after(22))
    written = {entry.key: entry.modified for entry in store.entries() if entry.key.endswith(".tar")}
    assert len(written) == 5
    told: Told = []
    index = prepare(some_samples(40), store, samples_per_shard=4, notice=told.append)
    assert told == ["reading the source from its start; shards that come out as before are kept"]
    assert index.samples == 40 and verify(store) == []
    assert written.items() <= {entry.key: entry.modified for entry in store.entries()}.items()


def test_a_journal_that_cannot_be_read_costs_its_work_alone(store: Store) -> None:
    store.write("journal.json", b"garbage")
    left = "shard-000007-0123456789ab.tar"
    store.write(left, b"left by somebody who was killed")
    store.write("notes.txt", b"of the user")
    index = prepare(some_samples(4), store, samples_per_shard=2)
    assert keys_of(store) == keys_with(index) | {"notes.txt", "journal.json", left}


# --- bad input


def left_alone(store: Store, source: Any, words: str, **limits: Any) -> BadInput:
    """Preparing raises BadInput with these words, and leaves nothing behind."""
    before = {entry.key: entry.modified for entry in store.entries()}
    with pytest.raises(BadInput, match=words) as caught:
        prepare(source, store, **limits)
    assert {entry.key: entry.modified for entry in store.entries()} == before
    return caught.value


@pytest.mark.thorough(but=("disk",))
@pytest.mark.parametrize("prepared_before", [False, True])
def test_bad_input_leaves_nothing_behind_and_what_was_there_in_place(
    store: Store, tmp_path: Path, prepared_before: bool
) -> None:
    if prepared_before:
        prepare(some_samples(6), store, samples_per_shard=2)
    left_alone(store, tmp_path / "nowhere", "does not exist")
    left_alone(store, a_folder(tmp_path / "empty", {}), "holds no files")
    left_alone(store, a_folder(tmp_path / "bad", {"a.png": b"", "b": b""}), "b: has no extension")
    left_alone(store, [], "list of files is empty")
    left_alone(store, iter([]), "holds no samples")
    left_alone(store, [*some_samples(9), *some_samples(1)], "key was used before", samples_per_shard=2)
    left_alone(store, [*some_samples(9), {}], r"sample 9 .*has no data", samples_per_shard=2)
    error = left_alone(store, some_samples(3), "limits", samples_per_shard=0, bytes_per_shard="-3")
    assert [problem.path for problem in error.problems] == ["samples_per_shard", "bytes_per_shard"]


def test_samples_larger_than_a_shard_are_all_named(tmp_path: Path) -> None:
    store = open_store(tmp_path / "out")
    raw = a_folder(
        tmp_path / "raw", {"a.bin": b"x" * 3000, "a.txt": b"y", "b.bin": b"x", "c.bin": b"x" * 5000}
    )
    error = left_alone(store, raw, "samples are larger", bytes_per_shard=2000)
    assert [Path(problem.path).name for problem in error.problems] == ["a.bin", "c.bin"]
    error = left_alone(store, some_samples(3, size=3000), "cannot be written", bytes_per_shard=2000)
    assert len(error.problems) == 3


def test_a_file_that_changes_while_it_is_read_is_named(tmp_path: Path) -> None:
    raw = a_folder(tmp_path / "raw", some_files(20))
    victims = sorted(raw.rglob("*.png"))

    def growing(*_: Any) -> None:
        for path in victims:
            path.write_bytes(bytes(500))

    with pytest.raises(BadInput, match=r"\.png: its size changed while it was read"):
        prepare(raw, tmp_path / "out", progress=growing)
    assert not (tmp_path / "out" / "index.json").exists()


def test_shards_cannot_go_into_their_own_source(tmp_path: Path) -> None:
    raw = a_folder(tmp_path / "raw", some_files(3))
    (tmp_path / "link").symlink_to(raw)
    for into in (raw, raw / "shards", tmp_path / "link" / "shards"):
        with pytest.raises(BadInput, match="inside of the source"):
            prepare(raw, into)


def test_a_place_that_may_not_be_written_to_is_said(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"")
    with pytest.raises(Exception) as caught:
        prepare(some_samples(3), tmp_path / "file" / "below")
    assert str(tmp_path / "file") in str(caught.value)


def test_a_full_disk_is_said_and_leaves_no_half_shard(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # A limit on the size of files is the nearest to a full disk that needs no other disk.
    import resource
    import signal

    old = resource.getrlimit(resource.RLIMIT_FSIZE)
    handler = signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    resource.setrlimit(resource.RLIMIT_FSIZE, (50_000, old[1]))
    try:
        with pytest.raises(StorageFull):
            prepare(some_samples(10, size=10_000), tmp_path / "out")
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, old)
        signal.signal(signal.SIGXFSZ, handler)
    assert list((tmp_path / "out").iterdir()) == []


@pytest.mark.thorough(but=("disk",))
def test_a_second_preparation_that_cleans_up_under_the_first_is_noticed(store: Store) -> None:
    def disturbed() -> Any:
        yield from some_samples(8)
        store.delete([key for key in keys_of(store) if "/shard-000000" in key])

    with pytest.raises(OwnershipConflict, match=r"shard-000000.* vanished"):
        prepare(disturbed, store, samples_per_shard=2)
    assert store.stat("index.json") is None
    assert isinstance(prepare(some_samples(8), store, samples_per_shard=2), Index)


def test_a_folder_without_permission_is_said_and_left_alone() -> None:
    with a_place_for_all() as place:
        (place / "locked").mkdir(mode=0o555)
        said = as_nobody(lambda: prepare(some_samples(3), place / "locked"))
        assert said.startswith("StorageDenied") and str(place / "locked") in said
        assert list((place / "locked").iterdir()) == []
