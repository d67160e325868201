"""TrainJob, trainer.kubeflow.org/v1alpha1: Kubeflow Trainer 2.0 to 2.3.

Read from Kubeflow Trainer 2.3.0: pkg/apis/trainer/v1alpha1, pkg/runtime, pkg/webhooks. A TrainJob names a
runtime, the template of a JobSet, and says little itself. A job brings a TrainingRuntime of its own, which
says what a TrainJob cannot: gang, priority, volumes, restarts, clean-up. It has one of three shapes:

- Equal members of a framework that Trainer knows are its ``node`` job, whose numbers the TrainJob says.
  Trainer injects its own variables (PET_*, JAX_*, DMLC_*); those of the framework's v1 operator stand beside
  them, so that a script that ran as a PyTorchJob runs on.
- Members of MPI are a ``launcher`` and a ``node`` job, the workers. Trainer makes the key pair and the
  hostfile.
- All other gangs are the replicated jobs of a `jobset`, of which Trainer changes nothing.

A job may name a runtime of the cluster instead (``engine_spec: {runtimeRef: {name: torch-distributed}}``).
That runtime says restarts, scheduling and the rest; what a job adds to its pods goes into runtimePatches
(Trainer 2.2) or podTemplateOverrides (Trainer 2.1), and what cannot be patched is refused. Trainer 2.0 cannot
label the pods of such a runtime, by which a run is followed, so that there a job brings its own.

What `allaboard.engines.jobset` says of restarts and the end counts here, too. The deadline is that of the
TrainJob, from its creation or last resume (Trainer 2.2 and later).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterator, Mapping, Sequence
from dataclasses import replace
from itertools import accumulate
from typing import TYPE_CHECKING, Any, Self

from allaboard.engines import mpi
from allaboard.engines.base import TRAINER, Address, JobSeen, Operator, Rules
from allaboard.engines.jobset import (
    PORT,
    JobSet,
    connected,
    failure_policy,
    job_spec,
    spec_of,
    symbolic_environment,
    with_environment,
    with_members,
)
from allaboard.engines.jobset_reading import (
    COMPLETION_INDEX,
    CONTAINER,
    ROLE_LABEL,
    completion_index,
    member_name,
    member_of,
    needed,
    seen_job,
    templates_of,
    told_groups,
)
from allaboard.engines.mpijob import slots_of
from allaboard.errors import Problem

if TYPE_CHECKING:
    from allaboard.conversion.values import Conversion
    from allaboard.engines import Engine
    from allaboard.gangs.base import GangPlan
    from allaboard.layout import Layout

Json = Mapping[str, Any]
RUNTIME = "TrainingRuntime"
NODE = "node"
STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
MANAGER = "allaboard.io/job"
"""Who patches a runtime of the cluster on behalf of a job."""
POLICIES: Mapping[str, str] = {"pytorch": "torch", "jax": "jax", "xgboost": "xgboost"}
"""Framework -> the policy by which Trainer prepares its members."""
_RANK: Json = {"fieldRef": {"fieldPath": f"metadata.annotations['{COMPLETION_INDEX}']"}}
INJECTED = frozenset(
    {"PET_MASTER_ADDR", "PET_MASTER_PORT", "PET_NNODES", "PET_NODE_RANK", "PET_NPROC_PER_NODE"}
    | {"JAX_NUM_PROCESSES", "JAX_PROCESS_ID", "JAX_COORDINATOR_ADDRESS"}
    | {"DMLC_NUM_WORKER", "DMLC_TASK_ID", "DMLC_TRACKER_PORT", "DMLC_TRACKER_URI"}
)
"""What Trainer's policies inject; a TrainJob that says one of them itself is refused."""

CHANGES = frozenset({"podTemplateOverrides", "runtimePatches"})
"""Fields by which a TrainJob changes its runtime; a release of Trainer has one of them at most."""
DEADLINE = "activeDeadlineSeconds"
GRACE = "terminationGracePeriodSeconds"
_WRONG: Json = {"runtimeRef": {"name": "allaboard-probe-is-not-there"}}


