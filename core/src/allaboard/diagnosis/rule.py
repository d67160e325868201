"""Causes of failure: each is one entry in one file, which everybody asks.

A rule belongs to one cause: its code is stable, its words become a page (`allaboard doctor --causes`),
``needs`` says which evidence it reads. It is a small function of the `Case` and yields a `Finding` for each
place where the cause shows; it yields nothing without evidence that it can quote.

What a cluster says of members that do not start is recognised by the ``signs`` of a cause. The live view, the
doctor, preflight and who ends a run that can never start ask them alone (`allaboard.diagnosis.verdict`).
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from enum import StrEnum

from allaboard.diagnosis.case import Case
from allaboard.diagnosis.finding import Finding, Need


class Place(StrEnum):
    """The component whose message keeps members from running."""

    REFUSAL = "refusal"  # the API server, to somebody who asks for an object
    PLACEMENT = "placement"  # a scheduler, of a pod that has no node
    IMAGE = "image"  # a kubelet, of a container that waits for its image
    CONTAINER = "container"  # a kubelet, of a container that it cannot make
    START = "start"  # a container runtime, of a program that it cannot start
    NODE = "node"  # events of a pod none of whose containers was made: volumes, network, devices


@dataclass(frozen=True, slots=True)
class Sign:
    """One way in which a cluster tells a cause. ``pattern``: the message has it, ``but``: the message does
    not have it; ``reasons``: of the container or event, none: any. ``passes``: whether it may pass by itself;
    None: as the cause. ``sentence``: as `Cause.sentence`; empty: the cause's. ``last``: the sign is looked
    for only if no other sign fits.
    """

    place: Place
    pattern: re.Pattern[str] | None = None
    but: re.Pattern[str] | None = None
    reasons: frozenset[str] = frozenset()
    passes: bool | Callable[[str], bool] | None = None
    sentence: str | Callable[[str], str] = ""
    last: bool = False

    def matches(self, text: str, reason: str) -> bool:
        return (
            (not self.reasons or reason in self.reasons)
            and (self.pattern is None or self.pattern.search(text) is not None)
            and (self.but is None or self.but.search(text) is None)
        )


def says(
    place: Place,
    pattern: str = "",
    *,
    but: str = "",
    reasons: tuple[str, ...] = (),
    passes: bool | Callable[[str], bool] | None = None,
    sentence: str | Callable[[str], str] = "",
    last: bool = False,
) -> Sign:
    """A `Sign` whose ``pattern`` and ``but`` are regular expressions, case and line ends ignored."""
    has, lacks = (re.compile(p, re.IGNORECASE | re.DOTALL) if p else None for p in (pattern, but))
    return Sign(place, has, lacks, frozenset(reasons), passes, sentence, last)


@dataclass(frozen=True, slots=True)
class Cause:
    """A code and its explanation. ``means``, ``looks`` and ``fix`` are Markdown, sentences for people;
    ``retryable``: of most; a finding may say otherwise.

    Causes that keep members from starting have ``signs``; ``sentence``, in which ``{who}`` is the member or
    its container, ``{starts}`` "cannot start" or "does not start", ``{image}`` its image, ``{said}`` the end
    of the message, and each group of the sign's pattern its text; ``times`` and ``after``: how often the
    message must repeat, or for how many seconds the trouble must last, before it counts; ``fix_for_good``:
    the remedy if it cannot pass; empty: ``fix``.
    """

    code: str
    title: str
    means: str
    looks: str
    fix: str
    room: str = ""
    retryable: bool = False
    needs: tuple[Need, ...] = ()
    signs: tuple[Sign, ...] = ()
    sentence: str = ""
    times: int = 1
    after: float = 0.0
    fix_for_good: str = ""

    def fix_of(self, passes: bool) -> str:
        """The remedy if the trouble may pass by itself, or if it cannot."""
        return self.fix if passes or not self.fix_for_good else self.fix_for_good


Check = Callable[[Case], Iterator[Finding]]


@dataclass(frozen=True, slots=True)
class Rule:
    cause: Cause
    check: Check


RULES: dict[str, Rule] = {}
"""Code -> rule, as far as its module was imported: `allaboard.diagnosis.causes.all_rules` has all."""


def rule(
    code: str,
    title: str,
    *,
    means: str,
    looks: str,
    fix: str,
    needs: tuple[Need, ...],
    retryable: bool = False,
    signs: tuple[Sign, ...] = (),
    sentence: str = "",
    times: int = 1,
    after: float = 0.0,
    fix_for_good: str = "",
) -> Callable[[Check], Check]:
    """Registers a function as the rule of a cause; the arguments are the fields of `Cause`."""

    def register(check: Check) -> Check:
        if code in RULES:
            raise ValueError(f"two rules of {code}")
        room = check.__module__.rpartition(".")[2]
        about = (means, looks, fix, room, retryable, needs, signs, sentence, times, after, fix_for_good)
        RULES[code] = Rule(Cause(code, title, *about), check)
        return check

    return register
