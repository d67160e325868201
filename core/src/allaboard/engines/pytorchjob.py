"""PyTorchJob, kubeflow.org/v1: its object and status, the environment that its operator injects, and its
success rules.

Read from the Training Operator, release 1.9.4: pkg/controller.v1/pytorch (envvar.go, elastic.go,
pytorchjob_controller.go), pkg/util/status.go, and its CRD. The local backend uses this module to be the
operator.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import TYPE_CHECKING, Any

from allaboard.engines.base import AddedContainer, Counts, Place, Verdict
from allaboard.engines.kubeflow import KubeflowEngine, overridden, replica_specs, run_policy, stated
from allaboard.errors import Problem

if TYPE_CHECKING:
    from allaboard.gangs.base import GangPlan
    from allaboard.layout import Layout, Member


class PyTorchJob(KubeflowEngine):
    """`allaboard.engines.Engine` for PyTorchJobs. RANK is master 0, worker index + 1 if there is a master."""

    KIND = "PyTorchJob"
    FRAMEWORKS = ("pytorch",)
    ROLES: Mapping[str, int | None] = {"master": 1, "worker": None}
    ELASTIC = True
    DEFAULT_RESTART = "on_failure"
    CONTAINER = "pytorch"
    SPECS = "pytorchReplicaSpecs"
    OWN_FIELDS = frozenset({"elasticPolicy", "nprocPerNode"})
    INJECTED = frozenset({"MASTER_ADDR", "MASTER_PORT", "WORLD_SIZE", "RANK", "PYTHONUNBUFFERED"})
    ADDED = (
        AddedContainer(
            "init-pytorch",
            {"cpu": "50m", "memory": "10Mi"},
            waits_for="its master, whose name is not known yet",
            remedy="have it given a template with one (--pytorch-init-container-template-file), use another "
            "namespace, or train without a master (elastic)",
        ),
    )

    def default_groups(self, workers: int, elastic: bool) -> Mapping[str, int]:
        """A master and the rest workers; workers alone when elastic (contract, section 5)."""
        if elastic:
            return {"worker": workers}
        return {"master": 1, "worker": workers - 1} if workers > 1 else {"master": 1}

    def objections(self, job: Mapping[str, Any]) -> Iterator[Problem]:
        """What about a job's sound fields this engine cannot do as it is written."""
        groups = job.get("groups")
        if groups and "master" not in groups and job.get("elastic") is None:
            yield Problem(
                "groups",
                "workers without a master that are not elastic get no MASTER_ADDR and no RANK from the "
                "operator; add master: 1, or elastic",
                severity="warning",
            )
        pet = [name for name in job.get("environment") or {} if name.startswith("PET_")]
        yield from overridden(job, {*self.INJECTED, *pet})
        command = [*job.get("command", ()), *job.get("args", ())]
        led = any("torchrun" in word or "torch.distributed.run" in word for word in map(str, command))
        # What an image starts by itself, or a group of its own, is not known here.
        if job.get("elastic") is not None and "command" in job and not led:
            yield Problem(
                "command",
                "an elastic job is led by torchrun, which this command does not start; "
                "write [torchrun, train.py]",
                severity="warning",
            )

    def render(
        self,
        layout: Layout,
        metadata: Mapping[str, Any],
        templates: Mapping[str, Mapping[str, Any]],
        gang: GangPlan,
    ) -> dict[str, Any]:
        """The job object. ``templates``: the pod template of each role."""
        spec: dict[str, Any] = {
            "nprocPerNode": _processes(layout),
            "runPolicy": run_policy(layout, gang),
        }
        if layout.elastic is not None:
            spec["elasticPolicy"] = _elastic_policy(layout)
        spec[self.SPECS] = replica_specs(layout, templates)
        return {"apiVersion": self.API_VERSION, "kind": self.KIND, "metadata": dict(metadata), "spec": spec}

    def needed(self, job: Mapping[str, Any]) -> int:
        """How many members start together: what the gang was made of, else the elastic minimum, else all."""
        spec = job.get("spec") or {}
        minimum = (spec.get("elasticPolicy") or {}).get("minReplicas")
        policy = (spec.get("runPolicy") or {}).get("schedulingPolicy") or {}
        return int(minimum) if minimum and not policy.get("minAvailable") else super().needed(job)

    def added(self, job: Mapping[str, Any], role: str) -> tuple[AddedContainer, ...]:
        """Workers wait for the master's name, where there is a master."""
        roles = {name.lower() for name in (job.get("spec") or {}).get(self.SPECS) or ()}
        return self.ADDED if role == "worker" and "master" in roles else ()

    def listeners(self, layout: Layout) -> list[tuple[str, ...]]:
        """The master, and the host of an elastic gang's rendezvous."""
        has_master = layout.group("master") is not None
        first = ["master-0"] if has_master else []
        return [(name,) for name in [*first, *(["worker-0"] if layout.elastic or not has_master else [])]]

    def environment(self, layout: Layout, member: Member, place: Place) -> dict[str, str]:
        """The variables that the operator appends to a member's own; they win over the user's.

        MASTER_*, WORLD_SIZE, RANK and PET_NODE_RANK exist only with a master: a masterless job that is not
        elastic gets no rendezvous at all. RANK is a node rank. WORLD_SIZE counts processes when their number
        per member is a number.
        """
        per_member = _processes(layout)
        env = {"PYTHONUNBUFFERED": "1", "PET_NPROC_PER_NODE": per_member}
        if layout.group("master") is not None:
            processes = layout.total * (int(per_member) if per_member.isdecimal() else 1)
            env |= {
                "MASTER_ADDR": place["master-0"].host,
                "MASTER_PORT": str(place["master-0"].port),
                "WORLD_SIZE": str(processes),
                "RANK": str(member.rank),
                "PET_MASTER_ADDR": place["master-0"].host,
                "PET_MASTER_PORT": str(place["master-0"].port),
                "PET_NODE_RANK": str(member.rank),
            }
        return env | _nnodes(layout) | _rendezvous(layout, place)

    def judge(self, layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
        """The master decides. Without one: all workers, or any one of them when the job is elastic."""
        master = counts.get("master")
        if master is not None:
            return Verdict(running=master.active > 0, succeeded=master.replicas - master.succeeded == 0)
        workers = counts["worker"]
        enough = 1 if layout.elastic else workers.replicas
        return Verdict(running=workers.active > 0, succeeded=workers.succeeded >= enough)


def _processes(layout: Layout) -> str:
    """Processes per member. Left open it is `auto`, which torchrun takes for one per CPU of the whole node
    where there is no GPU: a member that asks for none is one process.
    """
    gpus = any(group.needs.gpu or group.needs.mig for group in layout.groups)
    return layout.processes_per_member or ("auto" if gpus else "1")


def _elastic_policy(layout: Layout) -> dict[str, Any]:
    """Without nProcPerNode, which is deprecated, and rdzvHost and rdzvPort, whose defaults are worker 0. The
    id is the attempt's unless `engine_spec` says one. An empty rdzvConf makes the operator panic.
    """
    elastic = layout.elastic
    assert elastic is not None
    policy: dict[str, Any] = {
        "minReplicas": elastic.min,
        "maxReplicas": elastic.max,
        "rdzvBackend": elastic.rendezvous,
    }
    if "rdzvId" not in stated(layout.engine_spec, "elasticPolicy"):
        policy["rdzvId"] = layout.name
    if elastic.conf:
        policy["rdzvConf"] = [{"key": key, "value": value} for key, value in elastic.conf.items()]
    if elastic.max_restarts is not None:
        policy["maxRestarts"] = elastic.max_restarts
    return policy


def _nnodes(layout: Layout) -> dict[str, str]:
    elastic = layout.elastic
    return {"PET_NNODES": f"{elastic.min}:{elastic.max}" if elastic else str(layout.total)}


def _rendezvous(layout: Layout, place: Place) -> dict[str, str]:
    elastic = layout.elastic
    if elastic is None:
        return {}
    env = {
        "PET_RDZV_BACKEND": elastic.rendezvous,
        "PET_RDZV_ENDPOINT": str(place["worker-0"]),
        "PET_RDZV_ID": str(stated(layout.engine_spec, "elasticPolicy").get("rdzvId") or layout.name),
    }
    if stated(layout.engine_spec, "elasticPolicy").get("standalone"):
        env["PET_STANDALONE"] = ""
    if elastic.conf:
        env["PET_RDZV_CONF"] = ",".join(f"{k}={v}" for k, v in elastic.conf.items())
    if elastic.max_restarts is not None:
        env["PET_MAX_RESTARTS"] = str(elastic.max_restarts)
    return env


ENGINE = PyTorchJob()
