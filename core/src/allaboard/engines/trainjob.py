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

from allaboard.engines import mpi, trainer_runtimes
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
from allaboard.engines.trainer_runtimes import (
    CHANGES,
    GRACE,
    INJECTED,
    NODE,
    as_trained,
    known_templates,
    main_container,
    patch_of,
    patching_spec,
    runtime_of_cluster,
    without_identity,
)
from allaboard.errors import Problem

if TYPE_CHECKING:
    from allaboard.engines import Engine
    from allaboard.engines.reading.values import Conversion
    from allaboard.gangs.base import GangPlan
    from allaboard.runs.layout import Layout

Json = Mapping[str, Any]
RUNTIME = "TrainingRuntime"
DEADLINE = "activeDeadlineSeconds"
STEP_LABEL = "trainer.kubeflow.org/trainjob-ancestor-step"
POLICIES: Mapping[str, str] = {"pytorch": "torch", "jax": "jax", "xgboost": "xgboost"}
"""Framework -> the policy by which Trainer prepares its members."""
_RANK: Json = {"fieldRef": {"fieldPath": f"metadata.annotations['{COMPLETION_INDEX}']"}}
_WRONG: Json = {"runtimeRef": {"name": "allaboard-probe-is-not-there"}}


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
    )
    TAKES_IN = CHANGES | mpi.FIELDS
    PROBE: Json | None = _WRONG
    ENDS: Mapping[str, str] = {}
    MAY_LACK: Mapping[str, Mapping[str, Any]] = {
        "TrainJob": {
            DEADLINE: 60,
            "podTemplateOverrides": [],
            "runtimePatches": [patch_of({NODE: {"spec": {GRACE: 30}}})],
        },
        RUNTIME: {"mlPolicy": {"jax": {}, "xgboost": {}}},
    }

    def __init__(self, lacking: Collection[str] = ()) -> None:
        self.lacking = frozenset(lacking)

    def fitted(self, lacking: Collection[str]) -> Self:
        """The engine as the release of Trainer allows it whose definitions lack these fields."""
        return type(self)(lacking)

    # Down.

    def brings_scheduler(self, layout: Layout) -> bool:
        """True if a runtime of the cluster chooses the scheduler."""
        return runtime_of_cluster(layout.engine_spec) is not None

    def brings_image(self, layout: Layout) -> bool:
        """True if members have an image although the job names none: that of a runtime of the cluster."""
        return runtime_of_cluster(layout.engine_spec) is not None

    def objections(self, job: Json) -> Iterator[Problem]:
        """Problems of a valid job's fields that this engine cannot do as they are written."""
        own = job.get("engine_spec") or {}
        if runtime_of_cluster(own) is not None:
            yield from trainer_runtimes.objections(job, self.lacking)
        elif "initializer" in own:
            message = (
                "the runtime has its jobs, and this job names none; say engine_spec.runtimeRef.name, too"
            )
            yield Problem("engine_spec.initializer", message)
        if DEADLINE in self.lacking and (job.get("policy") or {}).get("deadline") is not None:
            message = "the TrainJobs of this cluster have none; update Trainer to 2.2, or take it out"
            yield Problem("policy.deadline", message)
        yield from mpi.only_open_mpi(job, self.KIND)
        if "ttl" in (job.get("policy") or {}):
            # A JobSet that its own ttl removes is made anew, and trains again (kubeflow/trainer#2981, #3737).
            message = "a TrainJob stays until somebody deletes it (allaboard delete); take it out"
            yield Problem("policy.ttl", message, severity="warning")
        yield from super().objections(job)

    def render(
        self, layout: Layout, metadata: Json, templates: Mapping[str, Json], gang: GangPlan
    ) -> dict[str, Any]:
        """The job object. ``templates``: the pod template of each role."""
        own = with_members(metadata, layout)
        head = {"apiVersion": self.API_VERSION, "kind": self.KIND, "metadata": own}
        if runtime_of_cluster(layout.engine_spec) is not None:
            nodes, numbers = _nodes_of_runtime(layout, templates)
            spec = patching_spec(layout, nodes, numbers, self.lacking)
            return {**head, "spec": {**spec, **_limits(layout)}}
        runtime = {"apiGroup": "trainer.kubeflow.org", "kind": RUNTIME, "name": metadata["name"]}
        spec = {"runtimeRef": runtime}
        if layout.framework == mpi.FRAMEWORK:
            spec["trainer"] = {**_mpi_numbers(layout), "numProcPerNode": slots_of(layout)}
        elif (node := _node_template(layout, templates, self.lacking)) is not None:
            spec["trainer"] = _trainer(layout, node)
        return {**head, "spec": {**spec, **_limits(layout)}}

    def extras(
        self, layout: Layout, metadata: Json, templates: Mapping[str, Json], gang: GangPlan
    ) -> Sequence[Json]:
        """The runtime, which has the job's name; none where the job names one of the cluster."""
        if runtime_of_cluster(layout.engine_spec) is not None:
            return []
        # The deadline is the TrainJob's own, which has a timer.
        layout = replace(layout, policy=replace(layout.policy, deadline=None))
        marked = {
            role: {**t, "metadata": with_members(t["metadata"], layout)} for role, t in templates.items()
        }
        node = _node_template(layout, marked, self.lacking)
        policy: dict[str, Any] = {"numNodes": layout.total}
        if layout.framework == mpi.FRAMEWORK:
            policy, spec = _mpi_policy(layout), _mpi_jobset(layout, marked, gang)
        elif node is not None:
            policy, spec = {**policy, POLICIES[layout.framework]: {}}, _node_jobset(layout, node)
        else:
            spec = spec_of(layout, marked, gang)
        body = {"mlPolicy": policy, "template": {"spec": spec}}
        own = {"name": metadata["name"], "namespace": metadata["namespace"]}
        return [{"apiVersion": self.API_VERSION, "kind": RUNTIME, "metadata": own, "spec": body}]

    def templates(self, job: Json, extras: Sequence[Json]) -> Iterator[tuple[str, int, Json]]:
        """Of the runtime that the job brings, with what the job itself says of its nodes."""
        trainer = (job.get("spec") or {}).get("trainer") or {}
        runtime = next((extra for extra in extras if extra.get("kind") == RUNTIME), {})
        spec = ((runtime.get("spec") or {}).get("template") or {}).get("spec") or {}
        counts = told_groups(job.get("metadata") or {})
        if not spec:  # of a runtime of the cluster is known what the job says of its nodes
            yield from known_templates(trainer, counts or {NODE: int(trainer.get("numNodes") or 1)})
        for role, count, template in templates_of(spec):
            if role != NODE:
                yield role, count, template
                continue
            nodes = int(trainer.get("numNodes") or count)
            for group, number in _of_nodes(counts or {NODE: nodes}).items():
                yield group, number, as_trained(template, trainer)

    def to_job(self, obj: Json, others: Sequence[Json]) -> Conversion:
        """The job that a TrainJob says; its runtime, and how that is patched, stand in ``engine_spec``."""
        from allaboard.engines.reading.trainjobs import job_of_trainjob

        return job_of_trainjob(self, obj, others)

    # Up.

    def read(self, job: Json | None, pods: Sequence[Json]) -> JobSeen:
        """Read the job object and its pods."""
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


