"""Runs on a cluster in memory: the table of core/docs/contract.md, Launch under a key, and a client that is
killed between any two of its requests.
"""

from __future__ import annotations

import threading
from collections.abc import Callable
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.base import Handle, Plan, Stopped
from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.resources import CLAIM_TEMPLATES, CONFIGMAPS, NODES, PODS
from allaboard.backends.kubernetes.observe.deadlines import HOLDING
from allaboard.backends.kubernetes.state import records
from allaboard.checking.job import require_valid
from allaboard.errors import BackendUnreachable, OwnershipConflict, SiteError, SpecChanged
from allaboard.render import labels
from allaboard.runs.observation import Observation, Owner, State
from allaboard.runs.status import state_of
from allaboard.testing import a_job
from allaboard.testing.cluster import Died, FakeCluster
from allaboard.testing.objects import PYTORCHJOBS
from allaboard.text.units import rfc3339

ME, YOU = Owner("me"), Owner("you")
DEFERRED = Owner("me", phase="deferred", kind="orchestrated")


@pytest.fixture
def cluster() -> FakeCluster:
    return FakeCluster()


def a_plan(key: str = "k", **fields: Any) -> Plan:
    """A job of a master and a worker, which ships a file."""
    return Plan(require_valid(a_job(image="lab/train:1", **fields)), key)


def a_plan_with_code(folder: Path, text: str = "print('up')\n", **fields: Any) -> Plan:
    (folder / "train.py").write_text(text)
    plan = a_plan(code=["train.py"], **fields)
    return replace(plan, job=type(plan.job)(folder=str(folder), **plan.job.as_mapping()))


def running(cluster: FakeCluster, backend: KubernetesBackend, run: str) -> Observation:
    cluster.tick(3)
    seen = backend.observe(run)
    assert state_of(seen) is State.RUNNING, seen
    return seen


def state(backend: KubernetesBackend, run: str) -> State:
    return state_of(backend.observe(run))


def jobs(cluster: FakeCluster) -> list[str]:
    return [j["metadata"]["name"] for j in cluster.all(PYTORCHJOBS)]


def record(cluster: FakeCluster, run: str) -> Any:
    body = cluster.one(CONFIGMAPS, labels.record_name(run))
    assert body is not None
    return records.parse(body).record


# Launching, and the table of core/docs/contract.md, Launch under a key.


def test_a_run_goes_from_created_to_succeeded(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)
    cluster.end_members(handle.run)
    cluster.tick(2)
    seen = backend.observe(handle.run)
    assert state_of(seen) is State.SUCCEEDED and not handle.adopted and seen.owner == ME
    assert [(c.type, c.status) for c in seen.conditions] == [
        ("Created", "True"),
        ("Running", "False"),
        ("Succeeded", "True"),
    ]
    assert [(m.name, m.rank, m.phase, m.exit_code) for m in seen.members] == [
        ("master-0", 0, "succeeded", 0),
        ("worker-0", 1, "succeeded", 0),
    ]
    assert record(cluster, handle.run).outcome.state == "succeeded"


