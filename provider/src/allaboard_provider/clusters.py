"""The cluster that an Airflow connection of type ``kubernetes`` names: in-cluster, a kubeconfig by path or by
content, a context of it, or the default configuration.

Airflow's own hook (`KubernetesHook` of the provider cncf.kubernetes) reads the connection, so a connection
means the same as for a KubernetesPodOperator, on a worker and in a triggerer. (AsyncKubernetesHook takes an
empty connection for a kubeconfig also in a pod.) The hook only gives a configuration; the core speaks to the
API server.

Secrets stay in this process: what is cached by a name is cached by a digest.
"""

from __future__ import annotations

import asyncio
import hashlib
import json
import os
import threading
import time
from collections.abc import AsyncIterator, Iterator, Mapping
from contextlib import asynccontextmanager, contextmanager, suppress
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING, Any, NoReturn

from allaboard.errors import BadInput, SiteError
from allaboard_provider import compat
from allaboard_provider.compat import AirflowNotFoundException

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api
    from allaboard.backends.kubernetes.client.config import Credentials, Secret, Settings

DEFAULT_CONN_ID = "kubernetes_default"
"""Need not exist: then the pod's own service account, else the default kubeconfig, as for Airflow's hooks."""
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
        name = self.extras.get("cluster_context") or self.extras.get("extra__kubernetes__cluster_context")
        return name if isinstance(name, str) else None

    @property
    def digest(self) -> str:
        """Equal for two connections to the same cluster as the same user. It reveals nothing of them."""
        identity = json.dumps([self.conn_id, self.extras], sort_keys=True, default=str)
        return hashlib.blake2s(identity.encode(), digest_size=16).hexdigest()


def read_connection(conn_id: str, namespace: str | None) -> ClusterConnection:
    """The connection, read by Airflow's hook. Raises BadInput where that hook is not installed or the
    connection has another type; SiteError for a connection that does not exist.
    """
    with _needs_provider():
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook

    with must_exist(conn_id):
        connection: Any = KubernetesHook.get_connection(conn_id)
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
    await asyncio.to_thread(_import_hook)
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
    from allaboard.backends.kubernetes.client.loader import settings_of as core_settings

    configuration = _configuration(connection)
    settings = core_settings(configuration, source=f"the connection {connection.conn_id!r}")
    return replace(settings, credentials=ConnectionCredentials(connection, settings.credentials))


def _configuration(connection: ClusterConnection) -> Any:
    """The client library's configuration, as Airflow's hook makes it."""
    with _needs_provider():
        from airflow.providers.cncf.kubernetes.hooks.kubernetes import KubernetesHook
        from kubernetes.client import Configuration

    # In-cluster, the hook ignores a configuration of ours.
    own = None if connection.extras.get("in_cluster") else Configuration()
    hook = KubernetesHook(conn_id=connection.conn_id, client_configuration=own)
    # A thread of the triggerer cannot ask Airflow for the connection.
    hook.conn_extras = dict(connection.extras)
    try:
        client = hook.get_conn()
    except Exception as error:  # of the hook, the library, YAML, the disk
        _raise_unusable(connection, error)
    with suppress(Exception):
        client.close()
    return client.configuration


def _raise_unusable(connection: ClusterConnection, error: Exception) -> NoReturn:
    # The message of a parser quotes its text, which may be a token.
    reason = (
        "kube_config is not valid YAML" if hasattr(error, "problem_mark") else str(error).strip().rstrip(".")
    )
    extras = connection.extras
    path = extras.get("kube_config_path") or extras.get("extra__kubernetes__kube_config_path")
    raise BadInput(
        f"the connection {connection.conn_id!r} leads to no cluster: {f'{path}: ' if path else ''}"
        f"{reason or type(error).__name__}; give it in_cluster, kube_config or kube_config_path"
    ) from None


def _namespace(connection: ClusterConnection) -> str:
    """The namespace of the connection, else of the environment, else of our own pod."""
    from allaboard.backends.kubernetes.client.loader import SERVICE_ACCOUNT

    namespace = connection.extras.get("namespace") or connection.extras.get("extra__kubernetes__namespace")
    if namespace or os.environ.get("ALLABOARD_NAMESPACE"):
        return str(namespace or os.environ["ALLABOARD_NAMESPACE"])
    with suppress(OSError):
        return (SERVICE_ACCOUNT / "namespace").read_text().strip() or "default"
    return "default"


class ConnectionCredentials:
    """The credentials of a connection. The client library refreshes them; once the server has refused them,
    all that the connection names (a kubeconfig, a plugin) is read again.
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
            if time.monotonic() - self._since > RENEW_INTERVAL:
                self._now = None

    def fingerprint(self) -> str:
        return self._connection.digest

    def _held(self) -> Credentials:
        from allaboard.backends.kubernetes.client.loader import settings_of as core_settings

        with self._lock:
            if self._now is None:
                self._now = core_settings(_configuration(self._connection)).credentials
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


# The provider that Airflow's hooks are part of.


@contextmanager
def _needs_provider() -> Iterator[None]:
    """Raises BadInput in place of an ImportError."""
    try:
        yield
    except ImportError as error:
        raise BadInput(
            "a connection with the backend kubernetes needs Airflow's Kubernetes provider, which is not "
            f"installed here ({error}): pip install 'airflow-provider-allaboard[kubernetes]'"
        ) from None


def _import_hook() -> None:
    with _needs_provider():
        import airflow.providers.cncf.kubernetes.hooks.kubernetes  # noqa: F401
