"""`PickBestOperator`: the best run of a sweep."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from allaboard.errors import BadInput
from allaboard_provider.errors import TrainingFailed, airflow_errors
from allaboard_provider.templates import LeafByLeaf, result_in

if TYPE_CHECKING:
    from airflow.sdk import Context

    from allaboard.promotion.choosing import Candidate

FAILED = ("failed", "upstream_failed")
LISTED = 50
"""Trainings in the result, the best first."""


class PickBestOperator(LeafByLeaf, BaseOperator):
    """Returns the result of the best of several trainings, as its own task returned it, and with it
    ``sweep``: ``{"metric", "mode", "failed", "best", "reason", "standings"}``
    (`allaboard.promotion.choosing`).

    :param results: the results of mapped trainings (the ``output`` of their task), or a list of results.
    :param metric: the metric by which they are compared, of those that each run reported last.
    :param mode: ``min`` or ``max``: which end of it is better.
    :param most_failed: how many of the trainings may fail; with more of them, the task fails.
    :param trigger_rule: when the task runs: once all trainings have ended, however they did.

    - Of equals the first one wins: that of the lowest map index.
    - A metric that is missing, null, NaN or infinite never wins. Its training has not failed.
    - A training that was skipped, as by ``stop_rest_when``, does not count.
    - The task fails where no training is left.
    """

    template_fields: Sequence[str] = ("results", "metric", "mode", "most_failed")
    structured: ClassVar[tuple[str, ...]] = ("results",)
    ui_color = "#eef3ec"

    def __init__(
        self,
        *,
        results: Any,
        metric: str,
        mode: str,
        most_failed: int | str = 0,
        trigger_rule: str = "all_done",
        **kwargs: Any,
    ) -> None:
        super().__init__(trigger_rule=trigger_rule, **kwargs)
        self.results, self.metric, self.mode, self.most_failed = results, metric, mode, most_failed

    def execute(self, context: Context) -> dict[str, Any]:
        from allaboard.promotion.choosing import best_of

        with airflow_errors():
            most_failed = _count(self.most_failed)
            results = results_in(self.results, "results")
            failed = self._failed(context)
            candidates = [*map(_candidate, results), *failed]
            if not candidates:
                raise self._error("no training of the sweep is left")
            choice = best_of(candidates, str(self.metric), str(self.mode), most_failed=most_failed)
        for standing in choice.standings:
            rank = f"{standing.rank}." if standing.rank is not None else "-"
            value = standing.trouble or f"{self.metric} {standing.value:g}"
            self.log.info("%s %s: %s", rank, standing.name, value)
        if choice.best is None:
            raise self._error(choice.reason)
        self.log.info("%s", choice.reason)
        chosen = choice.to_dict()
        chosen["standings"] = chosen["standings"][:LISTED]
        sweep = {"metric": self.metric, "mode": self.mode, "failed": len(failed), **chosen}
        return {**results[choice.best], "sweep": sweep}

    def _failed(self, context: Any) -> list[Candidate]:
        """The trainings upstream that have failed, by Airflow's own word."""
        from allaboard.promotion.choosing import Candidate

        tasks = [*self._trainings()]
        if not tasks:
            return []
        ti = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=tasks, run_ids=[ti.run_id])
        of_run: Mapping[str, Any] = states.get(ti.run_id, {})
        texts = {name: str(getattr(state, "value", state)) for name, state in of_run.items()}
        return [
            Candidate(name, failure=f"its task has {state}")
            for name, state in texts.items()
            if state in FAILED
        ]

    def _trainings(self) -> Iterable[str]:
        from allaboard_provider.operators.train import TrainingJobOperator, is_kind

        dag = self.get_dag()
        return (
            task_id
            for task_id in sorted(self.upstream_task_ids)
            if dag is not None and is_kind(dag.get_task(task_id), TrainingJobOperator)
        )

    def _error(self, reason: str) -> TrainingFailed:
        fix = "clear those that failed, or allow for more"
        text = f"{reason}; {fix}"
        return TrainingFailed(
            text, code="sweep_failed", summary=reason, fields=["most_failed"], fix=fix, sure=True
        )


def _candidate(result: Mapping[str, Any]) -> Candidate:
    from allaboard.promotion.choosing import Candidate

    metrics = result.get("metrics")
    return Candidate(str(result.get("run")), metrics if isinstance(metrics, Mapping) else {})


def results_in(value: Any, field: str) -> list[Mapping[str, Any]]:
    """The results of several trainings in a rendered field. Raises BadInput."""
    value = result_in(value, field)
    several = [value] if isinstance(value, Mapping) else value
    if isinstance(several, (str, bytes)) or not isinstance(several, Iterable):
        raise BadInput(f"{field}: {type(value).__name__} holds no results; give the output of the trainings")
    results = [result_in(each, field) for each in several if each is not None]
    if not all(isinstance(each, Mapping) for each in results):
        raise BadInput(f"{field}: not all are results of trainings; give the output of the trainings")
    return results


def _count(value: Any) -> int:
    from allaboard.job.fields import as_int

    count = as_int(value)
    if isinstance(count, bool) or not isinstance(count, int) or count < 0:
        raise BadInput(f"most_failed: {value!r} is no count; give a whole number from 0 on")
    return count
