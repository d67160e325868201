"""Settings of a task of KFP, for the members of its job: values in, values out.

Kubeflow's driver gives it to a step whose members are pods of their own, in the words of a pod
(kubeflow/pipelines: backend/src/v2/driver/driver.go, TaskConfig). It is read as the pod template of a
manifest is, and goes below the job:

- What the job or one of its groups says itself, counts: an amount, a variable, a mount, a label of nodes, the
  affinity. Where the task says otherwise, a sentence tells it. Tolerations are united.
- Variables of the step alone stay there: those that take a field of its own pod (``fieldRef``), and those
  named ``ALLABOARD_...`` and ``KFP_...``.
- Variables by which an experiment tracker makes a run go beside the job (`beside_job`): Kubeflow's MLflow
  plugin gives others to each try of a step, which is no other job.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any, Protocol

from allaboard.engines import BY_FRAMEWORK, ENGINES, Engine
from allaboard.engines.reading.pods import GPU_LABELS, Wanted, read_pod
from allaboard.engines.reading.values import Reading
from allaboard.job import gpus
from allaboard.render.pod_template import MERGE_KEYS, UNITED
from allaboard.runs.trackers import begins_a_run, is_secret
from allaboard.text.untrusted import show

Tell = Callable[[str], None]
_OF_THE_STEP = ("ALLABOARD_", "KFP_", "_KFP_")
_OF_ITS_POD = ("fieldRef", "resourceFieldRef")
_REPLACE = {"$patch": "replace"}
_GPU_COUNTS = ("gpu", "mig", "device_class")


class TaskConfig(Protocol):
    """kfp's value of this name. Each part is None or empty where nothing is set."""

    affinity: Any
    tolerations: Any
    node_selector: Any
    env: Any
    volumes: Any
    volume_mounts: Any
    resources: Any


def with_task(fields: Mapping[str, Any], task: TaskConfig | None, tell: Tell) -> dict[str, Any]:
    """The fields of a job with what is set on its task. ``tell`` hears where both say something else. Raises
    BadInput for what is no part of a pod.
    """
    template = {} if task is None else _template(_Job(fields), task, tell)
    if not template:
        return dict(fields)
    reading = Reading()
    trains = _engine_of(fields).CONTAINER
    pod = read_pod(reading, template, "task", trains, Wanted())
    reading.raise_problems("what is set on the task")
    for loss in reading.lost:
        tell(f"{loss.path}: {loss.reason}; it is left out")
    pod.resources.pop("shared", None)  # a count of GPUs says nothing about it
    return {
        **fields,
        **_below(fields, "environment", pod.environment),
        **_below(fields, "resources", pod.resources),
        **_before(fields, "storage", pod.storage),
        **_before(fields, "secrets", pod.secrets),
        **({"pod": _joined(pod.pod, fields.get("pod"))} if pod.pod else {}),
    }


def beside_job(task: TaskConfig | None) -> dict[str, str]:
    """Variables of trackers that are set on the task, for `allaboard.backends.base.Plan`. The job's own go
    before them.
    """
    items = _mappings(task.env) if task is not None else ()
    return {item["name"]: item["value"] for item in items if _is_beside(item)}


def _is_beside(variable: Mapping[Any, Any]) -> bool:
    """Return whether it is plain, of a tracker, and no secret, which nobody's record may hold."""
    name, value = variable.get("name"), variable.get("value")
    if not isinstance(name, str) or not isinstance(value, str) or "valueFrom" in variable:
        return False
    return begins_a_run(name) and not is_secret(name, value)


