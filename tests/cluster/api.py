"""The harness's own small client of the API server: what sets a cluster up must not be what the tests try.

Objects are plain dicts. Paths of objects come from discovery, so any kind that is served can be named. Safe
to use from several threads; each has a connection of its own.
"""

from __future__ import annotations

import base64
import builtins
import http.client
import json
import os
import ssl
import subprocess
import tempfile
import threading
import time
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeVar
from urllib.parse import quote, urlencode, urlsplit

import yaml

Object = dict[str, Any]
T = TypeVar("T")

JSON = "application/json"
MERGE = "application/merge-patch+json"
APPLY = "application/apply-patch+yaml"

MANAGER = "allaboard-tests"


class ApiError(Exception):
    """The API server refused: its status, its reason and its message."""

    def __init__(self, method: str, path: str, status: int, answer: Any) -> None:
        told = answer if isinstance(answer, dict) else {}
        self.status = status
        self.reason = str(told.get("reason", ""))
        self.message = str(told.get("message", answer))
        super().__init__(f"{method} {path}: {status} {self.reason}: {self.message}")


@dataclass(frozen=True, slots=True)
class Kind:
    """How a kind is served."""

    version: str
    plural: str
    namespaced: bool

    def path(self, namespace: str | None = None, name: str | None = None) -> str:
        root = f"/apis/{self.version}" if "/" in self.version else f"/api/{self.version}"
        space = f"/namespaces/{namespace}" if self.namespaced and namespace else ""
        return f"{root}{space}/{self.plural}" + (f"/{quote(name, safe='')}" if name else "")


