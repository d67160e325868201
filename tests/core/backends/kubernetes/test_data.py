"""What a run on a cluster trains on, and what a launch does when that has changed."""

from __future__ import annotations

from typing import Any

import pytest

from allaboard.backends.base import Plan
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of
from allaboard.shards import Index, prepare
from allaboard.storage import open_store
from allaboard.testing.cluster import FakeCluster
from tests.core.backends.kubernetes.test_backend import a_plan, record, running
from tests.core.s3server import S3Server

ME, YOU = Owner("me"), Owner("you")
DEFERRED = Owner("me", phase="deferred", kind="orchestrated")


@pytest.fixture
def place(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> str:
    for name, value in moto.environ.items():
        monkeypatch.setenv(name, value)
    return f"s3://{moto.make_bucket()}/shards"


def made(place: str, name: str) -> Index:
    return prepare([{"__key__": f"{n}", "txt": name} for n in range(4)], open_store(place))


def reading(shards: str, **fields: Any) -> Plan:
    return a_plan(data={"shards": shards}, **fields)


def data_of(cluster: FakeCluster, run: str) -> str:
    """What the members of the newest attempt are told to read."""
    from allaboard.backends.kubernetes.client.resources import CONFIGMAPS
    from allaboard.backends.kubernetes.state import records
    from allaboard.render import labels

    body = cluster.one(CONFIGMAPS, labels.record_name(run))
    assert body is not None
    return str(records.parse(body).layout["data"])


def test_a_place_is_its_newest_version_when_a_generation_begins_and_that_is_kept(place: str) -> None:
    cluster = FakeCluster()
    mine = made(place, "mine").version_uri(place)
    plan = reading(place, policy={"restart": "never"})
    first = cluster.backend().launch(plan, ME)
    made(place, "other")
    assert data_of(cluster, first.run) == mine
    cluster.tick(3)
    cluster.end_members(first.run, exit_code=3)
    cluster.tick(5)
    second = cluster.backend().launch(plan, YOU)
    assert (second.attempt, second.generation) == (2, 1) and data_of(cluster, first.run) == mine
    assert any("has a newer version" in note for note in second.notes)


@pytest.mark.parametrize("owner", [ME, DEFERRED])
def test_other_data_stops_what_trains_and_is_a_new_generation(place: str, owner: Owner) -> None:
    cluster = FakeCluster()
    backend = cluster.backend()
    first = backend.launch(reading(made(place, "mine").version_uri(place)), ME)
    running(cluster, backend, first.run)
    if owner is not ME:
        backend.adopt(first, ME, owner)
    new = made(place, "new").version_uri(place)
    second = cluster.backend().launch(reading(new), YOU)
    assert (second.attempt, second.generation) == (1, 2) and data_of(cluster, first.run) == new
    assert any("its data has changed (" in note for note in second.notes)
    assert [(e.state, e.generation) for e in record(cluster, first.run).history] == [("stopped", 1)]
    assert state_of(cluster.backend().observe(first.run)) is not State.STOPPED


def test_the_same_data_under_another_name_is_adopted(place: str) -> None:
    cluster = FakeCluster()
    backend = cluster.backend()
    index = made(place, "mine")
    first = backend.launch(reading(place), ME)
    running(cluster, backend, first.run)
    assert cluster.backend().launch(reading(index.version_uri(place)), YOU).adopted


def test_data_that_only_the_members_see_is_told_by_the_name_of_its_version() -> None:
    cluster = FakeCluster()
    backend = cluster.backend()
    volume = {"mount": "/data", "pvc": "data"}
    first = backend.launch(reading("/data/shards/version-00000000000000aa", storage=[volume]), ME)
    running(cluster, backend, first.run)
    backend.adopt(first, ME, DEFERRED)
    second = cluster.backend().launch(reading("/data/shards/version-00000000000000bb", storage=[volume]), YOU)
    assert second.generation == 2
