"""A git repository and servers of it on loopback: dumb HTTP (files) and smart HTTP with a password."""

from __future__ import annotations

import base64
import os
import subprocess
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from http.server import BaseHTTPRequestHandler, SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

_NAMES = {f"GIT_{who}_{what}": "a@b" for who in ("AUTHOR", "COMMITTER") for what in ("NAME", "EMAIL")}
_ENVIRONMENT = {
    **{name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ},
    **_NAMES,
    "GIT_CONFIG_GLOBAL": os.devnull,
}


class Repository:
    """A bare repository at ``folder``/train.git and a work tree beside it."""

    def __init__(self, folder: Path) -> None:
        self.bare, self.tree = folder / "train.git", folder / "tree"
        self._git(folder, "init", "-q", "--bare", "-b", "main", str(self.bare))
        self._git(folder, "clone", "-q", str(self.bare), str(self.tree))
        self._git(self.tree, "checkout", "-q", "-B", "main")

    def push(self, files: dict[str, str], *more: str) -> str:
        """Commit these files and push them; returns the commit."""
        for name, text in files.items():
            (self.tree / name).parent.mkdir(parents=True, exist_ok=True)
            (self.tree / name).write_text(text)
        self._git(self.tree, "add", ".")
        self._git(self.tree, "commit", "-q", "-m", "a change")
        for words in more:
            self._git(self.tree, *words.split())
        self._git(self.tree, "push", "-q", "--force", "origin", "main", "--tags")
        self._git(self.bare, "update-server-info")
        return self._git(self.tree, "rev-parse", "HEAD")

    def _git(self, folder: Path, *words: str) -> str:
        done = subprocess.run(
            ["git", *words], cwd=folder, env=_ENVIRONMENT, capture_output=True, text=True, check=True
        )
        return done.stdout.strip()

    @contextmanager
    def dumb(self) -> Iterator[str]:
        """Its files over HTTP; yields the URL."""
        with serving(partial(_Quiet, directory=str(self.bare.parent))) as address:
            yield f"{address}/train.git"

    @contextmanager
    def smart(self, password: str = "", host: str = "127.0.0.1") -> Iterator[str]:
        """`git http-backend` over HTTP, with a password where one is given; yields the URL."""
        handler = type("Handler", (_Smart,), {"root": str(self.bare.parent), "password": password})
        with serving(handler, host) as address:
            yield f"{address}/train.git"


@contextmanager
def serving(handler: Any, host: str = "127.0.0.1") -> Iterator[str]:
    """An HTTP server at an address of this machine, the loopback; yields its address."""
    server = ThreadingHTTPServer((host, 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://{host}:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


@contextmanager
def answering(status: int) -> Iterator[str]:
    """A server that answers everything with this status; yields its address."""

    def answer(request: BaseHTTPRequestHandler) -> None:
        request.send_response(status)
        request.send_header("Content-Length", "0")
        request.end_headers()

    names = dict.fromkeys(("do_GET", "do_POST", "do_HEAD"), answer)
    with serving(type("Handler", (_Quiet,), names)) as address:
        yield address


class _Quiet(SimpleHTTPRequestHandler):
    def log_message(self, *_: Any) -> None: ...


class _Smart(BaseHTTPRequestHandler):
    root = password = ""

    def log_message(self, *_: Any) -> None: ...

    def do_GET(self) -> None:
        given = self.headers.get("Authorization", "").removeprefix("Basic ")
        if self.password and base64.b64decode(given).decode().rpartition(":")[2] != self.password:
            self.send_response(401)
            self.send_header("WWW-Authenticate", 'Basic realm="git"')
            self.send_header("Content-Length", "0")
            self.end_headers()
            return
        path, _, query = self.path.partition("?")
        body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
        environment = {
            **_ENVIRONMENT,
            "GIT_PROJECT_ROOT": self.root,
            "GIT_HTTP_EXPORT_ALL": "1",
            "REQUEST_METHOD": self.command,
            "PATH_INFO": path,
            "QUERY_STRING": query,
            "CONTENT_TYPE": self.headers.get("Content-Type", ""),
            "CONTENT_LENGTH": str(len(body)),
            "HTTP_CONTENT_ENCODING": self.headers.get("Content-Encoding", ""),
        }
        done = subprocess.run(
            ["git", "http-backend"], input=body, env=environment, capture_output=True, check=False
        )
        head, _, content = done.stdout.partition(b"\r\n\r\n")
        headers = dict(line.split(": ", 1) for line in head.decode().splitlines() if ": " in line)
        self.send_response(int(headers.pop("Status", "200 OK").split()[0]))
        for name, value in headers.items():
            self.send_header(name, value)
        self.send_header("Content-Length", str(len(content)))
        self.end_headers()
        self.wfile.write(content)

    do_POST = do_GET
