"""A connection of type ``allaboard``: the backend and the site (store, mounts, fit) of a DAG's tasks.

The default connection ``allaboard_default`` need not exist: without it everything is local, on the worker's
own machine. So the same DAG runs on a laptop, and elsewhere once an administrator makes the connection::

    backend: kubernetes
    kubernetes_conn_id: gpu_cluster         a connection of type `kubernetes`: the cluster and the user
    namespace: team-a
    store: s3://bucket/team-a
    image: registry.lab/team-a/train:3      of jobs that name none
    secrets: team-a-store                   Secrets of the namespace: environment of every member

A field of the job wins over the same field of the connection.
"""

from __future__ import annotations

import os
import time
from collections.abc import AsyncIterator, Callable, Mapping
from contextlib import asynccontextmanager
from functools import cached_property
from importlib import import_module
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

from allaboard.errors import AllaboardError, BadInput, Problem
from allaboard.job.mappings import as_mapping
from allaboard.job.site import Site, parse_mounts, site_of
from allaboard.text.names import nearest, one_of
from allaboard_provider import clusters, compat
from allaboard_provider.compat import AirflowNotFoundException

if TYPE_CHECKING:
    from allaboard.backends.base import Backend
    from allaboard.backends.kubernetes.backend import AsyncKubernetesBackend, KubernetesBackend
    from allaboard.backends.local.backend import LocalBackend

DEFAULT_CONN_ID = "allaboard_default"
BACKENDS = ("local", "kubernetes")
OF_CLUSTERS = ("kubernetes_conn_id", "namespace", "engine", "gang", "image", "service_account", "secrets")
FIELDS = ("backend", "store", "mounts", "fit", *OF_CLUSTERS)
IN_ENVIRONMENT = {name: f"ALLABOARD_{name.upper()}" for name in OF_CLUSTERS[2:]}
"""Fields that the core reads as settings of a place, by the names of their variables."""


class AllaboardHook(BaseHook):
    """Reads the connection. Raises `allaboard.errors.BadInput` for fields that are wrong, SiteError for a
    connection that does not exist.
    """

    conn_name_attr = "allaboard_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "allaboard"
    hook_name = "allaboard"

    def __init__(self, allaboard_conn_id: str | None = DEFAULT_CONN_ID) -> None:
        super().__init__()
        self.conn_id = allaboard_conn_id

    @cached_property
    def settings(self) -> dict[str, Any]:
        """The fields of the connection; empty when there is none."""
        if not self.conn_id:
            return {}
        with clusters.must_exist(self.conn_id):
            try:
                connection = self.get_connection(self.conn_id)
            except AirflowNotFoundException:
                if self.conn_id != DEFAULT_CONN_ID:
                    raise
                return {}
        return checked_settings(self.conn_id, connection.conn_type, connection.extra_dejson)

    @property
    def is_local(self) -> bool:
        """True if runs live on the worker's own machine."""
        return bool(self.settings.get("backend", "local") == "local")

    @cached_property
    def site(self) -> Site:
        """The site of the connection: its store, mounts and fit."""
        return site_of_settings(self.settings)

    @cached_property
    def cluster(self) -> clusters.ClusterConnection:
        """The connection of type ``kubernetes``."""
        return clusters.read_connection(self._kubernetes_conn_id, self.settings.get("namespace"))

    @property
    def _kubernetes_conn_id(self) -> str:
        return str(self.settings.get("kubernetes_conn_id") or clusters.DEFAULT_CONN_ID)

    @property
    def environment(self) -> dict[str, str]:
        """The worker's environment, overridden by the fields of the connection."""
        overrides = {IN_ENVIRONMENT[n]: _text(v) for n, v in self.settings.items() if n in IN_ENVIRONMENT}
        return {**callers_environment(), **overrides}

    def get_conn(self) -> Backend:
        """The backend."""
        return self.local() if self.is_local else self.on_cluster()

    def local(self) -> LocalBackend:
        """The backend of this machine."""
        from allaboard.backends.local.backend import LocalBackend

        backend = LocalBackend(callers_environment(), self.site)
        backend.on_silence = self.log.info
        return backend

    def on_cluster(self, pause: Callable[[float], None] = time.sleep) -> KubernetesBackend:
        """The backend of the cluster. ``pause``: how it sleeps, for a caller that may have to leave
        meanwhile.
        """
        from allaboard.backends.kubernetes.backend import KubernetesBackend
        from allaboard.backends.kubernetes.client.api import Api

        api = Api(clusters.settings_of(self.cluster))
        return KubernetesBackend(api, site=self.site, environ=self.environment, ask_first=True, pause=pause)

    # In a triggerer.

    @classmethod
    async def aread(cls, conn_id: str | None) -> AllaboardHook:
        """The hook of a connection to a cluster, with all that it names read on the triggerer's loop. Raises
        as reading does, and BadInput for a connection that no longer names a cluster.
        """
        hook = await cls.aread_fields(conn_id)
        if hook.is_local:
            raise BadInput(
                f"connection {conn_id!r} no longer names a cluster, and the run is on one; give it back its "
                "backend: kubernetes"
            )
        hook.cluster = await clusters.aread_connection(
            hook._kubernetes_conn_id, hook.settings.get("namespace")
        )
        return hook

    @classmethod
    async def aread_fields(cls, conn_id: str | None) -> AllaboardHook:
        """The hook of any connection, with its own fields read on a triggerer's loop; the default one need
        not exist.
        """
        hook = cls(conn_id)
        fields: tuple[str | None, dict[str, Any]] = (None, {})
        if conn_id:
            with clusters.must_exist(conn_id):
                try:
                    fields = await compat.read_connection(conn_id)
                except AirflowNotFoundException:
                    if conn_id != DEFAULT_CONN_ID:
                        raise
        hook.settings = checked_settings(str(conn_id), *fields)
        return hook

    @asynccontextmanager
    async def awaited(self) -> AsyncIterator[AsyncKubernetesBackend]:
        """The backend of the cluster for one trigger, over a client that all triggers of a triggerer
        share.
        """
        from allaboard.backends.kubernetes.backend import AsyncKubernetesBackend

        async with clusters.shared_api(self.cluster) as api:
            yield AsyncKubernetesBackend(api, site=self.site, environ=self.environment)

    # The connection form, and its button.

    @classmethod
    def get_connection_form_widgets(cls) -> dict[str, Any]:
        """Fields of the form of Airflow 3.1. Later versions read them in the provider's metadata."""
        wtforms, validators = import_module("wtforms"), import_module("wtforms.validators")
        return {
            name: wtforms.StringField(
                label=field["label"],
                description=field["description"],
                default=field["schema"].get("default"),
                validators=[
                    validators.Optional(),
                    *([validators.any_of(field["schema"]["enum"])] if "enum" in field["schema"] else []),
                ],
            )
            for name, field in _connection_type()["conn-fields"].items()
        }

    @classmethod
    def get_ui_field_behaviour(cls) -> dict[str, Any]:
        """Use of the standard fields in the form of Airflow 3.1."""
        behaviour = _connection_type()["ui-field-behaviour"]
        return {name.replace("-", "_"): value for name, value in behaviour.items()}

    def test_connection(self) -> tuple[bool, str]:
        """Check that the store can be written, and that the cluster answers."""
        from allaboard.storage import open_store

        probe = "allaboard-connection-test"
        try:
            where = "runs are local" if self.is_local else self._reach_cluster()
            if not self.is_local and "://" not in self.site.store:
                return True, f"{where}; the store {self.site.store} is a folder of the members"
            store = open_store(self.site.store)
            store.write(probe, b"")
            store.delete([probe])
        except AllaboardError as error:
            return False, str(error)
        return True, f"{where}; the store {self.site.store} can be written"

    def _reach_cluster(self) -> str:
        from allaboard.backends.kubernetes.client.api import Api
        from allaboard.backends.kubernetes.client.protocol import Patience

        with Api(clusters.settings_of(self.cluster), patience=Patience(budget=5.0)) as api:
            api.raw("GET", "/version")
            return f"runs are in namespace {api.namespace} of {api.server}, which answers"