def _runtime_spec(template: Json) -> dict[str, Any]:
    """The spec of a runtime that says this of the pods of its nodes."""
    jobs = [{"name": NODE, "template": {"spec": {"template": template}}}]
    return {"template": {"spec": {"replicatedJobs": jobs}}}


class TrainJob(JobSet):
    """`allaboard.engines.Engine` for TrainJobs."""

    NAME = "trainjob"
    KIND = "TrainJob"
    API_VERSION = "trainer.kubeflow.org/v1alpha1"
    PLURAL = "trainjobs"
    FIELDS = frozenset(
        {
            "activeDeadlineSeconds",
            "initializer",
            "managedBy",
            "runtimePatches",
            "runtimeRef",
            "suspend",
            "trainer",
        }
    )
    PREFERENCE = TRAINER
    EXTRA_KINDS: tuple[str, ...] = (f"{API_VERSION}/{RUNTIME}",)
    # Trainer makes the dependents of a TrainJob anew while it is there, also while it is being deleted.
    PROPAGATION = "Background"
    OPERATOR = Operator(
        "trainer",
        "Trainer v2",
        "kubeflow-system",
        (
            "kubectl apply --server-side -k "
            '"https://github.com/kubeflow/trainer.git/manifests/overlays/manager?ref=v2.3.0"',
            "kubectl apply --server-side -k "
            '"https://github.com/kubeflow/trainer.git/manifests/overlays/runtimes?ref=v2.3.0"',
        ),
    )
    TAKES_IN = CHANGES | mpi.FIELDS
    PROBE: Json | None = _WRONG
    ENDS: Mapping[str, str] = {}
    MAY_LACK: Mapping[str, Mapping[str, Any]] = {
        "TrainJob": {
            DEADLINE: 60,
            "podTemplateOverrides": [],
            "runtimePatches": [
                {"manager": MANAGER, "trainingRuntimeSpec": _runtime_spec({"spec": {GRACE: 30}})}
            ],
        },
        RUNTIME: {"mlPolicy": {"jax": {}, "xgboost": {}}},
    }

    def __init__(self, lacking: Collection[str] = ()) -> None:
        self.lacking = frozenset(lacking)

    def fitted(self, lacking: Collection[str]) -> Self:
        """The engine as the release of Trainer allows it whose definitions lack these fields."""
        return type(self)(lacking)

    # Down.

    def brings_image(self, layout: Layout) -> bool:
        """Whether members have an image although the job names none: that of a runtime of the cluster."""
        return _runtime_of_cluster(layout.engine_spec) is not None

    def objections(self, job: Json) -> Iterator[Problem]:
        """What about a job's sound fields this engine cannot do as it is written."""
        own = job.get("engine_spec") or {}
        if _runtime_of_cluster(own) is not None:
            yield from _unpatchable(job, self.lacking)
        elif "initializer" in own:
            words = "the runtime has its jobs, and this job names none; say engine_spec.runtimeRef.name, too"
            yield Problem("engine_spec.initializer", words)
        if DEADLINE in self.lacking and (job.get("policy") or {}).get("deadline") is not None:
            words = "the TrainJobs of this cluster have none; update Trainer to 2.2, or take it out"
            yield Problem("policy.deadline", words)
        yield from mpi.only_open_mpi(job, self.KIND)
        if "ttl" in (job.get("policy") or {}):
            # A JobSet that its own ttl removes is made anew, and trains again (kubeflow/trainer#2981, #3737).
            words = "a TrainJob stays until somebody deletes it (allaboard delete); take it out"
            yield Problem("policy.ttl", words, severity="warning")
        yield from super().objections(job)

    def render(
        self, layout: Layout, metadata: Json, templates: Mapping[str, Json], gang: GangPlan
    ) -> dict[str, Any]:
        """The job object. ``templates``: the pod template of each role."""
        own = with_members(metadata, layout)
        head = {"apiVersion": self.API_VERSION, "kind": self.KIND, "metadata": own}
        if _runtime_of_cluster(layout.engine_spec) is not None:
            return {**head, "spec": _patching_spec(layout, templates, self.lacking)}
        runtime = {"apiGroup": "trainer.kubeflow.org", "kind": RUNTIME, "name": metadata["name"]}
        spec: dict[str, Any] = {"runtimeRef": runtime}
        if layout.framework == mpi.FRAMEWORK:
            spec["trainer"] = _mpi_numbers(layout)
        elif (node := _node_template(layout, templates, self.lacking)) is not None:
            spec["trainer"] = _trainer(layout, node)
        return {**head, "spec": {**spec, **_limits(layout)}}

    def extras(
        self, layout: Layout, metadata: Json, templates: Mapping[str, Json], gang: GangPlan
    ) -> Sequence[Json]:
        """The runtime, which has the job's name; none where the job names one of the cluster."""
        if _runtime_of_cluster(layout.engine_spec) is not None:
            return []
        # The deadline is the TrainJob's own, which has a timer.
        layout = replace(layout, policy=replace(layout.policy, deadline=None))
        told = {role: {**t, "metadata": with_members(t["metadata"], layout)} for role, t in templates.items()}
        node = _node_template(layout, told, self.lacking)
        policy: dict[str, Any] = {"numNodes": layout.total}
        if layout.framework == mpi.FRAMEWORK:
            policy, spec = _mpi_policy(layout), _mpi_jobset(layout, told, gang)
        elif node is not None:
            policy, spec = {**policy, POLICIES[layout.framework]: {}}, _node_jobset(layout, node)
        else:
            spec = spec_of(layout, told, gang)
        body = {"mlPolicy": policy, "template": {"spec": spec}}
        own = {"name": metadata["name"], "namespace": metadata["namespace"]}
        return [{"apiVersion": self.API_VERSION, "kind": RUNTIME, "metadata": own, "spec": body}]

    def templates(self, job: Json, extras: Sequence[Json]) -> Iterator[tuple[str, int, Json]]:
        """Of the runtime that the job brings, with what the job itself says of its nodes."""
        trainer = (job.get("spec") or {}).get("trainer") or {}
        runtime = next((extra for extra in extras if extra.get("kind") == RUNTIME), {})
        spec = ((runtime.get("spec") or {}).get("template") or {}).get("spec") or {}
        if not spec:  # of a runtime of the cluster is known what the job says of its nodes
            spec = {"replicatedJobs": [{"name": NODE, "template": {"spec": {"template": _bare_node()}}}]}
        for role, count, template in templates_of(spec):
            if role != NODE:
                yield role, count, template
                continue
            nodes = int(trainer.get("numNodes") or count)
            groups = _of_nodes(told_groups(job.get("metadata") or {}) or {NODE: nodes})
            for group, number in groups.items():
                yield group, number, _as_trained(template, trainer)

    def to_job(self, obj: Json, others: Sequence[Json]) -> Conversion:
        """The job that a TrainJob says; its runtime, and how that is patched, stand in ``engine_spec``."""
        from allaboard.conversion.trainjobs import job_of_trainjob

        return job_of_trainjob(self, obj, others)

    # Up.

    def read(self, job: Json | None, pods: Sequence[Json]) -> JobSeen:
        """What the job object and its pods say."""
        spec, status = (job or {}).get("spec") or {}, (job or {}).get("status") or {}
        groups = told_groups((job or {}).get("metadata") or {})
        if groups is None:  # of others: a runtime may say the number, and it is not read here
            named = int((spec.get("trainer") or {}).get("numNodes") or 1) if job is not None else 0
            groups = {NODE: named}
        return seen_job(job, status, groups, pods, bool(spec.get("suspend")), _member_of)

    def needed(self, job: Json) -> int:
        """All, but of an elastic gang the least number."""
        return needed(job, self.read(job, ()).total)

    def member_of(self, pod: Json) -> str | None:
        """The member whose pod this is, by its place among the nodes: ``worker-0``; ``node-0`` of others."""
        return member_name(_member_of(pod))

    # The operator, for the local backend.

    def rules(self, layout: Layout) -> Rules:
        """Those of its JobSet; a TrainJob has no ttl."""
        rules = super().rules(layout)
        return replace(rules, policy=replace(rules.policy, ttl=None))

    def reason(self, condition: str, layout: Layout) -> str | None:
        """Those of its JobSet, which a TrainJob copies, but for what it says itself. It does not say that it
        restarts.
        """
        own = {"Suspended": "Suspended", "Resumed": "Resumed", "Restarting": None}
        return own[condition] if condition in own else super().reason(condition, layout)


