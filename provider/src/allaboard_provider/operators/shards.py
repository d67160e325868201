"""`PrepareShardsOperator`: tar shards and an index from raw samples."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from allaboard.job.homes import expand_home
from allaboard.text.units import show_bytes
from allaboard_provider import outlets
from allaboard_provider.errors import airflow_errors
from allaboard_provider.lineage import Dataset, Lineage
from allaboard_provider.operators.base import StoreOperator

if TYPE_CHECKING:
    from airflow.sdk import Context

_PROGRESS_INTERVAL = 10.0


class PrepareShardsOperator(StoreOperator):
    """Turns ``source`` into tar shards that WebDataset reads, and ``index.json``, below ``into``.

    :param source: a folder, a list of files, ``module:function`` or ``file.py:function`` (relative to the DAG
        file) that yields samples, or such a function itself.
    :param into: the folder of the shards, ``store://digits/shards``.
    :param samples_per_shard: the number of samples after which a shard ends.
    :param bytes_per_shard: the size at which a shard ends, like ``64Mi``; 256 MiB when neither is given.

    Returns ``{"uri", "into", "samples", "shards", "bytes", "fingerprint"}``, which is the extra of the events
    of its ``outlets``, too. ``uri`` is that of the version that this task has made, in a folder below
    ``into``: it stays what it is whatever other DAG runs prepare. A `TrainingJobOperator` downstream whose
    job names ``into`` trains on that version. An unchanged data set is not prepared again, and the next try
    of one that was killed goes on with its work. Versions that nobody has used for 7 days are removed
    (``ALLABOARD_KEEP_SHARDS``).
    """

    template_fields: Sequence[str] = (
        "source",
        "into",
        "samples_per_shard",
        "bytes_per_shard",
        "allaboard_conn_id",
    )
    structured: ClassVar[tuple[str, ...]] = ("source",)

    def __init__(
        self,
        *,
        source: str | os.PathLike[str] | list[str] | Callable[[], Iterable[Any]],
        into: str,
        samples_per_shard: int | str | None = None,
        bytes_per_shard: int | str | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source = os.fspath(source) if isinstance(source, os.PathLike) else source
        self.into = into
        self.samples_per_shard = samples_per_shard
        self.bytes_per_shard = bytes_per_shard

    def execute(self, context: Context) -> dict[str, Any]:
        from allaboard.job.fields import as_int
        from allaboard.shards import prepare
        from allaboard.storage import open_store

        with airflow_errors():
            into = self.uri(self.into, "into")
            store = open_store(into, environ=os.environ)
            index = prepare(
                self._source(),
                store,
                samples_per_shard=as_int(self.samples_per_shard),
                bytes_per_shard=as_int(self.bytes_per_shard),
                progress=self._progress(),
                notice=lambda text: self.log.info("%s", text),
            )
        uri = index.version_uri(into)
        self.log.info(
            "%d samples in %d shards, %s: %s", index.samples, len(index.shards), show_bytes(index.size), uri
        )
        result = {
            "uri": uri,
            "into": into,
            "samples": index.samples,
            "shards": len(index.shards),
            "bytes": index.size,
            "fingerprint": index.fingerprint,
        }
        made = Dataset(into, index.fingerprint, index.samples, index.size, len(index.shards))
        self.lineage = lambda: self.expected_lineage()._replace(outputs=(made,))
        if self.outlets:
            outlets.announce(self, context, outlets.extra_of(result), into)
        return result

    def expected_lineage(self) -> Lineage:
        source = self._source()
        return Lineage(
            inputs=(Dataset(source),) if isinstance(source, str) else (),
            outputs=(Dataset(self.uri(self.into, "into")),),
        )

    def _source(self) -> Any:
        """The source, with files relative to the DAG file; ``module:function`` and functions stay as they
        are.
        """
        if isinstance(self.source, str):
            return self._place(self.source)
        if isinstance(self.source, (list, tuple)):
            return [self._place(item) if isinstance(item, str) else item for item in self.source]
        return self.source

    def _place(self, text: str) -> str:
        from allaboard_provider.files import dag_folder

        path, colon, function = text.rpartition(":")
        if colon and path.endswith(".py") and function.isidentifier():
            return f"{Path(dag_folder(self)) / expand_home(path)}:{function}"
        if colon and "/" not in text and path.replace(".", "").isidentifier() and function.isidentifier():
            return text
        return self.uri(text, "source")

    def _progress(self) -> Callable[[int, int | None, int], None]:
        last_line_at = time.monotonic()

        def log_progress(done: int, total: int | None, size: int) -> None:
            nonlocal last_line_at
            self.stop_if_killed()
            if time.monotonic() - last_line_at >= _PROGRESS_INTERVAL:
                last_line_at = time.monotonic()
                self.log.info("%d%s samples", done, f" of {total}" if total else "")

        return log_progress
