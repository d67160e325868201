"""A client for the API server, of the standard library and PyYAML: it shares no line with the transport that
the tests are about.

HTTP/1.1 over TLS with a pool of connections; JSON in, JSON out; watches that survive a cut stream and a 410.
"""

from __future__ import annotations

import asyncio
import base64
import json
import random
import ssl
import sys
import tempfile
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

import yaml

Object = dict[str, Any]

JSON, MERGE, STRATEGIC = (
    "application/json",
    "application/merge-patch+json",
    "application/strategic-merge-patch+json",
)
PATIENCE = 60.0
"""Seconds for which a request outlives an API server that is away or busy."""
READ_LIMIT = 16 * 2**20


class ApiError(Exception):
    """The API server said no."""

    def __init__(self, status: int, body: Object) -> None:
        super().__init__(f"{status} {body.get('reason', '')}: {body.get('message', body)}")
        self.status = status
        self.reason = body.get("reason", "")
        self.message = body.get("message", "")


class Api:
    """One API server, as one user."""

    def __init__(self, kubeconfig: str | Path) -> None:
        self.server, self._headers, self._tls, self.authority = _read_kubeconfig(Path(kubeconfig))
        """``authority``: the certificate of the cluster's, as PEM, if the kubeconfig has it."""
        parts = urlsplit(self.server)
        self.host = parts.hostname or "127.0.0.1"
        self.port = parts.port or 443
        self._idle: list[_Connection] = []

    async def get(self, path: str, **query: Any) -> Object:
        return await self.request("GET", path, query=query)

    async def create(self, path: str, body: Object) -> Object:
        return await self.request("POST", path, body)

    async def patch(self, path: str, body: Object, kind: str = STRATEGIC) -> Object:
        return await self.request("PATCH", path, body, content_type=kind)

    async def delete(self, path: str, *, uid: str | None = None, grace: int | None = None) -> None:
        """Missing is fine, and so is another object of the same name when ``uid`` is given."""
        body: Object = {"apiVersion": "v1", "kind": "DeleteOptions"}
        if uid is not None:
            body["preconditions"] = {"uid": uid}
        if grace is not None:
            body["gracePeriodSeconds"] = grace
        try:
            await self.request("DELETE", path, body)
        except ApiError as error:
            if error.status not in (404, 409):
                raise

    async def insist(self, ask: Callable[[], Awaitable[object]]) -> None:
        """Ask until the server answers; one that says the object is gone or another's has answered."""
        while True:
            try:
                await ask()
                return
            except ConnectionError:
                await asyncio.sleep(0.5)
            except ApiError as error:
                if error.status in (404, 409):
                    return
                print(f"{self.server}: {error}", file=sys.stderr, flush=True)
                await asyncio.sleep(1)

    async def request(
        self,
        method: str,
        path: str,
        body: Object | None = None,
        *,
        query: Mapping[str, Any] | None = None,
        content_type: str = JSON,
        patience: float = PATIENCE,
    ) -> Object:
        """The answer's object. Raises ApiError; ConnectionError when the server stays away."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + patience
        pause = 0.05
        while True:
            try:
                status, answer = await self._once(method, path, body, query, content_type)
            except (OSError, asyncio.IncompleteReadError, ssl.SSLError) as error:
                if loop.time() > deadline:
                    raise ConnectionError(f"{self.server} does not answer: {error}") from error
            else:
                if status < 400:
                    return answer
                if status not in (429, 500, 502, 503, 504) or loop.time() > deadline:
                    raise ApiError(status, answer)
            await asyncio.sleep(pause * random.uniform(0.5, 1.5))
            pause = min(pause * 2, 2.0)

    async def list(self, path: str, **query: Any) -> tuple[list[Object], str]:
        """Every object and the version of the collection."""
        answer = await self.get(path, **query)
        return answer.get("items") or [], answer["metadata"]["resourceVersion"]

    async def follow(self, path: str, **query: Any) -> AsyncIterator[tuple[str, Object]]:
        """List, then watch, for ever: ``("RESET", {"items": [...]})`` after each list, then the watch's
        events.

        Never gives up. Lists again when the server forgot our version (410) and whenever the stream tells
        nothing sensible.
        """
        while True:
            try:
                items, version = await self.list(path, **query)
            except (ApiError, ConnectionError):  # an API server that is not itself yet, or away
                await asyncio.sleep(0.5)
                continue
            yield "RESET", {"items": items}
            with suppress(_Relist):
                while True:
                    async for kind, found in self._watch(path, query, version):
                        version = found["metadata"]["resourceVersion"]
                        if kind != "BOOKMARK":
                            yield kind, found

    async def _watch(
        self, path: str, query: Mapping[str, Any], version: str
    ) -> AsyncIterator[tuple[str, Object]]:
        """One stream's events; ends where the stream does. Raises _Relist."""
        wanted = {**query, "watch": "1", "resourceVersion": version, "allowWatchBookmarks": "true"}
        wanted["timeoutSeconds"] = random.randint(240, 360)
        try:
            connection = await self._connect()
        except OSError:
            await asyncio.sleep(0.3)
            return
        try:
            await connection.send("GET", _with(path, wanted), {**self._headers, "Accept": JSON}, None)
            status, headers = await connection.head()
            if status == 410:
                raise _Relist
            if status != 200:
                await asyncio.sleep(0.5)
                raise _Relist
            async for line in connection.lines(headers):
                event = json.loads(line)
                if event["type"] == "ERROR":
                    raise _Relist
                yield event["type"], event["object"]
        except (OSError, asyncio.IncompleteReadError, ssl.SSLError, ValueError):
            await asyncio.sleep(0.1)
        finally:
            connection.close()

    async def _once(
        self,
        method: str,
        path: str,
        body: Object | None,
        query: Mapping[str, Any] | None,
        content_type: str,
    ) -> tuple[int, Object]:
        payload = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Accept": JSON}
        if payload is not None:
            headers["Content-Type"] = content_type
        target = _with(path, query or {})
        # A pooled connection may have been closed meanwhile: then, and only then, the same once more on a new
        # one.
        while self._idle:
            connection = self._idle.pop()
            with suppress(OSError, asyncio.IncompleteReadError, ssl.SSLError):
                return await self._exchange(connection, method, target, headers, payload)
        return await self._exchange(await self._connect(), method, target, headers, payload)

    async def _exchange(
        self,
        connection: _Connection,
        method: str,
        target: str,
        headers: Mapping[str, str],
        payload: bytes | None,
    ) -> tuple[int, Object]:
        try:
            await connection.send(method, target, headers, payload)
            status, answered = await asyncio.wait_for(connection.head(), 30)
            data = await asyncio.wait_for(connection.body(answered), 30)
        except TimeoutError as error:
            connection.close()
            raise ConnectionError("no answer in 30 s") from error
        except BaseException:
            connection.close()
            raise
        self._idle.append(connection)
        try:
            return status, json.loads(data) if data else {}
        except ValueError:
            return status, {"message": data.decode(errors="replace").strip()}

    async def _connect(self) -> _Connection:
        connecting = asyncio.open_connection(self.host, self.port, ssl=self._tls, limit=READ_LIMIT)
        try:
            return _Connection(*await asyncio.wait_for(connecting, 10))
        except TimeoutError as error:
            raise ConnectionError("no connection in 10 s") from error

    def close(self) -> None:
        for connection in self._idle:
            connection.close()
        self._idle.clear()


