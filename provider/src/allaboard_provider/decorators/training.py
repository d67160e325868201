"""``@task.training``: a function of a DAG file as a distributed training.

Airflow finds the decorator by the provider's ``task-decorators``. DAG files import this module at every
parse.
"""

from __future__ import annotations

import inspect
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar

from airflow.sdk.bases.decorator import DecoratedOperator, task_decorator_factory

from allaboard.job.function import source_of
from allaboard.job.training_job import FIELDS, TrainingJob
from allaboard_provider.compat import mask_secret
from allaboard_provider.operators.train import TrainingJobOperator

if TYPE_CHECKING:
    import jinja2
    from airflow.sdk import Context
    from airflow.sdk.bases.decorator import TaskDecorator


class TrainingDecoratedOperator(DecoratedOperator, TrainingJobOperator):
    """The task of a decorated function: a `TrainingJobOperator` whose job is made of the function
    (`TrainingJob.of_function`) after its arguments are rendered.

    :param gpu: GPUs of each member: ``resources={"gpu": N}``.

    The fields of a job and the arguments of `TrainingJobOperator` are arguments of the decorator. Raises
    `allaboard.errors.BadInput` when the DAG file is parsed, for a function that cannot run elsewhere.
    """

    custom_operator_name = "@task.training"
    template_fields: Sequence[str] = (
        *DecoratedOperator.template_fields,
        *TrainingJobOperator.template_fields,
    )
    template_fields_renderers: ClassVar[dict[str, str]] = {
        **DecoratedOperator.template_fields_renderers,
        **TrainingJobOperator.template_fields_renderers,
    }

    def __init__(
        self,
        *,
        python_callable: Callable[..., Any],
        op_args: Collection[Any] | None = None,
        op_kwargs: Mapping[str, Any] | None = None,
        gpu: int | None = None,
        **kwargs: Any,
    ) -> None:
        source_of(python_callable)
        kwargs.pop("multiple_outputs", None)
        fields = {name: kwargs.pop(name) for name in FIELDS if name in kwargs}
        if gpu is not None:
            fields["resources"] = {**(fields.get("resources") or {}), "gpu": gpu}
        super().__init__(
            python_callable=python_callable, op_args=op_args, op_kwargs=op_kwargs, job=fields, **kwargs
        )

    def _do_render_template_fields(
        self,
        parent: Any,
        template_fields: Iterable[str],
        context: Context,
        jinja_env: jinja2.Environment,
        seen_oids: set[int],
    ) -> None:
        """The function becomes the command after its arguments are rendered: its source is no template."""
        super()._do_render_template_fields(parent, template_fields, context, jinja_env, seen_oids)
        if parent is self and "command" not in self.job:
            from allaboard_provider.jobs import secrets_in

            arguments = self._arguments(context)
            self.job = TrainingJob.of_function(self.python_callable, arguments, **self.job).as_mapping()
            for value in secrets_in(arguments):
                mask_secret(value)

    def _arguments(self, context: Context) -> dict[str, Any]:
        """The arguments by name; a parameter that is called like a variable of Airflow's context gets it."""
        signature = inspect.signature(self.python_callable)
        given = signature.bind_partial(*self.op_args, **self.op_kwargs)
        every: dict[str, Any] = {
            name: context[name]  # type: ignore[literal-required]
            for name in signature.parameters
            if name in context and name not in given.arguments
        }
        for name, value in given.arguments.items():
            is_rest = signature.parameters[name].kind is inspect.Parameter.VAR_KEYWORD
            every |= value if is_rest else {name: value}
        return every

    def execute(self, context: Context) -> dict[str, Any]:
        return self._try(context).begin()


def training_task(python_callable: Callable[..., Any] | None = None, **kwargs: Any) -> TaskDecorator:
    """``@task.training(workers=4, gpu=1)``: the function trains in every member of the job.

    :param python_callable: the function, where the decorator stands without parentheses.
    :param kwargs: fields of the job, ``gpu`` and arguments of `TrainingJobOperator`.

    The task returns the run's status; what the function returns is its ``metrics``.
    """
    return task_decorator_factory(
        python_callable=python_callable, decorated_operator_class=TrainingDecoratedOperator, **kwargs
    )
