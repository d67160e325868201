"""Outputs of a step in Kubeflow: artifacts that name a place in the store, and numbers.

Data sets and checkpoints stay where the core has put them and never pass through the step's own disk. Their
artifact is a small file at its own path, which says what it is and names the place; ``metadata["uri"]`` is
the place, too. The artifact's own uri stays as Kubeflow gave it: KFP's launcher uploads the file there, and
fails the step of an artifact whose uri is outside of its pipeline run. All of it is the same on a cluster and
under ``kfp.local``.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Protocol


class Artifact(Protocol):
    """The part of kfp's artifacts that is used here."""

    uri: str
    metadata: dict[str, Any]

    @property
    def path(self) -> str: ...


def refer(artifact: Artifact, kind: str, uri: str, facts: Mapping[str, Any]) -> None:
    """Make the artifact name the place ``uri`` of ``kind``. ``facts`` become its metadata, except unknown and
    non-finite ones. An empty ``uri``: there is nothing, and the artifact says so.
    """
    artifact.metadata.update({"uri": uri, **dict(flat(facts))})
    describe(artifact, kind)


def describe(artifact: Artifact, kind: str) -> None:
    """Write the artifact's file: its ``kind`` and its metadata."""
    write_page(artifact, json.dumps({"what": kind, **artifact.metadata}, indent=1) + "\n")


def place_of(artifact: Artifact) -> str:
    """The uri that an artifact names: that of `refer`, else its own, as with an artifact of an importer.
    Empty: the step that made it has made nothing.
    """
    named = artifact.metadata.get("uri")
    return named if isinstance(named, str) else artifact.uri


def log_numbers(artifact: Artifact, values: Mapping[str, Any]) -> None:
    """Show the finite numbers among ``values`` in the table of metrics, which shows no others."""
    artifact.metadata.update({name: value for name, value in flat(values) if not isinstance(value, str)})
    describe(artifact, "metrics")


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
