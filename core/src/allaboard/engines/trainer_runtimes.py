"""Runtimes of Trainer that a cluster has: what a TrainJob changes in one, and what no TrainJob can change.

Read from Kubeflow Trainer 2.3.0: pkg/apis/trainer/v1alpha1/trainjob_types.go, pkg/runtime/core,
pkg/runtime/framework/plugins (jobset, mpi).

- What a TrainJob says of its trainer goes to the job of the runtime that trains: ``node``, or, of a runtime
  of MPI, ``launcher``. Everything else about pods goes into patches, job by job.
- A runtime of MPI has both. Its workers are ``node``, with the image of the runtime. Where it says
  ``runLauncherAsNode`` the launcher is one of the nodes, and resources and variables are those of all; else
  they are the launcher's alone. There is one worker at least.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator, Mapping
from typing import TYPE_CHECKING, Any

from allaboard.engines import mpi
from allaboard.engines.jobset import FRAMEWORKS
from allaboard.engines.jobset_reading import CONTAINER
from allaboard.errors import Problem

if TYPE_CHECKING:
    from allaboard.runs.layout import Layout

Json = Mapping[str, Any]
NODE = "node"
MANAGER = "allaboard.io/job"
"""Name of the manager that patches a runtime on behalf of a job."""
INJECTED = frozenset(
    {"PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE"}
    | {"JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"}
    | {"DMLC_NUM_WORKER", "DMLC_TASK_ID", "DMLC_TRACKER_PORT", "DMLC_TRACKER_URI"}
    | {"OMPI_MCA_orte_default_hostfile", "OMPI_MCA_orte_keep_fqdn_hostnames"}
    | {"OMPI_MCA_orte_set_default_slots", "OMPI_MCA_plm_rsh_args"}
)
"""Variables that Trainer's policies inject; a TrainJob that says one of them itself is refused."""
CHANGES = frozenset({"podTemplateOverrides", "runtimePatches"})
"""Fields by which a TrainJob changes its runtime; a release of Trainer has one of them at most."""
GRACE = "terminationGracePeriodSeconds"
PATCHABLE = frozenset(
    {"affinity", "containers", "imagePullSecrets", "initContainers", "nodeSelector", "schedulingGates"}
    | {"securityContext", "serviceAccountName", GRACE, "tolerations", "volumes"}
)
"""Fields of a pod that a TrainJob may change in its runtime."""
PATCHABLE_OF_CONTAINERS = frozenset({"env", "name", "securityContext", "volumeMounts"})
_NOT_IN_OVERRIDES = frozenset({"securityContext", GRACE})
"""Fields of both that podTemplateOverrides lack."""
_BY_TRAINER = frozenset({"args", "command", "image", "resources"})
"""Fields of the container that trains in a TrainJob, beside those that it may change in any."""
_BY_RUNTIME = "the runtime says it, and this job names one of the cluster; take it out"
SHM = "/dev/shm"
_SETTINGS = mpi.FIELDS - {"runLauncherAsWorker"}
"""Settings of MPI that a runtime has and a TrainJob cannot change."""


def runtime_of_cluster(engine_spec: Json) -> Json | None:
    """The runtime that a job names."""
    runtime = engine_spec.get("runtimeRef")
    return runtime if isinstance(runtime, Mapping) else None


def patch_of(templates: Mapping[str, Json]) -> dict[str, Any]:
    """The change of a runtime. ``templates``: replicated job -> what is said of its pods."""
    jobs = [
        {"name": name, "template": {"spec": {"template": template}}} for name, template in templates.items()
    ]
    return {
        "manager": MANAGER,
        "trainingRuntimeSpec": {"template": {"spec": {"replicatedJobs": jobs}}},
    }


def _with_overrides(engine_spec: Json, lacking: Collection[str]) -> bool:
    """True if a TrainJob changes its runtime with podTemplateOverrides."""
    return "podTemplateOverrides" in engine_spec or "runtimePatches" in lacking


def _unknown(engine_spec: Json, lacking: Collection[str]) -> frozenset[str]:
    """Fields of pods and of containers that the way by which a TrainJob changes its runtime does not have."""
    by_overrides = _with_overrides(engine_spec, lacking)
    return frozenset({*lacking, *(_NOT_IN_OVERRIDES if by_overrides else ())})


# What is refused.


