"""The cluster that an Airflow connection of type ``kubernetes`` names: in-cluster, a kubeconfig by path or by
content, a context of it, or the default configuration.

A connection means the same as for a KubernetesPodOperator (`KubernetesHook.get_conn` of the provider
cncf.kubernetes), on a worker and in a triggerer: tests/provider/test_connection.py compares the two. The
core reads it: the client library `kubernetes`, which that hook needs, takes some 90 MB of a triggerer.

Secrets stay in this process: what is cached by a name is cached by a digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping, Sequence
from contextlib import asynccontextmanager, contextmanager
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from allaboard.errors import AllaboardError, BadInput, SiteError
from allaboard_provider import compat
from allaboard_provider.compat import AirflowNotFoundException

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api
    from allaboard.backends.kubernetes.client.config import Credentials, Secret, Settings
    from allaboard.backends.kubernetes.client.kubeconfig import Kubeconfig

DEFAULT_CONN_ID = "kubernetes_default"
"""Need not exist: then the pod's own service account, else the default kubeconfig, as for Airflow's hooks."""
CHOICES = ("in_cluster", "kube_config", "kube_config_path")
"""Fields of a connection of which one names the cluster."""
RENEW_INTERVAL = 5.0
"""Seconds for which credentials that were just read are not read again."""


@dataclass(frozen=True, slots=True)
class ClusterConnection:
    """The fields of the connection ``conn_id``. ``namespace``: of our runs; None: that of the connection."""

    conn_id: str
    extras: Mapping[str, Any] = field(repr=False)
    namespace: str | None = None

    @property
    def context(self) -> str | None:
        """The context of the kubeconfig that the connection names."""
        name = self.value("cluster_context")
        return name if isinstance(name, str) else None

    @property
    def is_unverified(self) -> bool:
        """Return whether the certificate of the API server is not looked at."""
        return str(self.value("disable_verify_ssl")).strip().lower() == "true"

    def value(self, name: str) -> Any:
        """The field of this name, also under the long name of Airflow before 2.3; None for an empty one."""
        if name in self.extras:
            return self.extras[name] or None
        return self.extras.get(f"extra__kubernetes__{name}") or None

    @property
    def digest(self) -> str:
        """Equal for two connections to the same cluster as the same user. It reveals nothing of them."""
        identity = json.dumps([self.conn_id, self.extras], sort_keys=True, default=str)
        return hashlib.blake2s(identity.encode(), digest_size=16).hexdigest()


def read_connection(conn_id: str, namespace: str | None) -> ClusterConnection:
    """The connection. Raises BadInput for one of another type, SiteError for one that does not exist."""
    from airflow.sdk import BaseHook

    with must_exist(conn_id):
        try:
            connection: Any = BaseHook.get_connection(conn_id)
        except AirflowNotFoundException:
            if conn_id != DEFAULT_CONN_ID:
                raise
            return ClusterConnection(conn_id, {}, namespace)
    _check_type(conn_id, connection.conn_type)
    return ClusterConnection(conn_id, dict(connection.extra_dejson), namespace)


@contextmanager
def must_exist(conn_id: str) -> Iterator[None]:
    """Raises SiteError for a connection that does not exist. (Airflow raises the same error when a secrets
    backend does not answer: the connection may exist at the next try.)
    """
    try:
        yield
    except AirflowNotFoundException:
        raise SiteError(
            f"connection {conn_id!r} does not exist, or its secrets backend does not answer; make it "
            f"(`airflow connections add {conn_id}`), or name another"
        ) from None


def _check_type(conn_id: str, conn_type: str | None) -> None:
    # The fields of another type mean nothing here, so a default such as the pod's own account would be taken.
    if conn_type not in ("kubernetes", None, ""):
        raise BadInput(
            f"connection {conn_id!r} is of type {conn_type!r}; give kubernetes_conn_id a connection of type "
            "'kubernetes', which names the cluster and the user"
        )


async def aread_connection(conn_id: str, namespace: str | None) -> ClusterConnection:
    """As `read_connection`, on a triggerer's loop."""
    with must_exist(conn_id):
        try:
            conn_type, extras = await compat.read_connection(conn_id)
        except AirflowNotFoundException:
            if conn_id != DEFAULT_CONN_ID:
                raise
            conn_type, extras = None, {}
    _check_type(conn_id, conn_type)
    return ClusterConnection(conn_id, extras, namespace)


# From a connection to the settings of the core's client.

_settings: dict[str, Settings] = {}
_settings_lock = threading.Lock()


def settings_of(connection: ClusterConnection) -> Settings:
    """The settings for a connection. Blocks once for each connection of a process. Raises BadInput or
    SiteError.
    """
    with _settings_lock:
        settings = _settings.get(connection.digest)
        if settings is None:
            settings = _settings[connection.digest] = _read(connection)
    return replace(settings, namespace=connection.namespace or _namespace(connection))


