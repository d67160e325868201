"""The mapping that a text says: of a job, of metrics, of another task's result."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from allaboard.errors import BadInput
from allaboard.untrusted import LIMITS, Unreadable, find_flaws, parse_json, show

MARKS = ("{{", "{%", "{#")


def has_template(text: str) -> bool:
    """Whether Jinja would change the text."""
    return any(mark in text for mark in MARKS)


def as_mapping(text: str, what: str) -> Mapping[str, Any]:
    """The mapping in a text: JSON, Python's own way to write one (Jinja writes that), or YAML. Raises
    BadInput.
    """
    from allaboard.untrusted_yaml import parse_yaml

    trouble = ""
    for reader in (parse_json, _parse_literal, parse_yaml):
        try:
            value = reader(text)
        except Unreadable as error:
            trouble = trouble or str(error)
            continue
        if isinstance(value, list) and reader is parse_yaml and len(value) == 1:
            (value,) = value  # of its documents
        if isinstance(value, Mapping):
            return value
    where = f"{what}: " if what else ""
    endings = ", or the path of a .yaml, .yml or .json file" if what == "job" else ""
    quote = '; templates stand within quotes: "{{ params.workers }}"' if has_template(text) else ""
    raise BadInput(
        f"{where}{show(text)} is no mapping ({trouble or 'it is one value'}); give a mapping, JSON of "
        f"one{endings}{quote}"
    )


def _parse_literal(text: str) -> Any:
    """The value of a Python literal. Raises `Unreadable`."""
    import ast

    if len(text) > LIMITS.size:
        raise Unreadable(f"has {len(text):,} characters; {LIMITS.size:,} are allowed")
    try:
        tree = ast.parse(text, mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                names = [ast.dump(key) for key in node.keys if key is not None]
                if len(set(names)) != len(node.keys):
                    raise Unreadable("a field stands twice")
        value = ast.literal_eval(tree)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable("is no Python value") from None
    for path, trouble in find_flaws(value):
        raise Unreadable(f"{path}: {trouble}" if path else trouble)
    return value