class _Job:
    """Statements of a job and its groups. The fields are not checked yet."""

    def __init__(self, fields: Mapping[str, Any]) -> None:
        groups = [group for group in _fields(fields.get("groups")).values() if isinstance(group, Mapping)]
        engine = _engine_of(fields)
        self.fields, self.each = fields, [fields, *groups]
        self.specs = [_fields(_fields(part.get("pod")).get("spec")) for part in self.each]
        self.trains = [
            container
            for spec in self.specs
            for container in _mappings(spec.get("containers"))
            if container.get("name") in (engine.CONTAINER, *engine.ALIASES)
        ]

    def variables(self) -> dict[str, Any]:
        """The job's own variables; None for those of its pods, and of single groups."""
        of_groups = dict.fromkeys(name for part in self.each[1:] for name in _fields(part.get("environment")))
        of_pods = {
            str(item.get("name")): None
            for container in self.trains
            for item in _mappings(container.get("env"))
        }
        return {**of_groups, **of_pods, **_fields(self.fields.get("environment"))}

    def amounts(self) -> dict[str, Any]:
        """Amounts by the name of their resource; ``gpu`` stands for each way to say GPUs."""
        stated: dict[str, Any] = {}
        for part in reversed(self.each):
            resources = _fields(part.get("resources"))
            stated |= {name: resources[name] for name in ("cpu", "memory") if name in resources}
            counted = next((name for name in _GPU_COUNTS if name in resources), None)
            stated |= {} if counted is None else {"gpu": resources[counted]}
            stated |= _fields(resources.get("devices"))
        for container in self.trains:
            for side in _fields(container.get("resources")).values():
                stated |= {_kind(name): amount for name, amount in _fields(side).items()}
        return stated

    def mounts(self) -> dict[str, str | None]:
        """The claim behind each path; None for any other source."""
        mounts = [mount for container in self.trains for mount in _mappings(container.get("volumeMounts"))]
        of_pods = {_path(mount.get("mountPath")): None for mount in mounts}
        of_secrets = {_path(item.get("mount")): None for item in _mappings(self.fields.get("secrets"))}
        of_storage = {
            _path(item.get("mount")): item.get("pvc") for item in _mappings(self.fields.get("storage"))
        }
        return {**of_pods, **of_secrets, **of_storage}

    def volumes(self) -> set[str]:
        """The names of the volumes of its pods."""
        return {str(item.get("name")) for spec in self.specs for item in _mappings(spec.get("volumes"))}

    def node_labels(self) -> dict[str, Any]:
        """The labels that nodes must have."""
        stated: dict[str, Any] = {}
        for part, spec in zip(reversed(self.each), reversed(self.specs), strict=True):
            kind = _fields(part.get("resources")).get("gpu_type")
            if isinstance(kind, str):
                label, equals, value = kind.partition("=")
                stated |= {label: value} if equals else dict.fromkeys(GPU_LABELS, kind)
            stated |= _fields(spec.get("nodeSelector"))
        return stated


def _template(job: _Job, task: TaskConfig, tell: Tell) -> dict[str, Any]:
    """The pod template of what is set on the task and not said by the job; empty: nothing is."""
    mounts, volumes = _mounts(job, task, tell)
    container = {
        "env": _variables(job, task.env or [], tell),
        "resources": _resources(job, task.resources or {}, tell),
        "volumeMounts": mounts,
    }
    spec = {
        "volumes": volumes,
        "tolerations": task.tolerations,
        "nodeSelector": _node_selector(job, task.node_selector or {}, tell),
        "affinity": _affinity(job, task.affinity, tell),
    }
    stated = {name: value for name, value in container.items() if value}
    of_pod = {name: value for name, value in spec.items() if value}
    if not stated and not of_pod:
        return {}
    trains = {"name": _engine_of(job.fields).CONTAINER, **stated}
    return {"spec": {"containers": [trains], **of_pod}}


def _variables(job: _Job, given: Any, tell: Tell) -> Any:
    if not isinstance(given, list):
        return given
    stated, own = job.variables(), _fields(job.fields.get("environment"))
    kept = []
    for item in given:
        variable, name = _fields(item), str(_fields(item).get("name"))
        if name.startswith(_OF_THE_STEP) or {*_OF_ITS_POD} & {*_fields(variable.get("valueFrom"))}:
            continue
        if _is_beside(variable):
            continue
        # A plain variable of the task goes below those of single groups by itself.
        if name in own or (name in stated and "valueFrom" in variable):
            if "valueFrom" in variable or own.get(name) != variable.get("value"):
                tell(f"environment.{show(name, quote=False)}: the job and the task set it; the job's counts")
            continue
        kept.append(item)
    return kept


def _resources(job: _Job, given: Any, tell: Tell) -> Any:
    sides = _fields(given)
    if any(not isinstance(side, Mapping) for side in sides.values()):
        return given
    stated = job.amounts()
    # What a request says counts, as for the job.
    asked = {**_fields(sides.get("limits")), **_fields(sides.get("requests"))}
    for kind, amount in {_kind(name): amount for name, amount in asked.items()}.items():
        if kind in stated and str(stated[kind]) != str(amount):
            tell(_both(f"resources.{show(kind, quote=False)}", stated[kind], amount))
    kept = {
        side: {name: amount for name, amount in amounts.items() if _kind(name) not in stated}
        for side, amounts in sides.items()
    }
    return {side: amounts for side, amounts in kept.items() if amounts}


