"""Every operator of the plane reconciles: its definitions, rights, webhook and process fit together."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path

import pytest

from tests.cluster.api import ApiError, Object, until
from tests.cluster.cluster import Cluster
from tests.cluster.components import s3
from tests.cluster.components.coscheduling import SCHEDULER
from tests.cluster.components.kwok import fake_node
from tests.cluster.jobs import a_container, a_pod, a_pytorchjob
from tests.cluster.plane import ControlPlane

NewPlane = Callable[..., AbstractContextManager[ControlPlane]]


def pods(cluster: Cluster, namespace: str, count: int) -> list[Object]:
    """That many pods, as soon as they are there."""
    found: list[Object] = []

    def look() -> bool:
        found[:] = cluster.api.list("v1", "Pod", namespace)
        return len(found) == count

    until(f"{count} pods", look)
    return found


def names(objects: list[Object]) -> list[str]:
    return [each["metadata"]["name"] for each in objects]


def test_the_training_operator_makes_gangs_when_it_is_told_their_scheduler(
    tmp_path: Path, new_plane_in: NewPlane
) -> None:
    flags = {"training-operator": [f"--gang-scheduler-name={SCHEDULER}"]}
    with new_plane_in(tmp_path, "training-operator", "coscheduling", flags=flags) as plane:
        namespace = plane.make_namespace("gangs")
        plane.api.create(a_pytorchjob(namespace, "train", workers=2))
        members = pods(plane, namespace, 3)
        [group] = plane.api.list("scheduling.x-k8s.io/v1alpha1", "PodGroup", namespace)
        assert (group["metadata"]["name"], group["spec"]["minMember"]) == ("train", 3)
        assert {pod["spec"]["schedulerName"] for pod in members} == {SCHEDULER}
        assert {pod["metadata"]["labels"]["scheduling.x-k8s.io/pod-group"] for pod in members} == {"train"}
        # And without it, not.
        plane.restart("training-operator", flags=[])
        plane.api.create(a_pytorchjob(namespace, "alone", workers=1))
        assert pods(plane, namespace, 5)[0]["spec"]["schedulerName"] == "default-scheduler"
        assert len(plane.api.list("scheduling.x-k8s.io/v1alpha1", "PodGroup", namespace)) == 1


def pod_template(*names: str) -> Object:
    containers = [a_container(name) for name in names]
    return {"spec": {"restartPolicy": "Never", "containers": containers}}


@pytest.mark.needs("jobset")
def test_a_jobset_becomes_pods(cluster: Cluster, namespace: str) -> None:
    job = {"spec": {"parallelism": 2, "completions": 2, "template": pod_template("main")}}
    jobset = {
        "apiVersion": "jobset.x-k8s.io/v1alpha2",
        "kind": "JobSet",
        "metadata": {"name": "set", "namespace": namespace},
        "spec": {"replicatedJobs": [{"name": "node", "replicas": 1, "template": job}]},
    }
    cluster.api.create(jobset)
    assert {name.rpartition("-")[0] for name in names(pods(cluster, namespace, 2))} == {
        "set-node-0-0",
        "set-node-0-1",
    }
    jobset["metadata"]["name"] = "s" * 60
    with pytest.raises(ApiError, match="admission webhook"):
        cluster.api.create(jobset)


@pytest.mark.needs("trainer")
def test_a_trainjob_becomes_pods_by_its_runtime(cluster: Cluster, namespace: str) -> None:
    job = {
        "apiVersion": "trainer.kubeflow.org/v1alpha1",
        "kind": "TrainJob",
        "metadata": {"name": "train", "namespace": namespace},
        "spec": {"runtimeRef": {"name": "torch-distributed"}, "trainer": {"numNodes": 3}},
    }
    cluster.api.create(job)
    for pod in pods(cluster, namespace, 3):
        variables = {each["name"] for each in pod["spec"]["containers"][0]["env"]}
        assert {"PET_NNODES", "PET_MASTER_ADDR"} <= variables
    job["metadata"]["name"] = "other"
    job["spec"]["runtimeRef"]["name"] = "no-such-runtime"
    with pytest.raises(ApiError, match="admission webhook"):
        cluster.api.create(job)


@pytest.mark.needs("mpi-operator")
def test_an_mpijob_becomes_workers_and_a_launcher(cluster: Cluster, namespace: str) -> None:
    roles = {"Launcher": 1, "Worker": 2}
    job = {
        "apiVersion": "kubeflow.org/v2beta1",
        "kind": "MPIJob",
        "metadata": {"name": "train", "namespace": namespace},
        "spec": {
            "mpiReplicaSpecs": {
                role: {"replicas": replicas, "template": pod_template("mpi")}
                for role, replicas in roles.items()
            }
        },
    }
    cluster.api.create(job)
    made = names(pods(cluster, namespace, 3))
    assert {"train-worker-0", "train-worker-1"} <= set(made)
    assert any(name.startswith("train-launcher") for name in made)


@pytest.fixture
def a_fake_node(plane: ControlPlane, namespace: str) -> Iterator[str]:
    """Its name; nobody else's pods come there."""
    plane.api.create({**fake_node(namespace, nvidia_com_gpu="8"), "spec": {"unschedulable": True}})
    yield namespace
    plane.api.delete("v1", "Node", namespace)


@pytest.mark.needs("kwok")
def test_pods_of_a_fake_node_pretend_to_run(plane: ControlPlane, namespace: str, a_fake_node: str) -> None:
    plane.api.create(a_pod(namespace, "pod", nodeName=a_fake_node))

    def phase() -> str:
        return str((plane.api.get("v1", "Pod", "pod", namespace) or {})["status"].get("phase"))

    until("the pod to run", lambda: phase() == "Running")
    plane.api.patch(a_pod(namespace, "pod"), {"status": {"phase": "Succeeded"}}, sub="status")
    assert phase() == "Succeeded"
    plane.api.delete("v1", "Pod", "pod", namespace)
    until("the pod to be gone", lambda: plane.api.get("v1", "Pod", "pod", namespace) is None)


@pytest.mark.needs("s3")
def test_the_store_keeps_objects(plane: ControlPlane, namespace: str) -> None:
    client = s3.client(plane)
    client.create_bucket(Bucket=namespace)
    client.put_object(Bucket=namespace, Key="a/b", Body=b"kept", Metadata={"k": "v"}, IfNoneMatch="*")
    with pytest.raises(client.exceptions.ClientError, match="PreconditionFailed"):
        client.put_object(Bucket=namespace, Key="a/b", Body=b"other", IfNoneMatch="*")
    kept = client.get_object(Bucket=namespace, Key="a/b")
    assert (kept["Body"].read(), kept["Metadata"]) == (b"kept", {"k": "v"})
    client.delete_object(Bucket=namespace, Key="a/b")
    client.delete_bucket(Bucket=namespace)
    client.close()
