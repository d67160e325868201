"""The command line, from its own help."""

from __future__ import annotations

from collections.abc import Iterator

import click

from allaboard.cli import HEADINGS, VERBS, app
from tests.docs.site.markdown import fenced, table
from tests.meta.source import ROOT

HEAD = """\
# The command line

What `--help` says of each verb. With `--json` stdout holds one object and nothing else, errors included;
`logs` and `follow` print one object per line.
"""


def page() -> str:
    """Markdown: the verbs by heading, then the help of each."""
    lines = [HEAD, *exit_codes(), ""]
    for heading in HEADINGS:
        rows = [
            (f"[`{name}`](#{name})", verb.line) for name, verb in VERBS.items() if verb.heading == heading
        ]
        lines += [f"**{heading}**", "", *table(("Verb", "Does"), rows)]
    for name in VERBS:
        lines += [f"## {name}", "", *_helps(command(name), f"allaboard {name}")]
    return "\n".join(lines)


def exit_codes() -> list[str]:
    """The table of core/docs/contract.md, Exit codes."""
    text = (ROOT / "core" / "docs" / "contract.md").read_text(encoding="utf-8")
    section = text.split("\n## Exit codes\n", 1)[1].split("\n## ", 1)[0]
    return [line for line in section.splitlines() if line.startswith("|")]


def command(name: str) -> click.Command:
    """The command of a verb."""
    found = app.get_command(click.Context(app), name)
    assert found is not None, name
    return found


def _helps(one: click.Command, path: str, parent: click.Context | None = None) -> Iterator[str]:
    context = click.Context(one, info_name=path, parent=parent, terminal_width=100, max_content_width=100)
    yield from fenced(one.get_help(context))
    if isinstance(one, click.Group):
        for name in one.list_commands(context):
            below = one.get_command(context, name)
            if below is not None:
                yield from _helps(below, name, context)
