"""The best of several trainings of a pipeline (`allaboard.promotion.choosing`)."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any, NamedTuple

from allaboard.errors import BadInput
from allaboard.promotion.choosing import Candidate, Choice, best_of
from allaboard.report.phrases import number
from allaboard_kfp.artifacts import Artifact, write_page
from allaboard_kfp.step import keep_reason, say, step_errors, with_inputs
from allaboard_kfp.summary import plain
from allaboard_kfp.value import WORST

METRIC = "value"


class Picked(NamedTuple):
    position: int
    checkpoint: str
    run: str
    value: float


@with_inputs
def run_pick_best(
    *,
    checkpoints: Sequence[Any],
    values: Sequence[Any],
    mode: str,
    runs: Sequence[Any],
    most_failed: int,
    summary: Artifact,
) -> Picked:
    """The position, the checkpoint, the run and the value of the best one. Ends the step where nobody is."""
    with step_errors():
        names = [str(run) for run in runs] or [f"number {n}" for n in range(len(checkpoints))]
        _check_lengths(len(checkpoints), len(values), len(names))
        choice = best_of(
            [
                _candidate(name, checkpoint, value)
                for name, checkpoint, value in zip(names, checkpoints, values, strict=True)
            ],
            METRIC, mode, most_failed=None if most_failed < 0 else most_failed,
        )  # fmt: skip
        write_page(summary, "\n".join(_table(choice)) + "\n")
        for standing in choice.standings:
            rank = f"{standing.rank}." if standing.rank is not None else "-"
            shown = standing.trouble or number(standing.value)
            say(f"{rank:>4} {standing.name}: {shown}")
        if choice.best is None:
            say(f"error: {choice.reason}")
            keep_reason(choice.reason)
            raise SystemExit(1)
        say(choice.reason)
        best = choice.best
        return Picked(best, str(checkpoints[best]), names[best] if runs else "", float(values[best]))


def _check_lengths(checkpoints: int, values: int, runs: int) -> None:
    if not checkpoints == values == runs:
        raise BadInput(
            f"checkpoints has {checkpoints} items, values {values}, runs {runs}; collect all of them from "
            "the same loop, as in dsl.Collected(trained.outputs['checkpoint'])"
        )


def _candidate(name: str, checkpoint: Any, value: Any) -> Candidate:
    """`WORST` stands for what is no finite number; a training that failed has no checkpoint either."""
    known = isinstance(value, (int, float)) and -WORST < value < WORST
    failed = not checkpoint and not known
    return Candidate(name, {METRIC: value if known else None}, "nothing came of it" if failed else "")


def _table(choice: Choice) -> Iterator[str]:
    yield from (plain(choice.reason), "", "| rank | training | value |", "|---|---|---|")
    for standing in choice.standings:
        rank = "" if standing.rank is None else str(standing.rank)
        yield f"| {rank} | {plain(standing.name)} | {plain(standing.trouble or number(standing.value))} |"