def _kind(resource: Any) -> str:
    """``gpu`` for GPUs in any form, else the name itself."""
    name = str(resource)
    return "gpu" if name.rpartition("/")[2] == "gpu" or gpus.profile_of(name) else name


def _node_selector(job: _Job, given: Any, tell: Tell) -> Any:
    if not isinstance(given, Mapping):
        return given
    stated = job.node_labels()
    for label, value in given.items():
        if label in stated and stated[label] != value:
            tell(_both(f"node selector {show(str(label), quote=False)}", stated[label], value))
    return {label: value for label, value in given.items() if label not in stated}


def _affinity(job: _Job, given: Any, tell: Tell) -> Any:
    stated = [spec["affinity"] for spec in job.specs if spec.get("affinity")]
    if given and stated:
        if stated[0] != given:
            tell("affinity: the job's pod and the task set it; the job's counts")
        return None
    return given


def _mounts(job: _Job, task: TaskConfig, tell: Tell) -> tuple[Any, Any]:
    """The mounts that the job does not say, and their volumes."""
    mounts, volumes = task.volume_mounts, task.volumes
    if not isinstance(mounts, list) or not isinstance(volumes, list):
        return mounts, volumes
    stated, taken = job.mounts(), job.volumes()
    claims = {
        str(item.get("name")): _fields(item.get("persistentVolumeClaim")) for item in _mappings(volumes)
    }
    left = []
    for mount in mounts:
        path = _path(_fields(mount).get("mountPath"))
        if path not in stated:
            left.append(mount)
        elif stated[path] is None or stated[path] != claims.get(str(mount.get("name")), {}).get("claimName"):
            tell(f"mount {show(path, quote=False)}: the job and the task set it; the job's counts")
    dropped = {str(m.get("name")) for m in _mappings(mounts)} - {str(m.get("name")) for m in _mappings(left)}
    kept = [volume for volume in volumes if str(_fields(volume).get("name")) not in dropped]
    return [_renamed(item, taken) for item in left], [_renamed(item, taken) for item in kept]


def _renamed(item: Any, taken: set[str]) -> Any:
    """A volume, or its mount, under a name that no volume of the job has."""
    name = str(_fields(item).get("name"))
    return {**item, "name": f"task-{name}"} if name in taken else item


def _both(subject: str, of_job: Any, of_task: Any) -> str:
    job, task = (show(str(value), quote=False) for value in (of_job, of_task))
    return f"{subject}: the job says {job}, the task {task}; the job's counts"


def _below(fields: Mapping[str, Any], name: str, given: Mapping[str, Any]) -> dict[str, Any]:
    """A mapping of the job with what the task adds."""
    own = fields.get(name) or {}
    return {name: {**given, **own}} if given and isinstance(own, Mapping) else {}


def _before(fields: Mapping[str, Any], name: str, given: Sequence[Any]) -> dict[str, Any]:
    """A list of the job with what the task adds."""
    own = fields.get(name) or []
    return {name: [*given, *own]} if given and isinstance(own, list) else {}


def _joined(under: Any, over: Any) -> Any:
    """A `pod` that does what both do: items of lists that are merged stand one after the other."""
    if over is None:
        return under
    if not isinstance(under, Mapping) or not isinstance(over, Mapping) or _REPLACE.items() <= over.items():
        return over
    joined = {**under, **over}
    for name in {*under} & {*over}:
        below, above = under[name], over[name]
        if isinstance(below, Mapping) and isinstance(above, Mapping):
            joined[name] = _joined(below, above)
        elif isinstance(below, list) and isinstance(above, list) and (name in MERGE_KEYS or name in UNITED):
            joined[name] = above if _REPLACE in above else [*below, *above]
    return joined


def _engine_of(fields: Mapping[str, Any]) -> Engine:
    """The engine that a job names, else its framework's own."""
    named, framework = str(fields.get("engine")), str(fields.get("framework", "pytorch"))
    return ENGINES.get(named) or BY_FRAMEWORK.get(framework, BY_FRAMEWORK["pytorch"])[0]


def _fields(value: Any) -> Mapping[Any, Any]:
    return value if isinstance(value, Mapping) else {}


def _mappings(value: Any) -> Iterator[Mapping[Any, Any]]:
    return (item for item in value if isinstance(item, Mapping)) if isinstance(value, list) else iter(())


def _path(value: Any) -> str:
    return str(value).rstrip("/")
