"""Findings of the rules, the diagnoses that the doctor makes of them, and the evidence that both quote."""

from __future__ import annotations

from dataclasses import asdict, dataclass
from enum import IntEnum, StrEnum
from typing import Any


@dataclass(frozen=True, slots=True)
class Evidence:
    """A quoted text, with the object and the field in which it stands."""

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
    """The distance of a finding from the root. Of two levels the lower one comes first, however loud the
    other.
    """

    REFUSED = 0  # the request itself: nothing else can have happened
    CAUSE = 1
    SYMPTOM = 2  # what others' failures look like from here, and a cause only where there is none
    WRAPPER = 3  # says that something failed, never what
    NOISE = 4  # a peer went away


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
