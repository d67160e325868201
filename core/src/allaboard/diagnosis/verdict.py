"""The meaning of a message of a cluster: the one table of causes, asked by everybody who reads such a
message.

The first sign that fits decides, in the order in which a job meets the rooms and in which a file has its
causes; then the first of those that are looked for last.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass
from functools import lru_cache

from allaboard.diagnosis.causes import all_rules
from allaboard.diagnosis.rule import Cause, Place, Sign
from allaboard.diagnosis.start_errors import last_clause

REMEMBERED = 2048
"""Messages whose meaning is remembered: a follower of many runs reads the same ones at every look."""
_FIELD = re.compile(r"\{(\w+)\}")


@dataclass(frozen=True, slots=True)
class Verdict:
    """The meaning of a message. ``passes``: whether it may pass by itself; ``sure``: a sign knows these
    words.
    """

    cause: Cause
    passes: bool
    sure: bool
    template: str
    values: tuple[tuple[str, str], ...]

    @property
    def code(self) -> str:
        return self.cause.code

    @property
    def fix(self) -> str:
        return self.cause.fix_of(self.passes)

    def sentence(self, who: str, **more: str) -> str:
        """One sentence: who does not start, and why. ``more``: ``image``, ``claims`` of the pod."""
        starts = "does not start" if self.passes else "cannot start"
        values: Mapping[str, str] = {**dict(self.values), **more, "who": who, "starts": starts}
        return _FIELD.sub(lambda match: values.get(match[1], match[0]), self.template)


def verdict_of(place: Place, text: str, reason: str = "") -> Verdict | None:
    """The meaning of a message; None: no sign of a cause fits it."""
    return _verdict(place, text, reason, len(all_rules()))


_OVER_LIMIT = re.compile(r"must be less than or equal to (\S+) limit of")


def refusal_verdict(text: str, reason: str = "", limits: Collection[str] = ()) -> Verdict | None:
    """The meaning of a refusal by an API server. ``reason``: its word; ``limits``: the resources of
    which the job itself states a limit.
    """
    verdict = verdict_of(Place.REFUSAL, text, reason)
    over = _OVER_LIMIT.search(text)
    if over is not None and over[1] in limits and verdict is not None and verdict.code == "limitrange_denied":
        # A limit that the job does not state is that of the LimitRange; this one is its own.
        return verdict_of(Place.REFUSAL, "is invalid: Invalid value", "Invalid")
    return verdict


@lru_cache(maxsize=REMEMBERED)
def _verdict(place: Place, text: str, reason: str, known: int) -> Verdict | None:
    """``known``: how many causes there are, so that one more is asked, too."""
    for last in (False, True):
        for cause, sign in _signs(place, last, known):
            if sign.matches(text, reason):
                return _decided(cause, sign, text)
    return None


@lru_cache(maxsize=64)
def _signs(place: Place, last: bool, known: int) -> tuple[tuple[Cause, Sign], ...]:
    return tuple(_every_sign(place, last))


def _every_sign(place: Place, last: bool) -> Iterator[tuple[Cause, Sign]]:
    for entry in all_rules().values():
        yield from (
            (entry.cause, sign) for sign in entry.cause.signs if (sign.place, sign.last) == (place, last)
        )


def _decided(cause: Cause, sign: Sign, text: str) -> Verdict:
    passes = sign.passes(text) if callable(sign.passes) else sign.passes
    template = sign.sentence(text) if callable(sign.sentence) else sign.sentence
    match = sign.pattern.search(text) if sign.pattern is not None else None
    groups = {} if match is None else {name: text for name, text in match.groupdict().items() if text}
    return Verdict(
        cause,
        cause.retryable if passes is None else passes,
        not sign.last,
        template or cause.sentence,
        (("said", last_clause(text)), *((name, " ".join(text.split())) for name, text in groups.items())),
    )
