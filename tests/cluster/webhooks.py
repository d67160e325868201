"""Webhooks of operators that run beside the API server, not in a pod.

The API server asks a Service; ours has the type ExternalName and leads to this machine, so that neither a
cluster network nor an entry in /etc/hosts is needed. The operators manage their certificate themselves
(cert-controller): they make it in a Secret, wait until the kubelet has put it into a folder, and write its
authority into the webhook configurations. A Secret that holds a good certificate from the start, the same
files in the folder, spare them the wait of a minute.
"""

from __future__ import annotations

import base64
import copy
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

from tests.cluster import pki
from tests.cluster.api import Object
from tests.cluster.plane import ControlPlane

MOUNT = Path("/tmp/k8s-webhook-server/serving-certs")
"""Where cert-controller looks whether the certificate is mounted, fixed at compile time. Nobody reads it
there: the server does so below TMPDIR, which is ours. An empty file will do, and planes can share it."""


@dataclass(frozen=True, slots=True)
class Webhook:
    """The names that an operator gives to its webhook. Its port: ``plane.port(component, "webhook")``."""

    component: str
    namespace: str
    service: str
    secret: str
    authority: str
    """The common name of the authority that cert-controller expects."""

    def folder(self, plane: ControlPlane) -> Path:
        """Where the certificate lies: what MOUNT is below TMPDIR."""
        return plane.folder(self.component) / "tmp" / MOUNT.relative_to("/tmp")

    def prepare(self, plane: ControlPlane) -> None:
        """The certificate, in the folder that the operator's server reads."""
        served = self.folder(plane)
        if not (served / "tls.key").exists():
            authority = pki.authority(self.authority, rsa_key=True)
            host = f"{self.service}.{self.namespace}.svc"
            authority.write(plane.pki, self.authority)
            pki.sign(authority, host, hosts=[host], rsa_key=True).write(served, "tls")
        MOUNT.mkdir(parents=True, exist_ok=True)
        if not (MOUNT / "tls.crt").exists():
            (MOUNT / "tls.crt").touch()

    def objects(self, plane: ControlPlane, configurations: Iterable[Object]) -> list[Object]:
        """The Secret, the Service, and the configurations with the way to them."""
        authority = pki.Pair.read(plane.pki, self.authority)
        pair = pki.Pair.read(self.folder(plane), "tls")
        data = {
            "ca.crt": authority.certificate,
            "ca.key": authority.key,
            "tls.crt": pair.certificate,
            "tls.key": pair.key,
        }
        encoded = {name: base64.b64encode(value).decode() for name, value in data.items()}
        return [
            {
                "apiVersion": "v1",
                "kind": "Secret",
                "metadata": {"name": self.secret, "namespace": self.namespace},
                "data": encoded,
            },
            {
                "apiVersion": "v1",
                "kind": "Service",
                "metadata": {"name": self.service, "namespace": self.namespace},
                "spec": {"type": "ExternalName", "externalName": "localhost"},
            },
            *(self._routed(plane, each, encoded["ca.crt"]) for each in configurations),
        ]

    def ready(self, plane: ControlPlane, configurations: Iterable[Object]) -> bool:
        """Whether the operator is ready and all of its webhooks are there. It says the former too early: when
        its server listens, to which it then adds one webhook after the other.
        """
        paths = [
            each["clientConfig"]["service"]["path"]
            for configuration in configurations
            for each in configuration["webhooks"]
        ]
        return plane.healthy(self.component, "/readyz", "health", tls=False) and all(
            plane.probe(self.component, path, "webhook") != 404 for path in paths
        )

    def _routed(self, plane: ControlPlane, configuration: Object, authority: str) -> Object:
        routed = copy.deepcopy(configuration)
        for webhook in routed["webhooks"]:
            webhook["clientConfig"]["caBundle"] = authority
            webhook["clientConfig"]["service"] |= {
                "name": self.service,
                "namespace": self.namespace,
                "port": plane.port(self.component, "webhook"),
            }
        return routed
