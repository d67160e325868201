"""`TrainingJobOperator`: a distributed training as an Airflow task.

DAG files import this module at every parse, so it imports heavy modules in the functions that use them.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator

from allaboard.errors import BadInput
from allaboard.job.training_job import FIELDS, TrainingJob
from allaboard_provider import defaults
from allaboard_provider.compat import mask_secret
from allaboard_provider.errors import deferral_failed
from allaboard_provider.lineage import Dataset, Lineage, TellsLineage, of_checkpoint
from allaboard_provider.links import TrainingLink
from allaboard_provider.templates import Jinja, LeafByLeaf

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

    from allaboard.backends.base import Plan
    from allaboard.follow.loop import Outcome
    from allaboard_provider.hooks.allaboard import AllaboardHook
    from allaboard_provider.operators._lifecycle import TaskTry


class TrainingJobOperator(TellsLineage, LeafByLeaf, BaseOperator):
    """Trains a job. Succeeds when the run succeeds, and returns the run's status (``state``, ``metrics``,
    ``checkpoints``, ``progress`` ...; all of ``allaboard status --json`` but the members).

    :param job: a `TrainingJob`, a mapping of its fields, a text of one (JSON or YAML), or the path of a job
        file: a text that ends in .yaml, .yml or .json, relative to the DAG file. Every text in it is a
        template, in a file as well, and is rendered after it is parsed: the value of a template stays one
        value (`allaboard_provider.templates`). The job is checked after rendering, leniently: ``"4"`` is 4.
    :param allaboard_conn_id: the connection that names the place of runs and the store. The default one need
        not exist; without it everything is on the worker's own machine.
    :param deferrable: wait in the triggerer instead of a worker slot, after the first seconds, for which the
        worker follows the run (``[allaboard] defer_after``, 10). The default is ``[allaboard]
        deferrable``, else AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE where that is set, else True. A worker that
        is a container of this task alone (KubernetesExecutor) follows a local run itself, for the run ends
        with the container; so does one without a triggerer beside it that gets the task's trigger.
    :param get_logs: copy rank 0's output into the task log, bounded, also while deferred.
    :param stop_rest_when: of a mapped task, a sweep: ``"accuracy>=0.97"``, or a list of such thresholds. Once
        a run has succeeded with metrics that meet all of them, the other runs of the task are stopped, and
        their tasks skipped; those that have not begun are skipped as well. Nothing is compared while a run
        trains. A run on another host than the first one's, with local runs, goes on.

    Where ``data.shards`` names a place into which a `PrepareShardsOperator` upstream has prepared, the run
    trains on the version that this very DAG run has made. A try that finds other data than the one before
    stops what still trains and begins from scratch, in a fresh folder of checkpoints.

    A run belongs to the task instance. A retry resumes it from its newest checkpoint. When a worker dies, the
    next one adopts it. Clearing or failing the task stops it. ``policy.attempts`` of the job is 1 unless the
    job says otherwise: retries are Airflow's.

    The events of its ``outlets`` have as their extra the best checkpoint, else the newest: ``uri``, ``step``,
    ``fingerprint`` and the ``run``, with the ``metrics`` that the run reported last.

    ``execution_timeout`` counts from the start of the try, time in the triggerer and in a queue for CPUs,
    GPUs or quota included. ``policy.deadline`` of the job limits the training alone, from its admission on,
    and ``policy.clocks`` each of its phases.
    """

    template_fields: Sequence[str] = ("job", "allaboard_conn_id", "stop_rest_when")
    structured: ClassVar[tuple[str, ...]] = ("job",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json"}
    ui_color = "#e7f0e4"

    #: What the page of a run calls it.
    kind: str = "training"

    operator_extra_links = (TrainingLink(),)

    #: Seconds after the trigger's own deadline at which Airflow ends a deferral that no triggerer handles.
    backstop: float = 120.0

    def __init__(
        self,
        *,
        job: TrainingJob | Mapping[str, Any] | str | os.PathLike[str],
        allaboard_conn_id: str | None = "allaboard_default",
        deferrable: bool = defaults.deferrable(),
        get_logs: bool = True,
        stop_rest_when: str | Sequence[str] | None = None,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = plain(job)
        self._given = id(job)
        self.job_folder = job.folder if isinstance(job, TrainingJob) else None
        self.allaboard_conn_id = allaboard_conn_id
        self.deferrable = deferrable
        self.get_logs = get_logs
        self.stop_rest_when = stop_rest_when
        self.killed = False

    @cached_property
    def hook(self) -> AllaboardHook:
        """The connection."""
        from allaboard_provider.hooks.allaboard import AllaboardHook

        return AllaboardHook(self.allaboard_conn_id)

    def training_job(self) -> TrainingJob:
        """The job as rendered, checked. Raises `allaboard.errors.BadInput` with every problem."""
        from allaboard_provider.jobs import read

        return read(self.job, self.job_folder, self)

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Context,
        jinja_env: jinja2.Environment,
        seen_oids: set[int],
    ) -> None:
        """Airflow stores and shows the rendered fields after this call. It hides the secrets that it knows by
        then, there and in the task's log.
        """
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        if parent is self:
            from allaboard_provider.jobs import secrets_in

            if isinstance(self.job, TrainingJob):  # of another task
                self.job_folder = self.job.folder or self.job_folder
                self.job = plain(self.job)
            for value in secrets_in(self.job):
                mask_secret(value)

    def run_of(self, context: Mapping[str, Any]) -> str:
        from allaboard_provider.identity import run_of

        return run_of(self.job, context) if "ti" in context else ""

    def is_resolved(self, name: str, value: Any, seen_oids: set[int]) -> bool:
        # The job is a copy of the value that Airflow gave.
        return super().is_resolved(name, value, seen_oids) or (name == "job" and self._given in seen_oids)

    def render_structure(self, name: str, value: Any, jinja: Jinja) -> Any:
        """The fields of a job that is a text, or the path of a file; other fields as usual."""
        from allaboard.job.loader import names_a_file

        if name != "job" or not isinstance(value, str):
            return super().render_structure(name, value, jinja)
        whole = jinja.single_expression(value)
        if whole is not None:
            job = whole()
            is_file = isinstance(job, str) and names_a_file(job)
            return self._fields_of_file(job, jinja) if is_file else job
        if names_a_file(value):
            return self._fields_of_file(str(jinja.leaf(value)), jinja)
        return jinja.mapping(value, name)

    def _fields_of_file(self, path: str, jinja: Jinja) -> Any:
        from allaboard_provider.files import dag_folder, fields_of_file

        try:
            fields, self.job_folder = fields_of_file(path, dag_folder(self))
        except BadInput:  # raised again where the job is read, when the task runs
            return Path(path)
        return jinja.leaves(fields, "job")

    def result(self, status: dict[str, Any]) -> dict[str, Any]:
        """The XCom of a run that succeeded, given its status without members."""
        return status

    def announced(self, result: Mapping[str, Any]) -> str | None:
        """The uri of the checkpoint that the events of the outlets are about, given the result."""
        checkpoints: Mapping[str, Any] = result["checkpoints"]
        return checkpoints.get("best") or checkpoints.get("latest")

    def as_launched(self, plan: Plan, *, local: bool) -> Plan:
        """The plan that is launched: what only a look at the world tells is filled in. ``local``: on one
        machine.
        """
        return plan

    def prepared_shards(self, context: Context) -> str | None:
        """The version of the job's data set that a task upstream has prepared in this DAG run; None where
        none did. The newest version there may be that of another DAG run.
        """
        from allaboard_provider.operators.shards import PrepareShardsOperator

        shards = (self.training_job().get("data") or {}).get("shards")
        dag = self.get_dag()
        if shards is None or dag is None:
            return None
        where = self._whole(shards)
        for task_id in sorted(self.get_flat_relative_ids(upstream=True)):
            if not is_kind(dag.get_task(task_id), PrepareShardsOperator):
                continue
            results = context["ti"].xcom_pull(task_ids=task_id)
            for result in [results] if isinstance(results, Mapping) else results or ():
                if isinstance(result, Mapping) and result.get("into") == where and result.get("uri"):
                    return str(result["uri"])
        return None

    def expected_lineage(self) -> Lineage:
        from allaboard.shards.index import place_of

        job = self.training_job()
        shards = (job.get("data") or {}).get("shards")
        folder = (job.get("checkpoints") or {}).get("uri")
        return Lineage(
            inputs=(Dataset(place_of(self._whole(shards))),) if shards else (),
            outputs=(Dataset(self._whole(folder)),) if folder else (),
        )

    def made(self, outcome: Outcome) -> Lineage:
        """Inputs and outputs of a run that has ended."""
        summary = outcome.summary
        saved = {uri for uri in summary["checkpoints"].values() if uri}
        facts = {name: summary[name] for name in ("run", "state", "attempt", "restarts", "metrics")}
        facts |= {name: value for name, value in summary["progress"].items() if value is not None}
        if outcome.diagnoses and not outcome.ok:
            first = outcome.diagnoses[0]
            facts |= {"code": first.code, "summary": first.summary}
        outputs = tuple(map(of_checkpoint, sorted(saved)))
        return Lineage(self.expected_lineage().inputs, outputs, facts)

    def _whole(self, uri: str) -> str:
        from allaboard.job.site import resolve_uri
        from allaboard_provider.files import dag_folder

        return resolve_uri(uri, self.hook.site, self.job_folder or dag_folder(self))

    def execute(self, context: Context) -> dict[str, Any]:
        return self._try(context).begin()

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """The trigger has fired."""
        return self._try(context).resume(event)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Airflow's way back from a deferral. When the trigger timed out or died, Airflow calls neither its
        ``on_kill`` nor `execute_complete`, and nobody else would stop the run.
        """
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except Exception as error:
            if next_method == "__fail__":
                self._try(context).rescue(error)
                raise deferral_failed(error, self.execution_timeout, self.run_of(context)) from error
            raise

    def on_kill(self) -> None:
        """Called in a signal handler: it sets the flag that the waiting loop checks, and uses no file,
        request or lock.
        """
        self.killed = True

    def _try(self, context: Context) -> TaskTry:
        from allaboard_provider.operators._lifecycle import TaskTry

        return TaskTry(self, context)


def is_kind(task: Any, kind: type) -> bool:
    """Return whether the task is of this kind, mapped or not."""
    made = getattr(task, "operator_class", None) or type(task)
    return isinstance(made, type) and issubclass(made, kind)


def plain(job: Any) -> Any:
    """The job as plain data: the fields that are set, in fixed order; a path as text; other values as they
    are.
    """
    if isinstance(job, TrainingJob):
        return job.as_mapping()
    if isinstance(job, os.PathLike):
        return os.fspath(job)
    if isinstance(job, Mapping):
        order = {name: n for n, name in enumerate(FIELDS)}
        return {name: job[name] for name in sorted(job, key=lambda name: order.get(name, len(order)))}
    return job
