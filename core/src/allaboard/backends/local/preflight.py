"""Checks the places that a job reads and writes before a start: a missing data set, a folder without write
permission, a store that does not answer.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from allaboard.errors import AllaboardError, Problem
from allaboard.job.training_job import is_below
from allaboard.runs.layout import Layout
from allaboard.runs.resume_template import TEMPLATE, has_template


def storage_problems(layout: Layout, environ: Mapping[str, str], own: Sequence[str]) -> list[Problem]:
    """Every such problem, with the field that names the place. ``own``: folders that are made for the run
    alone, when it is started.
    """
    problems = []
    if layout.data is not None:
        problems += _data_problems(layout.data, environ)
    if layout.saving is not None and not any(layout.saving.uri.startswith(f"{place}/") for place in own):
        problems += _checkpoint_problems(layout.saving.uri, environ)
    if layout.saving is not None and layout.saving.folder is not None:
        problems += _folder_problems(layout.saving.uri, layout.saving.folder)
    elif layout.saving is not None and layout.saving.format is not None:
        problems += _template_problems(layout, layout.saving.uri)
    return problems


def _template_problems(layout: Layout, uri: str) -> list[Problem]:
    """``{checkpoint}`` is a path: libraries read a folder."""
    is_folder = not uri.startswith("s3://")
    if is_folder or not any(has_template((*g.command, *g.args), g.environment) for g in layout.groups):
        return []
    message = f"{uri} is a bucket, and {TEMPLATE!r} is the path of a folder; give a folder"
    return [Problem("checkpoints.uri", message)]


def _folder_problems(uri: str, folder: str) -> list[Problem]:
    """A copy within the folder would be found there, and copied in its turn."""
    into, own = uri.rpartition("/")[0], folder.rpartition("/")[0]
    if "://" in uri or not (is_below(into, own) or is_below(own, into)):
        return []
    message = f"{own} and the uri, {into}, lie one within the other"
    return [Problem("checkpoints.folder", f"{message}; give two places, or the uri alone with format: auto")]


def _data_problems(uri: str, environ: Mapping[str, str]) -> list[Problem]:
    from allaboard.shards import load_index
    from allaboard.storage import open_store

    try:
        index = load_index(open_store(uri, environ=environ))
    except AllaboardError as error:
        return [Problem("data.shards", str(error))]
    if index.samples == 0:
        return [
            Problem(
                "data.shards",
                f"{uri} holds no samples; prepare it with `allaboard shards prepare SOURCE {uri}`",
            )
        ]
    return []


def _checkpoint_problems(uri: str, environ: Mapping[str, str]) -> list[Problem]:
    from allaboard.storage import open_store

    probe = ".preflight"
    try:
        store = open_store(uri, environ=environ)
        store.write(probe, b"")
        store.delete([probe])
    except AllaboardError as error:
        return [Problem("checkpoints.uri", str(error))]
    return []
