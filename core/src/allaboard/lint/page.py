"""The page of all rules, written from the rules themselves. Values in, values out."""

from __future__ import annotations

from collections.abc import Iterator

from allaboard.lint import RULES
from allaboard.lint.rule import SEVERITIES, Rule
from allaboard.lint.view import JOB, MANIFEST

_HEAD = """\
# What `allaboard lint` says

`allaboard lint FILE` reads job files and manifests (of the kinds that `allaboard engines` lists) and says
what experts would: each finding has a code that stays, the path of the field, why, and what to do. An
**error** will not do what it says, a **warning** breaks or costs sooner or later, **advice** could be better.
The exit code is 0 whatever is found.

This page is written from the rules: `make docs`.
"""
_READS = {(JOB, MANIFEST): "jobs and manifests", (JOB,): "jobs", (MANIFEST,): "manifests"}


def page() -> str:
    """Markdown: a table of all codes, then each rule."""
    return "\n".join([_HEAD, *_table(), *(line for rule in _ordered() for line in _section(rule))]) + "\n"


def _ordered() -> list[Rule]:
    return sorted(RULES.values(), key=lambda rule: (SEVERITIES.index(rule.severity), rule.code))


def _table() -> Iterator[str]:
    yield "| Code | | Read of | Says |"
    yield "|---|---|---|---|"
    for rule in _ordered():
        yield f"| [`{rule.code}`](#{rule.code}) | {rule.severity} | {_READS[rule.reads]} | {rule.summary} |"


def _section(rule: Rule) -> Iterator[str]:
    yield ""
    yield f"## {rule.code}"
    yield ""
    yield f"{_sentence(rule.summary)} {rule.reason}"
    yield ""
    yield f"**Fix:** {_sentence(rule.fix)}"
    if rule.job_fix != rule.fix and JOB in rule.reads:
        yield f"In a job: {rule.job_fix}."
    yield ""
    yield f"*Source:* {rule.source}"


def _sentence(text: str) -> str:
    return f"{text[0].upper()}{text[1:]}."
