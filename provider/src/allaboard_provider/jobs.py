"""From what a DAG says of a job, rendered, to a checked job."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allaboard.checking import checked
from allaboard.errors import BadInput
from allaboard.job import TrainingJob
from allaboard.jobfile import SUFFIXES, load


def read(job: Any, folder: str | None, operator: Any) -> TrainingJob:
    """The job: from a mapping, from the path of a file relative to the DAG file, or from JSON text, which is
    what a template makes of a mapping. Raises BadInput with every problem.
    """
    start = folder or dag_folder(operator)
    if isinstance(job, str):
        text = job.strip()
        if text.endswith(SUFFIXES) and "\n" not in text:
            return checked(load(Path(start) / Path(text).expanduser()), lenient=True)
        job = as_mapping(text, "job")
    if not isinstance(job, (Mapping, TrainingJob)):
        raise BadInput(
            f"job: {type(job).__name__} is no job; give a TrainingJob, a mapping, or the path of a job file"
        )
    # As a mapping first: a TrainingJob names unknown fields only, and says nothing of what else is wrong.
    fields = job.as_mapping() if isinstance(job, TrainingJob) else job
    return TrainingJob(folder=start, **checked(fields, lenient=True).as_mapping())


def dag_folder(operator: Any) -> str:
    """Where relative paths of a DAG's jobs start: the folder of the DAG file."""
    file = operator.dag.fileloc if operator.has_dag() else None
    return str(Path(file).absolute().parent if file else Path.cwd())


def as_mapping(text: str, what: str) -> Mapping[str, Any]:
    """The mapping in a rendered text: JSON, or Python's own way to write one (Jinja writes that)."""
    import ast

    try:
        value = json.loads(text)
    except ValueError:
        try:
            value = ast.literal_eval(text)
        except (ValueError, SyntaxError, MemoryError, RecursionError):
            value = None
    if not isinstance(value, Mapping):
        shown = text if len(text) <= 80 else text[:77] + "..."
        endings = ", or the path of a .yaml, .yml or .json file" if what == "job" else ""
        raise BadInput(f"{what}: {shown!r} is no mapping; give a mapping, JSON of one{endings}")
    return value
