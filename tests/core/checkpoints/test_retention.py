"""What may go, as a table; and the two steps in which it goes."""

from __future__ import annotations

import json
import math
import os
import time
from typing import Any

import pytest

from allaboard.checkpoints import latest, prune, verify
from allaboard.checkpoints.holds import list_holds, place_hold
from allaboard.checkpoints.manifest import MANIFEST, RETIRED
from allaboard.checkpoints.retention import ABANDONED_AFTER, PARTS_AFTER, check_keep
from allaboard.errors import BadInput, StorageFull
from allaboard.storage.base import Store
from tests.core.checkpoints.building import (
    HOUR,
    a_checkpoint,
    corrupt,
    cut,
    keys,
    steps,
    without_manifest,
)

MIN = ("loss", "min")
MAX = ("loss", "max")
NAN = math.nan

TABLE: dict[str, tuple[dict[int, float | None], int | None, Any, set[int], set[int], list[int]]] = {
    # what: losses by step, keep, best, held, protected, kept
    "nothing there": ({}, 1, None, set(), set(), []),
    "no retention": ({1: 1, 2: 1, 3: 1}, None, None, set(), set(), [1, 2, 3]),
    "fewer than wanted": ({1: 1, 2: 1}, 3, None, set(), set(), [1, 2]),
    "the newest few": ({1: 1, 2: 1, 3: 1, 4: 1}, 2, None, set(), set(), [3, 4]),
    "the newest alone": ({1: 1, 2: 1, 3: 1}, 1, None, set(), set(), [3]),
    "and the best, smaller": ({1: 5, 2: 1, 3: 4, 4: 3}, 1, MIN, set(), set(), [2, 4]),
    "and the best, larger": ({1: 5, 2: 1, 3: 4, 4: 3}, 1, MAX, set(), set(), [1, 4]),
    "the best is among the newest": ({1: 5, 2: 4, 3: 1}, 2, MIN, set(), set(), [2, 3]),
    "of equals the newer is the best": ({1: 1, 2: 1, 3: 9, 4: 9}, 1, MIN, set(), set(), [2, 4]),
    "NaN is never the best": ({1: NAN, 2: 7, 3: 9, 4: 9}, 1, MIN, set(), set(), [2, 4]),
    "nor is a missing metric": ({1: None, 2: 7, 3: 9}, 1, MIN, set(), set(), [2, 3]),
    "all NaN: no best": ({1: NAN, 2: NAN, 3: NAN}, 1, MIN, set(), set(), [3]),
    "held ones stay": ({1: 5, 2: 5, 3: 5}, 1, None, {1}, set(), [1, 3]),
    "held, best and newest": ({1: 5, 2: 1, 3: 5, 4: 5}, 1, MIN, {1}, set(), [1, 2, 4]),
    "protected ones stay": ({1: 5, 2: 5, 3: 5}, 1, None, set(), {2}, [2, 3]),
}


@pytest.mark.parametrize("row", TABLE.values(), ids=TABLE)
def test_retention(disk: Store, row: Any) -> None:
    losses, keep, best, held, protected, kept = row
    for step, loss in losses.items():
        a_checkpoint(disk, step, None if loss is None else {"loss": loss})
    for step in held:
        place_hold(disk, step, "a reader", time.time())
    done = prune(disk, keep, best, time.time(), protect=protected)
    assert steps(disk) == kept
    assert list(done.kept) == kept
    assert sorted(done.retired) == sorted(set(losses) - set(kept))
    assert all(verify(disk, step) == [] for step in kept)


def test_only_what_is_held_and_else_unwanted_is_called_held(disk: Store) -> None:
    for step in (1, 2, 3):
        a_checkpoint(disk, step)
        place_hold(disk, step, "a reader", time.time())
    assert prune(disk, 1, None, time.time()).held == (1, 2)


