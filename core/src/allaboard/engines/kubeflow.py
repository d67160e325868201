"""Code of all kinds of kubeflow.org/v1: the run policy is written; conditions, replica counts and members are
read. Values in, values out.

Read from the Training Operator 1.9.4: pkg/apis/kubeflow.org/v1/common_types.go, pkg/controller.v1/common. A
status may be absent, and so may every field of it; a zero counter is left out. Pods are identified by the
operator's labels.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Self

from allaboard.engines.base import V1, AddedContainer, Counts, JobSeen, Operator, Rules
from allaboard.engines.conditions import with_condition
from allaboard.errors import Problem
from allaboard.job.helper import as_start_error
from allaboard.job.training_job import UNLIMITED, member_count
from allaboard.text.names import OBJECT_NAME_MAX
from allaboard.text.units import from_rfc3339

if TYPE_CHECKING:  # `allaboard check` asks the engines, and reads no status
    from allaboard.engines.reading.values import Conversion, Reading
    from allaboard.gangs.base import GangPlan
    from allaboard.runs.layout import Layout
    from allaboard.runs.observation import Condition, MemberSeen

RoleOf = Callable[[Mapping[str, Any]], tuple[str, int] | None]
JOB_LABEL = "training.kubeflow.org/job-name"
ROLE_LABEL = "training.kubeflow.org/replica-type"
INDEX_LABEL = "training.kubeflow.org/replica-index"
OPERATOR = Operator(
    "training-operator",
    "Training Operator v1",
    "kubeflow",
    exact=True,
)
RESTART = {"never": "Never", "on_failure": "OnFailure", "always": "Always", "exit_code": "ExitCode"}
CLEAN = {"none": "None", "running": "Running", "all": "All"}
_QUIET = frozenset({"Completed", "Error", "ContainerCreating", "PodInitializing"})
"""Reasons of containers that say nothing that the phase and the exit code do not."""


class KubeflowEngine:
    """An engine of kubeflow.org/v1 (`allaboard.engines.Engine`). A kind says KIND, FRAMEWORKS, ROLES,
    CONTAINER, SPECS (the field of its replica map), INJECTED (the variables that its operator sets) and what
    differs. OWN_FIELDS: further fields of its spec; PROBE_ROLE: the replica type of the probe;
    DEFAULT_REPLICAS: how many members a role has that does not say it, where that is not 1.
    """

    KIND: str
    FRAMEWORKS: tuple[str, ...]
    ROLES: Mapping[str, int | None]
    CONTAINER: str
    SPECS: str
    INJECTED: frozenset[str]
    OWN_FIELDS: frozenset[str] = frozenset()
    PROBE_ROLE = "Worker"
    HELPERS: frozenset[str] = frozenset()
    IDLE: frozenset[str] = frozenset()
    SPARED: frozenset[str] = frozenset()
    DEFAULT_REPLICAS: Mapping[str, int] = {}
    ELASTIC = False
    DEFAULT_RESTART = "never"
    ADDED: tuple[AddedContainer, ...] = ()
    EXTRA_KINDS: tuple[str, ...] = ()
    TAKES_IN: frozenset[str] = frozenset()
    PLAYED: frozenset[str] = frozenset()
    MAY_LACK: Mapping[str, Mapping[str, Any]] = {}
    PROPAGATION = "Foreground"
    LOST_POD_FAILS = False
    """True if a lost pod that its kubelet would restart fails the job."""
    NAMES_NAMESPACE: bool | None = None
    """True if the operator names the namespace in Running and Succeeded; None: if there is no master."""
    API_VERSION = "kubeflow.org/v1"
    DEFAULT_BACKOFF: int | None = None
    """Meaning of an absent backoffLimit; None: no limit."""
    PREFERENCE = V1
    ALIASES: frozenset[str] = frozenset()
    JOB_LABEL = JOB_LABEL
    RANDOM_NAMES = False
    OPERATOR = OPERATOR
    NATIVELY = frozenset({"coscheduling", "volcano"})
    """Gang schedulers for which --gang-scheduler-name makes PodGroups."""
    REFUSES: Mapping[str, str] = {}

    def __init__(self) -> None:
        self.NAME = self.KIND.lower()
        self.PLURAL = f"{self.NAME}s"
        self.FIELDS = frozenset({self.SPECS, "runPolicy", *self.OWN_FIELDS})
        self.ENDS: Mapping[str, str] = {f"{self.KIND}Succeeded": "succeeded", f"{self.KIND}Failed": "failed"}
        # The container has another name than the operator's webhook asks for.
        template = {"spec": {"containers": [{"name": "probe", "image": "probe"}]}}
        self.PROBE: Mapping[str, Any] | None = {
            self.SPECS: {self.PROBE_ROLE: {"replicas": 1, "template": template}}
        }

    def fitted(self, lacking: Collection[str]) -> Self:
        """The engine itself: what it writes every release knows."""
        return self

    # Down.

    def roles(self, framework: str) -> Mapping[str, int | None]:
        """Those of the kind."""
        return self.ROLES

    def helpers(self, framework: str) -> frozenset[str]:
        """Those of the kind."""
        return self.HELPERS

    def idle(self, framework: str) -> frozenset[str]:
        """Those of the kind."""
        return self.IDLE

    def is_elastic(self, framework: str) -> bool:
        """True if the operator tells members about others that come and go."""
        return self.ELASTIC

    def default_restart(self, framework: str) -> str:
        """The operator's own default."""
        return self.DEFAULT_RESTART

    def brings_scheduler(self, layout: Layout) -> bool:
        """No: the job names it."""
        return False

    def starts_in_order(self, layout: Layout) -> str | None:
        """None: its operator makes all members at once."""
        return None

    def brings_image(self, layout: Layout) -> bool:
        """No: the job names it."""
        return False

    def default_restart_of(self, role: str) -> str:
        """That of replicas which do not say one."""
        return self.DEFAULT_RESTART

    def default_replicas(self, role: str) -> int:
        """Of a role that does not say how many."""
        return 1

    def name_max(self, groups: Mapping[str, int], engine_spec: Mapping[str, Any]) -> int:
        """Longest name that leaves room for every member's name, which is its Service's, too."""
        return OBJECT_NAME_MAX

    def groups_of(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """As written, else of so many workers."""
        return job.get("groups") or self.default_groups(member_count(job), job.get("elastic") is not None)

    def default_groups(self, workers: int, elastic: bool) -> Mapping[str, int]:
        """Workers alone."""
        return {"worker": workers}

    def objections(self, job: Mapping[str, Any]) -> Iterator[Problem]:
        """Problems of a valid job's fields that this engine cannot do as they are written."""
        if "processes_per_member" in job:
            message = (
                f"{self.KIND} starts one process for each member; take it out, or start more in the command"
            )
            yield Problem("processes_per_member", message)
        if self.LOST_POD_FAILS and (job.get("policy") or {}).get("restart") in ("on_failure", "always"):
            message = (
                "a pod that is lost with its node fails the whole job, because this operator starts such "
                "pods again with exit_code alone"
            )
            yield Problem("policy.restart", message, severity="warning")
        yield from overridden(job, self.INJECTED)

    def render(
        self,
        layout: Layout,
        metadata: Mapping[str, Any],
        templates: Mapping[str, Mapping[str, Any]],
        gang: GangPlan,
    ) -> dict[str, Any]:
        """The job object. ``templates``: the pod template of each role."""
        spec = {"runPolicy": run_policy(layout, gang), self.SPECS: replica_specs(layout, templates)}
        return {"apiVersion": self.API_VERSION, "kind": self.KIND, "metadata": dict(metadata), "spec": spec}

    def extras(
        self,
        layout: Layout,
        metadata: Mapping[str, Any],
        templates: Mapping[str, Mapping[str, Any]],
        gang: GangPlan,
    ) -> Sequence[Mapping[str, Any]]:
        """None."""
        return ()

    def secrets_of(self, layout: Layout) -> Collection[str]:
        """None that a pod template names: what an operator adds to its pods is its own."""
        return ()

    def templates(
        self, job: Mapping[str, Any], extras: Sequence[Mapping[str, Any]]
    ) -> Iterator[tuple[str, int, Mapping[str, Any]]]:
        """Of the replica map, each with the restart policy that the operator writes into its pods."""
        for name, group in ((job.get("spec") or {}).get(self.SPECS) or {}).items():
            policy = group.get("restartPolicy") or RESTART[self.DEFAULT_RESTART]
            template = group["template"]
            spec = {**template["spec"], "restartPolicy": "Never" if policy == "ExitCode" else policy}
            replicas = _replicas(name, group, self.DEFAULT_REPLICAS)
            yield name.lower(), replicas, {**template, "spec": spec}

    def index_label(self, role: str) -> str | None:
        """The operator's."""
        return INDEX_LABEL

    def to_job(self, obj: Mapping[str, Any], others: Sequence[Mapping[str, Any]]) -> Conversion:
        """The job that an object of this kind says."""
        from allaboard.engines.reading.replicas import job_of_replicas

        return job_of_replicas(self, obj, self.take_own_fields)

    def take_own_fields(
        self, reading: Reading, spec: dict[str, Any], job: dict[str, Any], groups: Mapping[str, int]
    ) -> None:
        """Moves what its kind alone has from the spec of an object to the fields of a job; ``groups``: role
        -> how many. What is left of OWN_FIELDS goes to ``engine_spec`` as it is.
        """

    def suspension(self, wanted: bool) -> dict[str, Any]:
        """The merge patch that suspends a job or resumes it."""
        return {"spec": {"runPolicy": {"suspend": wanted}}}

    # Up.

    def read(self, job: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]]) -> JobSeen:
        """Read the job object and its pods."""
        return read_job(job, pods, specs=self.SPECS, roles=tuple(self.ROLES), container=self.CONTAINER)

    def needed(self, job: Mapping[str, Any]) -> int:
        """Number of members that start together: that of the operator's gang, else all."""
        policy = ((job.get("spec") or {}).get("runPolicy") or {}).get("schedulingPolicy") or {}
        return int(policy["minAvailable"]) if policy.get("minAvailable") else self.read(job, ()).total

    def added(self, job: Mapping[str, Any], role: str) -> tuple[AddedContainer, ...]:
        """The init containers that the operator adds to the members of a role."""
        return self.ADDED

    def managed_by(self, job: Mapping[str, Any]) -> str | None:
        """``runPolicy.managedBy``."""
        manager = ((job.get("spec") or {}).get("runPolicy") or {}).get("managedBy")
        return str(manager) if manager else None

    def pod_name(self, job: str, member: str) -> str:
        """Of a member; its Service has the same name."""
        return f"{job}-{member}"

    def member_of(self, pod: Mapping[str, Any]) -> str | None:
        """The member whose pod this is: ``worker-0``; None for one that the operator did not make."""
        who = role_of_pod(pod)
        return None if who is None else f"{who[0]}-{who[1]}"

    # The operator, for the local backend.

    def files(self, layout: Layout, hosts: Mapping[str, str]) -> Mapping[str, str]:
        """None."""
        return {}

    def rules(self, layout: Layout) -> Rules:
        """The policy of the job; each member is restarted by itself."""
        return Rules(layout.policy)

    def with_condition(self, conditions: tuple[Condition, ...], new: Condition) -> tuple[Condition, ...]:
        """The conditions after the operator has set this one."""
        return with_condition(conditions, new)

    def reason(self, condition: str, layout: Layout) -> str | None:
        """The kind and the condition; a limit is one more way to fail."""
        return f"{self.KIND}{'Failed' if condition in ('BackoffLimit', 'Deadline') else condition}"

    def message(self, condition: str, job: str, *, master: bool, role: str = "", count: int = 0) -> str:
        """The operator's own words for a condition (its namespace, where it prints one, is ``default``)."""
        is_qualified = not master if self.NAMES_NAMESPACE is None else self.NAMES_NAMESPACE
        kind, who = self.KIND, replica_type(role)
        named = f"{kind} default/{job}" if is_qualified else f"{kind} {job}"
        done = "successfully completed." if is_qualified else "is successfully completed."
        return {
            "Created": f"{kind} {job} is created.",
            "Running": f"{named} is running.",
            "Succeeded": f"{named} {done}",
            "Restarting": f"{kind} {job} is restarting because {count} {who} replica(s) failed.",
            "Failed": f"{kind} {job} is failed because {count} {who} replica(s) failed.",
            "Suspended": f"{kind} {job} is suspended.",
            "Resumed": f"{kind} {job} is resumed.",
            "BackoffLimit": f"Job {job} has failed because it has reached the specified backoff limit",
            "Deadline": f"Job {job} has failed because it was active longer than specified deadline",
        }[condition]


