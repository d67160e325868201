"""The hub against a server that lists and watches: who is woken when, what is asked for, and when it ends.

No test here asks how long something took. That a follower is woken is a wait without an end (`FOR_EVER`: a
test that comes so far has failed); that he is not, a wait of no time at all, once the hub has been told
everything that happened (`Follow.settle`).
"""

from __future__ import annotations

import asyncio
import contextvars
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from types import SimpleNamespace
from typing import Any

import pytest

from allaboard.backends.kubernetes.client.config import Fixed, Secret
from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.protocol import Patience
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS
from allaboard.backends.kubernetes.watch import informer as module
from allaboard.backends.kubernetes.watch.informer import AsyncHub, async_hub_of, hub_of
from allaboard.errors import BackendUnreachable
from allaboard.testing.objects import PYTORCHJOBS
from tests.core.backends.kubernetes.collection import Collection
from tests.core.backends.kubernetes.conftest import Loop
from tests.core.backends.kubernetes.scripted import Scripted, event, refused, says, streams

FOR_EVER = 300.0
OFTEN, NEVER = 0.02, 1e6
"""Seconds between the looks of those whom no row wakes. With `NEVER`, whoever is woken was woken by a row."""


@pytest.fixture(autouse=True)
def _paced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.watch.reflector.FIRST_REST", 0.01)
    monkeypatch.setattr("allaboard.backends.kubernetes.watch.reflector.LONGEST_REST", 0.05)
    monkeypatch.setattr("allaboard.backends.kubernetes.watch.reflector.EVERY", 0.0)
    monkeypatch.setattr("allaboard.backends.kubernetes.watch.reflector.POLL", NEVER)
    monkeypatch.setattr("allaboard.backends.kubernetes.watch.informer.PATIENCE", Patience(budget=0.0))
    monkeypatch.setattr("allaboard.backends.kubernetes.watch.informer.READY_SECONDS", FOR_EVER)


