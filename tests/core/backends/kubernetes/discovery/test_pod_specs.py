"""Pod specs, and queues of Kueue, as values; written by hand, by operators, or by somebody who means harm."""

from __future__ import annotations

from decimal import Decimal
from typing import Any

import pytest

from allaboard.backends.kubernetes.discovery import capacity
from allaboard.backends.kubernetes.discovery.capacity import Pods, misfit
from allaboard.backends.kubernetes.discovery.installed import Node
from allaboard.backends.kubernetes.discovery.kueue_objects import (
    ClusterQueue,
    LocalQueue,
    cluster_queue,
    flavor,
    local_queue,
)
from allaboard.backends.kubernetes.discovery.pod_specs import (
    PodSpec,
    Rule,
    Term,
    Toleration,
    plain_variables,
    pod_spec,
)

SPEC = {
    "serviceAccountName": "trainer",
    "priorityClassName": "urgent",
    "nodeSelector": {"zone": "a"},
    "tolerations": [{"key": "gpu", "operator": "Exists"}],
    "imagePullSecrets": [{"name": "registry"}],
    "resourceClaims": [{"name": "gpus", "resourceClaimTemplateName": "net-gpus"}],
    "affinity": {
        "nodeAffinity": {
            "requiredDuringSchedulingIgnoredDuringExecution": {
                "nodeSelectorTerms": [
                    {"matchExpressions": [{"key": "rack", "operator": "In", "values": ["1"]}]}
                ]
            }
        }
    },
    "volumes": [
        {"name": "data", "persistentVolumeClaim": {"claimName": "images"}},
        {"name": "out", "persistentVolumeClaim": {"claimName": "runs"}},
        {"name": "hot", "ephemeral": {"volumeClaimTemplate": {"spec": {"storageClassName": "fast"}}}},
        {"name": "key", "secret": {"secretName": "ssh"}},
        {
            "name": "all",
            "projected": {"sources": [{"configMap": {"name": "code"}}, {"secret": {"name": "ca"}}]},
        },
        {"name": "odd", "configMap": {"name": "extras", "optional": True}},
    ],
    "initContainers": [{"name": "wait", "envFrom": [{"configMapRef": {"name": "hosts"}}]}],
    "containers": [
        {
            "name": "pytorch",
            "resources": {"requests": {"cpu": "500m"}, "limits": {"nvidia.com/gpu": "8"}},
            "volumeMounts": [{"name": "data", "readOnly": True}, {"name": "out"}],
            "env": [
                {"name": "EPOCHS", "value": "3"},
                {"name": "TOKEN", "valueFrom": {"secretKeyRef": {"name": "aws", "key": "id"}}},
                {
                    "name": "MAYBE",
                    "valueFrom": {"secretKeyRef": {"name": "no", "key": "id", "optional": True}},
                },
            ],
        }
    ],
}


def test_a_pod_spec_is_read_once_into_a_value() -> None:
    pod = pod_spec(SPEC)
    gpus = {"cpu": Decimal("0.5"), "nvidia.com/gpu": Decimal(8)}
    assert (pod.requests, pod.limits) == (gpus, {"nvidia.com/gpu": Decimal(8)})
    assert [container.name for container in pod.containers] == ["pytorch"]
    assert (pod.node_selector, pod.has_affinity) == ({"zone": "a"}, True)
    assert pod.tolerations == (Toleration("gpu", "Exists"),)
    assert pod.terms == (Term((Rule("rack", "In", ("1",)),)),)
    assert pod.claims == (("images", False), ("runs", True))
    assert [name for name, _ in pod.ephemeral] == ["hot"]
    assert pod.secrets == {"registry", "ssh", "ca", "aws"} and pod.config_maps == {"code", "hosts"}
    assert (pod.account, pod.priority_class, pod.claim_template) == ("trainer", "urgent", "net-gpus")
    assert plain_variables(SPEC) == {"EPOCHS": "3"}


def test_equal_pods_share_what_was_read() -> None:
    group = Pods("worker", 3, SPEC, {})
    assert group.pod == pod_spec(SPEC) and group.pod is group.pod
    assert capacity.claims([group, group]) == {"images": (6, False), "runs": (6, True)}
    assert capacity.secrets([group], own=["ssh"]) == {"registry", "ca", "aws"}


ODD: tuple[Any, ...] = (None, 5, "text", [], [3, None, "x"], {"a": {}}, True)


@pytest.mark.parametrize("odd", ODD, ids=repr)
@pytest.mark.parametrize(
    "field",
    [
        "volumes",
        "tolerations",
        "nodeSelector",
        "affinity",
        "imagePullSecrets",
        "resourceClaims",
        "serviceAccountName",
    ],
)
def test_a_field_of_the_wrong_kind_is_left_out(field: str, odd: Any) -> None:
    pod = pod_spec({**SPEC, field: odd})
    assert pod.containers and pod.requests["cpu"] == Decimal("0.5")
    assert misfit(pod, Node("n", {}, ready=False)) == "is not ready"


def test_a_number_of_a_rule_that_is_none_matches_no_node() -> None:
    node = Node("n", {}, labels={"size": "4"})
    for values in (["three"], [], ["--3"]):
        pod = PodSpec(terms=(Term((Rule("size", "Gt", tuple(values)),)),))
        assert misfit(pod, node) == "does not match the required affinity"


@pytest.mark.parametrize("odd", ODD, ids=repr)
def test_a_queue_of_the_wrong_kind_reads_as_an_empty_one(odd: Any) -> None:
    for body in ({"spec": odd, "status": odd}, {"spec": {"resourceGroups": odd, "admissionChecks": odd}}):
        queue = cluster_queue(body)
        assert queue.cohort == "" and queue.quotas == queue.reserved == {}
    assert local_queue({"metadata": {"name": "team"}, "spec": odd, "status": odd}) == LocalQueue("team")
    assert flavor({"spec": odd}).labels == {}


def test_an_amount_that_is_no_quantity_is_no_quota() -> None:
    resources = [{"name": "cpu", "nominalQuota": "many"}, {"name": "memory", "nominalQuota": "1Gi"}]
    groups = [{"coveredResources": ["cpu", "memory"], "flavors": [{"name": "all", "resources": resources}]}]
    queue = cluster_queue({"spec": {"resourceGroups": groups, "cohort": "lab"}})
    assert queue == ClusterQueue("lab", queue.groups, {("all", "memory"): Decimal(1024**3)})
