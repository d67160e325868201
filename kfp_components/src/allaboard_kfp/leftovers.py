"""Leftovers of a pipeline run: runs that are live, and that no step of it follows any more.

Kubeflow's "Terminate" gives a step less than a second, and a pod may be killed without a word. Members that
are pods of their own go on then, for a next pod of the step that may never come. A step at the end of the
pipeline stops them.

It asks the cluster who follows a run, and not Kubeflow how its tasks have ended: the driver writes the state
of the DAG at that moment, RUNNING after a failure, and never an error message (kubeflow/pipelines:
backend/src/v2/driver/resolve.go).
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, cast

from allaboard.backends.base import Backend, NotYours, handle_of
from allaboard.runs.observation import Observation
from allaboard.runs.status import state_of
from allaboard_kfp.artifacts import Artifact, write_page
from allaboard_kfp.identity import FOLLOWER, NODE, RUN_LABEL, same_node, step_of
from allaboard_kfp.step import Place, say, step_errors, with_inputs
from allaboard_kfp.summary import plain

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.backend import KubernetesBackend
    from allaboard.backends.kubernetes.client.protocol import Json

_OVER = ("Succeeded", "Failed")
_MAIN = "main"
"""The container of a step, as Argo calls it."""
REASON = "its pipeline run has ended, and no step follows it"


@with_inputs
def run_clean_up(*, backend: str, namespace: str, summary: Artifact) -> list[str]:
    """Stop the runs of this pipeline run that no step follows; their names. Safe to repeat."""
    with step_errors():
        place = Place.of(summary.uri, backend=backend, namespace=namespace)
        runs = place.open_backend()
        pipeline, _ = step_of(place.key)
        live = [*_live_runs(runs, pipeline)]
        pods = _live_pods(runs, pipeline) if live else []
        stopped, lines = [], []
        for seen in live:
            if _is_followed(seen, pods):
                lines.append(f"{seen.run} is left alone: a step of this pipeline run follows it")
            elif _is_stopped(runs, seen):
                stopped.append(seen.run)
                lines.append(f"{seen.run} is stopped: {REASON}")
            else:
                lines.append(f"{seen.run} is left alone: it has ended, or another client has taken it over")
        lines = lines or ["nothing is left of this pipeline run"]
        for line in lines:
            say(line)
        write_page(summary, "".join(f"- {plain(line)}\n" for line in lines))
        return stopped


@dataclass(frozen=True, slots=True)
class _Pod:
    """A pod of a step that has not ended. ``node``: of the workflow."""

    names: tuple[str, ...]
    node: str


def _live_runs(runs: Backend, pipeline: str) -> Iterator[Observation]:
    """The runs of one pipeline run that go on, and that nobody has stopped."""
    for seen in runs.list() if pipeline else ():
        if step_of(seen.key)[0] == pipeline and seen.stop is None and not state_of(seen).is_final:
            yield seen


def _live_pods(runs: Backend, pipeline: str) -> list[_Pod]:
    """The pods of the steps of one pipeline run, where members have others. Elsewhere a run ends with the
    pod, or the process, of its step.
    """
    if runs.name == "local":
        return []
    from allaboard.backends.kubernetes.client.loader import namespace_of_pod
    from allaboard.backends.kubernetes.client.resources import PODS

    api = cast("KubernetesBackend", runs).api
    listed = api.list(PODS, namespace_of_pod(), labels=f"{RUN_LABEL}={pipeline}")[0]
    return [
        _Pod(
            (pod["metadata"].get("uid", ""), pod["metadata"]["name"]),
            (pod["metadata"].get("annotations") or {}).get(NODE, ""),
        )
        for pod in listed
        if not _has_ended(pod) and pod["metadata"]["name"] != os.environ.get("KFP_POD_NAME")
    ]


def _has_ended(pod: Json) -> bool:
    """Return whether nothing of the step runs any more: Argo's own container may outlive it."""
    status = pod.get("status") or {}
    main = [item for item in status.get("containerStatuses") or () if item.get("name") == _MAIN]
    over = any("terminated" in (container.get("state") or {}) for container in main)
    return over or status.get("phase") in _OVER or "deletionTimestamp" in pod["metadata"]


def _is_followed(seen: Observation, pods: list[_Pod]) -> bool:
    """Return whether the pod that follows it is there, or the next pod of the same step."""
    owner, (_, node) = seen.owner.id if seen.owner is not None else "", step_of(seen.key)
    return any(
        owner in [f"{FOLLOWER}{name}" for name in pod.names] or same_node(pod.node, node) for pod in pods
    )


def _is_stopped(runs: Backend, seen: Observation) -> bool:
    if seen.owner is None:
        return False
    answer = runs.stop(handle_of(seen), seen.owner, "clean_up", REASON)
    return not isinstance(answer, NotYours) and not answer.already
