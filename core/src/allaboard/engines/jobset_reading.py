"""Reading of JobSets and their pods: members, conditions and the end. The last part is the status that their
controller writes, for a job that is simulated on one machine.

Read from JobSet 0.12.0: api/jobset/v1alpha2, pkg/controllers.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from allaboard.engines import mpi
from allaboard.engines.base import Counts, JobSeen, Scope
from allaboard.engines.kubeflow import RoleOf, newest_pods, read_conditions, seen_members
from allaboard.text.units import from_rfc3339

if TYPE_CHECKING:
    from allaboard.runs.observation import Condition

Json = Mapping[str, Any]
PREFIX = "jobset.sigs.k8s.io/"
NAME_LABEL = PREFIX + "jobset-name"
ROLE_LABEL = PREFIX + "replicatedjob-name"
REPLICAS_LABEL = PREFIX + "replicatedjob-replicas"
INDEX_LABEL = PREFIX + "job-index"
RESTARTS_LABEL = PREFIX + "restart-attempt"
RANK_LABEL = PREFIX + "job-global-index"
COMPLETION_INDEX = "batch.kubernetes.io/job-completion-index"
CONTAINER = "node"
"""The container that trains; the members of others may have another."""
MEMBERS = "allaboard.io/members"
"""The annotation of an object and its pods that holds the groups, ``master:1,worker:2``, in rank order."""
NEEDED = "allaboard.io/needed-members"
"""The annotation of an elastic job that holds the least number of members."""
_WORDS = {"Completed": "Succeeded", "Complete": "Succeeded", "RestartingJobSet": "Restarting"}
DEADLINE = "DeadlineExceeded"
_RUNNING = "MembersRun"
REASONS: Mapping[str, str] = {
    "Running": _RUNNING,
    "Restarting": "DefaultFailurePolicy",
    "Succeeded": "AllJobsCompleted",
    "Suspended": "SuspendedJobs",
    "Resumed": "ResumeJobs",
    "BackoffLimit": "ReachedMaxRestarts",
    "Deadline": DEADLINE,
}


def needed(job: Json, total: int) -> int:
    """Number of members that start together: all, unless the job object says a number."""
    number = str(((job.get("metadata") or {}).get("annotations") or {}).get(NEEDED, ""))
    return int(number) if number.isdecimal() else total


def told_groups(metadata: Json) -> dict[str, int] | None:
    """The groups that an object of ours names, in rank order."""
    text = str((metadata.get("annotations") or {}).get(MEMBERS, ""))
    pairs = [pair.partition(":")[::2] for pair in text.split(",")]
    return (
        {role: int(count) for role, count in pairs} if text and all(c.isdecimal() for _, c in pairs) else None
    )


def ranked_templates(job: Json) -> list[tuple[str, int, Json]]:
    """Templates of a JobSet (`templates_of`), in the order of ranks where the object names it."""
    order = [*(told_groups(job.get("metadata") or {}) or ())]
    every = [*templates_of(job.get("spec") or {})]
    return sorted(every, key=lambda entry: order.index(entry[0]) if entry[0] in order else len(order))


def templates_of(spec: Json) -> Iterator[tuple[str, int, Json]]:
    """The role, the number of members and the pod template of each replicated job of a JobSet's spec."""
    for job, template in zip(spec.get("replicatedJobs") or (), job_templates(spec), strict=True):
        own = template.get("spec") or {}
        parallelism = 1 if own.get("parallelism") is None else int(own["parallelism"])
        replicas = 1 if job.get("replicas") is None else int(job["replicas"])
        yield str(job.get("name") or ""), replicas * parallelism, own.get("template") or {"spec": {}}


def job_templates(spec: Json) -> Iterator[Json]:
    for job in spec.get("replicatedJobs") or ():
        yield job.get("template") or {}


def member_of(pod: Json) -> tuple[str, int] | None:
    """The role and index of a pod of a JobSet: by the index of its Job, that of the pod, or, of several Jobs
    with several pods each, both.
    """
    labels = (pod.get("metadata") or {}).get("labels") or {}
    role, job = labels.get(ROLE_LABEL), str(labels.get(INDEX_LABEL, ""))
    if not role or not job.isdecimal():
        return None
    index = completion_index(pod) or 0
    replicas = str(labels.get(REPLICAS_LABEL, "1"))
    return str(role), index * (int(replicas) if replicas.isdecimal() else 1) + int(job)


def completion_index(pod: Json) -> int | None:
    """The index of a pod of an Indexed Job."""
    metadata = pod.get("metadata") or {}
    for marks in (metadata.get("labels") or {}, metadata.get("annotations") or {}):
        index = str(marks.get(COMPLETION_INDEX, ""))
        if index.isdecimal():
            return int(index)
    return None


def member_name(who: tuple[str, int] | None) -> str | None:
    """``worker-0``."""
    return None if who is None else f"{who[0]}-{who[1]}"


