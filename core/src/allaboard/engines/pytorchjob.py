"""PyTorchJob, kubeflow.org/v1: its object and status, the environment that its operator injects, and its
success rules.

Read from the Training Operator, release 1.9.4: pkg/controller.v1/pytorch (envvar.go, elastic.go,
pytorchjob_controller.go), pkg/util/status.go, and its CRD. The local backend uses this module to be the
operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any

from allaboard.engines import kubeflow
from allaboard.engines.base import AddedContainer, Counts, JobSeen, Place, Verdict
from allaboard.errors import Problem

if TYPE_CHECKING:
    from allaboard.gangs.base import GangPlan
    from allaboard.layout import Layout, Member

NAME = "pytorchjob"
KIND = "PyTorchJob"
FRAMEWORK = "pytorch"
ROLES: Mapping[str, int | None] = {"master": 1, "worker": None}
DEFAULT_RESTART = "on_failure"
PORT = 23456
API_VERSION = kubeflow.API_VERSION
PLURAL = "pytorchjobs"
CONTAINER = "pytorch"
JOB_LABEL = kubeflow.JOB_LABEL
ROLE_LABEL = kubeflow.ROLE_LABEL
INDEX_LABEL = kubeflow.INDEX_LABEL
NATIVELY = kubeflow.NATIVELY
REFUSES: Mapping[str, str] = {}
_SPECS = "pytorchReplicaSpecs"
FIELDS = frozenset({"elasticPolicy", "nprocPerNode", _SPECS, "runPolicy"})
OPERATOR = kubeflow.OPERATOR
# The container has another name than the operator asks for.
PROBE: Mapping[str, Any] | None = {
    _SPECS: {
        "Worker": {
            "replicas": 1,
            "template": {"spec": {"containers": [{"name": "probe", "image": "probe"}]}},
        }
    }
}
ENDS = kubeflow.ends(KIND)
ADDED = (
    AddedContainer(
        "init-pytorch",
        {"cpu": "50m", "memory": "10Mi"},
        waits_for="its master, whose name is not known yet",
        remedy="have it given a template with one (--pytorch-init-container-template-file), use another "
        "namespace, or train without a master (elastic)",
    ),
)
_INJECTED = frozenset({"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "PYTHONUNBUFFERED"})


# Down.


def objections(job: Mapping[str, Any]) -> Iterator[Problem]:
    """What about a job's sound fields this engine cannot do as it is written."""
    groups = job.get("groups")
    if groups and "master" not in groups and job.get("elastic") is None:
        yield Problem(
            "groups",
            "workers without a master that are not elastic get no MASTER_ADDR and no RANK from the operator; "
            "add master: 1, or elastic",
            severity="warning",
        )
    for name in job.get("environment") or {}:
        if name in _INJECTED or name.startswith("PET_"):
            words = "the operator sets it, and its value wins; take it out"
            yield Problem(f"environment.{name}", words, severity="warning")


def render(
    layout: Layout,
    metadata: Mapping[str, Any],
    templates: Mapping[str, Mapping[str, Any]],
    gang: GangPlan,
) -> dict[str, Any]:
    """The job object. ``templates``: the pod template of each role."""
    spec: dict[str, Any] = {
        "nprocPerNode": _processes(layout),
        "runPolicy": kubeflow.run_policy(layout, gang),
    }
    if layout.elastic is not None:
        spec["elasticPolicy"] = _elastic_policy(layout)
    spec[_SPECS] = kubeflow.replica_specs(layout, templates)
    return {"apiVersion": API_VERSION, "kind": KIND, "metadata": dict(metadata), "spec": spec}


suspension = kubeflow.suspension


def _processes(layout: Layout) -> str:
    """Processes per member. Left open it is `auto`, which torchrun takes for one per CPU of the whole node
    where there is no GPU: a member that asks for none is one process.
    """
    gpus = any(group.needs.gpu or group.needs.mig for group in layout.groups)
    return layout.processes_per_member or ("auto" if gpus else "1")


def _elastic_policy(layout: Layout) -> dict[str, Any]:
    """Without nProcPerNode, which is deprecated, and rdzvHost and rdzvPort, whose defaults are worker 0. An
    empty rdzvConf makes the operator panic.
    """
    elastic = layout.elastic
    assert elastic is not None
    policy: dict[str, Any] = {
        "minReplicas": elastic.min,
        "maxReplicas": elastic.max,
        "rdzvBackend": elastic.rendezvous,
        "rdzvId": layout.name,
    }
    if elastic.conf:
        policy["rdzvConf"] = [{"key": key, "value": value} for key, value in elastic.conf.items()]
    if elastic.max_restarts is not None:
        policy["maxRestarts"] = elastic.max_restarts
    return policy


