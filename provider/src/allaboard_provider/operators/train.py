"""`TrainingJobOperator`: a distributed training as an Airflow task.

The module is cheap to import (DAG files do it at every parse): what runs is imported where it runs.
"""

from __future__ import annotations

import os
from collections.abc import Iterable, Mapping, Sequence
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk import BaseOperator
from airflow.sdk.log import mask_secret

from allaboard.errors import BadInput
from allaboard.spec.job import FIELDS, TrainingJob
from allaboard.spec.loader import names_a_file
from allaboard_provider import defaults
from allaboard_provider.files import dag_folder, fields_of_file
from allaboard_provider.hooks.allaboard import AllaboardHook
from allaboard_provider.templates import Jinja, LeafByLeaf

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context

    from allaboard.follow.loop import Outcome
    from allaboard_provider.operators._lifecycle import TaskTry


class TrainingJobOperator(LeafByLeaf, BaseOperator):
    """Trains. Succeeds when the run succeeds, and returns the run's status (``state``, ``metrics``,
    ``checkpoints``, ``progress`` ...; all of ``allaboard status --json`` but the members).

    :param job: a `TrainingJob`, a mapping of its fields, a text of one (JSON or YAML), or the path of a job
        file: a text that ends in .yaml, .yml or .json, relative to the DAG file. Every text in it is a
        template, in a file as well, rendered after it is parsed: what a template puts in stays one value
        (`allaboard_provider.templates`). It is validated after rendering, leniently: ``"4"`` is 4.
    :param allaboard_conn_id: the connection that says where runs live and what ``store://`` means; the
        default one need not exist, and then everything is on the worker's own machine.
    :param deferrable: wait in the triggerer instead of a worker slot; the default is ``[allaboard]
        deferrable``, else AIRFLOW__OPERATORS__DEFAULT_DEFERRABLE where that is set, else True. A local run
        whose worker is a container of this task alone (KubernetesExecutor) is followed by the worker all the
        same: it would end with it.
    :param get_logs: copy rank 0's output into the task log, bounded, also while deferred.

    A run belongs to the task instance: a retry resumes it from its newest checkpoint, a worker that dies is
    replaced by one that adopts it, and whoever clears or fails the task stops it. ``policy.attempts`` of the
    job is 1 unless it says otherwise: retries are Airflow's.

    ``execution_timeout`` counts from the start of the try: time in the triggerer, and time in which the run
    waits for CPUs, GPUs or quota. What limits the training alone is the job's ``policy.deadline``, which
    begins when the run is admitted, and ``policy.clocks`` for each of its phases.
    """

    template_fields: Sequence[str] = ("job", "allaboard_conn_id")
    structured: ClassVar[tuple[str, ...]] = ("job",)
    template_fields_renderers: ClassVar[dict[str, str]] = {"job": "json"}
    ui_color = "#e7f0e4"

    #: Seconds after the trigger's own deadline at which Airflow ends a deferral that no triggerer looks
    #: after.
    backstop: float = 120.0

    def __init__(
        self,
        *,
        job: TrainingJob | Mapping[str, Any] | str | os.PathLike[str],
        allaboard_conn_id: str | None = "allaboard_default",
        deferrable: bool = defaults.deferrable(),
        get_logs: bool = True,
        **kwargs: Any,
    ) -> None:
        super().__init__(**kwargs)
        self.job = plain(job)
        self._given = id(job)
        self.job_folder = job.folder if isinstance(job, TrainingJob) else None
        self.allaboard_conn_id = allaboard_conn_id
        self.deferrable = deferrable
        self.get_logs = get_logs
        self.killed = False

    @cached_property
    def hook(self) -> AllaboardHook:
        """The connection."""
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
        """Airflow keeps and shows what was rendered as soon as this is done. What it knows as a secret by
        then is hidden there, and in the task's log.
        """
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        if parent is self:
            from allaboard_provider.jobs import secrets_in

            for value in secrets_in(self.job):
                mask_secret(value)

    def is_resolved(self, name: str, value: Any, seen_oids: set[int]) -> bool:
        # The job is a copy of what Airflow gave.
        return super().is_resolved(name, value, seen_oids) or (name == "job" and self._given in seen_oids)

    def render_structure(self, name: str, value: Any, jinja: Jinja) -> Any:
        """Of a job that is a text: the fields that it, or the file that it names, says."""
        if name != "job" or not isinstance(value, str):
            return super().render_structure(name, value, jinja)
        whole = jinja.single_expression(value)
        if whole is not None:
            job = whole()
            is_file = isinstance(job, str) and names_a_file(job)
            return self._fields_of_file(job, jinja) if is_file else job
        if names_a_file(value):
            return self._fields_of_file(str(jinja.leaf(value)), jinja)
        return jinja.mapping(value)

    def _fields_of_file(self, path: str, jinja: Jinja) -> Any:
        try:
            fields, self.job_folder = fields_of_file(path, dag_folder(self))
        except BadInput:  # said where the job is read, when the task has begun
            return Path(path)
        return jinja.leaves(fields)

    def result(self, outcome: Outcome) -> dict[str, Any]:
        """What a run that succeeded leaves in XCom."""
        from allaboard_provider.results import result_of

        return result_of(outcome)

    def execute(self, context: Context) -> dict[str, Any]:
        return self._try(context).begin()

    def execute_complete(self, context: Context, event: Mapping[str, Any]) -> dict[str, Any]:
        """The trigger has fired."""
        return self._try(context).resume(event)

    def resume_execution(self, next_method: str, next_kwargs: dict[str, Any] | None, context: Context) -> Any:
        """Airflow's way back from a deferral. When the trigger timed out or died, neither its ``on_kill`` nor
        `execute_complete` is called, and nobody else would stop the run."""
        try:
            return super().resume_execution(next_method, next_kwargs, context)
        except Exception as error:
            if next_method == "__fail__":
                self._try(context).rescue(error)
            raise

    def on_kill(self) -> None:
        """Called inside a signal handler: no file, no request, no lock here. The loop that waits does the
        rest.
        """
        self.killed = True

    def _try(self, context: Context) -> TaskTry:
        from allaboard_provider.operators._lifecycle import TaskTry

        return TaskTry(self, context)


def plain(job: Any) -> Any:
    """A job as JSON keeps it: the fields set, in fixed order; a path as text; anything else stays."""
    if isinstance(job, TrainingJob):
        return job.as_mapping()
    if isinstance(job, os.PathLike):
        return os.fspath(job)
    if isinstance(job, Mapping):
        order = {name: n for n, name in enumerate(FIELDS)}
        return {name: job[name] for name in sorted(job, key=lambda name: order.get(name, len(order)))}
    return job
