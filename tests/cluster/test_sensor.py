"""`TrainingJobSensor` for a job that somebody else made, on a real API server, with the rights of a viewer
alone: what its worker's legs and its trigger do, without an Airflow around them.
"""

from __future__ import annotations

import asyncio
import json
import secrets
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from allaboard import grid
from allaboard.backends.base import Handle, Plan
from allaboard.backends.kubernetes.backend import KubernetesBackend
from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.resources import EVENTS
from allaboard.checking.job import require_valid
from allaboard.runs.observation import Owner
from tests.cluster.api import Object, until
from tests.cluster.cluster import Cluster
from tests.cluster.kubelet.handle import NodeSpec, nodes_on
from tests.cluster.plane import ControlPlane
from tests.cluster.proxy import FaultProxy

pytest.importorskip("airflow")
pytest.importorskip("airflow.providers.cncf.kubernetes")

pytestmark = [
    pytest.mark.needs("training-operator", "kube-scheduler", "kube-controller-manager"),
    pytest.mark.timeout(600),
]
OWN = "allaboard.test/sensor"
WELL = "sleep 2"
BADLY = "sleep 2; [ $RANK = 0 ] && sleep 100; echo 'ValueError: odd' >&2; exit 3"


@pytest.fixture(scope="module")
def node(plane_of_nodes: ControlPlane) -> Iterator[str]:
    mark = f"sensor-{secrets.token_hex(3)}"
    with nodes_on(plane_of_nodes, [NodeSpec(mark, {}, {OWN: mark}, (f"{OWN}={mark}:NoSchedule",))]):
        yield mark


@pytest.fixture
def create(cluster: Cluster, namespace: str, node: str) -> Callable[..., Object]:
    """``create(script, **run_policy)``: a PyTorchJob ``nightly``, by somebody who does not know us."""

    def make(script: str, **policy: Any) -> Object:
        pod = {
            "nodeSelector": {OWN: node},
            "tolerations": [{"key": OWN, "operator": "Exists"}],
            "terminationGracePeriodSeconds": 1,
            "containers": [{"name": "pytorch", "image": "alpine", "command": ["sh", "-c", script]}],
        }
        role = {"replicas": 1, "restartPolicy": "Never", "template": {"spec": pod}}
        body = {
            "apiVersion": "kubeflow.org/v1",
            "kind": "PyTorchJob",
            "metadata": {"name": "nightly", "namespace": namespace},
            "spec": {"runPolicy": policy, "pytorchReplicaSpecs": {"Master": role, "Worker": role}},
        }
        return cluster.api.create(body)

    return make


@pytest.fixture
def waits(cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch) -> Callable[..., Any]:
    """Makes sensors on a connection to this namespace, as a viewer."""
    from allaboard_provider.triggers import polling

    viewer = cluster.kubeconfig_for_role(namespace, "viewer").read_text()
    place = {"backend": "kubernetes", "kubernetes_conn_id": "lab", "namespace": namespace}
    for conn_id, kind, extra in (
        ("PLACE", "allaboard", place),
        ("LAB", "kubernetes", {"kube_config": viewer}),
    ):
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id}", json.dumps({"conn_type": kind, "extra": extra}))
    monkeypatch.setattr(polling, "SETTLE", 0.0)

    def make(**more: Any) -> Any:
        from allaboard_provider.sensors import TrainingJobSensor

        fields = {"kind": "PyTorchJob", "job_name": "nightly", "poke_interval": 0.5, "timeout": 300, **more}
        return TrainingJobSensor(task_id="wait", allaboard_conn_id="place", **fields)

    return make


def context() -> dict[str, Any]:
    from tests.provider.building import a_context

    return a_context()


def deferred(sensor: Any) -> Any:
    """The trigger, made anew from its row."""
    from airflow.providers.common.compat.sdk import TaskDeferred

    with pytest.raises(TaskDeferred) as deferral:
        sensor.execute(context())
    _, arguments = deferral.value.trigger.serialize()
    return type(deferral.value.trigger)(**json.loads(json.dumps(arguments)))