def _limits(layout: Layout) -> dict[str, Any]:
    """Of a TrainJob itself. Trainer 2.2 and later know the deadline."""
    policy = layout.policy
    deadline = {} if policy.deadline is None else {"activeDeadlineSeconds": math.ceil(policy.deadline)}
    return {"suspend": policy.suspend, **deadline}


def _nodes_of_runtime(
    layout: Layout, templates: Mapping[str, Json]
) -> tuple[dict[str, Json], dict[str, int]]:
    """Replicated job of a runtime of the cluster -> what the job says of its pods, the one that trains first;
    and the numbers of ``spec.trainer``.
    """
    own = {role: without_identity(template) for role, template in templates.items()}
    own = {
        role: {**template, "metadata": with_members(template["metadata"], layout)}
        for role, template in own.items()
    }
    processes = layout.processes_per_member or ""
    slots = {"numProcPerNode": int(processes)} if processes.isdecimal() else {}
    if layout.framework == mpi.FRAMEWORK:
        names = {mpi.LAUNCHER: mpi.LAUNCHER, NODE: mpi.WORKER}
        return {name: own[role] for name, role in names.items()}, {**_mpi_numbers(layout), **slots}
    node = with_environment(own[layout.groups[0].role], _node_environment(layout), _RANK, always=True)
    return {NODE: node}, {"numNodes": layout.total, **slots}


def _node_template(
    layout: Layout, templates: Mapping[str, Json], lacking: Collection[str]
) -> dict[str, Any] | None:
    """The one pod template of a gang whose members are equal; None: they are not, or Trainer has no policy
    for them.
    """
    policy = POLICIES.get(layout.framework)
    if policy is None or policy in lacking or layout.elastic is not None:
        return None
    plain = [without_identity(templates[group.role]) for group in layout.groups]
    return plain[0] if all(template == plain[0] for template in plain) else None


def _node_environment(layout: Layout) -> dict[str, str]:
    """Variables that the framework's v1 operator injects into each node, and Trainer does not."""
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
"""Folder in which Trainer mounts the key pair. With its mode, 0640, root's ssh refuses the key: members have
a mount of allaboard's, too.
"""


def _launcher_works(layout: Layout) -> bool:
    return layout.engine_spec.get("runLauncherAsWorker") is True


def _mpi_numbers(layout: Layout) -> dict[str, int]:
    """``spec.trainer``; a launcher that works is one of the nodes (plugins/mpi/mpi.go, EnforceMLPolicy)."""
    workers = layout.total - 1
    nodes = workers + _launcher_works(layout)
    return {"numNodes": max(1, nodes)}


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


def _trainer(layout: Layout, node: Json) -> dict[str, Any]:
    """``spec.trainer``: what a TrainJob says of its nodes."""
    main, injected = main_container(node), {*INJECTED, *_node_environment(layout)}
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
    processes = layout.processes_per_member or "auto"
    if processes.isdecimal():
        return int(processes)
    if claimed := [group.needs.gpus for group in layout.groups if group.needs.device_class]:
        return max(claimed)  # which Trainer does not see
    return None if any(group.needs.gpus for group in layout.groups) else 1


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