def objections(job: Json, lacking: Collection[str]) -> Iterator[Problem]:
    """Problems of fields that no TrainJob can change in a runtime of the cluster."""
    own = job.get("engine_spec") or {}
    if {*lacking} >= CHANGES:
        message = "this Trainer (2.0) cannot label the pods of a runtime, by which a run is followed; "
        yield Problem("engine_spec.runtimeRef", f"{message}leave it out, or update Trainer")
    for name in sorted(CHANGES & {*lacking} & {*own}):
        yield Problem(f"engine_spec.{name}", "this release of Trainer has no such field")
    unknown = _unknown(own, lacking)
    if GRACE in unknown and (job.get("spot") or {}).get("grace") is not None:
        yield Problem("spot.grace", _BY_RUNTIME)
    yield from _of_pod(job.get("pod"), "pod", unknown)
    policy = job.get("policy") or {}
    for name in ("restart", "backoff_limit"):
        if name in policy:
            yield Problem(f"policy.{name}", _BY_RUNTIME, severity="warning")
    for name in ("code", "packages", "elastic", "host_network", "image_pull_policy"):
        if job.get(name):
            yield Problem(name, _BY_RUNTIME)
    if "securityContext" in unknown and job.get("security"):
        yield Problem("security", _BY_RUNTIME)
    if (job.get("resources") or {}).get("device_class") is not None:
        yield Problem("resources.device_class", _BY_RUNTIME)
    for n, secret in enumerate(job.get("secrets") or ()):
        if isinstance(secret, Mapping) and secret.get("env"):
            message = "a TrainJob cannot say envFrom; mount it, or have the runtime say it"
            yield Problem(f"secrets[{n}].env", message)
    for name in ("scheduler", "priority"):
        if (job.get("gang") or {}).get(name) not in (None, "auto", "none"):
            yield Problem(f"gang.{name}", _BY_RUNTIME)
    if job.get("framework") == mpi.FRAMEWORK:
        yield from _of_mpi(job, unknown)
        return
    for role, group in (job.get("groups") or {}).items():
        if isinstance(group, Mapping) and {*group} - {"replicas"}:
            yield Problem(f"groups.{role}", "the nodes of a runtime are equal; say it of the whole job")


def _of_mpi(job: Json, unknown: Collection[str]) -> Iterator[Problem]:
    """Problems of a launcher and its workers."""
    own, groups = job.get("engine_spec") or {}, job.get("groups") or {}
    for name in sorted(_SETTINGS & {*own}):
        yield Problem(f"engine_spec.{name}", _BY_RUNTIME)
    launcher_works = own.get("runLauncherAsWorker") is True
    if groups and mpi.WORKER not in groups:
        yield Problem("groups", "Trainer makes one worker at least of a runtime of MPI; add worker: 1")
    if job.get("image"):
        message = "a TrainJob changes the launcher's image alone; workers have that of the runtime"
        yield Problem("image", message, severity="warning")
    if job.get("resources") and not launcher_works:
        message = (
            "a TrainJob says them of the launcher alone, unless that is a node, too; where the runtime has "
            "runLauncherAsNode say engine_spec.runLauncherAsWorker: true, else groups.launcher.resources"
        )
        yield Problem("resources", message)
    of_launcher = {"replicas", "pod", "image", "command", "args"} | (
        set() if launcher_works else {"environment", "resources"}
    )
    for role, may in ((mpi.LAUNCHER, of_launcher), (mpi.WORKER, {"replicas", "pod"})):
        group = groups.get(role)
        for name in sorted({*group} - may) if isinstance(group, Mapping) else ():
            message = "a TrainJob cannot say it of these members alone; say it of the whole job, or have the "
            yield Problem(f"groups.{role}.{name}", f"{message}runtime say it")
        if isinstance(group, Mapping):
            at = f"groups.{role}.pod"
            yield from _of_pod(group.get("pod"), at, unknown, trains=role == mpi.LAUNCHER)


def _of_pod(pod: Any, at: str, unknown: Collection[str], *, trains: bool = True) -> Iterator[Problem]:
    """Problems of fields in `pod` that no TrainJob has. ``unknown``: fields that its release does not know;
    ``trains``: the TrainJob has the command of these members.
    """
    spec = pod.get("spec") if isinstance(pod, Mapping) else None
    for name in spec if isinstance(spec, Mapping) else ():
        if name not in PATCHABLE or name in unknown:
            yield Problem(f"{at}.spec.{name}", _BY_RUNTIME)
    for kind in ("containers", "initContainers"):
        listed = spec.get(kind) if isinstance(spec, Mapping) else ()
        for n, container in enumerate(listed if isinstance(listed, list) else ()):
            if not isinstance(container, Mapping):
                continue
            main = kind == "containers" and container.get("name") in {CONTAINER, *FRAMEWORKS}
            may = PATCHABLE_OF_CONTAINERS | (_BY_TRAINER if main and trains else set())
            for name in sorted({*container} - may):
                message = (
                    "a TrainJob changes env, securityContext and volumeMounts of a runtime's container, "
                )
                yield Problem(
                    f"{at}.spec.{kind}[{n}].{name}", f"{message}and no more; have the runtime say it"
                )
            if "securityContext" in {*container} & {*unknown}:
                yield Problem(f"{at}.spec.{kind}[{n}].securityContext", _BY_RUNTIME)


# What is written.


def without_identity(template: Json) -> dict[str, Any]:
    """A pod template without the name of a member: that is its place among the nodes, and the groups."""
    containers = [
        {**c, "env": [v for v in c["env"] if v["name"] not in ("ALLABOARD_INDEX", "ALLABOARD_MEMBER")]}
        if c["name"] == CONTAINER
        else c
        for c in template["spec"]["containers"]
    ]
    return {**template, "spec": {**template["spec"], "containers": containers}}


