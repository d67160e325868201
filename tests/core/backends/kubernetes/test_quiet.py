"""What watching a run costs while nothing happens to it: a look that no row gave a reason for asks nothing
that rows tell.
"""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from allaboard.backends.base import LogLine, Selection
from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.protocol import Patience
from allaboard.backends.kubernetes.client.resources import PODS
from allaboard.backends.kubernetes.watch.informer import async_hub_of, hub_of
from allaboard.errors import BackendUnreachable
from allaboard.runs.observation import State
from allaboard.runs.status import state_of
from allaboard.testing.cluster import FakeCluster
from allaboard.testing.objects import PYTORCHJOBS
from tests.core.backends.kubernetes.collection import Collection
from tests.core.backends.kubernetes.conftest import Loop
from tests.core.backends.kubernetes.scripted import Scripted
from tests.core.backends.kubernetes.test_backend import ME, a_plan, record, running


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


class Counted:
    """What was asked of a cluster since the last time, without the requests of leases."""

    def __init__(self, cluster: FakeCluster) -> None:
        self.cluster = cluster
        self.before = len(cluster.requests)

    def __call__(self) -> list[str]:
        since = self.cluster.requests[self.before :]
        self.before = len(self.cluster.requests)
        return [f"{verb} {kind.partition('.')[0]}" for verb, kind, _ in since if "lease" not in kind]


A_LOOK = ["get configmaps", "get pytorchjobs", "list pods"]


