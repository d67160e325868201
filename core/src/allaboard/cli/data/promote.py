"""``allaboard promote``: the gate, the champion, its history, and the way back."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING, Any

import click

from allaboard.cli.place import json_option, resolved, store_option
from allaboard.errors import BadInput
from allaboard.report.terminal import say, show_json

if TYPE_CHECKING:
    from allaboard.promotion.champion import Decision, History, Promotion

EPILOG = """\b
Examples:
  allaboard promote store://models/digits-1f0c9a77/step-000000000400 --into store://digits \\
      --metric accuracy --mode max --better-by 0.002 --threshold "accuracy>=0.97"
  allaboard promote CHECKPOINT --into store://digits --metrics evaluation.json --metric accuracy
  allaboard promote --into store://digits --history
  allaboard promote --into store://digits --rollback

`allaboard evaluate JOB --checkpoint CHECKPOINT --json > evaluation.json` writes the file for --metrics;
without --metrics, the metrics of the checkpoint's manifest count. A rollback is a new promotion of the
previous champion, or of number N with --to N.

A checkpoint whose run ended with flags is not promoted: --despite-flags allows it.

Exit code 0 when there was an answer, promoted or not: see "promoted" in --json.
"""


@click.command(epilog=EPILOG)
@click.argument("checkpoint", required=False)
@click.option(
    "--into", required=True, metavar="URI", help="Where the champions are kept: a folder, s3:// or store://."
)
@click.option("--metrics", metavar="FILE", help="JSON with the evaluation's metrics ('-': stdin).")
@click.option("--metric", metavar="NAME", help="Compare with the champion by this metric.")
@click.option(
    "--mode",
    type=click.Choice(["min", "max"]),
    default="max",
    show_default=True,
    help="Whether smaller or larger is better.",
)
@click.option("--better-by", default="0", metavar="X", help="The least improvement over the champion.")
@click.option(
    "--threshold",
    "thresholds",
    multiple=True,
    metavar="M>=X",
    help="A limit that must hold: accuracy>=0.97, loss<=0.2.",
)
@click.option("--rollback", is_flag=True, help="Promote the previous champion again.")
@click.option(
    "--to",
    type=click.IntRange(min=1),
    metavar="N",
    help="With --rollback: the number of the promotion to restore.",
)
@click.option("--history", is_flag=True, help="Show all promotions, newest first.")
@click.option("--reason", default="", metavar="TEXT", help="Reason, kept in the record.")
@click.option(
    "--single-writer",
    is_flag=True,
    help="Assert that nothing else promotes there; needed for servers without conditional writes.",
)
@click.option(
    "--despite-flags",
    is_flag=True,
    help="Promote a checkpoint whose run ended with flags, such as nan_loss or success_doubtful.",
)
@store_option
@json_option
def promote(
    checkpoint: str | None,
    into: str,
    metrics: str | None,
    metric: str | None,
    mode: str,
    better_by: str,
    thresholds: tuple[str, ...],
    rollback: bool,
    to: int | None,
    history: bool,
    reason: str,
    single_writer: bool,
    despite_flags: bool,
    store: str | None,
    as_json: bool,
) -> None:
    """Make a checkpoint the champion, if it is good enough and better than the present one."""
    from allaboard.backends.actor import user_at_host
    from allaboard.promotion import champion
    from allaboard.promotion.gate import Gate
    from allaboard.storage import open_store

    _check_one_action(checkpoint, rollback, history, to)
    champions = open_store(resolved(into, store))
    if history:
        history_of_uri = champion.history(champions)
        show_json(history_of_uri.to_dict()) if as_json else _say_history(history_of_uri, champions.uri)
        return
    common: dict[str, Any] = {
        "now": time.time(),
        "by": user_at_host(),
        "reason": reason,
        "single_writer": single_writer,
    }
    if rollback:
        decision = champion.rollback(champions, to, **common)
    else:
        assert checkpoint is not None
        gate = Gate.parse(metric, mode, better_by, thresholds)
        measured = None if metrics is None else read_metrics(metrics)
        decision = champion.promote(
            champions, resolved(checkpoint, store), measured, gate, despite_flags=despite_flags, **common
        )
    if as_json:
        show_json(decision.to_dict())
    else:
        _say_decision(decision)


def _check_one_action(checkpoint: str | None, rollback: bool, history: bool, to: int | None) -> None:
    given = [
        option
        for option, value in (("CHECKPOINT", checkpoint), ("--rollback", rollback), ("--history", history))
        if value
    ]
    if len(given) != 1:
        trouble = f"{' and '.join(given)} are given" if given else "none is given"
        raise BadInput(f"give one of CHECKPOINT, --rollback and --history; {trouble}")
    if to is not None and not rollback:
        raise BadInput("--to names the target of --rollback; add --rollback, or leave out --to")


def read_metrics(name: str) -> dict[str, Any]:
    """The metrics in a JSON file: an object of them, or what ``allaboard evaluate --json`` printed. Raises
    BadInput."""
    from allaboard.job.loader import display_name, read_text
    from allaboard.text.untrusted import Unreadable, parse_json

    text = read_text(name)
    name = display_name(name)
    try:
        body = parse_json(text, nonfinite=True, spelling=False)
    except Unreadable as error:
        raise BadInput(f"--metrics {name} {error}") from None
    if isinstance(body, dict) and isinstance(body.get("metrics"), dict):
        state = body.get("state")
        if state not in (None, "succeeded"):
            raise BadInput(f"--metrics {name}: the evaluation {state}; evaluate again before promoting")
        body = body["metrics"]
    if not isinstance(body, dict):
        raise BadInput(f'--metrics {name}: expected an object of metrics, like {{"accuracy": 0.98}}')
    return body


def _say_decision(decision: Decision) -> None:
    for check in decision.verdict.checks:
        say(f"  {'✓' if check.passed else '✗'} {check.reason}")
    present = decision.champion
    if decision.promotion is not None:
        restored = f", which was number {decision.promotion.restores}" if decision.promotion.restores else ""
        say(f"promoted as number {decision.promotion.number}{restored}: {decision.promotion.checkpoint}")
    elif present is not None:
        say(f"not promoted; the champion stays number {present.number}: {present.checkpoint}")
    else:
        say("not promoted; there is no champion")
    for problem in (*decision.notes, *decision.problems):
        say(problem, to_stderr=True)


def _say_history(shown: History, uri: str) -> None:
    from allaboard.report.phrases import table

    if not shown.promotions:
        say(f"nothing was promoted in {uri} yet")
    else:
        for line in table(
            ("number", "at", "by", "metrics", "checkpoint", "reason"), map(_row, shown.promotions)
        ):
            say(line)
    for problem in shown.problems:
        say(problem, to_stderr=True)


def _row(promotion: Promotion) -> tuple[str, ...]:
    from allaboard.report.phrases import metrics

    reason = promotion.reason or (f"restores {promotion.restores}" if promotion.restores else "-")
    return (
        str(promotion.number),
        promotion.at or "-",
        promotion.by or "-",
        metrics(promotion.metrics) or "-",
        promotion.checkpoint,
        reason,
    )
