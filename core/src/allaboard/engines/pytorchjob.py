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
    from allaboard.engines.reading.values import Reading
    from allaboard.gangs.base import GangPlan
    from allaboard.runs.layout import Layout, Member


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
        """A master and the rest workers; workers alone when elastic (core/docs/contract.md, Members)."""
        if elastic:
            return {"worker": workers}
        return {"master": 1, "worker": workers - 1} if workers > 1 else {"master": 1}

    def objections(self, job: Mapping[str, Any]) -> Iterator[Problem]:
        """Problems of a valid job's fields that this engine cannot do as they are written."""
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

    def take_own_fields(
        self, reading: Reading, spec: dict[str, Any], job: dict[str, Any], groups: Mapping[str, int]
    ) -> None:
        """``elasticPolicy`` and ``nprocPerNode``. What a job cannot say of the rendezvous stays in
        ``engine_spec``.
        """
        policy = reading.mapping(spec.pop("elasticPolicy", None), _ELASTIC)
        _take_processes(reading, spec, policy, job)
        if policy:
            _take_elastic(reading, policy, job, groups)

    def needed(self, job: Mapping[str, Any]) -> int:
        """Number of members that start together: that of the gang, else the elastic minimum, else all."""
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
    gpus = any(group.needs.gpus for group in layout.groups)
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


# Up, from an object to a job.

_ELASTIC = "spec.elasticPolicy"


def _take_processes(
    reading: Reading, spec: dict[str, Any], policy: dict[str, Any], job: dict[str, Any]
) -> None:
    """The operator's default is auto; a job's own is 1 where no GPU is asked for."""
    at = "spec.nprocPerNode"
    reading.paths["processes_per_member"] = at
    word = reading.text(spec.pop("nprocPerNode", None), at)
    older = reading.whole(policy.pop("nProcPerNode", None), f"{_ELASTIC}.nProcPerNode", 1)
    if older is not None and word is not None:
        reading.lose(f"{_ELASTIC}.nProcPerNode", older, f"stands beside {at}, which counts")
    elif older is not None:
        reading.change(f"{_ELASTIC}.nProcPerNode", older, older, f"{at} says it today")
        word = str(older)
    if word is not None and word.isdecimal() and len(word) < 6:
        job["processes_per_member"] = int(word)
    elif word in ("cpu", "gpu") or (word in (None, "auto") and not _asks_for_gpus(job)):
        job["processes_per_member"] = word or "auto"
        if word is None:
            reason = "the operator says auto where nothing is written; a job's own is 1 without GPUs"
            reading.change(at, None, "auto", reason)
    elif word not in (None, "auto"):
        reading.wrong(at, "expected auto, cpu, gpu or a number")


def _asks_for_gpus(job: Mapping[str, Any]) -> bool:
    groups = [group for group in job.get("groups", {}).values() if isinstance(group, Mapping)]
    needs = [job.get("resources") or {}, *(group.get("resources") or {} for group in groups)]
    return any("gpu" in resources or "mig" in resources for resources in needs)


def _take_elastic(
    reading: Reading, policy: dict[str, Any], job: dict[str, Any], groups: Mapping[str, int]
) -> None:
    """As ``elastic`` if a job can say it, else as it is; of minReplicas and maxReplicas one stands for the
    other, and the number of workers for both.
    """
    whole = _own(policy)
    least = reading.whole(policy.pop("minReplicas", None), f"{_ELASTIC}.minReplicas", 1)
    most = reading.whole(policy.pop("maxReplicas", None), f"{_ELASTIC}.maxReplicas", 1)
    restarts = reading.whole(policy.pop("maxRestarts", None), f"{_ELASTIC}.maxRestarts")
    backend = reading.text(policy.pop("rdzvBackend", None), f"{_ELASTIC}.rdzvBackend")
    conf = _rendezvous_conf(reading, policy)
    workers, total = groups.get("worker", 0), sum(groups.values())
    least, most = least or most or workers, most or least or workers
    if not workers or not least <= total <= most or backend not in (None, "c10d", "etcd", "etcd-v2"):
        reason = "elastic on a cluster alone: a job cannot express its members or its rendezvous"
        reading.change(_ELASTIC, whole, {"engine_spec": {"elasticPolicy": whole}}, reason)
        job["engine_spec"]["elasticPolicy"] = whole
        return
    reading.paths["elastic"] = _ELASTIC
    job["elastic"] = {"min": least, "max": most}
    if restarts is not None:
        job["elastic"]["max_restarts"] = restarts
    if backend is not None:
        job["elastic"]["rendezvous"] = backend
    if conf:
        job["elastic"]["rendezvous_conf"] = conf
    if policy:
        job["engine_spec"]["elasticPolicy"] = _own(policy)


def _own(fields: Mapping[str, Any]) -> Any:
    from allaboard.engines.reading.values import plain

    return plain(fields)


def _rendezvous_conf(reading: Reading, policy: dict[str, Any]) -> dict[str, str]:
    """``rdzvConf``: the last value of a key that appears twice counts (torchrun reads a mapping)."""
    at = f"{_ELASTIC}.rdzvConf"
    if policy.get("rdzvConf") == []:
        reading.change(at, [], None, "the operator takes no empty list")
    conf: dict[str, str] = {}
    for n, item in enumerate(reading.items(policy.pop("rdzvConf", None), at)):
        pair = reading.mapping(item, f"{at}[{n}]")
        key = reading.text(pair.pop("key", None), f"{at}[{n}].key")
        value = reading.text(pair.pop("value", None), f"{at}[{n}].value")
        if key is None or value is None:
            reading.wrong(f"{at}[{n}]", "expected a key and a value")
        else:
            conf[key] = value
        reading.lose_rest(pair, f"{at}[{n}]", "an entry has a key and a value")
    return conf


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
