"""Advice of experts on a job or a manifest that is correct and will still disappoint: each finding has a
stable code, the path of the field, the reason, and what to do. Values in, values out.

A rule is a small function of a `allaboard.lint.view.View`, one view of a job and of every kind of job object.
Rules stand in the modules of `allaboard.lint.rules` and are found by being there.
"""

from __future__ import annotations

import pkgutil
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from importlib import import_module
from typing import Any

from allaboard.job.training_job import TrainingJob
from allaboard.lint import rules
from allaboard.lint.rule import SEVERITIES, Rule
from allaboard.lint.view import View, view_of_job, view_of_object
from allaboard.text.printable import visible
from allaboard.text.redaction import redact_text
from allaboard.text.untrusted import show

__all__ = ["RULES", "Finding", "Rule", "lint_job", "lint_object"]


def _rules() -> Iterator[Rule]:
    for info in sorted(pkgutil.iter_modules(rules.__path__), key=lambda info: info.name):
        module = import_module(f"{rules.__name__}.{info.name}")
        yield from (value for value in vars(module).values() if isinstance(value, Rule))


RULES: Mapping[str, Rule] = {rule.code: rule for rule in _rules()}
"""Code -> rule."""


@dataclass(frozen=True, slots=True)
class Finding:
    """One thing that an expert would say. ``severity``: ``error`` (it will not do what it says), ``warning``
    (it breaks, or costs, sooner or later), ``advice``; ``path``: of the field; ``summary``: what is
    found there. All of it is fit to be shown.
    """

    code: str
    severity: str
    path: str
    summary: str
    reason: str
    fix: str

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        return {
            "code": self.code,
            "severity": self.severity,
            "path": self.path,
            "summary": self.summary,
            "why": self.reason,
            "fix": self.fix,
        }


def lint_job(job: TrainingJob) -> list[Finding]:
    """The findings about a checked job, the gravest first."""
    return _findings(view_of_job(job))


def lint_object(obj: Mapping[str, Any]) -> list[Finding] | None:
    """The findings about a job object or the runtime of one, the gravest first; None: its kind is no
    engine's. Whatever fields it has, of values that `allaboard.text.untrusted` takes, nothing is raised.
    """
    view = view_of_object(obj)
    return None if view is None else _findings(view)


def _findings(view: View) -> list[Finding]:
    findings: dict[tuple[str, str], Finding] = {}
    for rule in RULES.values():
        if view.origin not in rule.reads:
            continue
        for hit in rule.find(view):
            path = visible(redact_text(show(hit.path, 300, quote=False)), tabs=True)
            # Groups that share a field of a job have it once.
            detail = f": {visible(redact_text(hit.detail), tabs=True)}" if hit.detail else ""
            findings.setdefault(
                (rule.code, path),
                Finding(
                    code=rule.code,
                    severity=rule.severity,
                    path=path,
                    summary=rule.summary + detail,
                    reason=rule.reason,
                    fix=rule.fix_of(view, hit, path),
                ),
            )
    return sorted(findings.values(), key=lambda f: SEVERITIES.index(f.severity))
