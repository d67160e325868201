"""TrainJobs of others: what they say of their nodes becomes the fields of a job. Their runtime, its patches
and initializers stand in ``engine_spec`` as they are, and the job remains one of this kind.

Read from Kubeflow Trainer 2.0 to 2.3: pkg/apis/trainer/v1alpha1/trainjob_types.go.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any, Protocol

from allaboard.engines.reading.pods import job_fields, note_paths, read_pods
from allaboard.engines.reading.values import Conversion, Reading, duration, identity, is_ours, plain
from allaboard.text.names import one_of

_KEPT = ("initializer", "managedBy", "podSpecOverrides", "podTemplateOverrides", "runtimePatches")
_POLICIES = {"torch": "pytorch", "jax": "jax", "xgboost": "xgboost", "mpi": "mpi", "flux": "flux"}
"""Policy of a runtime -> the framework that it prepares."""
_NAMES = {**_POLICIES, "deepspeed": "mpi", "mlx": "mpi", "tensorflow": "tensorflow", "paddle": "paddle"}
"""Word in the name of a runtime -> framework."""
_AT = "spec.trainer.spec.containers[0]"
_ROLE = "worker"


class Kind(Protocol):
    """Methods of the engine that reading needs."""

    KIND: str
    NAME: str
    FRAMEWORKS: tuple[str, ...]
    CONTAINER: str


def job_of_trainjob(kind: Kind, obj: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Conversion:
    """The job that a TrainJob says. ``others``: objects of the same text, its runtime perhaps among them.
    Raises BadInput with every problem and its path.
    """
    reading = Reading()
    job = identity(reading, obj)
    spec = reading.mapping(obj.get("spec"), "spec")
    if is_ours(obj):
        reading.wrong(
            "metadata.annotations", "allaboard made this TrainJob; convert the job of its run instead"
        )
    reference = reading.mapping(spec.pop("runtimeRef", None), "spec.runtimeRef")
    name = reading.text(reference.get("name"), "spec.runtimeRef.name")
    if not name and not reading.problems:
        reading.wrong("spec.runtimeRef.name", "is missing; a TrainJob names its runtime")
    runtime = _runtime(others, name)
    framework = _framework(reading, kind, runtime, name or "")
    trainer = reading.mapping(spec.pop("trainer", None), "spec.trainer")
    job |= {"framework": framework, "engine": kind.NAME, "engine_spec": {"runtimeRef": plain(reference)}}
    if framework == "mpi":
        launcher_works = _launcher_works(reading, runtime, name or "")
        if launcher_works:
            job["engine_spec"]["runLauncherAsWorker"] = True
        job |= _launcher_and_workers(reading, trainer, runtime, launcher_works)
        job |= _processes(reading, trainer)
        _nodes(reading, kind, trainer, job)
        if not launcher_works:
            own = {field: job.pop(field) for field in ("environment", "resources") if field in job}
            job["groups"]["launcher"] = own or 1
    else:
        job |= {"workers": _number_of_nodes(reading, trainer, runtime), **_processes(reading, trainer)}
        _nodes(reading, kind, trainer, job)
    policy: dict[str, Any] = {}
    deadline = reading.whole(spec.pop("activeDeadlineSeconds", None), "spec.activeDeadlineSeconds", 1)
    if deadline is not None:
        policy["deadline"] = duration(deadline)
    if reading.flag(spec.pop("suspend", None), "spec.suspend"):
        policy["suspend"] = True
    job["policy"] = policy
    reading.paths |= {"policy.deadline": "spec.activeDeadlineSeconds", "policy.suspend": "spec.suspend"}
    for field in _KEPT:
        if field in spec:
            job["engine_spec"][field] = plain(spec.pop(field))
    reading.paths["engine_spec"] = "spec"
    reading.lose_rest(trainer, "spec.trainer", "a trainer has no such field")
    reading.lose_rest(spec, "spec", f"a {kind.KIND} of Trainer 2.3 has no such field")
    reading.problems = [replace(problem, path=_moved(problem.path)) for problem in reading.problems]
    reading.raise_problems(f"this {kind.KIND}")
    return _with_moved_paths(reading.conversion(job))


def _runtime(others: Sequence[Mapping[str, Any]], name: str | None) -> Mapping[str, Any]:
    """The spec of the runtime of this name, where it stands beside the job."""
    for other in others:
        metadata, spec = other.get("metadata"), other.get("spec")
        is_runtime = str(other.get("kind")).endswith("TrainingRuntime")
        if is_runtime and isinstance(metadata, Mapping) and metadata.get("name") == name:
            return spec if isinstance(spec, Mapping) else {}
    return {}


def _framework(reading: Reading, kind: Kind, runtime: Mapping[str, Any], name: str) -> str:
    """That of the runtime's policy, else by its name, as those that Trainer ships have it."""
    policy = runtime.get("mlPolicy")
    policies = [word for word in (policy if isinstance(policy, Mapping) else {}) if word in _POLICIES]
    named = [framework for word, framework in _NAMES.items() if word in name]
    framework = _POLICIES[policies[0]] if policies else named[0] if named else None
    if framework is None:
        reason = "the runtime is not known here; a job says its framework, and torch is the usual one"
        reading.change("spec.runtimeRef.name", name, "pytorch", reason)
        return "pytorch"
    if framework not in kind.FRAMEWORKS:
        names = one_of(kind.FRAMEWORKS)
        message = f"a runtime of {framework}; of TrainJobs this version converts those of {names}"
        reading.wrong("spec.runtimeRef.name", message)
    return framework


