"""The little of kustomize that published manifests need: patches, a namespace, a prefix. Pure."""

from __future__ import annotations

import copy
from collections.abc import Iterable, Mapping
from typing import Any

from tests.cluster.api import Object

NAMESPACED = frozenset({"ServiceAccount", "Role", "RoleBinding", "Service", "Secret", "ConfigMap"})
"""Of the kinds in those manifests."""
UNNAMED = frozenset({"CustomResourceDefinition", "Namespace"})
"""Kinds whose names take no prefix."""


def placed(objects: Iterable[Object], namespace: str, prefix: str = "") -> list[Object]:
    """The objects in this namespace, their names and what they refer to with this prefix."""
    return [_placed(copy.deepcopy(obj), namespace, prefix) for obj in objects]


def _placed(obj: Object, namespace: str, prefix: str) -> Object:
    if obj["kind"] in UNNAMED:
        return obj
    obj["metadata"]["name"] = prefix + obj["metadata"]["name"]
    if obj["kind"] in NAMESPACED:
        obj["metadata"]["namespace"] = namespace
    if "roleRef" in obj:
        obj["roleRef"]["name"] = prefix + obj["roleRef"]["name"]
    for subject in obj.get("subjects", []):
        if subject["kind"] == "ServiceAccount":
            subject["name"] = prefix + subject["name"]
            subject["namespace"] = namespace
    return obj


def patched(obj: Object, operations: Iterable[Mapping[str, Any]]) -> Object:
    """The object after these operations of a JSON patch, of which only ``add`` and ``replace`` occur."""
    done: Object = copy.deepcopy(obj)
    for operation in operations:
        *way, last = operation["path"].removeprefix("/").split("/")
        target: Any = done
        for step in way:
            target = target[int(step) if isinstance(target, list) else step]
        target[int(last) if isinstance(target, list) else last] = operation["value"]
    return done


def namespace(name: str) -> Object:
    return {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": name}}


def only(objects: Iterable[Object], *kinds: str) -> list[Object]:
    """Those of these kinds."""
    return [obj for obj in objects if obj.get("kind") in kinds]