def main_container(template: Json) -> Json:
    """The container that trains."""
    return next(c for c in template["spec"]["containers"] if c["name"] == CONTAINER)


def patching_spec(
    layout: Layout, templates: Mapping[str, Json], numbers: Json, lacking: Collection[str]
) -> dict[str, Any]:
    """The spec of a TrainJob that changes a runtime; without ``runtimeRef`` and what else the job says in
    `engine_spec`. ``templates``: replicated job -> the template of its pods, the one that trains first;
    ``numbers``: those of ``spec.trainer``.
    """
    known = PATCHABLE - _unknown(layout.engine_spec, lacking)
    main = main_container(next(iter(templates.values())))
    trainer = {name: main[name] for name in ("image", "command", "args") if main.get(name)}
    trainer["env"] = [variable for variable in main["env"] if variable["name"] not in INJECTED]
    trainer |= numbers
    if main.get("resources"):
        trainer["resourcesPerNode"] = main["resources"]
    written = {name: layout.engine_spec[name] for name in CHANGES & {*layout.engine_spec}}
    if SHM in _mounted(written):
        templates = {name: _without_shm(template) for name, template in templates.items()}
    changed = {name: _patched(template, known) for name, template in templates.items()}
    if _with_overrides(layout.engine_spec, lacking):
        patches = layout.engine_spec.get("podTemplateOverrides") or ()
        own = [{"targetJobs": [{"name": name}], **change} for name, change in changed.items()]
        return {"trainer": trainer, "podTemplateOverrides": [*patches, *own]}
    patches = layout.engine_spec.get("runtimePatches") or ()
    return {"trainer": trainer, "runtimePatches": [*patches, patch_of(changed)]}


def _mounted(value: Any) -> Iterator[str]:
    """The paths of all mounts in changes that a job writes itself."""
    if isinstance(value, Mapping):
        if isinstance(path := value.get("mountPath"), str):
            yield path.rstrip("/")
        value = list(value.values())
    for item in value if isinstance(value, list) else ():
        yield from _mounted(item)


def _without_shm(template: Json) -> dict[str, Any]:
    """Without the memory that is mounted at /dev/shm where nobody mounts another there."""
    main, spec = main_container(template), template["spec"]
    mounts = [mount for mount in main.get("volumeMounts") or () if mount["mountPath"] != SHM]
    names = {mount["name"] for mount in mounts}
    containers = [{**c, "volumeMounts": mounts} if c is main else c for c in spec["containers"]]
    volumes = [v for v in spec.get("volumes") or () if v["name"] != "shm" or v["name"] in names]
    return {**template, "spec": {**spec, "containers": containers, "volumes": volumes}}


def _patched(template: Json, known: Collection[str]) -> dict[str, Any]:
    """Part of a template that the trainer does not say."""
    main, pod = main_container(template), {n: v for n, v in template["spec"].items() if n in known}
    kept = {name: main[name] for name in ("volumeMounts", "securityContext") if main.get(name)}
    if "securityContext" not in known:
        kept.pop("securityContext", None)
    others = [container for container in template["spec"]["containers"] if container is not main]
    pod["containers"] = [*([{"name": CONTAINER, **kept}] if kept else ()), *others]
    pod = {name: value for name, value in pod.items() if value}
    return {"metadata": template["metadata"], "spec": pod}


# What is known of its pods.


def known_templates(trainer: Json, groups: Mapping[str, int]) -> Iterator[tuple[str, int, Json]]:
    """(role, number, pod template) of members of a runtime, of which is known what the TrainJob says.
    ``groups``: role -> number.
    """
    workers = groups.get(mpi.WORKER, 0)
    launcher_works = mpi.LAUNCHER in groups and int(trainer.get("numNodes") or 0) > workers
    of_all = ("env", "resourcesPerNode") if launcher_works else ()
    bare = {"spec": {"containers": [{"name": CONTAINER}]}}
    for role, count in groups.items():
        idle = mpi.LAUNCHER in groups and role != mpi.LAUNCHER
        yield (
            role,
            count,
            as_trained(bare, {n: trainer[n] for n in of_all if n in trainer} if idle else trainer),
        )


def as_trained(template: Json, trainer: Json) -> dict[str, Any]:
    """The template of a node as Trainer makes it of the runtime and the TrainJob."""
    settings = {name: trainer[name] for name in ("image", "command", "args") if trainer.get(name)}
    if trainer.get("resourcesPerNode"):
        settings["resources"] = trainer["resourcesPerNode"]
    containers = [
        {**c, **settings, "env": [*(c.get("env") or ()), *(trainer.get("env") or ())]}
        if c["name"] == CONTAINER
        else c
        for c in template["spec"]["containers"]
    ]
    return {**template, "spec": {**template["spec"], "containers": containers}}
