"""What queues have, what is free, and who waits in them."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.resources import PODGROUPS_VOLCANO, RESOURCEQUOTAS, Resource
from allaboard.backends.kubernetes.discovery.components import (
    CLUSTERQUEUES,
    KUEUE_WORKLOADS,
    LOCALQUEUES,
    VOLCANO_QUEUES,
)
from allaboard.cli import main
from allaboard.cli.place import Place
from allaboard.gangs.kueue import BOOST
from allaboard.runs.queues import Amount, Queue, Waiter
from allaboard.testing.cluster import FakeApi, FakeCluster

SHORT = (
    "couldn't assign flavors to pod set worker: insufficient unused quota for nvidia.com/gpu in flavor h100, "
    "2 more needed"
)


def put(
    cluster: FakeCluster, resource: Resource, name: str, *, status: Any = None, own: Any = None, **fields: Any
) -> None:
    """An object, with a status, as its controller would leave it."""
    namespace = "default" if resource.namespaced else ""
    body = {"apiVersion": resource.api_version, "kind": resource.kind, **fields}
    body["metadata"] = {"name": name, **(own or {})}
    cluster.client(namespace=namespace).create(resource, body)
    cluster.objects[resource.group, resource.plural, namespace, name]["status"] = status or {}


def reserved(**amounts: str) -> list[dict[str, Any]]:
    return [{"name": "h100", "resources": [{"name": n, "total": v} for n, v in amounts.items()]}]


def a_workload(cluster: FakeCluster, job: str, priority: int, *conditions: tuple[str, str, str]) -> str:
    owner = {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "name": job,
        "uid": job,
        "controller": True,
    }
    name = f"pytorchjob-{job}"
    said = [{"type": t, "status": s, "message": m} for t, s, m in conditions]
    put(
        cluster,
        KUEUE_WORKLOADS,
        name,
        own={"ownerReferences": [{**owner, "uid": job}]},
        spec={"queueName": "team", "priority": priority},
        status={"conditions": said},
    )
    return name


@pytest.fixture
def kueue() -> FakeCluster:
    """One job holds six of eight GPUs, and two wait: the later one has the higher priority."""
    shown = (LOCALQUEUES, CLUSTERQUEUES, KUEUE_WORKLOADS)
    cluster = FakeCluster(shows=shown)
    cluster.served = (*cluster.served, *shown)
    quota = {"name": "h100", "resources": [{"name": "nvidia.com/gpu", "nominalQuota": "8"}]}
    groups = [{"coveredResources": ["nvidia.com/gpu"], "flavors": [quota]}]
    used = reserved(**{"nvidia.com/gpu": "6"})
    spec = {"resourceGroups": groups, "cohortName": "lab"}
    put(cluster, CLUSTERQUEUES, "gpus", spec=spec, status={"flavorsReservation": used})
    status = {"reservingWorkloads": 1, "pendingWorkloads": 2, "flavorsReservation": used}
    put(cluster, LOCALQUEUES, "team", spec={"clusterQueue": "gpus"}, status=status)
    a_workload(cluster, "runs", 0, ("QuotaReserved", "True", ""), ("Admitted", "True", ""))
    a_workload(cluster, "over", 9, ("Finished", "True", ""))
    cluster.now += 60
    a_workload(cluster, "early", 0, ("QuotaReserved", "False", SHORT))
    cluster.now += 60
    a_workload(cluster, "urgent", 100, ("QuotaReserved", "False", SHORT))
    return cluster


def queues_of(cluster: FakeCluster) -> tuple[list[Queue], list[str]]:
    return cluster.backend().queues()


WHY = "it needs 2 more nvidia.com/gpu in flavor h100, which others use"


def test_a_queue_of_kueue_tells_what_is_free_and_who_waits_in_which_order(kueue: FakeCluster) -> None:
    [team], notes = queues_of(kueue)
    assert notes == []
    assert (team.name, team.kind, team.parent, team.cohort) == ("team", "LocalQueue", "gpus", "lab")
    assert team.amounts == (Amount("nvidia.com/gpu", 6.0, 8.0, "h100"),) and team.amounts[0].free == 2.0
    assert (team.running, team.waiting, team.closed) == (1, 2, None)
    assert [(w.name, w.position, w.priority) for w in team.waiters] == [
        ("urgent", None, 100),
        ("early", None, 0),
    ]
    assert {w.why for w in team.waiters} == {f"Kueue holds it back in queue team: {WHY}"}


def test_positions_are_those_that_kueue_tells(kueue: FakeCluster) -> None:
    """Others of another namespace may be between them."""
    kueue.operator.positions = ["pytorchjob-early", "elsewhere", "pytorchjob-urgent"]
    [team], _ = queues_of(kueue)
    assert [(w.name, w.position) for w in team.waiters] == [("early", 1), ("urgent", 3)]
    said = [(w.why or "").removesuffix(WHY) for w in team.waiters]
    assert said == [
        "Kueue holds it back in queue team, next in line: ",
        "Kueue holds it back in queue team, 2 before it: ",
    ]


def test_who_may_not_read_a_clusterqueue_sees_what_his_own_queue_uses(
    kueue: FakeCluster, monkeypatch: pytest.MonkeyPatch
) -> None:
    get = FakeApi.get

    def refused(self: FakeApi, resource: Any, name: str, *rest: Any, **more: Any) -> Any:
        if resource.plural == "clusterqueues":
            raise Forbidden("clusterqueues is forbidden", status=403)
        return get(self, resource, name, *rest, **more)

    monkeypatch.setattr(FakeApi, "get", refused)
    [team], [note] = queues_of(kueue)
    assert team.amounts == (Amount("nvidia.com/gpu", 6.0, None, "h100"),) and team.amounts[0].free is None
    assert "get clusterqueues.kueue.x-k8s.io" in note


def test_a_queue_that_is_closed_says_why(kueue: FakeCluster) -> None:
    stopped = {"type": "Active", "status": "False", "reason": "Stopped", "message": "LocalQueue is stopped"}
    kueue.objects[LOCALQUEUES.group, "localqueues", "default", "team"]["status"]["conditions"] = [stopped]
    [team], _ = queues_of(kueue)
    assert team.closed == "LocalQueue is stopped"


def test_a_queue_of_volcano_and_a_quota_of_the_namespace() -> None:
    cluster = FakeCluster(shows=(VOLCANO_QUEUES, PODGROUPS_VOLCANO))
    cluster.served = (*cluster.served, VOLCANO_QUEUES)
    spec = {"weight": 1, "capability": {"cpu": "4", "memory": "8Gi"}}
    status = {"state": "Closed", "allocated": {"cpu": "2500m", "pods": "3"}, "running": 1, "pending": 1}
    put(cluster, VOLCANO_QUEUES, "research", spec=spec, status=status)
    put(
        cluster,
        PODGROUPS_VOLCANO,
        "b",
        spec={"minMember": 2, "queue": "research"},
        status={"phase": "Running"},
    )
    put(
        cluster,
        PODGROUPS_VOLCANO,
        "a",
        spec={"minMember": 2, "queue": "research"},
        status={"phase": "Pending"},
    )
    hard = {"requests.cpu": "10", "pods": "20", "count/pytorchjobs.kubeflow.org": "odd"}
    put(cluster, RESOURCEQUOTAS, "limits", status={"hard": hard, "used": {"requests.cpu": "1500m"}})
    [research, limits], notes = queues_of(cluster)
    assert notes == [] and research.closed == "it is closed"
    assert research.amounts == (Amount("cpu", 2.5, 4.0), Amount("memory", 0.0, 8 * 1024.0**3))
    assert (research.running, research.waiting) == (1, 1)
    why = "Volcano has not let the gang into queue research yet"
    assert [(w.name, w.why) for w in research.waiters] == [("a", why)]
    assert limits.amounts[:2] == (Amount("requests.cpu", 1.5, 10.0), Amount("pods", 0.0, 20.0))
    assert limits.amounts[2].quota is None and (limits.running, limits.waiters) == (None, ())


# The verb.


@pytest.fixture
def desk(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Any:
    monkeypatch.setenv("ALLABOARD_HOME", str(tmp_path))

    def at(cluster: FakeCluster) -> None:
        monkeypatch.setenv("ALLABOARD_BACKEND", "kubernetes")
        monkeypatch.setattr(Place, "open", lambda *_: cluster.backend())

    return at


def test_people_read_what_is_free_and_who_waits(
    kueue: FakeCluster, desk: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    kueue.operator.positions = ["pytorchjob-urgent", "pytorchjob-early"]
    desk(kueue)
    assert main(["queues"]) == 0
    out = capsys.readouterr().out.splitlines()
    assert out[0] == "team  (Kueue, of ClusterQueue gpus, cohort lab)"
    assert out[1].startswith("  nvidia.com/gpu (h100)  ") and out[1].endswith("6 of 8 used, 2 free")
    assert out[2] == "  1 job running, 2 waiting"
    assert out[3].startswith("  waits (1)  urgent for ") and ", priority 100: Kueue holds it back" in out[3]
    assert out[4].startswith("  waits (2)  early for ") and out[4].endswith(WHY)


def test_a_boost_counts_in_the_order_and_is_told(
    kueue: FakeCluster, desk: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    change = {"metadata": {"annotations": {BOOST: "150"}}}
    kueue.patch(KUEUE_WORKLOADS, "pytorchjob-early", change, "default")
    desk(kueue)
    assert main(["queues"]) == 0
    first, second = capsys.readouterr().out.splitlines()[3:5]
    assert first.startswith("  waits  early for ") and ", priority 0, boost +150: Kueue" in first
    assert second.startswith("  waits  urgent for ") and ", priority 100: Kueue" in second


def test_machines_read_one_object(kueue: FakeCluster, desk: Any, capsys: pytest.CaptureFixture[str]) -> None:
    desk(kueue)
    assert main(["queues", "--json"]) == 0
    said = json.loads(capsys.readouterr().out)
    assert [*said] == ["queues", "notes"] and said["queues"][0]["resources"][0]["free"] == 2.0
    fields = {"name", "since", "position", "priority", "user", "boost", "why"}
    assert {*said["queues"][0]["waiters"][0]} == fields


def test_where_there_is_no_queue_it_is_said(desk: Any, capsys: pytest.CaptureFixture[str]) -> None:
    desk(FakeCluster())
    assert main(["queues"]) == 0
    assert capsys.readouterr().out.startswith("no queue and no quota in namespace default of ")


def test_this_machine_has_one_queue(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("ALLABOARD_POOL", str(tmp_path / "pool"))
    monkeypatch.delenv("ALLABOARD_BACKEND", raising=False)
    assert main(["queues", "--json"]) == 0
    [machine] = json.loads(capsys.readouterr().out)["queues"]
    assert (machine["kind"], machine["waiters"]) == ("machine", [])
    assert [each["used"] for each in machine["resources"][:2]] == [0, 0]
    assert main(["queues"]) == 0
    assert capsys.readouterr().out.startswith("this machine\n  cpu ")


def test_a_run_that_waits_here_says_for_what() -> None:
    from allaboard.backends.local.queues import machine_queue

    gpus = ["0", "1"]
    why = "this machine holds it back, next in line: it needs 1 more core, which run digits-0 uses"
    ticket = {"run": "digits-1", "user": "ann", "since": 5.0, "position": 1, "why": why}
    holder = {"run": "digits-0", "cpu": 1.0, "memory": 0, "gpus": ["0"]}
    idle = {"run": "free", "cpu": 0, "memory": 0, "gpus": []}
    whole, free = {"cpu": 2.0, "memory": 2**31, "gpus": gpus}, {"cpu": 1.0, "memory": 2**31, "gpus": ["1"]}
    queue = machine_queue({"capacity": whole, "free": free, "gangs": [holder, idle], "queue": [ticket]})
    assert queue.amounts == (Amount("cpu", 1.0, 2.0), Amount("memory", 0, 2**31), Amount("gpus", 1, 2))
    assert (queue.running, queue.waiting) == (1, 1)
    assert queue.waiters == (Waiter("digits-1", 5.0, 1, user="ann", why=why),)