class _Relist(Exception):
    """The watch cannot go on from where it was."""


class _Connection:
    """HTTP/1.1 on one stream."""

    def __init__(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.reader, self.writer = reader, writer

    async def send(self, method: str, target: str, headers: Mapping[str, str], payload: bytes | None) -> None:
        lines = [f"{method} {target} HTTP/1.1", "Host: kubernetes"]
        lines += [f"{name}: {value}" for name, value in headers.items()]
        if payload is not None:
            lines.append(f"Content-Length: {len(payload)}")
        self.writer.write("\r\n".join(lines).encode() + b"\r\n\r\n" + (payload or b""))
        await self.writer.drain()

    async def head(self) -> tuple[int, dict[str, str]]:
        lines = (await self.reader.readuntil(b"\r\n\r\n")).decode("latin-1").split("\r\n")
        headers = (line.partition(":") for line in lines[1:] if line)
        return int(lines[0].split()[1]), {name.lower(): value.strip() for name, _, value in headers}

    async def body(self, headers: Mapping[str, str]) -> bytes:
        if headers.get("transfer-encoding") == "chunked":
            return b"".join([chunk async for chunk in self._chunks()])
        return await self.reader.readexactly(int(headers.get("content-length", 0)))

    async def lines(self, headers: Mapping[str, str]) -> AsyncIterator[bytes]:
        rest = b""
        async for chunk in self._chunks():
            *whole, rest = (rest + chunk).split(b"\n")
            for line in whole:
                if line.strip():
                    yield line

    async def _chunks(self) -> AsyncIterator[bytes]:
        while True:
            size = int((await self.reader.readline()).split(b";")[0] or b"", 16)
            chunk = await self.reader.readexactly(size + 2)
            if size == 0:
                return
            yield chunk[:-2]

    def close(self) -> None:
        self.writer.close()


def _with(path: str, query: Mapping[str, Any]) -> str:
    given = {name: value for name, value in query.items() if value is not None}
    return f"{path}?{urlencode(given)}" if given else path


def _read_kubeconfig(path: Path) -> tuple[str, dict[str, str], ssl.SSLContext | None, str]:
    """Server, headers, TLS and authority of the current context. Knows tokens and client certificates, no
    exec plugins.
    """
    config = yaml.safe_load(path.read_text())
    context = _named(config["contexts"], config["current-context"])["context"]
    cluster = _named(config["clusters"], context["cluster"])["cluster"]
    user = _named(config["users"], context["user"])["user"]
    headers = {"User-Agent": "allaboard-test-kubelet"}
    token = user.get("token") or (Path(user["tokenFile"]).read_text() if "tokenFile" in user else None)
    if token:
        headers["Authorization"] = f"Bearer {token.strip()}"
    if cluster["server"].startswith("http://"):
        return cluster["server"], headers, None, ""
    tls = ssl.create_default_context()
    if cluster.get("insecure-skip-tls-verify"):
        tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
    authority = _material(cluster, "certificate-authority", path)
    if authority is not None:
        tls.load_verify_locations(cadata=authority.decode())
    certificate, key = (_material(user, name, path) for name in ("client-certificate", "client-key"))
    if certificate is not None and key is not None:
        with tempfile.NamedTemporaryFile() as file:  # ssl reads them from files only
            file.write(certificate + b"\n" + key)
            file.flush()
            tls.load_cert_chain(file.name)
    return cluster["server"], headers, tls, (authority or b"").decode()


def _named(entries: list[Object], name: str) -> Object:
    return next(entry for entry in entries if entry["name"] == name)


def _material(entry: Object, name: str, config: Path) -> bytes | None:
    if data := entry.get(f"{name}-data"):
        return base64.b64decode(data)
    return (config.parent / entry[name]).read_bytes() if name in entry else None