# Down.


def _node_template(
    layout: Layout, templates: Mapping[str, Json], lacking: Collection[str]
) -> dict[str, Any] | None:
    """The one pod template of a gang whose members are equal; None: they are not, or Trainer has no policy
    for them.
    """
    policy = POLICIES.get(layout.framework)
    if policy is None or policy in lacking or layout.elastic is not None:
        return None
    plain = [_without_identity(templates[group.role]) for group in layout.groups]
    return plain[0] if all(one == plain[0] for one in plain) else None


def _runtime_of_cluster(engine_spec: Json) -> Json | None:
    """The runtime that a job names."""
    runtime = engine_spec.get("runtimeRef")
    return runtime if isinstance(runtime, Mapping) else None


PATCHABLE = frozenset(
    {"affinity", "containers", "imagePullSecrets", "initContainers", "nodeSelector", "schedulingGates"}
    | {"securityContext", "serviceAccountName", GRACE, "tolerations", "volumes"}
)
"""Fields of a pod that a TrainJob may change in its runtime."""
PATCHABLE_OF_CONTAINERS = frozenset({"env", "name", "securityContext", "volumeMounts"})
_NOT_IN_OVERRIDES = frozenset({"securityContext", GRACE})
"""What podTemplateOverrides lack of both."""
_BY_TRAINER = frozenset({"args", "command", "image", "resources"})
"""What a TrainJob says of the container that trains beside what it may change in any."""
_BY_RUNTIME = "the runtime says it, and this job names one of the cluster; take it out"


