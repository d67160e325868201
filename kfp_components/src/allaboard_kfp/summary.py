"""A run in a few lines of Markdown: how it ended, its numbers, and why it failed, with the evidence and what
to do. Values in, text out: told from the data of the page (`allaboard.report.page_data`), without secrets.

What members and servers wrote stands in code blocks, or with its marks escaped: it is text, and never markup.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from typing import Any

from allaboard.report.phrases import number
from allaboard.text.printable import visible

_MARKS = re.compile(r"([\\`*_{}\[\]<>()#+!|~&])")
_EVIDENCE = 5


def run_markdown(data: Mapping[str, Any]) -> str:
    """``data``: of one run, as `allaboard.report.page_data.page_data` makes it."""
    return "\n".join([*_ending(data), *_numbers(data), *_causes(data)]) + "\n"


def _ending(data: Mapping[str, Any]) -> Iterator[str]:
    yield f"## {plain(data['headline'])}"
    if data["message"]:
        yield from ("", *_block(data["message"]))


def _numbers(data: Mapping[str, Any]) -> Iterator[str]:
    if not data["metrics"]:
        return
    yield from ("", "| metric | value |", "|---|---|")
    for metric in data["metrics"]:
        yield f"| {plain(metric['name'])} | {number(metric['value'])} |"


def _causes(data: Mapping[str, Any]) -> Iterator[str]:
    for cause in data["diagnoses"]:
        yield from ("", f"### {plain(cause['code'])}", "", plain(cause["summary"]))
        if cause["blame"]:
            yield from ("", f"Look first at: {plain(cause['blame'])}")
        for seen in cause["evidence"][:_EVIDENCE]:
            yield from ("", f"{plain(seen['object'])}, {plain(seen['field'])}:", *_block(seen["text"]))
        yield from ("", f"**What to do:** {plain(cause['fix'])}")
        if not data["ok"]:
            again = "may succeed" if cause["retryable"] else "would repeat it"
            yield from ("", f"Another try {again}.")


def plain(text: Any) -> str:
    """One line of text whose marks are no markup."""
    return _MARKS.sub(r"\\\1", " ".join(visible(text).split()))


def _block(text: Any) -> Iterator[str]:
    """A block of code, whatever fences are in the text."""
    body = visible(text, newlines=True, tabs=True)
    fence = "`" * max(3, 1 + max((len(run) for run in re.findall("`+", body)), default=0))
    yield from (fence, *body.splitlines(), fence)
