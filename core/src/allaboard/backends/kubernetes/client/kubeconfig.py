"""A kubeconfig, read as kubectl reads it: several files are one, in which the first to name a thing is right;
paths are relative to the file that they stand in. It may be a text without a file, as in an Airflow
connection. All trouble is `BadInput` that says where it is.
"""

from __future__ import annotations

import base64
import binascii
import os
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

from allaboard.backends.kubernetes.client.config import Credentials, Fixed, Secret
from allaboard.backends.kubernetes.client.credentials import (
    Plugin,
    borrowed_credentials,
    token_file,
    without_credentials,
)
from allaboard.errors import BadInput
from allaboard.job.loader import job_folder, read_text
from allaboard.text.names import nearest, one_of
from allaboard.text.untrusted import show


@dataclass(frozen=True, slots=True)
class Entry:
    """One named part, and the folder of its file."""

    body: Mapping[str, Any]
    folder: Path


@dataclass(frozen=True, slots=True)
class Kubeconfig:
    """All files together. ``where``: for messages; ``options``: names of the options that choose another
    file, and a context; ``load``: makes the client library read it into a configuration, with a context.
    """

    where: str
    options: tuple[str, str]
    load: Callable[[Any, str], None] = field(repr=False)
    current: str = ""
    contexts: Mapping[str, Entry] = field(default_factory=dict)
    clusters: Mapping[str, Entry] = field(default_factory=dict)
    users: Mapping[str, Entry] = field(default_factory=dict, repr=False)

    def context(self, name: str | None) -> Context:
        """The context of this name, or the current one."""
        chosen = name or self.current
        another_file, another_context = self.options
        if not self.contexts:
            raise BadInput(f"{self.where} has no contexts; name another file with {another_file}")
        if not chosen:
            raise BadInput(
                f"{self.where} has no current-context; choose with {another_context}: "
                f"{one_of(sorted(self.contexts))}"
            )
        if chosen not in self.contexts:
            close = nearest(chosen, self.contexts)
            raise BadInput(
                f"context {show(chosen)} is not in {self.where}"
                + (f"; did you mean {close!r}? It has " if close else "; it has ")
                + _some(sorted(self.contexts))
            )
        body = self.contexts[chosen].body
        where = f"context {chosen!r} of {self.where}"
        cluster = _named(self.clusters, body.get("cluster"), "cluster", where)
        user = _named(self.users, body["user"], "user", where) if body.get("user") else None
        return Context(chosen, where, self, body, cluster, user or Entry({}, Path()))