def test_a_run_to_which_nothing_happens_is_looked_at_once(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = backend.launch(a_plan(), ME).run
    running(cluster, backend, run)
    asked = Counted(cluster)
    with backend.changes(run):
        backend.observe(run)
        assert asked()[-3:] != []
        for _ in range(3):
            cluster.tick(60)
            assert state_of(backend.observe(run)) is State.RUNNING
        assert asked() == []
    backend.observe(run)
    assert asked()[:3] == A_LOOK, "whoever follows nothing looks for himself"


def test_async(cluster: FakeCluster) -> None:
    blocking = cluster.backend()
    run = blocking.launch(a_plan(), ME).run
    running(cluster, blocking, run)

    async def life() -> None:
        backend = cluster.async_backend()
        async with backend.changes(run):
            await backend.observe(run)
            asked = Counted(cluster)
            cluster.tick(60)
            assert state_of(await backend.observe(run)) is State.RUNNING
            assert [item async for item in backend.logs(run, Selection(ranks=(0,)))]
            assert {*asked()} <= {"log pods", "get pods"}
            cluster.operator.end(run, 0)
            cluster.tick(3)
            assert state_of(await backend.observe(run)) is State.SUCCEEDED
            assert asked()[:3] == A_LOOK

    asyncio.run(life())


def test_what_happens_is_looked_at(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = backend.launch(a_plan(), ME).run
    running(cluster, backend, run)
    with backend.changes(run):
        backend.observe(run)
        asked = Counted(cluster)
        cluster.operator.end(run, 0)
        cluster.tick(3)
        seen = backend.observe(run)
        assert asked()[:3] == A_LOOK
        assert state_of(seen) is State.SUCCEEDED


def test_the_end_is_written_down_though_every_look_before_it_was_quiet(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = backend.launch(a_plan(), ME).run
    running(cluster, backend, run)
    with backend.changes(run):
        for _ in range(3):
            backend.observe(run)
        cluster.operator.end(run, 0)
        cluster.tick(3)
        assert state_of(backend.observe(run)) is State.SUCCEEDED
    assert record(cluster, run).outcome.state == "succeeded"


def test_who_does_something_to_a_run_sees_it_at_once(cluster: FakeCluster) -> None:
    """Not every deed shows in a row: a stop begins as a word in the record."""
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)
    with backend.changes(handle.run):
        backend.observe(handle.run)
        backend.stop(handle, ME, "me", "enough")
        assert backend.observe(handle.run).stop is not None


def test_a_look_that_failed_stands_for_nothing(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = backend.launch(a_plan(), ME).run
    running(cluster, backend, run)
    with backend.changes(run) as changes:
        backend.observe(run)
        changes._settled = None  # a row has told of something
        api: Any = backend.api
        api.faults[api.sent + 2] = "unreachable"
        with pytest.raises(BackendUnreachable):
            backend.observe(run)
        asked = Counted(cluster)
        backend.observe(run)
        assert asked()[:3] == A_LOOK


def test_a_deadline_passes_without_a_row(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = backend.launch(a_plan(policy={"deadline": "1h"}), ME).run
    running(cluster, backend, run)
    with backend.changes(run):
        first = backend.observe(run)
        cluster.operator.paused = True
        cluster.tick(1800)
        later = backend.observe(run)
        assert first.limit is not None and later.limit is not None
        assert later.limit.left == pytest.approx(first.limit.left - 1800)


@pytest.mark.thorough
def test_why_a_run_waits_is_asked_ever_more_seldom(cluster: FakeCluster) -> None:
    cluster.operator.starts_after = 1e9
    backend = cluster.backend()
    run = backend.launch(a_plan(), ME).run
    cluster.tick(3)
    with backend.changes(run):
        backend.observe(run)
        asked = Counted(cluster)
        backend.observe(run)
        assert asked() == [], "just asked"
        looks = 0
        for _ in range(360):  # an hour
            cluster.tick(10)
            backend.observe(run)
            told = asked()
            assert set(told) <= {"list events", "list pods"}
            looks += bool(told)
        assert 20 < looks < 60


def test_logs_of_a_quiet_run_are_read_without_looking_at_it(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = backend.launch(a_plan(), ME).run
    running(cluster, backend, run)
    cluster.say(f"{run}-master-0", "step 1")
    with backend.changes(run):
        backend.observe(run)
        asked = Counted(cluster)
        items = [*backend.logs(run, Selection(ranks=(0,)))]
        assert {*asked()} == {"log pods", "get pods"}, "and whose it is"
        assert [item.text for item in items if isinstance(item, LogLine)] == ["step 1"]


def test_nothing_large_is_kept_that_nobody_reads(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    run = backend.launch(a_plan(), ME).run
    running(cluster, backend, run)
    for resource in (PYTORCHJOBS, PODS):
        for body in cluster.all(resource):
            body["metadata"]["managedFields"] = [{"manager": "training-operator"}]
            cluster._put(resource, body, "MODIFIED")
    with backend.changes(run):
        backend.observe(run)
        session = backend.workspace.sessions.get(run)
        assert session is not None and session.cached is not None
        objects = session.cached.objects
        assert objects.job is not None
        assert all("managedFields" not in thing["metadata"] for thing in (objects.job, *objects.pods))
    assert session.cached is None


# Whether a row has told of a change, by the real hub.


def until(holds: Callable[[], bool]) -> None:
    for _ in range(6000):
        if holds():
            return
        time.sleep(0.02)
    raise AssertionError("it never came to that")


@pytest.fixture(autouse=True)
def _quick(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("allaboard.backends.kubernetes.watch.reflector.FIRST_REST", 0.05)
    monkeypatch.setattr("allaboard.backends.kubernetes.watch.reflector.POLL", 0.4)
    monkeypatch.setattr("allaboard.backends.kubernetes.watch.informer.PATIENCE", Patience(budget=0.0))


@pytest.fixture
def rows(server: Scripted) -> Collection:
    found = Collection()
    server.otherwise = found.answer
    return found


@pytest.fixture(params=["blocking", "async"])
def changes(
    request: pytest.FixtureRequest, server: Scripted, rows: Collection, loop: Loop
) -> Iterator[tuple[Any, Any]]:
    """A follower of a-1, and how it waits."""
    rows.put("a-1", "Running")
    if request.param == "blocking":
        with hub_of(server.api()).changes("a-1", PYTORCHJOBS) as found:
            yield found, found.wait
        return

    async def enter() -> Any:
        return await async_hub_of(server.api()).changes("a-1", PYTORCHJOBS).__aenter__()

    found = loop.do(enter())
    yield found, lambda seconds: loop.do(found.wait(seconds))
    loop.do(found.__aexit__(None, None, None))


def test_quiet_is_who_has_looked_and_was_told_of_nothing(changes: Any, rows: Collection) -> None:
    follower, wait = changes
    assert not follower.quiet, "nobody has looked yet"
    follower.settle()
    until(lambda: follower.quiet)  # the watch is being opened
    assert not wait(0.1)
    assert follower.quiet
    rows.put("a-1", "Succeeded")
    assert wait(30)
    assert not follower.quiet
    follower.settle()
    assert follower.quiet


def test_nobody_is_quiet_where_rows_do_not_tell(changes: Any, rows: Collection, server: Scripted) -> None:
    follower, wait = changes
    follower.settle()
    rows.forbidden = {"list", "watch"}
    rows.compact()
    rows.cut()
    until(lambda: isinstance(follower.trouble, Forbidden) and not follower.quiet)
    follower.settle()
    assert not follower.quiet
    assert wait(30), "he is told to look for himself"


def test_a_job_that_came_and_went_unseen_is_told_of(changes: Any, rows: Collection) -> None:
    """It was created before its follower came, and deleted while no watch was open: no row ever told."""
    follower, wait = changes
    follower.settle()
    with rows.changed:
        rows.rows.clear()
    rows.compact()
    rows.cut()
    assert wait(30)
    assert not follower.quiet
