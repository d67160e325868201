"""Obstacles that keep members from starting, each a sentence and the code of a cause (core/docs/causes.md):
an image that cannot be pulled, a missing Secret, a program that does not exist, a volume that does not mount,
a pod that admission refuses, a request that no node can ever hold. Values in, values out.

The rules of the causes (`allaboard.diagnosis`) read the messages, so that the doctor, preflight and this live
view agree. This module adds the look at the nodes themselves.

`never` means that waiting does not help: a person must change the job or the cluster first. A follower ends
such a run after the clock of its phase (`policy.clocks`), or after `PATIENCE` where the job sets no clock;
and at the first look where no node can ever hold it and nothing can change that (`Obstacle.certain`): others
wait for the places that it holds. An obstacle that may pass by itself (a registry that limits, a full
cluster) never ends the run.
"""

from __future__ import annotations

from allaboard.backends.kubernetes.observe.objects import pod_seen
from allaboard.backends.kubernetes.observe.scene import Json, Scene
from allaboard.runs.observation import Obstacle, PodSeen


def obstacle_of(scene: Scene) -> Obstacle | None:
    """The obstacle that keeps members from starting; None: none is known."""
    going = sum(pod.phase in ("Running", "Succeeded") for pod in scene.pods.values())
    if scene.suspended or (going >= scene.needed > 0 and not any(map(_stuck_at_start, scene.pods.values()))):
        return None
    # A follower of runs that train needs none of the causes.
    from allaboard.backends.kubernetes.observe.kept_back import obstacle_in

    return obstacle_in(scene)


def _stuck_at_start(pod: PodSeen) -> bool:
    """True when only the kubelet counts a pod as running: its program could not be started."""
    return any(c.now.state == "waiting" and c.start_failure is not None for c in pod.containers)


def is_over_quota(message: str) -> bool:
    """True when this message is the refusal of a quota."""
    from allaboard.diagnosis.rule import Place
    from allaboard.diagnosis.verdict import verdict_of

    verdict = verdict_of(Place.REFUSAL, message)
    return verdict is not None and verdict.code == "resource_quota_exceeded"


def is_unschedulable(pod: Json) -> bool:
    """True when a scheduler has reported that it finds no place for the pod."""
    return pod_seen(pod).finds_no_place
