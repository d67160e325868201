"""JobSet, jobset.x-k8s.io/v1alpha2: jobs of any framework where no training operator is installed. Nobody
injects an environment here, so the environment that the framework's operator would inject is written out.

Read from JobSet 0.12.0: api/jobset/v1alpha2, pkg/controllers, pkg/webhooks. What differs from the operators
of single frameworks:

- A member is a Job of one pod, ``<job>-<role>-<index>-0`` at ``<job>``, the headless Service of the JobSet.
  Its rank is its place among all Jobs, which JobSet tells in a label.
- A member that fails restarts the whole gang, because those that are left have lost their peer:
  ``backoff_limit`` counts restarts of the gang. One that is taken away (evicted, preempted, its node drained)
  restarts the gang and is not counted. The members of an elastic gang are restarted one by one.
- Members of MPI are restarted one by one, too (`allaboard.engines.mpi`).
- At the end members that still run are removed, and those that have ended stay.
- The deadline is each start's own.
"""

from __future__ import annotations

import copy
import math
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Self

from allaboard.engines import jobset_templates, mpi
from allaboard.engines.base import (
    JOBSET,
    AddedContainer,
    Address,
    Counts,
    JobSeen,
    Operator,
    Place,
    Rules,
    Verdict,
)
from allaboard.engines.jobset_reading import (
    CONTAINER,
    DEADLINE,
    INDEX_LABEL,
    MEMBERS,
    NAME_LABEL,
    NEEDED,
    RANK_LABEL,
    REASONS,
    job_templates,
    member_name,
    member_of,
    message,
    needed,
    ranked_templates,
    seen_job,
    with_condition,
    with_deadline,
)
from allaboard.engines.jobset_templates import most_with_coordinator, own_jobs, template_objections, with_own
from allaboard.engines.mpijob import MPIJob
from allaboard.errors import Problem
from allaboard.text.names import OBJECT_NAME_MAX

if TYPE_CHECKING:
    from allaboard.engines import Engine
    from allaboard.engines.reading.restarts import Rendering
    from allaboard.engines.reading.values import Conversion
    from allaboard.gangs.base import GangPlan
    from allaboard.runs.layout import Layout, Member
    from allaboard.runs.observation import Condition

Json = Mapping[str, Any]
PORT = 29500
"""Port at which members listen: each pod has an address of its own."""
LONGEST_HOST = 63
FRAMEWORKS: tuple[str, ...] = ("pytorch", "tensorflow", "xgboost", "paddle", "jax", "mpi")
"""Each is the name of the container, too, by which the framework's v1 operator knows its members."""
_INDEX, _RANK = 900_000_007, 900_000_011
"""Numbers that no member has. In the environment of one they stand for what a pod learns when it starts."""

_WRONG: Json = {
    "replicatedJobs": [],
    "successPolicy": {"operator": "All", "targetReplicatedJobs": ["not-there"]},
}
"""Its success depends on a job that it does not have."""
_POLICIES = frozenset({"failurePolicy", "successPolicy"})
"""Fields of ``engine_spec`` that are merged over what is written from the job."""


