"""PaddleJob, kubeflow.org/v1: its object and status, the environment that its operator injects, and its
success rules.

Read from the Training Operator, release 1.9.4: pkg/controller.v1/paddlepaddle (envvar.go,
paddlepaddle_controller.go), pkg/webhooks/paddlepaddle. With a master it is a job of parameter servers, the
masters being the servers; without one it is collective. Its elasticPolicy changes nothing, so it is not
offered.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import TYPE_CHECKING

from allaboard.engines.base import Counts, Place, Verdict
from allaboard.engines.kubeflow import KubeflowEngine

if TYPE_CHECKING:
    from allaboard.runs.layout import Layout, Member


class PaddleJob(KubeflowEngine):
    """`allaboard.engines.Engine` for PaddleJobs."""

    KIND = "PaddleJob"
    FRAMEWORKS = ("paddle",)
    ROLES: Mapping[str, int | None] = {"worker": None, "master": None}
    HELPERS = frozenset({"master"})
    DEFAULT_RESTART = "on_failure"
    CONTAINER = "paddle"
    SPECS = "paddleReplicaSpecs"
    OWN_FIELDS = frozenset({"elasticPolicy"})
    INJECTED = frozenset(
        {
            "PYTHONUNBUFFERED",
            "PADDLE_JOB_ID",
            "PADDLE_NNODES",
            "PADDLE_MASTER",
            "PADDLE_SERVER_NUM",
            "PADDLE_TRAINER_NUM",
            "POD_IP_DUMMY",
        }
    )

    def listeners(self, layout: Layout) -> list[tuple[str, ...]]:
        """The rendezvous: the first master, else the first worker."""
        return [(_first(layout),)]

    def environment(self, layout: Layout, member: Member, place: Place) -> dict[str, str]:
        """The variables that the operator appends to a member's own; they win over the user's."""
        env = {
            "PYTHONUNBUFFERED": "1",
            "PADDLE_JOB_ID": layout.name,
            "PADDLE_NNODES": str(layout.total),
            "PADDLE_MASTER": str(place[_first(layout)]),
        }
        if layout.group("master") is not None:
            env["PADDLE_SERVER_NUM" if member.group == "master" else "PADDLE_TRAINER_NUM"] = "1"
        return env

    def judge(self, layout: Layout, counts: Mapping[str, Counts]) -> Verdict:
        """The masters decide; without one all workers."""
        deciding = counts.get("master") or counts["worker"]
        return Verdict(running=deciding.active > 0, succeeded=deciding.succeeded >= deciding.replicas)


def _first(layout: Layout) -> str:
    """The member where the others meet."""
    return "worker-0" if layout.group("master") is None else "master-0"


ENGINE = PaddleJob()
