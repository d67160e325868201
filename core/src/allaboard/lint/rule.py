"""Rules of lint. Values in, values out."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from typing import NamedTuple

from allaboard.lint.view import JOB, MANIFEST, View

SEVERITIES = ("error", "warning", "advice")
"""The gravest first: it will not do what it says; it breaks or costs sooner or later; it could be better."""


class Hit(NamedTuple):
    """Place to which a rule applies: the path of the field, and a text about its value."""

    path: str
    detail: str = ""


@dataclass(frozen=True, slots=True)
class Rule:
    """``reads``: what it is asked of, a job, a manifest, or both. ``fix`` is a sentence that follows the path
    of the field; ``job_fix``: of a job, where that is another one. ``source``: where the rule comes from, the
    docstring of its function.
    """

    code: str
    severity: str
    reads: tuple[str, ...]
    summary: str
    reason: str
    fix: str
    job_fix: str
    source: str
    find: Callable[[View], Iterator[Hit]]

    def fix_of(self, view: View, hit: Hit, path: str) -> str:
        """Advice on what to do; it begins with the path of the field."""
        return f"{path}: {self.job_fix if view.origin == JOB else self.fix}"


def rule(
    code: str,
    severity: str,
    summary: str,
    reason: str,
    fix: str,
    *,
    job_fix: str | None = None,
    reads: tuple[str, ...] = (JOB, MANIFEST),
) -> Callable[[Callable[[View], Iterator[Hit]]], Rule]:
    """Makes a rule of the function that finds where it applies."""

    def made(find: Callable[[View], Iterator[Hit]]) -> Rule:
        source = " ".join((find.__doc__ or "").split())
        return Rule(code, severity, reads, summary, reason, fix, job_fix or fix, source, find)

    return made
