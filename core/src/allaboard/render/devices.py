"""Devices that members claim by Dynamic Resource Allocation (DRA), which goes without resources of nodes: a
ResourceClaimTemplate, of which every pod has a claim of its own. Values in, values out.

Sources: Kubernetes 1.34 and later, resource.k8s.io/v1; the attributes of NVIDIA's DRA driver.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from allaboard.errors import Problem

if TYPE_CHECKING:
    from allaboard.render.cluster_facts import ClusterFacts
    from allaboard.runs.layout import Group, Layout, Needs

API_VERSION = "resource.k8s.io/v1"
TEMPLATE = "ResourceClaimTemplate"
KIND = f"{API_VERSION}/{TEMPLATE}"
CLAIM = "devices"
"""The name of the claim within a pod, and of its one request."""


def selectors(needs: Needs) -> list[str]:
    """The CEL expressions that are true of each device that is claimed."""
    profile = f"device.attributes['gpu.nvidia.com'].profile == '{needs.mig}'" if needs.mig else None
    return [expression for expression in (profile, needs.device_selector) if expression is not None]


def template_name(layout: Layout, group: Group) -> str | None:
    """The template of which the members of a group have a claim; None: they claim nothing. Groups that claim
    the same share one.
    """
    every = _requests(layout)
    mine = _request(group.needs)
    if mine is None:
        return None
    n = every.index(mine) + 1
    return f"{layout.name}-{CLAIM}" + (f"-{n}" if n > 1 else "")


def objects(layout: Layout, namespace: str) -> Iterator[dict[str, Any]]:
    """The templates of a job."""
    named = {template_name(layout, group): _request(group.needs) for group in layout.groups}
    for name, request in named.items():
        if name is None:
            continue
        yield {
            "apiVersion": API_VERSION,
            "kind": TEMPLATE,
            "metadata": {"name": name, "namespace": namespace},
            "spec": {"spec": {"devices": {"requests": [request]}}},
        }


def of_pod(name: str | None) -> dict[str, Any]:
    """Fields of a pod's spec for its claim."""
    return {"resourceClaims": [{"name": CLAIM, "resourceClaimTemplateName": name}]} if name else {}


def problems(layout: Layout, facts: ClusterFacts) -> Iterator[Problem]:
    """Claims on a cluster that knows none."""
    if facts.serves(KIND) is False and _requests(layout):
        message = (
            f"this cluster does not serve {KIND}, which Kubernetes 1.34 and later do; take it out, and gpu "
            "counts what the device plugin offers"
        )
        yield Problem("resources.device_class", message)


def _requests(layout: Layout) -> list[Mapping[str, Any]]:
    """Requests of the groups, each once, in the order of the groups."""
    requests: list[Mapping[str, Any]] = []
    for group in layout.groups:
        request = _request(group.needs)
        if request is not None and request not in requests:
            requests.append(request)
    return requests


def _request(needs: Needs) -> dict[str, Any] | None:
    if needs.device_class is None or not needs.gpus:
        return None
    chosen = [{"cel": {"expression": expression}} for expression in selectors(needs)]
    exactly: dict[str, Any] = {"deviceClassName": needs.device_class}
    if chosen:
        exactly["selectors"] = chosen
    return {"name": CLAIM, "exactly": {**exactly, "allocationMode": "ExactCount", "count": needs.gpus}}
