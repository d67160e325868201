"""The inputs of a step, as their author wrote them.

``kfp.local`` changes inputs: whole numbers in a mapping or a list arrive as floats, and every ``python3`` in
a text arrives as the path of the interpreter. A cluster changes nothing.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allaboard.checking import require_valid
from allaboard.converting import fields_of
from allaboard.errors import BadInput
from allaboard.spec.job import TrainingJob
from allaboard.spec.loader import display_name, job_folder, names_a_file, parse, read_text
from allaboard.spec.mappings import as_mapping


def on_cluster(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this step is a pod of a pipeline, not ``kfp.local`` and not a plain function."""
    return bool(environ.get("KFP_POD_NAME"))


def as_written(value: Any, environ: Mapping[str, str] = os.environ, interpreter: str = sys.executable) -> Any:
    """The value as its author wrote it: 8.0 is 8 again, and the interpreter's path is ``python3`` again."""
    if on_cluster(environ):
        return value
    if isinstance(value, Mapping):
        return {
            as_written(k, environ, interpreter): as_written(v, environ, interpreter) for k, v in value.items()
        }
    if isinstance(value, list):
        return [as_written(item, environ, interpreter) for item in value]
    if isinstance(value, str):
        return value.replace(interpreter, "python3") if interpreter else value
    if isinstance(value, float) and value.is_integer():
        return int(value)
    return value


def job_of(job: Mapping[str, Any], job_text: str, folder: str, *, shards: str = "") -> TrainingJob:
    """The checked job of a step: a mapping, or a text (JSON, YAML or the path of a job file); each may be a
    manifest of a known kind.

    Relative paths start in ``folder``, else in the job file's folder, else where the step runs. ``shards``
    becomes the job's data.shards. Raises BadInput with every problem.
    """
    fields, start = _fields(job, job_text.strip())
    where = job_folder(folder).absolute() if folder else start
    if not where.is_dir():
        raise BadInput(f"folder {where} is not there; give the folder in which the job's members start")
    if shards:
        data = fields.get("data")
        fields = {**fields, "data": {**(data if isinstance(data, Mapping) else {}), "shards": shards}}
    # A TrainingJob refuses unknown fields at once; the check reports them with all other problems.
    return TrainingJob(folder=str(where), **require_valid(fields, lenient=True).as_mapping())


def _fields(job: Mapping[str, Any], text: str) -> tuple[Mapping[str, Any], Path]:
    """The fields of the job, and the folder where its relative paths start."""
    if bool(job) == bool(text):
        given = "both job and job_text are" if job else "neither job nor job_text is"
        raise BadInput(
            f"{given} given; give the job as a mapping (job), "
            "or as JSON, YAML or the path of a job file (job_text)"
        )
    if job:
        return fields_of(job), Path.cwd()
    if names_a_file(text):
        return fields_of(parse(read_text(text), display_name(text))), job_folder(text).absolute().parent
    return fields_of(as_mapping(text, "job_text", instead="the path of a job file")), Path.cwd()
