"""What is left of clients that died: what is an orphan, when it is tidied up, and what is left alone."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS, LEASES, PODS, SECRETS, resource_for
from allaboard.backends.kubernetes.lifecycle.orphans import ORCHESTRATED_SECONDS, SAFE
from allaboard.backends.kubernetes.state import leases, records
from allaboard.backends.kubernetes.state.leases import TaskKeeper, ThreadKeeper
from allaboard.engines import ENGINES
from allaboard.render import labels
from allaboard.runs.observation import Owner, State
from allaboard.runs.status import state_of
from allaboard.testing.cluster import Died, FakeCluster
from allaboard.testing.objects import PYTORCHJOBS
from tests.core.backends.kubernetes.test_backend import (
    ME,
    YOU,
    a_plan,
    a_plan_with_code,
    record,
    running,
    state,
)

ORCHESTRATED = Owner("me", kind="orchestrated")
DETACHED = Owner("me", phase="detached", kind="detached")
JOBSETS = resource_for(ENGINES["jobset"])


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def dies(backend: KubernetesBackend) -> None:
    """Its process is killed: nobody renews its Lease any more."""
    backend.keeper.died()  # type: ignore[attr-defined]


def told(backend: KubernetesBackend) -> list[tuple[str, str]]:
    return [(o.kind, o.name) for o in backend.orphans()]


def test_one_lease_for_a_process_however_many_runs_it_follows(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    for n in range(5):
        backend.launch(a_plan(f"k{n}"), ME)
    assert len(cluster.all(LEASES)) == 1
    assert backend.orphans() == []


@pytest.mark.parametrize(("owner", "seconds"), [(ME, 600.0), (ORCHESTRATED, ORCHESTRATED_SECONDS)])
def test_a_run_whose_follower_died_is_told_at_once_and_stopped_when_he_cannot_come_back(
    cluster: FakeCluster, owner: Owner, seconds: float
) -> None:
    client, other = cluster.backend(), cluster.backend()
    handle = client.launch(a_plan(), owner)
    running(cluster, client, handle.run)
    dies(client)
    cluster.tick(30)
    assert other.orphans() == [], "its Lease holds still"
    cluster.tick(60)
    [orphan] = other.orphans()
    assert orphan.kind == "run" and orphan.run == handle.run and "me no longer follows it" in orphan.reason
    [tidied] = other.tidy_up()
    assert not tidied.done and "may come back" in tidied.action
    assert state(other, handle.run) is State.RUNNING
    cluster.tick(seconds)
    [tidied] = other.tidy_up()
    assert tidied.done and tidied.action == "stopped"
    cluster.tick(3)
    seen = other.observe(handle.run)
    assert state_of(seen) is State.STOPPED and seen.stop is not None and seen.stop.by == "the janitor"
    assert cluster.all(PODS) == [] and other.orphans() == []


def test_a_run_that_is_taken_up_again_is_no_orphan(cluster: FakeCluster) -> None:
    client, other = cluster.backend(), cluster.backend()
    handle = client.launch(a_plan(), ME)
    dies(client)
    cluster.tick(700)
    assert told(other) == [("run", f"allaboard-{handle.run}")]
    other.launch(a_plan(), YOU)
    assert other.orphans() == []
    # Who takes it up between the look and the deed is noticed.
    dies(other)
    cluster.tick(700)
    third = cluster.backend()
    [orphan] = third.orphans()
    cluster.backend().launch(a_plan(), ME)
    from allaboard.backends.kubernetes.lifecycle import orphans

    tidied = orphans.tidied(third.api, orphan, "a person")
    assert not tidied.done and "it has changed meanwhile" in tidied.action
    assert state(third, handle.run) is State.RUNNING


def test_a_deferred_run_belongs_to_the_triggerer_that_says_so(cluster: FakeCluster) -> None:
    worker, triggerer, orphans = cluster.backend(), cluster.backend(), cluster.backend()
    handle = worker.launch(a_plan(), ORCHESTRATED)
    deferred = Owner("me", "deferred", "orchestrated")
    worker.adopt(handle, ORCHESTRATED, deferred)
    triggerer.watch_over(handle.run)
    dies(worker)
    cluster.tick(5000)
    assert orphans.orphans() == []
    dies(triggerer)
    cluster.tick(100)
    assert told(orphans) == [("run", f"allaboard-{handle.run}")]


def test_a_detached_run_is_nobodys_orphan(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    backend.launch(a_plan(), DETACHED)
    cluster.tick(100_000)
    assert backend.orphans() == []


def test_whoever_may_keep_no_lease_follows_all_the_same_and_has_no_orphans(cluster: FakeCluster) -> None:
    cluster.refuse(LEASES, Forbidden("leases is forbidden", status=403))
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)
    cluster.tick(100_000)
    assert backend.orphans() == []


@pytest.mark.parametrize("job", [{}, {"framework": "mpi", "engine": "jobset"}], ids=["torch", "mpi"])
@pytest.mark.parametrize("n", range(1, 9))
def test_what_a_client_left_that_died_while_it_started_is_found_and_goes(
    tmp_path: Path, n: int, job: dict[str, Any]
) -> None:
    """A key pair, too, although Secrets are never listed."""
    cluster = FakeCluster()
    plan = a_plan_with_code(tmp_path, **job)
    client, other = cluster.backend({n: "die-after"}), cluster.backend()
    with suppress(Died):
        client.launch(plan, ME)
    dies(client)
    cluster.tick(4000)
    other.tidy_up()
    cluster.tick(3)
    other.tidy_up()
    jobs = [*cluster.all(PYTORCHJOBS), *cluster.all(JOBSETS)]
    assert (jobs, cluster.all(PODS), cluster.all(SECRETS)) == ([], [], [])
    left = [c["metadata"]["name"] for c in cluster.all(CONFIGMAPS)]
    assert left in ([], [f"allaboard-{plan.run}"]), "the record alone"
    assert other.orphans() == []


def test_a_job_whose_members_wait_for_what_nobody_made_is_found_and_goes(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    """A detached one, too, and none that is whole though its client died before it wrote that down."""
    plan, whole = a_plan_with_code(tmp_path), a_plan("whole")
    for died, at in ((plan, 4), (whole, 4)):
        with suppress(Died):
            cluster.backend({at: "die-after"}).launch(died, DETACHED)
    assert len(cluster.all(PYTORCHJOBS)) == 2
    other = cluster.backend()
    [orphan] = other.orphans()
    assert orphan.kind == "run" and "what its members mount is not created" in orphan.reason
    assert [one.done for one in other.tidy_up()] == [False], "its client may come back"
    cluster.tick(700)
    assert [(one.orphan.run, one.action) for one in other.tidy_up()] == [(plan.run, "stopped")]
    cluster.tick(3)
    other.tidy_up()
    assert other.orphans() == []
    assert [job["metadata"]["name"] for job in cluster.all(PYTORCHJOBS)] == [whole.run]


def test_a_stop_that_nobody_carried_out(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)
    with pytest.raises(Died):
        cluster.backend({5: "die"}).stop(handle, ME, "you", "a reason")
    cluster.tick(70)
    [tidied] = backend.tidy_up()
    assert (tidied.orphan.kind, tidied.done) == ("stop", True)
    cluster.tick(3)
    assert state(backend, handle.run) is State.STOPPED


def test_a_job_without_a_record_and_an_end_that_nobody_wrote_down(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    first, second = backend.launch(a_plan("a"), ME), backend.launch(a_plan("b"), DETACHED)
    running(cluster, backend, first.run)
    cluster.delete(CONFIGMAPS, labels.record_name(first.run), "default")
    cluster.end_members(second.run)
    cluster.tick(3)
    assert told(backend) == [("end", f"allaboard-{second.run}"), ("job", first.run)]
    cluster.tick(700)
    assert [(t.orphan.kind, t.done) for t in backend.tidy_up()] == [("end", True), ("job", True)]
    assert record(cluster, second.run).outcome.state == "succeeded"
    cluster.tick(3)
    assert [j["metadata"]["name"] for j in cluster.all(PYTORCHJOBS)] == [second.run]


def test_a_launch_finds_the_living_job_whose_record_was_deleted(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    first = backend.launch(a_plan(), ME)
    running(cluster, backend, first.run)
    before = cluster.one(PYTORCHJOBS, first.run)
    cluster.delete(CONFIGMAPS, labels.record_name(first.run), "default")
    cluster.tick(5)
    again = backend.launch(a_plan(), YOU)
    assert again.uid == first.uid
    after = cluster.one(PYTORCHJOBS, first.run)
    assert before is not None and after is not None
    assert after["metadata"]["uid"] == before["metadata"]["uid"] == record(cluster, first.run).object_uid


def test_records_go_after_thirty_days_with_whatever_is_left_of_their_jobs(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    old, young = backend.launch(a_plan("old"), ME), backend.launch(a_plan("live"), ME)
    running(cluster, backend, old.run)
    cluster.end_members(old.run)
    cluster.tick(3)
    backend.observe(old.run)
    cluster.now += 29 * 86400
    cluster.backend().launch(a_plan("another"), ME)
    assert cluster.one(CONFIGMAPS, labels.record_name(old.run)) is not None
    cluster.now += 3 * 86400
    cluster.backend().launch(a_plan("yet another"), ME)
    assert cluster.one(CONFIGMAPS, labels.record_name(old.run)) is None
    assert cluster.one(PYTORCHJOBS, old.run) is None
    assert cluster.one(PYTORCHJOBS, young.run) is not None, "what lives is not pruned, however old"


async def keeps(cluster: FakeCluster) -> None:
    """The Lease of a follower in a loop is renewed for the first time."""
    api: Any = cluster.client()
    keeper = TaskKeeper(api, "follower-of-a-loop")
    await keeper.hold()
    for _ in range(1000):
        await asyncio.sleep(0.001)
        if len(cluster.all(LEASES)) == 1:
            break
    await keeper.let_go()


def holds(cluster: FakeCluster) -> None:
    api: Any = cluster.client()
    keeper = ThreadKeeper(api, "follower-of-a-thread")
    keeper.hold()
    for _ in range(1000):
        time.sleep(0.001)
        if len(cluster.all(LEASES)) == 1:
            break
    keeper.let_go()


WAYS: Mapping[str, Callable[[FakeCluster], Any]] = {
    "lists": lambda cluster: cluster.backend().list(),
    "launches": lambda cluster: cluster.backend().launch(a_plan("next"), DETACHED),
    "tidies up": lambda cluster: cluster.backend().tidy_up(),
    "follows": holds,
    "follows in a loop": lambda cluster: asyncio.run(keeps(cluster)),
}


@pytest.mark.parametrize("way", WAYS)
def test_whoever_comes_by_removes_the_leases_of_the_dead(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch, way: str
) -> None:
    """Once no run that they followed can be waited for any more, and not before."""
    monkeypatch.setattr("allaboard.backends.kubernetes.state.leases.EVERY", 0.002)
    client = cluster.backend()
    handle = client.launch(a_plan(), ORCHESTRATED)
    running(cluster, client, handle.run)
    dies(client)
    cluster.tick(leases.SECONDS + leases.KEPT - 5)
    cluster.backend().list()
    assert len(cluster.all(LEASES)) == 1, "from it is known since when the run has no follower"
    cluster.now += 10
    WAYS[way](cluster)
    assert [le for le in cluster.all(LEASES) if le["spec"]["holderIdentity"] == "follower-1"] == []
    if way != "tidies up":
        assert told(cluster.backend()) == [("run", labels.record_name(handle.run))], "it is an orphan still"


def test_few_requests_remove_leases_and_none_where_that_is_not_allowed(cluster: FakeCluster) -> None:
    for n in range(60):
        cluster.create(LEASES, leases.lease_body(f"dead-{n}", cluster.now - 9e4), "default")
    living = leases.lease_body("living", cluster.now)
    cluster.create(LEASES, living, "default")
    api = cluster.client()
    leases.remove_dead(api)
    assert len(cluster.all(LEASES)) == 11 and api.sent <= 52
    real = api.delete

    def refused(*args: Any, **options: Any) -> None:
        sent.append(args)
        raise Forbidden("no", status=403)

    sent: list[Any] = []
    api.delete = refused  # type: ignore[method-assign]
    leases.remove_dead(api)
    assert len(sent) == 1, "it is not allowed for any"
    api.delete = real  # type: ignore[method-assign]
    leases.remove_dead(api)
    assert [le["spec"]["holderIdentity"] for le in cluster.all(LEASES)] == ["living"]


def test_a_lease_tells_of_its_runs_for_as_long_as_they_are_safe() -> None:
    assert max(SAFE["attached"], SAFE["orchestrated"]) <= leases.KEPT


def test_a_record_that_cannot_be_read_hides_no_other(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    good, bad = backend.launch(a_plan("good"), ME), backend.launch(a_plan("bad"), ME)
    body: Any = cluster.one(CONFIGMAPS, labels.record_name(bad.run))
    body["data"]["record"] = '{"version": 1, "run": 3'
    cluster.replace(CONFIGMAPS, body, "default")
    assert [seen.run for seen in backend.list()] == [good.run]
    from allaboard.errors import Corrupt

    with pytest.raises(Corrupt, match=r"holds no run record that can be read .*kubectl delete configmap"):
        backend.observe(bad.run)
    body = cluster.one(CONFIGMAPS, labels.record_name(good.run))
    body["data"]["record"] = body["data"]["record"].replace('"version":1', '"version":2,"mood":"new"')
    cluster.replace(CONFIGMAPS, body, "default")
    backend.adopt(good, ME, YOU)
    written = cluster.one(CONFIGMAPS, labels.record_name(good.run))
    assert written is not None
    assert '"version":2' in written["data"]["record"] and '"mood":"new"' in written["data"]["record"]
    assert records.parse(written).record.owner == YOU
