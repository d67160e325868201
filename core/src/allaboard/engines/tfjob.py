"""TFJob, kubeflow.org/v1: its object and status, the TF_CONFIG that its operator injects, and its success
rules.

Read from the Training Operator, release 1.9.4: pkg/controller.v1/tensorflow (tensorflow.go,
tfjob_controller.go), pkg/webhooks/tensorflow. ``successPolicy`` and ``enableDynamicWorker`` of a job's
``engine_spec`` count on one machine, too.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from allaboard.engines import kubeflow
from allaboard.engines.base import AddedContainer, Counts, JobSeen, Place, Verdict
from allaboard.errors import Problem
from allaboard.spec.job import member_count

if TYPE_CHECKING:
    from allaboard.gangs.base import GangPlan
    from allaboard.layout import Layout, Member

NAME = "tfjob"
KIND = "TFJob"
FRAMEWORK = "tensorflow"
ROLES: Mapping[str, int | None] = {"chief": 1, "master": 1, "worker": None, "ps": None, "evaluator": None}
HELPERS = frozenset({"ps", "evaluator"})
ELASTIC = False
DEFAULT_RESTART = "never"
API_VERSION = kubeflow.API_VERSION
PLURAL = "tfjobs"
CONTAINER = "tensorflow"
JOB_LABEL = kubeflow.JOB_LABEL
ROLE_LABEL = kubeflow.ROLE_LABEL
INDEX_LABEL = kubeflow.INDEX_LABEL
NATIVELY = kubeflow.NATIVELY
REFUSES: Mapping[str, str] = {}
_SPECS = "tfReplicaSpecs"
FIELDS = frozenset({"enableDynamicWorker", "successPolicy", _SPECS, "runPolicy"})
OPERATOR = kubeflow.OPERATOR
PROBE: Mapping[str, Any] | None = kubeflow.wrong_container(_SPECS, "Worker")
ENDS = kubeflow.ends(KIND)
ADDED: tuple[AddedContainer, ...] = ()
_INJECTED = frozenset({"TF_CONFIG"})


# Down.


def groups_of(workers: int, elastic: bool) -> Mapping[str, int]:
    """Workers alone: all-reduce, led by worker 0."""
    return {"worker": workers}


def objections(job: Mapping[str, Any]) -> Iterator[Problem]:
    """What about a job's sound fields this engine cannot do as it is written."""
    groups = job.get("groups") or {}
    if "chief" in groups and "master" in groups:
        yield Problem("groups", f"{KIND} takes a chief or a master, which are two words for one role")
    if groups and not {"chief", "master", "worker"} & {*groups}:
        yield Problem("groups", f"a {KIND} without a chief, a master and workers never succeeds; add one")
    if groups and member_count(job) == 1:
        words = "the operator gives no TF_CONFIG to a job of one member"
        yield Problem("groups", words, severity="warning")
    yield from kubeflow.no_processes(job, KIND)
    yield from kubeflow.overridden(job, _INJECTED)


def render(
    layout: Layout,
    metadata: Mapping[str, Any],
    templates: Mapping[str, Mapping[str, Any]],
    gang: GangPlan,
) -> dict[str, Any]:
    """The job object. ``templates``: the pod template of each role."""
    return kubeflow.job_object(KIND, metadata, _SPECS, layout, templates, gang)


suspension = kubeflow.suspension


# Up.


def read(job: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]]) -> JobSeen:
    """What the job object and its pods say. Ranks are the chief first, then workers, servers, evaluators."""
    return kubeflow.read(job, pods, specs=_SPECS, roles=tuple(ROLES), container=CONTAINER)


def needed(job: Mapping[str, Any]) -> int:
    """How many members start together: what the gang was made of, else all."""
    return kubeflow.gang_size(job) or read(job, ()).total


def added(job: Mapping[str, Any], role: str) -> tuple[AddedContainer, ...]:
    """None."""
    return ADDED


managed_by = kubeflow.managed_by
member_of = kubeflow.member_of
pod_name = kubeflow.pod_name


# The operator, for the local backend.


def listeners(layout: Layout) -> list[tuple[str, ...]]:
    """Every member is a server of the cluster."""
    return [(member.name,) for member in layout.members]


def environment(layout: Layout, member: Member, place: Place) -> dict[str, str]:
    """TF_CONFIG, unless the job has one member alone. Keys are sorted, as the operator's."""
    if layout.total == 1:
        return {}
    task = {"type": member.group, "index": member.index}
    config: dict[str, Any]
    if layout.engine_spec.get("enableDynamicWorker"):
        config = {"cluster": _own_view(layout, member, place), "task": task}
    else:
        config = {"cluster": _servers(layout, place), "task": task, "environment": "cloud"}
    return {"TF_CONFIG": json.dumps(config, separators=(",", ":"))}


def _servers(layout: Layout, place: Place) -> dict[str, list[str]]:
    cluster: dict[str, list[str]] = {group.role: [] for group in layout.groups}
    for member in layout.members:
        cluster[member.group].append(str(place[member.name]))
    return dict(sorted(cluster.items()))


def _own_view(layout: Layout, member: Member, place: Place) -> dict[str, Any]:
    """What a member of a gang whose workers come and go knows: itself and, as a worker, all servers."""
    own = str(place[member.name])
    if member.group == "worker":
        return {"worker": {str(member.index): own}, "ps": _servers(layout, place).get("ps", [])}
    return {"worker": {}, "ps": [own] if member.group == "ps" else []}


def judge(layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
    """The chief, or master, decides. Without one worker 0 does, or all workers under ``AllWorkers``. Servers
    alone never succeed.
    """
    chief = counts.get("chief") or counts.get("master")
    if chief is not None:
        return Verdict(running=chief.active > 0, succeeded=chief.succeeded >= chief.replicas)
    workers = counts.get("worker", Counts(0))
    everyone = workers.replicas > 0 and workers.succeeded >= workers.replicas
    first = workers.first_succeeded and layout.engine_spec.get("successPolicy") != "AllWorkers"
    return Verdict(running=workers.active > 0, succeeded=everyone or first)


def message(condition: str, job: str, *, master: bool, role: str = "", count: int = 0) -> str:
    """The operator's own words for a condition."""
    if condition == "Failed":
        who = kubeflow.replica_type(role)
        return f"{KIND} default/{job} has failed because {count} {who} replica(s) failed."
    return kubeflow.message(KIND, condition, job, is_qualified=True, role=role, count=count)
