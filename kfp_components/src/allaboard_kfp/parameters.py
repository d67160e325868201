"""Parameters of a pipeline that stand inside an input of a step.

Kubeflow fills a parameter into a mapping, a list or a text as text, in the middle of the JSON that holds all
inputs: a list or a quote in it breaks that JSON, and a number becomes words (``kfp.local`` writes ``12.0``
for 12). So the components give each such parameter to the step as an input of its own, which keeps its type,
and leave a mark where it stands (`allaboard_kfp.passing`). The step fills the marks.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping, Sequence
from typing import Any

PREFIX = "parameter_"
"""Prefix of the names of such inputs."""
WHOLE = "<<allaboard:whole>>"
"""Stands beside the mark of a parameter that is a whole mapping or list."""
_MARK = re.compile(r"<<allaboard:(parameter_\w+):(any|float|json)(:text)?>>")


def mark(name: str, kind: str = "any", *, text: bool = False) -> str:
    """Mark for the value of the input ``name``. ``kind``: float, where 12.0 stays 12.0; json, where a
    text may be the JSON of the value; else any. ``text``: its text, wherever it stands.
    """
    return f"<<allaboard:{name}:{kind}{':text' if text else ''}>>"


def filled(value: Any, inputs: Callable[[], Mapping[str, Any]]) -> Any:
    """The value with its marks filled by the step's ``inputs``, which are read only if it has marks."""
    match value:
        case {**fields} if [*fields] == [WHOLE]:
            return filled(fields[WHOLE], inputs)
        case [first, rest] if first == WHOLE:
            return filled(rest, inputs)
        case {**fields}:
            return {filled(name, inputs): filled(item, inputs) for name, item in fields.items()}
        case [*items]:
            return [filled(item, inputs) for item in items]
        case str():
            match = _MARK.fullmatch(value)
            if match and not match[3]:
                return _value(match, inputs())
            return _MARK.sub(lambda mark: text_of(_value(mark, inputs())), value)
    return value


def text_of(value: Any) -> str:
    """A value as a word of a command or the value of a variable, as Kubeflow writes it: ``true``, ``12``."""
    return value if isinstance(value, str) else json.dumps(value, separators=(",", ":"), ensure_ascii=False)


def given_inputs(argv: Sequence[str]) -> Mapping[str, Any]:
    """The parameters of a step by name, in the command line that kfp's executor was started with; none where
    that is no step.
    """
    try:
        given = json.loads(argv[[*argv].index("--executor_input") + 1])
        values = given["inputs"]["parameterValues"]
    except (ValueError, IndexError, KeyError, TypeError):
        return {}
    return values if isinstance(values, Mapping) else {}


def _value(match: re.Match[str], inputs: Mapping[str, Any]) -> Any:
    name, kind, _ = match.groups()
    if name not in inputs:
        return match[0]  # what a person wrote looks like a mark
    value = inputs[name]
    if kind == "float" and isinstance(value, int) and not isinstance(value, bool):
        return float(value)
    if kind == "json" and isinstance(value, str):
        try:
            return json.loads(value)
        except ValueError:
            return value
    return value
