"""The hub against a server that lists and watches: who is woken when, what is asked for, and when it ends."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from typing import Any

import pytest

from allaboard.backends.kubernetes.errors import Forbidden
from allaboard.backends.kubernetes.hub import async_hub_of, hub_of
from allaboard.backends.kubernetes.resources import PYTORCHJOBS
from allaboard.backends.kubernetes.settings import Fixed, Secret
from allaboard.backends.kubernetes.wire import Patience
from allaboard.errors import BackendUnreachable
from tests.core.kubernetes.collection import Collection
from tests.core.kubernetes.conftest import Loop
from tests.core.kubernetes.scripted import Scripted, refused

Follow = Callable[..., AbstractContextManager[Any]]


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    """Rests and looks of a test's size."""
    monkeypatch.setattr("allaboard.backends.kubernetes.feed.FIRST_REST", 0.05)
    monkeypatch.setattr("allaboard.backends.kubernetes.feed.POLL", 0.4)
    monkeypatch.setattr("allaboard.backends.kubernetes.hub.PATIENCE", Patience(budget=0.0))
    monkeypatch.setattr("allaboard.backends.kubernetes.hub.READY_SECONDS", 2.0)


@pytest.fixture
def cluster(server: Scripted) -> Collection:
    found = Collection()
    server.otherwise = found.answer
    return found


@pytest.fixture(params=["blocking", "async"])
def follow(request: pytest.FixtureRequest, server: Scripted, loop: Loop) -> Iterator[Follow]:
    """``with follow(run) as changes: changes.wait(seconds)``, of either kind. ``alone``: one object of
    anybody."""
    api: Any = None
    if request.param == "blocking":
        api = server.api()
    else:

        async def make() -> Any:
            return server.async_api()

        api = loop.do(make())

    @contextmanager
    def blocking(run: str, alone: bool = False) -> Iterator[Any]:
        hub = hub_of(api)
        with hub.changes_of(PYTORCHJOBS, run) if alone else hub.changes(run, PYTORCHJOBS) as changes:
            yield changes

    class Waits:
        def __init__(self, changes: Any) -> None:
            self._changes = changes

        def wait(self, seconds: float) -> Any:
            return loop.do(self._changes.wait(seconds))

        @property
        def trouble(self) -> Any:
            return self._changes.trouble

    @contextmanager
    def within(run: str, alone: bool = False) -> Iterator[Any]:
        async def enter() -> Any:
            hub = async_hub_of(api)
            context = hub.changes_of(PYTORCHJOBS, run) if alone else hub.changes(run, PYTORCHJOBS)
            return context, await context.__aenter__()

        context, changes = loop.do(enter())
        try:
            yield Waits(changes)
        finally:
            loop.do(context.__aexit__(None, None, None))

    yield blocking if request.param == "blocking" else within
    if request.param == "async":
        loop.do(api.close())


def test_a_change_wakes_and_nothing_does_not(follow: Follow, cluster: Collection) -> None:
    cluster.put("a-1", "Running")
    with follow("a-1") as changes:
        assert not changes.wait(0.3)
        threading.Timer(0.2, cluster.put, ("a-1", "Succeeded")).start()
        began = time.monotonic()
        assert changes.wait(10)
        assert 0.15 < time.monotonic() - began < 1.0
        assert not changes.wait(0.3)


def test_what_came_before_the_wait_is_not_missed(follow: Follow, cluster: Collection) -> None:
    with follow("a-1") as changes:
        cluster.put("a-1", "Running")
        time.sleep(0.3)
        began = time.monotonic()
        assert changes.wait(10)
        assert time.monotonic() - began < 0.2


def test_a_pod_of_the_run_wakes_too(follow: Follow, cluster: Collection) -> None:
    with follow("a-1") as changes:
        cluster.put("a-1-worker-0", "Pending", plural="pods")
        assert changes.wait(10)
        cluster.put("b-1-worker-0", "Pending", plural="pods")
        assert not changes.wait(0.3)