def seen_job(
    job: Json | None,
    status: Json,
    replicas: Mapping[str, int],
    pods: Sequence[Json],
    suspended: bool,
    role_of: RoleOf,
) -> JobSeen:
    """Read a job object of JobSet's shape and its pods. ``replicas``: role -> members that its spec asks for,
    in rank order; ``role_of``: the role and index of a pod. The status does not say that members run: their
    pods do.
    """
    conditions = [replace(c, type=_WORDS.get(c.type, c.type)) for c in read_conditions(status)]
    end = next((c for c in conditions if c.type in ("Succeeded", "Failed") and c.status == "True"), None)
    resumed = next((c.since for c in conditions if c.type == "Suspended" and c.status == "False"), None)
    metadata = (job or {}).get("metadata") or {}
    created = from_rfc3339(metadata.get("creationTimestamp"))
    # A suspended job whose spec has never changed was created so: no member was ever made.
    gone = end is not None or job is None or (suspended and metadata.get("generation") != 1)
    newest = newest_pods(pods, role_of)
    members = tuple(
        replace(m, restarts=m.restarts + _gang_restarts(newest.get((m.group, m.index))))
        for m in seen_members(replicas, newest, tuple(replicas), CONTAINER, gone)
    )
    begun = ("running", "succeeded", "failed")
    if end is None and not suspended and any(m.phase in begun for m in members):
        conditions.append(_running(min((m.started for m in members if m.started), default=None)))
    counts = {
        str(group_status.get("name") or ""): Counts(
            replicas.get(str(group_status.get("name") or ""), 0),
            int(group_status.get("active") or 0),
            int(group_status.get("succeeded") or 0),
            int(group_status.get("failed") or 0),
        )
        for group_status in status.get("replicatedJobsStatus") or status.get("jobsStatus") or ()
        if group_status.get("name") in replicas  # the Jobs of a role; nodes of one Job are not counted there
    }
    return JobSeen(
        conditions=tuple(conditions),
        members=members,
        counts=counts,
        total=sum(replicas.values()),
        started=resumed or (None if suspended else created),
        finished=end.since if end is not None else None,
        suspended=suspended,
        scope=_scope(job),
    )


def _scope(job: Json | None) -> Scope:
    """Scope of a restart: members of allaboard's elastic jobs and of MPI jobs restart alone."""
    metadata = (job or {}).get("metadata") or {}
    alone = NEEDED in (metadata.get("annotations") or {}) or mpi.LAUNCHER in (told_groups(metadata) or {})
    return "member" if alone else "gang"


def _gang_restarts(pod: Json | None) -> int:
    """Number of restarts of the gang when JobSet made this pod."""
    restarts = str((((pod or {}).get("metadata") or {}).get("labels") or {}).get(RESTARTS_LABEL, ""))
    return int(restarts) if restarts.isdecimal() else 0


def _running(since: float | None) -> Condition:
    from allaboard.runs.observation import Condition

    return Condition("Running", "True", _RUNNING, "told by the pods; the job object does not say it", since)


def with_deadline(condition: Condition, deadline: Any, started: float | None) -> Condition:
    """The Failed of a deadline, by its time: a JobSet names only the Job that failed."""
    if condition.type != "Failed" or condition.status != "True" or not isinstance(deadline, int):
        return condition
    late = None not in (started, condition.since) and (condition.since or 0) - (started or 0) >= deadline
    return replace(condition, reason=DEADLINE) if late else condition


# Played on one machine.


def with_condition(conditions: tuple[Condition, ...], new: Condition) -> tuple[Condition, ...]:
    """The conditions after the controller has set ``new`` (pkg/controllers/jobset_controller.go), and after
    `read` has told by the pods whether members run.
    """
    if any(c.type in ("Succeeded", "Failed") and c.status == "True" for c in conditions):
        return conditions
    if any((c.type, c.status, c.reason) == (new.type, new.status, new.reason) for c in conditions):
        return conditions
    if new.type == "Running" or (new.type != "Restarting" and new.status == "True"):
        restarted = (replace(c, status="False") if c.type == "Restarting" else c for c in conditions)
        conditions = tuple(c for c in restarted if c.type != "Running")
    if new.type == "Running" and new.status != "True":
        return conditions
    if any(c.type == new.type for c in conditions):
        return tuple(new if c.type == new.type else c for c in conditions)
    return (*conditions, new)


def message(kind: str, condition: str, job: str, role: str, count: int) -> str:
    """Plain words for a condition of a job that is played on one machine."""
    return {
        "Created": f"{kind} {job} is created.",
        "Running": f"{kind} {job} is running.",
        "Succeeded": f"{kind} {job} is successfully completed.",
        "Restarting": f"{kind} {job} is restarting because {count} {role} member(s) failed.",
        "Failed": f"{kind} {job} is failed because {count} {role} member(s) failed.",
        "Suspended": f"{kind} {job} is suspended.",
        "Resumed": f"{kind} {job} is resumed.",
        "BackoffLimit": f"{kind} {job} has failed because it has reached the specified backoff limit",
        "Deadline": f"{kind} {job} has failed because it was active longer than specified deadline",
    }[condition]