@dataclass(frozen=True, slots=True)
class Context:
    """One context with its cluster and user."""

    name: str
    where: str
    of: Kubeconfig = field(repr=False)
    body: Mapping[str, Any]
    cluster: Entry
    user: Entry = field(repr=False)

    @property
    def namespace(self) -> str | None:
        return _text(self.body, "namespace")

    @property
    def server(self) -> str:
        server = str(self.cluster.body.get("server") or "").rstrip("/")
        if not server.startswith(("https://", "http://")):
            raise BadInput(
                f"{self.where}: its cluster has no server; write server: https://HOST:PORT, not {server!r}"
            )
        if not _is_url(server):
            raise BadInput(
                f"{self.where}: the server of its cluster is no URL; write server: https://HOST:PORT, not "
                f"{server!r}"
            )
        return server

    @property
    def authority(self) -> str | None:
        return _pem(self.cluster, "certificate-authority", self.where)

    @property
    def verify(self) -> bool:
        return not self.cluster.body.get("insecure-skip-tls-verify")

    @property
    def tls_name(self) -> str | None:
        return _text(self.cluster.body, "tls-server-name")

    @property
    def proxy(self) -> str | None:
        return _text(self.cluster.body, "proxy-url")

    def credentials(self) -> Credentials:
        """As kubectl: a token before a token file before a plugin before a password; beside any of them a
        client certificate.
        """
        body, folder, where = self.user.body, self.user.folder, f"user of {self.where}"
        if body.get("as") or body.get("as-groups") or body.get("as-uid"):
            raise BadInput(
                f"{where} impersonates another user (as: ...), which allaboard does not do; use a plain user"
            )
        for name in ("token", "tokenFile", "username", "password"):
            if isinstance(body.get(name), Mapping | list):
                raise BadInput(f"{where}: {name} is no text; write it in one line, in quotes")
        certificate = self._certificate()
        if token := body.get("token"):
            # Of a block of YAML the end of the line belongs to the text.
            return Fixed(Secret(f"Bearer {str(token).strip()}", certificate))
        if path := body.get("tokenFile"):
            return token_file(folder / job_folder(str(path)), str(path))
        for name in ("exec", "auth-provider"):
            if body.get(name) and not isinstance(body[name], Mapping):
                raise BadInput(f"{where}: {name} is no mapping; compare with kubectl config view")
        if plugin := body.get("exec"):
            return Plugin.of(plugin, self._for_plugin(), folder, where).credentials()
        if body.get("auth-provider"):
            return self._provider(str(body["auth-provider"].get("name")))
        if (user := body.get("username")) and (word := body.get("password")) is not None:
            basic = base64.b64encode(f"{user}:{word}".encode()).decode()
            return Fixed(Secret(f"Basic {basic}", certificate))
        return Fixed(Secret(None, certificate))

    def _certificate(self) -> tuple[str, str] | None:
        certificate = _pem(self.user, "client-certificate", self.where)
        key = _pem(self.user, "client-key", self.where)
        if certificate and not key:
            raise BadInput(f"user of {self.where} has a client-certificate and no client-key; add the key")
        return (certificate, key) if certificate and key else None

    def _for_plugin(self) -> dict[str, Any]:
        cluster = dict(self.cluster.body)
        listed = cluster.pop("extensions", None)
        extensions = {
            str(e.get("name")): e.get("extension")
            for e in (listed if isinstance(listed, list) else ())
            if isinstance(e, Mapping)
        }
        if "client.authentication.k8s.io/exec" in extensions:
            cluster["config"] = extensions["client.authentication.k8s.io/exec"]
        return cluster

    def _provider(self, name: str) -> Credentials:
        """Providers that kubectl no longer has (oidc, gcp, azure): what the client library knows of them."""
        name_of_context, load, where = self.name, self.of.load, self.of.where

        def configure() -> Any:
            try:
                from kubernetes import client
            except ImportError as error:
                raise BadInput(
                    f"user of {self.where} has the auth-provider {name!r}, which kubectl no longer supports; "
                    "write the provider's plugin as exec, or pip install kubernetes, which still knows some"
                ) from error
            configuration = client.Configuration()
            try:
                load(configuration, name_of_context)
            except Exception as error:  # of google, azure, oauthlib and of the library itself
                raise BadInput(
                    f"user of {self.where}: auth-provider {name!r} gave no token ({type(error).__name__}); "
                    "log in with its tool, or write its plugin as exec"
                ) from error
            return configuration

        return borrowed_credentials(configure, f"auth-provider {name} of {where}")


def paths_of(environ: Mapping[str, str], home: Path) -> tuple[Path, ...]:
    """The places of kubeconfigs when none is named."""
    listed = [part for part in environ.get("KUBECONFIG", "").split(os.pathsep) if part]
    return tuple(job_folder(part) for part in listed) or (home / ".kube" / "config",)


def read_kubeconfigs(
    paths: Sequence[Path], options: tuple[str, str] = ("--kubeconfig", "--context")
) -> Kubeconfig:
    """Those of the files that are there, as one. Raises BadInput when one of them cannot be read."""
    listed = os.pathsep.join(map(str, paths))

    def load(configuration: Any, context: str) -> None:
        from kubernetes import config

        config.load_kube_config(listed, context, configuration, persist_config=False)

    documents = []
    for path in filter(is_there, paths):
        try:
            text = read_text(path)
        except BadInput as error:
            raise BadInput(f"kubeconfig {error}") from None
        where = f"kubeconfig {path}"
        documents.append((where, _parse(text, where), path.parent))
    return _merge(Kubeconfig(f"kubeconfig {listed}", options, load), documents)