# Down.


def overridden(job: Mapping[str, Any], injected: Collection[str]) -> Iterator[Problem]:
    """The variables of a job that its operator sets, too."""
    written = [("environment", job.get("environment"))]
    for role, group in (job.get("groups") or {}).items():
        if isinstance(group, Mapping):
            written.append((f"groups.{role}.environment", group.get("environment")))
    for at, variables in written:
        for name in variables or {}:
            if name in injected:
                message = "the operator sets it, and its value wins; take it out"
                yield Problem(f"{at}.{name}", message, severity="warning")


def run_policy(layout: Layout, gang: GangPlan) -> dict[str, Any]:
    """``runPolicy``. What the operator would leave unlimited or running on is always written out, unless the
    job says that it means that. ``schedulingPolicy`` may be the job's own, in `engine_spec`.
    """
    policy = layout.policy
    written: dict[str, Any] = {"cleanPodPolicy": CLEAN[policy.clean_pods], "suspend": policy.suspend}
    # An absent limit means no limit.
    if policy.backoff_limit < UNLIMITED:
        written = {"backoffLimit": policy.backoff_limit, **written}
    if policy.deadline is not None:
        written["activeDeadlineSeconds"] = math.ceil(policy.deadline)
    if policy.ttl is not None:
        written["ttlSecondsAfterFinished"] = math.ceil(policy.ttl)
    # An operator that makes no PodGroups ignores it, and Kueue would still read its priority class.
    if gang.how == "natively":
        own = stated(layout.engine_spec, "runPolicy", "schedulingPolicy")
        ours = {name: value for name, value in _scheduling_policy(gang).items() if name not in own}
        written["schedulingPolicy"] = ours
    return written