class JobSet:
    """`allaboard.engines.Engine` for JobSets. What a framework asks for is said by the engine of its own
    operator.
    """

    NAME = "jobset"
    KIND = "JobSet"
    API_VERSION = "jobset.x-k8s.io/v1alpha2"
    PLURAL = "jobsets"
    FIELDS = frozenset(
        {
            "coordinator",
            "failurePolicy",
            "managedBy",
            "network",
            "replicatedJobs",
            "startupPolicy",
            "successPolicy",
            "suspend",
            "ttlSecondsAfterFinished",
            "volumeClaimPolicies",
        }
    )
    FRAMEWORKS = FRAMEWORKS
    PREFERENCE = JOBSET
    CONTAINER = CONTAINER
    JOB_FIELDS = jobset_templates.JOB_FIELDS
    ALIASES = frozenset(FRAMEWORKS)
    JOB_LABEL = NAME_LABEL
    RANDOM_NAMES = True
    SPARED: frozenset[str] = frozenset()
    OPERATOR = Operator(
        "jobset",
        "JobSet",
        "jobset-system",
    )
    PROBE: Json | None = _WRONG
    ENDS: Mapping[str, str] = {
        "AllJobsCompleted": "succeeded",
        "FailedJobs": "failed",
        "ReachedMaxRestarts": "failed",
        "FailJobSetFailurePolicyAction": "failed",
    }
    ADDED: tuple[AddedContainer, ...] = ()
    EXTRA_KINDS: tuple[str, ...] = ("v1/Secret",)
    TAKES_IN: frozenset[str] = mpi.FIELDS | _POLICIES | {jobset_templates.FIELD}
    PLAYED = MPIJob.PLAYED
    MAY_LACK: Mapping[str, Mapping[str, Any]] = {}
    PROPAGATION = "Foreground"
    NATIVELY: frozenset[str] = frozenset()
    REFUSES: Mapping[str, str] = {}

    def usual(self, framework: str) -> Engine:
        """The engine of the framework's own operator, under the name of this kind."""
        from allaboard.engines import BY_FRAMEWORK

        engine = copy.copy(BY_FRAMEWORK[framework][0])
        engine.KIND = self.KIND
        return engine

    def fitted(self, lacking: Collection[str]) -> Self:
        """The engine itself: what it writes every release knows."""
        return self

    # Down.

    def roles(self, framework: str) -> Mapping[str, int | None]:
        """Those of the framework."""
        return self.usual(framework).roles(framework)

    def helpers(self, framework: str) -> frozenset[str]:
        """Those of the framework."""
        return self.usual(framework).helpers(framework)

    def idle(self, framework: str) -> frozenset[str]:
        """Those of the framework."""
        return self.usual(framework).idle(framework)

    def is_elastic(self, framework: str) -> bool:
        """As the framework is."""
        return self.usual(framework).is_elastic(framework)

    def default_restart(self, framework: str) -> str:
        """As with the framework's own operator."""
        return self.usual(framework).default_restart(framework)

    def name_max(self, groups: Mapping[str, int], engine_spec: Json) -> int:
        """Longest name that leaves room for the names of all pods, and for the coordinator."""
        endings = (f"-{role}-{max(0, count - 1)}-0-abcde" for role, count in groups.items())
        by_coordinator = most_with_coordinator(engine_spec)
        return min(OBJECT_NAME_MAX, LONGEST_HOST - max(map(len, endings)), by_coordinator)

    def groups_of(self, job: Json) -> Mapping[str, Any]:
        """As with the framework's own operator."""
        return self.usual(job.get("framework", "pytorch")).groups_of(job)

    def brings_scheduler(self, layout: Layout) -> bool:
        """No: the job names it."""
        return False

    def starts_in_order(self, layout: Layout) -> str | None:
        """Path of the field that asks for an order, if there are several groups."""
        policy = layout.engine_spec.get("startupPolicy") or {}
        waits = policy.get("startupPolicyOrder") == "InOrder" and len(layout.groups) > 1
        return "engine_spec.startupPolicy" if waits else None

    def brings_image(self, layout: Layout) -> bool:
        """No: the job names it."""
        return False

    def objections(self, job: Json) -> Iterator[Problem]:
        """Problems of a valid job's fields that this engine cannot do as they are written."""
        framework = job.get("framework", "pytorch")
        yield from policy_objections(job, self.KIND, self.default_restart(framework))
        for name in sorted(_POLICIES & self.TAKES_IN):
            if not isinstance((job.get("engine_spec") or {}).get(name, {}), Mapping):
                yield Problem(f"engine_spec.{name}", f"expected the fields of a {self.KIND}'s {name}")
        own = (job.get("engine_spec") or {}).get(jobset_templates.FIELD)
        if own is not None and jobset_templates.FIELD in self.TAKES_IN:
            alone = job.get("elastic") is not None or framework == mpi.FRAMEWORK
            never = (job.get("policy") or {}).get("restart", self.default_restart(framework)) == "never"
            yield from template_objections(own, [*self.groups_of(job)], one_by_one=alone and not never)
        # What the framework's own operator does with lost pods, JobSet does not.
        usual = [
            problem
            for problem in self.usual(framework).objections(job)
            if (problem.path, problem.severity) != ("policy.restart", "warning")
        ]
        yield from mpi.objections(job, usual, self.KIND)

    def render(
        self, layout: Layout, metadata: Json, templates: Mapping[str, Json], gang: GangPlan
    ) -> dict[str, Any]:
        """The job object. ``templates``: the pod template of each role."""
        if layout.framework == mpi.FRAMEWORK:
            templates = connected(layout, templates)
            launcher = mpi.with_hostfile(layout, templates[mpi.LAUNCHER], CONTAINER)
            templates = {**templates, mpi.LAUNCHER: launcher}
        spec = {**spec_of(layout, templates, gang), "suspend": layout.policy.suspend}
        own_by_group = own_jobs(layout.engine_spec)
        spec["replicatedJobs"] = [
            with_own(replicated_job, own_by_group.get(replicated_job["name"]))
            for replicated_job in spec["replicatedJobs"]
        ]
        if layout.policy.ttl is not None:
            spec["ttlSecondsAfterFinished"] = math.ceil(layout.policy.ttl)
        for name in sorted(_POLICIES & {*layout.engine_spec}):
            spec[name] = {**spec.get(name, {}), **layout.engine_spec[name]}
        own = with_members(metadata, layout)
        return {"apiVersion": self.API_VERSION, "kind": self.KIND, "metadata": own, "spec": spec}

    def extras(
        self, layout: Layout, metadata: Json, templates: Mapping[str, Json], gang: GangPlan
    ) -> Sequence[Json]:
        """None, but of MPI the hostfile and the key pair."""
        if layout.framework != mpi.FRAMEWORK:
            return ()
        place = _places(layout)
        hosts = {member.name: place[member.name].host for member in layout.members}
        (hostfile,) = self.files(layout, hosts).values()
        return mpi.brought(layout.name, metadata["namespace"], hostfile)

    def secrets_of(self, layout: Layout) -> Collection[str]:
        """Of MPI that of the key pair."""
        return (mpi.secret_name(layout.name),) if layout.framework == mpi.FRAMEWORK else ()

    def templates(self, job: Json, extras: Sequence[Json]) -> Iterator[tuple[str, int, Json]]:
        """Of its replicated jobs."""
        yield from ranked_templates(job)

    def index_label(self, role: str) -> str | None:
        """JobSet's, of a Job among those of its role."""
        return INDEX_LABEL

    def to_job(self, obj: Json, others: Sequence[Json]) -> Conversion:
        """The job that a JobSet says: the replicated jobs are its groups, and what the engine tells members
        by itself is not said.
        """
        from allaboard.engines.reading.jobsets import job_of_jobset

        return job_of_jobset(self, obj)

    def rendering(self, job: Json) -> Rendering:
        """Policies and environment that a valid job's members would get."""
        from allaboard.engines.reading.members import host_of
        from allaboard.engines.reading.restarts import Rendering
        from allaboard.job.training_job import TrainingJob
        from allaboard.runs.layout import lay_out

        layout = lay_out(TrainingJob.of(dict(job)), self, "run")
        usual = self.usual(layout.framework)
        place = {m.name: Address(host_of(m.rank), PORT) for m in layout.members}
        return Rendering(
            lambda rank: usual.environment(layout, layout.members[rank], place),
            success_policy(layout),
            failure_policy(layout).get("failurePolicy"),
            [*_pod_failure_rules(layout)],
        )

    def suspension(self, wanted: bool) -> dict[str, Any]:
        """The merge patch that suspends a job or resumes it."""
        return {"spec": {"suspend": wanted}}

    # Up.

    def read(self, job: Json | None, pods: Sequence[Json]) -> JobSeen:
        """Read the job object and its pods."""
        spec, status = (job or {}).get("spec") or {}, (job or {}).get("status") or {}
        replicas = {role: count for role, count, _ in ranked_templates(job or {})}
        seen = seen_job(job, status, replicas, pods, bool(spec.get("suspend")), member_of)
        deadline = next(
            (t["spec"].get("activeDeadlineSeconds") for t in job_templates(spec) if t.get("spec")), None
        )
        conditions = tuple(with_deadline(c, deadline, seen.started) for c in seen.conditions)
        return replace(seen, conditions=conditions)

    def needed(self, job: Json) -> int:
        """All, but of an elastic gang the least number."""
        return needed(job, self.read(job, ()).total)

    def added(self, job: Json, role: str) -> tuple[AddedContainer, ...]:
        """None."""
        return ()

    def managed_by(self, job: Json) -> str | None:
        """``spec.managedBy``."""
        manager = (job.get("spec") or {}).get("managedBy")
        return str(manager) if manager else None

    def pod_name(self, job: str, member: str) -> str:
        """Of a member: its host name, and five characters by lot."""
        return f"{job}-{member}-0-xxxxx"

    def member_of(self, pod: Json) -> str | None:
        """The member whose pod this is: ``worker-0``."""
        return member_name(member_of(pod))

    # The operator, for the local backend. What members are told is what the framework's own operator tells.

    def listeners(self, layout: Layout) -> Sequence[Sequence[str]]:
        """As with the framework's own operator."""
        return self.usual(layout.framework).listeners(layout)

    def environment(self, layout: Layout, member: Member, place: Place) -> dict[str, str]:
        """As with the framework's own operator."""
        return self.usual(layout.framework).environment(layout, member, place)

    def files(self, layout: Layout, hosts: Mapping[str, str]) -> Mapping[str, str]:
        """As with the framework's own operator."""
        return self.usual(layout.framework).files(layout, hosts)

    def judge(self, layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
        """By the success policy: all members of the groups that decide have succeeded, or any of them."""
        success = success_policy(layout)
        deciding = [counts[role] for role in success["targetReplicatedJobs"] or counts]
        enough = any if success["operator"] == "Any" else all
        succeeded = enough(
            group.succeeded > 0 if enough is any else group.succeeded >= group.replicas for group in deciding
        )
        return Verdict(running=any(group.active for group in counts.values()), succeeded=succeeded)

    def rules(self, layout: Layout) -> Rules:
        """A failure restarts the gang, of an elastic one and of MPI one member. At the end those that run are
        removed. Who has succeeded is a Job that is complete, which no suspension touches.
        """
        policy = replace(layout.policy, clean_pods="running")
        return Rules(policy, "member" if restarts_one_by_one(layout) else "gang", keeps_done=True)

    def with_condition(self, conditions: tuple[Condition, ...], new: Condition) -> tuple[Condition, ...]:
        """One of each type, changed where it stands; Running is there while members run."""
        return with_condition(conditions, new)

    def reason(self, condition: str, layout: Layout) -> str | None:
        """JobSet's own; of the deadline the reason by which `read` knows it."""
        if not failure_policy(layout):  # any Job that fails is the end
            return {**REASONS, "Failed": "FailedJobs", "BackoffLimit": "FailedJobs"}.get(condition)
        return {**REASONS, "Failed": "FailJobSetFailurePolicyAction"}.get(condition)

    def message(self, condition: str, job: str, *, master: bool, role: str = "", count: int = 0) -> str:
        """Plain words for a condition."""
        return message(self.KIND, condition, job, role, count)


# Down.


def with_members(metadata: Json, layout: Layout) -> dict[str, Any]:
    """The metadata of an object, with the members of its gang: no field of the object itself tells them."""
    annotations = {MEMBERS: ",".join(f"{group.role}:{group.replicas}" for group in layout.groups)}
    if layout.elastic is not None:
        annotations[NEEDED] = str(layout.elastic.min)
    return {**metadata, "annotations": {**(metadata.get("annotations") or {}), **annotations}}


def policy_objections(job: Json, kind: str, default_restart: str) -> Iterator[Problem]:
    """Problems of a policy that a Job, of which members are made here, cannot keep."""
    policy = job.get("policy") or {}
    restart = policy.get("restart", default_restart)
    if restart == "always":
        message = f"{kind} starts no member again that has succeeded; say on_failure"
        yield Problem("policy.restart", message)
    if restart == "exit_code" and job.get("elastic") is not None:
        message = (
            f"members of an elastic {kind} are restarted by their nodes, which do not look at exit codes; "
        )
        yield Problem("policy.restart", message + "say on_failure or never")
    for role, group in (job.get("groups") or {}).items():
        if isinstance(group, Mapping) and group.get("restart", restart) != restart:
            message = f"{kind} has one rule for all members; take it out, and say policy.restart"
            yield Problem(f"groups.{role}.restart", message)
    if policy.get("clean_pods") in ("none", "all"):
        message = (
            f"{kind} removes the members that still run at the end and keeps the others; "
            "say running, or take it out"
        )
        yield Problem("policy.clean_pods", message, severity="warning")


def connected(layout: Layout, templates: Mapping[str, Json]) -> dict[str, Json]:
    """The pod templates of MPI's members, which SSH connects."""
    return {role: mpi.with_ssh(layout, role, template, CONTAINER) for role, template in templates.items()}


def spec_of(layout: Layout, templates: Mapping[str, Json], gang: GangPlan) -> dict[str, Any]:
    """The spec of a JobSet whose members are Jobs of one pod each, one replicated job for each group."""
    place = _places(layout)
    rank = {"fieldRef": {"fieldPath": f"metadata.labels['{RANK_LABEL}']"}}
    groups: list[dict[str, Any]] = []
    for group in layout.groups:
        injected = symbolic_environment(layout, group.role, place)
        template = with_environment(templates[group.role], injected, rank)
        single_pod = {"parallelism": 1, "completions": 1}
        written = {
            "name": group.role,
            "replicas": group.replicas,
            "template": {"spec": {**single_pod, **job_spec(layout, template)}},
        }
        groups.append(written)
    if layout.framework == mpi.FRAMEWORK:
        # The members of a gang start together: one that waited for the others would never have a place.
        groups = mpi.launcher_last(groups, waits=gang.how == "none")
    spec = {"replicatedJobs": groups, "successPolicy": success_policy(layout), **failure_policy(layout)}
    if gang.gang != "kai" or "startupPolicy" in layout.engine_spec:
        return spec
    # Only so does KAI take all members for one gang (pkg/podgrouper/podgrouper/plugins/jobset).
    return {**spec, "startupPolicy": {"startupPolicyOrder": "AnyOrder"}}


def restarts_one_by_one(layout: Layout) -> bool:
    """True if a member that fails is restarted alone: the others have not lost their peer, or meet again."""
    return layout.elastic is not None or layout.framework == mpi.FRAMEWORK


def job_spec(layout: Layout, template: Json) -> dict[str, Any]:
    """The rest of the spec of the Jobs of which members are made. Members that are restarted one by one are
    restarted by their node, others with their gang.
    """
    policy = layout.policy
    in_place = restarts_one_by_one(layout) and policy.restart == "on_failure"
    spec: dict[str, Any] = {"backoffLimit": policy.backoff_limit if in_place else 0}
    if policy.deadline is not None:
        spec["activeDeadlineSeconds"] = math.ceil(policy.deadline)
    if rules := [*_pod_failure_rules(layout)]:
        spec["podFailurePolicy"] = {"rules": rules}
    restart = {"restartPolicy": "OnFailure" if in_place else "Never"}
    return {**spec, "template": {**template, "spec": {**template["spec"], **restart}}}


def _pod_failure_rules(layout: Layout) -> Iterator[dict[str, Any]]:
    """Rules that end a Job with a reason of its own, by which `failure_policy` knows it."""
    if layout.policy.restart == "exit_code":
        # 128 and more is a signal: another start may do better.
        codes = {"containerName": CONTAINER, "operator": "In", "values": [*range(1, 128)]}
        yield {"action": "FailJob", "onExitCodes": codes}
    elif layout.policy.restart == "on_failure" and not restarts_one_by_one(layout):
        taken = [{"type": "DisruptionTarget", "status": "True"}]
        yield {"action": "FailJob", "onPodConditions": taken}


def failure_policy(layout: Layout) -> dict[str, Any]:
    """``failurePolicy``; without one the first Job that fails fails the JobSet. A gang is made anew when all
    of its old members are gone: none of the new may meet one of the old.
    """
    restart = layout.policy.restart
    if restart == "never" or restarts_one_by_one(layout):
        return {}
    by_reason = {"exit_code": "FailJobSet", "on_failure": "RestartJobSetAndIgnoreMaxRestarts"}[restart]
    name = {"exit_code": "permanentExitCode", "on_failure": "takenAway"}[restart]
    rules = [{"name": name, "action": by_reason, "onJobFailureReasons": ["PodFailurePolicy"]}]
    if layout.policy.deadline is not None:
        rules.append({"name": "deadline", "action": "FailJobSet", "onJobFailureReasons": [DEADLINE]})
    limit = {"maxRestarts": layout.policy.backoff_limit, "restartStrategy": "BlockingRecreate"}
    return {"failurePolicy": {**limit, "rules": rules}}


def success_policy(layout: Layout) -> dict[str, Any]:
    """Groups whose success ends the job, as for the framework's own operator; of an elastic gang without a
    master any member.
    """
    from allaboard.engines import BY_FRAMEWORK

    def decides(role: str) -> bool:
        counts = {g.role: Counts(g.replicas, succeeded=g.replicas * (g.role == role)) for g in layout.groups}
        return BY_FRAMEWORK[layout.framework][0].judge(layout, counts).succeeded

    deciding = [group.role for group in layout.groups if decides(group.role)]
    any_one = layout.elastic is not None and layout.group("master") is None
    return {"operator": "Any" if any_one else "All", "targetReplicatedJobs": deciding}


def _places(layout: Layout) -> dict[str, Address]:
    """Addresses of members: member -> its host at the headless Service. The one that stands for all of its
    role is among them.
    """
    any_one = [f"{group.role}-{_INDEX}" for group in layout.groups]
    names = [*(member.name for member in layout.members), *any_one]
    return {name: Address(f"{layout.name}-{name}-0.{layout.name}", PORT) for name in names}


def symbolic_environment(layout: Layout, role: str, place: Place) -> dict[str, str]:
    """Variables that the operator of the framework injects into the members of a role, with
    ``$(ALLABOARD_INDEX)`` and ``$(ALLABOARD_RANK)`` where they differ.
    """
    from allaboard.engines import BY_FRAMEWORK
    from allaboard.runs.layout import Member

    usual = BY_FRAMEWORK[layout.framework][0]
    group = layout.group(role)
    values = usual.environment(layout, Member(role, _INDEX, _RANK), place)
    values = mpi.for_prrte(values, group.environment if group is not None else {})
    return {
        name: value.replace(str(_INDEX), "$(ALLABOARD_INDEX)").replace(str(_RANK), "$(ALLABOARD_RANK)")
        for name, value in values.items()
    }


def with_environment(
    template: Json, injected: Mapping[str, str], rank: Json, *, always: bool = False
) -> dict[str, Any]:
    """A pod template whose training container has these variables, too; they win over the job's own.
    ``rank``: the source of ALLABOARD_RANK, which is there where a variable holds it, or ``always``.
    """
    containers = []
    for container in template["spec"]["containers"]:
        if container["name"] == CONTAINER:
            own = [variable for variable in container.get("env") or () if variable["name"] not in injected]
            ranked = [{"name": "ALLABOARD_RANK", "valueFrom": rank}]
            values = [*injected.values(), *(str(variable.get("value")) for variable in own)]
            needs_rank = always or any("$(ALLABOARD_RANK)" in value for value in values)
            if needs_rank:
                own = [variable for variable in own if variable["name"] != "ALLABOARD_RANK"]
            written = [{"name": name, "value": value} for name, value in injected.items()]
            # The job's own may refer to what is injected, which refers to ours, the first of all.
            first = next((n for n, variable in enumerate(own) if _refers_to(variable, injected)), len(own))
            env = [*(ranked if needs_rank else ()), *own[:first], *written, *own[first:]]
            container = {**container, "env": env}
        containers.append(container)
    return {**template, "spec": {**template["spec"], "containers": containers}}


def _refers_to(variable: Json, names: Iterable[str]) -> bool:
    return any(f"$({name})" in str(variable.get("value")) for name in names)


ENGINE: Engine = JobSet()
