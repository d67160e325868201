"""The inputs of a step, as their author wrote them.

``kfp.local`` changes inputs: whole numbers in a mapping or a list arrive as floats, and every ``python3`` in
a text arrives as the path of the interpreter. A cluster changes no whole number below 2**53, and takes 12.0
in a mapping or a list for 12; so does a step here.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from pathlib import Path
from types import MappingProxyType
from typing import Any

from allaboard.checking.job import require_valid
from allaboard.convert.manifests import Given, fields_of
from allaboard.errors import BadInput
from allaboard.job.loader import display_name, job_folder, names_a_file, parse, read_text
from allaboard.job.mappings import as_mapping
from allaboard.job.training_job import TrainingJob
from allaboard_kfp.artifacts import Artifact, place_of
from allaboard_kfp.parameters import filled, given_inputs, text_of
from allaboard_kfp.task_config import TaskConfig, with_task


def on_cluster(environ: Mapping[str, str] = os.environ) -> bool:
    """Return whether this step is a pod of a pipeline, not ``kfp.local`` and not a plain function."""
    return bool(environ.get("KFP_POD_NAME"))


def as_written(value: Any, environ: Mapping[str, str] = os.environ, interpreter: str = sys.executable) -> Any:
    """The value as its author wrote it: 8.0 is 8 again, as on a cluster, and the interpreter's path is
    ``python3`` again.
    """
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
    if isinstance(value, float) and value.is_integer() and abs(value) < _WRITTEN_OUT:
        return int(value)
    return value


_WRITTEN_OUT = 1e21
"""Below this a cluster writes a whole number with all its digits, and reads it back as one."""


def inputs_as_written(given: Mapping[str, Any], argv: Sequence[str] = sys.argv) -> dict[str, Any]:
    """The arguments of a step as their author wrote them, with the parameters of the pipeline in them."""

    @cache
    def parameters() -> Mapping[str, Any]:
        inputs: Mapping[str, Any] = as_written(given_inputs(argv))
        return inputs

    return {
        name: filled(as_written(value), parameters) if isinstance(value, _PARAMETERS) else value
        for name, value in given.items()
    }


_PARAMETERS = (str, bool, int, float, list, dict)


def uri_of(text: str, artifact: Artifact | None, name: str) -> str:
    """The uri that a step was given as ``name``, as text or as an artifact; empty: the step that made the
    artifact made nothing, or nothing was given. Raises BadInput for both.
    """
    if artifact is None:
        return text
    if text:
        raise BadInput(f"both {name} and {name}_artifact are given; give one of them")
    return place_of(artifact)


def job_of(
    job: Mapping[str, Any],
    job_text: str,
    folder: str,
    *,
    overrides: Mapping[str, Any] = MappingProxyType({}),
    environment: Mapping[str, Any] = MappingProxyType({}),
    args: Sequence[Any] = (),
    shards: str = "",
    task: TaskConfig | None = None,
    tell: Callable[[str], None] = lambda _: None,
) -> TrainingJob:
    """The checked job of a step: a mapping, or a text (JSON, YAML or the path of a job file); each may be a
    manifest of a known kind.

    ``overrides`` are merged into its fields, ``environment`` into its variables, ``args`` follow its own.
    Relative paths start in ``folder``, else in the job file's folder, else where the step runs. ``shards``
    becomes the job's data.shards. What is set on the ``task`` goes below all of that, and ``tell`` hears
    where the two differ. Raises BadInput with every problem.
    """
    (fields, source), start = _fields(job, job_text.strip())
    fields = _with_words(_merged(fields, overrides), environment, args)
    where = job_folder(folder).absolute() if folder else start
    if not where.is_dir():
        raise BadInput(f"folder {where} is not there; give the folder in which the job's members start")
    if shards:
        data = fields.get("data")
        fields = {**fields, "data": {**(data if isinstance(data, Mapping) else {}), "shards": shards}}
    fields = with_task(fields, task, tell)
    # A TrainingJob refuses unknown fields at once; the check reports them with all other problems.
    return TrainingJob(folder=str(where), source=source, **require_valid(fields, lenient=True).as_mapping())


def _merged(fields: Mapping[str, Any], overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The fields with these in their place; of mappings, field by field."""
    return {
        **fields,
        **{
            name: _merged(fields[name], value)
            if isinstance(value, Mapping) and isinstance(fields.get(name), Mapping)
            else value
            for name, value in overrides.items()
        },
    }


def _with_words(
    fields: dict[str, Any], environment: Mapping[str, Any], args: Sequence[Any]
) -> dict[str, Any]:
    """The fields with more variables and arguments. What is wrong in them is left for the check."""
    more: dict[str, Any] = {}
    if environment and isinstance(fields.get("environment", {}), Mapping):
        variables = {name: _word(value) for name, value in environment.items()}
        more["environment"] = {**fields.get("environment", {}), **variables}
    if args and isinstance(fields.get("args", []), list):
        groups = fields.get("groups")
        if (
            isinstance(groups, Mapping)
            and groups
            and all("command" in _as_fields(g) for g in groups.values())
        ):
            raise BadInput(
                "args: every group of this job has a command of its own, and takes no arguments of the job; "
                "give them in overrides, as groups.<role>.args"
            )
        more["args"] = [*fields.get("args", []), *map(_word, args)]
    return {**fields, **more}


def _as_fields(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _word(value: Any) -> Any:
    return text_of(value) if isinstance(value, bool) else value


def _fields(job: Mapping[str, Any], text: str) -> tuple[Given, Path]:
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
