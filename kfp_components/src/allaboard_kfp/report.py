"""The page of a promotion; `allaboard.report.page` makes that of a run. Values in, text out."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from allaboard.promotion.champion import Decision, Promotion
from allaboard.report import html, phrases
from allaboard.report.page_data import is_number


def promotion_page(
    decision: Decision, checkpoint: str, metrics: Mapping[str, Any], history: Sequence[Promotion]
) -> str:
    """The gate's decision with every check, and all champions so far (``history``, newest first)."""
    promoted, new = decision.promoted, decision.promotion
    if new is not None:
        lead = f"{checkpoint} is champion number {new.number} now."
    elif decision.champion is not None:
        lead = f"The champion stays number {decision.champion.number}: {decision.champion.checkpoint}"
    else:
        lead = "There is no champion yet."
    checks = [
        (
            '<span class="good">✓</span>' if check.passed else '<span class="bad">✗</span>',
            html.escape(check.reason),
            _cell(check.value),
            _cell(check.needed),
            _cell(check.champion),
        )
        for check in decision.verdict.checks
    ]
    records = [
        (
            str(record.number) + (" ★" if n == 0 else ""),
            html.escape(record.at or html.NONE),
            html.escape(phrases.metrics(record.metrics) or html.NONE),
            f"<code>{html.escape(record.checkpoint)}</code>",
            html.escape(record.reason or (f"restores {record.restores}" if record.restores else html.NONE)),
        )
        for n, record in enumerate(history)
    ]
    state, tone = ("promoted", "good") if promoted else ("not promoted", "calm")
    parts = [
        html.head("promotion", "The gate", state, tone, lead),
        html.section("Checks", html.table(("", "check", "value", "needed", "champion's"), checks)),
        html.section("This model", html.definitions([("checkpoint", checkpoint), *_metric_rows(metrics)])),
        html.section("Champions", html.table(("number", "at", "metrics", "checkpoint", "why"), records)),
        *(f'<p class="warning">{html.escape(problem)}</p>' for problem in decision.problems),
    ]
    return html.page(f"promotion: {state}", parts)


def _metric_rows(metrics: Mapping[str, Any]) -> Iterator[tuple[str, str]]:
    for name, value in metrics.items():
        yield name, phrases.number(value) if is_number(name, value) or value is None else str(value)


def _cell(value: float | None) -> str:
    return html.NONE if value is None else f"{value:.6g}"