def _number_of_nodes(reading: Reading, trainer: dict[str, Any], runtime: Mapping[str, Any]) -> int:
    """``numNodes``, or that of the runtime."""
    nodes = reading.whole(trainer.pop("numNodes", None), "spec.trainer.numNodes")
    if nodes is None:
        policy = runtime.get("mlPolicy")
        usual = policy.get("numNodes") if isinstance(policy, Mapping) else None
        nodes = _told(reading, _positive(usual))
    return max(1, nodes)


def _told(reading: Reading, number: int) -> int:
    """The number of a runtime."""
    reason = "a job says the number of its members; where nothing is written it is the runtime's"
    reading.change("spec.trainer.numNodes", None, number, reason)
    return number


def _positive(number: Any) -> int:
    """The number that a runtime says, or 1."""
    return number if isinstance(number, int) and not isinstance(number, bool) and number > 0 else 1


def _launcher_works(reading: Reading, runtime: Mapping[str, Any], name: str) -> bool:
    """True if the launcher is one of the nodes of a runtime of MPI."""
    policy = runtime.get("mlPolicy")
    of_mpi = policy.get("mpi") if isinstance(policy, Mapping) else None
    if isinstance(of_mpi, Mapping):
        return of_mpi.get("runLauncherAsNode") is True
    reason = (
        "the runtime is not known here, and those that Trainer ships say runLauncherAsNode; where this one "
        "does not, take engine_spec.runLauncherAsWorker out"
    )
    reading.change("spec.runtimeRef.name", name, "runLauncherAsWorker: true", reason)
    return True


def _launcher_and_workers(
    reading: Reading, trainer: dict[str, Any], runtime: Mapping[str, Any], launcher_works: bool
) -> dict[str, Any]:
    """``groups``. Of several nodes one is the launcher, where that works, and there is always one beside it
    (plugins/mpi/mpi.go, EnforceMLPolicy).
    """
    nodes = reading.whole(trainer.pop("numNodes", None), "spec.trainer.numNodes")
    if nodes is None:
        nodes = _told(reading, _positive(_parallelism_of_nodes(runtime)) + launcher_works)
    return {"groups": {"launcher": 1, "worker": max(1, nodes - launcher_works)}}


def _parallelism_of_nodes(runtime: Mapping[str, Any]) -> Any:
    """Number of workers of a runtime of MPI; None: it does not say it."""
    spec: Any = runtime
    for field in ("template", "spec", "replicatedJobs"):
        spec = spec.get(field) if isinstance(spec, Mapping) else None
    for job in spec if isinstance(spec, list) else ():
        own = job if isinstance(job, Mapping) and job.get("name") == "node" else None
        for field in ("template", "spec", "parallelism"):
            own = own.get(field) if isinstance(own, Mapping) else None
        if own is not None:
            return own
    return None


def _processes(reading: Reading, trainer: dict[str, Any]) -> dict[str, Any]:
    """``processes_per_member``."""
    processes = trainer.pop("numProcPerNode", None)
    if isinstance(processes, str) and processes in ("auto", "cpu", "gpu"):  # Trainer 2.0 and 2.1
        return {"processes_per_member": processes}
    number = reading.whole(processes, "spec.trainer.numProcPerNode", 1)
    return {} if number is None else {"processes_per_member": number}


def _nodes(reading: Reading, kind: Kind, trainer: dict[str, Any], job: dict[str, Any]) -> None:
    """The rest of what it says of its nodes, which is what a container says."""
    container = {"name": kind.CONTAINER}
    for field, of_container in (
        ("image", "image"), ("command", "command"), ("args", "args"), ("env", "env"),
        ("resourcesPerNode", "resources"),
    ):  # fmt: skip
        if field in trainer:
            container[of_container] = trainer.pop(field)
    template = {"spec": {"containers": [container]}}
    pods = read_pods(reading, {_ROLE: (template, "spec.trainer")}, kind.CONTAINER)
    shared, own = job_fields(pods)
    job |= shared
    note_paths(reading, pods, own)


def _moved(path: str) -> str:
    """The path of a field of a container, as a trainer has it."""
    path = path.replace(f"{_AT}.resources", "spec.trainer.resourcesPerNode")
    return path.replace(_AT, "spec.trainer")


def _with_moved_paths(made: Conversion) -> Conversion:
    return replace(
        made,
        changed=tuple(replace(change, path=_moved(change.path)) for change in made.changed),
        lost=tuple(replace(loss, path=_moved(loss.path)) for loss in made.lost),
        paths={field: _moved(path) for field, path in made.paths.items()},
    )
