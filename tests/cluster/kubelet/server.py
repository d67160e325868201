"""The kubelet's HTTPS API, as far as the API server passes requests on to it: logs, exec, pods, health.

It listens on the nodes' addresses, which exist on this machine alone.
"""

from __future__ import annotations

import asyncio
import json
import ssl
import tempfile
import time
from collections.abc import Awaitable, Callable
from contextlib import suppress
from datetime import datetime
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, unquote, urlsplit

from tests.cluster import pki
from tests.cluster.kubelet.execs import serve_exec
from tests.cluster.kubelet.logs import Log, Wanted, stamp_nano

if TYPE_CHECKING:
    from tests.cluster.kubelet.kubelet import Kubelet
    from tests.cluster.kubelet.pod import Pod

PLAIN = "text/plain; charset=utf-8"


class Refused(Exception):
    """An HTTP status and a sentence."""

    def __init__(self, status: int, message: str) -> None:
        super().__init__(message)
        self.status = status


class Request:
    """One request and the stream to answer it on."""

    def __init__(
        self, target: str, headers: dict[str, str], reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        parts = urlsplit(target)
        self.path = [unquote(part) for part in parts.path.split("/") if part]
        self.query = parse_qs(parts.query, keep_blank_values=True)
        self.headers, self.reader, self.writer = headers, reader, writer

    def one(self, name: str, default: str = "") -> str:
        return self.query.get(name, [default])[0]

    def flag(self, name: str) -> bool:
        return self.one(name) in ("true", "1")

    async def answer(self, status: int, body: bytes, kind: str = PLAIN) -> None:
        head = f"HTTP/1.1 {status} X\r\nContent-Type: {kind}\r\nContent-Length: {len(body)}\r\n\r\n"
        self.writer.write(head.encode() + body)
        await self.writer.drain()


class Server:
    """Serves all nodes of a kubelet, on one port of each node's address."""

    def __init__(self, kubelet: Kubelet) -> None:
        self._kubelet = kubelet
        self._servers: list[asyncio.Server] = []
        self._streams: set[asyncio.StreamWriter] = set()
        self._tls: ssl.SSLContext
        self._port = 0

    async def start(self) -> int:
        """Make the certificate; the port."""
        self._tls = await asyncio.to_thread(_tls, self._kubelet.api.authority)
        self._port = 10250
        return self._port

    async def listen(self, address: str) -> None:
        self._servers.append(await asyncio.start_server(self._serve, address, self._port, ssl=self._tls))

    async def close(self) -> None:
        for server in self._servers:
            server.close()
        for stream in list(self._streams):
            stream.transport.abort()

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        """Requests of one connection, until one takes the connection over or it is closed."""
        self._streams.add(writer)
        try:
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
                headers = {
                    k.strip().lower(): v.strip()
                    for k, _, v in (line.partition(":") for line in head[1:] if line)
                }
                if size := int(headers.get("content-length") or 0):
                    await reader.readexactly(size)
                request = Request(head[0].split()[1], headers, reader, writer)
                if not await self._answer(request):
                    return
        except (OSError, asyncio.IncompleteReadError, asyncio.LimitOverrunError, ssl.SSLError):
            pass
        finally:
            self._streams.discard(writer)
            writer.close()

    async def _answer(self, request: Request) -> bool:
        """Whether the connection may be used again."""
        routes: dict[str, Callable[[Request], Awaitable[bool]]] = {
            "containerLogs": self._logs,
            "exec": self._exec,
            "pods": self._pods,
            "healthz": self._health,
        }
        if self._is_lost(request.writer):
            request.writer.transport.abort()
            return False
        try:
            route = routes.get(request.path[0] if request.path else "")
            if route is None:
                raise Refused(404, "404 page not found")
            return await route(request)
        except Refused as refusal:
            await request.answer(refusal.status, str(refusal).encode())
            return True

    def _is_lost(self, writer: asyncio.StreamWriter) -> bool:
        """Whether this connection came to a node that nobody can reach."""
        own = writer.get_extra_info("sockname")[0]
        return any(node.address == own and node.lost for node in self._kubelet.nodes.values())

    async def _health(self, request: Request) -> bool:
        await request.answer(200, b"ok")
        return True

    async def _pods(self, request: Request) -> bool:
        items = [pod.manifest for node in self._kubelet.nodes.values() for pod in node.pods.values()]
        body = {"kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items}
        await request.answer(200, json.dumps(body).encode(), "application/json")
        return True

    def _pod(self, namespace: str, name: str, container: str) -> Pod:
        pod = self._kubelet.pod(namespace, name)
        if pod is None:
            raise Refused(404, f'pod "{name}" does not exist')
        if container not in pod.containers:
            raise Refused(404, f'container "{container}" not found in pod "{name}"')
        return pod

    async def _logs(self, request: Request) -> bool:
        try:
            _, namespace, name, container = request.path
        except ValueError:
            raise Refused(404, "404 page not found") from None
        pod = self._pod(namespace, name, container)
        log = _log_of(pod, container, previous=request.flag("previous"))
        wanted = _wanted(request)
        head = f"HTTP/1.1 200 OK\r\nContent-Type: {PLAIN}\r\nConnection: close\r\n"
        head += "Transfer-Encoding: chunked\r\n\r\n"
        request.writer.write(head.encode())
        await request.writer.drain()
        sending = asyncio.create_task(_send(request, log, wanted))
        # A reader that goes away must not leave a follower behind; nothing else is expected from it
        # meanwhile.
        leaving = asyncio.create_task(request.reader.read(1))
        try:
            await asyncio.wait({sending, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if sending.done():
                await sending
        finally:
            sending.cancel()
            leaving.cancel()
        return False

    async def _exec(self, request: Request) -> bool:
        try:
            _, namespace, name, container = request.path
        except ValueError:
            raise Refused(404, "404 page not found") from None
        pod = self._pod(namespace, name, container)
        run = pod.runs.get(container)
        if run is None or not pod.containers[container].running:
            raise Refused(404, f'container not found ("{container}")')
        if request.headers.get("upgrade", "").lower() != "websocket":
            raise Refused(400, "this kubelet serves exec by WebSocket only")
        await serve_exec(request, run, self._kubelet.spawner)
        return False


async def _send(request: Request, log: Log, wanted: Wanted) -> None:
    with suppress(OSError):
        async for piece in log.read(wanted):
            request.writer.write(b"%x\r\n%b\r\n" % (len(piece), piece))
            await request.writer.drain()
        request.writer.write(b"0\r\n\r\n")
        await request.writer.drain()


def _log_of(pod: Pod, name: str, *, previous: bool) -> Log:
    """The log that the container's state entitles to, as the kubelet decides it. Raises Refused."""
    container = pod.containers[name]
    ended = container.terminated or {}
    last = container.last.get("terminated") or {}
    if previous:
        wanted, missing = last, f'previous terminated container "{name}" in pod "{pod.name}" not found'
    elif container.running or ended:
        wanted, missing = {"containerID": container.container_id}, ""
    elif last:
        wanted, missing = last, f'container "{name}" in pod "{pod.name}" is terminated'
    else:
        why = {
            "ErrImagePull": "image can't be pulled",
            "ImagePullBackOff": "trying and failing to pull image",
        }.get(container.waiting, container.waiting)
        raise Refused(400, f'container "{name}" in pod "{pod.name}" is waiting to start: {why}')
    found = pod.logs.get(name, {}).get(wanted.get("containerID", ""))
    if found is None:
        raise Refused(400, missing or f"unable to retrieve container logs for {container.container_id}")
    return found


def _wanted(request: Request) -> Wanted:
    def number(name: str) -> int | None:
        text = request.one(name)
        try:
            return int(text) if text else None
        except ValueError:
            raise Refused(400, '{"message": "Unable to decode query."}') from None

    since = ""
    if text := request.one("sinceTime"):
        since = stamp_nano(int(datetime.fromisoformat(text).timestamp() * 10**9))
    elif (seconds := number("sinceSeconds")) is not None:
        since = stamp_nano(time.time_ns() - seconds * 10**9)
    stream = request.one("stream")
    return Wanted(
        follow=request.flag("follow"),
        tail=number("tailLines"),
        since=since,
        timestamps=request.flag("timestamps"),
        limit=number("limitBytes"),
        stream=stream.lower() if stream in ("Stdout", "Stderr") else "",
    )


def _tls(authority: str) -> ssl.SSLContext:
    """With a certificate of our own making, which the API server does not check. Clients must have one of the
    cluster's authority: exec is not for everybody who can reach the port, pods among them.
    """
    pair = pki.sign(pki.authority("kubelet"), "kubelet", hosts=["kubelet"])
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    with tempfile.NamedTemporaryFile() as file:
        file.write(pair.certificate + b"\n" + pair.key)
        file.flush()
        context.load_cert_chain(file.name)
    context.set_alpn_protocols(["http/1.1"])
    if authority:
        context.load_verify_locations(cadata=authority)
        context.verify_mode = ssl.CERT_REQUIRED
    return context