def _with_overrides(engine_spec: Json, lacking: Collection[str]) -> bool:
    """Whether a TrainJob changes its runtime with podTemplateOverrides."""
    return "podTemplateOverrides" in engine_spec or "runtimePatches" in lacking


def _unknown(engine_spec: Json, lacking: Collection[str]) -> frozenset[str]:
    """Fields of pods and of containers that the way by which a TrainJob changes its runtime does not have."""
    by_overrides = _with_overrides(engine_spec, lacking)
    return frozenset({*lacking, *(_NOT_IN_OVERRIDES if by_overrides else ())})


def _unpatchable(job: Json, lacking: Collection[str]) -> Iterator[Problem]:
    """What a job says that no TrainJob can change in a runtime of the cluster."""
    own = job.get("engine_spec") or {}
    if {*lacking} >= CHANGES:
        words = "this Trainer (2.0) cannot label the pods of a runtime, by which a run is followed; "
        yield Problem("engine_spec.runtimeRef", f"{words}leave it out, or update Trainer")
    for name in sorted(CHANGES & {*lacking} & {*own}):
        yield Problem(f"engine_spec.{name}", "this release of Trainer has no such field")
    unknown = _unknown(own, lacking)
    if GRACE in unknown and (job.get("spot") or {}).get("grace") is not None:
        yield Problem("spot.grace", _BY_RUNTIME)
    yield from _unpatchable_pod(job.get("pod") or {}, unknown)
    policy = job.get("policy") or {}
    for name in ("restart", "backoff_limit"):
        if name in policy:
            yield Problem(f"policy.{name}", _BY_RUNTIME, severity="warning")
    for name in ("code", "elastic"):
        if job.get(name):
            yield Problem(name, _BY_RUNTIME)
    if job.get("framework") == mpi.FRAMEWORK:
        words = "a launcher and its workers bring a runtime of their own; take it out"
        yield Problem("engine_spec.runtimeRef", words)
    for n, secret in enumerate(job.get("secrets") or ()):
        if isinstance(secret, Mapping) and secret.get("env"):
            words = "a TrainJob cannot say envFrom; mount it, or have the runtime say it"
            yield Problem(f"secrets[{n}].env", words)
    for name in ("scheduler", "priority"):
        if (job.get("gang") or {}).get(name) not in (None, "auto", "none"):
            yield Problem(f"gang.{name}", _BY_RUNTIME)
    for role, group in (job.get("groups") or {}).items():
        if isinstance(group, Mapping) and {*group} - {"replicas"}:
            yield Problem(f"groups.{role}", "the nodes of a runtime are equal; say it of the whole job")