def test_first_the_manifest_goes_and_an_hour_later_the_parts(store: Store) -> None:
    old = a_checkpoint(store, 1)
    a_checkpoint(store, 2)
    now = time.time()
    first = prune(store, 1, None, now)
    assert (first.retired, first.removed, first.waiting) == ((1,), (), (1,))
    assert steps(store) == [2]
    # A reader that has just read the manifest finds what it names.
    for part in old.manifest.parts:
        assert len(store.read(f"step-000000000001/{part.name}")) == part.size

    early = prune(store, 1, None, now + PARTS_AFTER - 60)
    assert (early.removed, early.waiting) == ((), (1,))
    late = prune(store, 1, None, now + PARTS_AFTER + 60)
    assert (late.removed, late.waiting) == ((1,), ())
    assert late.bytes > old.bytes
    assert [key for key in keys(store) if "000001/" in key] == []
    assert steps(store) == [2]


def test_a_hold_that_came_late_still_saves_the_parts(store: Store) -> None:
    """The reader placed its hold after retention had looked, and before the manifest went."""
    a_checkpoint(store, 1)
    a_checkpoint(store, 2)
    now = time.time()
    prune(store, 1, None, now)
    place_hold(store, 1, "a slow reader", now, seconds=3 * HOUR)
    assert prune(store, 1, None, now + 2 * HOUR).removed == ()
    assert "step-000000000001/model.bin" in keys(store)
    assert prune(store, 1, None, now + 4 * HOUR).removed == (1,)


def test_an_expired_hold_holds_nothing_and_is_removed(store: Store) -> None:
    a_checkpoint(store, 1)
    a_checkpoint(store, 2)
    now = time.time()
    place_hold(store, 1, "a reader that was killed", now - 2 * HOUR)
    assert prune(store, 1, None, now).retired == (1,)
    assert list_holds(store) == []


def test_pruning_twice_changes_nothing(store: Store) -> None:
    for step in (1, 2, 3):
        a_checkpoint(store, step)
    now = time.time()
    prune(store, 1, None, now)
    before = keys(store)
    again = prune(store, 1, None, now)
    assert (again.retired, again.removed) == ((), ())
    assert keys(store) == before


def test_a_kill_between_note_and_manifest_leaves_a_whole_checkpoint(store: Store) -> None:
    a_checkpoint(store, 1)
    a_checkpoint(store, 2)
    note = {"version": 1, "step": 1, "parts": ["model.bin", "optimizer.bin"]}
    store.write(f"step-000000000001/{RETIRED}", json.dumps(note).encode())
    assert steps(store) == [1, 2]
    assert prune(store, None, None, time.time() + 2 * HOUR).retired == ()
    assert verify(store, 1) == []


def test_a_torn_checkpoint_is_left_for_somebody_to_look_at(store: Store) -> None:
    for step in (1, 2, 3):
        a_checkpoint(store, step)
    cut(store, 2)
    before = [key for key in keys(store) if "000002/" in key]
    prune(store, 1, None, time.time() + 2 * HOUR, parts_after=0)
    assert [key for key in keys(store) if "000002/" in key] == before
    assert steps(store) == [3]


def test_the_newest_complete_one_stays_though_a_torn_one_is_newer(store: Store) -> None:
    for step in (1, 2, 3):
        a_checkpoint(store, step)
    cut(store, 3)
    prune(store, 1, None, time.time())
    found = latest(store)
    assert found and found.step == 2


def test_an_upload_that_died_goes_when_it_is_a_day_old(disk: Store) -> None:
    a_checkpoint(disk, 1)
    a_checkpoint(disk, 2)
    without_manifest(disk, 2)
    now = time.time()
    assert prune(disk, 1, None, now + ABANDONED_AFTER - 60).removed == ()
    assert prune(disk, 1, None, now + ABANDONED_AFTER + 60).removed == (2,)
    assert [key for key in keys(disk) if "000002/" in key] == []


