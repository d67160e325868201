"""The components: typed shells around `allaboard_kfp.runtime`, which they call with keyword arguments.

Each component exists ready to use, in the image that `IMAGE` names (``ALLABOARD_KFP_IMAGE``, read when this
module is imported, else the image of this release), and as a factory for another image::

    train = make_train(image="registry.lab/team/python-train:v3")

A step installs nothing: its image holds this package and what the training needs. ``options`` of a factory
are those of `kfp.dsl.component`: with ``packages_to_install=["kfp-allaboard[s3]", "torch"]`` a plain Python
image serves. ``train(...).set_container_image(image)`` takes an image that a pipeline's parameter names.

Every component has effects, so its tasks are never answered from Kubeflow's cache, which hands out uris
without a check that anything is there. kfp's default is to cache; theirs is not to.
``train(...).set_caching_options(True)`` is the author's own choice.

kfp reads the annotations when a component is made, so they are no strings here. It takes no default of a
mapping but an empty one, to which nobody writes. It takes the descriptions of outputs, artifacts included,
from ``Returns`` alone.
"""

# ruff: noqa: B006, UP006
# mypy: disable-error-code="type-arg,valid-type,untyped-decorator"

import os
from collections.abc import Callable, Mapping
from dataclasses import replace
from typing import Any, List, NamedTuple, TypedDict, Unpack  # noqa: UP035  kfp knows List

from kfp import dsl
from kfp.dsl import structures
from kfp.dsl.pipeline_task import TaskState
from kfp.dsl.python_component import PythonComponent

from allaboard_kfp import __version__
from allaboard_kfp.passing import passed

IMAGE = os.environ.get("ALLABOARD_KFP_IMAGE") or f"ghcr.io/allaboard/kfp-allaboard-python:{__version__}"
"""The image of steps whose factory gets no other: ``ALLABOARD_KFP_IMAGE`` where the pipeline is compiled,
else the image of this release.
"""


class Component(PythonComponent):  # type: ignore[misc]
    """A component whose tasks are not cached, unless their author says so, and whose arguments may be what
    `allaboard_kfp.passing` passes.
    """

    def __init__(self, component: PythonComponent) -> None:
        super().__init__(component.component_spec, component.python_func)
        compile_spec = self.component_spec.to_pipeline_spec

        def without_cache() -> Any:
            spec = compile_spec()
            for task in spec.root.dag.tasks.values():
                task.caching_options.enable_cache = False
            return spec

        # A component that is compiled alone, or run alone by kfp.local, is compiled by this.
        self.component_spec.to_pipeline_spec = without_cache

    def __call__(self, *args: Any, **kwargs: Any) -> Any:
        spec, arguments = passed(for_members(self.component_spec, kwargs), kwargs)
        if spec is self.component_spec:
            task = super().__call__(*args, **arguments)
        else:
            task = PythonComponent(spec, self.python_func)(*args, **arguments)
        if task.state == TaskState.FUTURE:  # in other states kfp.local has run it already
            task.set_caching_options(False)
        return task


TASK_CONFIG = "task_config"
"""The input of those components that run a job."""
_FOR_MEMBERS = (
    dsl.TaskConfigField.RESOURCES,
    dsl.TaskConfigField.KUBERNETES_TOLERATIONS,
    dsl.TaskConfigField.KUBERNETES_NODE_SELECTOR,
    dsl.TaskConfigField.KUBERNETES_AFFINITY,
)


def for_members(spec: structures.ComponentSpec, arguments: Mapping[str, Any]) -> structures.ComponentSpec:
    """The spec with which Kubeflow gives to the members of a job what is set on its task. The step's own pod
    takes the variables, too, and the volumes where its store is a folder, which is on one of them.

    Only of a call with the constant ``backend="kubernetes"``: elsewhere members are processes of the step's
    pod, and what is set on the task is theirs by that.
    """
    backend, store = arguments.get("backend"), arguments.get("store")
    if not isinstance(backend, str) or backend != "kubernetes" or TASK_CONFIG not in spec.inputs:
        return spec
    field, through = dsl.TaskConfigField, dsl.TaskConfigPassthrough
    in_a_folder = isinstance(store, str) and bool(store) and "://" not in store
    passthroughs = [
        *(through(field=passed_on, apply_to_task=False) for passed_on in _FOR_MEMBERS),
        through(field=field.ENV, apply_to_task=True),
        through(field=field.KUBERNETES_VOLUMES, apply_to_task=in_a_folder),
    ]
    return replace(spec, task_config_passthroughs=passthroughs)