class Api:
    def __init__(
        self, server: str, tls: ssl.SSLContext | None, headers: Mapping[str, str] | None = None
    ) -> None:
        self.server = server
        self._tls = tls
        self._headers = dict(headers or {})
        self._of_thread = threading.local()
        self._kinds: dict[tuple[str, str], Kind] = {}
        self.made: list[tuple[str, str, str]] = []
        """apiVersion, kind and name of what was created outside of every namespace, namespaces among them."""

    @classmethod
    def from_kubeconfig(cls, path: str | Path, context: str | None = None) -> Api:
        """A client for the context, or the current one.

        Certificates, tokens and exec plugins; no other way in.
        """
        config = yaml.safe_load(Path(path).read_text())
        base = Path(path).resolve().parent
        chosen = _named(config["contexts"], context or config["current-context"])["context"]
        cluster = _named(config["clusters"], chosen["cluster"])["cluster"]
        user = dict(_named(config["users"], chosen["user"])["user"])
        if "exec" in user:
            user |= _credential_of(user["exec"])
        authority = _data(cluster, "certificate-authority", base)
        tls = ssl.create_default_context(cadata=authority.decode() if authority else None)
        if cluster.get("insecure-skip-tls-verify"):
            tls.check_hostname, tls.verify_mode = False, ssl.CERT_NONE
        certificate, key = _data(user, "client-certificate", base), _data(user, "client-key", base)
        if certificate and key:
            # The ssl module reads these from files alone.
            with tempfile.NamedTemporaryFile() as file:
                file.write(certificate + b"\n" + key)
                file.flush()
                tls.load_cert_chain(file.name)
        headers = {}
        if token := user.get("token") or _content(user.get("tokenFile"), base).decode().strip():
            headers["Authorization"] = f"Bearer {token}"
        return cls(cluster["server"], tls, headers)

    # --- requests

    def request(
        self,
        method: str,
        path: str,
        body: Any = None,
        *,
        query: Mapping[str, Any] | None = None,
        content: str = JSON,
        timeout: float = 30,
    ) -> Any:
        """The answer, parsed when it is JSON. ApiError for a refusal, OSError when nobody answers."""
        data = None if body is None else json.dumps(body).encode()
        headers = {**self._headers, "Accept": JSON, **({"Content-Type": content} if data else {})}
        url = urlsplit(self.server)
        target = url.path.rstrip("/") + path + (f"?{urlencode(query)}" if query else "")
        connection, fresh = self._connection(url.netloc, timeout)
        try:
            connection.request(method, target, data, headers)
            response = connection.getresponse()
            text = response.read()
        except (http.client.HTTPException, OSError):
            self.close()
            if fresh:
                raise
            # The server closed a connection that lay idle: that says nothing about this request.
            return self.request(method, path, body, query=query, content=content, timeout=timeout)
        answer: Any = text.decode(errors="replace")
        if response.headers.get_content_type() == JSON:
            is_watch = response.status < 400 and "watch" in (query or {})
            answer = [json.loads(line) for line in text.splitlines()] if is_watch else json.loads(text)
        if response.status >= 400:
            raise ApiError(method, path, response.status, answer)
        return answer

    def close(self) -> None:
        """Closes the connection of this thread."""
        connection = getattr(self._of_thread, "connection", None)
        if connection is not None:
            connection.close()
            self._of_thread.connection = None

    def _connection(self, netloc: str, timeout: float) -> tuple[http.client.HTTPConnection, bool]:
        connection: http.client.HTTPConnection | None = getattr(self._of_thread, "connection", None)
        if connection is not None and connection.sock is not None:
            connection.sock.settimeout(timeout)
            return connection, False
        if self._tls is None:
            connection = http.client.HTTPConnection(netloc, timeout=timeout)
        else:
            connection = http.client.HTTPSConnection(netloc, timeout=timeout, context=self._tls)
        self._of_thread.connection = connection
        return connection, True

    # --- objects

    def kind(self, version: str, kind: str) -> Kind:
        """How this kind is served; LookupError when it is not."""
        if (version, kind) not in self._kinds:
            root = f"/apis/{version}" if "/" in version else f"/api/{version}"
            try:
                resources = self.request("GET", root)["resources"]
            except ApiError as error:
                if error.status == 404:
                    raise LookupError(f"{version} is not served here") from error
                raise
            for resource in resources:
                if "/" not in resource["name"]:
                    found = Kind(version, resource["name"], resource["namespaced"])
                    self._kinds[version, resource["kind"]] = found
        if (version, kind) not in self._kinds:
            raise LookupError(f"{version} has no kind {kind} here")
        return self._kinds[version, kind]

    def serves(self, version: str, kind: str) -> bool:
        try:
            self.kind(version, kind)
        except LookupError:
            return False
        return True

    def path(self, obj: Object) -> str:
        meta = obj["metadata"]
        kind = self.kind(obj["apiVersion"], obj["kind"])
        return kind.path(meta.get("namespace", "default"), meta["name"])

    def get(self, version: str, kind: str, name: str, namespace: str | None = None) -> Object | None:
        """The object, or None when there is none of this name."""
        try:
            return dict(self.request("GET", self.kind(version, kind).path(namespace, name)))
        except ApiError as error:
            if error.status == 404:
                return None
            raise

    def dry_run(self, obj: Object) -> Object:
        """The object as it would be stored: strict, and nothing is kept."""
        query = {"fieldValidation": "Strict", "dryRun": "All"}
        return dict(self.request("POST", self.path(obj).rpartition("/")[0], obj, query=query))

    def list(self, version: str, kind: str, namespace: str | None = None, **query: str) -> list[Object]:
        return list(self.request("GET", self.kind(version, kind).path(namespace), query=query)["items"])

    def written(
        self, version: str, kind: str, namespace: str, since: str
    ) -> builtins.list[tuple[str, Object]]:
        """(ADDED, MODIFIED or DELETED, object) of each time that one of these objects was written after this
        resourceVersion, in order, up to now: what the server still remembers of it.
        """
        query = {"watch": "1", "resourceVersion": since, "timeoutSeconds": "1"}
        events = self.request("GET", self.kind(version, kind).path(namespace), query=query)
        if errors := [event["object"] for event in events if event["type"] == "ERROR"]:
            raise LookupError(f"the server has forgotten what was written after {since}: {errors[0]}")
        return [(event["type"], event["object"]) for event in events]

    def create(self, obj: Object) -> Object:
        """Strict: an unknown field is an error."""
        path = self.path(obj).rpartition("/")[0]
        made = dict(self.request("POST", path, obj, query={"fieldValidation": "Strict"}))
        if not self.kind(obj["apiVersion"], obj["kind"]).namespaced:
            self.made.append((obj["apiVersion"], obj["kind"], obj["metadata"]["name"]))
        return made

    def apply(self, objects: Object | Iterable[Object]) -> None:
        """Server-side apply, in this order: created, or made so."""
        for obj in [objects] if isinstance(objects, dict) else objects:
            query = {"fieldManager": MANAGER, "force": "true"}
            self.request("PATCH", self.path(obj), obj, query=query, content=APPLY)

    def patch(self, obj: Object, change: Object, sub: str = "") -> Object:
        """A merge patch of the object that this names, or of its subresource."""
        return dict(self.request("PATCH", self.path(obj) + (f"/{sub}" if sub else ""), change, content=MERGE))

    def delete(
        self, version: str, kind: str, name: str, namespace: str | None = None, *, grace: int | None = None
    ) -> None:
        """Deleted in the background; nothing when there is none. ``grace``: seconds that a pod is given."""
        options: Object = {"propagationPolicy": "Background"}
        if grace is not None:
            options["gracePeriodSeconds"] = grace
        try:
            path = self.kind(version, kind).path(namespace, name)
            self.request("DELETE", path, options)
        except ApiError as error:
            if error.status != 404:
                raise