def _read(connection: ClusterConnection) -> Settings:
    settings = _settings_in(connection)
    return replace(settings, credentials=ConnectionCredentials(connection, settings.credentials))


def _settings_in(connection: ClusterConnection) -> Settings:
    """The settings that the fields of the connection name. Raises BadInput or SiteError."""
    chosen = [name for name in CHOICES if str(connection.value(name) or "false").lower() != "false"]
    if len(chosen) > 1:
        raise BadInput(
            f"the connection {connection.conn_id!r} gives {' and '.join(chosen)}; give it one of "
            f"{', '.join(CHOICES)}"
        )
    try:
        settings = _chosen_settings(connection, chosen[0] if chosen else None)
    except AllaboardError as error:
        advice = f"; give it {', '.join(CHOICES[:-1])} or {CHOICES[-1]}" if not chosen else ""
        message = f"the connection {connection.conn_id!r} leads to no cluster: {error}{advice}"
        raise BadInput(message) from None
    source = f"the connection {connection.conn_id!r}"
    return replace(settings, source=source, verify=settings.verify and not connection.is_unverified)


def _chosen_settings(connection: ClusterConnection, choice: str | None) -> Settings:
    from allaboard.backends.kubernetes.client import kubeconfig
    from allaboard.backends.kubernetes.client.loader import SERVICE_ACCOUNT, settings_of, settings_of_pod

    options, environ = ("kube_config_path", "cluster_context"), os.environ
    in_pod = bool(environ.get("KUBERNETES_SERVICE_HOST")) and (SERVICE_ACCOUNT / "token").exists()
    match choice:
        case "in_cluster":
            if not in_pod:
                raise BadInput("in_cluster: this process is not in a pod with a service account")
            return settings_of_pod("default", environ)
        case "kube_config":
            content = connection.value("kube_config")
            text = content if isinstance(content, str) else json.dumps(content)
            config = kubeconfig.parse_kubeconfig(text, "kube_config", options)
        case "kube_config_path":
            config = _read_files(str(connection.value("kube_config_path")).split(os.pathsep), options)
        case _:
            if in_pod:
                return settings_of_pod("default", environ)
            usual = kubeconfig.paths_of(environ, Path.home())
            config = _read_files([*map(str, usual)], options)
    return settings_of(config.context(connection.context), "default", environ)


def _read_files(names: Sequence[str], options: tuple[str, str]) -> Kubeconfig:
    from allaboard.backends.kubernetes.client import kubeconfig
    from allaboard.job.loader import job_folder

    paths = [job_folder(name) for name in names if name]
    if not any(map(kubeconfig.is_there, paths)):
        raise BadInput(f"no kubeconfig is at {' or '.join(names)}")
    return kubeconfig.read_kubeconfigs(paths, options)


def _namespace(connection: ClusterConnection) -> str:
    """The namespace of the connection, else of the environment, else of our own pod."""
    from allaboard.backends.kubernetes.client.loader import namespace_of_pod

    named = connection.value("namespace") or os.environ.get("ALLABOARD_NAMESPACE")
    return str(named or namespace_of_pod() or "default")


class ConnectionCredentials:
    """The credentials of a connection. Once the server has refused them, all that the connection names (a
    kubeconfig, a plugin) is read again.
    """

    def __init__(self, connection: ClusterConnection, now: Credentials) -> None:
        self._connection, self._lock = connection, threading.Lock()
        self._now: Credentials | None = now
        self._since = time.monotonic()

    def due(self, now: float) -> bool:
        held = self._now
        return held is None or held.due(now)

    def current(self, now: float) -> Secret:
        return self._held().current(now)

    def renew(self) -> None:
        with self._lock:
            if self._now is not None:  # a token file or a plugin is shared by all who name it
                self._now.renew()
            if time.monotonic() - self._since > RENEW_INTERVAL:
                self._now = None

    def fingerprint(self) -> str:
        return self._connection.digest

    def _held(self) -> Credentials:
        with self._lock:
            if self._now is None:
                self._now = _settings_in(self._connection).credentials
                self._since = time.monotonic()
            return self._now


# One client for all triggers of a triggerer that use the same connection.


@dataclass(slots=True)
class _Shared:
    api: Api
    users: int = 0


_shared: dict[tuple[int, str, str], _Shared] = {}


@asynccontextmanager
async def shared_api(connection: ClusterConnection) -> AsyncIterator[Api]:
    """The client of this process for this connection. Its connections are closed with its last user."""
    from allaboard.backends.kubernetes.backend import IN_FLIGHT
    from allaboard.backends.kubernetes.client.api import Api

    settings = await asyncio.to_thread(settings_of, connection)
    key = (os.getpid(), settings.identity, settings.namespace)
    shared = _shared.get(key)
    if shared is None:
        shared = _shared[key] = _Shared(Api(settings, concurrency=IN_FLIGHT))
    shared.users += 1
    try:
        yield shared.api
    finally:
        shared.users -= 1
        if not shared.users:
            _shared.pop(key, None)
            shared.api.close()