class Options(TypedDict, total=False):
    """The options that a factory passes on to `kfp.dsl.component`, which documents them."""

    packages_to_install: list[str]
    pip_index_urls: list[str]
    pip_trusted_hosts: list[str]
    use_venv: bool
    kfp_package_path: str
    target_image: str
    output_component_file: str
    additional_funcs: list[Callable[..., Any]]
    embedded_artifact_path: str


def make_prepare_shards(image: str = IMAGE, **options: Unpack[Options]) -> Component:
    """The component `prepare_shards` in this image. ``options`` go on to ``kfp.dsl.component``."""

    @dsl.component(base_image=image, install_kfp_package=False, **options)
    def prepare_shards(
        source: str,
        into: str,
        dataset: dsl.Output[dsl.Dataset],
        samples_per_shard: int = 0,
        bytes_per_shard: str = "",
        folder: str = "",
        store: str = "",
    ) -> str:
        """Turn a folder, or the samples of a Python function, into tar shards and an index.

        Args:
            source: a folder, "module:function" or "file.py:function".
            into: where the shards go: a folder, s3://bucket/prefix or store://name.
            samples_per_shard: a shard ends at so many samples; 0: no such limit.
            bytes_per_shard: a shard ends at this size, like 64Mi; empty: 256Mi.
            folder: where relative paths start; empty: the working directory.
            store: what store:// stands for; empty: ALLABOARD_STORE.

        Returns:
            Output: the uri of the data set.
            dataset: names the data set: metadata["uri"] is the place of the shards.
        """
        from allaboard_kfp.runtime import run_prepare_shards

        return run_prepare_shards(
            source=source,
            into=into,
            samples_per_shard=samples_per_shard,
            bytes_per_shard=bytes_per_shard,
            folder=folder,
            store=store,
            dataset=dataset,
        )

    return Component(prepare_shards)


def make_train(image: str = IMAGE, **options: Unpack[Options]) -> Component:
    """The component `train` in this image. ``options`` go on to ``kfp.dsl.component``."""

    @dsl.component(base_image=image, install_kfp_package=False, **options)
    def train(
        model: dsl.Output[dsl.Model],
        metrics: dsl.Output[dsl.Metrics],
        report: dsl.Output[dsl.HTML],
        summary: dsl.Output[dsl.Markdown],
        job: dict = {},
        job_text: str = "",
        overrides: dict = {},
        environment: dict = {},
        args: list = [],
        shards: str = "",
        shards_artifact: dsl.Input[dsl.Artifact] = None,
        folder: str = "",
        store: str = "",
        backend: str = "",
        namespace: str = "",
        metric: str = "",
        mode: str = "",
        may_fail: bool = False,
        task_config: dsl.TaskConfig = None,
    ) -> NamedTuple("Trained", [("run", str), ("checkpoints", str), ("checkpoint", str), ("value", float)]):
        """Train: all members of the job or none, followed to the end. The step fails as the training does.

        Under the same pipeline run and task a step that was killed finds its training again, and resumes it.

        Args:
            job: the job as a mapping.
            job_text: instead of job: the job as JSON, as YAML, or the path of a job file.
            overrides: fields that are merged into the job, mappings field by field, anything else as a whole.
            environment: variables of every member, beside the job's own; a number is written as text.
            args: arguments after the job's own.
            shards: what to train on: the job's data.shards; a uri, or an artifact of a data set.
            shards_artifact: leave it out; an artifact that is given as shards is passed here.
            folder: where members and relative paths start; empty: the job file's, else the working directory.
            store: what store:// stands for; empty: ALLABOARD_STORE.
            backend: kubernetes: members are pods of their own; local: processes of this step; empty:
                ALLABOARD_BACKEND, else local.
            namespace: of those pods; empty: ALLABOARD_NAMESPACE, else that of this step.
            metric: which metric becomes the output value; empty: the job's checkpoints.best.metric.
            mode: max or min, which end of it is better; empty: as checkpoints.best says.
            may_fail: a training that fails leaves the step green, with an empty checkpoint and the worst
                value; for one of several in a loop.
            task_config: leave it out; with backend='kubernetes', what is set on the task, for the members.

        Returns:
            run: the run's name.
            checkpoints: the folder of its checkpoints.
            checkpoint: the best of them, else the newest.
            value: the metric as the script reported it last, else as the checkpoint has it, for dsl.If;
                the worst number (-1e308, for mode min 1e308) if it was no finite one.
            model: names the checkpoint: metadata["uri"] is its place.
            metrics: what the training reported last.
            report: its curve, its members, its checkpoints, and why it failed if it did.
            summary: how it ended, in a few lines; why it failed, with the evidence and what to do.
        """
        from allaboard_kfp.runtime import run_train

        return run_train(
            job=job,
            job_text=job_text,
            overrides=overrides,
            environment=environment,
            args=args,
            shards=shards,
            shards_artifact=shards_artifact,
            folder=folder,
            store=store,
            backend=backend,
            namespace=namespace,
            metric=metric,
            mode=mode,
            may_fail=may_fail,
            task_config=task_config,
            model=model,
            metrics=metrics,
            report=report,
            summary=summary,
        )

    return Component(train)


