"""What a rule of the doctor is, and what it finds.

A rule belongs to one cause of failure: its code is stable, its words become a page (`allaboard doctor
--causes`), ``needs`` says which evidence it reads. It is a small function of the `Case` and yields a
`Finding` for each place where the cause shows; it yields nothing without evidence that it can quote.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from allaboard.diagnosis.case import Case


@dataclass(frozen=True, slots=True)
class Evidence:
    """Where it was seen, and the words."""

    object: str
    field: str
    text: str


@dataclass(frozen=True, slots=True)
class Diagnosis:
    """A cause: what happened, what shows it, and what to do. ``code``: its stable id (core/docs/causes.md);
    ``blame``: what to check first. ``retryable``: the same spec, unchanged, may succeed later.
    ``confidence``: of those said with 0.9 nine in ten are right. ``also``: what else was seen, and follows
    from it: code, where, and the words.
    """

    code: str
    summary: str
    evidence: tuple[Evidence, ...]
    blame: str | None
    retryable: bool
    fix: str
    confidence: float = 0.9
    also: tuple[str, ...] = ()

    def to_dict(self) -> dict[str, Any]:
        """The fields by name, ready for JSON."""
        data = asdict(self)
        data["evidence"] = list(data["evidence"])
        data["also"] = list(data["also"])
        return data


class Need(StrEnum):
    """Evidence that a rule reads."""

    REFUSAL = "refusal"
    JOB = "job"
    PODS = "pods"
    EVENTS = "events"
    NODES = "nodes"
    QUEUES = "queues"
    CLAIMS = "claims"
    LOGS = "logs"
    STACKS = "stacks"


class Level(IntEnum):
    """How near to the root a finding is. Of two levels the lower one comes first, however loud the other."""

    REFUSED = 0  # the request itself: nothing else can have happened
    CAUSE = 1
    SYMPTOM = 2  # what others' failures look like from here, and a cause only where there is none
    WRAPPER = 3  # says that something failed, never what
    NOISE = 4  # a peer went away


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


@dataclass(frozen=True, slots=True)
class Finding:
    """One place where a cause shows. ``at``: when, epoch seconds; ``generic``: it says that something
    broke and little of why; ``summary``, ``fix`` and ``retryable`` of None: the cause's own.
    ``from_object``: an object says so, not a log.
    """

    code: str
    summary: str
    evidence: tuple[Evidence, ...]
    blame: str | None = None
    at: float | None = None
    level: Level = Level.CAUSE
    confidence: float = 0.9
    retryable: bool | None = None
    fix: str | None = None
    generic: bool = False
    from_object: bool = True
    who: str | None = None


Check = Callable[["Case"], Iterator[Finding]]


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
