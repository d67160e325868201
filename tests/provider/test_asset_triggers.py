"""Triggers of the watchers of Assets: one event for each new checkpoint and champion, whoever restarts."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from airflow.sdk import Asset, AssetWatcher
from airflow.sdk.serde import deserialize, serialize
from airflow.triggers.base import BaseEventTrigger

from allaboard.checkpoints import Manifest, save
from allaboard.promotion.champion import promote
from allaboard.storage import open_store
from allaboard_provider.triggers import assets
from allaboard_provider.triggers.assets import NewChampionTrigger, NewCheckpointTrigger, StoreWatcher


class State(dict[str, Any]):
    """`BaseEventTrigger.asset_state_store` of a watcher of one Asset."""

    async def aget(self, key: str, default: Any = None) -> Any:
        return self.get(key, default)

    async def aset(self, key: str, value: Any) -> None:
        self[key] = value


class OfSeveral(State):
    """As Airflow's, for a trigger that several Assets have."""

    async def aget(self, key: str, default: Any = None) -> Any:
        raise ValueError("Task has 2 concrete inlets and outlets")

    async def aset(self, key: str, value: Any) -> None:
        raise ValueError("Task has 2 concrete inlets and outlets")


@pytest.fixture(autouse=True)
def at_once(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(assets, "UNTIL_PERSISTED", 0.0)
    monkeypatch.setenv("AIRFLOW_CONN_ALLABOARD_DEFAULT", "")
    monkeypatch.delenv("AIRFLOW_CONN_ALLABOARD_DEFAULT")


def told(trigger: StoreWatcher, state: Any = None, *happens: Callable[[], Any]) -> list[dict[str, Any]]:
    """The events of a triggerer that looks once before each thing that happens, and once after the last."""
    _, arguments = trigger.serialize()
    again = type(trigger)(**deserialize(serialize(arguments)))
    again.asset_state_store = state
    again.allaboard_conn_id = None
    todo = [*happens]
    events: list[dict[str, Any]] = []

    class Over(Exception):
        pass

    async def rest() -> None:
        if not todo:
            raise Over
        todo.pop(0)()

    async def run() -> None:
        async for event in again.run():
            events.append(event.payload)

    again._rest = rest  # type: ignore[method-assign]
    with pytest.raises(Over):
        asyncio.run(run())
    return events


def checkpoint(folder: Path, run: str, step: int, **metrics: float) -> str:
    save(open_store(folder / run), Manifest(step=step, run=run, metrics=metrics), {"state": b"x"})
    return str(folder / run / f"step-{step:012d}")


def champion(folder: Path, step: int) -> None:
    uri = checkpoint(folder / "models", "digits-1", step, accuracy=step / 100)
    promote(open_store(folder / "champions"), uri, now=float(step))


def steps(events: list[dict[str, Any]]) -> list[Any]:
    return [event["step"] for event in events]


def test_each_new_champion_is_told_once_and_the_one_before_the_first_look_is_not(tmp_path: Path) -> None:
    trigger, state = NewChampionTrigger(str(tmp_path / "champions")), State()
    champion(tmp_path, 1)
    events = told(trigger, state, lambda: champion(tmp_path, 2), lambda: None, lambda: champion(tmp_path, 3))
    assert [event["promotion"] for event in events] == [2, 3] and steps(events) == [2, 3]
    assert events[0]["metrics"] == {"accuracy": 0.02} and events[0]["run"] == "digits-1"
    assert told(trigger, state) == [], "a triggerer that begins anew"
    for step in (4, 5):
        champion(tmp_path, step)
    assert steps(told(trigger, state, lambda: None)) == [4, 5], "those that came while none was there"


def test_a_first_champion_and_a_first_checkpoint_are_new(tmp_path: Path) -> None:
    trigger = NewChampionTrigger(str(tmp_path / "champions"))
    assert steps(told(trigger, State(), lambda: champion(tmp_path, 1))) == [1]
    watches = NewCheckpointTrigger(str(tmp_path / "c"))
    assert steps(told(watches, State(), lambda: checkpoint(tmp_path / "c", "a", 0))) == [0]


def test_each_run_of_a_job_has_its_own_checkpoints(tmp_path: Path) -> None:
    """Their clocks may differ; of several that came between two looks the newest is told."""
    folder, state = tmp_path / "checkpoints", State()
    trigger = NewCheckpointTrigger(str(folder))
    checkpoint(folder, "a", 10)

    def more() -> None:
        for run, step in (("a", 20), ("a", 30), ("b", 5)):
            checkpoint(folder, run, step)

    events = told(trigger, state, more, lambda: None, lambda: checkpoint(folder, "b", 6))
    assert sorted((event["run"], event["step"]) for event in events) == [("a", 30), ("b", 5), ("b", 6)]
    assert events[0]["uri"].startswith(str(folder)) and events[0]["fingerprint"]
    assert told(trigger, state, lambda: None) == []


def test_the_folder_of_one_run_may_be_watched(tmp_path: Path) -> None:
    trigger = NewCheckpointTrigger(str(tmp_path / "a"))
    checkpoint(tmp_path, "a", 1)
    assert steps(told(trigger, State(), lambda: checkpoint(tmp_path, "a", 2))) == [2]


def test_a_disk_that_was_away_shows_nothing_new_when_it_is_back(tmp_path: Path) -> None:
    folder, state = tmp_path / "checkpoints", State()
    checkpoint(folder, "a", 10)
    champion(tmp_path, 1)
    away, back = (lambda: folder.rename(tmp_path / "away")), (lambda: (tmp_path / "away").rename(folder))
    trigger = NewCheckpointTrigger(str(folder))
    assert told(trigger, state, away) == []
    assert told(trigger, state, back, lambda: None) == []
    champions, known = NewChampionTrigger(str(tmp_path / "champions")), State()
    away = lambda: (tmp_path / "champions").rename(tmp_path / "gone")  # noqa: E731
    assert told(champions, known, away, lambda: (tmp_path / "gone").rename(tmp_path / "champions")) == []


def test_a_store_that_fails_is_looked_at_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    trigger, state = NewChampionTrigger(str(tmp_path / "champions")), State()
    looks, look = [0], NewChampionTrigger.look

    def fails_twice(self: Any, uri: str, seen: Any) -> Any:
        looks[0] += 1
        if looks[0] in (2, 3):
            raise OSError("the disk is away")
        return look(self, uri, seen)

    monkeypatch.setattr(NewChampionTrigger, "look", fails_twice)
    events = told(trigger, state, lambda: champion(tmp_path, 1), lambda: None, lambda: None)
    assert steps(events) == [1] and looks[0] == 4


@pytest.mark.parametrize("state", [None, OfSeveral()], ids=["no state", "of several Assets"])
def test_where_nothing_can_be_remembered_a_triggerer_tells_what_is_new_since_it_began(
    tmp_path: Path, state: Any
) -> None:
    trigger = NewChampionTrigger(str(tmp_path / "champions"))
    assert steps(told(trigger, state, lambda: champion(tmp_path, 1))) == [1]
    assert steps(told(trigger, state, lambda: champion(tmp_path, 2))) == [2]


@pytest.mark.parametrize("odd", [7, "x", {"uri": "elsewhere", "seen": 0}, {"seen": {"a": "b"}}])
def test_a_state_that_another_has_written_is_no_memory(tmp_path: Path, odd: Any) -> None:
    champion(tmp_path, 1)
    state = State({assets.SEEN: odd})
    trigger = NewChampionTrigger(str(tmp_path / "champions"))
    assert steps(told(trigger, state, lambda: champion(tmp_path, 2))) == [2]


def test_airflow_tells_watchers_apart_by_their_place_alone(tmp_path: Path) -> None:
    """By the same hash in every process, and through its database."""

    def hashed(trigger: BaseEventTrigger) -> int:
        return BaseEventTrigger.hash(*trigger.serialize())

    one, same, other = (NewChampionTrigger(uri) for uri in ("store://a", "store://a", "store://b"))
    path, arguments = one.serialize()
    assert hashed(one) == hashed(same) == BaseEventTrigger.hash(path, deserialize(serialize(arguments)))
    assert len({hashed(one), hashed(other), hashed(NewCheckpointTrigger("store://a"))}) == 3
    assert NewChampionTrigger("store://a", later=1).serialize()[1]["later"] == 1, "of a newer release"
    asset = Asset("champion", watchers=[AssetWatcher(name="store", trigger=one)])
    assert asset.watchers[0].trigger is one


def test_a_relative_place_is_refused_in_the_log_and_waited_for(
    capsys: pytest.CaptureFixture[str],
) -> None:
    assert told(NewChampionTrigger("champions"), None, lambda: None) == []
    assert capsys.readouterr().out.count("is relative, and a watcher has no folder") <= 1
