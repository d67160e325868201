"""Rules about members on capacity that may be taken away."""

from __future__ import annotations

from collections.abc import Iterator

from allaboard.lint.rule import Hit, rule
from allaboard.lint.view import JOB, Group, View, items, mapping
from allaboard.render.spot import LABELS, TAINTS, may_be_taken
from allaboard.text import units

_CUSTOM = ("/spot", "preemptible")
"""Parts of taints and labels that sites have beside those of the clouds."""
_SELDOM = 1800.0
"""Seconds between checkpoints beyond which a reclaim costs more than the capacity saves: spot nodes of a gang
are taken several times a day.
"""


def _on_spot(group: Group) -> bool:
    """True if its pods may run, or must, on nodes that are taken away."""
    tolerated = [str(mapping(t).get("key", "")) for t in items(group.pod.get("tolerations"))]
    selected = mapping(group.pod.get("nodeSelector"))
    if any(key in dict(TAINTS) for key in tolerated) or any(label in LABELS for label in selected.items()):
        return True
    return any(word in str(key).lower() for key in (*tolerated, *selected) for word in _CUSTOM)


@rule(
    "spot_without_grace",
    "warning",
    "members may be taken away, and nothing says how long they have to save",
    "The default is 30 seconds from SIGTERM to SIGKILL. What takes longer to save is lost, and clouds give "
    "between some seconds and 2 minutes.",
    "set the time that a checkpoint takes, within what the cloud gives",
    job_fix="set spot.grace to the time that a checkpoint takes, within what the cloud gives",
)
def spot_without_grace(view: View) -> Iterator[Hit]:
    """Kubernetes, terminationGracePeriodSeconds (30). The notice of a node: 120 s on EC2, 30 s on Azure and
    on Google Cloud, of which pods get a part.
    """
    if view.origin == JOB:
        spot = mapping(view.fields.get("spot"))
        if may_be_taken(spot) and "grace" not in spot:
            yield Hit("spot.grace")
        return
    for group in view.groups:
        if _on_spot(group) and group.pod.get("terminationGracePeriodSeconds") is None:
            yield Hit(view.in_pod(group, "terminationGracePeriodSeconds"))


@rule(
    "spot_without_checkpoints",
    "warning",
    "members may be taken away, and nothing is saved",
    "Each time that a node is taken the training begins from its first step; a long one never ends.",
    "name a place under checkpoints.uri",
    reads=(JOB,),
)
def spot_without_checkpoints(view: View) -> Iterator[Hit]:
    """The practice of every cloud's guide to spot capacity: save, and go on from there."""
    if may_be_taken(mapping(view.fields.get("spot"))) and "checkpoints" not in view.fields:
        yield Hit("checkpoints")


@rule(
    "spot_saves_seldom",
    "advice",
    "members may be taken away, and checkpoints are far apart",
    "Half of the time between two checkpoints is lost at each reclaim, by every member, where the grace is "
    "too short to save.",
    "save every ten minutes or so",
    reads=(JOB,),
)
def spot_saves_seldom(view: View) -> Iterator[Hit]:
    """Young's formula: the best interval is the root of twice the time of a checkpoint times the time between
    failures; 30 s and 4 h give some 15 minutes. Steps have no time here.
    """
    spot, every = mapping(view.fields.get("spot")), mapping(view.fields.get("checkpoints")).get("every")
    if not may_be_taken(spot) or not isinstance(every, str) or every.isdecimal():
        return
    if units.seconds(every) > _SELDOM:
        yield Hit("checkpoints.every", every)


@rule(
    "spot_never_restarted",
    "warning",
    "members may be taken away, and none is started again",
    "A pod that is lost with its node has failed. Under Never that is the end of the whole job.",
    "say OnFailure",
    job_fix="say on_failure",
)
def spot_never_restarted(view: View) -> Iterator[Hit]:
    """Training Operator: a failed pod under Never fails the job; the default of all kinds but PyTorchJob and
    PaddleJob.
    """
    if not view.is_v1:
        return
    default = view.engine.default_restart(view.engine.FRAMEWORKS[0])
    for group in view.groups:
        if _on_spot(group) and (group.restart == "Never" or (group.restart is None and default == "never")):
            yield Hit(view.restart(group))