def test_an_upload_that_still_goes_on_is_left(disk: Store) -> None:
    """One of its parts is old, another was written just now."""
    a_checkpoint(disk, 1)
    a_checkpoint(disk, 2)
    without_manifest(disk, 2)
    now = time.time()
    old = disk.local_path("step-000000000002/model.bin")
    assert old is not None
    os.utime(old, (now - 2 * ABANDONED_AFTER,) * 2)
    assert prune(disk, 1, None, now + 60).removed == ()


def test_parts_of_an_earlier_save_of_a_step_go_an_hour_after_they_were_replaced(store: Store) -> None:
    a_checkpoint(store, 1, parts={"model.bin": b"old"})
    new = a_checkpoint(store, 1, parts={"model.bin": b"new"})
    now = time.time()
    assert prune(store, 1, None, now).removed == ()
    assert "step-000000000001/model.bin" in keys(store)
    assert prune(store, 1, None, now + PARTS_AFTER + 60).removed == (1,)
    assert keys(store) == [f"step-000000000001/{MANIFEST}", f"step-000000000001/{new.manifest.parts[0].name}"]
    assert verify(store, 1) == []


def test_a_save_under_way_beside_parts_that_wait_is_not_swept_away(store: Store) -> None:
    a_checkpoint(store, 1, parts={"model.bin": b"old"})
    a_checkpoint(store, 2)
    now = time.time()
    prune(store, 1, None, now)
    store.write("step-000000000001/model~1f0c.bin", b"half of a new save of step 1")
    prune(store, 1, None, now + PARTS_AFTER + 60)
    assert [key for key in keys(store) if "000001/" in key] == ["step-000000000001/model~1f0c.bin"]


def test_without_delay_the_parts_go_at_once(store: Store) -> None:
    a_checkpoint(store, 1)
    a_checkpoint(store, 2)
    done = prune(store, 1, None, time.time(), parts_after=0)
    assert (done.retired, done.removed) == ((1,), (1,))
    assert all("000002/" in key for key in keys(store))


def test_on_a_disk_without_room_for_a_note_the_unwanted_go_at_once(
    disk: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    old = a_checkpoint(disk, 1)
    a_checkpoint(disk, 2)

    def full(self: Store, key: str, data: bytes) -> None:
        raise StorageFull("no space left on the device")

    monkeypatch.setattr(type(disk), "write", full)
    done = prune(disk, 1, None, time.time())
    assert (done.retired, done.bytes) == ((1,), old.bytes)
    assert all("000002/" in key for key in keys(disk))
    assert verify(disk, 2) == []


def test_corrupt_bytes_do_not_hide_from_retention_what_it_must_keep(disk: Store) -> None:
    """Retention looks at sizes only; whoever finds corrupt bytes, as the checkpointer does, sets it aside."""
    a_checkpoint(disk, 1)
    a_checkpoint(disk, 2)
    corrupt(disk, 2)
    assert prune(disk, 1, None, time.time(), protect={1}).kept == (1, 2)


@pytest.mark.parametrize("keep", [0, -1, True, 1.5, "3"])
def test_keep_below_one_is_refused(disk: Store, keep: Any) -> None:
    a_checkpoint(disk, 1)
    with pytest.raises(
        BadInput, match=r"keep .*: at least the newest checkpoint is always kept; give 1 or more"
    ):
        prune(disk, keep, None, time.time())
    assert steps(disk) == [1]


def test_keep_may_be_absent() -> None:
    assert check_keep(None) is None
    assert check_keep(3) == 3


def test_what_was_pruned_has_a_json_form(disk: Store) -> None:
    for step in (1, 2):
        a_checkpoint(disk, step)
    assert prune(disk, 1, None, time.time()).to_dict() == {
        "kept": [2],
        "retired": [1],
        "held": [],
        "removed": [],
        "waiting": [1],
        "bytes": 0,
    }