def train_function(
    function: Callable[..., Any],
    arguments: dict[str, Any] | None = None,
    *,
    component: Component | None = None,
    inputs: dict[str, Any] | None = None,
    **fields: Any,
) -> Any:
    """A task of `train` in which every member calls a Python function. The step and its pods need no file of
    it: its source is shipped in the job (`allaboard.TrainingJob.of_function`).

    :param function: stands by itself: it imports and defines inside its body what it uses.
    :param arguments: by parameter: JSON values, parameters of the pipeline and outputs of other tasks.
    :param component: of `make_train`, for another image.
    :param inputs: other inputs of the component, like ``store`` or ``metric``.
    :param fields: of the job, like ``workers``.

    Raises BadInput for a function that uses what a member does not have, with its names.
    """
    from kfp.dsl.pipeline_channel import PipelineChannel

    from allaboard.job.training_job import TrainingJob

    values = dict(arguments or {})
    later = {name: value for name, value in values.items() if isinstance(value, PipelineChannel)}
    job = TrainingJob.of_function(function, {**values, **dict.fromkeys(later)}, **fields)
    # A pipeline fills words in: the starter of the function reads these after its own arguments.
    kinds = {name: "text" if _is_text(channel) else "json" for name, channel in later.items()}
    more = {"args": [f"{kinds[name]}:{name}={channel}" for name, channel in later.items()]} if later else {}
    return (component or train)(job=job.as_mapping(), **more, **(inputs or {}))


def _is_text(channel: Any) -> bool:
    return str(channel.channel_type).upper() == "STRING"


def make_collect_checkpoint(image: str = IMAGE, **options: Unpack[Options]) -> Component:
    """The component `collect_checkpoint` in this image. ``options`` go on to ``kfp.dsl.component``."""

    @dsl.component(base_image=image, install_kfp_package=False, **options)
    def collect_checkpoint(
        into: str,
        model: dsl.Output[dsl.Model],
        source: str = "",
        source_artifact: dsl.Input[dsl.Artifact] = None,
        which: str = "latest",
        metric: str = "",
        mode: str = "min",
        store: str = "",
    ) -> str:
        """Copy one complete checkpoint elsewhere, verified at both ends.

        Args:
            source: the folder of a run's checkpoints, or one checkpoint; a uri, or an artifact of a model.
            source_artifact: leave it out; an artifact that is given as source is passed here.
            into: where copies are kept: a folder, s3://bucket/prefix or store://name.
            which: latest, best, or the number of a step.
            metric: best by which metric.
            mode: min or max of it.
            store: what store:// stands for; empty: ALLABOARD_STORE.

        Returns:
            Output: the uri of the copy.
            model: names the copy: metadata["uri"] is its place.
        """
        from allaboard_kfp.runtime import run_collect_checkpoint

        return run_collect_checkpoint(
            source=source,
            source_artifact=source_artifact,
            into=into,
            which=which,
            metric=metric,
            mode=mode,
            store=store,
            model=model,
        )

    return Component(collect_checkpoint)


def make_import_checkpoint(image: str = IMAGE, **options: Unpack[Options]) -> Component:
    """The component `import_checkpoint` in this image. ``options`` go on to ``kfp.dsl.component``."""

    @dsl.component(base_image=image, install_kfp_package=False, **options)
    def import_checkpoint(
        source: str,
        model: dsl.Output[dsl.Model],
        which: str = "latest",
        metric: str = "",
        mode: str = "min",
        store: str = "",
    ) -> str:
        """Vouch for a checkpoint that another library or another run wrote: every byte is read, and a
        manifest stands beside it from then on. It stays where it is.

        Args:
            source: one checkpoint, or the folder that holds several.
            which: of several: latest, best, or the number of a step.
            metric: best by which metric.
            mode: min or max of it.
            store: what store:// stands for; empty: ALLABOARD_STORE.

        Returns:
            Output: the uri of the checkpoint.
            model: names it: metadata["uri"] is its place.
        """
        from allaboard_kfp.runtime import run_import_checkpoint

        return run_import_checkpoint(
            source=source, which=which, metric=metric, mode=mode, store=store, model=model
        )

    return Component(import_checkpoint)


