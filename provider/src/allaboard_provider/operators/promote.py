"""`PromoteOperator`: a checkpoint passes the gate and becomes the champion."""

from __future__ import annotations

import time
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from allaboard.errors import BadInput
from allaboard.job.mappings import as_mapping
from allaboard.text.units import from_rfc3339
from allaboard_provider import outlets
from allaboard_provider.errors import airflow_errors
from allaboard_provider.lineage import Dataset, Lineage, of_checkpoint
from allaboard_provider.operators.base import StoreOperator
from allaboard_provider.templates import result_in

if TYPE_CHECKING:
    from airflow.sdk import Context

    from allaboard.promotion.champion import Decision


class PromoteOperator(StoreOperator):
    """Makes a checkpoint the champion if it passes the gate. The task succeeds either way, and returns the
    verdict.

    :param checkpoint: the uri of a collected checkpoint, or the result of a `CollectCheckpointOperator`.
    :param metrics: those of its evaluation: a mapping, or the result of an `EvaluateOperator`; ``manifest``:
        those that the training wrote into the checkpoint.
    :param store: the folder of the history of promotions, ``store://digits``.
    :param metric: the metric that is compared with the champion's; None compares nothing.
    :param mode: ``max`` or ``min``: which end of the metric is better.
    :param better_by: by how much it must be better than the champion's, in its own unit.
    :param thresholds: what the metrics must be in any case: ``["accuracy>=0.97", "loss<=0.2"]``.
    :param reason: the reason that the history of promotions keeps.
    :param single_writer: nobody else promotes into this store; required for a store without conditional
        writes.
    :param despite_flags: promote a checkpoint whose run ended with flags, such as ``nan_loss`` or
        ``success_doubtful``.

    Returns ``{"promoted", "verdict", "promotion", "champion", "problems", "notes"}``. A branch or a short
    circuit on ``promoted`` makes later tasks depend on it.

    An Asset among its ``outlets`` stands for the champion: it has an event when there is a new one, and none
    when the gate stayed shut or the candidate was the champion already. Its state holds the champion in
    place, under ``champion``.
    """

    template_fields: Sequence[str] = (
        "checkpoint",
        "metrics",
        "store",
        "metric",
        "mode",
        "better_by",
        "thresholds",
        "reason",
        "allaboard_conn_id",
    )

    structured: ClassVar[tuple[str, ...]] = ("checkpoint", "metrics")

    def __init__(
        self,
        *,
        checkpoint: str | Mapping[str, Any],
        store: str,
        metrics: Mapping[str, Any] | str = "manifest",
        metric: str | None = None,
        mode: str = "max",
        better_by: float | str = 0.0,
        thresholds: Sequence[str] | str | Mapping[str, Any] = (),
        reason: str = "{{ dag.dag_id }} {{ run_id }}",
        single_writer: bool = False,
        despite_flags: bool = False,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.checkpoint, self.store, self.metrics = checkpoint, store, metrics
        self.metric, self.mode, self.better_by = metric, mode, better_by
        self.thresholds, self.reason = thresholds, reason
        self.single_writer, self.despite_flags = single_writer, despite_flags

    def execute(self, context: Context) -> dict[str, Any]:
        from allaboard.checkpoints import handed_flags
        from allaboard.promotion.champion import promote
        from allaboard.promotion.gate import Gate
        from allaboard.storage import open_store

        by = f"airflow/{self.dag_id}/{self.task_id}" if self.has_dag() else "airflow"
        with airflow_errors():
            checkpoint = result_in(self.checkpoint, "checkpoint")
            store = self.uri(self.store, "store")
            decision = promote(
                open_store(store),
                self.uri(checkpoint, "checkpoint"),
                self._metrics(),
                Gate.parse(self.metric, self.mode, self.better_by, self.thresholds),
                now=time.time(),
                run=checkpoint.get("run") if isinstance(checkpoint, Mapping) else None,
                by=by,
                reason=self.reason,
                single_writer=self.single_writer,
                despite_flags=self.despite_flags,
                handed=handed_flags(checkpoint),
            )
        for problem in (*decision.notes, *decision.problems):
            self.log.warning("%s", problem)
        self.log.info("%s: %s", "promoted" if decision.promoted else "not promoted", decision.verdict.reason)
        if decision.champion is not None:
            self.log.info(
                "the champion is promotion %d: %s", decision.champion.number, decision.champion.checkpoint
            )
        self.lineage = lambda: self._made(decision, store)
        if self.outlets:
            self._tell_outlets(context, decision, store, by)
        self._publish_promotions(context, open_store(store), decision.to_dict())
        return decision.to_dict()

    def expected_lineage(self) -> Lineage:
        return Lineage((Dataset(self.uri(self.checkpoint, "checkpoint")),))

    def _made(self, decision: Decision, store: str) -> Lineage:
        """A champion is an output only when there is a new one."""
        from allaboard.promotion.champion import FOLDER

        candidate = of_checkpoint(self.uri(self.checkpoint, "checkpoint"))
        made = decision.promotion if not decision.standing else None
        facts = {"promoted": decision.promoted, "reason": decision.verdict.reason}
        if made is None:
            return Lineage((candidate,), facts=facts)
        champion = Dataset(f"{store.rstrip('/')}/{FOLDER}", str(made.number))
        facts = {**facts, "promotion": made.number, "run": made.run, "metrics": made.metrics}
        return Lineage((candidate,), (champion,), facts)

    def _tell_outlets(self, context: Context, decision: Decision, store: str, by: str) -> None:
        champion = decision.champion
        if champion is None:
            outlets.withhold(self)
            return
        facts = outlets.of_checkpoint(
            champion.checkpoint,
            metrics=champion.metrics,
            run=champion.run,
            promotion=champion.number,
            at=champion.at,
        )
        extra = outlets.extra_of(facts)
        outlets.remember(self, context, extra)
        begun = getattr(context.get("dag_run"), "start_date", None)
        if is_new(decision, by, begun.timestamp() if begun is not None else None):
            outlets.announce(self, context, extra, store)
        else:
            outlets.withhold(self)

    def _publish_promotions(self, context: Any, store: Any, decision: Mapping[str, Any]) -> None:
        """Publish the promotions for the tab Models of the DAG. A failure of it fails nothing."""
        from allaboard.promotion.champion import history
        from allaboard_provider.pages import PROMOTION_KEY, promotions

        try:
            shown = promotions(store.uri, history(store), decision, self.metric, time.time())
            context["ti"].xcom_push(PROMOTION_KEY, shown)
        except Exception as error:
            self.log.debug("the promotions are not published on the web page: %s", error)

    def _metrics(self) -> Mapping[str, Any] | None:
        metrics: Any = self.metrics
        if metrics == "manifest":
            return None
        if isinstance(metrics, str):
            metrics = as_mapping(metrics, "metrics")
        if not isinstance(metrics, Mapping):
            raise BadInput(
                f"metrics: {type(metrics).__name__} is no mapping; give names and numbers, "
                "or the output of an EvaluateOperator"
            )
        # The result of an evaluation is the status of its run, with the metrics in it.
        return metrics["metrics"] if {"run", "state", "metrics"} <= set(metrics) else metrics


def is_new(decision: Decision, by: str, since: float | None) -> bool:
    """Return whether the decision made a new champion, or a try of this DAG run that was killed before
    Airflow received it did. ``by``: who promotes; ``since``: when the DAG run began, epoch seconds.
    """
    champion = decision.promotion
    if champion is None or not decision.standing:
        return champion is not None
    try:
        made = from_rfc3339(champion.at)
    except ValueError:  # a record that somebody else has written
        return False
    return champion.by == by and made is not None and since is not None and made >= since
