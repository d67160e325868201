"""The place of a task's runs, for its worker: the worker's own machine, or a cluster."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Protocol

from allaboard.errors import UnknownRun
from allaboard.report import commands

if TYPE_CHECKING:
    from allaboard.backends.base import Backend
    from allaboard.backends.kubernetes.backend import KubernetesBackend
    from allaboard.backends.local.backend import LocalBackend
    from allaboard_provider.hooks.allaboard import AllaboardHook


class Place(Protocol):
    """``at``: for the command lines that are printed; ``address``: for people."""

    is_local: bool

    @property
    def backend(self) -> Backend: ...

    @property
    def at(self) -> commands.Place: ...

    @property
    def address(self) -> dict[str, Any]: ...

    def is_here(self, run: str, fingerprint: Any) -> bool:
        """Return whether this worker can follow a run that a triggerer followed. ``fingerprint``: of the
        place where the run was deferred.
        """

    def for_trigger(self, run: str) -> dict[str, Any]:
        """The arguments by which a trigger finds the run: plain JSON without secrets."""

    def close(self) -> None:
        """Release what this worker holds of the place."""


@dataclass(frozen=True)
class ThisMachine:
    """Local runs belong to their machine."""

    backend: LocalBackend
    is_local = True
    at = commands.Place()

    @property
    def address(self) -> dict[str, Any]:
        return {"host": socket.gethostname(), "home": self.backend.home}

    def is_here(self, run: str, fingerprint: Any) -> bool:
        try:
            return bool(self.backend.fingerprint(run) == fingerprint)
        except (UnknownRun, OSError):
            return False

    def for_trigger(self, run: str) -> dict[str, Any]:
        return {"fingerprint": self.backend.fingerprint(run), "host": socket.gethostname()}

    def close(self) -> None:
        return None


@dataclass(frozen=True)
class OnCluster:
    """Every worker and triggerer that may use the connection can follow."""

    backend: KubernetesBackend
    connection: str | None
    context: str | None = None
    is_local = False

    @property
    def at(self) -> commands.Place:
        return commands.Place(self.backend.name, context=self.context, namespace=self.backend.api.namespace)

    @property
    def address(self) -> dict[str, Any]:
        api = self.backend.api
        return {"cluster": api.server, "namespace": api.namespace, "connection": self.connection}

    def is_here(self, run: str, fingerprint: Any) -> bool:
        return True

    def for_trigger(self, run: str) -> dict[str, Any]:
        return {"backend": self.backend.name, "connection": self.connection}

    def close(self) -> None:
        self.backend.keeper.let_go()
        self.backend.api.close()


def place_of(hook: AllaboardHook, pause: Callable[[float], None] = time.sleep) -> Place:
    """The place that a connection names. ``pause``: how its backend sleeps. Raises BadInput."""
    if hook.is_local:
        return ThisMachine(hook.local())
    return OnCluster(hook.on_cluster(pause), hook.conn_id, hook.cluster.context)