# Up.


def read(job: Mapping[str, Any] | None, pods: Sequence[Mapping[str, Any]]) -> JobSeen:
    """What the job object and its pods say. RANK is master 0, worker index + 1 where there is a master."""
    return kubeflow.read(job, pods, specs=_SPECS, roles=tuple(ROLES), container=CONTAINER)


def needed(job: Mapping[str, Any]) -> int:
    """How many members start together: what the gang was made of, else the elastic minimum, else all."""
    spec = job.get("spec") or {}
    minimum = ((spec.get("runPolicy") or {}).get("schedulingPolicy") or {}).get("minAvailable")
    least = minimum or (spec.get("elasticPolicy") or {}).get("minReplicas")
    return int(least) if least else read(job, ()).total


def added(job: Mapping[str, Any], role: str) -> tuple[AddedContainer, ...]:
    """Workers wait for the master's name, where there is a master."""
    roles = {name.lower() for name in (job.get("spec") or {}).get(_SPECS) or ()}
    return ADDED if role == "worker" and "master" in roles else ()


managed_by = kubeflow.managed_by
member_of = kubeflow.member_of
pod_name = kubeflow.pod_name


# The operator, for the local backend.


def place(name: str) -> Place:
    """Where the operator's Services put the members of a job of this name."""
    return Place(f"{name}-master-0", PORT, f"{name}-worker-0", PORT)


def environment(layout: Layout, member: Member, place: Place) -> dict[str, str]:
    """The variables that the operator appends to a member's own; they win over the user's.

    MASTER_*, WORLD_SIZE, RANK and PET_NODE_RANK exist only with a master: a masterless job that is not
    elastic gets no rendezvous at all. RANK is a node rank. WORLD_SIZE counts processes when their number per
    member is a number.
    """
    per_member = _processes(layout)
    env = {"PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": per_member}
    if layout.group("master") is not None:
        processes = layout.total * (int(per_member) if per_member.isdecimal() else 1)
        env |= {
            "MASTER_ADDR": place.master,
            "MASTER_PORT": str(place.port),
            "WORLD_SIZE": str(processes),
            "RANK": str(member.rank),
            "PET_MASTER_ADDR": place.master,
            "PET_MASTER_PORT": str(place.port),
            "PET_NODE_RANK": str(member.rank),
        }
    return env | _nnodes(layout) | _rendezvous(layout, place)


def _nnodes(layout: Layout) -> dict[str, str]:
    elastic = layout.elastic
    return {"PET_NNODES": f"{elastic.min}:{elastic.max}" if elastic else str(layout.total)}


def _rendezvous(layout: Layout, place: Place) -> dict[str, str]:
    elastic = layout.elastic
    if elastic is None:
        return {}
    env = {
        "PET_RDZV_BACKEND": elastic.rendezvous,
        "PET_RDZV_ENDPOINT": f"{place.rendezvous}:{place.rendezvous_port}",
        "PET_RDZV_ID": layout.name,
    }
    if elastic.conf:
        env["PET_RDZV_CONF"] = ",".join(f"{k}={v}" for k, v in elastic.conf.items())
    if elastic.max_restarts is not None:
        env["PET_MAX_RESTARTS"] = str(elastic.max_restarts)
    return env


def judge(layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
    """The master decides. Without one: all workers, or any one of them when the job is elastic."""
    master = counts.get("master")
    if master is not None:
        return Verdict(running=master.active > 0, succeeded=master.replicas - master.succeeded == 0)
    workers = counts["worker"]
    enough = 1 if layout.elastic else workers.replicas
    return Verdict(running=workers.active > 0, succeeded=workers.succeeded >= enough)


def message(condition: str, job: str, *, master: bool, role: str = "", count: int = 0) -> str:
    """The operator's own words for a condition (its namespace, where it prints one, is ``default``)."""
    who = f"{KIND} {job}" if master else f"{KIND} default/{job}"
    done = "is successfully completed." if master else "successfully completed."
    return {
        "Created": f"{KIND} {job} is created.",
        "Running": f"{who} is running.",
        "Succeeded": f"{who} {done}",
        "Restarting": f"{KIND} {job} is restarting because {count} {role} replica(s) failed.",
        "Failed": f"{KIND} {job} is failed because {count} {role} replica(s) failed.",
        "Suspended": f"{KIND} {job} is suspended.",
        "Resumed": f"{KIND} {job} is resumed.",
        "BackoffLimit": f"Job {job} has failed because it has reached the specified backoff limit",
        "Deadline": f"Job {job} has failed because it was active longer than specified deadline",
    }[condition]