def test_the_record_comes_first_is_owned_by_nobody_and_knows_the_job(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    handle = cluster.backend().launch(a_plan_with_code(tmp_path), ME)
    assert [r for r in cluster.requests if r[0] not in ("get", "list") and "leases" not in r[1]] == [
        ("create", "configmaps", f"allaboard-{handle.run}"),
        ("create", "pytorchjobs.kubeflow.org", handle.run),
        ("create", "configmaps", f"{handle.run}-code"),
        ("create", "configmaps", f"{handle.run}-helper"),
        ("replace", "configmaps", f"allaboard-{handle.run}"),
    ]
    job, code = cluster.one(PYTORCHJOBS, handle.run), cluster.one(CONFIGMAPS, f"{handle.run}-code")
    body = cluster.one(CONFIGMAPS, f"allaboard-{handle.run}")
    assert job is not None and code is not None and body is not None
    assert record(cluster, handle.run).object_uid == job["metadata"]["uid"]
    assert [o["uid"] for o in code["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    assert "ownerReferences" not in body["metadata"]


def test_what_claims_devices_comes_and_goes_with_its_job(cluster: FakeCluster) -> None:
    plan = a_plan(resources={"gpu": 2, "device_class": "gpu.nvidia.com"})
    handle = cluster.backend().launch(plan, ME)
    job, claim = cluster.one(PYTORCHJOBS, handle.run), cluster.one(CLAIM_TEMPLATES, f"{handle.run}-devices")
    assert job is not None and claim is not None
    assert [o["uid"] for o in claim["metadata"]["ownerReferences"]] == [job["metadata"]["uid"]]
    cluster.backend().delete(handle.run)
    cluster.tick(60)
    assert cluster.one(CLAIM_TEMPLATES, f"{handle.run}-devices") is None


@pytest.mark.parametrize("at", [2, 3, 4])
def test_a_client_that_dies_leaves_no_claim_behind(at: int) -> None:
    cluster = FakeCluster()
    plan = a_plan(resources={"gpu": 2, "device_class": "gpu.nvidia.com"})
    with suppress(Died, BackendUnreachable):
        cluster.backend({at: "die-after"}).launch(plan, ME)
    handle = cluster.backend().launch(plan, ME)
    claims = cluster.all(CLAIM_TEMPLATES)
    assert [claim["metadata"]["name"] for claim in claims] == [f"{handle.run}-devices"]
    assert len(claims[0]["metadata"]["ownerReferences"]) == 1


def test_a_fresh_key_takes_three_requests_and_one_for_each_config_map(tmp_path: Path) -> None:
    job, record_written = ("create", "pytorchjobs.kubeflow.org"), ("replace", "configmaps")
    create = ("create", "configmaps")
    looks = [("list", "configmaps"), ("list", "leases.coordination.k8s.io")]
    """Once it is started: for records past their age, and for Leases of the dead."""
    plans = (a_plan("once/a", inject="off"), a_plan("once/a"), a_plan_with_code(tmp_path, key="once/a"))
    for config_maps, plan in enumerate(plans):
        cluster = FakeCluster()
        cluster.backend().launch(plan, replace(ME, kind="detached"))
        asked = [(verb, resource) for verb, resource, _ in cluster.requests]
        assert asked == [create, job, *[create] * config_maps, record_written, *looks]


def test_what_members_mount_is_refused_and_so_is_the_job(cluster: FakeCluster, tmp_path: Path) -> None:
    """A quota, after the job is made: its members have waited, and nothing is left."""
    plan = a_plan_with_code(tmp_path)
    cluster.refusals.append((CONFIGMAPS, f"{plan.run}-helper", Forbidden("exceeded quota: maps")))
    with pytest.raises(SiteError, match="was not started"):
        cluster.backend().launch(plan, ME)
    cluster.tick(60)
    assert jobs(cluster) == [] and cluster.all(PODS) == []
    assert cluster.all(CONFIGMAPS) == []
    cluster.refusals.clear()
    assert cluster.backend().launch(plan, ME).attempt == 1
    whole(cluster, plan.run)


@pytest.mark.parametrize("n", [3, 4])
def test_what_members_wait_for_is_made_by_the_next_client(
    cluster: FakeCluster, tmp_path: Path, n: int
) -> None:
    """Who adopts a job that is whole needs no files."""
    plan = a_plan_with_code(tmp_path)
    with suppress(Died, BackendUnreachable):
        cluster.backend({n: "die-after"}).launch(plan, ME)
    assert jobs(cluster) == [plan.run]
    handle = cluster.backend().launch(plan, YOU)
    assert (handle.attempt, handle.adopted) == (1, True)
    whole(cluster, plan.run)
    names = [f"allaboard-{plan.run}", f"{plan.run}-code", f"{plan.run}-helper"]
    assert sorted(body["metadata"]["name"] for body in cluster.all(CONFIGMAPS)) == sorted(names)
    (tmp_path / "train.py").unlink()
    assert cluster.backend().launch(plan, ME).adopted


def test_a_run_of_a_release_without_the_helper_goes_on(
    cluster: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It is adopted as it is. One whose client died before there was a job gets the helper."""
    other, prepare = FakeCluster(), "allaboard.backends.kubernetes.lifecycle.prepare.helper_files"
    with monkeypatch.context() as older:
        older.setattr(prepare, lambda *_: {})
        first = cluster.backend().launch(a_plan(), ME)
        running(cluster, cluster.backend(), first.run)
        with suppress(Died, BackendUnreachable):
            other.backend({1: "die-after"}).launch(a_plan(), ME)
    assert cluster.one(CONFIGMAPS, f"{first.run}-helper") is None
    again = cluster.backend().launch(a_plan(), ME)
    assert again.adopted and again.attempt == 1 and cluster.one(CONFIGMAPS, f"{first.run}-helper") is None
    handle = other.backend().launch(a_plan(), ME)
    helper = other.one(CONFIGMAPS, f"{handle.run}-helper")
    assert helper is not None and len(helper["metadata"]["ownerReferences"]) == 1
    for place, run in ((cluster, first.run), (other, handle.run)):
        place.backend().stop(place.backend().launch(a_plan(), ME), ME, "me", "enough")
        place.tick(60)
        assert place.one(CONFIGMAPS, f"{run}-helper") is None


def test_live_the_same_owner_and_a_crashed_one_are_adopted(cluster: FakeCluster) -> None:
    first = cluster.backend().launch(a_plan(), ME)
    running(cluster, cluster.backend(), first.run)
    for owner in (ME, YOU, replace(DEFERRED, id="you")):
        again = cluster.backend().launch(a_plan(), owner)
        assert again.adopted and (again.uid, again.attempt) == (first.uid, 1)
        assert cluster.backend().observe(first.run).owner == owner
    assert jobs(cluster) == [first.run]


def test_live_with_another_spec_is_refused_and_shown(cluster: FakeCluster) -> None:
    handle = cluster.backend().launch(a_plan(), ME)
    cluster.tick()
    with pytest.raises(SpecChanged, match="workers: 2 -> 3"):
        cluster.backend().launch(a_plan(workers=3), YOU)
    assert record(cluster, handle.run).owner == ME


def test_live_deferred_and_a_new_try_stops_waits_and_resumes(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    first = backend.launch(a_plan(), DEFERRED)
    running(cluster, backend, first.run)
    second = backend.launch(a_plan(workers=3), YOU)
    assert (second.attempt, second.adopted) == (2, False) and second.uid != first.uid
    assert jobs(cluster) == [f"{first.run}-2"]
    assert any("workers: 2 -> 3" in note for note in second.notes)
    created = next(
        n
        for n, r in enumerate(cluster.requests)
        if r == ("create", "pytorchjobs.kubeflow.org", f"{first.run}-2")
    )
    assert ("delete", "pytorchjobs.kubeflow.org", first.run) in cluster.requests[:created]
    assert [p["metadata"]["labels"][labels.ATTEMPT] for p in cluster.all(PODS)] in ([], ["2"] * 3)


@pytest.mark.parametrize("how", ["failed", "stopped", "lost", "timed_out"])
def test_what_ended_badly_is_tried_again_with_the_changed_spec(cluster: FakeCluster, how: str) -> None:
    backend = cluster.backend()
    policy: dict[str, Any] = {"restart": "never", **({"deadline": 30} if how == "timed_out" else {})}
    if how == "lost":
        policy["ttl"] = 600
    handle = backend.launch(a_plan(policy=policy), ME)
    running(cluster, backend, handle.run)
    if how == "failed":
        cluster.end_members(handle.run, 3)
    elif how == "stopped":
        backend.stop(handle, ME, "me", "because")
    elif how == "lost":
        cluster.delete(PYTORCHJOBS, handle.run, "default")
    else:
        cluster.tick(40)
        cluster.patch(PYTORCHJOBS, handle.run, {"metadata": {"annotations": {"nudge": "1"}}}, "default")
    cluster.tick(5)
    assert state(backend, handle.run).value == how
    again = backend.launch(a_plan(workers=1, policy=policy), YOU)
    assert again.attempt == 2 and any("workers: 2 -> 1" in note for note in again.notes)
    running(cluster, backend, handle.run)
    cluster.end_members(f"{handle.run}-2")
    cluster.tick(2)
    assert state(backend, handle.run) is State.SUCCEEDED
    history = record(cluster, handle.run).history
    assert [(e.attempt, e.state) for e in history] == [(1, how), (2, "succeeded")]


def test_what_a_run_was_started_with_is_told_as_long_as_it_is_there(
    cluster: FakeCluster, tmp_path: Path
) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan_with_code(tmp_path, workers=3), ME)
    told = backend.started_with(handle.run)
    assert told.spec["workers"] == 3 and told.code == {"train.py": "print('up')\n"}
    backend.delete(handle.run)
    cluster.tick(60)
    assert backend.started_with(handle.run).spec["workers"] == 3


def test_a_success_is_handed_over_once_then_trained_anew_in_a_fresh_folder(cluster: FakeCluster) -> None:
    plan = a_plan(checkpoints={"uri": "s3://bucket/out"}, environment={"HF_TOKEN": "hub-token"})
    backend = cluster.backend()
    first = backend.launch(plan, ME)
    running(cluster, backend, first.run)
    assert backend.secrets_of(first.run) == ("hub-token",)
    assert backend.saving(first.run) == f"s3://bucket/out/{first.run}"
    cluster.end_members(first.run)
    cluster.tick(2)
    second = backend.launch(plan, YOU)
    assert second.hand_over and second.uid == first.uid and jobs(cluster) == [first.run]
    backend.hand_over(second)
    third = backend.launch(plan, YOU)
    assert (third.generation, third.attempt, third.hand_over) == (2, 1, False)
    assert jobs(cluster) == [first.run, f"{first.run}-g2"]
    assert backend.saving(first.run) == f"s3://bucket/out/{first.run}-g2"


def test_a_success_that_nobody_saw_and_whose_job_is_gone_by_hand_is_not_trained_away(
    cluster: FakeCluster,
) -> None:
    """Its outcome was written down by whoever looked first, and outlives the job."""
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)
    cluster.end_members(handle.run)
    cluster.tick(2)
    backend.observe(handle.run)
    cluster.delete(PYTORCHJOBS, handle.run, "default")
    cluster.tick(2)
    seen = backend.observe(handle.run)
    assert state_of(seen) is State.SUCCEEDED
    assert [(m.name, m.exit_code) for m in seen.members] == [("master-0", 0), ("worker-0", 0)]
    assert backend.launch(a_plan(), YOU).hand_over


def test_many_clients_at_once_start_one_run(cluster: FakeCluster) -> None:
    handles: list[Handle] = []
    owners = [Owner(f"client-{n}") for n in range(8)]

    def start(owner: Owner) -> None:
        handles.append(cluster.backend().launch(a_plan(), owner))

    threads = [threading.Thread(target=start, args=(owner,)) for owner in owners]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len({h.uid for h in handles}) == 1 and len(handles) == 8
    assert jobs(cluster) == [handles[0].run]


# Killed between any two requests.


FAULTS = ["die", "die-after", "lost", "unreachable", "unreachable-after"]


def every_boundary(
    act: Callable[[FakeCluster, KubernetesBackend], object], setting: Callable[[], FakeCluster]
) -> int:
    """How many requests ``act`` makes when nothing goes wrong."""
    cluster = setting()
    backend = cluster.backend()
    act(cluster, backend)
    return backend.api.sent  # type: ignore[attr-defined, no-any-return]


def whole(cluster: FakeCluster, run: str, live: int = 1) -> None:
    """Exactly one job of the run lives, it is the one that the record means, and nothing of ours is without
    an owner.
    """
    cluster.tick(3)
    alive = [
        j
        for j in cluster.all(PYTORCHJOBS)
        if "deletionTimestamp" not in j["metadata"]
        and not any(
            c["type"] in ("Failed", "Succeeded") and c["status"] == "True"
            for c in j.get("status", {}).get("conditions", [])
        )
    ]
    assert len(alive) == live, [j["metadata"]["name"] for j in alive]
    for job in alive:
        assert job["metadata"]["uid"] == record(cluster, run).object_uid
    for thing in cluster.all(CONFIGMAPS):
        if not thing["metadata"]["name"].startswith("allaboard-"):
            assert thing["metadata"].get("ownerReferences"), thing["metadata"]["name"]
    uids = {j["metadata"]["uid"] for j in cluster.all(PYTORCHJOBS)}
    for pod in cluster.all(PODS):
        assert pod["metadata"]["ownerReferences"][0]["uid"] in uids


@pytest.mark.parametrize("fault", FAULTS)
def test_killed_at_any_request_of_a_launch_the_next_one_starts_exactly_one(
    fault: str, tmp_path: Path
) -> None:
    plan = a_plan_with_code(tmp_path)
    requests = every_boundary(lambda c, b: b.launch(plan, ME), FakeCluster)
    assert requests >= 6
    for n in range(1, requests + 3):
        cluster = FakeCluster()
        handle = None
        try:
            handle = cluster.backend({n: fault}).launch(plan, ME)
        except (Died, BackendUnreachable):
            assert fault != "lost"
        if fault == "lost":
            assert handle is not None
        cluster.tick(2)
        again = cluster.backend().launch(plan, YOU)
        assert again.attempt == 1
        whole(cluster, plan.run)
        assert record(cluster, plan.run).owner == YOU


@pytest.mark.parametrize("fault", FAULTS)
def test_killed_at_any_request_of_a_second_attempt(fault: str, tmp_path: Path) -> None:
    plan = a_plan_with_code(tmp_path, policy={"restart": "never"})

    def failed() -> FakeCluster:
        cluster = FakeCluster()
        cluster.backend().launch(plan, ME)
        cluster.tick(3)
        cluster.end_members(plan.run, 1)
        cluster.tick(3)
        return cluster

    requests = every_boundary(lambda c, b: b.launch(plan, ME), failed)
    for n in range(1, requests + 1):
        cluster = failed()
        try:
            cluster.backend({n: fault}).launch(plan, ME)
        except (Died, BackendUnreachable):
            assert fault != "lost"
        again = cluster.backend().launch(plan, YOU)
        assert again.attempt == 2
        whole(cluster, plan.run)
        assert [e.attempt for e in record(cluster, plan.run).history] == [1]


@pytest.mark.thorough(but=("die",))
@pytest.mark.parametrize("fault", FAULTS)
def test_killed_at_any_request_while_starting_anew_what_was_deferred(fault: str, tmp_path: Path) -> None:
    plan = a_plan_with_code(tmp_path)

    def deferred() -> FakeCluster:
        cluster = FakeCluster()
        cluster.backend().launch(plan, DEFERRED)
        cluster.tick(3)
        return cluster

    requests = every_boundary(lambda c, b: b.launch(plan, YOU), deferred)
    assert requests > 10
    for n in range(1, requests + 1):
        cluster = deferred()
        try:
            cluster.backend({n: fault}).launch(plan, YOU)
        except (Died, BackendUnreachable):
            assert fault != "lost"
        again = cluster.backend().launch(plan, Owner("third"))
        assert again.attempt == 2
        whole(cluster, plan.run)


@pytest.mark.parametrize("fault", FAULTS)
def test_killed_at_any_request_of_a_stop(fault: str, tmp_path: Path) -> None:
    plan = a_plan_with_code(tmp_path)

    def live() -> FakeCluster:
        cluster = FakeCluster()
        cluster.backend().launch(plan, ME)
        cluster.tick(3)
        return cluster

    def stop(cluster: FakeCluster, backend: KubernetesBackend) -> object:
        handle = Handle(plan.run, 1, 1, record(cluster, plan.run).uid)
        return backend.stop(handle, ME, "me", "a reason", kill=True)

    requests = every_boundary(stop, live)
    for n in range(1, requests + 1):
        cluster = live()
        try:
            stop(cluster, cluster.backend({n: fault}))
        except (Died, BackendUnreachable):
            assert fault != "lost"
        # Asked again, it is stopped; started again, a second attempt runs, and only that one.
        asked = stop(cluster, cluster.backend())
        assert isinstance(asked, Stopped)
        cluster.tick(3)
        assert state(cluster.backend(), plan.run) is State.STOPPED
        assert cluster.all(PYTORCHJOBS) == [] and cluster.all(PODS) == []
        seen = cluster.backend().observe(plan.run)
        assert seen.stop is not None and (seen.stop.by, seen.stop.reason) == ("me", "a reason")
        assert cluster.backend().launch(plan, YOU).attempt == 2
        whole(cluster, plan.run)


ENDED = Owner("me/ended", "deferred", "attached")


def until_the_delete(cluster: FakeCluster, since: int) -> list[tuple[str, str]]:
    """The requests up to the DELETE of the job."""
    asked = [(verb, resource) for verb, resource, _ in cluster.requests[since:]]
    return asked[: asked.index(("delete", "pytorchjobs.kubeflow.org")) + 1]


@pytest.mark.parametrize("way", ["stopped", "started anew"])
def test_a_cleared_task_reaches_the_delete_of_its_job_in_five_requests(
    cluster: FakeCluster, way: str
) -> None:
    """By whoever hears of it first, or by the next try where nobody did."""
    handle = cluster.backend().launch(a_plan(), DEFERRED)
    cluster.tick(3)
    since = len(cluster.requests)
    if way == "stopped":
        assert cluster.backend().stop_from(handle, DEFERRED, ENDED, "airflow", "cleared")
    else:
        assert cluster.backend().launch(a_plan(), YOU).attempt == 2
    assert until_the_delete(cluster, since) == [
        ("get", "configmaps"),
        ("get", "pytorchjobs.kubeflow.org"),
        ("list", "pods"),
        ("replace", "configmaps"),
        ("delete", "pytorchjobs.kubeflow.org"),
    ]
    if way == "stopped":
        kept = record(cluster, handle.run)
        assert kept.owner == ENDED and kept.stop is not None and kept.stop.reason == "cleared"


def test_what_is_stopped_for_another_owner_was_the_first_ones_and_lives(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(), DEFERRED)
    cluster.tick(3)
    assert not backend.stop_from(handle, YOU, ENDED, "airflow", "cleared"), "it is another's"
    assert not backend.stop_from(replace(handle, uid="x"), DEFERRED, ENDED, "airflow", "cleared")
    assert not backend.stop_from(replace(handle, run="digits-0"), DEFERRED, ENDED, "airflow", "cleared")
    cluster.end_members(handle.run)
    cluster.tick(3)
    assert not backend.stop_from(handle, DEFERRED, ENDED, "airflow", "cleared"), "it has ended"
    kept = record(cluster, handle.run)
    assert (kept.owner, kept.stop, kept.outcome) == (DEFERRED, None, None), "its worker takes the result"


@pytest.mark.parametrize("fault", FAULTS)
def test_killed_at_any_request_of_a_stop_for_another_owner(fault: str, tmp_path: Path) -> None:
    plan = a_plan_with_code(tmp_path)

    def live() -> FakeCluster:
        cluster = FakeCluster()
        cluster.backend().launch(plan, DEFERRED)
        cluster.tick(3)
        return cluster

    def stop(cluster: FakeCluster, backend: KubernetesBackend) -> object:
        handle = Handle(plan.run, 1, 1, record(cluster, plan.run).uid)
        return backend.stop_from(handle, DEFERRED, ENDED, "airflow", "cleared")

    for n in range(1, every_boundary(stop, live) + 1):
        cluster = live()
        try:
            stop(cluster, cluster.backend({n: fault}))
        except (Died, BackendUnreachable):
            assert fault != "lost"
        kept = record(cluster, plan.run)
        assert (kept.owner, kept.stop is not None) in ((DEFERRED, False), (ENDED, True)), "both or neither"
        if state(cluster.backend(), plan.run) is not State.STOPPED:
            assert stop(cluster, cluster.backend())
        cluster.tick(3)
        assert state(cluster.backend(), plan.run) is State.STOPPED
        assert cluster.all(PYTORCHJOBS) == [] and cluster.all(PODS) == []
        assert cluster.backend().launch(plan, YOU).attempt == 2
        whole(cluster, plan.run)


@pytest.mark.parametrize("fault", ["die", "die-after"])
def test_a_stop_that_was_recorded_is_carried_out_by_the_next_launch(fault: str) -> None:
    plan = a_plan()
    for n in range(1, 12):
        cluster = FakeCluster()
        handle = cluster.backend().launch(plan, ME)
        cluster.tick(3)
        with suppress(Died):
            cluster.backend({n: fault}).stop(handle, ME, "me", "a reason")
        recorded = record(cluster, plan.run).stop is not None
        again = cluster.backend().launch(plan, YOU)
        assert again.attempt == (2 if recorded else 1)
        whole(cluster, plan.run)


@pytest.mark.parametrize("fault", FAULTS)
def test_killed_at_any_request_of_adoption_by_another(fault: str) -> None:
    plan = a_plan()
    for n in range(1, 4):
        cluster = FakeCluster()
        handle = cluster.backend().launch(plan, ME)
        cluster.tick(3)
        try:
            cluster.backend({n: fault}).adopt(handle, ME, DEFERRED)
        except (Died, BackendUnreachable):
            assert fault != "lost"
        assert record(cluster, plan.run).owner in (ME, DEFERRED)
        if record(cluster, plan.run).owner == ME:
            cluster.backend().adopt(handle, ME, DEFERRED)
        with pytest.raises(OwnershipConflict, match="belongs to me now"):
            cluster.backend().adopt(handle, YOU, ME)
        whole(cluster, plan.run)


@pytest.mark.thorough(but=("die",))
@pytest.mark.parametrize("fault", FAULTS)
def test_killed_at_any_request_of_a_delete(fault: str, tmp_path: Path) -> None:
    plan = a_plan_with_code(tmp_path)

    def live() -> FakeCluster:
        cluster = FakeCluster()
        cluster.backend().launch(plan, ME)
        cluster.tick(3)
        return cluster

    requests = every_boundary(lambda c, b: b.delete(plan.run), live)
    for n in range(1, requests + 1):
        cluster = live()
        try:
            cluster.backend({n: fault}).delete(plan.run)
        except (Died, BackendUnreachable):
            assert fault != "lost"
        cluster.backend().delete(plan.run)
        cluster.tick(3)
        assert cluster.all(PYTORCHJOBS) == [] and cluster.all(PODS) == []
        seen = cluster.backend().observe(plan.run)
        assert seen.deleted and state_of(seen) is State.STOPPED
        assert cluster.backend().launch(plan, YOU).attempt == 2
        whole(cluster, plan.run)


# Limits that only a follower keeps.


def test_a_deadline_is_nudged_and_the_operator_fails_the_job(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(policy={"deadline": 30}), ME)
    seen = running(cluster, backend, handle.run)
    assert seen.limit is not None and 20 < seen.limit.left <= 30
    cluster.tick(40)
    seen = backend.observe(handle.run)
    assert state_of(seen) is State.RUNNING, "the operator has no timer"
    assert seen.limit is not None and seen.limit.left < 0
    backend.enforce(handle.run, YOU)
    assert state(backend, handle.run) is State.RUNNING, "a run of somebody else is left alone"
    backend.enforce(handle.run, ME)
    cluster.tick()
    assert state(backend, handle.run) is State.TIMED_OUT
    assert jobs(cluster) == [handle.run]


@pytest.mark.parametrize("fault", ["none", "die", "die-after"])
def test_a_deadline_that_the_operator_does_not_keep_ends_the_run_as_timed_out(fault: str) -> None:
    for n in range(1, 8 if fault != "none" else 2):
        cluster = FakeCluster()
        backend = cluster.backend()
        handle = backend.launch(a_plan(policy={"deadline": 30}), ME)
        running(cluster, backend, handle.run)
        cluster.operator.paused = True
        cluster.tick(40)
        backend.enforce(handle.run, ME)
        seen = backend.observe(handle.run)
        assert seen.limit is not None and 0 < seen.limit.left <= 60
        cluster.tick(70)
        with suppress(Died):
            cluster.backend({n: fault} if fault != "none" else None).enforce(handle.run, ME)
        cluster.tick(20)
        for _ in range(3):
            backend.enforce(handle.run, ME)
            cluster.tick(2)
        seen = backend.observe(handle.run)
        assert state_of(seen) is State.TIMED_OUT, (n, seen)
        assert seen.stop is not None and "deadline of 30 s" in seen.stop.reason
        assert cluster.all(PODS) == []


def test_the_clock_of_a_phase_ends_the_run(cluster: FakeCluster) -> None:
    cluster.operator.starts_after = 1000
    backend = cluster.backend()
    handle = backend.launch(a_plan(policy={"clocks": {"scheduled": "5m"}}), ME)
    cluster.tick(200)
    backend.enforce(handle.run, ME)
    assert not state(backend, handle.run).is_final
    cluster.tick(200)
    backend.enforce(handle.run, ME)
    cluster.tick(3)
    seen = backend.observe(handle.run)
    assert state_of(seen) is State.TIMED_OUT and seen.stop is not None
    assert "its phase scheduled took longer than its clock of 5m" in seen.stop.reason


def a_node(cluster: FakeCluster, name: str, gpus: int) -> None:
    has = {"cpu": "64", "memory": "256Gi", "pods": "110", "nvidia.com/gpu": str(gpus)}
    ready = [{"type": "Ready", "status": "True"}]
    body = {
        "metadata": {"name": name, "namespace": "", "uid": name},
        "status": {"allocatable": has, "conditions": ready},
    }
    cluster._put(NODES, body, "ADDED")


def six_have_places_and_one_has_none(cluster: FakeCluster, run: str) -> None:
    """What a scheduler makes of seven pods and six GPUs."""
    for pod in cluster.all(PODS):
        if pod["metadata"]["name"] == f"{run}-worker-5":
            said = "0/3 nodes are available: 3 Insufficient nvidia.com/gpu."
            condition = {
                "type": "PodScheduled",
                "status": "False",
                "reason": "Unschedulable",
                "message": said,
            }
            pod["status"] = {"phase": "Pending", "conditions": [condition]}
        else:
            pod["spec"]["nodeName"] = "n0"
            state = {"running": {"startedAt": rfc3339(cluster.now)}}
            status = {"name": "pytorch", "containerID": pod["metadata"]["uid"], "state": state}
            pod["status"] = {"phase": "Running", "containerStatuses": [status]}
        cluster._put(PODS, pod, "MODIFIED")


@pytest.mark.parametrize("there", ["six", "seven", "an autoscaler", "forbidden"])
def test_a_gang_that_no_node_can_ever_hold_gives_its_places_back_at_the_first_look(
    cluster: FakeCluster, there: str
) -> None:
    """Its nodes have six GPUs, and it asks for seven."""
    cluster.operator.starts_after = 10_000
    for n in range(3):
        a_node(cluster, f"n{n}", 3 if there == "seven" and n == 0 else 2)
    if there == "an autoscaler":
        metadata = {"name": "cluster-autoscaler-status"}
        own = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata, "data": {}}
        cluster.create(CONFIGMAPS, own, "kube-system")
    backend = cluster.backend()
    if there == "forbidden":
        real = backend.api.list

        def refused(resource: Any, namespace: str | None = None, **more: Any) -> Any:
            if namespace == "kube-system":
                raise Forbidden("no", status=403)
            return real(resource, namespace, **more)

        backend.api.list = refused  # type: ignore[method-assign]
    handle = backend.launch(a_plan(workers=7, resources={"gpu": 1}), ME)
    cluster.tick(2)
    six_have_places_and_one_has_none(cluster, handle.run)
    seen = backend.observe(handle.run)
    if there == "seven":
        assert seen.limit is None, "it waits for another job"
        return
    assert seen.limit is not None and "it can never start" in seen.limit.why
    if there != "six":
        assert seen.limit.left > HOLDING / 2, "a node may come"
        return
    assert seen.limit.left <= 0
    backend.enforce(handle.run, ME)
    cluster.tick(2)
    seen = backend.observe(handle.run)
    assert state_of(seen) is State.FAILED and seen.stop is not None
    assert "6 of its 7 members have a place at once" in seen.stop.reason
    assert cluster.all(PODS) == []


def test_a_follower_carries_out_a_stop_whose_asker_died(cluster: FakeCluster) -> None:
    backend = cluster.backend()
    handle = backend.launch(a_plan(), ME)
    running(cluster, backend, handle.run)
    with pytest.raises(Died):
        cluster.backend({5: "die"}).stop(handle, ME, "you", "a reason")
    seen = backend.observe(handle.run)
    assert state_of(seen) is State.STOPPING and seen.limit is not None and seen.limit.left > 0
    cluster.tick(20)
    backend.enforce(handle.run, ME)
    cluster.tick(2)
    assert state(backend, handle.run) is State.STOPPED