async def event_of(trigger: Any, meanwhile: Callable[[], Any]) -> dict[str, Any]:
    """What it fires; ``meanwhile`` happens once it waits."""
    run = asyncio.create_task(anext(trigger.run()))
    while not any("_Task._serve" in repr(task) for task in asyncio.all_tasks()):
        assert not run.done(), run.result()
        await asyncio.sleep(0.05)
    await asyncio.to_thread(meanwhile)
    return dict((await run).payload)


def test_in_the_triggerer_also_before_it_is_there(waits: Any, create: Callable[..., Object]) -> None:
    trigger = deferred(waits())
    assert trigger.uid is None
    made: list[Object] = []
    event = asyncio.run(event_of(trigger, lambda: made.append(create(WELL, cleanPodPolicy="All"))))
    assert (event["status"], event["uid"]) == ("there", made[0]["metadata"]["uid"])
    result = waits().execute_complete(context(), event)
    assert (result["run"], result["state"]) == ("nightly", "succeeded")
    assert waits().execute(context())["state"] == "succeeded", "one that has ended is not waited for"


def test_on_a_worker_a_failure_with_its_reason(waits: Any, create: Callable[..., Object]) -> None:
    from airflow.providers.common.compat.sdk import AirflowException

    create(BADLY, cleanPodPolicy="Running")
    with pytest.raises(AirflowException) as failure:
        waits(deferrable=False).execute(context())
    words = str(failure.value)
    assert words.startswith("PyTorchJob nightly failed") and "ValueError: odd" in words, words
    assert "kubectl describe pytorchjobs nightly" in words


def test_in_the_triggerer_a_failure_with_its_reason(waits: Any, create: Callable[..., Object]) -> None:
    from airflow.providers.common.compat.sdk import AirflowException

    create(BADLY)
    event = asyncio.run(event_of(deferred(waits()), lambda: None))
    with pytest.raises(AirflowException, match="ValueError: odd"):
        waits().execute_complete(context(), event)


def test_one_that_its_ttl_takes_at_once_has_ended_well(
    waits: Any, create: Callable[..., Object], cluster: Cluster, namespace: str
) -> None:
    """A worker comes too late for it; what its operator said is there for an hour."""
    sensor = waits(deferrable=False)
    uid = create(WELL, ttlSecondsAfterFinished=0)["metadata"]["uid"]
    assert sensor.poke(context()).is_done is False
    job = lambda: cluster.api.get("kubeflow.org/v1", "PyTorchJob", "nightly", namespace)  # noqa: E731
    until("the ttl to take the job", lambda: job() is None, 120)
    until("its event", lambda: _told(cluster, namespace, uid), 60)
    assert sensor.execute(context())["state"] == "succeeded"


def _told(cluster: Cluster, namespace: str, uid: str) -> bool:
    events = cluster.api.list(EVENTS.api_version, EVENTS.kind, namespace)
    return any(e["involvedObject"]["uid"] == uid and e["reason"] == "PyTorchJobSucceeded" for e in events)


def test_one_that_is_deleted_fails_the_sensor(
    waits: Any, create: Callable[..., Object], cluster: Cluster, namespace: str
) -> None:
    from airflow.providers.common.compat.sdk import AirflowException

    create("sleep 1000")
    trigger = deferred(waits())
    assert trigger.uid is not None
    gone = lambda: cluster.api.delete("kubeflow.org/v1", "PyTorchJob", "nightly", namespace)  # noqa: E731
    event = asyncio.run(event_of(trigger, gone))
    with pytest.raises(AirflowException, match="nightly was stopped"):
        waits().execute_complete(context(), event)


# --- runs of ours, through a proxy that counts


def connect(proxy: FaultProxy, namespace: str, monkeypatch: pytest.MonkeyPatch) -> None:
    place = {"backend": "kubernetes", "kubernetes_conn_id": "lab", "namespace": namespace}
    reached = {"kube_config": proxy.kubeconfig.read_text()}
    for conn_id, kind, extra in (("PLACE", "allaboard", place), ("LAB", "kubernetes", reached)):
        monkeypatch.setenv(f"AIRFLOW_CONN_{conn_id}", json.dumps({"conn_type": kind, "extra": extra}))