def _unpatchable_pod(pod: Json, unknown: Collection[str]) -> Iterator[Problem]:
    """What `pod` says that no TrainJob can; ``unknown``: what its release does not know."""
    spec = pod.get("spec")
    for name in spec if isinstance(spec, Mapping) else ():
        if name not in PATCHABLE or name in unknown:
            yield Problem(f"pod.spec.{name}", _BY_RUNTIME)
    for kind in ("containers", "initContainers"):
        listed = spec.get(kind) if isinstance(spec, Mapping) else ()
        for n, container in enumerate(listed if isinstance(listed, list) else ()):
            if not isinstance(container, Mapping):
                continue
            trains = kind == "containers" and container.get("name") in {CONTAINER, *JobSet.ALIASES}
            for name in sorted({*container} - PATCHABLE_OF_CONTAINERS - (_BY_TRAINER if trains else set())):
                words = "a TrainJob changes env, securityContext and volumeMounts of a runtime's container, "
                yield Problem(f"pod.spec.{kind}[{n}].{name}", f"{words}and no more; have the runtime say it")
            if "securityContext" in {*container} & {*unknown}:
                yield Problem(f"pod.spec.{kind}[{n}].securityContext", _BY_RUNTIME)


def _limits(layout: Layout) -> dict[str, Any]:
    """Of a TrainJob itself. Trainer 2.2 and later know the deadline."""
    policy = layout.policy
    deadline = {} if policy.deadline is None else {"activeDeadlineSeconds": math.ceil(policy.deadline)}
    return {"suspend": policy.suspend, **deadline}


def _patching_spec(layout: Layout, templates: Mapping[str, Json], lacking: Collection[str]) -> dict[str, Any]:
    """The spec of a TrainJob that patches a runtime of the cluster; without ``runtimeRef`` and what else the
    job says in `engine_spec`.
    """
    node = _without_identity(templates[layout.groups[0].role])
    node = with_environment(node, _node_environment(layout), _RANK, always=True)
    known = PATCHABLE - _unknown(layout.engine_spec, lacking)
    main, pod = _main(node), {n: v for n, v in node["spec"].items() if n in known}
    trainer = {name: main[name] for name in ("image", "command", "args") if main.get(name)}
    trainer["env"] = [variable for variable in main["env"] if variable["name"] not in INJECTED]
    trainer["numNodes"] = layout.total
    if (layout.processes_per_member or "").isdecimal():
        trainer["numProcPerNode"] = int(layout.processes_per_member or 1)
    if main.get("resources"):
        trainer["resourcesPerNode"] = main["resources"]
    kept = {name: main[name] for name in ("volumeMounts", "securityContext") if main.get(name)}
    others = [container for container in node["spec"]["containers"] if container is not main]
    pod["containers"] = [*([{"name": CONTAINER, **kept}] if kept else ()), *others]
    pod = {name: value for name, value in pod.items() if value}
    metadata = with_members(node["metadata"], layout)
    spec = {"trainer": trainer, **_limits(layout)}
    if _with_overrides(layout.engine_spec, lacking):
        own = {"targetJobs": [{"name": NODE}], "metadata": metadata, "spec": pod}
        said = layout.engine_spec.get("podTemplateOverrides") or ()
        return {**spec, "podTemplateOverrides": [*said, own]}
    patch = {"manager": MANAGER, "trainingRuntimeSpec": _runtime_spec({"metadata": metadata, "spec": pod})}
    return {**spec, "runtimePatches": [*(layout.engine_spec.get("runtimePatches") or ()), patch]}


