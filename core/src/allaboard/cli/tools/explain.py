"""``allaboard explain``: what a field of a job means, as ``kubectl explain`` says it for objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from allaboard.cli.place import json_option
from allaboard.report.terminal import say, show_json

if TYPE_CHECKING:
    from allaboard.job.explaining import Explained

EPILOG = """\b
Examples:
  allaboard explain
  allaboard explain policy
  allaboard explain policy.backoff_limit --json
"""


@click.command(epilog=EPILOG)
@click.argument("path", metavar="[PATH]", default="")
@json_option
def explain(path: str, as_json: bool) -> None:
    """Explain a field of a job: its type, what is allowed, its default, an example. Without PATH: the
    fields of a job."""
    from allaboard.job.explaining import explain as explained

    field = explained(path)
    if as_json:
        show_json(field.to_dict())
        return
    for line in _page(field):
        say(line)


def _page(field: Explained) -> Iterator[str]:
    if field.path:
        yield f"{field.path}: {field.type}{', required' if field.required else ''}"
        yield f"  {field.doc}"
        yield ""
        if field.allowed:
            yield f"  allowed  {field.allowed}"
        if not field.required and (field.default or not field.fields):
            yield f"  default  {field.default or 'absent'}"
        if field.example is not None:
            yield f"  example  {_example_line(field)}"
    else:
        yield field.doc
    if not field.fields:
        return
    yield ""
    width = max(map(len, field.fields)) + 2
    kinds = max(len(kind) for kind, _ in field.fields.values()) + 2
    for name, (kind, doc) in field.fields.items():
        yield f"  {name:<{width}}{kind:<{kinds}}{doc}"


def _example_line(field: Explained) -> str:
    """The example as a line of a job file (JSON is YAML)."""
    name = field.path.rpartition(".")[2]
    example = field.example
    written = example if isinstance(example, str) else json.dumps(example, ensure_ascii=False)
    return f"{name}: {written}"
