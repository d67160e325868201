"""A real HTTP server on loopback that answers what a test wrote down, well or badly, and keeps what it was
asked.

    with scripted() as server:
        server.answers(refused(503), says({"kind": "Pod"}))
        api = server.api()

Answers are taken in order; when they are used up, `server.otherwise` answers. An answer is a function that is
given the open connection, so it may also cut it, fall silent, or send half of something.
"""

from __future__ import annotations

import json
import socket
import socketserver
import ssl
import struct
import threading
import time
from base64 import b64encode
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from hashlib import sha1
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, urlsplit

from allaboard.backends.kubernetes.client.api import Api, AsyncApi
from allaboard.backends.kubernetes.client.config import Fixed, Secret, Settings
from allaboard.backends.kubernetes.client.protocol import Patience

QUICK = Patience(budget=1.5, first=0.01, longest=0.05)
HASTY = Patience(budget=0.1, first=0.01, longest=0.05)
"""For requests that nobody answers."""
DATE = "Sat, 21 Nov 2026 12:00:00 GMT"


@dataclass(frozen=True)
class Asked:
    """One request."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: Any
    at: float


Handler = BaseHTTPRequestHandler
Answer = Callable[[Handler], None]


def says(body: Any, status: int = 200, **headers: str) -> Answer:
    """JSON, or text as it is."""

    def answer(handler: Handler) -> None:
        data = body.encode() if isinstance(body, str) else json.dumps(body).encode()
        handler.send_response(status)
        handler.send_header("Content-Type", "text/plain" if isinstance(body, str) else "application/json")
        handler.send_header("Content-Length", str(len(data)))
        for name, value in headers.items():
            handler.send_header(name.replace("_", "-"), value)
        handler.end_headers()
        handler.wfile.write(data)

    return answer


def refused(
    status: int, reason: str = "", message: str = "", details: dict[str, Any] | None = None, **headers: str
) -> Answer:
    """A Status, as the API server sends it."""
    body = {
        "kind": "Status",
        "apiVersion": "v1",
        "status": "Failure",
        "reason": reason,
        "message": message or f"{reason or status} was said",
        "code": status,
        **({"details": details} if details else {}),
    }
    return says(body, status, **headers)


def cut(handler: Handler) -> None:
    """The connection is reset before an answer."""
    handler.connection.setsockopt(socket.SOL_SOCKET, socket.SO_LINGER, struct.pack("ii", 1, 0))
    _close(handler)


def half(handler: Handler) -> None:
    """An answer that ends in its middle."""
    handler.send_response(200)
    handler.send_header("Content-Type", "application/json")
    handler.send_header("Content-Length", "1000")
    handler.end_headers()
    handler.wfile.write(b'{"kind": ')
    handler.wfile.flush()
    _close(handler)


def streams(*pieces: Any, end: str = "well") -> Answer:
    """Chunks, as a watch or a log: JSON lines, bytes as they are, numbers as pauses. ``end``: well, cut, or
    silent (seconds of it are the last piece).
    """

    def answer(handler: Handler) -> None:
        handler.send_response(200)
        handler.send_header("Transfer-Encoding", "chunked")
        handler.end_headers()
        with suppress(OSError):
            for piece in pieces:
                if isinstance(piece, int | float):
                    time.sleep(piece)
                    continue
                data = piece if isinstance(piece, bytes) else json.dumps(piece).encode() + b"\n"
                handler.wfile.write(f"{len(data):x}\r\n".encode() + data + b"\r\n")
                handler.wfile.flush()
            if end == "well":
                handler.wfile.write(b"0\r\n\r\n")
                handler.wfile.flush()
            else:
                _close(handler)

    return answer


def opens_a_socket(*messages: bytes, given: list[bytes] | None = None, end: str = "well") -> Answer:
    """A WebSocket that takes one message, for ``given``, then sends these. ``end``: well, or silent."""

    def answer(handler: Handler) -> None:
        key = handler.headers["Sec-WebSocket-Key"] + "258EAFA5-E914-47DA-95CA-C5AB0DC85B11"
        handler.send_response(101)
        handler.send_header("Upgrade", "websocket")
        handler.send_header("Connection", "Upgrade")
        handler.send_header("Sec-WebSocket-Accept", b64encode(sha1(key.encode()).digest()).decode())
        handler.send_header("Sec-WebSocket-Protocol", handler.headers["Sec-WebSocket-Protocol"].split(",")[0])
        handler.end_headers()
        message = _read_frame(handler)
        if given is not None:
            given.append(message)
        for data in (*messages, None) if end == "well" else messages:
            # Final and binary; a farewell last.
            first = b"\x88\x00" if data is None else b"\x82\x7f" + struct.pack(">Q", len(data))
            handler.wfile.write(first + (data or b""))
        handler.wfile.flush()
        handler.rfile.read(1)
        _close(handler)

    return answer


def _read_frame(handler: Handler) -> bytes:
    """A message that comes in one frame, as clients mask it."""
    size = handler.rfile.read(2)[1] & 127
    if size > 125:
        size = int.from_bytes(handler.rfile.read(2 if size == 126 else 8), "big")
    mask = handler.rfile.read(4)
    return bytes(byte ^ mask[n % 4] for n, byte in enumerate(handler.rfile.read(size)))


def _close(handler: Handler) -> None:
    handler.close_connection = True
    with suppress(OSError):
        handler.wfile.flush()
    # The file objects of the handler keep the socket open otherwise.
    with suppress(OSError):
        handler.connection.shutdown(socket.SHUT_RDWR)
    handler.connection.close()


@dataclass
class Scripted:
    """The server. ``asked``: every request that came, oldest first."""

    url: str
    asked: list[Asked] = field(default_factory=list)
    otherwise: Answer = field(default_factory=lambda: refused(404, "NotFound", "nothing was written down"))
    script: deque[Answer] = field(default_factory=deque)
    connections: int = 0

    def answers(self, *answers: Answer) -> None:
        self.script.extend(answers)

    def settings(self, **changes: Any) -> Settings:
        known: dict[str, Any] = {
            "server": self.url,
            "credentials": Fixed(Secret("Bearer sesame")),
            "namespace": "team",
        }
        return Settings(**{**known, **changes})

    def api(self, patience: Patience = QUICK, **changes: Any) -> Api:
        return Api(self.settings(**changes), patience=patience)

    def async_api(self, patience: Patience = QUICK, **changes: Any) -> AsyncApi:
        return AsyncApi(self.settings(**changes), patience=patience)

    @property
    def lines(self) -> list[str]:
        """``GET /path`` of every request."""
        return [f"{asked.method} {asked.path}" for asked in self.asked]


@contextmanager
def scripted(context: ssl.SSLContext | None = None, host: str = "127.0.0.1") -> Iterator[Scripted]:
    """``context``: with it the server speaks TLS."""
    known: list[Scripted] = []
    lock = threading.Lock()

    class Spoken(BaseHTTPRequestHandler):
        protocol_version = "HTTP/1.1"

        def setup(self) -> None:
            super().setup()
            known[0].connections += 1

        def answer(self) -> None:
            split = urlsplit(self.path)
            length = int(self.headers.get("Content-Length") or 0)
            body = self.rfile.read(length) if length else b""
            server = known[0]
            with lock:
                server.asked.append(
                    Asked(
                        self.command,
                        split.path,
                        dict(parse_qsl(split.query, keep_blank_values=True)),
                        {name.lower(): value for name, value in self.headers.items()},
                        json.loads(body) if body else None,
                        time.monotonic(),
                    )
                )
                answer = server.script.popleft() if server.script else server.otherwise
            with suppress(OSError):
                answer(self)

        do_GET = do_POST = do_PUT = do_PATCH = do_DELETE = answer

        def date_time_string(self, timestamp: float | None = None) -> str:
            return DATE

        def log_message(self, *words: object) -> None:
            return None

        def handle_one_request(self) -> None:
            try:
                super().handle_one_request()
            except (OSError, ValueError):
                self.close_connection = True

    class Server(ThreadingHTTPServer):
        daemon_threads = True
        request_queue_size = 64

        def handle_error(self, *args: object) -> None:
            return None

    httpd = Server((host, 0), Spoken)
    if context is not None:
        httpd.socket = context.wrap_socket(httpd.socket, server_side=True, do_handshake_on_connect=False)
    port = httpd.server_address[1]
    known.append(Scripted(f"{'https' if context else 'http'}://{host}:{port}"))
    thread = threading.Thread(target=httpd.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True)
    thread.start()
    try:
        yield known[0]
    finally:
        httpd.shutdown()
        httpd.server_close()
        thread.join()


@contextmanager
def tunnel() -> Iterator[tuple[str, list[str]]]:
    """A proxy that is asked to CONNECT, and the first line and the password of each who did."""
    asked: list[str] = []

    class Connecting(socketserver.StreamRequestHandler):
        def handle(self) -> None:
            line = self.rfile.readline().decode().strip()
            headers = {}
            while header := self.rfile.readline().decode().strip():
                name, _, value = header.partition(":")
                headers[name.lower()] = value.strip()
            asked.append(f"{line} {headers.get('proxy-authorization', '')}".strip())
            host, _, port = line.split(" ")[1].rpartition(":")
            with socket.create_connection((host, int(port))) as far:
                self.wfile.write(b"HTTP/1.1 200 Connection established\r\n\r\n")
                back = threading.Thread(target=self._pump, args=(far, self.connection), daemon=True)
                back.start()
                self._pump(self.connection, far)
                back.join(5)

        def _pump(self, one: socket.socket, other: socket.socket) -> None:
            with suppress(OSError):
                while data := one.recv(1 << 16):
                    other.sendall(data)
            with suppress(OSError):
                other.shutdown(socket.SHUT_RDWR)

    class Server(socketserver.ThreadingTCPServer):
        daemon_threads = True
        allow_reuse_address = True

    with Server(("127.0.0.1", 0), Connecting) as server:
        threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.02}, daemon=True).start()
        yield f"127.0.0.1:{server.server_address[1]}", asked
        server.shutdown()


# --- what API servers say -----------------------------------------------------------------------------------


def pod(name: str, version: str = "7", **more: Any) -> dict[str, Any]:
    return {
        "kind": "Pod",
        "apiVersion": "v1",
        "metadata": {"name": name, "namespace": "team", "resourceVersion": version, "uid": f"u-{name}"},
        **more,
    }


def page(items: Sequence[Any], version: str = "100", token: str = "") -> Answer:
    metadata = {"resourceVersion": version, **({"continue": token} if token else {})}
    return says({"kind": "PodList", "apiVersion": "v1", "metadata": metadata, "items": list(items)})


COLUMNS = [
    {"name": "Name", "type": "string"},
    {"name": "State", "type": "string"},
    {"name": "Age", "type": "date"},
]


def table(
    rows: Sequence[tuple[str, str]], version: str = "100", token: str = "", columns: bool = True
) -> Any:
    metadata = {"resourceVersion": version, **({"continue": token} if token else {})}
    return {
        "kind": "Table",
        "apiVersion": "meta.k8s.io/v1",
        "metadata": metadata,
        "columnDefinitions": COLUMNS if columns else None,
        "rows": [{"cells": [name, state, "5s"], "object": None} for name, state in rows],
    }


def event(kind: str, thing: Any) -> dict[str, Any]:
    return {"type": kind, "object": thing}


def row(kind: str, name: str, state: str, version: str = "101", first: bool = False) -> dict[str, Any]:
    return event(kind, table([(name, state)], version, columns=first))


def bookmark(version: str) -> dict[str, Any]:
    return event("BOOKMARK", table([], version, columns=False))


def failure(code: int, reason: str, message: str = "") -> dict[str, Any]:
    """An ERROR in the midst of a watch."""
    return event(
        "ERROR", {"kind": "Status", "code": code, "reason": reason, "message": message or f"{reason} it is"}
    )
