"""The fields of a job, from the vocabulary that `check`, `schema` and `explain` read."""

from __future__ import annotations

import json
from collections.abc import Iterator
from html import escape

from allaboard.errors import BadInput
from allaboard.job.explaining import Explained, explain
from tests.docs.site.markdown import code, table

HEAD = """\
# The fields of a job

Every field of a job, from the vocabulary that reads them. `allaboard explain FIELD` says the same in a
terminal, `allaboard schema` prints the JSON Schema, and `allaboard check FILE` tells all problems of a file
at once.
"""


def page() -> str:
    """Markdown: a section for each field, a table of the fields within it."""
    top = explain()
    return "\n".join([HEAD, *(line for name in top.fields or {} for line in _section(explain(name)))])


def fields(below: Explained) -> list[Explained]:
    """The fields within one, at any depth, in order."""
    found: list[Explained] = []
    for name in below.fields or {}:
        try:
            one = explain(f"{below.path}.{name}" if below.path else name)
        except BadInput:
            continue  # a name that stands for others: a role, a variable
        found += [one, *fields(one)]
    return found


def _section(field: Explained) -> Iterator[str]:
    yield f"## {field.path}"
    yield ""
    yield f"{_prose(field.doc[:1].upper() + field.doc[1:])}."
    yield ""
    yield from table(("Field", "Is", "", "Absent", "For example"), map(_row, [field, *fields(field)]))


def _row(field: Explained) -> tuple[str, ...]:
    allowed = f"<br>Allowed: {_prose(field.allowed)}." if field.allowed else ""
    example = "" if field.example is None else code(_shown(field.example))
    absent = "must be said" if field.required else field.default or ""
    return (f"`{field.path}`", field.type, f"{_prose(field.doc)}.{allowed}", _prose(absent), example)


def _prose(text: str) -> str:
    """Text in which nothing is Markdown or HTML."""
    return escape(text, quote=False).replace("*", "\\*").replace("[", "\\[")


def _shown(value: object) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
