"""A proxy before an API server that lets happen what networks and servers let happen, when a test says so;
and counts.

    with FaultProxy(cluster.kubeconfig) as proxy:
        proxy.on(Drop(), verb="create", kind="pytorchjobs", times=1)
        Access(str(proxy.kubeconfig)).api()
        proxy.counts.requests["create pytorchjobs"]

It speaks TLS towards the client (``tls=False``: HTTP) with a certificate of its own, and real TLS towards the
API server, whose kubeconfig it is given; the client's own Authorization goes through. What is to happen comes
from rules (`on`), else from a seeded plan (`Plan`), which does the same to the n-th request each time it is
played.

As a process of its own, for whoever measures or is killed: ``python -m tests.cluster.proxy KUBECONFIG --write
FILE`` writes a kubeconfig for clients and then serves until it is ended; ``GET /-/counts`` is answered by the
proxy itself.
"""

from __future__ import annotations

import argparse
import asyncio
import base64
import json
import random
import re
import signal
import socket
import ssl
import struct
import sys
import tempfile
import threading
import time
from collections import Counter
from collections.abc import AsyncGenerator, Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from urllib.parse import parse_qs, urlsplit

import yaml

from tests.cluster import pki

HEAD = 1 << 20
CHUNK = 1 << 16


# --- what may happen ----------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Drop:
    """The connection is reset before the request reaches the server."""


@dataclass(frozen=True, slots=True)
class Lose:
    """The request is carried out, and its answer is lost: nothing of it comes, or (``half``) the first
    half.
    """

    half: bool = False


@dataclass(frozen=True, slots=True)
class Delay:
    """The request arrives late, by so many seconds; with ``answer`` it is the answer that does."""

    seconds: float
    answer: bool = False


@dataclass(frozen=True, slots=True)
class Twice:
    """The request is carried out twice, one after the other; the second answer is the one that comes."""


@dataclass(frozen=True, slots=True)
class Say:
    """An answer of the proxy's own, in the server's words. ``done``: the request is carried out all the
    same.
    """

    status: int
    reason: str = ""
    retry_after: int | None = None
    done: bool = False


@dataclass(frozen=True, slots=True)
class Cut:
    """A stream is cut after so many events, or seconds, whichever comes first; as by a reset, or (``clean``)
    by an end that looks like the server's own.
    """

    events: int | None = None
    seconds: float | None = None
    clean: bool = False


@dataclass(frozen=True, slots=True)
class Hold:
    """A stream stays open, and nothing comes through after so many events: a dead peer behind a load
    balancer.
    """

    events: int = 0


@dataclass(frozen=True, slots=True)
class TooOld:
    """A watch is answered by an ERROR event of 410."""


@dataclass(frozen=True, slots=True)
class Do:
    """Something of the test's, in a thread, before the request is sent on and after it was answered (the
    answer is held back until then). For killing the client at a boundary.
    """

    before: Callable[[], object] | None = None
    after: Callable[[], object] | None = None


Fault = Drop | Lose | Delay | Twice | Say | Cut | Hold | TooOld | Do

STATUSES = {
    409: "Conflict",
    410: "Expired",
    401: "Unauthorized",
    429: "TooManyRequests",
    500: "InternalError",
    503: "ServiceUnavailable",
    504: "Timeout",
}


@dataclass(frozen=True, slots=True)
class Asked:
    """A request, as rules know it: ``verb`` in Kubernetes' words (get list watch create update patch
    delete).
    """

    number: int
    method: str
    path: str
    verb: str
    kind: str
    name: str

    @property
    def words(self) -> str:
        return f"{self.verb} {self.kind}"


@dataclass(slots=True)
class Rule:
    """``fault`` for the requests that fit, ``times`` at most; ``skip`` of them are let through before."""

    fault: Fault
    verb: str | None = None
    kind: str | None = None
    path: str | None = None
    when: Callable[[Asked], bool] | None = None
    times: int | None = None
    skip: int = 0
    met: int = 0

    def fits(self, asked: Asked) -> bool:
        if self.verb not in (None, asked.verb) or self.kind not in (None, asked.kind):
            return False
        if self.path is not None and not re.search(self.path, asked.path):
            return False
        return self.when is None or self.when(asked)

    def take(self, asked: Asked) -> bool:
        if not self.fits(asked):
            return False
        self.met += 1
        return self.met > self.skip and (self.times is None or self.met <= self.skip + self.times)


