"""A mapping that a person or a template wrote as text: a job, metrics, the result of another task."""

from __future__ import annotations

import ast
from collections.abc import Mapping
from typing import Any

from allaboard.errors import BadInput
from allaboard.text.untrusted import LIMITS, Unreadable, find_flaws, parse_json, show
from allaboard.text.untrusted_yaml import parse_yaml


def as_mapping(text: str, subject: str, *, instead: str = "") -> Mapping[str, Any]:
    """The mapping that a text says: JSON, a Python literal (which Jinja writes), or YAML, within the bounds
    of `allaboard.text.untrusted`. ``subject``: the name in messages; ``instead``: what else is allowed
    there. Raises BadInput.
    """
    text = text.strip()
    troubles = []
    for reader in (parse_json, _parse_literal, _parse_document):
        try:
            value = reader(text)
        except Unreadable as error:
            troubles.append(str(error))
            continue
        if isinstance(value, Mapping):
            return value
        troubles.append(f"it holds {_kind(value)}")
    # The reader that the author had in mind: YAML is the only one without a bracket in front.
    trouble = troubles[0 if text.startswith("{") else -1]
    alternatives = f", or {instead}" if instead else ""
    quotes = '; templates stand within quotes: "{{ params.workers }}"' if "{{" in text or "{%" in text else ""
    raise BadInput(
        f"{subject}: {show(text)} is not a mapping ({trouble}); give a mapping, or JSON or YAML of one"
        f"{alternatives}{quotes}"
    )


def _parse_literal(text: str) -> Any:
    """The value of a Python literal. Raises `Unreadable`."""
    if len(text) > LIMITS.size:
        raise Unreadable(f"has {len(text):,} characters; {LIMITS.size:,} are allowed")
    try:
        tree = ast.parse(text, mode="eval")
        for node in ast.walk(tree):
            if isinstance(node, ast.Dict):
                names = [ast.dump(key) for key in node.keys if key is not None]
                if len(set(names)) != len(node.keys):
                    raise Unreadable("a field appears twice")
        value = ast.literal_eval(tree)
    except (ValueError, SyntaxError, TypeError, MemoryError, RecursionError) as error:
        if isinstance(error, Unreadable):
            raise
        raise Unreadable("is not a Python value") from None
    for path, trouble in find_flaws(value):
        raise Unreadable(f"{path}: {trouble}" if path else trouble)
    return value


def _parse_document(text: str) -> Any:
    """The value of the only document of a YAML text. Raises `Unreadable`."""
    documents = parse_yaml(text)
    if len(documents) > 1:
        raise Unreadable(f"it holds {len(documents)} documents")
    return documents[0] if documents else None


def _kind(value: Any) -> str:
    return {str: "text", list: "a list", type(None): "nothing"}.get(type(value), "one value")
