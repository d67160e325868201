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

    from allaboard.promotion.sweep import Pick

FAILED = ("failed", "upstream_failed")


class PickBestOperator(LeafByLeaf, BaseOperator):
    """Returns the result of the best of several trainings, as its own task returned it, and with it
    ``sweep``: ``{"metric", "mode", "runs", "ranking", "left_out", "failed"}``.

    :param results: the results of mapped trainings (the ``output`` of their task), or a list of results.
    :param metric: the metric by which they are compared, of those that each run reported last.
    :param mode: ``min`` or ``max``: which end of it is better.
    :param may_fail: how many of the trainings may fail; with more of them, the task fails.
    :param trigger_rule: when the task runs: once all trainings have ended, however they did.

    - Of equals the first one wins: that of the lowest map index.
    - A metric that is missing, null, NaN or infinite never wins. Its run counts as failed.
    - A training that was skipped, as by ``stop_rest_when``, does not count.
    - The task fails where no training is left.

    """

    template_fields: Sequence[str] = ("results", "metric", "mode", "may_fail")
    structured: ClassVar[tuple[str, ...]] = ("results",)
    ui_color = "#eef3ec"

    def __init__(
        self,
        *,
        results: Any,
        metric: str,
        mode: str,
        may_fail: int | str = 0,
        trigger_rule: str = "all_done",
        **kwargs: Any,
    ) -> None:
        super().__init__(trigger_rule=trigger_rule, **kwargs)
        self.results, self.metric, self.mode, self.may_fail = results, metric, mode, may_fail

    def execute(self, context: Context) -> dict[str, Any]:
        from allaboard.promotion.sweep import pick_best

        with airflow_errors():
            may_fail = _count(self.may_fail)
            results = results_in(self.results, "results")
            pick = pick_best(results, self.metric, self.mode)
        for sentence in pick.left_out:
            self.log.warning("%s", sentence)
        failed = self._failed(context) + len(pick.left_out)
        if pick.best is None or failed > may_fail:
            raise self._error(pick, failed, may_fail)
        chosen = pick.to_dict()
        for place, row in enumerate(chosen["ranking"], 1):
            self.log.info("%d. %s: %s %s", place, row["run"], self.metric, row["value"])
        return {**pick.best, "sweep": {**chosen, "failed": failed}}

    def _failed(self, context: Any) -> int:
        """The trainings upstream that have failed, by Airflow's own word."""
        tasks = [*self._trainings()]
        if not tasks:
            return 0
        ti = context["ti"]
        states = ti.get_task_states(dag_id=ti.dag_id, task_ids=tasks, run_ids=[ti.run_id])
        of_run: Mapping[str, Any] = states.get(ti.run_id, {})
        return sum(str(getattr(state, "value", state)) in FAILED for state in of_run.values())

    def _trainings(self) -> Iterable[str]:
        from allaboard_provider.operators.train import TrainingJobOperator, is_kind

        dag = self.get_dag()
        return (
            task_id
            for task_id in sorted(self.upstream_task_ids)
            if dag is not None and is_kind(dag.get_task(task_id), TrainingJobOperator)
        )

    def _error(self, pick: Pick, failed: int, may_fail: int) -> TrainingFailed:
        if failed > may_fail:
            summary = f"{failed} trainings of the sweep failed, and may_fail={may_fail}"
        else:
            summary = "no training of the sweep is left to pick"
        fix = "clear those that failed, or allow for more"
        detail = "; ".join(pick.left_out[:5])
        text = f"{summary}{f' ({detail})' if detail else ''}; {fix}"
        return TrainingFailed(
            text, code="sweep_failed", summary=summary, fields=["may_fail"], fix=fix, sure=True
        )


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
        raise BadInput(f"may_fail: {value!r} is no count; give a whole number from 0 on")
    return count
