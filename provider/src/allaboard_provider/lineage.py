"""Inputs and outputs of a task for OpenLineage: the methods that Airflow's OpenLineage provider asks every
operator for. Without that provider nobody asks, and nothing of it is imported.

A task's inputs and outputs are places: shards, checkpoints, the record of a champion. Places are named as
OpenLineage names them: ``file`` and the path, ``s3://bucket`` and the key. What a checkpoint or a data set is
identified by is its version. The run facet ``allaboard`` holds the run, its state and its metrics, bounded
and without secrets as the extra of Assets is.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple
from urllib.parse import urlsplit

from allaboard.errors import AllaboardError
from allaboard_provider import outlets
from allaboard_provider.masking import hidden

if TYPE_CHECKING:
    from airflow.providers.openlineage.extractors import OperatorLineage


class Dataset(NamedTuple):
    """A place. ``version``: what identifies its content; ``rows``, ``size`` (bytes), ``files``: how much was
    written.
    """

    uri: str
    version: str | None = None
    rows: int | None = None
    size: int | None = None
    files: int | None = None


class Lineage(NamedTuple):
    """Inputs and outputs of a task. ``facts``: for the run facet."""

    inputs: tuple[Dataset, ...] = ()
    outputs: tuple[Dataset, ...] = ()
    facts: Mapping[str, Any] = MappingProxyType({})


class TellsLineage:
    """For operators: `expected_lineage` before the work, and ``lineage``, which the work sets: a function,
    for who asks pays, and without OpenLineage nobody does.
    """

    lineage: Callable[[], Lineage] | None = None

    def expected_lineage(self) -> Lineage:
        """Inputs and outputs of the task as far as its fields name them. May raise; then none is reported."""
        return Lineage()

    def get_openlineage_facets_on_start(self) -> OperatorLineage[Any, Any] | None:
        return _told(self.expected_lineage)

    def get_openlineage_facets_on_complete(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        return _told(self.lineage or self.expected_lineage)

    def get_openlineage_facets_on_failure(self, task_instance: Any) -> OperatorLineage[Any, Any] | None:
        return self.get_openlineage_facets_on_complete(task_instance)


def _told(lineage: Callable[[], Lineage]) -> OperatorLineage[Any, Any]:
    """In OpenLineage's classes. Raises `AllaboardError` without secrets and without the error that it comes
    from: OpenLineage's provider logs it where Airflow masks nothing, and a refused job quotes its values.
    """
    try:
        return for_openlineage(lineage())
    except Exception as error:
        raise AllaboardError(hidden(error)) from None


def of_checkpoint(uri: str) -> Dataset:
    """The dataset of a checkpoint, with its fingerprint where this worker can read it."""
    return Dataset(uri, outlets.of_checkpoint(uri).get("fingerprint"))


def name_of(uri: str) -> tuple[str, str]:
    """The namespace and the name that OpenLineage's rules give a place."""
    from allaboard.text.redaction import redact_url

    plain = redact_url(uri)
    parts = urlsplit(plain)
    if parts.scheme in ("", "file") or "://" not in plain:
        return "file", parts.path if parts.scheme == "file" else plain
    return f"{parts.scheme}://{parts.netloc}", parts.path.strip("/") or "/"


def for_openlineage(lineage: Lineage) -> OperatorLineage[Any, Any]:
    """The same in OpenLineage's own classes."""
    from airflow.providers.openlineage.extractors import OperatorLineage
    from openlineage.client.event_v2 import InputDataset, OutputDataset
    from openlineage.client.facet_v2 import (
        DatasetFacet,
        OutputDatasetFacet,
        RunFacet,
        dataset_version_dataset,
        output_statistics_output_dataset,
    )

    def facets(dataset: Dataset) -> dict[str, DatasetFacet]:
        if dataset.version is None:
            return {}
        return {"version": dataset_version_dataset.DatasetVersionDatasetFacet(dataset.version)}

    def written(dataset: Dataset) -> dict[str, OutputDatasetFacet]:
        if dataset.size is None and dataset.rows is None:
            return {}
        facet = output_statistics_output_dataset.OutputStatisticsOutputDatasetFacet(
            rowCount=dataset.rows, size=dataset.size, fileCount=dataset.files
        )
        return {"outputStatistics": facet}

    facts = outlets.extra_of(lineage.facts)
    return OperatorLineage(
        inputs=[InputDataset(*name_of(read.uri), facets=facets(read)) for read in lineage.inputs],
        outputs=[
            OutputDataset(*name_of(made.uri), facets=facets(made), outputFacets=written(made))
            for made in lineage.outputs
        ],
        run_facets={"allaboard": RunFacet().with_additional_properties(**facts)} if facts else {},
    )
