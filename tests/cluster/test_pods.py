"""What members are made of, on a real API server and with the real scheduler: devices by claim, the level
restricted, and what an eviction meets. No kubelet starts anything here.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from typing import Any

import pytest

from allaboard.backends.kubernetes.client.loader import Access
from allaboard.backends.kubernetes.client.protocol import Patience
from allaboard.backends.kubernetes.discovery import capacity
from allaboard.backends.kubernetes.discovery.installed import complete_facts
from allaboard.backends.kubernetes.observe.objects import pod_seen
from allaboard.backends.kubernetes.observe.obstacles import obstacle_of
from allaboard.backends.kubernetes.observe.scene import Scene
from allaboard.backends.kubernetes.preflight import budgets
from allaboard.engines import ENGINES
from allaboard.render import devices
from allaboard.render.cluster_facts import ASSUMED
from allaboard.render.pod_template import sample_pod
from allaboard.runs.observation import Obstacle
from tests.cluster.api import ApiError, Object, until
from tests.cluster.jobs import a_node
from tests.cluster.plane import ControlPlane
from tests.core.backends.kubernetes.golden import KINDS, made

DRIVER = "gpu.example.com"


def members(namespace: str, engine: str = "jobset", **fields: Any) -> tuple[list[Object], dict[str, Object]]:
    """The objects beside the job, and a pod of each role as its operator makes it."""
    facts = replace(ASSUMED, namespace=namespace, pod_security=fields.pop("pod_security", None))
    own = {"framework": KINDS[engine]["framework"], "engine": engine, "gang": {"scheduler": "none"}}
    rendered = made(None, facts, **{"command": ["python", "t.py"], "workers": 2, **own, **fields})
    *extras, job = rendered.manifests
    templates = ENGINES[engine].templates(job, extras)
    return extras, {role: sample_pod(job, template, role) for role, _, template in templates}


@pytest.fixture
def node(plane: ControlPlane, namespace: str) -> Iterator[Object]:
    """What of `pod` sends members to a node for this test alone, which starts nothing."""
    one = a_node(namespace, {"cpu": "8", "memory": "16Gi", "pods": "20"}, {"test": namespace})
    plane.api.create(one)
    plane.api.patch(one, {"status": one["status"]}, sub="status")
    plane.api.patch(one, {"spec": {"taints": None}})
    yield {"nodeSelector": {"test": namespace}, "tolerations": [{"operator": "Exists"}]}
    plane.api.delete("v1", "Node", namespace)


def device_class(plane: ControlPlane, name: str) -> Object:
    selector = {"cel": {"expression": f"device.driver == '{DRIVER}'"}}
    head: Object = {"apiVersion": "resource.k8s.io/v1", "kind": "DeviceClass", "metadata": {"name": name}}
    return plane.api.create({**head, "spec": {"selectors": [selector]}})


def obstacle(plane: ControlPlane, pod: Object) -> Obstacle | None:
    now = plane.api.get("v1", "Pod", pod["metadata"]["name"], pod["metadata"]["namespace"])
    assert now is not None
    seen = pod_seen(now, "node", "worker-0")
    return obstacle_of(Scene({"kind": "JobSet"}, "node", {"worker-0": seen}, 0.0, 1, 1))


def test_devices_are_claimed_and_what_is_missing_is_said(
    plane: ControlPlane, namespace: str, node: Object
) -> None:
    name = f"{namespace}.example.com"
    claims = {"gpu": 2, "device_class": name, "device_selector": "true"}
    extras, pods = members(namespace, resources={"cpu": 1, **claims}, pod={"spec": node}, workers=1)
    [template] = [one for one in extras if one["kind"] == "ResourceClaimTemplate"]
    plane.api.create(template)
    [pod] = pods.values()
    plane.api.create(pod)
    seen = until("the scheduler to miss the class", lambda: obstacle(plane, pod))
    assert (seen.code, seen.never) == ("gpu_not_advertised", True)
    assert seen.text == f"worker-0 cannot start: device class {name} does not exist"
    plane.api.delete("v1", "Pod", pod["metadata"]["name"], namespace)

    of_class = device_class(plane, name)
    try:
        pod = {**pod, "metadata": {**pod["metadata"], "name": "again"}}
        plane.api.create(pod)
        seen = until("the scheduler to miss devices", lambda: obstacle(plane, pod))
        assert (seen.code, seen.never) == ("insufficient_gpu", False)
        assert seen.text.startswith("worker-0 waits for devices")

        offered = {"driver": DRIVER, "nodeName": namespace, "pool": _pool(namespace)}
        devices = [{"name": f"gpu-{n}"} for n in range(2)]
        head: Object = {"apiVersion": "resource.k8s.io/v1", "kind": "ResourceSlice"}
        piece = {**head, "metadata": {"name": namespace}, "spec": {**offered, "devices": devices}}
        plane.api.create(piece)
        until("a place", lambda: _node_of(plane, pod), timeout=60)
        plane.api.delete("v1", "Pod", "again", namespace, grace=0)
    finally:
        plane.api.delete("resource.k8s.io/v1", "ResourceSlice", namespace)
        plane.api.delete("resource.k8s.io/v1", "DeviceClass", of_class["metadata"]["name"])


def _pool(name: str) -> Object:
    return {"name": name, "generation": 1, "resourceSliceCount": 1}


def _node_of(plane: ControlPlane, pod: Object) -> str | None:
    found = plane.api.get("v1", "Pod", pod["metadata"]["name"], pod["metadata"]["namespace"])
    return ((found or {}).get("spec") or {}).get("nodeName")


@pytest.mark.parametrize("engine", ENGINES)
def test_a_namespace_that_enforces_restricted_takes_the_members_of_every_engine(
    plane: ControlPlane, namespace: str, engine: str
) -> None:
    """As far as allaboard writes them: what operators add themselves is told by preflight."""
    space = plane.api.get("v1", "Namespace", namespace)
    assert space is not None
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.api.patch(space, {"metadata": {"labels": label}})
    fields: Object = {
        "groups": {role: 1 for role in KINDS[engine].get("groups", ())} or None,
        "workers": None if KINDS[engine].get("groups") else 2,
        "resources": {"cpu": 1, "memory": "1Gi", "gpu": 1},
        "code": None,
        "pod": {"spec": {"initContainers": [{"name": "fetch", "image": "lab/fetch:1"}]}},
    }
    said = {name: value for name, value in fields.items() if value is not None or name == "workers"}
    for ways in ({"security": "restricted"}, {"pod_security": "restricted"}):
        for role, pod in members(namespace, engine, **said, **ways)[1].items():
            assert plane.api.dry_run(pod), role
    for pod in members(namespace, engine, **said)[1].values():
        with pytest.raises(ApiError, match="violates PodSecurity"):
            plane.api.dry_run(pod)


def test_whoever_has_our_roles_knows_the_level_of_the_namespace(plane: ControlPlane, namespace: str) -> None:
    space = plane.api.get("v1", "Namespace", namespace)
    assert space is not None
    label = {"pod-security.kubernetes.io/enforce": "restricted"}
    plane.api.patch(space, {"metadata": {"labels": label}})
    account = plane.kubeconfig_for_role(namespace, "submitter")
    with Access(str(account), None, namespace, environ={}).api(Patience(budget=5.0)) as api:
        facts = complete_facts(api, replace(ASSUMED, namespace=namespace))
    assert facts.pod_security == "restricted"
    assert facts.serves(devices.KIND)


def test_an_eviction_meets_the_budgets_that_preflight_tells_of(
    plane: ControlPlane, namespace: str, node: Object
) -> None:
    _, pods = members(namespace, resources={"cpu": 1}, pod={"spec": node}, workers=1)
    [pod] = pods.values()
    plane.api.create(pod)
    until("a place", lambda: _node_of(plane, pod))
    ready = [{"type": "Ready", "status": "True"}]
    plane.api.patch(pod, {"status": {"phase": "Running", "conditions": ready}}, sub="status")
    group = capacity.Pods("worker", 1, pod["spec"], pod["metadata"]["labels"])

    make_budget(plane, namespace, "keep", minAvailable=1)
    until("the budget to count", lambda: counted(plane, namespace, "keep"))
    with pytest.raises(ApiError) as refused:
        evict(plane, pod)
    assert refused.value.status == 429
    [check] = budgets.judge([group], plane.api.list("policy/v1", "PodDisruptionBudget", namespace))
    assert check.ok and "keep selects the members" in check.summary

    make_budget(plane, namespace, "more", minAvailable=0)
    until("the budget to count", lambda: counted(plane, namespace, "more"))
    with pytest.raises(ApiError) as refused:
        evict(plane, pod)
    assert refused.value.status == 500 and "more than one PodDisruptionBudget" in str(refused.value)
    [check] = budgets.judge([group], plane.api.list("policy/v1", "PodDisruptionBudget", namespace))
    assert check.ok is False and "evicts none" in check.summary

    plane.api.delete("policy/v1", "PodDisruptionBudget", "more", namespace)
    plane.api.delete("policy/v1", "PodDisruptionBudget", "keep", namespace)
    until("the eviction", lambda: _evicted(plane, pod))
    [check] = budgets.judge([group], plane.api.list("policy/v1", "PodDisruptionBudget", namespace))
    assert check.ok and "lets them go at once" in check.summary


def make_budget(plane: ControlPlane, namespace: str, name: str, **spec: Any) -> None:
    selector = {"matchLabels": {"app.kubernetes.io/managed-by": "allaboard"}}
    head: Object = {"apiVersion": "policy/v1", "kind": "PodDisruptionBudget"}
    meta = {"name": name, "namespace": namespace}
    plane.api.create({**head, "metadata": meta, "spec": {"selector": selector, **spec}})


def counted(plane: ControlPlane, namespace: str, name: str) -> bool:
    found = plane.api.get("policy/v1", "PodDisruptionBudget", name, namespace) or {}
    return bool((found.get("status") or {}).get("expectedPods"))


def evict(plane: ControlPlane, pod: Object) -> None:
    name, namespace = pod["metadata"]["name"], pod["metadata"]["namespace"]
    body: Object = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
    plane.api.request("POST", f"/api/v1/namespaces/{namespace}/pods/{name}/eviction", body)


def _evicted(plane: ControlPlane, pod: Object) -> bool:
    try:
        evict(plane, pod)
    except ApiError as error:
        return error.status == 404
    found = plane.api.get("v1", "Pod", pod["metadata"]["name"], pod["metadata"]["namespace"])
    return found is None or "deletionTimestamp" in found["metadata"]
