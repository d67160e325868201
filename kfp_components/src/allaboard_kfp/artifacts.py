"""What a step leaves in Kubeflow: artifacts that point into the store, and numbers.

Data sets and checkpoints stay where the core has put them and never pass through the step's own disk: the
artifact gets their uri. Kubeflow knows no uri of a folder of a mounted disk; there the artifact is a small
file that names it. ``metadata["uri"]`` always says it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from allaboard_kfp.inputs import on_cluster

_KNOWN = ("s3://", "gs://", "minio://", "oci://")


class Artifact(Protocol):
    """The part of kfp's artifacts that is used here."""

    uri: str
    metadata: dict[str, Any]

    @property
    def path(self) -> str: ...


def point(artifact: Artifact, uri: str, facts: Mapping[str, Any]) -> None:
    """Make the artifact point to ``uri``. ``facts`` become its metadata, except unknown and non-finite
    ones.
    """
    artifact.metadata.update({"uri": uri, **dict(flat(facts))})
    if uri.startswith(_KNOWN) or not on_cluster():
        artifact.uri = uri
        return
    path = Path(artifact.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(artifact.metadata, indent=1) + "\n")


def log_numbers(artifact: Artifact, values: Mapping[str, Any]) -> None:
    """Show the finite numbers among ``values`` in the table of metrics, which shows no others."""
    artifact.metadata.update({name: value for name, value in flat(values) if not isinstance(value, str)})


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Text, booleans and finite numbers by dotted name, which every reader of metadata takes.

    A NaN in the metadata would fail a step whose training succeeded, and numbers of numpy are no JSON.
    """
    for name, value in values.items():
        if isinstance(value, Mapping):
            yield from flat(value, f"{before}{name}.")
        elif isinstance(value, (bool, str)):
            yield f"{before}{name}", value
        elif isinstance(value, int):
            # Beyond 2**53 a number of JSON is not exact.
            yield f"{before}{name}", value if abs(value) <= 2**53 else float(value)
        elif isinstance(value, float) and math.isfinite(value):
            yield f"{before}{name}", value


def write_page(artifact: Artifact, text: str) -> None:
    """Write the page of this try; it replaces that of an earlier try."""
    path = Path(artifact.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
