"""`CollectCheckpointOperator`: a verified copy of the best or latest checkpoint of a run."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from allaboard.errors import BadInput
from allaboard.text.units import show_bytes
from allaboard_provider import outlets
from allaboard_provider.errors import airflow_errors
from allaboard_provider.lineage import Dataset, Lineage
from allaboard_provider.operators.base import StoreOperator
from allaboard_provider.operators.pick import results_in
from allaboard_provider.templates import is_list, result_in

if TYPE_CHECKING:
    from airflow.sdk import Context


class CollectCheckpointOperator(StoreOperator):
    """Copies one complete checkpoint out of a run's own folder, where retention removes it.

    :param source: the result of a `TrainingJobOperator` (its ``output``), the uri of a run's folder, or of
        one checkpoint. Of a list of results, the ``output`` of mapped trainings, it is the checkpoint that is
        best by ``metric`` and ``mode`` among those of all runs; of equals, that of the first run.
    :param into: the folder of copies; the copy is ``<into>/<run>/step-<12 digits>/``.
    :param which: ``best`` (by ``metric`` and ``mode``; without them, the one that the training reported as
        its best), ``latest``, ``best:val_loss:min``, or the number of a step.
    :param metric: the metric that ``best`` means.
    :param mode: ``min`` or ``max``: which end of it is better.

    Returns ``{"uri", "source", "run", "step", "metrics", "nonfinite", "fingerprint", "bytes", "copied",
    "notes"}``. The events of its ``outlets`` have the first of them as their extra.
    """

    template_fields: Sequence[str] = ("source", "into", "which", "metric", "mode", "allaboard_conn_id")
    structured: ClassVar[tuple[str, ...]] = ("source",)

    def __init__(
        self,
        *,
        source: str | Mapping[str, Any],
        into: str,
        which: str | int = "latest",
        metric: str | None = None,
        mode: str = "min",
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.source, self.into, self.which = source, into, which
        self.metric, self.mode = metric, mode

    def execute(self, context: Context) -> dict[str, Any]:
        from allaboard.checkpoints import collect, handed_flags

        with airflow_errors():
            result = result_in(self.source, "source")
            if is_list(result):
                result, source = self._best_of(results_in(result, "source"))
            else:
                source = self._place_of(result)
            into = self.uri(self.into, "into")
            copy = collect(
                source, into, self.which, metric=self.metric, mode=self.mode, progress=self.stop_if_killed,
                handed=handed_flags(result),
            )  # fmt: skip
        for note in copy.notes:
            self.log.warning("%s", note)
        metrics = ", ".join(f"{name} {value}" for name, value in copy.checkpoint.manifest.metrics.items())
        self.log.info(
            "step %d (%s; %s) is in %s",
            copy.step,
            show_bytes(copy.bytes),
            metrics or "no metrics",
            copy.uri,
        )
        result = copy.to_dict()
        made = Lineage(
            inputs=(Dataset(copy.source, result["fingerprint"]),),
            outputs=(Dataset(copy.uri, result["fingerprint"], size=copy.bytes),),
            facts={"run": result["run"], "step": result["step"], "metrics": result["metrics"]},
        )
        self.lineage = lambda: made
        if self.outlets:
            facts = {name: result[name] for name in ("uri", "step", "metrics", "run", "fingerprint")}
            outlets.announce(self, context, outlets.extra_of(facts), into)
        return result

    def expected_lineage(self) -> Lineage:
        result, into = result_in(self.source, "source"), Dataset(self.uri(self.into, "into"))
        several = results_in(result, "source") if is_list(result) else [result]
        return Lineage(tuple(Dataset(self._place_of(each)) for each in several), (into,))

    def _best_of(self, results: Sequence[Mapping[str, Any]]) -> tuple[Mapping[str, Any], str]:
        """The result of the run that has the best checkpoint of all, and the uri of that checkpoint."""
        from allaboard.checkpoints import best_checkpoint, parse_best

        metric, mode = self.metric, self.mode
        if str(self.which).startswith("best:"):
            metric, mode = parse_best(str(self.which)[len("best:") :])
        elif self.which != "best" or not metric:
            raise BadInput(
                "source: of a list of results the best is collected; give which='best', metric and mode"
            )
        saved = [each for each in results if any((each.get("checkpoints") or {}).values())]
        places = [self._place_of(each) for each in saved]
        number, uri = best_checkpoint(places, metric, mode)
        return saved[number], uri

    def _place_of(self, source: Any) -> str:
        """The uri of the run's folder, or of the checkpoint that the training reported as its best."""
        from allaboard.checkpoints import locate

        if not isinstance(source, Mapping) or "checkpoints" not in source:
            return self.uri(source, "source")
        checkpoints: Mapping[str, Any] = source["checkpoints"] or {}
        best, latest = checkpoints.get("best"), checkpoints.get("latest")
        if self.which == "best" and not self.metric and best:
            return str(best)
        if not (latest or best):
            raise BadInput(
                f"run {source.get('run')} reported no checkpoint; save with allaboard.inside.Checkpointer, "
                "or give source the uri of a folder"
            )
        return locate(str(latest or best))[0]
