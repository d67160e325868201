"""Names of the cluster: which addresses a service name stands for now, and a DNS server that says so.

Like the DNS of a cluster it answers ``svc.ns.svc.cluster.local``, and ``hostname.svc.ns.svc.cluster.local``
for pods with a hostname and a subdomain; the search list in a pod's resolv.conf makes ``svc`` and ``svc.ns``
of it. Pods that are not ready are left out, unless their service publishes them.
"""

from __future__ import annotations

import asyncio
import socket
import struct
from collections.abc import Iterator
from typing import Any

from tests.cluster.kubelet.api import Api

Object = dict[str, Any]

ZONE = "cluster.local"
HOST_NAME = "host.internal"
"""The machine of the harness, where its servers listen, as pods may call it."""
A, AAAA, ANY, IN = 1, 28, 255, 1
NO_ERROR, NO_SUCH_NAME, NOT_IMPLEMENTED = 0, 3, 4
SECONDS = 5
"""For which an answer may be kept."""


class Names:
    """Services and endpoint slices of the whole cluster, by name."""

    def __init__(self, api: Api, host: str) -> None:
        self._api = api
        self._host = host
        self._services: dict[tuple[str, str], Object] = {}
        self._slices: dict[tuple[str, str], dict[str, Object]] = {}
        """(namespace, service): slices by their own name."""

    def service(self, namespace: str, name: str) -> Object | None:
        return self._services.get((namespace, name))

    async def follow(self) -> None:
        """Keep up with the cluster; for ever."""
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._follow_services())
            tasks.create_task(self._follow_slices())

    async def _follow_services(self) -> None:
        async for kind, found in self._api.follow("/api/v1/services"):
            if kind == "RESET":
                self._services = {_key(item): item for item in found["items"]}
            elif kind == "DELETED":
                self._services.pop(_key(found), None)
            else:
                self._services[_key(found)] = found

    async def _follow_slices(self) -> None:
        async for kind, found in self._api.follow("/apis/discovery.k8s.io/v1/endpointslices"):
            if kind == "RESET":
                self._slices = {}
                for item in found["items"]:
                    self._slices.setdefault(_service_of(item), {})[item["metadata"]["name"]] = item
                continue
            of_service = self._slices.setdefault(_service_of(found), {})
            if kind == "DELETED":
                of_service.pop(found["metadata"]["name"], None)
            else:
                of_service[found["metadata"]["name"]] = found

    def endpoints(self, namespace: str, service: str) -> Iterator[Object]:
        """Those that get traffic; the controller has already heeded publishNotReadyAddresses."""
        for found in self._slices.get((namespace, service), {}).values():
            for endpoint in found.get("endpoints") or []:
                if (endpoint.get("conditions") or {}).get("ready") is not False:
                    yield endpoint

    def addresses(self, name: str) -> list[str] | None:
        """What a full name stands for; None when there is no such name."""
        name = name.rstrip(".").lower()
        if name == HOST_NAME:
            return [self._host]
        suffix = f".svc.{ZONE}"
        if not name.endswith(suffix):
            return None
        parts = name.removesuffix(suffix).split(".")
        if len(parts) not in (2, 3):
            return None
        *host, service, namespace = parts
        spec = (self._services.get((namespace, service)) or {}).get("spec")
        if spec is None:
            return None
        if not host and spec.get("clusterIP") not in (None, "None", ""):
            return [spec["clusterIP"]]
        found = [e for e in self.endpoints(namespace, service) if not host or e.get("hostname") == host[0]]
        if not found:
            return None
        return sorted({address for endpoint in found for address in endpoint["addresses"]})

    # --- the server -----------------------------------------------------------------------------------------

    async def serve(self, udp: socket.socket, tcp: socket.socket) -> None:
        """Answer on these sockets while the loop runs."""
        udp.setblocking(False)
        tcp.setblocking(False)
        loop = asyncio.get_running_loop()
        loop.add_reader(udp.fileno(), self._on_udp, udp)
        await asyncio.start_server(self._on_tcp, sock=tcp)

    def _on_udp(self, udp: socket.socket) -> None:
        for _ in range(64):
            try:
                query, sender = udp.recvfrom(4096)
            except OSError:
                return
            answer = answered(query, self)
            if answer:
                try:
                    udp.sendto(answer, sender)
                except OSError:
                    continue

    async def _on_tcp(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        try:
            while True:
                (size,) = struct.unpack(">H", await reader.readexactly(2))
                answer = answered(await reader.readexactly(size), self)
                writer.write(struct.pack(">H", len(answer)) + answer)
                await writer.drain()
        except (OSError, asyncio.IncompleteReadError):
            pass
        finally:
            writer.close()


def answered(query: bytes, names: Names) -> bytes:
    """The reply to one DNS message; empty for what is none."""
    if len(query) < 17:
        return b""
    ident, flags, questions = struct.unpack(">HHH", query[:6])
    if flags & 0x8000 or questions != 1:
        return b""
    labels, at = [], 12
    while query[at]:
        labels.append(query[at + 1 : at + 1 + query[at]].decode("ascii", errors="replace"))
        at += 1 + query[at]
        if at >= len(query):
            return b""
    if len(query) < at + 5:
        return b""
    kind, klass = struct.unpack(">HH", query[at + 1 : at + 5])
    question = query[12 : at + 5]
    found = names.addresses(".".join(labels)) if klass == IN else None
    shown = (found or []) if kind in (A, ANY) else []
    code = NO_SUCH_NAME if found is None else NO_ERROR
    if flags & 0x7800:  # anything but a standard query
        code, shown = NOT_IMPLEMENTED, []
    # Answer, authoritative, recursion as asked and available.
    head = struct.pack(">HHHHHH", ident, 0x8480 | flags & 0x0100 | code, 1, len(shown), 0, 0)
    answers = (
        b"\xc0\x0c" + struct.pack(">HHIH", A, IN, SECONDS, 4) + socket.inet_aton(address) for address in shown
    )
    return head + question + b"".join(answers)


def resolv_conf(server: str, namespace: str) -> str:
    """Of a pod with dnsPolicy ClusterFirst."""
    return f"search {namespace}.svc.{ZONE} svc.{ZONE} {ZONE}\nnameserver {server}\noptions ndots:5\n"


def hosts_file(pod: Object, address: str) -> str:
    """As the kubelet writes it: itself, and the pod's host aliases."""
    spec, meta = pod["spec"], pod["metadata"]
    hostname = spec.get("hostname") or meta["name"][:63].rstrip("-.")
    own = hostname
    if spec.get("subdomain"):
        own = f"{hostname}.{spec['subdomain']}.{meta['namespace']}.svc.{ZONE} {hostname}"
    lines = ["# Kubernetes-managed hosts file.", "127.0.0.1\tlocalhost", "::1\tlocalhost ip6-localhost"]
    lines.append(f"{address}\t{own}")
    lines += [f"{a['ip']}\t{' '.join(a.get('hostnames') or [])}" for a in spec.get("hostAliases") or []]
    return "\n".join(lines) + "\n"


def _key(item: Object) -> tuple[str, str]:
    return item["metadata"]["namespace"], item["metadata"]["name"]


def _service_of(item: Object) -> tuple[str, str]:
    labels = item["metadata"].get("labels") or {}
    return item["metadata"]["namespace"], labels.get("kubernetes.io/service-name", "")