@pytest.fixture
def looks_often(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.watch.reflector.POLL", OFTEN)


@pytest.fixture
def cluster(server: Scripted) -> Collection:
    found = Collection()
    server.otherwise = found.answer
    return found


class Follow:
    """``with follow(run) as changes: changes.wait(seconds)``, of either kind. ``alone``: one object of
    anybody.
    """

    cluster: Collection

    def settle(self) -> None:
        """Until every feed has been told all that happened, and has told it."""

        def settled(cluster: Collection) -> bool:
            cluster.mark()
            return all(version >= cluster.version for version in self.told())

        self.cluster.until(settled, FOR_EVER)

    def told(self) -> list[int]:
        """Up to which version each feed has told what happened."""
        raise NotImplementedError

    def __call__(self, run: str, alone: bool = False) -> Any:
        raise NotImplementedError


class Blocking(Follow):
    def __init__(self, cluster: Collection, server: Scripted) -> None:
        self.cluster, self.api = cluster, server.api()

    def told(self) -> list[int]:
        found = []
        for thread in hub_of(self.api)._feeds.values():
            with thread.lock:
                found.append(int(thread.feed._version or 0))
        return found

    @contextmanager
    def __call__(self, run: str, alone: bool = False) -> Iterator[Any]:
        hub = hub_of(self.api)
        with hub.changes_of(PYTORCHJOBS, run) if alone else hub.changes(run, PYTORCHJOBS) as changes:
            yield changes


class Awaiting(Follow):
    def __init__(self, cluster: Collection, server: Scripted, loop: Loop) -> None:
        self.cluster, self.loop = cluster, loop
        self.api = server.api()

    def told(self) -> list[int]:
        async def ask() -> list[int]:
            return [int(task.feed._version or 0) for task in async_hub_of(self.api)._feeds.values()]

        found: list[int] = self.loop.do(ask())
        return found

    @contextmanager
    def __call__(self, run: str, alone: bool = False) -> Iterator[Any]:
        loop = self.loop

        async def enter() -> Any:
            hub = async_hub_of(self.api)
            context = hub.changes_of(PYTORCHJOBS, run) if alone else hub.changes(run, PYTORCHJOBS)
            return context, await context.__aenter__()

        class Waits:
            def wait(self, seconds: float) -> Any:
                return loop.do(changes.wait(seconds), FOR_EVER)

            @property
            def trouble(self) -> Any:
                return changes.trouble

        context, changes = loop.do(enter(), FOR_EVER)
        try:
            yield Waits()
        finally:
            loop.do(context.__aexit__(None, None, None))


@pytest.fixture(params=["blocking", "async"])
def follow(
    request: pytest.FixtureRequest, cluster: Collection, server: Scripted, loop: Loop
) -> Iterator[Follow]:
    if request.param == "blocking":
        yield Blocking(cluster, server)
        return
    found = Awaiting(cluster, server, loop)
    yield found
    found.api.close()


def drain(changes: Any) -> None:
    """Take the wakes that are there."""
    while changes.wait(0):
        pass


def test_a_change_wakes_and_nothing_does_not(follow: Follow, cluster: Collection) -> None:
    cluster.put("a-1", "Running")
    with follow("a-1") as changes:
        follow.settle()
        assert not changes.wait(0)
        cluster.put("a-1", "Succeeded")
        assert changes.wait(FOR_EVER)
        follow.settle()
        assert not changes.wait(0)


def test_whoever_waits_already_is_woken(follow: Follow, cluster: Collection) -> None:
    with follow("a-1") as changes:
        waiter = threading.Thread(target=changes.wait, args=(FOR_EVER,))
        waiter.start()
        cluster.put("a-1", "Succeeded")
        waiter.join(FOR_EVER)
        assert not waiter.is_alive()


def test_what_came_before_the_wait_is_not_missed(follow: Follow, cluster: Collection) -> None:
    with follow("a-1") as changes:
        cluster.put("a-1", "Running")
        follow.settle()
        assert changes.wait(0)


def test_a_pod_of_the_run_wakes_too(follow: Follow, cluster: Collection) -> None:
    with follow("a-1") as changes:
        cluster.put("a-1-worker-0", "Pending", plural="pods")
        assert changes.wait(FOR_EVER)
        cluster.put("b-1-worker-0", "Pending", plural="pods")
        follow.settle()
        assert not changes.wait(0)


def test_rows_are_asked_for_and_no_objects(follow: Follow, cluster: Collection, server: Scripted) -> None:
    with follow("a-1"):
        cluster.until(lambda c: c.watching == 2)
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
            assert one.wait(FOR_EVER)
            assert two.wait(FOR_EVER)
            cluster.until(lambda c: c.watching == 2)
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
    for thread in threading.enumerate():
        if thread.name.startswith("allaboard-watch"):
            thread.join(FOR_EVER)
            assert not thread.is_alive()


def test_one_object_of_anybody_is_watched_by_its_name(
    follow: Follow, cluster: Collection, server: Scripted
) -> None:
    cluster.put("theirs", "Running")
    with follow("theirs", alone=True) as changes:
        cluster.put("others", "Running")
        follow.settle()
        assert not changes.wait(0)
        cluster.put("theirs", "Failed")
        assert changes.wait(FOR_EVER)
    assert {asked.query.get("fieldSelector") for asked in server.asked} == {"metadata.name=theirs"}


def test_one_that_is_not_there_yet_wakes_when_it_comes(follow: Follow, cluster: Collection) -> None:
    with follow("theirs", alone=True) as changes:
        follow.settle()
        assert not changes.wait(0)
        cluster.put("theirs", "Created")
        assert changes.wait(FOR_EVER)


def test_cut_watches_are_resumed_and_miss_nothing(follow: Follow, cluster: Collection) -> None:
    with follow("a-1", alone=True) as changes:
        for n in range(8):
            cluster.until(lambda c: c.watching == 1)
            cluster.cut()
            cluster.put("a-1", f"State {n}")
            assert changes.wait(FOR_EVER), n
            follow.settle()
            drain(changes)
        assert cluster.asked["list"] == 1
        assert cluster.resumed == sorted(cluster.resumed) and len(cluster.resumed) == 9


def test_a_watch_that_the_server_ends_is_resumed_from_its_bookmark(
    follow: Follow, cluster: Collection
) -> None:
    with follow("a-1", alone=True) as changes:
        for n in range(5):
            cluster.put(f"other-{n}", "Running")
        follow.settle()
        cluster.cut()
        cluster.until(lambda c: len(c.resumed) == 2)
        assert cluster.resumed[1] == cluster.version
        cluster.put("a-1", "Running")
        assert changes.wait(FOR_EVER)


def test_too_old_is_listed_anew_and_what_happened_meanwhile_wakes(
    follow: Follow, cluster: Collection
) -> None:
    cluster.put("a-1", "Running")
    cluster.put("b-1", "Running")
    with follow("a-1") as one, follow("b-1") as two:
        cluster.until(lambda c: c.watching == 2)
        cluster.refuse = refused(503, "ServiceUnavailable")
        tried = cluster.asked["watch"]
        cluster.cut()
        cluster.until(lambda c: c.watching == 0 and c.asked["watch"] >= tried + 2)
        cluster.put("a-1", "Failed")
        cluster.compact()
        cluster.refuse = None
        cluster.until(lambda c: c.watching == 2)
        follow.settle()
        assert one.wait(0)
        assert not two.wait(0), "nothing of it changed in the gap"
        before = cluster.asked["list"]
        cluster.put("b-1", "Failed")
        assert two.wait(FOR_EVER)
        assert cluster.asked["list"] == before


@pytest.mark.usefixtures("looks_often")
def test_where_watching_is_forbidden_lists_tell(follow: Follow, cluster: Collection) -> None:
    cluster.forbidden = {"watch"}
    cluster.put("a-1", "Running")
    with follow("a-1", alone=True) as changes:
        cluster.until(lambda c: c.asked["list"] >= 3)
        drain(changes)
        cluster.put("a-1", "Failed")
        assert changes.wait(FOR_EVER)
        assert cluster.asked["watch"] == 1, "it is not tried again for a while"
        assert isinstance(changes.trouble, Forbidden) or changes.trouble is None


@pytest.mark.usefixtures("looks_often")
def test_where_nothing_is_allowed_one_looks_now_and_then(follow: Follow, cluster: Collection) -> None:
    cluster.forbidden = {"list", "watch"}
    with follow("a-1", alone=True) as changes:
        assert isinstance(changes.trouble, Forbidden), "he is let in without a first list"
        assert changes.wait(FOR_EVER)
        assert changes.wait(FOR_EVER)
    assert cluster.asked["watch"] == 0


def test_nobody_waits_longer_than_he_asked(follow: Follow, cluster: Collection) -> None:
    """Not until the next look either, which here never comes."""
    cluster.forbidden = {"list", "watch"}
    with follow("a-1", alone=True) as changes:
        assert not changes.wait(0.05)


def test_a_server_that_is_away_is_said_and_found_again(
    follow: Follow, cluster: Collection, monkeypatch: pytest.MonkeyPatch, looks_often: None
) -> None:
    cluster.put("a-1", "Running")
    with follow("a-1", alone=True) as changes:
        cluster.until(lambda c: c.watching == 1)
        cluster.refuse = refused(503, "ServiceUnavailable")
        cluster.cut()
        assert changes.wait(FOR_EVER), "one looks for himself"
        assert isinstance(changes.trouble, BackendUnreachable)
        cluster.refuse = None
        cluster.until(lambda c: c.watching == 1 and changes.trouble is None)
        monkeypatch.setattr("allaboard.backends.kubernetes.watch.reflector.POLL", NEVER)
        follow.settle()
        drain(changes)
        cluster.put("a-1", "Failed")
        assert changes.wait(FOR_EVER)
        assert changes.trouble is None


def test_a_storm_of_changes_is_one_look(follow: Follow, cluster: Collection) -> None:
    with follow("a-1", alone=True) as changes:
        for n in range(150):
            cluster.put("a-1", f"State {n}")
        follow.settle()
        assert changes.wait(0)
        assert not changes.wait(0)


def test_each_wake_is_held_back_as_the_feed_says(
    follow: Follow, cluster: Collection, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What the reflector says is in test_reflector.py; here: that it is asked, and that its word is passed
    on.
    """
    told: list[float] = []

    def spaced(due: float, now: float) -> tuple[float, float]:
        told.append(due)
        return due + 1, 0.0

    monkeypatch.setattr(module, "space_wakes", spaced)
    with follow("a-1", alone=True) as changes:
        for n in range(5):
            cluster.put("a-1", f"State {n}")
            assert changes.wait(FOR_EVER)
        follow.settle()
        assert not changes.wait(0)
    assert told == [0, 1, 2, 3, 4]


def test_what_comes_while_a_wake_is_held_back_is_seen_by_the_same_look(
    cluster: Collection, server: Scripted, monkeypatch: pytest.MonkeyPatch
) -> None:
    follow = Blocking(cluster, server)
    held: list[float] = []

    def sleep(seconds: float) -> None:
        held.append(seconds)
        cluster.put("a-1", "Failed")
        follow.settle()

    monkeypatch.setattr(module, "space_wakes", lambda due, now: (due, 7.0))
    with follow("a-1", alone=True) as changes:
        monkeypatch.setattr(module, "time", SimpleNamespace(sleep=sleep, monotonic=lambda: 1.0))
        cluster.put("a-1", "Running")
        assert changes.wait(FOR_EVER) and held == [7.0]
        assert not changes.wait(0)


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
    inside = threading.Semaphore(0)

    async def follow_one(hub: Any, run: str) -> bool:
        async with hub.changes(run, PYTORCHJOBS) as changes:
            inside.release()
            woken: bool = await changes.wait(FOR_EVER)
            return woken

    def all_end() -> None:
        for _ in runs:
            assert inside.acquire(timeout=FOR_EVER)
        cluster.until(lambda c: c.watching == 2)
        for run in runs:
            cluster.put(run, "Succeeded")

    async def main() -> list[bool]:
        hub = async_hub_of(server.api())
        tasks = [asyncio.create_task(follow_one(hub, run)) for run in runs]
        await asyncio.to_thread(all_end)
        return await asyncio.gather(*tasks)

    assert all(loop.do(main(), FOR_EVER))
    assert cluster.asked["watch"] == 2
    assert cluster.asked["list"] == 3, "1,000 jobs are two pages"


def test_a_watch_is_of_no_followers_context(server: Scripted, cluster: Collection, loop: Loop) -> None:
    """In a triggerer a context is one trigger's: its log, its greenback portal. The watch is everybody's."""
    whose = contextvars.ContextVar("whose", default="nobody's")
    seen: list[str] = []

    def spy(what: Callable[..., Any]) -> Callable[..., Any]:
        def call(*args: Any, **options: Any) -> Any:
            seen.append(whose.get())
            return what(*args, **options)

        return call

    async def main() -> None:
        api: Any = server.async_api()
        hub = AsyncHub(api)
        api.list, api.watch = spy(api.list), spy(api.watch)
        whose.set("the first trigger's")
        async with hub.changes("a-1", PYTORCHJOBS) as changes:
            changes.on_alarm = lambda *_: seen.append(whose.get())
            cluster.put("a-1-worker-0", "Failed", plural="pods")
            assert await changes.wait(FOR_EVER)
            await asyncio.to_thread(cluster.until, lambda c: c.watching == 2)
        await api.close()
        assert whose.get() == "the first trigger's"

    loop.do(main(), FOR_EVER)
    assert len(seen) >= 4 and set(seen) == {"nobody's"}


def test_a_copy_has_the_objects_themselves_and_wakes_with_each_change(server: Scripted) -> None:
    def a_thing(name: str, version: str) -> dict[str, Any]:
        return {"metadata": {"name": name, "namespace": "a", "resourceVersion": version}}

    more = threading.Event()

    def waits(handler: Any) -> None:
        more.wait(FOR_EVER)
        streams(event("ADDED", a_thing("two", "101")))(handler)

    server.answers(says({"metadata": {"resourceVersion": "100"}, "items": [a_thing("one", "99")]}), waits)
    with hub_of(server.api()).copy(PYTORCHJOBS, "") as copy:
        assert [thing["metadata"]["name"] for thing in copy.objects()] == ["one"]
        assert copy.wait(FOR_EVER), "the first list wakes, too"
        more.set()
        assert copy.wait(FOR_EVER)
        assert [thing["metadata"]["name"] for thing in copy.objects()] == ["one", "two"]
    listed, watched = server.asked[:2]
    assert "Table" not in f"{listed}{watched}"


def test_those_who_wait_for_a_name_share_one_list_and_one_watch(
    server: Scripted, cluster: Collection, loop: Loop
) -> None:
    cluster.put("allaboard-a-1", "", plural="configmaps")
    inside = threading.Semaphore(0)

    async def wait_for_name(hub: AsyncHub) -> frozenset[str] | None:
        async with hub.names_of(CONFIGMAPS, "is=record") as names:
            assert names.names == {"allaboard-a-1"}
            inside.release()
            assert await names.wait(FOR_EVER)
            return names.names

    def comes() -> None:
        for _ in range(100):
            assert inside.acquire(timeout=FOR_EVER)
        cluster.until(lambda c: c.watching == 1)
        cluster.put("allaboard-b-2", "", plural="configmaps")

    async def main() -> list[Any]:
        hub = async_hub_of(server.api())
        tasks = [asyncio.create_task(wait_for_name(hub)) for _ in range(100)]
        await asyncio.to_thread(comes)
        found = await asyncio.gather(*tasks)
        assert hub.open == 0
        return [*found]

    assert set(loop.do(main(), FOR_EVER)) == {frozenset({"allaboard-a-1", "allaboard-b-2"})}
    assert (cluster.asked["list"], cluster.asked["watch"]) == (1, 1)


def test_where_nothing_is_allowed_no_name_is_known_and_one_looks_now_and_then(
    server: Scripted, cluster: Collection, loop: Loop, looks_often: None
) -> None:
    cluster.forbidden = {"list", "watch"}

    async def main() -> None:
        async with async_hub_of(server.api()).names_of(CONFIGMAPS, "is=record") as names:
            assert names.names is None
            assert await names.wait(FOR_EVER)

    loop.do(main(), FOR_EVER)