def make_pick_best(image: str = IMAGE, **options: Unpack[Options]) -> Component:
    """The component `pick_best` in this image. ``options`` go on to ``kfp.dsl.component``."""

    @dsl.component(base_image=image, install_kfp_package=False, **options)
    def pick_best(
        checkpoints: List[str],
        values: List[float],
        mode: str,
        summary: dsl.Output[dsl.Markdown],
        runs: List[str] = [],
        most_failed: int = -1,
    ) -> NamedTuple("Picked", [("position", int), ("checkpoint", str), ("run", str), ("value", float)]):
        """Pick the best of several trainings of a loop. Of equal values the first in the loop's order is the
        best. A training that failed, or has no finite value, is never the best; where all are so, the step
        fails.

        Args:
            checkpoints: their checkpoints, collected; empty for one that failed, or saved none.
            values: their values, collected, in the same order.
            mode: max or min, which end of the values is better.
            runs: their runs, collected: names for the table.
            most_failed: the step fails if more have failed; -1: all but one may.

        Returns:
            position: that of the best in the loop, from 0.
            checkpoint: the checkpoint of the best.
            run: the run of the best, where runs are given.
            value: the value of the best.
            summary: all of them in order, and why some do not count.
        """
        from allaboard_kfp.picking import run_pick_best

        return run_pick_best(
            checkpoints=checkpoints,
            values=values,
            mode=mode,
            runs=runs,
            most_failed=most_failed,
            summary=summary,
        )

    return Component(pick_best)


def make_clean_up(image: str = IMAGE, **options: Unpack[Options]) -> Component:
    """The component `clean_up` in this image. ``options`` go on to ``kfp.dsl.component``."""

    @dsl.component(base_image=image, install_kfp_package=False, **options)
    def clean_up(summary: dsl.Output[dsl.Markdown], backend: str = "", namespace: str = "") -> List[str]:
        """Stop the trainings of this pipeline run that no step follows any more; for dsl.ExitHandler.

        It looks for the pods of the steps, and not for how Kubeflow says that they have ended. A training
        that a step still follows goes on, and so do those of other pipeline runs. Running it again changes
        nothing.

        Args:
            backend: as for train.
            namespace: as for train.

        Returns:
            Output: the runs that were stopped.
            summary: what became of each.
        """
        from allaboard_kfp.leftovers import run_clean_up

        return run_clean_up(backend=backend, namespace=namespace, summary=summary)

    return Component(clean_up)


