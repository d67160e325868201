"""Explanations of a job's fields, from the vocabulary that `check` and `schema` read. Values in, values out.

A path is written with dots, as in messages: ``policy.backoff_limit``, ``storage.mount``,
``groups.worker.resources.gpu``.
"""

from __future__ import annotations

import inspect
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal, Union, get_args, get_origin, is_typeddict

from allaboard.errors import BadInput
from allaboard.job.fields import (
    COUNT_MAX,
    GPUS_MAX,
    MEMBERS_MAX,
    default_of,
    example_of,
    hints,
    parts,
)
from allaboard.job.vocabulary import Fields
from allaboard.text.names import nearest, one_of
from allaboard.text.untrusted import show


@dataclass(frozen=True, slots=True)
class Explained:
    """One field. ``type`` and ``allowed`` are for people; ``default`` is what an absent one means, None where
    that is: nothing; ``fields``: the fields within it, name -> (type, doc).
    """

    path: str
    type: str
    doc: str
    allowed: str | None = None
    default: str | None = None
    example: Any = None
    required: bool = False
    fields: Mapping[str, tuple[str, str]] | None = None

    def to_dict(self) -> dict[str, Any]:
        within = {n: {"type": t, "doc": d} for n, (t, d) in (self.fields or {}).items()}
        own = ("path", "type", "doc", "allowed", "default", "example", "required")
        return {**{name: getattr(self, name) for name in own}, "fields": within}


REQUIRED = ("name",)


def explain(path: str = "") -> Explained:
    """The field at this path; the whole job without one. Raises `BadInput` with the nearest name."""
    steps = [step.partition("[")[0] for step in path.split(".")] if path.strip(". ") else []
    kind: Any = Fields
    if not steps:
        return Explained("", "fields", _first_line(Fields), fields=_fields_of(Fields))
    walked: list[str] = []
    hint: Any = None
    free = False  # the next step is a name that the author chooses
    for step in steps:
        where = ".".join(walked)
        if free:
            free = False
            walked.append(step)
            continue
        if kind is None:
            raise BadInput(f"{where} has no fields, so there is no {show(step)} in it")
        known = hints(kind)
        if step not in known:
            near = nearest(step, known)
            hint_ = f"did you mean {'.'.join([*walked, near])!r}?" if near else f"known: {one_of(known)}"
            raise BadInput(f"{where or 'a job'} has no field {show(step)}; {hint_}")
        hint = known[step]
        walked.append(step)
        kind, free = _kind_within(hint), parts(hint)[1] == "groups"
    return _explained(".".join(walked), hint, kind, len(steps) == 1 and steps[0] in REQUIRED)


def _explained(path: str, hint: Any, kind: Any, required: bool) -> Explained:
    _, how, doc = parts(hint)
    return Explained(
        path,
        type_of(hint),
        doc,
        _ALLOWED.get(how) or _choices(hint),
        default_of(hint) or None,
        example_of(hint),
        required,
        None if kind is None else _fields_of(kind),
    )


def _fields_of(kind: Any) -> dict[str, tuple[str, str]]:
    return {name: (type_of(hint), parts(hint)[2]) for name, hint in hints(kind).items()}


def _kind_within(hint: Any) -> Any:
    """The typed dictionary whose fields stand within this one; None for a plain value."""
    base, how, _ = parts(hint)
    if how == "groups":
        base = get_args(base)[1]
    options = (base, *get_args(base))
    return next((option for option in options if is_typeddict(option)), None)


def type_of(hint: Any) -> str:
    """In words: ``whole number``, ``list of text``, ``fields``."""
    base, how, _ = parts(hint)
    return _TYPES.get(how) or _type(base)


def _type(base: Any) -> str:
    origin = get_origin(base)
    if is_typeddict(base):
        return "fields"
    if origin is Literal:
        return "one word"
    if origin is list:
        return f"list of {_type(get_args(base)[0])}"
    if origin is dict:
        return "mapping"
    if origin is Union or len(get_args(base)) > 1:
        return " or ".join(dict.fromkeys(_type(part) for part in get_args(base)))
    return {str: "text", int: "whole number", float: "number", bool: "true or false"}.get(base, "any value")


def _choices(hint: Any) -> str | None:
    base = parts(hint)[0]
    return one_of(map(str, get_args(base))) if get_origin(base) is Literal else None


_TYPES = {
    "duration": "duration",
    "size": "size",
    "cores": "number of cores",
    "path": "path",
    "place": "uri or path",
    "folder": "path",
    "code": "list of paths or fields",
    "packages": "list of text or fields",
    "requirements": "list of text",
    "command": "list of text",
    "args": "list of text",
    "labels": "names and text",
    "annotations": "names and text",
    "limit": "word or whole number",
    "environment": "names and text",
    "groups": "number or fields, by role",
    "every": "number of steps or duration",
    "patience": "word or duration",
    "processes": "word or whole number",
    "any": "fields of Kubernetes",
    "source": "fields of Kubernetes",
}
_ALLOWED = {
    "duration": "seconds, or 90s, 10m, 12h, 1d, 1h30m",
    "size": "bytes, or 512Mi, 32Gi, 1G",
    "cores": "more than 0: 2, 0.5 or 500m",
    "count0": f"0 to {COUNT_MAX}",
    "limit": f"unlimited or 0 to {COUNT_MAX}",
    "labels": "names like example.com/team; values of at most 63 letters, digits, '-', '_' and '.'",
    "annotations": "names like example.com/team; any text",
    "count1": f"1 to {COUNT_MAX}",
    "members": f"1 to {MEMBERS_MAX}",
    "gpus": f"0 to {GPUS_MAX}",
    "processes": f"auto, cpu, gpu or 1 to {MEMBERS_MAX}",
    "every": "50 for steps; 90s, 10m, 12h for time",
    "patience": "auto, off, or seconds, or 90s, 10m, 12h, 1d",
    "path": "an absolute path below /, without a colon",
    "code": "files below the job's folder, 1 MiB in all; or fields of a repository or a packed folder",
    "file": "a path below the job's folder",
    "folder": "a folder of a disk, relative or absolute",
    "digest": "64 hexadecimal digits",
    "repository": "https://, http://, ssh://, git@host:path or file://, without a password",
    "ref": "a branch or a tag, as git names it",
    "commit": "40 hexadecimal digits",
    "requirements": "lines of a requirements file; of its options --hash alone",
    "packages": "lines of a requirements file; of its options --hash alone",
    "index": "https:// or http://, without a password",
    "job_name": "at most 40 lower-case letters, digits and '-', beginning with a letter",
    "object": "lower-case letters, digits, '-' and '.'",
    "queue": "lower-case letters, digits, '-' and '.', at most 63",
    "image": "[registry[:port]/]path[:tag][@digest]",
    "mig": "a profile that a GPU has, like 1g.10gb or 1g.10gb+me",
    "gpu_type": "the value of the node's label, or label=value",
    "environment": "names of letters, digits, '_', '-' and '.'; values are text",
    "bool": "true or false",
    "source": "one kind of volume with its fields",
}


def _first_line(kind: Any) -> str:
    return (inspect.getdoc(kind) or "").partition("\n")[0]
