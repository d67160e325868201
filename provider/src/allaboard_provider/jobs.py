"""From what a DAG says of a job, rendered, to a checked job."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any

from allaboard.checking import require_valid
from allaboard.errors import BadInput
from allaboard.redaction import secret_values
from allaboard.spec.job import TrainingJob
from allaboard.spec.loader import SUFFIXES, parse, read_text
from allaboard_provider.mappings import as_mapping


def read(job: Any, folder: str | None, operator: Any) -> TrainingJob:
    """The job: from a mapping, from the path of a file relative to the DAG file, or from the text of a
    mapping. Raises BadInput with every problem.
    """
    start = folder or dag_folder(operator)
    if isinstance(job, os.PathLike) or (isinstance(job, str) and names_a_file(job)):
        job, start = fields_of_file(os.fspath(job), start)
    elif isinstance(job, str):
        job = as_mapping(job.strip(), "job")
    if not isinstance(job, (Mapping, TrainingJob)):
        raise BadInput(
            f"job: {type(job).__name__} is no job; give a TrainingJob, a mapping, or the path of a job file"
        )
    # As a mapping first: a TrainingJob names unknown fields only, and says nothing of what else is wrong.
    fields = job.as_mapping() if isinstance(job, TrainingJob) else job
    return TrainingJob(folder=start, **require_valid(fields, lenient=True).as_mapping())


def secrets_in(job: Any) -> tuple[str, ...]:
    """The values in a job that nobody is told, whichever way the job is given."""
    if isinstance(job, str):
        with suppress(BadInput):
            job = as_mapping(job.strip(), "job")
    return secret_values(job)


def dag_folder(operator: Any) -> str:
    """Where relative paths of a DAG's jobs start: the folder of the DAG file."""
    file = operator.dag.fileloc if operator.has_dag() else None
    return str(Path(file).absolute().parent if file else Path.cwd())


def names_a_file(job: str) -> bool:
    """Whether a whole text is the path of a job file."""
    text = job.strip()
    return text.endswith(SUFFIXES) and "\n" not in text


def fields_of_file(path: str, start: str) -> tuple[dict[str, Any], str]:
    """The mapping in a job file, and the folder that its relative paths start at. Raises BadInput."""
    file = Path(start) / Path(path.strip()).expanduser()
    return parse(read_text(file), str(file)), str(file.resolve().parent)
