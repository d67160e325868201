"""MXJob, kubeflow.org/v1: its object and status, the environment that its operator injects, and its success
rules. Only operators up to 1.8 know it: it was marked as deprecated in 1.8.0 and taken out in 1.9.0.

Read from the Training Operator, release 1.8.1: pkg/controller.v1/mxnet (mxnet.go, mxjob_controller.go),
pkg/apis/kubeflow.org/v1/mxnet_types.go, mxnet_validation.go, pkg/webhooks/mxnet. Its webhook refuses nothing.

The scheduler of MXNet's parameter servers decides, or a worker that is the only member. A job that tunes
(autotvm: tuners, their tracker and servers) has neither, and never succeeds by itself.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import replace
from typing import TYPE_CHECKING, Any

from allaboard.engines.base import Address, Counts, Place, Verdict
from allaboard.engines.kubeflow import OPERATOR, KubeflowEngine, without_gpus
from allaboard.errors import Problem

if TYPE_CHECKING:
    from allaboard.engines.reading.values import Reading
    from allaboard.gangs.base import GangPlan
    from allaboard.runs.layout import Group, Layout, Member

_TUNERS = frozenset({"tuner", "tunerserver", "tunertracker"})


class MXJob(KubeflowEngine):
    """`allaboard.engines.Engine` for MXJobs. Roles that train come first: rank 0 speaks for a run."""

    KIND = "MXJob"
    FRAMEWORKS = ("mxnet",)
    ROLES: Mapping[str, int | None] = {
        "worker": None,
        "tuner": None,
        "server": None,
        "scheduler": 1,
        "tunerserver": None,
        "tunertracker": 1,
    }
    HELPERS = frozenset({"server", "scheduler", "tunerserver", "tunertracker"})
    CONTAINER = "mxnet"
    SPECS = "mxReplicaSpecs"
    OWN_FIELDS = frozenset({"jobMode"})
    NAMES_NAMESPACE = False
    INJECTED = frozenset(
        {
            "MX_CONFIG",
            "DMLC_PS_ROOT_PORT",
            "DMLC_PS_ROOT_URI",
            "DMLC_NUM_SERVER",
            "DMLC_NUM_WORKER",
            "DMLC_ROLE",
            "DMLC_USE_KUBERNETES",
            "DMLC_WORKER_ID",
        }
    )
    OPERATOR = replace(OPERATOR, title=f"{OPERATOR.title} up to 1.8", guide="training-operator-1.8")

    def __init__(self) -> None:
        super().__init__()
        self.PROBE = None

    def groups_of(self, job: Mapping[str, Any]) -> Mapping[str, Any]:
        """As written, else so many workers with a server and a scheduler, which get no GPUs; one is alone."""
        groups = super().groups_of(job)
        if job.get("groups"):
            return groups
        return {role: number if role == "worker" else without_gpus(number) for role, number in groups.items()}

    def default_groups(self, workers: int, elastic: bool) -> Mapping[str, int]:
        """Workers, and who serves several of them."""
        return {"worker": workers, "server": 1, "scheduler": 1} if workers > 1 else {"worker": 1}

    def objections(self, job: Mapping[str, Any]) -> Iterator[Problem]:
        """Problems of a valid job's fields that this engine cannot do as they are written."""
        message = f"{self.KIND} is known to the Training Operator up to 1.8 alone; 1.9 and later have none"
        yield Problem("framework", message, severity="warning")
        groups = job.get("groups") or {}
        trains, tunes = {*groups} - _TUNERS, {*groups} & _TUNERS
        if trains and tunes:
            message = "servers, schedulers and workers train, tuners tune; a job does one of both"
            yield Problem("groups", message)
        elif tunes:
            message = f"an {self.KIND} that tunes never succeeds by itself; say policy.deadline, or stop it"
            yield Problem("groups", message, severity="warning")
        elif trains and "scheduler" not in groups and not _is_alone(groups):
            message = (
                f"an {self.KIND} of several members never succeeds without a scheduler; add scheduler: 1"
            )
            yield Problem("groups", message)
        yield from super().objections(job)

    def render(
        self,
        layout: Layout,
        metadata: Mapping[str, Any],
        templates: Mapping[str, Mapping[str, Any]],
        gang: GangPlan,
    ) -> dict[str, Any]:
        """The job object."""
        job = super().render(layout, metadata, templates, gang)
        tunes = any(group.role in _TUNERS for group in layout.groups)
        return {**job, "spec": {"jobMode": "MXTune" if tunes else "MXTrain", **job["spec"]}}

    def take_own_fields(
        self, reading: Reading, spec: dict[str, Any], job: dict[str, Any], groups: Mapping[str, int]
    ) -> None:
        """``jobMode``, which follows from the roles."""
        mode = reading.text(spec.pop("jobMode", None), "spec.jobMode")
        usual = "MXTune" if _TUNERS & {*groups} else "MXTrain"
        if mode not in (None, usual):
            reading.lose("spec.jobMode", mode, f"it follows from the roles, which say {usual}")

    def listeners(self, layout: Layout) -> list[tuple[str, ...]]:
        """Every member, as MX_CONFIG has it; others meet at the scheduler, or at the tracker of tuners."""
        first = [m for m in layout.members if m.group in ("scheduler", "tunertracker")]
        return [(m.name,) for m in (*first, *(m for m in layout.members if m not in first))]

    def environment(self, layout: Layout, member: Member, place: Place) -> dict[str, str]:
        """The variables that the operator appends to a member's own; they win over the user's. Keys of
        MX_CONFIG are sorted, as the operator's. Without a scheduler its address is empty. The labels of a job
        of ours are empty, unless `pod` says the annotation tuner-server-key.
        """
        root = place.get("scheduler-0", Address("", 0))
        config = {
            "cluster": {group.role: _addresses(layout, group, place) for group in _sorted(layout)},
            "labels": {group.role: "" for group in _sorted(layout)},
            "task": {"type": member.group, "index": member.index},
        }
        env = {
            "MX_CONFIG": json.dumps(config, separators=(",", ":")),
            "DMLC_PS_ROOT_PORT": str(root.port),
            "DMLC_PS_ROOT_URI": root.host,
            "DMLC_NUM_SERVER": str(_number(layout, "server")),
            "DMLC_NUM_WORKER": str(_number(layout, "worker")),
            "DMLC_ROLE": member.group,
            "DMLC_USE_KUBERNETES": "1",
        }
        return env | ({"DMLC_WORKER_ID": str(member.index)} if member.group == "worker" else {})

    def judge(self, layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
        """The scheduler decides, or a worker that is alone; of others nobody does."""
        deciding = counts.get("scheduler")
        if deciding is None and _is_alone({role: count.replicas for role, count in counts.items()}):
            deciding = counts["worker"]
        if deciding is None:
            return Verdict()
        return Verdict(running=deciding.active > 0, succeeded=deciding.succeeded >= deciding.replicas)

    def message(self, condition: str, job: str, *, master: bool, role: str = "", count: int = 0) -> str:
        """The operator's own words for a condition; it writes its kind small when members fail."""
        text = super().message(condition, job, master=master, role=role, count=count)
        return text.replace(self.KIND, self.NAME, 1) if condition in ("Failed", "Restarting") else text


def _is_alone(groups: Mapping[str, Any]) -> bool:
    """True if a worker trains by itself: one, without servers and a scheduler."""
    worker = groups.get("worker", 0)
    number = worker.get("replicas", 1) if isinstance(worker, Mapping) else worker
    return bool(number == 1) and not {"server", "scheduler"} & {*groups}


def _sorted(layout: Layout) -> list[Group]:
    return sorted(layout.groups, key=lambda group: group.role)


def _addresses(layout: Layout, group: Group, place: Place) -> list[dict[str, Any]]:
    own = [place[m.name] for m in layout.members if m.group == group.role]
    return [{"url": address.host, "port": address.port} for address in own]


def _number(layout: Layout, role: str) -> int:
    group = layout.group(role)
    return 0 if group is None else group.replicas


ENGINE = MXJob()
