"""The checked job of a task, from its rendered field."""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from allaboard.checking.job import require_valid
from allaboard.convert.manifests import fields_of
from allaboard.errors import BadInput, Problem
from allaboard.job.loader import names_a_file
from allaboard.job.mappings import as_mapping
from allaboard.job.training_job import TrainingJob
from allaboard.text.redaction import secret_values
from allaboard_provider.files import dag_folder, fields_of_file


def read(job: Any, folder: str | None, operator: Any) -> TrainingJob:
    """The job: from a mapping, from the path of a file relative to the DAG file, or from the text of a
    mapping; each may be a manifest of a known kind. Raises BadInput with every problem.
    """
    start = folder or dag_folder(operator)
    if isinstance(job, os.PathLike) or (isinstance(job, str) and names_a_file(job)):
        try:
            job, start = fields_of_file(os.fspath(job), start)
        except BadInput as error:
            raise BadInput("the job file cannot be read:", [Problem("job", str(error))]) from None
    elif isinstance(job, str):
        job = as_mapping(job, "job", instead="the path of a .yaml, .yml or .json file")
    if not isinstance(job, (Mapping, TrainingJob)):
        raise BadInput(
            f"job: {type(job).__name__} is no job; give a TrainingJob, a mapping, or the path of a job file"
        )
    # A TrainingJob refuses unknown fields at once; the check of a mapping reports every problem.
    fields, source = (job.as_mapping(), job.source) if isinstance(job, TrainingJob) else fields_of(job)
    return TrainingJob(folder=start, source=source, **require_valid(fields, lenient=True).as_mapping())


def secrets_in(job: Any) -> tuple[str, ...]:
    """The secret values in a job, whichever way the job is given."""
    if isinstance(job, str):
        with suppress(BadInput):
            job = as_mapping(job, "job")
    return secret_values(job)