def _bare_node() -> dict[str, Any]:
    """A pod template of the nodes of a runtime that is not known."""
    return {"spec": {"containers": [{"name": CONTAINER}]}}


def _without_identity(template: Json) -> dict[str, Any]:
    """A pod template without the name of a member: that is its place among the nodes, and the groups."""
    containers = [
        {**c, "env": [v for v in c["env"] if v["name"] not in ("ALLABOARD_INDEX", "ALLABOARD_MEMBER")]}
        if c["name"] == CONTAINER
        else c
        for c in template["spec"]["containers"]
    ]
    return {**template, "spec": {**template["spec"], "containers": containers}}


def _node_environment(layout: Layout) -> dict[str, str]:
    """What the framework's v1 operator would inject into each node, and Trainer does not."""
    hosts = {member.name: f"{layout.name}-{NODE}-0-{member.rank}" for member in layout.members}
    place = {name: Address(f"{host}.{layout.name}", PORT) for name, host in hosts.items()}
    return {
        name: value.replace("$(ALLABOARD_INDEX)", "$(ALLABOARD_RANK)")
        for name, value in symbolic_environment(layout, layout.groups[0].role, place).items()
        if name not in INJECTED
    }


def _node_jobset(layout: Layout, node: Json) -> dict[str, Any]:
    """The spec of a JobSet with one job of equal nodes, whose index is their rank. Where the framework's own
    operator lets a master decide, its end is that of the job, too.
    """
    template = with_environment(_stripped(layout, node), _node_environment(layout), _RANK, always=True)
    spec = job_spec(layout, template)
    if layout.group("master") is not None:
        spec = {"successPolicy": {"rules": [{"succeededIndexes": "0"}]}, **spec}
    job = {"metadata": {"labels": {STEP_LABEL: "trainer"}}, "spec": spec}
    return {"replicatedJobs": [{"name": NODE, "template": job}], **failure_policy(layout)}


def _of_nodes(groups: Mapping[str, int]) -> dict[str, int]:
    """Those whose members are nodes: a launcher is a job of its own."""
    return {role: count for role, count in groups.items() if role != mpi.LAUNCHER}


def _mpi_policy(layout: Layout) -> dict[str, Any]:
    """The policy by which Trainer makes the key pair and the hostfile. Its ``numNodes`` is the number of pods
    of the launcher (core/trainingruntime.go, newRuntimeInfo).
    """
    numbers = {"numProcPerNode": slots_of(layout), "mpiImplementation": "OpenMPI"}
    return {
        "numNodes": 1,
        "mpi": {**numbers, "sshAuthMountPath": _UNUSED, "runLauncherAsNode": _launcher_works(layout)},
    }


_UNUSED = "/etc/mpi-ssh"
"""Where Trainer mounts the key pair. With its mode, 0640, root's ssh refuses the key: members have a mount of
ours, too.
"""


def _launcher_works(layout: Layout) -> bool:
    return layout.engine_spec.get("runLauncherAsWorker") is True


def _mpi_numbers(layout: Layout) -> dict[str, int]:
    """``spec.trainer``; a launcher that works is one of the nodes (plugins/mpi/mpi.go, EnforceMLPolicy)."""
    workers = layout.total - 1
    nodes = workers + _launcher_works(layout)
    return {"numNodes": max(1, nodes), "numProcPerNode": slots_of(layout)}


def _mpi_jobset(layout: Layout, templates: Mapping[str, Json], gang: GangPlan) -> dict[str, Any]:
    """The spec of a JobSet with a launcher, whose workers are the pods of one job."""
    spec = spec_of(layout, connected(layout, templates), gang)
    jobs = {job["name"]: job for job in spec["replicatedJobs"]}
    if mpi.WORKER in jobs:
        jobs[mpi.WORKER] = _as_nodes(jobs[mpi.WORKER])
    launcher = jobs[mpi.LAUNCHER]
    labels = {"metadata": {"labels": {STEP_LABEL: "trainer"}}}
    jobs[mpi.LAUNCHER] = {**launcher, "template": {**labels, **launcher["template"]}}
    if "dependsOn" in launcher:
        jobs[mpi.LAUNCHER]["dependsOn"] = [{"name": NODE, "status": "Ready"}]
    return {**spec, "replicatedJobs": [*jobs.values()]}


