"""``kfp.local``, set up so that it destroys nothing.

``kfp.local`` deletes its workspace root after every pipeline, with all that is in that folder, and takes
every ``python3`` in a path for the interpreter. `start_local` refuses both before anything runs.
"""

from __future__ import annotations

from pathlib import Path
from typing import TypedDict, Unpack

from allaboard.errors import BadInput
from allaboard.job.loader import job_folder


class Options(TypedDict, total=False):
    """Options that `start_local` passes on to ``kfp.local.init``, which documents them."""

    workspace_root: str
    raise_on_error: bool
    enable_caching: bool
    cache_root: str


def start_local(pipeline_root: str | Path = "./local_outputs", **options: Unpack[Options]) -> None:
    """Call ``kfp.local.init`` with a SubprocessRunner in this environment. A pipeline or a component that is
    called afterwards runs here. Raises BadInput for a folder that ``kfp.local`` would delete or garble.
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
            "give an empty folder, or leave it out: then kfp.local makes one of its own"
        )
    local.init(local.SubprocessRunner(use_venv=False), pipeline_root=str(root), **options)
