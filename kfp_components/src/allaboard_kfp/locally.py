"""``kfp.local``, set up so that it eats nothing.

It deletes the workspace root it is given after every pipeline, whatever else is in that folder, and it
takes every ``python3`` in a path for the interpreter. Both are refused here, before anything runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict, Unpack

from allaboard.errors import BadInput
from allaboard.spec.loader import job_folder


class Options(TypedDict, total=False):
    """What `start_local` passes on to ``kfp.local.init``, whose words say what each means."""

    workspace_root: str
    raise_on_error: bool
    enable_caching: bool
    cache_root: str


def start_local(pipeline_root: str | Path = "./local_outputs", **options: Unpack[Options]) -> None:
    """``kfp.local.init`` with a SubprocessRunner in this environment.

    Call a pipeline or a component afterwards, and it runs here. Raises BadInput for a place that would be
    eaten.
    """
    from kfp import local

    root = job_folder(pipeline_root).absolute()
    if "python3" in str(root):
        raise BadInput(
            f"pipeline_root {root}: kfp.local takes the 'python3' in it for the interpreter "
            "and writes the outputs elsewhere; choose a folder without it"
        )
    workspace = options.get("workspace_root")
    if workspace and Path(workspace).exists() and any(Path(workspace).iterdir()):
        raise BadInput(
            f"workspace_root {workspace} is not empty, and kfp.local deletes it after every pipeline; "
            "give an empty folder, or none: then it makes one of its own"
        )
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(root), **options)
