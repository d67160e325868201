"""`EvaluateOperator`: a checkpoint, evaluated by a job of its own."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, ClassVar

from allaboard.job.training_job import TrainingJob
from allaboard_provider.errors import SpecRejected
from allaboard_provider.lineage import Lineage, of_checkpoint
from allaboard_provider.operators.train import TrainingJobOperator
from allaboard_provider.templates import uri_in

if TYPE_CHECKING:
    from allaboard.backends.base import Plan


class EvaluateOperator(TrainingJobOperator):
    """Runs a job that evaluates ``checkpoint``, and returns its status; ``metrics`` are those that the job
    reported.

    :param job: the evaluation: as in `TrainingJobOperator`. Its script reads the checkpoint's uri from
        ``ALLABOARD_CHECKPOINT`` (`allaboard.inside.open_checkpoint`) and reports its metrics with
        `allaboard.inside.result`.
    :param checkpoint: the uri of a checkpoint, or the result of a `CollectCheckpointOperator` (its
        ``output``).
    """

    template_fields: Sequence[str] = (*TrainingJobOperator.template_fields, "checkpoint")
    structured: ClassVar[tuple[str, ...]] = ("job", "checkpoint")
    kind = "evaluation"

    def __init__(
        self,
        *,
        job: TrainingJob | Mapping[str, Any] | str | os.PathLike[str],
        checkpoint: str | Mapping[str, Any],
        **kwargs: Any,
    ) -> None:
        super().__init__(job=job, **kwargs)
        self.checkpoint = checkpoint

    def training_job(self) -> TrainingJob:
        from allaboard.running import evaluation_job

        uri = uri_in(self.checkpoint, "checkpoint", "a uri like store://models/run/step-000000000120")
        return evaluation_job(super().training_job(), uri, lenient=True)

    def as_launched(self, plan: Plan, *, local: bool) -> Plan:
        """The plan with the files of the checkpoint, where they lie elsewhere than its uri says."""
        from allaboard.running import evaluation_job, files_to_evaluate

        uri = self._whole(str(self.announced({})))
        files = files_to_evaluate(uri, local=local)
        return plan if files == uri else replace(plan, job=evaluation_job(plan.job, files, lenient=True))

    def expected_lineage(self) -> Lineage:
        expected = super().expected_lineage()
        checkpoint = of_checkpoint(self._whole(str(self.announced({}))))
        return Lineage((*expected.inputs, checkpoint), expected.outputs)

    def announced(self, result: Mapping[str, Any]) -> str | None:
        return uri_in(self.checkpoint, "checkpoint", "a uri")

    def result(self, status: dict[str, Any]) -> dict[str, Any]:
        if not status["metrics"]:
            summary = f"the evaluation {status['run']} succeeded and reported no metrics"
            fix = "call allaboard.inside.result(accuracy=...) in its script"
            raise SpecRejected(
                f"{summary}; {fix}",
                code="no_metrics",
                summary=summary,
                fix=fix,
                run=status["run"],
                sure=True,
            )
        return super().result(status)