def stated(engine_spec: Mapping[str, Any], *path: str) -> Mapping[str, Any]:
    """The fields that a job's `engine_spec` says at this path; empty where it says none."""
    fields: Any = engine_spec
    for name in path:
        fields = fields.get(name) if isinstance(fields, Mapping) else None
    return fields if isinstance(fields, Mapping) else {}


def _scheduling_policy(gang: GangPlan) -> dict[str, Any]:
    written: dict[str, Any] = {"minAvailable": gang.members}
    if gang.queue is not None:
        written["queue"] = gang.queue
    if gang.priority is not None:
        written["priorityClass"] = gang.priority
    if gang.timeout is not None:
        written["scheduleTimeoutSeconds"] = math.ceil(gang.timeout)
    return written


def replica_specs(layout: Layout, templates: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    """The replica map: ``{Master: {replicas, restartPolicy, template}}``."""
    return {
        replica_type(group.role): {
            "replicas": group.replicas,
            "restartPolicy": RESTART[layout.restart_of(group.role)],
            "template": templates[group.role],
        }
        for group in layout.groups
    }


_REPLICA_TYPES = {"ps": "PS", "tunertracker": "TunerTracker", "tunerserver": "TunerServer"}


def replica_type(role: str) -> str:
    """The operator's name of a role."""
    return _REPLICA_TYPES.get(role.lower()) or role.capitalize()


def without_gpus(group: int | Mapping[str, Any]) -> dict[str, Any]:
    """A group, to which the GPUs and devices that a job says for all members do not belong."""
    fields: dict[str, Any] = dict(group) if isinstance(group, Mapping) else {"replicas": group}
    none = {"gpu": 0, **dict.fromkeys(("gpu_type", "mig", "devices", "device_class", "device_selector"))}
    return {**fields, "resources": {**none, **fields.get("resources", {})}}


# Up.


def read_job(
    job: Mapping[str, Any] | None,
    pods: Sequence[Mapping[str, Any]],
    *,
    specs: str,
    roles: Sequence[str],
    container: str,
    default_replicas: Mapping[str, int] | None = None,
    role_of: RoleOf | None = None,
) -> JobSeen:
    """Read a job object and its pods. ``specs``: the field of its replica map; ``roles`` in rank order;
    ``container``: the one that trains; ``default_replicas``: of roles that do not say how many, where that is
    not 1; ``role_of``: the role and the index of a pod, where the labels alone do not tell. A job that is
    gone is None: its pods are read all the same.
    """
    spec, status = (job or {}).get("spec") or {}, (job or {}).get("status") or {}
    replicas = {
        role.lower(): _replicas(role, replica_spec, default_replicas or {})
        for role, replica_spec in (spec.get(specs) or {}).items()
        if isinstance(replica_spec, Mapping)
    }
    conditions = tuple(read_conditions(status))
    ended = any(c.type in ("Succeeded", "Failed") and c.status == "True" for c in conditions)
    suspended = bool((spec.get("runPolicy") or {}).get("suspend"))
    # Of a job that was created suspended no member was ever made.
    gone = ended or job is None or (suspended and bool(status.get("startTime")))
    by_index = newest_pods(pods, role_of or role_of_pod)
    members = tuple(seen_members(replicas, by_index, roles, container, gone))
    return JobSeen(
        conditions=conditions,
        members=members,
        counts={
            role.lower(): Counts(
                replicas.get(role.lower(), 0),
                int(counts.get("active") or 0),
                int(counts.get("succeeded") or 0),
                int(counts.get("failed") or 0),
            )
            for role, counts in (status.get("replicaStatuses") or {}).items()
        },
        total=sum(replicas.values()),
        started=from_rfc3339(status.get("startTime")),
        finished=from_rfc3339(status.get("completionTime")) or _failed_at(conditions),
        suspended=suspended,
    )


def _replicas(role: str, group: Mapping[str, Any], default: Mapping[str, int]) -> int:
    number = group.get("replicas")
    return default.get(role.lower(), 1) if number is None else int(number)


def read_conditions(status: Mapping[str, Any]) -> Iterator[Condition]:
    """The conditions of a status, in our words."""
    from allaboard.runs.observation import Condition

    for item in status.get("conditions") or ():
        yield Condition(
            type=str(item.get("type", "")),
            status=str(item.get("status", "Unknown")),
            reason=str(item.get("reason") or ""),
            message=str(item.get("message") or ""),
            since=from_rfc3339(item.get("lastTransitionTime") or item.get("lastUpdateTime")),
        )


def _failed_at(conditions: tuple[Condition, ...]) -> float | None:
    """Time of the end if the operator forgets completionTime: a permanent exit code under ExitCode."""
    final = (c for c in conditions if c.type in ("Failed", "Succeeded") and c.status == "True")
    return next((c.since for c in final), None)


def role_of_pod(pod: Mapping[str, Any]) -> tuple[str, int] | None:
    """(role, index) of a pod; None for one that the operator did not make."""
    labels = (pod.get("metadata") or {}).get("labels") or {}
    role, index = labels.get(ROLE_LABEL), labels.get(INDEX_LABEL)
    return (str(role).lower(), int(index)) if role and index is not None and str(index).isdecimal() else None


MOST_MEMBERS = 100_000
"""Members of a role that are looked for, whatever number a job says: nobody has trained with so many."""


def seen_members(
    replicas: Mapping[str, int],
    by_index: Mapping[tuple[str, int], Mapping[str, Any]],
    roles: Sequence[str],
    container: str,
    gone: bool,
) -> Iterator[MemberSeen]:
    """Every member in rank order, and those beyond the number of replicas that are still there."""
    from allaboard.runs.observation import MemberSeen

    before = 0
    for role in (*roles, *sorted({r for r in (*replicas, *(r for r, _ in by_index)) if r not in roles})):
        count = min(replicas.get(role, 0), MOST_MEMBERS)
        indices = sorted({*range(count), *(index for r, index in by_index if r == role)})
        for index in indices:
            pod = by_index.get((role, index))
            if pod is not None:
                yield _seen_member(pod, role, index, before + index, container)
            else:
                yield MemberSeen(role, index, before + index, "deleted" if gone else "pending")
        before += count or len(indices)


def newest_pods(
    pods: Sequence[Mapping[str, Any]], role_of: RoleOf = role_of_pod
) -> dict[tuple[str, int], Mapping[str, Any]]:
    """The newest pod of each member. A recreated pod has the name of the previous one, and both may exist
    while the old one ends.
    """
    by_index: dict[tuple[str, int], Mapping[str, Any]] = {}
    for pod in sorted(pods, key=_age_key):
        who = role_of(pod)
        if who is not None:
            by_index[who] = pod
    return by_index


def _age_key(pod: Mapping[str, Any]) -> tuple[bool, str]:
    metadata = pod.get("metadata") or {}
    return metadata.get("deletionTimestamp") is None, str(metadata.get("creationTimestamp") or "")


def _seen_member(pod: Mapping[str, Any], role: str, index: int, rank: int, container: str) -> MemberSeen:
    """One member, by its pod. Restarts are those of all its containers, as the operator counts them."""
    from allaboard.runs.observation import MemberSeen

    metadata, status = pod.get("metadata") or {}, pod.get("status") or {}
    every = [*(status.get("initContainerStatuses") or ()), *(status.get("containerStatuses") or ())]
    where = f"{metadata.get('namespace', '')}/{metadata.get('name', '')}"
    main: Mapping[str, Any] = next(
        (c for c in status.get("containerStatuses") or () if c.get("name") == container), {}
    )
    state, last = main.get("state") or {}, main.get("lastState") or {}
    over = as_start_error(state.get("terminated") or last.get("terminated") or _failed_before(status))
    running = as_start_error(state.get("running") or state.get("terminated") or {})
    running = {} if running.get("reason") in NOT_STARTED else running
    return MemberSeen(
        group=role,
        index=index,
        rank=rank,
        phase=_phase(status),
        exit_code=over.get("exitCode"),
        restarts=sum(int(c.get("restartCount") or 0) for c in every),
        log=where if main.get("containerID") else None,
        reason=_reason(status, every, main),
        started=from_rfc3339(running.get("startedAt")),
        ended=from_rfc3339(over.get("finishedAt")),
        said=_start_error(over, state.get("waiting") or {}),
        image=_image_digest(main),
        end_reason=_end_reason(status, over),
    )


def _end_reason(status: Mapping[str, Any], over: Mapping[str, Any]) -> str | None:
    """Reason of the end of its last try, or of its removal; None: neither is known."""
    taken = next(
        (
            c.get("reason")
            for c in status.get("conditions") or ()
            if c.get("type") == "DisruptionTarget" and c.get("status") == "True"
        ),
        None,
    )
    reason = taken or over.get("reason")
    return str(reason)[:100] if reason else None


def _image_digest(status: Mapping[str, Any]) -> str | None:
    """That of a registry, which means the same on every node; None where the runtime tells one of its own."""
    _, at, digest = str(status.get("imageID") or "").rpartition("@")
    return digest if at and digest.startswith("sha256:") and len(digest) <= 200 else None


def _failed_before(status: Mapping[str, Any]) -> Mapping[str, Any]:
    """End of the init container that made the pod fail."""
    if status.get("phase") != "Failed":
        return {}
    ends = ((c.get("state") or {}).get("terminated") or {} for c in status.get("initContainerStatuses") or ())
    return next((ended for ended in ends if ended.get("exitCode")), {})


NOT_STARTED = frozenset({"StartError", "ContainerCannotRun", "RunContainerError"})
"""Reasons of a container whose program never ran; its times are those of no process."""


def _start_error(over: Mapping[str, Any], waiting: Mapping[str, Any]) -> str | None:
    """The runtime's message about a program that it could not start."""
    state = next(
        (
            container_state
            for container_state in (over, waiting)
            if container_state.get("reason") in NOT_STARTED
        ),
        {},
    )
    return str(state["message"])[:1000] if state.get("message") else None


_PHASES = {
    "Pending": "pending",
    "Running": "running",  # also while it is being deleted: it still holds its GPUs
    "Succeeded": "succeeded",
    "Failed": "failed",
}


def _phase(status: Mapping[str, Any]) -> str:
    return _PHASES.get(str(status.get("phase", "Pending")), "unknown")


def _reason(
    status: Mapping[str, Any], every: Sequence[Mapping[str, Any]], main: Mapping[str, Any]
) -> str | None:
    """Reason of a pod's trouble in the cluster's word: the pod's own (Evicted), that of a waiting container
    (ImagePullBackOff, CrashLoopBackOff), or that of its end (OOMKilled, StartError).
    """
    reasons = [status.get("reason")]
    reasons += [((c.get("state") or {}).get("waiting") or {}).get("reason") for c in every]
    reasons.append(((main.get("state") or {}).get("terminated") or {}).get("reason"))
    reasons.append(((main.get("lastState") or {}).get("terminated") or {}).get("reason"))
    return next((str(word) for word in reasons if word and word not in _QUIET), None)
