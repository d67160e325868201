"""Manifests that tests convert: what users and operators published (`wild`, `examples`), and the way there
and back.
"""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any, cast

from allaboard.checking.job import require_valid
from allaboard.convert.manifests import Document, documents, engine_of_manifest, job_of
from allaboard.engines.kubeflow import KubeflowEngine
from allaboard.engines.reading.values import Conversion
from allaboard.render.cluster_facts import ASSUMED
from allaboard.render.manifests import render
from allaboard.runs.layout import lay_out

HERE = Path(__file__).parent
Json = dict[str, Any]


def in_folder(name: str) -> list[Document]:
    """The documents of the manifests in a folder beside this file."""
    files = sorted((HERE / name).glob("*.yaml"))
    return [one for file in files for one in documents(file.read_text(), file.name)]


def engine_of(manifest: Mapping[str, Any]) -> KubeflowEngine:
    return cast(KubeflowEngine, engine_of_manifest(manifest))


def there(manifest: Mapping[str, Any]) -> Conversion:
    """The job that a manifest says."""
    return job_of(manifest, (), engine_of(manifest))


def back(job: Mapping[str, Any], engine: KubeflowEngine) -> Json:
    """The job object of a job, where nothing is known of the cluster."""
    checked = require_valid({**job, "engine": engine.NAME})
    layout = lay_out(checked, engine, f"{checked.name}-00000000")
    return render(checked, layout, ASSUMED, launch="launch", spec_hash="v1:0").job