def test_the_tasks_of_a_sweep_share_one_watch(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The triggers of twenty mapped tasks, in one triggerer."""
    from allaboard_provider.triggers.train import TrainingJobTrigger

    backend = KubernetesBackend(Access(str(cluster.kubeconfig), namespace=namespace).api())
    job = {"name": "swept", "image": "alpine", "command": ["true"], "engine": "pytorchjob"}
    owners, triggers = [], []
    for n, point in enumerate(grid(job, {"environment.LR": range(20)})):
        owner = Owner(f"try-{n}", "deferred", "orchestrated")
        handle = backend.launch(Plan(require_valid(point.as_mapping()), f"key-{n}"), owner)
        owners.append((handle, owner))
        triggers.append(
            TrainingJobTrigger(
                handle.run, handle.uid, owner.id, backend="kubernetes", connection="place", get_logs=False
            )
        )

    async def follow(counts: Callable[[], Counter[str]]) -> Counter[str]:
        runs = [asyncio.create_task(anext(trigger.run())) for trigger in triggers]
        while counts()["watch pods"] < 1 or counts()["get pytorchjobs"] < 20:
            await asyncio.sleep(0.1)
        await asyncio.sleep(5)
        seen = Counter(counts())
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        return seen

    try:
        with FaultProxy(cluster.kubeconfig_for_role(namespace, "submitter"), tls=False) as proxy:
            connect(proxy, namespace, monkeypatch)
            seen = asyncio.run(follow(lambda: proxy.counts.requests))
    finally:
        for handle, owner in owners:
            backend.stop(handle, owner, "tests", "that will do", kill=True)
    assert {words: count for words, count in seen.items() if words.startswith("watch")} == {
        "watch pytorchjobs": 1,
        "watch pods": 1,
    }


def test_sensors_of_runs_that_are_not_there_cost_one_list_and_one_watch(
    cluster: Cluster, namespace: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As a viewer; a run of somebody else comes meanwhile, and then one of those that are waited for."""
    from allaboard_provider.triggers import polling
    from allaboard_provider.triggers.train import RunTrigger

    monkeypatch.setattr(polling, "SETTLE", 0.0)
    backend = KubernetesBackend(Access(str(cluster.kubeconfig), namespace=namespace).api())
    # Nobody runs its pods: it is stopped, and so has ended.
    job = require_valid({"name": "theirs", "image": "alpine", "command": ["true"], "engine": "pytorchjob"})
    named = [{"key": f"key-{n}"} for n in range(20)] + [{"run": f"job-{n}"} for n in range(20)]
    triggers = [RunTrigger(backend="kubernetes", connection="place", **how) for how in named]
    owner = Owner("somebody", "detached", "detached")

    def comes(key: str) -> Handle:
        return backend.launch(Plan(job, key), owner)

    async def follow(counts: Callable[[], Counter[str]]) -> tuple[Any, Counter[str], Counter[str]]:
        runs = [asyncio.create_task(anext(trigger.run())) for trigger in triggers]
        while counts()["watch configmaps"] < 1:
            await asyncio.sleep(0.1)
        await asyncio.sleep(3)
        await asyncio.to_thread(comes, "another")
        await asyncio.sleep(3)
        quiet = Counter(counts())
        handle = await asyncio.to_thread(comes, "key-7")
        await asyncio.to_thread(backend.stop, handle, owner, "tests", "that will do", kill=True)
        event = await asyncio.wait_for(runs[7], 60)
        loud = Counter(counts())
        for run in runs:
            run.cancel()
        await asyncio.gather(*runs, return_exceptions=True)
        return event.payload, quiet, loud

    with FaultProxy(cluster.kubeconfig_for_role(namespace, "viewer"), tls=False) as proxy:
        connect(proxy, namespace, monkeypatch)
        event, quiet, loud = asyncio.run(follow(lambda: proxy.counts.requests))
    assert event["status"] == "there"
    assert dict(quiet) == {"list configmaps": 1, "watch configmaps": 1}
    assert sum(loud.values()) < 30, "only one of forty looks"
