"""Reading one value by its type: a small interpreter of the vocabulary in `allaboard.job`.

A field is ``Annotated[type, kind, doc]``. `read` returns the value in its plain form and appends every
problem, with its path; it never stops at the first. ``lenient`` also takes ``"4"`` and ``4.0`` for 4
(templating and kfp.local make such values).
"""

from __future__ import annotations

import re
import types
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Literal, Union, get_args, get_origin, get_type_hints, is_typeddict

from allaboard import units
from allaboard.errors import Problem
from allaboard.names import nearest, one_of, why_not_a_job_name

_VARIABLE = re.compile(r"[A-Za-z_.\-][A-Za-z0-9_.\-]*")


@cache
def hints(kind: type) -> dict[str, Any]:
    """The annotated fields of one typed dictionary, evaluated once."""
    return get_type_hints(kind, include_extras=True)


def parts(hint: Any) -> tuple[Any, str, str]:
    """(type, kind, doc) of an annotated field."""
    base, kind, doc = get_args(hint)
    return base, kind, doc


class Reader:
    """Reads values; collects problems."""

    def __init__(self, lenient: bool = False) -> None:
        self.lenient = lenient
        self.problems: list[Problem] = []

    def wrong(self, path: str, message: str, suggestion: str | None = None) -> None:
        self.problems.append(Problem(path, message, suggestion))

    def mapping(self, kind: type, value: Any, path: str) -> dict[str, Any]:
        """A typed dictionary's fields, known ones in the order of the dictionary."""
        if not isinstance(value, Mapping):
            self.wrong(path, f"expected fields ({one_of(hints(kind))}), not {_show(value)}")
            return {}
        known = hints(kind)
        for name in value:
            if name not in known:
                self.wrong(_at(path, str(name)), "no such field", nearest(str(name), known))
        return {
            name: self.field(known[name], value[name], _at(path, name))
            for name in known
            if value.get(name) is not None
        }

    def field(self, hint: Any, value: Any, path: str) -> Any:
        base, kind, _ = parts(hint)
        if kind == "group":
            return self.mapping(base, value, path)
        if kind == "choice":
            return self.choice(get_args(base), value, path)
        if kind == "list":
            return self.items(get_args(base)[0], value, path)
        if kind == "groups":
            return self.groups(base, value, path)
        reader: Callable[[Any, str], Any] = getattr(self, f"_{kind}")
        return reader(value, path)

    def items(self, kind: type, value: Any, path: str) -> list[Any]:
        if not isinstance(value, list):
            self.wrong(path, f"expected a list, not {_show(value)}")
            return []
        return [self.mapping(kind, item, f"{path}[{n}]") for n, item in enumerate(value)]

    def choice(self, allowed: tuple[str, ...], value: Any, path: str) -> Any:
        # YAML 1.1 reads a bare `none`, `on` or `off` as text or truth; `never` and `none` must survive.
        if value not in allowed:
            hint = nearest(value, allowed) if isinstance(value, str) else None
            self.wrong(path, f"{_show(value)} is not known; known: {one_of(allowed)}", hint)
        return value

    def groups(self, base: Any, value: Any, path: str) -> dict[str, Any]:
        if not isinstance(value, Mapping) or not value:
            self.wrong(path, f"expected members by role, like {{master: 1, worker: 2}}, not {_show(value)}")
            return {}
        group = next(t for t in get_args(get_args(base)[1]) if is_typeddict(t))
        read: dict[str, Any] = {}
        for role, spec in value.items():
            at = _at(path, str(role))
            read[str(role)] = (
                self.mapping(group, spec, at) if isinstance(spec, Mapping) else self._count1(spec, at)
            )
        return read

    # One method per kind of plain value.

    def _text(self, value: Any, path: str) -> Any:
        if not isinstance(value, str) or not value.strip():
            self.wrong(path, f"expected text, not {_show(value)}")
        return value

    def _path(self, value: Any, path: str) -> Any:
        if not isinstance(value, str) or not value.startswith("/"):
            self.wrong(path, f"expected an absolute path like /data, not {_show(value)}")
        return value

    def _job_name(self, value: Any, path: str) -> Any:
        reason = why_not_a_job_name(value) if isinstance(value, str) else f"expected text, not {_show(value)}"
        if reason:
            self.wrong(path, reason)
        return value

    def _bool(self, value: Any, path: str) -> Any:
        if self.lenient and isinstance(value, str) and value.lower() in ("true", "false"):
            return value.lower() == "true"
        if not isinstance(value, bool):
            self.wrong(path, f"expected true or false, not {_show(value)}")
        return value

    def _count0(self, value: Any, path: str) -> Any:
        return self._count(value, path, 0)

    def _count1(self, value: Any, path: str) -> Any:
        return self._count(value, path, 1)

    def _count(self, value: Any, path: str, least: int) -> Any:
        if self.lenient:
            value = as_int(value)
        if isinstance(value, bool) or not isinstance(value, int):
            self.wrong(path, f"expected a whole number, not {_show(value)}")
        elif value < least:
            self.wrong(path, f"{value} is too few; give {least} or more")
        return value

    def _duration(self, value: Any, path: str) -> Any:
        return self._by(units.seconds, value, path)

    def _size(self, value: Any, path: str) -> Any:
        return self._by(units.size, value, path)

    def _cores(self, value: Any, path: str) -> Any:
        value = self._by(units.cores, value, path)
        if value in (0, 0.0, "0"):
            self.wrong(path, "0 cores cannot run anything; give more, or leave cpu out")
        return value

    def _every(self, value: Any, path: str) -> Any:
        if self.lenient:
            value = as_int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._count1(value, path)
        return self._by(units.seconds, value, path)

    def _processes(self, value: Any, path: str) -> Any:
        if self.lenient:
            value = as_int(value)
        if isinstance(value, int) and not isinstance(value, bool):
            return self._count1(value, path)
        return self.choice(("auto", "cpu", "gpu"), value, path)

    def _by(self, parse: Callable[[Any], Any], value: Any, path: str) -> Any:
        try:
            if not isinstance(value, (str, int, float)):
                raise ValueError(f"expected a number with a unit, not {_show(value)}")
            parse(value)
        except ValueError as error:
            self.wrong(path, str(error))
        return value

    def _command(self, value: Any, path: str) -> Any:
        if isinstance(value, str):
            self.wrong(path, f"expected a list of words, not text; write {_as_list(value)}")
            return value
        if not isinstance(value, list) or not value:
            self.wrong(
                path, f"expected a program and its arguments, like [python, train.py], not {_show(value)}"
            )
            return value
        return [self._word(word, f"{path}[{n}]") for n, word in enumerate(value)]

    def _word(self, value: Any, path: str) -> Any:
        if isinstance(value, (int, float)) and not isinstance(value, bool):
            return str(value)
        if not isinstance(value, str):
            self.wrong(path, f"expected text, not {_show(value)}; quote it")
        elif "\0" in value:
            self.wrong(path, "holds a NUL byte")
        return value

    def _paths(self, value: Any, path: str) -> Any:
        if not isinstance(value, list):
            self.wrong(path, f"expected a list of files, not {_show(value)}")
            return []
        return [self._text(item, f"{path}[{n}]") for n, item in enumerate(value)]

    def _environment(self, value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            self.wrong(path, f"expected variables, like {{NCCL_DEBUG: WARN}}, not {_show(value)}")
            return {}
        return {str(name): self._variable(str(name), v, _at(path, str(name))) for name, v in value.items()}

    def _variable(self, name: str, value: Any, path: str) -> Any:
        if not _VARIABLE.fullmatch(name):
            self.wrong(path, f"{name!r} is not a legal variable name")
        if isinstance(value, bool) or not isinstance(value, (str, int, float)):
            self.wrong(path, f"expected text, not {_show(value)}; quote it")
            return value
        return str(value)

    def _any(self, value: Any, path: str) -> Any:
        if not isinstance(value, Mapping):
            self.wrong(path, f"expected fields of a pod template, not {_show(value)}")
        return value


def as_int(value: Any) -> Any:
    """4 for ``"4"``, ``" 4 "`` and ``4.0``; everything else as it is."""
    if isinstance(value, float) and value.is_integer():
        return int(value)
    if isinstance(value, str) and re.fullmatch(r"\s*[+-]?\d+(\.0+)?\s*", value):
        return int(float(value))
    return value


def json_type(hint: Any, describe: Callable[[type], dict[str, Any]]) -> dict[str, Any]:
    """The JSON Schema of an annotated field; ``describe`` gives that of a typed dictionary."""
    base, kind, doc = parts(hint)
    return {**_SCHEMAS.get(kind, lambda b, d: _schema_of(b, d))(base, describe), "description": doc}


def _schema_of(base: Any, describe: Callable[[type], dict[str, Any]]) -> dict[str, Any]:
    if is_typeddict(base):
        return describe(base)
    if get_origin(base) is Literal:
        return {"enum": list(get_args(base))}
    if get_origin(base) is list:
        return {"type": "array", "items": _schema_of(get_args(base)[0], describe)}
    if get_origin(base) is dict:
        return {"type": "object", "additionalProperties": _schema_of(get_args(base)[1], describe)}
    if get_origin(base) in (Union, types.UnionType):
        return {"anyOf": [_schema_of(t, describe) for t in get_args(base)]}
    return dict(_PLAIN.get(base, {}))


_PLAIN: dict[Any, dict[str, Any]] = {
    str: {"type": "string"},
    int: {"type": "integer"},
    float: {"type": "number"},
    bool: {"type": "boolean"},
}
_SCHEMAS: dict[str, Callable[[Any, Any], dict[str, Any]]] = {
    "count0": lambda base, describe: {"type": "integer", "minimum": 0},
    "count1": lambda base, describe: {"type": "integer", "minimum": 1},
    "job_name": lambda base, describe: {
        "type": "string",
        "pattern": "^[a-z]([-a-z0-9]*[a-z0-9])?$",
        "maxLength": 40,
    },
    "path": lambda base, describe: {"type": "string", "pattern": "^/"},
    "command": lambda base, describe: {
        "type": "array",
        "items": {"type": ["string", "number"]},
        "minItems": 1,
    },
    "environment": lambda base, describe: {
        "type": "object",
        "additionalProperties": {"type": ["string", "number"]},
    },
    "groups": lambda base, describe: {
        "type": "object",
        "minProperties": 1,
        "additionalProperties": {
            "anyOf": [
                {"type": "integer", "minimum": 1},
                describe(next(t for t in get_args(get_args(base)[1]) if is_typeddict(t))),
            ]
        },
    },
    "processes": lambda base, describe: {
        "anyOf": [{"enum": ["auto", "cpu", "gpu"]}, {"type": "integer", "minimum": 1}]
    },
    "every": lambda base, describe: {"anyOf": [{"type": "integer", "minimum": 1}, {"type": "string"}]},
}


def _at(path: str, name: str) -> str:
    return f"{path}.{name}" if path else name


def _show(value: Any) -> str:
    text = "nothing" if value is None else repr(value)
    return text if len(text) <= 60 else text[:57] + "..."


def _as_list(text: str) -> str:
    import shlex

    try:
        words = shlex.split(text)
    except ValueError:
        words = text.split()
    return "[" + ", ".join(w if re.fullmatch(r"[\w./=-]+", w) else repr(w) for w in words) + "]"