def _connection_type() -> dict[str, Any]:
    from allaboard_provider.get_provider_info import get_provider_info

    (connection_type,) = get_provider_info()["connection-types"]
    return dict(connection_type)


def checked_settings(conn_id: str, conn_type: str | None, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a connection. Raises BadInput with all that is wrong."""
    if conn_type not in (AllaboardHook.conn_type, None, ""):
        raise BadInput(
            f"connection {conn_id!r} is of type {conn_type!r}; give allaboard_conn_id one of type 'allaboard'"
        )
    # Forms of older releases wrote the type's name before each field.
    prefix = f"extra__{AllaboardHook.conn_type}__"
    fields = {name.removeprefix(prefix): value for name, value in extra.items() if value not in (None, "")}
    problems = [
        Problem(name, "no such field", nearest(name, FIELDS)) for name in fields if name not in FIELDS
    ]
    for name, known in _choices(fields).items():
        if fields[name] not in known:
            near = nearest(str(fields[name]), known)
            problems.append(Problem(name, f"{fields[name]!r} is not known; known: {one_of(known)}", near))
    if fields.get("backend", "local") == "local":
        void = [name for name in OF_CLUSTERS if name in fields]
        problems += [Problem(name, "only backend: kubernetes has this field; leave it out") for name in void]
    if problems:
        raise BadInput(f"connection {conn_id!r} cannot be used:", problems)
    return fields


def _choices(fields: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """The allowed values of the fields that are set."""
    known: dict[str, tuple[str, ...]] = {"backend": BACKENDS} if "backend" in fields else {}
    if "engine" in fields:
        from allaboard.engines import ENGINES

        known["engine"] = ("auto", *ENGINES)
    if "gang" in fields:
        from allaboard.gangs import GANGS

        known["gang"] = ("auto", *GANGS)
    return known


def site_of_settings(settings: Mapping[str, Any]) -> Site:
    """The site that the fields of a connection name."""
    return site_of(
        os.environ,
        store=settings.get("store"),
        mounts=_mounts(settings["mounts"]) if "mounts" in settings else None,
        fit=settings.get("fit"),
        # A worker's working directory is arbitrary; this folder is the same for all tasks of an installation.
        base=str(Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()),
    )


def _mounts(value: Any) -> dict[str, str]:
    """``{"/data": "./data"}``, also as JSON text, or ``/data=./data,/models=...``."""
    if isinstance(value, str) and value.lstrip().startswith("{"):
        value = as_mapping(value, "mounts", instead="pairs: /data=./data,/models=./models")
    if isinstance(value, str):
        return parse_mounts(value.split(","))
    if not isinstance(value, Mapping):
        raise BadInput(f'mounts: {value!r} is no mapping; give {{"/data": "./data"}}')
    return parse_mounts(f"{mount}={folder}" for mount, folder in value.items())


def _text(value: Any) -> str:
    return ",".join(map(str, value)) if isinstance(value, list) else str(value)


def callers_environment() -> dict[str, str]:
    """The worker's environment without the connections and variables that Airflow keeps in it: they hold
    secrets, and no training process needs them. (The backend leaves out AIRFLOW__*.)
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW_CONN_", "AIRFLOW_VAR_"))
    }