def test_rows_are_asked_for_and_no_objects(follow: Follow, cluster: Collection, server: Scripted) -> None:
    with follow("a-1") as changes:
        changes.wait(0.1)
    assert {asked.path.rpartition("/")[2] for asked in server.asked} == {"pytorchjobs", "pods"}
    for asked in server.asked:
        assert asked.query["includeObject"] == "None"
        assert asked.query["labelSelector"] == "app.kubernetes.io/managed-by=allaboard"
        assert "as=Table" in asked.headers["accept"]


def test_followers_share_one_list_and_one_watch_and_the_last_ends_it(
    follow: Follow, cluster: Collection
) -> None:
    with follow("a-1") as one:
        with follow("b-1") as two:
            cluster.put("a-1", "Running")
            cluster.put("b-1", "Running")
            assert one.wait(5)
            assert two.wait(5)
            assert cluster.asked == {
                "list": 2,
                "list pytorchjobs": 1,
                "list pods": 1,
                "watch": 2,
                "watch pytorchjobs": 1,
                "watch pods": 1,
            }
        assert cluster.watching == 2
    cluster.until(lambda c: c.watching == 0)
    assert not [
        t.name for t in threading.enumerate() if t.name.startswith("allaboard-watch") and t.is_alive()
    ]


def test_one_object_of_anybody_is_watched_by_its_name(
    follow: Follow, cluster: Collection, server: Scripted
) -> None:
    cluster.put("theirs", "Running")
    with follow("theirs", alone=True) as changes:
        cluster.put("others", "Running")
        assert not changes.wait(0.3)
        cluster.put("theirs", "Failed")
        assert changes.wait(5)
    assert {asked.query.get("fieldSelector") for asked in server.asked} == {"metadata.name=theirs"}


def test_cut_watches_are_resumed_and_miss_nothing(follow: Follow, cluster: Collection) -> None:
    with follow("a-1", alone=True) as changes:
        for n in range(8):
            cluster.until(lambda c: c.watching == 1)
            cluster.cut()
            cluster.put("a-1", f"State {n}")
            assert changes.wait(10), n
        assert cluster.asked["list"] == 1
        assert cluster.resumed == sorted(cluster.resumed)


def test_a_watch_that_the_server_ends_is_resumed_from_its_bookmark(
    follow: Follow, cluster: Collection
) -> None:
    cluster.bookmark_every = 0.1
    with follow("a-1", alone=True) as changes:
        for n in range(5):
            cluster.put(f"other-{n}", "Running")
        time.sleep(0.4)
        cluster.cut()
        cluster.until(lambda c: len(c.resumed) == 2)
        assert cluster.resumed[1] == cluster.version
        cluster.put("a-1", "Running")
        assert changes.wait(10)


def test_too_old_is_listed_anew_and_what_happened_meanwhile_wakes(
    follow: Follow, cluster: Collection
) -> None:
    cluster.put("a-1", "Running")
    cluster.put("b-1", "Running")
    with follow("a-1", alone=False) as one, follow("b-1") as two:
        cluster.until(lambda c: c.watching == 2)
        cluster.refuse = refused(503, "ServiceUnavailable")
        cluster.cut()
        time.sleep(0.2)
        cluster.put("a-1", "Failed")
        cluster.compact()
        cluster.refuse = None
        cluster.until(lambda c: c.watching == 2)
        assert one.wait(5)
        assert not two.wait(0.5), "nothing of it changed in the gap"
        before = cluster.asked["list"]
        cluster.put("b-1", "Failed")
        assert two.wait(5)
        assert cluster.asked["list"] == before