def make_evaluate(image: str = IMAGE, **options: Unpack[Options]) -> Component:
    """The component `evaluate` in this image. ``options`` go on to ``kfp.dsl.component``."""

    @dsl.component(base_image=image, install_kfp_package=False, **options)
    def evaluate(
        metrics: dsl.Output[dsl.Metrics],
        report: dsl.Output[dsl.HTML],
        summary: dsl.Output[dsl.Markdown],
        classification: dsl.Output[dsl.ClassificationMetrics],
        checkpoint: str = "",
        checkpoint_artifact: dsl.Input[dsl.Artifact] = None,
        job: dict = {},
        job_text: str = "",
        overrides: dict = {},
        environment: dict = {},
        args: list = [],
        folder: str = "",
        store: str = "",
        backend: str = "",
        namespace: str = "",
        metric: str = "",
        mode: str = "",
        task_config: dsl.TaskConfig = None,
    ) -> NamedTuple("Evaluated", [("run", str), ("results", dict), ("value", float)]):
        """Run an evaluation of one checkpoint as a job of its own.

        Its script reads the checkpoint's uri from ALLABOARD_CHECKPOINT and reports its metrics with
        allaboard.inside.result(accuracy=...). A confusion matrix and a ROC curve may be among them:
        confusion={"labels": [...], "matrix": [[...]]}, roc={"fpr": [...], "tpr": [...], "thresholds": [...]}.

        Args:
            checkpoint: the checkpoint: its uri, or an artifact of a model.
            checkpoint_artifact: leave it out; an artifact that is given as checkpoint is passed here.
            job: the evaluation as a mapping.
            job_text: instead of job: JSON, YAML, or the path of a job file.
            overrides: as for train.
            environment: as for train.
            args: as for train.
            folder: where members start; empty: the job file's folder, else the working directory.
            store: what store:// stands for; empty: ALLABOARD_STORE.
            backend: as for train.
            namespace: as for train.
            metric: which metric becomes the output value; empty: the only number that was reported.
            mode: max or min, which end of it is better; needed with metric.
            task_config: as for train.

        Returns:
            run: the evaluation's run.
            results: its metrics, for promote, without the matrix and the curve.
            value: the metric, to branch on with dsl.If; the worst number (-1e308, for mode min 1e308) if it
                was no finite one.
            metrics: the metrics that the evaluation reported.
            report: a page about the evaluation.
            summary: how it ended, in a few lines; why it failed, with the evidence and what to do.
            classification: the confusion matrix and the ROC curve, where they were reported.
        """
        from allaboard_kfp.runtime import run_evaluate

        return run_evaluate(
            job=job,
            job_text=job_text,
            overrides=overrides,
            environment=environment,
            args=args,
            checkpoint=checkpoint,
            checkpoint_artifact=checkpoint_artifact,
            folder=folder,
            store=store,
            backend=backend,
            namespace=namespace,
            metric=metric,
            mode=mode,
            task_config=task_config,
            metrics=metrics,
            report=report,
            summary=summary,
            classification=classification,
        )

    return Component(evaluate)


def make_promote(image: str = IMAGE, **options: Unpack[Options]) -> Component:
    """The component `promote` in this image. ``options`` go on to ``kfp.dsl.component``."""

    @dsl.component(base_image=image, install_kfp_package=False, **options)
    def promote(
        into: str,
        verdict: dsl.Output[dsl.Metrics],
        report: dsl.Output[dsl.HTML],
        checkpoint: str = "",
        checkpoint_artifact: dsl.Input[dsl.Artifact] = None,
        results: dict = {},
        metric: str = "",
        mode: str = "max",
        better_by: float = 0.0,
        thresholds: str = "",
        reason: str = "",
        single_writer: bool = False,
        store: str = "",
        despite_flags: bool = False,
    ) -> NamedTuple("Promoted", [("promoted", bool), ("number", int), ("champion", str)]):
        """Make a checkpoint the champion if it is good enough and better than the present one.

        A checkpoint that does not pass the gate does not fail the step: promoted is false.

        Args:
            checkpoint: the candidate, a uri or an artifact of a model; a collected one, as retention removes
                those in a run's own folder.
            checkpoint_artifact: leave it out; an artifact that is given as checkpoint is passed here.
            into: where the champions are recorded: a folder, s3://bucket/prefix or store://name.
            results: the metrics of its evaluation; empty: those of its own manifest.
            metric: compare with the champion by this metric; empty: by thresholds alone.
            mode: max or min: which end is better.
            better_by: by how much it must be better, at least.
            thresholds: what it must reach, like accuracy>=0.97,loss<=0.2.
            reason: why; kept in the record.
            single_writer: nobody else promotes there; needed for stores without conditional writes.
            store: what store:// stands for; empty: ALLABOARD_STORE.
            despite_flags: promote a checkpoint whose run ended with flags, such as success_doubtful.

        Returns:
            promoted: whether it is the champion now.
            number: of the champion in place; 0: there is none.
            champion: the uri of the champion in place.
            verdict: promoted (1 or 0), the champion's number, the candidate's metrics.
            report: every check with its figures, and all champions so far.
        """
        from allaboard_kfp.runtime import run_promote

        return run_promote(
            checkpoint=checkpoint,
            checkpoint_artifact=checkpoint_artifact,
            into=into,
            results=results,
            metric=metric,
            mode=mode,
            better_by=better_by,
            thresholds=thresholds,
            reason=reason,
            single_writer=single_writer,
            despite_flags=despite_flags,
            store=store,
            verdict=verdict,
            report=report,
        )

    return Component(promote)


prepare_shards = make_prepare_shards()
train = make_train()
collect_checkpoint = make_collect_checkpoint()
import_checkpoint = make_import_checkpoint()
pick_best = make_pick_best()
clean_up = make_clean_up()
evaluate = make_evaluate()
promote = make_promote()
