"""Inputs as a step gets them, made what their author wrote.

``kfp.local`` changes them on the way: whole numbers inside of a mapping or a list arrive as floats, and
every ``python3`` in a text has become the path of the interpreter. A cluster does neither; what it passes
is taken as it is.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from allaboard.checking import require_valid
from allaboard.errors import BadInput
from allaboard.spec.job import TrainingJob
from allaboard.spec.loader import SUFFIXES, display_name, job_folder, parse, read_text


def on_cluster(environ: Mapping[str, str] = os.environ) -> bool:
    """Whether this step is a pod of a pipeline; else it runs under ``kfp.local``, or as a plain function."""
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
    """The checked job of a step: a mapping, or a text (JSON, YAML or the path of a job file).

    Relative paths start in ``folder``, else in the job file's folder, else where the step runs. ``shards`` is
    what the job is to be trained on. Raises BadInput with every problem.
    """
    fields, beside = _fields(job, job_text.strip())
    where = job_folder(folder).absolute() if folder else beside
    if not where.is_dir():
        raise BadInput(f"folder {where} is not there; give the folder in which the job's members start")
    if shards:
        data = fields.get("data")
        fields = {**fields, "data": {**(data if isinstance(data, Mapping) else {}), "shards": shards}}
    # Checked before it is a job: a field that does not exist is one problem among all.
    return TrainingJob(folder=str(where), **require_valid(fields, lenient=True).as_mapping())


def _fields(job: Mapping[str, Any], text: str) -> tuple[Mapping[str, Any], Path]:
    """The fields that were given, and the folder beside which they stood."""
    if bool(job) == bool(text):
        given = "both job and job_text are" if job else "neither job nor job_text is"
        raise BadInput(
            f"{given} given; give the job as a mapping (job), "
            "or as JSON, YAML or the path of a job file (job_text)"
        )
    if job:
        return job, Path.cwd()
    if "\n" not in text and text.endswith(SUFFIXES):
        return parse(read_text(text), display_name(text)), job_folder(text).absolute().parent
    return parse(text, "job_text"), Path.cwd()
