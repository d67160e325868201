"""`CheckpointSensor`: waits for a checkpoint."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

from allaboard.errors import BadInput
from allaboard_provider.sensors.base import Watching

if TYPE_CHECKING:
    from allaboard_provider.triggers.checkpoints import CheckpointTrigger


class CheckpointSensor(Watching):
    """Succeeds when a complete checkpoint is there, and returns ``{"uri", "step", "run", "metrics",
    "created"}`` of the newest.

    :param uri: the folder of a run (``store://digits/checkpoints/digits-1f0c9a77``), or that of all runs of a
        job.
    :param after: only a checkpoint of a step above this one counts.

    A checkpoint that is being written or is torn does not count.
    """

    template_fields: Sequence[str] = ("uri", "after", "allaboard_conn_id")

    def __init__(self, *, uri: str, after: int | str | None = None, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.uri = uri
        self.after = after

    def look(self) -> dict[str, Any] | None:
        from allaboard_provider.triggers.checkpoints import newest

        checkpoint = newest(self._place(), self._after())
        self.log.info(
            "%s: %s",
            self._place(),
            f"step {checkpoint['step']} is there" if checkpoint else "no new checkpoint yet",
        )
        return checkpoint

    def trigger(self) -> CheckpointTrigger:
        from allaboard_provider.triggers.checkpoints import CheckpointTrigger, fingerprint_of

        place = self._place()
        return CheckpointTrigger(
            uri=place, after=self._after(), fingerprint=fingerprint_of(place), poll=float(self.poke_interval)
        )

    def _place(self) -> str:
        from allaboard.job.site import resolve_uri
        from allaboard_provider.files import dag_folder

        return resolve_uri(self.uri, self.hook.site, dag_folder(self))

    def _after(self) -> int | None:
        from allaboard.job.fields import as_int

        value = None if self.after in (None, "", "None") else as_int(self.after)
        if value is not None and (isinstance(value, bool) or not isinstance(value, int)):
            raise BadInput(f"after: {self.after!r} is no step; give a whole number")
        return value