@dataclass(frozen=True, slots=True)
class Plan:
    """Faults by chance: ``rate`` of all requests meet one of ``faults``, drawn by weight. The n-th request
    meets the same with every play of a seed.
    """

    seed: int
    rate: float
    faults: Sequence[tuple[float, Fault]]

    def of(self, asked: Asked) -> Fault | None:
        chance = random.Random(f"{self.seed} {asked.number}")
        if chance.random() >= self.rate:
            return None
        weights, faults = zip(*self.faults, strict=True)
        fault: Fault = chance.choices(faults, weights)[0]
        return fault


ANYTHING: Sequence[tuple[float, Fault]] = (
    (3, Drop()),
    (3, Lose()),
    (2, Lose(half=True)),
    (2, Twice()),
    (2, Delay(0.3)),
    (1, Delay(0.3, answer=True)),
    (1, Say(429, retry_after=1)),
    (2, Say(500)),
    (1, Say(500, done=True)),
    (1, Say(503)),
    (1, Say(504, done=True)),
    (1, Say(401)),
    (3, Cut(seconds=0.3)),
    (2, Cut(events=1)),
    (1, TooOld()),
)
"""A bad day. (409 is not among them: a server that says so untruthfully cannot be told from a true one.)"""


@dataclass(slots=True)
class Counts:
    """``requests``: by verb and kind; ``bytes``: of HTTP, without TLS, both ways, by the same;
    ``connections``: how often one was opened, with a handshake each.
    """

    requests: Counter[str] = field(default_factory=Counter)
    bytes: Counter[str] = field(default_factory=Counter)
    faults: Counter[str] = field(default_factory=Counter)
    connections: int = 0
    open: int = 0

    @property
    def total(self) -> int:
        return sum(self.requests.values())


# --- the proxy ----------------------------------------------------------------------------------------------


