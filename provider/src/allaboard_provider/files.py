"""Job files beside a DAG file."""

from __future__ import annotations

from pathlib import Path
from typing import Any

from allaboard.job.homes import expand_home
from allaboard.job.loader import parse, read_text


def dag_folder(operator: Any) -> str:
    """The folder of the DAG file, where the relative paths of its tasks start."""
    file = operator.dag.fileloc if operator.has_dag() else None
    return str(Path(file).absolute().parent if file else Path.cwd())


def fields_of_file(path: str, start: str) -> tuple[dict[str, Any], str]:
    """The mapping in a job file, and the folder where its relative paths start. Raises BadInput."""
    file = Path(start) / expand_home(path.strip())
    return parse(read_text(file), str(file)), str(file.resolve().parent)
