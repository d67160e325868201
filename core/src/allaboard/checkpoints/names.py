"""Names of folders beside which checkpoints lie; imported by small processes, too. Values in, values out."""

from __future__ import annotations

import re

RUN_FOLDER = re.compile(r".+-[0-9a-f]{8}(-g\d+)?")
"""Names of the folders of runs, as `allaboard.job.identity` makes them."""
HOLDS, WRITERS, STARTS = "holds", "writers", "starts"
"""Folders in a run's folder: of readers, of the processes that save, of the members that start."""
OURS = (HOLDS, WRITERS, STARTS, "promoted")
"""Names of folders that hold no checkpoints."""
_STEP = re.compile(r"step-(\d{12})")


def step_of(folder: str) -> int | None:
    """The step of a checkpoint of ours, by the name of its folder; None for any other name."""
    match = _STEP.fullmatch(folder)
    return int(match.group(1)) if match else None
