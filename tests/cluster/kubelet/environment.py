"""A container's environment, command and arguments from its spec: values in, values out.

Order and precedence are the kubelet's: the image's own, then the service variables, ``envFrom``, ``env``; a
later one wins; ``$(NAME)`` sees what stands before it, ``$$`` is a dollar sign.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from fractions import Fraction
from typing import Any

from tests.cluster.kubelet.quantity import divided, quantity

Object = dict[str, Any]

REFERENCE = re.compile(r"\$(\$|\(([^)]*)\))")
SUBSCRIPT = re.compile(r"^metadata\.(labels|annotations)\['(.+)'\]$")


class ConfigError(Exception):
    """CreateContainerConfigError: the container cannot be made until somebody makes what it refers to."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What the downward API can tell of a pod beyond its manifest."""

    node: str
    pod_ip: str
    host_ip: str
    allocatable: Mapping[str, str]


@dataclass(frozen=True, slots=True)
class Sources:
    """The ConfigMaps and Secrets that a container names; None stands for one that does not exist."""

    config_maps: Mapping[str, Object | None] = field(default_factory=dict)
    secrets: Mapping[str, Mapping[str, str] | None] = field(default_factory=dict)
    """Decoded."""


def referred(container: Object) -> tuple[set[str], set[str]]:
    """Names of the ConfigMaps and of the Secrets that its environment needs."""
    maps, secrets = set(), set()
    for entry in container.get("envFrom") or []:
        maps |= {entry["configMapRef"]["name"]} if "configMapRef" in entry else set()
        secrets |= {entry["secretRef"]["name"]} if "secretRef" in entry else set()
    for entry in container.get("env") or []:
        value_from = entry.get("valueFrom") or {}
        maps |= {value_from["configMapKeyRef"]["name"]} if "configMapKeyRef" in value_from else set()
        secrets |= {value_from["secretKeyRef"]["name"]} if "secretKeyRef" in value_from else set()
    return maps, secrets


def environment(
    pod: Object,
    container: Object,
    image: Mapping[str, str],
    base: Mapping[str, str],
    sources: Sources,
    facts: Facts,
) -> dict[str, str]:
    """Every variable. ``base``: service variables. Raises ConfigError."""
    namespace = pod["metadata"]["namespace"]
    found = {**base}
    for entry in container.get("envFrom") or []:
        prefix = entry.get("prefix", "")
        for name, value in _all_of(entry, sources).items():
            found[prefix + name] = value
    own: dict[str, str] = {}
    for entry in container.get("env") or []:
        if "valueFrom" in entry:
            given = _one_of(pod, container, entry["valueFrom"], sources, facts, namespace)
        else:
            given = expanded(entry.get("value", ""), {**found, **own})
        if given is not None:
            own[entry["name"]] = given
    return {**image, **found, **own}


def expanded(text: str, variables: Mapping[str, str]) -> str:
    """``$(NAME)`` replaced where NAME is known and left as it is where not."""

    def one(match: re.Match[str]) -> str:
        if match[1] == "$":
            return "$"
        return variables.get(match[2], match[0])

    return REFERENCE.sub(one, text)


def command_line(
    container: Object, entrypoint: Sequence[str], default: Sequence[str], env: Mapping[str, str]
) -> list[str]:
    """``command`` replaces the image's entrypoint and its default arguments, ``args`` the latter alone."""
    command = [expanded(word, env) for word in container.get("command") or []]
    arguments = [expanded(word, env) for word in container.get("args") or []]
    if command:
        return command + arguments
    return [*entrypoint, *(arguments or default)]


def _all_of(entry: Object, sources: Sources) -> Mapping[str, str]:
    """Of one ``envFrom``."""
    if "configMapRef" in entry:
        ref, word = entry["configMapRef"], "configmap"
        config_map = sources.config_maps.get(ref["name"])
        found: Mapping[str, str] | None = None if config_map is None else config_map.get("data") or {}
    else:
        ref, word = entry["secretRef"], "secret"
        found = sources.secrets.get(ref["name"])
    if found is None and not ref.get("optional"):
        raise ConfigError(f'{word} "{ref["name"]}" not found')
    return found or {}


def _one_of(
    pod: Object, container: Object, ref: Object, sources: Sources, facts: Facts, namespace: str
) -> str | None:
    if "fieldRef" in ref:
        return pod_field(pod, ref["fieldRef"]["fieldPath"], facts)
    if "resourceFieldRef" in ref:
        return resource_field(pod, ref["resourceFieldRef"], facts, container)
    if "configMapKeyRef" in ref:
        key, word, kind = ref["configMapKeyRef"], "configmap", "ConfigMap"
        found = sources.config_maps.get(key["name"])
        data: Mapping[str, str] | None = None if found is None else found.get("data") or {}
    elif "secretKeyRef" in ref:
        key, word, kind = ref["secretKeyRef"], "secret", "Secret"
        data = sources.secrets.get(key["name"])
    else:
        raise ConfigError(f"this kubelet does not know env valueFrom {sorted(ref)}")
    if data is None and not key.get("optional"):
        raise ConfigError(f'{word} "{key["name"]}" not found')
    if data is None or key["key"] not in data:
        if key.get("optional"):
            return None
        raise ConfigError(f"couldn't find key {key['key']} in {kind} {namespace}/{key['name']}")
    return data[key["key"]]


def pod_field(pod: Object, path: str, facts: Facts) -> str:
    """A field of the downward API; labels and annotations as a whole in the form of a downward volume."""
    meta, spec = pod["metadata"], pod["spec"]
    if match := SUBSCRIPT.match(path):
        return str((meta.get(match[1]) or {}).get(match[2], ""))
    if path in ("metadata.labels", "metadata.annotations"):
        found = meta.get(path.partition(".")[2]) or {}
        return "\n".join(f"{name}={_quoted(value)}" for name, value in sorted(found.items()))
    known = {
        "metadata.name": meta["name"],
        "metadata.namespace": meta["namespace"],
        "metadata.uid": meta["uid"],
        "spec.nodeName": facts.node,
        "spec.serviceAccountName": spec.get("serviceAccountName", ""),
        "status.podIP": facts.pod_ip,
        "status.podIPs": facts.pod_ip,
        "status.hostIP": facts.host_ip,
        "status.hostIPs": facts.host_ip,
    }
    if path not in known:
        raise ConfigError(f"unsupported fieldPath: {path}")
    return str(known[path])


def resource_field(pod: Object, ref: Object, facts: Facts, container: Object | None = None) -> str:
    """``limits.memory`` and its kin; a limit that is not set is what the node has."""
    named = ref.get("containerName")
    if named:
        every = [*pod["spec"].get("initContainers", []), *pod["spec"]["containers"]]
        container = next((c for c in every if c["name"] == named), None)
    if container is None:
        raise ConfigError(f"unable to find container named {named}")
    where, _, resource = ref["resource"].partition(".")
    given = ((container.get("resources") or {}).get(where) or {}).get(resource)
    if given is None and where == "limits":
        given = facts.allocatable.get(resource)
    value = quantity(given) if given is not None else Fraction(0)
    return str(divided(value, str(ref.get("divisor") or "1")))


def _quoted(value: str) -> str:
    return '"' + value.replace("\\", "\\\\").replace('"', '\\"').replace("\n", "\\n") + '"'
