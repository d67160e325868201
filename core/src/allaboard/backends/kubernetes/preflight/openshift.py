"""The constraint restricted-v2 of OpenShift (SCC), which every service account may use: what a template would
be refused for. Values in, values out.

Sources: OpenShift, cluster-kube-apiserver-operator (its bootstrap SCCs) and apiserver-library-go
(securitycontextconstraints). The namespace says its range of users and groups in annotations; what a pod
leaves open is filled in from there.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from allaboard.backends.check import WARNING, Check
from allaboard.backends.kubernetes.client.values import at, dicts, mapping, scalars, texts
from allaboard.backends.kubernetes.discovery.capacity import Pods
from allaboard.backends.kubernetes.preflight.lookup import Json, Lookup
from allaboard.diagnosis import Evidence

USERS = "openshift.io/sa.scc.uid-range"
GROUPS = "openshift.io/sa.scc.supplemental-groups"
_RANGE = re.compile(r"(\d{1,10})([/-])(\d{1,10})")
_VOLUMES = frozenset(
    {"configMap", "csi", "downwardAPI", "emptyDir", "ephemeral", "image", "persistentVolumeClaim"}
    | {"projected", "secret"}
)
_SECCOMP = ("RuntimeDefault",)


def without_dry_run(pods: Sequence[Pods], namespace: Lookup) -> Iterator[Check]:
    """The verdict of the rules where no pod may be tried. Another constraint may be bound to the service
    account, so a violation is a warning.
    """
    annotations = texts(at(namespace.body, "metadata", "annotations"))
    wrong = [
        Evidence(f"a pod of {group.role}", "SCC restricted-v2", text)
        for group in pods
        for text in violations(group.spec, annotations)
    ]
    if wrong:
        summary = (
            "members break OpenShift's constraint restricted-v2, the only one that every account may use"
        )
        fix = "remove the named fields from the job and its pod, or bind another SCC to its service account"
        yield Check("scc", False, summary, tuple(wrong), fix, WARNING)
    else:
        summary = "members keep OpenShift's constraint restricted-v2; no pod could be tried (create pods)"
        yield Check("scc", True, summary)


def violations(spec: Json, annotations: Mapping[str, str]) -> list[str]:
    """The violations for which restricted-v2 refuses a pod of this spec. ``annotations``: those of its
    namespace.
    """
    return list(dict.fromkeys([*_of_pod(spec, annotations), *_of_containers(spec, annotations)]))


def _of_pod(spec: Json, annotations: Mapping[str, str]) -> Iterator[str]:
    context = mapping(spec.get("securityContext"))
    for field in ("hostNetwork", "hostPID", "hostIPC"):
        if spec.get(field):
            yield f"{field}: true"
    for volume in dicts(spec.get("volumes")):
        for kind in sorted({*volume} - {"name"} - _VOLUMES):
            yield f"volume {volume.get('name')}: {kind}"
    if (group := context.get("fsGroup")) is not None and not _within(group, annotations.get(GROUPS)):
        yield f"fsGroup {group} is not in the range of the namespace"
    if context.get("sysctls"):
        yield "sysctls"
    yield from _user("securityContext", context, annotations)


def _of_containers(spec: Json, annotations: Mapping[str, str]) -> Iterator[str]:
    for field in ("initContainers", "containers"):
        for container in dicts(spec.get(field)):
            where, context = f"container {container.get('name')}", mapping(container.get("securityContext"))
            if context.get("privileged"):
                yield f"{where}: privileged"
            if context.get("allowPrivilegeEscalation"):
                yield f"{where}: allowPrivilegeEscalation: true"
            added = {*scalars(at(context, "capabilities", "add"))} - {"NET_BIND_SERVICE"}
            if added:
                yield f"{where}: capabilities.add {', '.join(sorted(added))}"
            if any(port.get("hostPort") for port in dicts(container.get("ports"))):
                yield f"{where}: hostPort"
            yield from _user(where, context, annotations)


def _user(where: str, context: Json, annotations: Mapping[str, str]) -> Iterator[str]:
    user: Any = context.get("runAsUser")
    if user is not None and not _within(user, annotations.get(USERS)):
        yield f"{where}: runAsUser {user} is not in the range of the namespace"
    profile = at(context, "seccompProfile", "type")
    if profile not in (None, *_SECCOMP):
        yield f"{where}: seccompProfile {profile}"


def _within(number: Any, ranges: str | None) -> bool:
    """True if a user or group is in one of the ranges ``1000680000/10000`` (first and size) or ``1-9``.
    Without a known range it is in none.
    """
    if isinstance(number, bool) or not isinstance(number, int):
        return False
    for first, sign, last in _RANGE.findall(ranges or ""):
        end = int(first) + int(last) - 1 if sign == "/" else int(last)
        if int(first) <= number <= end:
            return True
    return False
