"""Devices, the network of nodes, pull policy, the level restricted, and what keeps others off members."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest
import yaml

from allaboard.backends.kubernetes.discovery.pod_security import violations
from allaboard.backends.kubernetes.preflight import openshift
from allaboard.checking.job import check
from allaboard.convert.manifests import Document, convert
from allaboard.errors import BadInput
from allaboard.job.pod_defaults import KEPT, MESH_ANNOTATIONS, MESH_LABELS
from allaboard.render.cluster_facts import ASSUMED
from tests.core.backends.kubernetes.golden import made
from tests.core.render.test_pod_template import container, template

Json = dict[str, Any]
CLAIM: Json = {"gpu": 2, "device_class": "gpu.nvidia.com"}
SELECTOR = "device.attributes['gpu.nvidia.com'].architecture == 'Hopper'"


# Devices.


def test_devices_are_asked_for_by_their_names() -> None:
    found = container(resources={"gpu": 1, "devices": {"rdma/hca_shared_devices_a": 1, "amd.com/gpu": 2}})
    every = {"nvidia.com/gpu": "1", "rdma/hca_shared_devices_a": "1", "amd.com/gpu": "2"}
    assert found["resources"] == {"requests": every, "limits": every}
    assert found["securityContext"] == {"capabilities": {"add": ["IPC_LOCK"]}}, "RDMA pins memory"
    assert "securityContext" not in container(resources={"devices": {"amd.com/gpu": 2}})


def test_shared_gpus_with_a_name_of_their_own_can_be_asked_for() -> None:
    spec = template(resources={"devices": {"nvidia.com/gpu.shared": 2}})["spec"]
    assert spec["containers"][0]["resources"]["limits"] == {"nvidia.com/gpu.shared": "2"}
    assert spec["tolerations"] == [{"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}]
    assert "affinity" not in spec, "they are shared"


@pytest.mark.parametrize(
    ("name", "words"),
    [
        ("nvidia.com/gpu", "write gpu"),
        ("nvidia.com/mig-1g.10gb", "write mig: 1g.10gb"),
        ("cpu", "not a device name"),
        ("kubernetes.io/x", "not a device name"),
        ("requests.nvidia.com/gpu", "a quota name"),
        ("a b/c", ""),
    ],
)
def test_what_is_no_device_of_this_field(name: str, words: str) -> None:
    [found] = check({"name": "a", "command": ["t"], "resources": {"devices": {name: 1}}})
    assert found.path == f"resources.devices.{name}" and words in found.message


@pytest.mark.parametrize("number", [0, -1, 1.5, "two", True, 1001])
def test_a_number_of_devices_is_whole(number: Any) -> None:
    job = {"name": "a", "command": ["t"], "resources": {"devices": {"rdma/hca": number}}}
    assert [p.path for p in check(job)] == ["resources.devices.rdma/hca"]


def test_devices_of_a_class_are_claimed_by_a_template() -> None:
    rendered = made(workers=3, resources={**CLAIM, "device_selector": SELECTOR}, gang={"scheduler": "none"})
    [claim] = [one for one in rendered.extras if one["kind"] == "ResourceClaimTemplate"]
    assert claim["metadata"]["labels"] == rendered.job["metadata"]["labels"], "found and removed with its run"
    assert claim["spec"]["spec"]["devices"]["requests"] == [
        {
            "name": "devices",
            "exactly": {
                "deviceClassName": "gpu.nvidia.com",
                "selectors": [{"cel": {"expression": SELECTOR}}],
                "allocationMode": "ExactCount",
                "count": 2,
            },
        }
    ]
    for one in rendered.job["spec"]["pytorchReplicaSpecs"].values():
        spec = one["template"]["spec"]
        name = claim["metadata"]["name"]
        assert spec["resourceClaims"] == [{"name": "devices", "resourceClaimTemplateName": name}]
        assert spec["containers"][0]["resources"] == {"claims": [{"name": "devices"}]}
        assert "affinity" not in spec, "a claim is of whole devices"


def test_groups_that_claim_something_else_have_a_template_of_their_own() -> None:
    groups = {"master": {"resources": {**CLAIM, "gpu": 1}}, "worker": {"replicas": 2, "resources": CLAIM}}
    rendered = made(workers=None, groups=groups, gang={"scheduler": "none"})
    counts = {
        one["metadata"]["name"].partition("-devices")[2]: request["exactly"]["count"]
        for one in rendered.extras
        for request in one["spec"]["spec"]["devices"]["requests"]
    }
    assert counts == {"": 1, "-2": 2}


def test_a_slice_is_claimed_by_its_profile() -> None:
    resources = {"mig": "1g.10gb", "device_class": "mig.nvidia.com"}
    rendered = made(workers=1, resources=resources, gang={"scheduler": "none"})
    exactly = rendered.extras[0]["spec"]["spec"]["devices"]["requests"][0]["exactly"]
    expression = "device.attributes['gpu.nvidia.com'].profile == '1g.10gb'"
    assert exactly["selectors"] == [{"cel": {"expression": expression}}] and exactly["count"] == 1


def test_a_cluster_without_claims_refuses_them() -> None:
    facts = replace(ASSUMED, kinds=frozenset({"kubeflow.org/v1/PyTorchJob"}))
    with pytest.raises(BadInput, match=r"does not serve resource\.k8s\.io"):
        made(None, facts, workers=1, resources=CLAIM, gang={"scheduler": "none"})


@pytest.mark.parametrize(
    ("resources", "at"),
    [
        ({"device_class": "a"}, "resources.device_class"),
        ({"gpu": 0, "device_class": "a"}, "resources.device_class"),
        ({"gpu": 1, "device_selector": "true"}, "resources.device_selector"),
    ],
)
def test_a_claim_says_how_many_of_what(resources: Json, at: str) -> None:
    assert [p.path for p in check({"name": "a", "command": ["t"], "resources": resources})] == [at]


# Network, images, mesh, autoscalers.


def test_members_in_the_network_of_their_nodes_find_each_other() -> None:
    spec = template(host_network=True)["spec"]
    assert (spec["hostNetwork"], spec["dnsPolicy"]) == (True, "ClusterFirstWithHostNet")
    assert "hostNetwork" not in template()["spec"]


@pytest.mark.parametrize(
    ("word", "policy"), [("always", "Always"), ("if_not_present", "IfNotPresent"), ("never", "Never")]
)
def test_when_images_are_pulled(word: str, policy: str) -> None:
    assert container(image_pull_policy=word)["imagePullPolicy"] == policy
    assert "imagePullPolicy" not in container()


def test_a_digest_pins_an_image() -> None:
    image = "registry.lab/ml/train@sha256:" + "0" * 64
    assert container(image=image)["image"] == image


def test_no_mesh_and_no_autoscaler_touches_members() -> None:
    metadata = template()["metadata"]
    assert metadata == {"labels": {**MESH_LABELS}, "annotations": {**MESH_ANNOTATIONS, **KEPT}}


@pytest.mark.parametrize(
    "fields",
    [
        {"spot": {"tolerate": True}},
        {"spot": {"prefer": True}},
        {"pod": {"spec": {"tolerations": [{"key": "karpenter.sh/capacity-type", "operator": "Exists"}]}}},
    ],
)
def test_members_that_may_be_taken_away_may_be_moved(fields: Json) -> None:
    assert template(**fields)["metadata"]["annotations"] == {**MESH_ANNOTATIONS}


def test_a_job_may_be_in_a_mesh_and_moved_all_the_same() -> None:
    labels = {"sidecar.istio.io/inject": "true", "istio.io/dataplane-mode": None}
    pod = {"metadata": {"labels": labels, "annotations": {"karpenter.sh/do-not-disrupt": None}}}
    metadata = template(pod=pod)["metadata"]
    assert metadata["labels"] == {"sidecar.istio.io/inject": "true"}
    assert "karpenter.sh/do-not-disrupt" not in metadata["annotations"]


# The level restricted.

SIDECAR = {"name": "log", "image": "lab/log:1", "securityContext": {"runAsUser": 7}}
FETCH = {"name": "fetch", "image": "lab/fetch:1"}


@pytest.mark.parametrize(
    ("fields", "level"), [({"security": "restricted"}, None), ({}, "restricted")], ids=["said", "enforced"]
)
def test_members_keep_the_level_restricted_and_openshifts_constraint(fields: Json, level: str | None) -> None:
    facts = replace(ASSUMED, pod_security=level)
    pod = {"spec": {"containers": [SIDECAR], "initContainers": [FETCH]}}
    every = {"storage": [{"mount": "/a", "pvc": "a"}], "secrets": [{"name": "b", "mount": "/b"}], "pod": pod}
    spec = template(facts=facts, **fields, **every)["spec"]
    assert violations(spec, "restricted") == []
    own = {**spec, "containers": spec["containers"][:1]}
    assert openshift.violations(own, {}) == [], "no user and no group is said"
    assert [c["securityContext"].get("runAsUser") for c in spec["containers"]] == [None, 7], (
        "what is said stays"
    )


def test_members_are_not_restricted_unasked() -> None:
    for level in (None, "privileged", "baseline"):
        spec = template(facts=replace(ASSUMED, pod_security=level))["spec"]
        assert "securityContext" not in spec and "securityContext" not in spec["containers"][0]


@pytest.mark.parametrize("level", ["baseline", "restricted"])
def test_rdma_goes_without_what_a_level_forbids(level: str) -> None:
    resources = {"devices": {"rdma/hca": 1}}
    spec = template(facts=replace(ASSUMED, pod_security=level), resources=resources)["spec"]
    assert violations(spec, level) == []
    rendered = made(
        None, replace(ASSUMED, pod_security=level), workers=1, resources=resources, gang={"scheduler": "none"}
    )
    assert any("IPC_LOCK" in note for note in rendered.notes)


def test_the_network_of_nodes_is_not_for_the_restricted() -> None:
    job = {"name": "a", "command": ["t"], "host_network": True, "security": "restricted"}
    assert [p.path for p in check(job)] == ["host_network"]


# What `pod` changes.


def test_the_page_about_pods_appends_replaces_and_deletes() -> None:
    text = Path(__file__).parents[3].joinpath("core/docs/how-to/pod.md").read_text(encoding="utf-8")
    block = text.partition("```yaml runnable\n")[2].partition("```")[0]
    found = template(role="master", **yaml.safe_load(block))
    spec, [trains] = found["spec"], found["spec"]["containers"]
    assert "karpenter.sh/do-not-disrupt" not in found["metadata"]["annotations"]
    assert [t["key"] for t in spec["tolerations"]] == ["nvidia.com/gpu", "team"]
    assert spec["affinity"] == {"podAntiAffinity": {}}, "the rule about shared GPUs is gone"
    assert spec["volumes"] == [{"name": "data", "nfs": {"server": "files", "path": "/data"}}]
    assert trains["volumeMounts"] == [{"mountPath": "/data", "name": "data"}]
    assert trains["env"] == [{"name": "LOG", "value": "warn"}]


@pytest.mark.parametrize(
    ("spec", "at"),
    [
        ({"volumes": [{"nfs": {}}]}, "pod.spec.volumes[0]"),
        ({"volumes": {"a": 1}}, "pod.spec.volumes"),
        ({"containers": [{"name": "pytorch", "$patch": "delete"}]}, "pod.spec.containers[0].$patch"),
        ({"volumes": [{"name": "a", "$patch": "remove"}]}, "pod.spec.volumes[0].$patch"),
        ({"$setElementOrder/volumes": []}, "pod.spec.$setElementOrder/volumes"),
    ],
)
def test_what_cannot_be_merged_is_told_by_its_path(spec: Json, at: str) -> None:
    assert [p.path for p in check({"name": "a", "command": ["t"], "pod": {"spec": spec}})] == [at]


# There and back.


@pytest.mark.parametrize("engine", ["pytorchjob", "jobset"])
@pytest.mark.parametrize(
    "fields",
    [
        {"resources": {"cpu": "1", "devices": {"rdma/hca": 1, "amd.com/gpu": 8}}},
        {"host_network": True, "image_pull_policy": "always"},
        {"security": "restricted", "resources": {"devices": {"rdma/hca": 1}}},
        {"resources": {"cpu": "2", **CLAIM, "device_selector": SELECTOR}},
        {"resources": {"gpu": 1, "mig": "1g.10gb", "device_class": "mig.nvidia.com"}},
    ],
    ids=["devices", "network", "restricted", "claim", "slice"],
)
def test_every_field_comes_back(engine: str, fields: Json) -> None:
    rendered = made(engine=engine, workers=2, gang={"scheduler": "none"}, **fields)
    documents = [Document(f"d{n}", "one text", one) for n, one in enumerate(rendered.manifests)]
    jobs = [outcome.documents[0] for outcome in convert(documents) if outcome.documents]
    assert len(jobs) == 1
    assert {name: jobs[0].get(name) for name in fields} == fields
    assert "pod" not in jobs[0]
