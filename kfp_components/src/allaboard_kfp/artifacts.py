"""What a step leaves in Kubeflow: artifacts that point to what is in the store, and numbers.

Data sets and checkpoints are where the core has put them, and are never carried through a step's own disk:
the artifact gets their uri. Where Kubeflow knows no such uri (a folder of a mounted disk, on a cluster),
the artifact is a small file that names it. In every case ``metadata["uri"]`` says it.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol

from allaboard_kfp.given import on_cluster

_KNOWN = ("s3://", "gs://", "minio://", "oci://")


class Artifact(Protocol):
    """The part of kfp's artifacts that is used here."""

    uri: str
    metadata: dict[str, Any]

    @property
    def path(self) -> str: ...


def point(artifact: Artifact, uri: str, facts: Mapping[str, Any]) -> None:
    """Let the artifact be what is at ``uri``. ``facts`` become metadata, as far as they are known and
    finite.
    """
    artifact.metadata.update({"uri": uri, **dict(flat(facts))})
    if uri.startswith(_KNOWN) or not on_cluster():
        artifact.uri = uri
        return
    path = Path(artifact.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(artifact.metadata, indent=1) + "\n")


def log_numbers(artifact: Artifact, values: Mapping[str, Any]) -> None:
    """Show these numbers in the table of metrics. What is no finite number cannot be shown there, and is
    left out.
    """
    artifact.metadata.update({name: value for name, value in flat(values) if not isinstance(value, str)})


def flat(values: Mapping[str, Any], before: str = "") -> Iterator[tuple[str, Any]]:
    """Text, booleans and finite numbers by dotted name: what every reader of metadata takes.

    A NaN that Python's JSON writes fails a step whose training succeeded, and numbers of numpy are no JSON.
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
    """The page of this try; what an earlier one left there is replaced."""
    path = Path(artifact.path)
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
