"""Small objects for tests of the cluster: each says only what matters there."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from tests.cluster.api import Object


def a_pytorchjob(namespace: str, name: str = "train", *, workers: int = 2, **spec: Any) -> Object:
    """One master and these workers; ``spec`` is merged into ``spec``."""
    roles = {"Master": 1, "Worker": workers}
    return {
        "apiVersion": "kubeflow.org/v1",
        "kind": "PyTorchJob",
        "metadata": {"name": name, "namespace": namespace},
        "spec": {
            "pytorchReplicaSpecs": {
                role: {
                    "replicas": replicas,
                    "restartPolicy": "OnFailure",
                    "template": {"spec": {"containers": [a_container("pytorch")]}},
                }
                for role, replicas in roles.items()
                if replicas
            },
            **spec,
        },
    }


def a_container(name: str, *command: str, cpu: str = "100m") -> Object:
    return {
        "name": name,
        "image": "example.invalid/image",
        "command": list(command) or ["sleep", "1000"],
        "resources": {"requests": {"cpu": cpu}},
    }


def a_pod(namespace: str, name: str = "pod", *, cpu: str = "100m", **spec: Any) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "namespace": namespace, "labels": {}},
        "spec": {"restartPolicy": "Never", "containers": [a_container("main", cpu=cpu)], **spec},
    }


def a_node(name: str, resources: Mapping[str, str], labels: Mapping[str, str] | None = None) -> Object:
    """A node that says it is ready, though no kubelet is behind it: its pods are bound and never start."""
    ready = {"type": "Ready", "status": "True", "reason": "Test", "message": ""}
    return {
        "apiVersion": "v1",
        "kind": "Node",
        "metadata": {"name": name, "labels": {"kubernetes.io/hostname": name, **(labels or {})}},
        "status": {"allocatable": dict(resources), "capacity": dict(resources), "conditions": [ready]},
    }


def a_configmap(namespace: str, name: str, **data: str) -> Object:
    return {
        "apiVersion": "v1",
        "kind": "ConfigMap",
        "metadata": {"name": name, "namespace": namespace},
        "data": data,
    }
