"""Claims of devices (DRA): ``pod`` names a ResourceClaimTemplate, which stands beside the job, and a job says
the class and how many. Values in, values out.

A template becomes fields where it asks for one number of devices of one class and every member has one claim
of it, as allaboard writes it (`allaboard.render.devices`). Any other stays an object of its own, which
``pod`` names.
"""

from __future__ import annotations

import copy
from collections.abc import Collection, Mapping, Sequence
from dataclasses import replace
from typing import Any

from allaboard.engines.reading.values import Conversion, plain
from allaboard.job import gpus
from allaboard.job.training_job import FIELDS

Json = Mapping[str, Any]
_LARGEST = 1000
_PROFILE = ("device.attributes['gpu.nvidia.com'].profile == '", "'")


def with_claims(made: Conversion, others: Sequence[Json], names: Collection[str]) -> Conversion:
    """The job with what the templates beside it say. ``names``: of the container that trains."""
    templates = {
        str((obj.get("metadata") or {}).get("name")): obj
        for obj in others
        if obj.get("kind") == "ResourceClaimTemplate" and isinstance(obj.get("metadata"), Mapping)
    }
    if not templates:
        return made
    job = copy.deepcopy(dict(made.job))
    groups = [group for group in (job.get("groups") or {}).values() if isinstance(group, dict)]
    for holder in (job, *groups):
        _claim(holder, job.get("resources") or {}, templates, names)
    return replace(made, job={name: job[name] for name in FIELDS if name in job})


def _claim(
    holder: dict[str, Any], shared: Json, templates: Mapping[str, Json], names: Collection[str]
) -> None:
    """Moves the one claim of a job's, or a group's, `pod` into its `resources`."""
    pod = holder.get("pod")
    spec = pod.get("spec") if isinstance(pod, dict) else None
    claims = spec.get("resourceClaims") if isinstance(spec, dict) else None
    if not isinstance(pod, dict) or not isinstance(spec, dict):
        return
    if not isinstance(claims, list) or len(claims) != 1:
        return
    claim = claims[0] if isinstance(claims[0], Mapping) else {}
    requested = _fields(templates.get(str(claim.get("resourceClaimTemplateName")), {}))
    containers = spec.get("containers")
    if not isinstance(containers, list):
        return
    trains = [c for c in containers if c.get("name") in names]
    if requested is None or len(trains) != 1 or {*claim} != {"name", "resourceClaimTemplateName"}:
        return
    resources = trains[0].get("resources")
    if not isinstance(resources, dict) or resources.get("claims") != [{"name": claim["name"]}]:
        return
    own = holder.get("resources") or {}
    if {"gpu", "mig", "device_class"} & {*own, *shared}:
        return  # it has GPUs of the device plugin, too
    holder["resources"] = {**shared, **own, **requested}
    del resources["claims"]
    del spec["resourceClaims"]
    if not resources:
        del trains[0]["resources"]
    if {*trains[0]} == {"name"}:
        containers.remove(trains[0])
    if not containers:
        del spec["containers"]
    tolerations = [t for t in spec.get("tolerations") or () if plain(t) != _TOLERATION]
    if "tolerations" in spec:
        spec["tolerations"] = tolerations
        if not tolerations:
            del spec["tolerations"]
    if not spec:
        pod.pop("spec")
    if not pod:
        del holder["pod"]


_TOLERATION = {"key": "nvidia.com/gpu", "operator": "Exists", "effect": "NoSchedule"}


def _fields(template: Json) -> dict[str, Any] | None:
    """Fields of `resources` for a claim template; None: the template says more than these."""
    request = _only(_at(template, "spec", "spec"), "devices", "requests")
    if not isinstance(request, list) or len(request) != 1 or not isinstance(request[0], Mapping):
        return None
    exactly = request[0].get("exactly")
    if {*request[0]} != {"name", "exactly"} or not isinstance(exactly, Mapping):
        return None
    count, of_class = exactly.get("count", 1), exactly.get("deviceClassName")
    known = {*exactly} <= {"deviceClassName", "selectors", "allocationMode", "count"}
    exact = exactly.get("allocationMode", "ExactCount") == "ExactCount"
    if not known or not exact or not isinstance(of_class, str) or type(count) is bool:
        return None
    if not isinstance(count, int) or not 0 < count <= _LARGEST:
        return None
    selectors = [_only(item, "cel", "expression") for item in exactly.get("selectors") or ()]
    fields: dict[str, Any] = {"gpu": count}
    if selectors and (profile := _profile(selectors[0])) is not None:
        fields["mig"] = profile
        selectors.pop(0)
    if len(selectors) > 1 or not all(isinstance(text, str) and text.strip() for text in selectors):
        return None
    chosen = {"device_selector": selectors[0]} if selectors else {}
    return {**fields, "device_class": of_class, **chosen}


def _profile(expression: Any) -> str | None:
    start, end = _PROFILE
    if not isinstance(expression, str) or not expression.startswith(start) or not expression.endswith(end):
        return None
    profile = expression[len(start) : -len(end)]
    return profile if gpus.cards_with(profile) else None


def _at(value: Any, *path: str) -> Any:
    for name in path:
        value = value.get(name) if isinstance(value, Mapping) else None
    return value


def _only(value: Any, *path: str) -> Any:
    """Value at this path of a mapping that holds nothing else."""
    for name in path:
        if not isinstance(value, Mapping) or {*value} != {name}:
            return None
        value = value[name]
    return value