def until(what: str, look: Callable[[], T | None], timeout: float = 120, pause: float = 0.05) -> T:
    """The first answer that is neither None nor False; TimeoutError that says what was waited for."""
    deadline = time.monotonic() + timeout
    while True:
        if answer := look():
            return answer
        if time.monotonic() > deadline:
            raise TimeoutError(f"waited {timeout:g} s for {what}")
        time.sleep(pause)


def kubeconfig(cluster: Object, user: Object, *, namespace: str = "default") -> str:
    """A kubeconfig with one context, of a cluster entry and a user entry."""
    content = {
        "apiVersion": "v1",
        "kind": "Config",
        "current-context": "allaboard",
        "clusters": [{"name": "allaboard", "cluster": cluster}],
        "users": [{"name": "allaboard", "user": user}],
        "contexts": [
            {
                "name": "allaboard",
                "context": {"cluster": "allaboard", "user": "allaboard", "namespace": namespace},
            }
        ],
    }
    return yaml.safe_dump(content, sort_keys=False)


def _named(entries: list[Object], name: str) -> Object:
    return next(entry for entry in entries if entry["name"] == name)


def _data(entry: Object, key: str, base: Path) -> bytes:
    if encoded := entry.get(f"{key}-data"):
        return base64.b64decode(encoded)
    return _content(entry.get(key), base)


def _content(path: str | None, base: Path) -> bytes:
    return (base / path).read_bytes() if path else b""


def _credential_of(plugin: Object) -> Object:
    environ = {**os.environ, **{each["name"]: each["value"] for each in plugin.get("env") or []}}
    asked = {"apiVersion": plugin["apiVersion"], "kind": "ExecCredential", "spec": {"interactive": False}}
    environ["KUBERNETES_EXEC_INFO"] = json.dumps(asked)
    command = [plugin["command"], *(plugin.get("args") or [])]
    told = subprocess.run(command, env=environ, check=True, capture_output=True, text=True, timeout=60).stdout
    status = json.loads(told)["status"]
    data = {
        f"{key}-data": base64.b64encode(status[field].encode()).decode()
        for key, field in (("client-certificate", "clientCertificateData"), ("client-key", "clientKeyData"))
        if field in status
    }
    return data | ({"token": status["token"]} if "token" in status else {})
