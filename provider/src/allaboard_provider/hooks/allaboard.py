"""A connection of type ``allaboard``: the backend and the site (store, mounts, fit) that a DAG's tasks use.

The default connection ``allaboard_default`` need not exist: then everything is local, on the worker's own
machine. So the same DAG runs on a laptop, and elsewhere once an administrator makes the connection.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseHook

if TYPE_CHECKING:
    from allaboard.backends.local.backend import LocalBackend
    from allaboard.site import Site

DEFAULT_CONN_ID = "allaboard_default"
FIELDS = ("backend", "store", "mounts", "fit")
BACKENDS = ("local",)


class AllaboardHook(BaseHook):
    """Raises `allaboard.errors.BadInput` for a connection that says what it cannot mean."""

    conn_name_attr = "allaboard_conn_id"
    default_conn_name = DEFAULT_CONN_ID
    conn_type = "allaboard"
    hook_name = "allaboard"

    def __init__(self, allaboard_conn_id: str | None = DEFAULT_CONN_ID) -> None:
        super().__init__()
        self.conn_id = allaboard_conn_id

    @cached_property
    def settings(self) -> dict[str, Any]:
        """What the connection sets; empty when there is none."""
        from airflow.sdk.exceptions import AirflowNotFoundException

        if not self.conn_id:
            return {}
        try:
            connection = self.get_connection(self.conn_id)
        except AirflowNotFoundException:
            if self.conn_id != DEFAULT_CONN_ID:
                raise
            return {}
        return checked_settings(self.conn_id, connection.conn_type, connection.extra_dejson)

    @cached_property
    def site(self) -> Site:
        """Where the paths of a chain are."""
        return site_of_settings(self.settings)

    def get_conn(self) -> LocalBackend:
        """The backend."""
        from allaboard.backends.local.backend import LocalBackend

        return LocalBackend(callers_environment(), self.site)

    def test_connection(self) -> tuple[bool, str]:
        """Whether the store can be written: the button in the connection form."""
        from allaboard.errors import AllaboardError
        from allaboard.storage import open_store

        probe = "allaboard-connection-test"
        try:
            store = open_store(self.site.store)
            store.write(probe, b"")
            store.delete([probe])
        except AllaboardError as error:
            return False, str(error)
        return True, f"runs are local; the store {self.site.store} can be written"


def checked_settings(conn_id: str, conn_type: str | None, extra: Mapping[str, Any]) -> dict[str, Any]:
    """The fields of a connection. Raises BadInput with all that is wrong."""
    from allaboard.errors import BadInput, Problem
    from allaboard.names import nearest, one_of

    if conn_type not in (AllaboardHook.conn_type, None, ""):
        raise BadInput(
            f"connection {conn_id!r} is of type {conn_type!r}; this operator needs one of type 'allaboard'"
        )
    # Forms of older releases wrote the type's name before each field.
    prefix = f"extra__{AllaboardHook.conn_type}__"
    found = {name.removeprefix(prefix): value for name, value in extra.items() if value not in (None, "")}
    problems = [Problem(name, "no such field", nearest(name, FIELDS)) for name in found if name not in FIELDS]
    if found.get("backend", "local") not in BACKENDS:
        problems.append(Problem("backend", f"{found['backend']!r} is not known; known: {one_of(BACKENDS)}"))
    if problems:
        raise BadInput(f"connection {conn_id!r} cannot be used:", problems)
    return found


def site_of_settings(settings: Mapping[str, Any]) -> Site:
    """The site that a connection's fields say."""
    from allaboard.site import site_of

    return site_of(
        os.environ,
        store=settings.get("store"),
        mounts=_mounts(settings["mounts"]) if "mounts" in settings else None,
        fit=settings.get("fit"),
        # A worker's working directory is nobody's choice; this folder is the same for all tasks of an
        # installation.
        base=str(Path(os.environ.get("AIRFLOW_HOME") or "~/airflow").expanduser()),
    )


def _mounts(value: Any) -> dict[str, str]:
    """``{"/data": "./data"}``, also as JSON text, or ``/data=./data,/models=...``."""
    from allaboard.errors import BadInput
    from allaboard.site import parse_mounts

    if isinstance(value, str) and value.lstrip().startswith("{"):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise BadInput(f'mounts: {value!r} is not JSON ({error}); write {{"/data": "./data"}}') from None
    if isinstance(value, str):
        return parse_mounts(value.split(","))
    if not isinstance(value, Mapping):
        raise BadInput(f'mounts: {value!r} is no mapping; write {{"/data": "./data"}}')
    return parse_mounts(f"{mount}={folder}" for mount, folder in value.items())


def callers_environment() -> dict[str, str]:
    """The worker's environment without the connections and variables that Airflow keeps in it: they hold
    secrets, and no training process has asked for them. (AIRFLOW__* is left out by the backend.)
    """
    return {
        name: value
        for name, value in os.environ.items()
        if not name.startswith(("AIRFLOW_CONN_", "AIRFLOW_VAR_"))
    }