def parse_kubeconfig(text: str, where: str, options: tuple[str, str]) -> Kubeconfig:
    """A kubeconfig without a file: paths in it are relative to the working directory."""
    document = _parse(text, where)

    def load(configuration: Any, context: str) -> None:
        from kubernetes import config

        config.load_kube_config_from_dict(dict(document), context, configuration, persist_config=False)

    return _merge(Kubeconfig(where, options, load), [(where, document, Path())])


def _merge(kubeconfig: Kubeconfig, documents: Iterable[tuple[str, Mapping[str, Any], Path]]) -> Kubeconfig:
    """Fill in what the documents hold; each with its name in messages, and the folder of its paths."""
    current = ""
    contexts: dict[str, Entry] = {}
    clusters: dict[str, Entry] = {}
    users: dict[str, Entry] = {}
    parts = {"contexts": contexts, "clusters": clusters, "users": users}
    for where, document, folder in documents:
        current = current or str(document.get("current-context") or "")
        for part, entries in parts.items():
            items = document.get(part) or ()
            if not isinstance(items, (list, tuple)):
                raise BadInput(f"{where}: {part} is no list; compare with kubectl config view")
            for item in items:
                name, entry = _entry(item, part, where)
                entries.setdefault(name, Entry(entry, folder))
    return replace(kubeconfig, current=current, contexts=contexts, clusters=clusters, users=users)


def is_there(path: Path) -> bool:
    try:
        return path.is_file()
    except (OSError, ValueError):  # a name that is too long, or holds NUL
        return False


def _parse(text: str, where: str) -> Mapping[str, Any]:
    from allaboard.text.untrusted import Unreadable
    from allaboard.text.untrusted_yaml import parse_yaml

    try:
        documents = parse_yaml(text)
    except Unreadable as error:
        # The words of the parser show the line, which may hold a token.
        line = _LINE.search(str(error))
        at = f" ({line[0]})" if line else ""
        raise BadInput(f"{where} is no YAML{at}; compare with kubectl config view") from None
    document = documents[0] if documents else {}
    if not isinstance(document, dict):
        raise BadInput(f"{where} is no mapping; compare with kubectl config view")
    return document


_LINE = re.compile(r"line \d+")


def _entry(item: Any, part: str, where: str) -> tuple[str, Mapping[str, Any]]:
    body = item.get(part.removesuffix("s")) if isinstance(item, dict) else None
    if not isinstance(item, dict) or "name" not in item or not isinstance(body, dict | None):
        raise BadInput(
            f"{where}: an item of {part} is not name and {part[:-1]}; compare with kubectl config view"
        )
    return str(item["name"]), body or {}


def _named(entries: Mapping[str, Entry], name: Any, kind: str, where: str) -> Entry:
    if not isinstance(name, str) or name not in entries:
        raise BadInput(
            f"{where} names the {kind} {show(str(name))}, which is not there; it has {_some(sorted(entries))}"
        )
    return entries[name]


def _text(body: Mapping[str, Any], name: str) -> str | None:
    return str(body[name]) if body.get(name) else None


def _some(names: Sequence[str]) -> str:
    shown = ", ".join(names[:10]) or "none"
    return shown + (f" and {len(names) - 10} more" if len(names) > 10 else "")


def _is_url(server: str) -> bool:
    try:
        url = urlsplit(server)
        return bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        return False


def _pem(entry: Entry, key: str, where: str) -> str | None:
    """``<key>-data`` in base64, or the file that ``<key>`` names."""
    if data := entry.body.get(f"{key}-data"):
        try:
            return base64.b64decode(str(data), validate=True).decode()
        except (binascii.Error, ValueError) as error:
            raise BadInput(f"{where}: {key}-data is no base64 of a PEM file") from error
    if not (name := entry.body.get(key)):
        return None
    path = entry.folder / job_folder(str(name))
    try:
        return read_text(path)
    except BadInput as error:
        message = without_credentials(f"{key} {path} cannot be read ({error})", str(name))
        raise BadInput(f"{where}: {message}") from None
