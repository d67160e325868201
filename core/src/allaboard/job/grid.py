"""The jobs of a sweep: one job, and the values that some of its fields take.

>>> from allaboard import grid
>>> jobs = grid({"name": "digits", "command": ["python", "train.py"]},
...             {"environment.LR": [0.1, 0.01], "workers": [1, 2]})
>>> [job.get("workers") for job in jobs]
[1, 2, 1, 2]

Values in, values out, except that a job file is read. DAG files import this module.
"""

from __future__ import annotations

import itertools
import json
import math
import os
from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

from allaboard.errors import BadInput, Problem
from allaboard.job.training_job import FIELDS, TrainingJob
from allaboard.text.names import JOB_NAME_MAX, nearest
from allaboard.text.untrusted import Unreadable, parse_json, show

POINT = "ALLABOARD_POINT"
"""Variable of every member: the values of its point, as JSON: ``{"environment.LR":"0.1","workers":1}``."""
MOST_POINTS = 1000
"""Points of a sweep; Airflow maps 1024 at most ([core] max_map_length)."""
_DIGEST = 4


def grid(
    job: TrainingJob | Mapping[str, Any] | str | os.PathLike[str], over: Mapping[str, Iterable[Any]]
) -> list[TrainingJob]:
    """A job for each combination of the values; the last field changes fastest.

    :param job: a `TrainingJob`, a mapping of its fields, or the path of a job file. In a DAG file, give a
        whole path: ``Path(__file__).with_name("job.yaml")``.
    :param over: values by field: ``{"environment.LR": [0.1, 0.01], "resources.gpu": [1, 2]}``. A path with
        dots leads into mappings; a list is replaced as a whole.

    A job is named ``<name>-<8 hex digits>``, by its values alone: a value that is added later renames no
    other job. Its members have the values in ``ALLABOARD_POINT``. A value of ``environment`` becomes text.

    Raises BadInput with every problem. Values are not checked here: a template may stand for one.
    """
    whole, folder, source = _fields_of(job)
    given = over if isinstance(over, Mapping) else {}
    axes = {path: _values(values) for path, values in given.items()}
    problems = [*_problems(whole, axes, over)]
    if problems:
        raise BadInput("this sweep cannot be made:", problems)
    return [
        TrainingJob(folder=folder, source=source, **_at_point(whole, dict(zip(axes, values, strict=True))))
        for values in itertools.product(*(values or () for values in axes.values()))
    ]


def point_of(job: Mapping[str, Any] | TrainingJob) -> dict[str, Any] | None:
    """The values of the point of a sweep that a job is for; None for any other job."""
    environment = job.get("environment")
    text = environment.get(POINT) if isinstance(environment, Mapping) else None
    if not isinstance(text, str):
        return None
    try:
        point = parse_json(text)
    except Unreadable:
        return None
    return dict(point) if isinstance(point, Mapping) else None


def _fields_of(job: Any) -> tuple[dict[str, Any], str | None, str | None]:
    """The fields, and the folder and source of a `TrainingJob`."""
    if isinstance(job, TrainingJob):
        return job.as_mapping(), job.folder, job.source
    if isinstance(job, (str, os.PathLike)):
        from allaboard.job.loader import display_name, folder_of, parse, read_text

        path = os.fspath(job)
        return parse(read_text(path), display_name(path)), folder_of(path), None
    return TrainingJob.of(job).as_mapping(), None, None


def _values(values: Any) -> list[Any] | None:
    """The values of a field; None for what is no list of values."""
    if isinstance(values, (str, bytes, Mapping)) or not isinstance(values, Iterable):
        return None
    return [*itertools.islice(values, MOST_POINTS + 1)]


def _problems(fields: Mapping[str, Any], axes: Mapping[str, Any], over: Any) -> Iterator[Problem]:
    name = fields.get("name")
    if not isinstance(name, str) or not name:
        yield Problem("name", "a sweep needs the job's name, after which its jobs are called")
    if not axes:
        yield Problem("over", f"{show(str(over))} names no field; give {{'environment.LR': [0.1, 0.01]}}")
    for path, values in axes.items():
        yield from _problems_of_path(fields, path)
        if not values:
            yield Problem(str(path), "no values; give a list of them, such as [0.1, 0.01]")
            continue
        texts = [_as_json(value) for value in values]
        if None in texts:
            yield Problem(str(path), "a value that JSON does not have; give texts, numbers, lists, mappings")
        elif len(set(texts)) < len(texts):
            yield Problem(str(path), "a value stands there twice, and would be trained twice; leave one out")
    for outer, inner in itertools.permutations(map(str, axes), 2):
        if inner.startswith(f"{outer}."):
            yield Problem(inner, f"is within {outer}, which has values of its own; give one of them")
    points = math.prod(len(values or ()) for values in axes.values())
    if axes and points > MOST_POINTS:
        yield Problem("over", f"{points} combinations; {MOST_POINTS} are the most in one sweep")


def _problems_of_path(fields: Mapping[str, Any], path: Any) -> Iterator[Problem]:
    if not isinstance(path, str) or "" in path.split("."):
        yield Problem(show(str(path)), "is no path of a field; write environment.LR or workers")
        return
    first, *rest = path.split(".")
    if first == "name":
        yield Problem(path, "names are made by the values; vary another field")
    elif first not in FIELDS:
        yield Problem(path, f"a job has no field {show(first)}", nearest(first, FIELDS))
    here: Any = fields.get(first)
    for n, part in enumerate(rest):
        if here is not None and not isinstance(here, Mapping):
            yield Problem(path, f"{'.'.join([first, *rest[:n]])} is no mapping; give it as a whole")
            return
        here = (here or {}).get(part)


def _as_json(value: Any) -> str | None:
    try:
        return json.dumps(value, sort_keys=True, allow_nan=False)
    except (TypeError, ValueError, RecursionError):
        return None


def _at_point(fields: Mapping[str, Any], point: Mapping[str, Any]) -> dict[str, Any]:
    import hashlib

    shown = {path: _as_text(path, value) for path, value in point.items()}
    made = dict(fields)
    for path, value in shown.items():
        made = _with(made, path.split("."), value)
    # By its values alone, in whichever order they stand.
    text = json.dumps(shown, sort_keys=True, separators=(",", ":"), ensure_ascii=False)
    digest = hashlib.blake2s(text.encode(), digest_size=_DIGEST).hexdigest()
    base = str(fields["name"])
    room = JOB_NAME_MAX - 2 * _DIGEST - 1
    name = base if "{" in base else base[:room].rstrip("-")
    environment = {**(made.get("environment") or {}), POINT: text}
    return {**made, "name": f"{name}-{digest}", "environment": environment}


def _as_text(path: str, value: Any) -> Any:
    """A value of ``environment``, whose values are texts; others as they are."""
    if not path.startswith("environment.") or isinstance(value, str):
        return value
    return json.dumps(value)


def _with(fields: Mapping[str, Any], path: Sequence[str], value: Any) -> dict[str, Any]:
    """A copy of a mapping in which the value stands at the path."""
    first, *rest = path
    return {**fields, first: _with(fields.get(first) or {}, rest, value) if rest else value}