def _as_nodes(workers: Json) -> dict[str, Any]:
    """The Jobs of workers as one of as many pods, whose number is their index."""
    job, count = workers["template"]["spec"], workers["replicas"]
    pod = job["template"]
    containers = [
        {**c, "env": [{**v, "valueFrom": _RANK} if v["name"] == "ALLABOARD_INDEX" else v for v in c["env"]]}
        if c["name"] == CONTAINER
        else c
        for c in pod["spec"]["containers"]
    ]
    template = {**pod, "spec": {**pod["spec"], "containers": containers}}
    spec = {**job, "parallelism": count, "completions": count, "template": template}
    return {"name": NODE, "replicas": 1, "template": {"spec": spec}}


def _main(template: Json) -> Json:
    return next(c for c in template["spec"]["containers"] if c["name"] == CONTAINER)


def _trainer(layout: Layout, node: Json) -> dict[str, Any]:
    """``spec.trainer``: what a TrainJob says of its nodes."""
    main, injected = _main(node), {*INJECTED, *_node_environment(layout)}
    own = [name for name in layout.groups[0].environment if name not in injected]
    trainer = {name: main[name] for name in ("image", "command", "args") if main.get(name)}
    trainer["env"] = [variable for variable in main["env"] if variable["name"] in own]
    trainer["numNodes"] = layout.total
    if layout.framework == "pytorch" and (processes := _processes(layout)) is not None:
        trainer["numProcPerNode"] = processes
    if main.get("resources"):
        trainer["resourcesPerNode"] = main["resources"]
    return {name: value for name, value in trainer.items() if value}


def _processes(layout: Layout) -> int | None:
    """Processes of each node; None: one for each GPU. Of a node without a GPU Trainer would start one for
    each core.
    """
    said = layout.processes_per_member or "auto"
    if said.isdecimal():
        return int(said)
    return None if any(group.needs.gpu or group.needs.mig for group in layout.groups) else 1


def _stripped(layout: Layout, node: Json) -> dict[str, Any]:
    """The template without what the TrainJob itself says."""
    own = layout.groups[0].environment
    containers = [
        {
            name: [v for v in value if v["name"] not in own] if name == "env" else value
            for name, value in c.items()
            if name not in ("image", "command", "args", "resources")
        }
        if c["name"] == CONTAINER
        else c
        for c in node["spec"]["containers"]
    ]
    return {**node, "spec": {**node["spec"], "containers": containers}}


def _as_trained(template: Json, trainer: Json) -> dict[str, Any]:
    """The template of a node as Trainer makes it of the runtime and the TrainJob."""
    said = {name: trainer[name] for name in ("image", "command", "args") if trainer.get(name)}
    if trainer.get("resourcesPerNode"):
        said["resources"] = trainer["resourcesPerNode"]
    containers = [
        {**c, **said, "env": [*(c.get("env") or ()), *(trainer.get("env") or ())]}
        if c["name"] == CONTAINER
        else c
        for c in template["spec"]["containers"]
    ]
    return {**template, "spec": {**template["spec"], "containers": containers}}


# Up.


def _member_of(pod: Json) -> tuple[str, int] | None:
    """The role and index of a pod. Of a node of ours they follow from its rank."""
    metadata = pod.get("metadata") or {}
    rank, groups = completion_index(pod), _of_nodes(told_groups(metadata) or {})
    if (metadata.get("labels") or {}).get(ROLE_LABEL) != NODE or rank is None or not groups:
        return member_of(pod)
    ends = accumulate(groups.values())
    for (role, count), end in zip(groups.items(), ends, strict=True):
        if rank < end:
            return role, rank - (end - count)
    return NODE, rank


ENGINE: Engine = TrainJob()
