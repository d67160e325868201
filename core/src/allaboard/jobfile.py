"""A job file: YAML or JSON, one job. Every way in which it cannot be read ends in one sentence with the
place.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from allaboard.errors import BadInput
from allaboard.job import TrainingJob

SUFFIXES = (".yaml", ".yml", ".json")


def load(path: str | Path) -> TrainingJob:
    """The job in a file. Relative paths in it start at the file's folder. Raises `BadInput`."""
    file = Path(path).expanduser()
    job = TrainingJob.of(parse(read_text(file), str(path)), folder=str(file.resolve().parent))
    return job


def read_text(file: Path) -> str:
    """The text of a file that a person named."""
    try:
        return file.read_text(encoding="utf-8")
    except FileNotFoundError:
        raise BadInput(f"{file}: no such file{_similar(file)}") from None
    except IsADirectoryError:
        raise BadInput(f"{file} is a folder; name the job file in it") from None
    except PermissionError:
        raise BadInput(f"{file} may not be read by this user") from None
    except UnicodeDecodeError as error:
        raise BadInput(f"{file} is not UTF-8 text (byte {error.start}); a job is YAML or JSON") from None
    except OSError as error:
        raise BadInput(f"{file} cannot be read: {error.strerror}") from None


def parse(text: str, name: str) -> dict[str, Any]:
    """The mapping that the text says; ``name`` is what messages call it."""
    value = _json(text, name) if name.endswith(".json") else _yaml(text, name)
    if value is None:
        raise BadInput(f"{name} is empty; `allaboard schema` says what a job may hold")
    if not isinstance(value, dict):
        raise BadInput(f"{name} holds {_kind(value)}; a job is fields, like `name: digits`")
    return value


def _json(text: str, name: str) -> Any:
    try:
        return json.loads(text)
    except ValueError as error:
        raise BadInput(f"{name} is not JSON: {error}") from None


def _yaml(text: str, name: str) -> Any:
    import yaml

    class Loader(getattr(yaml, "CSafeLoader", yaml.SafeLoader)):  # type: ignore[misc]
        """Safe YAML that refuses a field written twice: the last one would win in silence."""

    def unique(loader: Any, node: Any, deep: bool = False) -> dict[Any, Any]:
        seen: set[str] = set()
        for key, _ in node.value:
            if key.value in seen:
                raise yaml.constructor.ConstructorError(
                    None, None, f"the field {key.value!r} stands twice", key.start_mark
                )
            if isinstance(key.value, str):
                seen.add(key.value)
        loader.flatten_mapping(node)
        return dict(loader.construct_pairs(node, deep=True))

    Loader.add_constructor("tag:yaml.org,2002:map", unique)
    try:
        documents = [d for d in yaml.load_all(text, Loader=Loader) if d is not None]
    except yaml.YAMLError as error:
        mark = getattr(error, "problem_mark", None)
        where = f" (line {mark.line + 1}, column {mark.column + 1})" if mark else ""
        reason = getattr(error, "problem", None) or str(error).splitlines()[0]
        raise BadInput(f"{name} is not YAML: {reason}{where}") from None
    except (TypeError, ValueError, RecursionError) as error:
        raise BadInput(f"{name} is not YAML that can be read: {error}") from None
    if len(documents) > 1:
        raise BadInput(f"{name} holds {len(documents)} documents; give one job per file")
    return documents[0] if documents else None


def _kind(value: Any) -> str:
    return {list: "a list", str: "text", int: "a number", float: "a number"}.get(
        type(value), "something else"
    )


def _similar(file: Path) -> str:
    from allaboard.names import nearest

    try:
        names = [p.name for p in file.parent.iterdir() if p.suffix in SUFFIXES]
    except OSError:
        return f"; the folder {file.parent} is not there either"
    found = nearest(file.name, names)
    return f"; did you mean {file.with_name(found)}?" if found else ""
