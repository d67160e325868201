"""The gate: is this model good enough, and better than the champion? Values in, values out.

    gate = Gate.parse("accuracy", "max", better_by=0.002, thresholds=["accuracy>=0.97", "loss<=0.2"])
    verdict = judge(gate, {"accuracy": 0.981, "loss": 0.07}, champion={"accuracy": 0.975})
    verdict.passed, verdict.reason, verdict.checks

A verdict lists every check with its figures, also those that passed. The rules:

- A threshold includes its limit. A metric that is missing, null, NaN, infinite or no number fails each check.
- Better by x: the difference, in the direction of ``mode``, is at least x; with x = 0 it is more than 0.
- Differences are those of the decimal figures as they are printed: 0.3 is better than 0.1 by 0.2.
- Without a champion there is nothing to beat. A champion whose metric is NaN is beaten by any number; one
  that has no such metric cannot be compared, and the gate stays shut until somebody says by what to compare.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from allaboard.checkpoints.metrics import check_mode, find, number, number_trouble, plain
from allaboard.errors import BadInput

_THRESHOLD = re.compile(r"\s*([^\s<>=]+)\s*(>=|<=)\s*(\S+)\s*")


@dataclass(frozen=True, slots=True)
class Threshold:
    """``metric`` must be at least ``limit`` (``>=``) or at most (``<=``)."""

    metric: str
    least: bool
    limit: float

    @property
    def sign(self) -> str:
        return ">=" if self.least else "<="

    def __str__(self) -> str:
        return f"{self.metric}{self.sign}{_show_number(self.limit)}"

    @classmethod
    def parse(cls, text: str) -> Threshold:
        """``accuracy>=0.97`` or ``loss<=0.2``. Raises BadInput."""
        match = _THRESHOLD.fullmatch(text)
        if not match:
            raise BadInput(f"threshold {text!r} is not understood; write accuracy>=0.97 or loss<=0.2")
        return cls(
            match.group(1), match.group(2) == ">=", _parse_number(match.group(3), f"threshold {text!r}")
        )


@dataclass(frozen=True, slots=True)
class Gate:
    """Requirements of a model. ``metric`` is compared with the champion's (None: no comparison), ``mode`` is
    min or max.
    """

    metric: str | None = None
    mode: str = "max"
    better_by: float = 0.0
    thresholds: tuple[Threshold, ...] = ()

    @classmethod
    def parse(
        cls,
        metric: str | None = None,
        mode: str = "max",
        better_by: float | str = 0.0,
        thresholds: Iterable[str | Threshold] | str | Mapping[str, Mapping[str, Any]] = (),
    ) -> Gate:
        """A gate from what people write. Thresholds are texts (one may hold several, with commas) or
        ``{"loss": {"max": 0.2}}``.

        Numbers may be text. Raises BadInput for an unknown mode, a negative ``better_by``, or a threshold
        that is none.
        """
        least = _parse_number(better_by, "better_by")
        if least < 0:
            raise BadInput(f"better_by {better_by!r} is negative; give 0 or how much better it must be")
        if least and not metric:
            raise BadInput("better_by needs a metric; name it")
        return cls(metric or None, check_mode(mode), least, _thresholds(thresholds))

    def to_dict(self) -> dict[str, Any]:
        return {
            "metric": self.metric,
            "mode": self.mode,
            "better_by": self.better_by,
            "thresholds": [str(threshold) for threshold in self.thresholds],
        }


@dataclass(frozen=True, slots=True)
class Check:
    """One condition and its figures. ``kind`` is ``threshold``, ``champion`` or ``flags``; ``needed`` is what
    the value had to reach.
    """

    kind: str
    metric: str
    passed: bool
    value: float | None
    needed: float | None
    champion: float | None
    reason: str

    def to_dict(self) -> dict[str, Any]:
        return {name: getattr(self, name) for name in self.__dataclass_fields__}


@dataclass(frozen=True, slots=True)
class Verdict:
    """Results of all checks: whether all passed, and each of them."""

    passed: bool
    checks: tuple[Check, ...] = ()

    @property
    def reason(self) -> str:
        """One sentence: what failed, or what held."""
        if not self.checks:
            return "the gate has no condition"
        return "; ".join(check.reason for check in self.checks if check.passed == self.passed)

    def with_checks(self, checks: tuple[Check, ...]) -> Verdict:
        """The verdict with further checks, all of which must pass, too."""
        return Verdict(self.passed and all(check.passed for check in checks), (*self.checks, *checks))

    def to_dict(self) -> dict[str, Any]:
        return {
            "passed": self.passed,
            "reason": self.reason,
            "checks": [check.to_dict() for check in self.checks],
        }


def judge(gate: Gate, metrics: Mapping[str, Any], champion: Mapping[str, Any] | None = None) -> Verdict:
    """Does a model with these metrics pass? ``champion`` is the metrics of the one in place, None when
    there is none.
    """
    clean, _ = plain(metrics)
    checks = [_check_threshold(threshold, clean) for threshold in gate.thresholds]
    if gate.metric is not None:
        beaten = None if champion is None else plain(champion)[0]
        checks.append(_compare_with_champion(gate, gate.metric, clean, beaten))
    return Verdict(all(check.passed for check in checks), tuple(checks))


def flag_checks(flags: Mapping[str, str], *, despite: bool) -> tuple[Check, ...]:
    """A check for each flag that the end of a candidate's run left: code -> sentence. ``despite``: it is
    promoted all the same.
    """
    return tuple(
        Check(
            "flags",
            code,
            despite,
            None,
            None,
            None,
            f"its run ended with the flag {code}{f' ({text})' if text else ''}"
            + (", and is promoted despite it" if despite else ""),
        )
        for code, text in flags.items()
    )


def _check_threshold(threshold: Threshold, metrics: Mapping[str, Any]) -> Check:
    value = number(metrics, threshold.metric)
    if value is None:
        passed, reason = False, number_trouble(metrics, threshold.metric)
    else:
        passed = value >= threshold.limit if threshold.least else value <= threshold.limit
        requirement = f"{'at least' if threshold.least else 'at most'} {_show_number(threshold.limit)}"
        reason = f"{threshold.metric} {_show_number(value)} is {'' if passed else 'not '}{requirement}"
    return Check("threshold", threshold.metric, passed, value, threshold.limit, None, reason)


def _compare_with_champion(
    gate: Gate, metric: str, metrics: Mapping[str, Any], champion: Mapping[str, Any] | None
) -> Check:
    value = number(metrics, metric)
    if value is None:
        return Check("champion", metric, False, None, None, None, number_trouble(metrics, metric))
    if champion is None:
        return Check(
            "champion",
            metric,
            True,
            value,
            None,
            None,
            f"{metric} {_show_number(value)}: no champion to beat",
        )
    other = number(champion, metric)
    if other is None:
        return _incomparable_check(metric, value, champion)
    sign = 1 if gate.mode == "max" else -1
    margin = sign * (_exact(value) - _exact(other))
    needed = _exact(gate.better_by)
    passed = margin >= needed if needed else margin > 0
    demand = f"at least {_show_number(gate.better_by)} better" if needed else "better"
    reason = (
        f"{metric} {_show_number(value)} is {'' if passed else 'not '}{demand} "
        f"than the champion's {_show_number(other)} "
        f"({'larger' if sign > 0 else 'smaller'} is better; it is {_difference(margin)})"
    )
    return Check("champion", metric, passed, value, float(_exact(other) + sign * needed), other, reason)


def _incomparable_check(metric: str, value: float, champion: Mapping[str, Any]) -> Check:
    if find(champion, metric, champion) is None:
        reason = (
            f"{metric} {_show_number(value)}: the champion's is not a finite number, which any number beats"
        )
        return Check("champion", metric, True, value, None, None, reason)
    known = ", ".join(sorted(map(str, champion))) or "none"
    reason = (
        f"{metric} {_show_number(value)}: the champion has no {metric!r} (its metrics: {known}); "
        "compare by one that both have, or promote by thresholds alone"
    )
    return Check("champion", metric, False, value, None, None, reason)


def _thresholds(
    written: Iterable[str | Threshold] | str | Mapping[str, Mapping[str, Any]],
) -> tuple[Threshold, ...]:
    if isinstance(written, Mapping):
        return tuple(
            threshold for metric, limits in written.items() for threshold in _limits(str(metric), limits)
        )
    items = written.split(",") if isinstance(written, str) else list(written)
    texts = [part for item in items if isinstance(item, str) for part in item.split(",") if part.strip()]
    return (*(item for item in items if isinstance(item, Threshold)), *map(Threshold.parse, texts))


def _limits(metric: str, limits: Any) -> Iterable[Threshold]:
    if not isinstance(limits, Mapping) or not limits or set(limits) - {"min", "max"}:
        raise BadInput(
            f'thresholds.{metric}: {limits!r} is not understood; write {{"min": 0.97}} or {{"max": 0.2}}'
        )
    for side, limit in limits.items():
        yield Threshold(metric, side == "min", _parse_number(limit, f"thresholds.{metric}.{side}"))


def _parse_number(value: Any, where: str) -> float:
    try:
        number = Decimal(str(value).strip())
    except ArithmeticError:
        number = Decimal("nan")
    if isinstance(value, bool) or not number.is_finite():
        raise BadInput(f"{where}: {value!r} is not a number; write one such as 0.97")
    return float(number)


def _exact(value: float) -> Decimal:
    """The figure as a person reads it, without what binary fractions add."""
    return Decimal(repr(value))


def _show_number(value: float) -> str:
    return repr(value) if isinstance(value, int) else f"{value:.15g}"


def _difference(margin: Decimal) -> str:
    if margin == 0:
        return "equal"
    return f"{_show_number(float(abs(margin)))} {'better' if margin > 0 else 'worse'}"