def test_where_watching_is_forbidden_lists_tell(follow: Follow, cluster: Collection) -> None:
    cluster.forbidden = {"watch"}
    cluster.put("a-1", "Running")
    with follow("a-1", alone=True) as changes:
        threading.Timer(0.3, cluster.put, ("a-1", "Failed")).start()
        began = time.monotonic()
        assert changes.wait(10)
        assert time.monotonic() - began < 2.5
        assert isinstance(changes.trouble, Forbidden) or changes.trouble is None


def test_where_nothing_is_allowed_one_looks_now_and_then(follow: Follow, cluster: Collection) -> None:
    cluster.forbidden = {"list", "watch"}
    began = time.monotonic()
    with follow("a-1", alone=True) as changes:
        assert time.monotonic() - began < 2.5
        assert isinstance(changes.trouble, Forbidden)
        began = time.monotonic()
        assert changes.wait(60)
        assert time.monotonic() - began < 2.0
        began = time.monotonic()
        assert not changes.wait(0.1), "never longer than it was asked to wait"


def test_a_server_that_is_away_is_said_and_found_again(follow: Follow, cluster: Collection) -> None:
    cluster.put("a-1", "Running")
    with follow("a-1", alone=True) as changes:
        cluster.refuse = refused(503, "ServiceUnavailable")
        cluster.cut()
        assert changes.wait(5), "one looks for himself"
        assert isinstance(changes.trouble, BackendUnreachable)
        cluster.refuse = None
        cluster.until(lambda c: c.watching == 1)
        changes.wait(0.5)  # a look that was due before
        assert not changes.wait(0.5)
        assert changes.trouble is None
        cluster.put("a-1", "Failed")
        assert changes.wait(5)


def test_a_storm_of_changes_is_a_few_looks(follow: Follow, cluster: Collection) -> None:
    with follow("a-1", alone=True) as changes:
        stop = time.monotonic() + 2.0
        storm = threading.Thread(
            target=lambda: [
                (cluster.put("a-1", f"State {n}"), time.sleep(0.01))
                for n in range(150)
                if time.monotonic() < stop
            ]
        )
        storm.start()
        looks = 0
        while changes.wait(1.5):
            looks += 1
        storm.join()
        assert 4 <= looks <= 9


def test_two_users_of_a_cluster_share_nothing(server: Scripted, cluster: Collection) -> None:
    one, same = server.api(), server.api()
    other = server.api(credentials=Fixed(Secret("Bearer other")))
    assert hub_of(one) is hub_of(same)
    assert hub_of(one) is not hub_of(other)
    assert hub_of(one) is not hub_of(server.api(namespace="elsewhere"))
    with hub_of(one).changes("a-1", PYTORCHJOBS), hub_of(other).changes("a-1", PYTORCHJOBS):
        cluster.until(lambda c: c.watching == 4)
    assert {asked.headers["authorization"] for asked in server.asked} == {"Bearer sesame", "Bearer other"}


def test_a_thousand_followers_in_one_loop(server: Scripted, cluster: Collection, loop: Loop) -> None:
    runs = [f"run-{n:08x}" for n in range(1000)]
    for run in runs:
        cluster.put(run, "Running")

    async def follow_one(hub: Any, run: str) -> bool:
        async with hub.changes(run, PYTORCHJOBS) as changes:
            woken: bool = await changes.wait(30)
            return woken

    async def main() -> tuple[list[bool], float]:
        api = server.async_api()
        hub = async_hub_of(api)
        tasks = [asyncio.create_task(follow_one(hub, run)) for run in runs]
        await asyncio.to_thread(cluster.until, lambda c: c.watching == 2)
        await asyncio.sleep(0.1)
        await asyncio.to_thread(lambda: [cluster.put(run, "Succeeded") for run in runs])
        began = time.monotonic()
        woken = await asyncio.gather(*tasks)
        await api.close()
        return woken, time.monotonic() - began

    woken, seconds = loop.do(main())
    assert all(woken)
    assert seconds < 10
    assert cluster.asked["watch"] == 2
    assert cluster.asked["list"] == 3, "1,000 jobs are two pages"
