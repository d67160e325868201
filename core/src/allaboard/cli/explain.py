"""``allaboard explain``: what a field of a job means, as ``kubectl explain`` says it for objects."""

from __future__ import annotations

import json
from collections.abc import Iterator
from typing import TYPE_CHECKING

import click

from allaboard.cli.place import json_option
from allaboard.report.saying import say, show

if TYPE_CHECKING:
    from allaboard.spec.explaining import Explained

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
    """Say what a field of a job means: its type, what is allowed, its default, an example. Without PATH: the
    fields of a job."""
    from allaboard.spec.explaining import explain as explained

    found = explained(path)
    if as_json:
        show(found.to_dict())
        return
    for line in _page(found):
        say(line)


def _page(found: Explained) -> Iterator[str]:
    if found.path:
        yield f"{found.path}: {found.type}{', required' if found.required else ''}"
        yield f"  {found.doc}"
        yield ""
        if found.allowed:
            yield f"  allowed  {found.allowed}"
        if not found.required and (found.default or not found.fields):
            yield f"  default  {found.default or 'absent'}"
        if found.example is not None:
            yield f"  example  {_example(found)}"
    else:
        yield found.doc
    if not found.fields:
        return
    yield ""
    width = max(map(len, found.fields)) + 2
    kinds = max(len(kind) for kind, _ in found.fields.values()) + 2
    for name, (kind, doc) in found.fields.items():
        yield f"  {name:<{width}}{kind:<{kinds}}{doc}"


def _example(found: Explained) -> str:
    """As it stands in a job file: JSON is YAML."""
    name = found.path.rpartition(".")[2]
    example = found.example
    written = example if isinstance(example, str) else json.dumps(example, ensure_ascii=False)
    return f"{name}: {written}"
