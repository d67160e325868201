from __future__ import annotations

import pytest

from allaboard.checkpoints.holds import SECONDS, hold_checkpoint, list_holds, place_hold
from allaboard.errors import StorageDenied
from allaboard.storage.base import Store
from tests.core.checkpoints.building import HOUR, NOW, keys


def test_a_hold_says_what_it_holds_until_when_and_for_whom(store: Store) -> None:
    placed = place_hold(store, 120, "collect on host-1", NOW)
    assert list_holds(store) == [placed]
    assert (placed.step, placed.by, placed.expires) == (120, "collect on host-1", NOW + SECONDS)


def test_several_readers_hold_the_same_step(store: Store) -> None:
    for reader in "abc":
        place_hold(store, 120, reader, NOW)
    assert sorted(hold.by for hold in list_holds(store)) == ["a", "b", "c"]


def test_it_is_released_when_the_reading_ends_also_by_an_error(store: Store) -> None:
    with pytest.raises(RuntimeError), hold_checkpoint(store, 120, "a reader", lambda: NOW):
        assert [hold.step for hold in list_holds(store)] == [120]
        raise RuntimeError
    assert keys(store) == []


def test_a_long_reading_renews_its_hold(store: Store) -> None:
    now = [NOW]
    with hold_checkpoint(store, 120, "a reader", lambda: now[0]) as renew:
        renew()
        assert [hold.expires for hold in list_holds(store)] == [NOW + HOUR]
        now[0] += 0.75 * HOUR
        renew()
        assert [hold.expires for hold in list_holds(store)] == [NOW + 1.75 * HOUR]
    assert keys(store) == []


def test_a_reader_that_may_not_write_reads_without_a_hold(
    disk: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    def denied(*_: object) -> None:
        raise StorageDenied("read only")

    monkeypatch.setattr(type(disk), "write", denied)
    with hold_checkpoint(disk, 120, "a reader", lambda: NOW) as renew:
        renew()
    assert keys(disk) == []


@pytest.mark.parametrize(
    "raw", [b"", b"{", b"[]", b"{}", b'{"expires": "soon"}', b'{"expires": 3}'], ids=lambda raw: raw.decode()
)
def test_a_hold_that_cannot_be_read_holds_for_as_long_as_one_lasts(disk: Store, raw: bytes) -> None:
    disk.write("holds/step-000000000120-1f.json", raw)
    (found,) = list_holds(disk)
    entry = disk.stat("holds/step-000000000120-1f.json")
    assert entry is not None
    assert (found.step, found.expires) == (120, entry.modified + SECONDS)


def test_foreign_files_hold_nothing(disk: Store) -> None:
    for name in ("note.txt", "step-5-1f.json", "step-000000000120.json"):
        disk.write(f"holds/{name}", b"{}")
    assert list_holds(disk) == []
