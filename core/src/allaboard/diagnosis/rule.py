"""What a rule of the doctor is, and what it finds.

A rule belongs to one cause of failure: its code is stable, its words become a page (`allaboard doctor
--causes`), ``needs`` says which evidence it reads. It is a small function of the `Case` and yields a
`Finding` for each place where the cause shows; it yields nothing without evidence that it can quote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass

from allaboard.diagnosis.case import Case
from allaboard.diagnosis.finding import Finding, Need


@dataclass(frozen=True, slots=True)
class Cause:
    """A code and what is told of it. ``means``, ``looks`` and ``fix`` are Markdown, sentences for people;
    ``retryable``: of most; a finding may say otherwise.
    """

    code: str
    title: str
    means: str
    looks: str
    fix: str
    room: str = ""
    retryable: bool = False
    needs: tuple[Need, ...] = ()


Check = Callable[[Case], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    cause: Cause
    check: Check


RULES: dict[str, Rule] = {}
"""Code -> rule, as far as its module was imported: `allaboard.diagnosis.rules.all_rules` has all."""


def rule(
    code: str,
    title: str,
    *,
    means: str,
    looks: str,
    fix: str,
    needs: tuple[Need, ...],
    retryable: bool = False,
) -> Callable[[Check], Check]:
    """Registers a function as the rule of a cause."""

    def register(check: Check) -> Check:
        if code in RULES:
            raise ValueError(f"two rules of {code}")
        room = check.__module__.rpartition(".")[2]
        RULES[code] = Rule(Cause(code, title, means, looks, fix, room, retryable, needs), check)
        return check

    return register