class FaultProxy:
    """``kubeconfig``: of the proxy, for clients; written when it starts."""

    def __init__(
        self,
        upstream: Path,
        *,
        plan: Plan | None = None,
        tls: bool = True,
        folder: Path | None = None,
    ) -> None:
        self.counts = Counts()
        self.plan = plan
        self.asked: list[Asked] = []
        self._rules: list[Rule] = []
        self._upstream = Upstream.of(upstream)
        self._tls = tls
        self._made = tempfile.TemporaryDirectory(prefix="allaboard-proxy-") if folder is None else None
        self._folder = folder or Path(self._made.name if self._made else "")
        self._loop = asyncio.new_event_loop()
        self._thread: threading.Thread | None = None
        self._open: set[asyncio.StreamWriter] = set()
        self._number = 0
        self._server: asyncio.Server
        self.port = 0

    # --- for tests

    def on(self, fault: Fault, **said: object) -> Rule:
        """A rule (fields of `Rule`); later rules come first."""
        rule = Rule(fault, **said)  # type: ignore[arg-type]
        self._rules.insert(0, rule)
        return rule

    def forget(self) -> None:
        """No rules, no plan."""
        self._rules.clear()
        self.plan = None

    @contextmanager
    def during(self, fault: Fault, **said: object) -> Iterator[Rule]:
        rule = self.on(fault, **said)
        try:
            yield rule
        finally:
            self._rules.remove(rule)

    def cut_all(self) -> None:
        """Every open connection is reset now."""
        self._loop.call_soon_threadsafe(self._reset_all)

    def _reset_all(self, but: asyncio.StreamWriter | None = None) -> None:
        for writer in self._open - {but}:
            _reset(writer)

    @property
    def kubeconfig(self) -> Path:
        return self._folder / "kubeconfig"

    @property
    def server(self) -> str:
        return f"{'https' if self._tls else 'http'}://127.0.0.1:{self.port}"

    def __enter__(self) -> FaultProxy:
        started = threading.Event()
        self._thread = threading.Thread(target=self._run, args=(started,), daemon=True, name="fault proxy")
        self._thread.start()
        if not started.wait(30):
            raise RuntimeError("the proxy did not start")
        return self

    def __exit__(
        self,
        kind: type[BaseException] | None,
        error: BaseException | None,
        trace: TracebackType | None,
    ) -> None:
        self._loop.call_soon_threadsafe(self._loop.stop)
        assert self._thread is not None
        self._thread.join(30)
        if self._made is not None:
            self._made.cleanup()

    def _run(self, started: threading.Event) -> None:
        asyncio.set_event_loop(self._loop)
        self._loop.run_until_complete(self.start())
        started.set()
        self._loop.run_forever()
        self._server.close()
        tasks = asyncio.all_tasks(self._loop)
        for task in tasks:
            task.cancel()
        self._loop.run_until_complete(asyncio.gather(*tasks, return_exceptions=True))
        self._loop.run_until_complete(self._loop.shutdown_default_executor())
        self._loop.close()

    async def start(self) -> None:
        """Serve in the running loop."""
        context, authority = _own_tls(self._folder) if self._tls else (None, None)
        self._server = server = await asyncio.start_server(
            self._client, "127.0.0.1", self.port, ssl=context, limit=HEAD, backlog=1024
        )
        self.port = server.sockets[0].getsockname()[1]
        self.kubeconfig.write_text(self._upstream.kubeconfig_with(self.server, authority))
        self.kubeconfig.chmod(0o600)

    # --- one connection

    async def _client(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self.counts.connections += 1
        self.counts.open += 1
        self._open.add(writer)
        server = Connection(self._upstream)
        try:
            while await self._request(reader, writer, server):
                pass
        except asyncio.CancelledError:
            pass  # the proxy ends; Python 3.11 would print a traceback for every connection
        except (OSError, EOFError, ssl.SSLError, ValueError, TimeoutError):
            _reset(writer)
        finally:
            self.counts.open -= 1
            self._open.discard(writer)
            server.close()
            writer.close()

    async def _request(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, server: Connection
    ) -> bool:
        """One request and its answer; whether another may follow."""
        try:
            head = server.pushed + await reader.readuntil(b"\r\n\r\n")
        except asyncio.IncompleteReadError:
            return False
        server.pushed = b""
        line, headers = _parse(head)
        method, path, _ = line.split(" ")
        body = await reader.readexactly(int(headers.get("content-length", 0)))
        if path.startswith("/-/"):
            await self._own(path, writer)
            return True
        self._number += 1
        asked = _asked(self._number, method, path)
        self.asked.append(asked)
        self.counts.requests[asked.words] += 1
        self.counts.bytes[asked.words] += len(head) + len(body)
        fault = self._fault(asked)
        if fault is not None:
            self.counts.faults[type(fault).__name__] += 1
        return await self._carry_out(head, headers, body, asked, fault, reader, writer, server)

    def _fault(self, asked: Asked) -> Fault | None:
        for rule in self._rules:
            if rule.take(asked):
                return rule.fault
        return self.plan.of(asked) if self.plan is not None else None

    async def _carry_out(
        self,
        head: bytes,
        headers: Mapping[str, str],
        body: bytes,
        asked: Asked,
        fault: Fault | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server: Connection,
    ) -> bool:
        streaming = asked.verb == "watch" or "follow=true" in asked.path
        match fault:
            case Drop():
                _reset(writer)
                return False
            case Delay(seconds, answer=False):
                await asyncio.sleep(seconds)
            case Say(done=False) as said:
                await self._say(said, writer)
                return True
            case TooOld() if streaming:
                await self._too_old(writer)
                return True
            case Do(before=before) if before is not None:
                await asyncio.to_thread(before)
            case Twice() if not streaming:
                first = await server.send(head, body)
                await self._through(first)
        answer = await server.send(head, body)
        match fault:
            case Lose(half=half) if not streaming:
                whole = await self._through(answer)
                if half:
                    writer.write(whole[: len(whole) // 2])
                    with suppress(OSError):
                        await writer.drain()
                _reset(writer)
                return False
            case Say(done=True) as said if not streaming:
                await self._through(answer)
                await self._say(said, writer)
                return True
            case Delay(seconds, answer=True):
                await asyncio.sleep(seconds)
            case Do(after=after) if after is not None:
                whole = await self._through(answer)
                await asyncio.to_thread(after)
                writer.write(whole)
                await writer.drain()
                return True
        if answer.status == 101:
            await self._tunnel(answer, reader, writer, server)
            return False
        if streaming and answer.status == 200:
            return await self._stream(answer, fault, reader, writer, server, asked.words)
        await self._through(answer, writer, asked.words)
        return True

    async def _through(
        self, answer: Answer, writer: asyncio.StreamWriter | None = None, words: str = ""
    ) -> bytes:
        """The whole answer, handed on to a writer while it comes; else returned."""
        kept = bytearray()
        async for piece in answer.pieces():
            if writer is None:
                kept += piece
            else:
                self.counts.bytes[words] += len(piece)
                writer.write(piece)
                await writer.drain()
        return bytes(kept)

    async def _stream(
        self,
        answer: Answer,
        fault: Fault | None,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server: Connection,
        words: str,
    ) -> bool:
        """A watch or a followed log: until either side ends it, or the fault does."""
        end = fault.seconds if isinstance(fault, Cut) else None
        events = fault.events if isinstance(fault, Cut | Hold) else None
        seen = 0
        hung_up = asyncio.create_task(reader.read(1))
        pieces = answer.pieces()
        deadline = None if end is None else time.monotonic() + end
        try:
            while True:
                if isinstance(fault, Hold) and events is not None and seen > events:
                    await hung_up
                    return False
                coming = asyncio.ensure_future(anext(pieces, None))
                left = None if deadline is None else max(0.0, deadline - time.monotonic())
                done, _ = await asyncio.wait(
                    {coming, hung_up}, timeout=left, return_when=asyncio.FIRST_COMPLETED
                )
                if coming not in done:
                    coming.cancel()
                    await asyncio.wait({coming})
                    return False if hung_up in done else await self._end(fault, writer)
                piece = coming.result()
                if piece is None:
                    return True
                self.counts.bytes[words] += len(piece)
                writer.write(piece)
                await writer.drain()
                seen += 1  # the head is the first
                if isinstance(fault, Cut) and events is not None and seen > events:
                    return await self._end(fault, writer)
        finally:
            hung_up.cancel()
            await asyncio.wait({hung_up})
            if not hung_up.cancelled() and hung_up.exception() is None:
                # What it saw may be no end, but the beginning of the next request.
                server.pushed = hung_up.result()

    async def _end(self, fault: Fault | None, writer: asyncio.StreamWriter) -> bool:
        if isinstance(fault, Cut) and fault.clean:
            writer.write(b"0\r\n\r\n")
            await writer.drain()
            writer.close()
        else:
            _reset(writer)
        return False

    async def _tunnel(
        self,
        answer: Answer,
        reader: asyncio.StreamReader,
        writer: asyncio.StreamWriter,
        server: Connection,
    ) -> None:
        """After an upgrade both sides say what they like."""
        writer.write(answer.head)
        assert server.reader is not None and server.writer is not None
        await asyncio.wait(
            [
                asyncio.create_task(_pump(reader, server.writer)),
                asyncio.create_task(_pump(server.reader, writer)),
            ],
            return_when=asyncio.FIRST_COMPLETED,
        )

    async def _say(self, said: Say, writer: asyncio.StreamWriter) -> None:
        reason = said.reason or STATUSES.get(said.status, "")
        status = {
            "kind": "Status",
            "apiVersion": "v1",
            "metadata": {},
            "status": "Failure",
            "message": f"the proxy says {said.status}",
            "reason": reason,
            "code": said.status,
        }
        extra = f"Retry-After: {said.retry_after}\r\n" if said.retry_after is not None else ""
        await self._answer(writer, said.status, status, extra)

    async def _too_old(self, writer: asyncio.StreamWriter) -> None:
        status = {"kind": "Status", "apiVersion": "v1", "status": "Failure", "reason": "Expired", "code": 410}
        event = {"type": "ERROR", "object": {**status, "message": "too old resource version: 1 (2)"}}
        await self._answer(writer, 200, event)

    async def _own(self, path: str, writer: asyncio.StreamWriter) -> None:
        """``/-/counts``, ``/-/reset``, ``/-/cut``, ``/-/too-old`` (for the next two watches): for another
        process.
        """
        if path == "/-/reset":
            self.counts = Counts(open=self.counts.open)
            self.asked.clear()
        elif path == "/-/too-old":
            self.on(TooOld(), verb="watch", times=2)
        elif path == "/-/cut":
            self._reset_all(but=writer)
        counts = {name: getattr(self.counts, name) for name in Counts.__slots__}
        await self._answer(writer, 200, counts, counted=False)

    async def _answer(
        self,
        writer: asyncio.StreamWriter,
        status: int,
        body: object,
        extra: str = "",
        *,
        counted: bool = True,
    ) -> None:
        data = json.dumps(body).encode() + b"\n"
        head = (
            f"HTTP/1.1 {status} Said\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n"
            f"Date: {time.strftime('%a, %d %b %Y %H:%M:%S GMT', time.gmtime())}\r\n{extra}\r\n"
        ).encode()
        if counted:
            self.counts.bytes["said by the proxy"] += len(head) + len(data)
        writer.write(head + data)
        await writer.drain()


# --- the other side -----------------------------------------------------------------------------------------


@dataclass(frozen=True)
class Upstream:
    """The API server that a kubeconfig names, and the file itself."""

    host: str
    port: int
    prefix: str
    tls: ssl.SSLContext | None
    config: Mapping[str, object]

    @classmethod
    def of(cls, path: Path) -> Upstream:
        config = yaml.safe_load(path.read_text())
        named = {
            part: {item["name"]: item for item in config.get(part) or ()}
            for part in ("contexts", "clusters", "users")
        }
        context = named["contexts"][config["current-context"]]["context"]
        cluster = named["clusters"][context["cluster"]]["cluster"]
        user = named["users"][context["user"]]["user"]
        url = urlsplit(cluster["server"])
        tls = None
        if url.scheme == "https":
            tls = ssl.create_default_context(cadata=_pem(cluster, "certificate-authority", path))
            tls.verify_flags &= ~ssl.VERIFY_X509_STRICT
            certificate, key = _pem(user, "client-certificate", path), _pem(user, "client-key", path)
            if certificate and key:
                with tempfile.NamedTemporaryFile("w") as file:
                    file.write(certificate + key)
                    file.flush()
                    tls.load_cert_chain(file.name)
        port = url.port or (443 if tls else 80)
        return cls(url.hostname or "", port, url.path.rstrip("/"), tls, config)

    def kubeconfig_with(self, server: str, authority: bytes | None) -> str:
        """The same file, with the proxy in the server's place."""
        cluster: dict[str, object] = {"server": server + self.prefix}
        if authority:
            cluster["certificate-authority-data"] = base64.b64encode(authority).decode()
        clusters = self.config["clusters"]
        assert isinstance(clusters, list)
        return yaml.safe_dump(
            {**self.config, "clusters": [{"name": c["name"], "cluster": cluster} for c in clusters]}
        )


@dataclass
class Connection:
    """To the server; opened when it is needed, and again when the server has closed it."""

    upstream: Upstream
    reader: asyncio.StreamReader | None = None
    writer: asyncio.StreamWriter | None = None
    pushed: bytes = b""  # of the client's next request

    async def send(self, head: bytes, body: bytes) -> Answer:
        if self.reader is None or self.reader.at_eof():
            self.close()
            up = self.upstream
            self.reader, self.writer = await asyncio.open_connection(up.host, up.port, ssl=up.tls, limit=HEAD)
        assert self.writer is not None
        self.writer.write(head + body)
        await self.writer.drain()
        answer = await self.reader.readuntil(b"\r\n\r\n")
        line, headers = _parse(answer)
        return Answer(int(line.split(" ")[1]), headers, answer, self.reader, head.startswith(b"HEAD"))

    def close(self) -> None:
        if self.writer is not None:
            self.writer.close()
        self.reader = self.writer = None


@dataclass
class Answer:
    """Of the server, of which the head has come."""

    status: int
    headers: Mapping[str, str]
    head: bytes
    reader: asyncio.StreamReader
    without_body: bool = False

    async def pieces(self) -> AsyncGenerator[bytes, None]:
        """The bytes as they are to be handed on, the head first; a chunk at a time."""
        yield self.head
        if self.without_body or self.status in (204, 304) or self.status < 200:
            return
        if "chunked" in self.headers.get("transfer-encoding", ""):
            while True:
                size = await self.reader.readuntil(b"\r\n")
                data = await self.reader.readexactly(int(size.split(b";")[0], 16) + 2)
                yield size + data
                if data == b"\r\n":
                    return
        left = int(self.headers.get("content-length", 0))
        while left:
            data = await self.reader.read(min(left, CHUNK))
            if not data:
                raise EOFError
            left -= len(data)
            yield data


async def _pump(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    while data := await reader.read(CHUNK):
        writer.write(data)
        await writer.drain()


def _parse(head: bytes) -> tuple[str, dict[str, str]]:
    """The first line, and headers with lower-case names."""
    line, *rest = head.decode("latin-1").split("\r\n")
    pairs = (item.split(":", 1) for item in rest if ":" in item)
    return line, {name.strip().lower(): value.strip() for name, value in pairs}


_PATH = re.compile(
    r".*?/(?:api/v1|apis/[^/]+/[^/]+)(?:/namespaces/(?P<ns>[^/]+)(?=/[a-z]))?/(?P<kind>[a-z0-9]+)"
    r"(?:/(?P<name>[^/]+))?(?:/(?P<sub>[a-z]+))?$"
)


def _asked(number: int, method: str, path: str) -> Asked:
    url = urlsplit(path)
    query = parse_qs(url.query)
    found = _PATH.match(url.path)
    kind = found["kind"] if found else url.path
    name = (found["name"] or "") if found else ""
    if found and found["sub"]:
        kind = f"{kind}/{found['sub']}"
    watching = query.get("watch", ["0"])[0] in ("1", "true")
    verb = {
        "GET": "get" if name or not found else "list",
        "POST": "create",
        "PUT": "update",
        "PATCH": "patch",
        "DELETE": "delete",
    }.get(method, method.lower())
    return Asked(number, method, path, "watch" if watching else verb, kind, name)


def _reset(writer: asyncio.StreamWriter) -> None:
    """An end that is none in good order."""
    sock = writer.get_extra_info("socket")
    if sock is not None:
        with suppress(OSError):
            sock.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    writer.transport.abort()


def _own_tls(folder: Path) -> tuple[ssl.SSLContext, bytes]:
    ca = pki.authority("allaboard-tests-proxy")
    pki.sign(ca, "proxy", hosts=["127.0.0.1", "localhost"]).write(folder, "proxy")
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(folder / "proxy.crt", folder / "proxy.key")
    return context, ca.certificate


def _pem(entry: Mapping[str, str], key: str, path: Path) -> str | None:
    if data := entry.get(f"{key}-data"):
        return base64.b64decode(data).decode()
    return (path.parent / entry[key]).read_text() if entry.get(key) else None


def main() -> int:
    parser = argparse.ArgumentParser(description="A counting proxy before an API server.")
    parser.add_argument("kubeconfig", type=Path)
    parser.add_argument("--write", type=Path, required=True, help="where clients find their kubeconfig")
    parser.add_argument("--plain", action="store_true", help="HTTP towards clients")
    chosen = parser.parse_args()
    with tempfile.TemporaryDirectory(prefix="allaboard-proxy-") as folder:
        proxy = FaultProxy(chosen.kubeconfig, tls=not chosen.plain, folder=Path(folder))

        async def serve() -> None:
            ended = asyncio.Event()
            loop = asyncio.get_running_loop()
            for number in (signal.SIGTERM, signal.SIGINT):
                loop.add_signal_handler(number, ended.set)
            await proxy.start()
            made = chosen.write.with_suffix(".part")
            made.touch(mode=0o600)
            made.write_text(proxy.kubeconfig.read_text())
            made.rename(chosen.write)
            await ended.wait()

        with suppress(asyncio.CancelledError):
            asyncio.run(serve())
    return 0


if __name__ == "__main__":
    sys.exit(main())
