"""Health of a run that goes on: positive evidence, or none. Values in, values out.

A run is healthy if progress is dated and recent, by the clock of the member or of its node, and nothing
speaks against it: no sick device on its nodes, no failure that repeats as a warning, no NaN in its last
figures. A run whose members merely run is not known to be healthy.
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Iterator
from dataclasses import dataclass

from allaboard.diagnosis.case import Case, quote
from allaboard.diagnosis.finding import Evidence
from allaboard.diagnosis.logs import AHEAD, Hit, line_pattern
from allaboard.diagnosis.reading import Reading, readings
from allaboard.runs.observation import NodeSeen
from allaboard.text.units import show_seconds

RECENT, FACTOR = 600.0, 3.0
"""Seconds for which a sign of progress is recent, or so many times the longest pause of the run so far."""
_NEAR = 50
"""Lines after a step up to which the time of the last line is its time, too."""
_REPEATS = 3
"""Times that a failure is reported before it repeats."""
_LAST_FIGURES = 6
_PROGRESS = line_pattern(
    r"\bstep\b[ =:#\[(]*\d+|\biter(ation)?\b[ =:#\[(]*\d+|\d+%\||it/s|\bit \d+/\d+|\bepoch\b.{0,20}\d+"
)
_NOT_A_NUMBER = re.compile(r"\w['\"]?\s*[=: ]\s*['\"]?(tensor\()?-?nan\b", re.IGNORECASE)
_FAILS = re.compile(
    r"\b(fail(s|ed|ure|ing)?|errno|error|exception|cannot|can't|could not|unable to|refused|denied|"
    r"timed? ?out|no space left|corrupt(ed)?|lost)\b",
    re.IGNORECASE,
)
_NO_FAILURE = re.compile(
    r"\b(0|no|zero|without) (errors?|failures?|failed)\b|\b\w*error\w*['\"]?\s*[=:]\s*[-+]?\d|"
    r"\b(loss|accuracy|lr)\b",
    re.IGNORECASE,
)
_DIGITS = re.compile(r"\d+")
_OF_DEVICES = re.compile(r"gpu|xid|nvlink|nvswitch|\becc\b|neuron|\btpu\b", re.IGNORECASE)


@dataclass(frozen=True, slots=True)
class Sign:
    """A sign of progress. ``age``: seconds, None: it has no date."""

    text: str
    evidence: Evidence
    age: float | None


@dataclass(frozen=True, slots=True)
class Health:
    """``sign``: the newest sign of progress; ``is_recent``: it is dated and recent; ``against``: (sentence,
    evidence) of what speaks against health.
    """

    sign: Sign | None
    is_recent: bool
    against: tuple[tuple[str, Evidence], ...] = ()

    @property
    def is_healthy(self) -> bool:
        """True if there is evidence for health, and none against it."""
        return self.is_recent and not self.against

    @property
    def reasons(self) -> tuple[str, ...]:
        """Sentences that say why it is not known to be healthy."""
        sign, against = self.sign, tuple(text for text, _ in self.against)
        if self.is_recent:
            return against
        if sign is None:
            return ("no member reports a step", *against)
        if sign.age is None:
            return (f"its last step has no date: {sign.text}", *against)
        return (f"its last step is {show_seconds(sign.age)} old: {sign.text}", *against)

    @property
    def evidence(self) -> tuple[Evidence, ...]:
        """The lines and objects that were looked at."""
        return (*((self.sign.evidence,) if self.sign is not None else ()), *(e for _, e in self.against))


def health_of(case: Case) -> Health:
    """The health of a run that goes on."""
    known: Health | None = case.memo.get("health")
    if known is None:
        limit = max(RECENT, FACTOR * case.seen.progress.longest_pause)
        signs = sorted(_signs(case, limit), key=lambda sign: (sign.age is None, sign.age or 0.0))
        first = signs[0] if signs else None
        recent = first is not None and first.age is not None and first.age <= limit
        known = case.memo["health"] = Health(
            first, recent, (*_figures(case), *_repeats(case), *_devices(case))
        )
    return known


def _now(case: Case) -> float | None:
    return case.objects.now if case.objects.now is not None else case.seen.looked


def _signs(case: Case, limit: float) -> Iterator[Sign]:
    now, progress = _now(case), case.seen.progress
    if progress.step is not None and progress.heartbeat is not None:
        age = max(0.0, now - progress.heartbeat) if now is not None else None
        yield Sign(
            f"step {progress.step:,}",
            Evidence(f"run/{case.seen.run}", "progress", f"step {progress.step}"),
            age,
        )
    for reading in readings(case):
        hit = reading.log.last(_PROGRESS)
        if hit is not None:
            age = _age(case, reading, hit, now, limit)
            yield Sign(quote(hit.text), Evidence(f"log/{reading.pod.name}", "text", quote(hit.text)), age)


def _age(case: Case, reading: Reading, hit: Hit, now: float | None, limit: float) -> float | None:
    """Seconds since a line was written: by its node's clock if that is known, else by its own. A time that is
    only earlier than the line counts if it is recent.
    """
    if now is None:
        return None
    log, pod = reading.log, reading.pod
    own, written = log.own_time(hit.position, now), case.seen.wrote.get(pod.member or pod.name)
    if written is not None:
        since = max(0.0, now - written)
        if own is not None and log.last_time is not None and log.last_time >= own:
            return since + log.last_time - own
        # Of lines that are alike the body has few.
        if log.text.count("\n", max(0, log.text.rfind(hit.text))) <= _NEAR:
            return since
    if own is not None and now - own >= -AHEAD:
        return max(0.0, now - own)
    begun = pod.main.now.started if pod.main is not None else None
    before = max((at for at in (hit.time, begun) if at is not None), default=None)
    if before is None or not case.objects.is_exact or now - before > limit:
        return None
    return max(0.0, now - before)


def _figures(case: Case) -> Iterator[tuple[str, Evidence]]:
    for reading in readings(case):
        for text in reversed(reading.log.last_lines[-_LAST_FIGURES:]):
            if _PROGRESS.pattern.search(text) or "loss" in text:
                if _NOT_A_NUMBER.search(text):
                    evidence = Evidence(f"log/{reading.pod.name}", "text", quote(text))
                    yield f"a figure of {reading.pod.name} is not a number: {quote(text)}", evidence
                break


def _repeats(case: Case) -> Iterator[tuple[str, Evidence]]:
    """A failure that members report again and again, and go on."""
    for reading in readings(case):
        lines = [line.strip()[:500] for line in reading.log.body[-64_000:].split("\n")]
        failures = [line for line in lines if _FAILS.search(line) and not _NO_FAILURE.search(line)]
        shapes = Counter(_DIGITS.sub("", line) for line in failures)
        shape, times = next(iter(shapes.most_common(1)), ("", 0))
        if times >= _REPEATS:
            last = next(line for line in reversed(failures) if _DIGITS.sub("", line) == shape)
            evidence = Evidence(f"log/{reading.pod.name}", "text", quote(last))
            yield f"{reading.pod.name} reports a failure again and again: {quote(last)}", evidence
            return


def _devices(case: Case) -> Iterator[tuple[str, Evidence]]:
    for name in dict.fromkeys(pod.node for pod in case.running if pod.node):
        node = case.nodes.get(name)
        if node is not None:
            yield from _sick_device(node)


def _sick_device(node: NodeSeen) -> Iterator[tuple[str, Evidence]]:
    for condition in node.conditions:
        good = "Healthy" in condition.type or condition.type.endswith("Ready")
        is_of_device = condition.type != "Ready" and _OF_DEVICES.search(condition.type) is not None
        if is_of_device and condition.status == ("False" if good else "True"):
            text = f"{condition.type}={condition.status}: {condition.message or condition.reason}"
            evidence = Evidence(f"node/{node.name}", f"conditions.{condition.type}", quote(text))
            yield f"a device of node {node.name} is sick: {quote(text)}", evidence
            return
    for resource, full in node.capacity.items():
        left = node.allocatable.get(resource, "0")
        if "gpu" in resource and full.isdigit() and left.isdigit() and int(left[:9]) < int(full[:9]):
            text = f"{resource}: allocatable {left} of {full}"
            yield (
                f"node {node.name} offers fewer devices than it has: {text}",
                Evidence(f"node/{node.name}", "status.allocatable", text),
            )
            return
