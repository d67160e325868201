"""Nodes of a test's own, which the pods of its namespaces get without a word in their jobs.

Other tests' pods stay away by a taint. That a pod of the namespace goes there is a MutatingAdmissionPolicy,
as an administrator would write one who gives a team its machines.
"""

from __future__ import annotations

import secrets
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from typing import Any

from tests.cluster.api import ApiError, Object, until
from tests.cluster.jobs import a_pod
from tests.cluster.kubelet.handle import NodeSpec, ProcessKubelet, nodes_on
from tests.cluster.plane import ControlPlane

OWN = "allaboard.test/nodes"
POLICY = "admissionregistration.k8s.io/v1"


@dataclass(frozen=True)
class OwnNodes:
    plane: ControlPlane
    mark: str
    kubelet: ProcessKubelet
    names: tuple[str, ...]

    def serve(self, namespace: str) -> None:
        """From now on the pods of this namespace come here, and no others."""
        label = {"metadata": {"labels": {OWN: self.mark}}}
        self.plane.api.patch(
            {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": namespace}}, label
        )
        until(f"the pods of {namespace} to be sent to {self.mark}", lambda: self._is_sent(namespace))

    def _is_sent(self, namespace: str) -> bool:
        pod = a_pod(namespace, "probe")
        path = self.plane.api.path(pod).rpartition("/")[0]
        try:
            made = self.plane.api.request("POST", path, pod, query={"dryRun": "All"})
        except ApiError as error:
            if error.status == 403:  # the policy is not known to the server yet, or half known
                return False
            raise
        return bool((made["spec"].get("nodeSelector") or {}).get(OWN) == self.mark)


@contextmanager
def own_nodes(
    plane: ControlPlane, *resources: Mapping[str, str], prefix: str = "own", **options: Any
) -> Iterator[OwnNodes]:
    """One node for each of these. ``options``: of ProcessKubelet."""
    mark = f"{prefix}-{secrets.token_hex(3)}"
    taint = f"{OWN}={mark}:NoSchedule"
    specs = [NodeSpec(f"{mark}-{n}", each, {OWN: mark}, (taint,)) for n, each in enumerate(resources)]
    policy = _policy(mark)
    for thing in policy:
        plane.api.create(thing)
    try:
        with nodes_on(plane, specs, **options) as kubelet:
            yield OwnNodes(plane, mark, kubelet, tuple(spec.name for spec in specs))
    finally:
        for thing in reversed(policy):
            plane.api.delete(POLICY, thing["kind"], mark)


def _policy(mark: str) -> list[Object]:
    tolerated = f'{{"key": "{OWN}", "operator": "Equal", "value": "{mark}", "effect": "NoSchedule"}}'
    return [
        {
            "apiVersion": POLICY,
            "kind": "MutatingAdmissionPolicy",
            "metadata": {"name": mark},
            "spec": {
                "failurePolicy": "Fail",
                "reinvocationPolicy": "Never",
                "matchConstraints": {
                    "namespaceSelector": {"matchLabels": {OWN: mark}},
                    "resourceRules": [
                        {
                            "apiGroups": [""],
                            "apiVersions": ["v1"],
                            "operations": ["CREATE"],
                            "resources": ["pods"],
                        }
                    ],
                },
                "mutations": [
                    _patch("nodeSelector", "{}", f'"/{OWN.replace("/", "~1")}"', f'"{mark}"'),
                    _patch("tolerations", "[]", '"/-"', tolerated),
                ],
            },
        },
        {
            "apiVersion": POLICY,
            "kind": "MutatingAdmissionPolicyBinding",
            "metadata": {"name": mark},
            "spec": {"policyName": mark},
        },
    ]


def _patch(field: str, empty: str, place: str, value: str) -> Object:
    """Adds this to a list or map of a pod's spec, which may not be there."""
    made = f'JSONPatch{{op: "add", path: "/spec/{field}", value: {empty}}}'
    added = f'JSONPatch{{op: "add", path: "/spec/{field}" + {place}, value: {value}}}'
    expression = f"(has(object.spec.{field}) ? [] : [{made}]) + [{added}]"
    return {"patchType": "JSONPatch", "jsonPatch": {"expression": expression}}
