"""What keeps members from starting, in one sentence and with the code of a cause (core/docs/causes.md): an
image that cannot be had, a Secret that is not there, a program that does not exist, a volume that does not
mount, a pod that admission refuses, a request that no node can ever hold. Values in, values out.

What a message means is for the causes to say (`allaboard.diagnosis`): the doctor, preflight and this live
view say the same. What is added here is the look at the nodes themselves.

`never` says that waiting does not help: a person must change the job or the cluster first. Such a run is
ended by its follower after the clock of the phase that it is in (`policy.clocks`), or after `PATIENCE` where
the job says nothing; and at the first look where no node can ever hold it and nothing is there that changes
that (`Obstacle.certain`): others wait for the places that it holds. What may pass by itself (a registry that
limits, a full cluster) waits without end.
"""

from __future__ import annotations

from allaboard.backends.kubernetes.observe.objects import pod_seen
from allaboard.backends.kubernetes.observe.scene import Json, Scene
from allaboard.runs.observation import Obstacle, PodSeen


def obstacle_of(scene: Scene) -> Obstacle | None:
    """What keeps members from starting; None: nothing that is known."""
    going = sum(pod.phase in ("Running", "Succeeded") for pod in scene.pods.values())
    if scene.suspended or (going >= scene.needed > 0 and not any(map(_stuck_at_start, scene.pods.values()))):
        return None
    # Who follows runs that train needs none of the causes.
    from allaboard.backends.kubernetes.observe.kept_back import obstacle_in

    return obstacle_in(scene)


def _stuck_at_start(pod: PodSeen) -> bool:
    """Whether a pod runs for its kubelet alone: its program could not be started."""
    return any(c.now.state == "waiting" and c.start_failure is not None for c in pod.containers)


def is_over_quota(said: str) -> bool:
    """Whether a refusal is that of a quota."""
    from allaboard.diagnosis.rule import Place
    from allaboard.diagnosis.verdict import verdict_of

    found = verdict_of(Place.REFUSAL, said)
    return found is not None and found.code == "resource_quota_exceeded"


def is_unschedulable(pod: Json) -> bool:
    """Whether a scheduler has said that it finds no place for it."""
    return pod_seen(pod).finds_no_place
