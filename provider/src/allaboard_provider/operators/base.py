"""The base of operators that work on the worker itself: they resolve uris by the connection's site, and end
when told to.
"""

from __future__ import annotations

from functools import cached_property
from typing import TYPE_CHECKING, Any

from airflow.sdk import BaseOperator

from allaboard_provider.errors import worker_ended
from allaboard_provider.lineage import TellsLineage
from allaboard_provider.templates import LeafByLeaf, uri_in

if TYPE_CHECKING:
    from allaboard_provider.hooks.allaboard import AllaboardHook


class StoreOperator(TellsLineage, LeafByLeaf, BaseOperator):
    """Paths are ``store://name`` (below the connection's store), any uri, or relative to the DAG file.

    :param allaboard_conn_id: the connection that names the store; the default one need not exist.
    """

    ui_color = "#eef3ec"

    def __init__(self, *, allaboard_conn_id: str | None = "allaboard_default", **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.allaboard_conn_id = allaboard_conn_id
        self.killed = False

    @cached_property
    def hook(self) -> AllaboardHook:
        """The connection."""
        from allaboard_provider.hooks.allaboard import AllaboardHook

        return AllaboardHook(self.allaboard_conn_id)

    def uri(self, value: Any, parameter: str) -> str:
        """The whole uri that a parameter names; the result of another task stands for its ``uri``. Raises
        BadInput.
        """
        from allaboard.job.site import resolve_uri
        from allaboard_provider.files import dag_folder

        uri = uri_in(value, parameter, "store://name or a folder")
        return resolve_uri(uri, self.hook.site, dag_folder(self))

    def on_kill(self) -> None:
        """Called in a signal handler: it sets the flag that the work checks."""
        self.killed = True

    def stop_if_killed(self, *_: Any) -> None:
        """Raises TrainingFailed when the worker was asked to end. A next try goes on with work that is half
        done.
        """
        if self.killed:
            raise worker_ended(
                "", "this worker was asked to end; the next try continues where this one stopped"
            )
