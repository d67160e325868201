"""Who writes a run's folder: claims, what they leave behind, and records that cannot be read."""

from __future__ import annotations

import json
import threading
import time

import pytest

from allaboard.checkpoints import Manifest, best, collect, latest, prune, save, scan
from allaboard.checkpoints.listing import scan_all
from allaboard.checkpoints.writers import (
    KEPT,
    Takeover,
    Writer,
    check_attempt,
    check_writer,
    claim,
    is_superseded,
    newest_writer,
)
from allaboard.errors import OwnershipConflict, StorageMissing, TakenOver
from allaboard.storage import open_store
from allaboard.storage.base import Store
from tests.core.checkpoints.building import NOW, a_checkpoint, keys, steps


def test_the_highest_number_writes_and_the_one_before_is_told(store: Store) -> None:
    first = claim(store, None, "a", NOW)
    check_writer(store, first.number)
    second = claim(store, 100, "b", NOW)
    assert (first.number, second.number) == (1, 2)
    assert second.takeovers == (Takeover(1, None, "a"), Takeover(2, 100, "b"))
    assert newest_writer(store) == second
    check_writer(store, second.number)
    with pytest.raises(
        TakenOver, match=r"has taken over this folder at 2027-.*Z and goes on after step 100;"
    ):
        check_writer(store, first.number)


def test_of_many_that_begin_at_once_each_has_a_number_of_its_own(store: Store) -> None:
    claimed: list[int] = []
    threads = [
        threading.Thread(target=lambda: claimed.append(claim(store, 1, None, NOW).number)) for _ in range(6)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(claimed) == [1, 2, 3, 4, 5, 6]
    newest = newest_writer(store)
    assert newest is not None and [one.number for one in newest.takeovers] == [1, 2, 3, 4, 5, 6]


def test_an_attempt_that_was_taken_over_claims_no_more_and_a_restart_of_it_may(store: Store) -> None:
    claim(store, None, "a", NOW)
    assert claim(store, 5, "a", NOW).number == 2
    claim(store, 5, "b", NOW)
    with pytest.raises(TakenOver):
        claim(store, 5, "a", NOW)
    with pytest.raises(TakenOver):
        check_attempt(store, newest_writer(store), "a")
    assert claim(store, 6, None, NOW).number == 4  # a script that a person starts by hand


@pytest.mark.parametrize(
    ("writer", "step", "superseded"),
    [
        (None, 900, False),
        (1, 100, False),
        (1, 101, True),
        (2, 101, False),
        (2, 150, False),
        (2, 151, True),
        (3, 900, False),
        (9, 900, False),
    ],
)
def test_a_checkpoint_counts_up_to_where_each_later_writer_goes_on(
    writer: int | None, step: int, superseded: bool
) -> None:
    newest = Writer(3, takeovers=(Takeover(1, None), Takeover(2, 100), Takeover(3, 150)))
    assert is_superseded(Manifest(step=step, writer=writer), newest) is superseded


def test_from_scratch_leaves_all_behind() -> None:
    newest = Writer(2, takeovers=(Takeover(1, None), Takeover(2, None)))
    assert is_superseded(Manifest(step=0, writer=1), newest)


def test_no_reader_is_shown_what_was_saved_after_a_takeover(store: Store, tmp_path: object) -> None:
    claim(store, None, "a", NOW)
    a_checkpoint(store, 10, {"loss": 3.0}, writer=1)
    claim(store, 10, "b", NOW)
    a_checkpoint(store, 20, {"loss": 2.0}, writer=2)
    a_checkpoint(store, 30, {"loss": 1.0}, writer=1)
    assert steps(store) == [10, 20] and [item.step for item in scan(store)] == [10, 20]
    assert (found := latest(store)) is not None and found.step == 20
    assert (found := best(store, "loss")) is not None and found.step == 20
    assert collect(store.uri, f"{tmp_path}/models", "best", metric="loss").step == 20
    with pytest.raises(StorageMissing, match="complete steps are: 10, 20"):
        collect(store.uri, f"{tmp_path}/models", 30)


def test_only_the_present_writer_retires_what_a_taken_over_one_left(store: Store) -> None:
    claim(store, None, "a", NOW)
    a_checkpoint(store, 10, writer=1)
    claim(store, 10, "b", NOW)
    a_checkpoint(store, 20, writer=2)
    a_checkpoint(store, 30, writer=1)
    for writer in (None, 1):
        assert prune(store, 2, None, time.time(), writer=writer).retired == ()
    assert [one.step for one in scan_all(store).superseded] == [30]
    assert prune(store, 2, None, time.time(), writer=2).retired == (30,)
    assert scan_all(store).superseded == [] and steps(store) == [10, 20]


def test_a_save_that_finds_another_manifest_at_its_end_replaces_nothing(store: Store) -> None:
    """It looked, slept, and the next writer saved the same step meanwhile."""

    def sleeps() -> None:
        if len(keys(store, "writers")) == 1:
            claim(store, None, "b", NOW)
            save(store, Manifest(step=10, writer=2), {"model.bin": b"new"})
        else:
            check_writer(store, 1)

    claim(store, None, "a", NOW)
    with pytest.raises(TakenOver):
        save(store, Manifest(step=10, writer=1), {"model.bin": b"old"}, check=sleeps)
    [found] = scan(store)
    assert (
        store.read(f"step-000000000010/{found.manifest.parts[0].name}") == b"new"  # type: ignore[union-attr]
    )


@pytest.mark.parametrize(
    "raw",
    [
        b"",
        b"{",
        b"[]",
        b"{}",
        b'{"number": 7}',
        b'{"number": 2, "after": "x"}',
        b'{"number": 2, "after": -1}',
        b"\xff\xfe",
    ],
)
def test_a_record_that_cannot_be_read_is_nobodys_and_its_number_is_passed_over(
    store: Store, raw: bytes
) -> None:
    first = claim(store, None, "a", NOW)
    store.write("writers/000000000002.json", raw)
    store.write("writers/notes.txt", b"x")
    check_writer(store, first.number)
    assert newest_writer(store) == first
    assert claim(store, 3, "b", NOW).number == 3
    with pytest.raises(TakenOver):
        check_writer(store, first.number)


def test_a_hostile_record_is_read_within_bounds(store: Store) -> None:
    claim(store, None, "a", NOW)
    body = {
        "number": 2,
        "after": None,
        "by": "\x1b[31m" + "x" * 10_000,
        "takeovers": [None, {"number": "1"}, 7],
    }
    store.write("writers/000000000002.json", json.dumps(body).encode())
    with pytest.raises(TakenOver) as caught:
        check_writer(store, 1)
    assert len(str(caught.value)) < 1000 and "\x1b" not in str(caught.value)


def test_a_thousand_takeovers_fit_into_a_record(disk: Store) -> None:
    many = tuple(Takeover(n, n, f"{n:032x}") for n in range(1, 3 * KEPT))
    disk.write("writers/000000002999.json", Writer(2999, "process 1 on host", "now", many).encode())
    found = claim(disk, 5000, "next", NOW)
    assert found.number == 3000 and len(found.encode()) < 1 << 18
    assert (newest := newest_writer(open_store(disk.uri))) is not None and len(newest.takeovers) == KEPT


def test_a_race_that_is_never_won_ends(disk: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    from allaboard.errors import StorageConflict

    def refuse(key: str, data: bytes) -> None:
        raise StorageConflict("it exists already")

    monkeypatch.setattr(disk, "create", refuse)
    with pytest.raises(OwnershipConflict, match="lost 100 races"):
        claim(disk, 1, None, NOW)
