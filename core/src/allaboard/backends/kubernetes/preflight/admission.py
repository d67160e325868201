"""Admission by Kueue: if a ClusterQueue can ever admit a job, and if it has room now. Values in, values out.

The rule, of pkg/scheduler/flavorassigner/flavorassigner.go (0.19.2): the members of one role get one flavor
for each group of resources that the queue covers, and all of them must fit it. A flavor is one of nodes: its
taints must be tolerated, and its labels must not contradict what the members select.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal
from typing import Any

from allaboard.backends.kubernetes.discovery.capacity import Pods, show, why_not
from allaboard.backends.kubernetes.discovery.installed import Node
from allaboard.gangs.requests import amount, requested

Json = Mapping[str, Any]


@dataclass(frozen=True, slots=True)
class Admission:
    """``never``: why it is not admitted, however empty the queue is; ``not_covered``: resources that the
    queue does not speak of, by which Kueue refuses a job unless its configuration leaves them out;
    ``waits``: what others use now of what it needs.
    """

    never: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()


def judge(queue: Json, flavors: Mapping[str, Json], pods: Sequence[Pods]) -> Admission:
    """The obstacles to these pods. ``flavors``: the ResourceFlavors that may be read, by name; others are
    assumed to match.
    """
    groups = tuple((queue.get("spec") or {}).get("resourceGroups") or ())
    covered = {str(name) for group in groups for name in group.get("coveredResources") or ()}
    asked = {pod.role: _asked(pod) for pod in pods}
    extra = {name for wanted in asked.values() for name in wanted if name not in covered}
    never: list[str] = []
    waits: list[str] = []
    for group in groups:
        never += dict.fromkeys(_never(queue, group, flavors, pods, asked))
        waits += dict.fromkeys(_waits(queue, group, asked))
    return Admission(tuple(never), tuple(sorted(extra)), () if never else tuple(waits))


def _asked(pods: Pods) -> dict[str, Decimal]:
    """The resources that all pods of a role ask for together."""
    return {name: value * pods.replicas for name, value in requested(pods.spec).items() if value > 0}


def _covered_by(group: Json, asked: Mapping[str, Decimal]) -> dict[str, Decimal]:
    covered = group.get("coveredResources") or ()
    return {name: value for name, value in asked.items() if name in covered}


def _never(
    queue: Json,
    group: Json,
    flavors: Mapping[str, Json],
    pods: Sequence[Pods],
    asked: Mapping[str, Mapping[str, Decimal]],
) -> Iterator[str]:
    keys = {key for flavor in flavors.values() for key in _labels(flavor)}
    for pod in pods:
        wanted = _covered_by(group, asked[pod.role])
        if not wanted:
            continue
        reasons = {
            str(flavor["name"]): _why_no_match(flavors[flavor["name"]], pod.spec, keys)
            for flavor in group.get("flavors") or ()
            if flavor.get("name") in flavors
        }
        left = [f for f in group.get("flavors") or () if reasons.get(str(f.get("name"))) is None]
        if not left:
            mismatch = "; ".join(f"{name} {reason}" for name, reason in reasons.items())
            yield f"no flavor matches the members of {pod.role}: {mismatch or 'it has none'}"
            continue
        for name, value in wanted.items():
            most = [_most(queue, flavor, name) for flavor in left]
            if all(each is not None and value > each for each in most):
                best = show(name, max(each for each in most if each is not None))
                demand = f"{_members(pod)} ask for {show(name, value)} {name} together"
                yield f"{demand}, and no flavor can have more than {best}"
    yield from _too_much_in_all(queue, group, asked)


def _too_much_in_all(queue: Json, group: Json, asked: Mapping[str, Mapping[str, Decimal]]) -> Iterator[str]:
    """Demands of all roles that all flavors together cannot meet."""
    for name in group.get("coveredResources") or ():
        total = sum((wanted.get(name, Decimal(0)) for wanted in asked.values()), Decimal(0))
        most = [_most(queue, flavor, name) for flavor in group.get("flavors") or ()]
        if len(asked) > 1 and all(each is not None for each in most):
            whole = sum((each for each in most if each is not None), Decimal(0))
            if total > whole:
                demand = f"all members ask for {show(name, total)} {name} together"
                yield f"{demand}, and the queue can have {show(name, whole)}"


def _waits(queue: Json, group: Json, asked: Mapping[str, Mapping[str, Decimal]]) -> Iterator[str]:
    """Demands of all members that no flavor can meet now."""
    used = {
        (str(flavor.get("name")), str(each.get("name"))): amount(each.get("total") or 0)
        for flavor in (queue.get("status") or {}).get("flavorsReservation") or ()
        for each in flavor.get("resources") or ()
    }
    for name in group.get("coveredResources") or ():
        total = sum((wanted.get(name, Decimal(0)) for wanted in asked.values()), Decimal(0))
        free = Decimal(0)
        for flavor in group.get("flavors") or ():
            nominal = _quota(flavor, name).get("nominalQuota") or 0
            free += max(Decimal(0), amount(nominal) - used.get((str(flavor.get("name")), name), Decimal(0)))
        if total > free:
            demand = f"the members ask for {show(name, total)} {name}"
            yield f"{demand}, and {show(name, free)} of its own quota are free now"


def _most(queue: Json, flavor: Json, resource: str) -> Decimal | None:
    """The most that a flavor can ever have for one job; None: others of its cohort lend without a known
    limit.
    """
    quota = _quota(flavor, resource)
    nominal = amount(quota.get("nominalQuota") or 0)
    spec = queue.get("spec") or {}
    if not (spec.get("cohortName") or spec.get("cohort")):
        return nominal
    limit = quota.get("borrowingLimit")
    return None if limit is None else nominal + amount(limit)


def _quota(flavor: Json, resource: str) -> Json:
    return next((each for each in flavor.get("resources") or () if each.get("name") == resource), {})


def _labels(flavor: Json) -> Mapping[str, str]:
    return (flavor.get("spec") or {}).get("nodeLabels") or {}


def _why_no_match(flavor: Json, spec: Json, keys: set[str]) -> str | None:
    """The reason for which these pods never run on the nodes of a flavor. ``keys``: the labels that tell
    flavors apart; other labels that the pods select by are left to the scheduler.
    """
    own = flavor.get("spec") or {}
    selected = {key: value for key, value in (spec.get("nodeSelector") or {}).items() if key in keys}
    tolerations = [*(spec.get("tolerations") or ()), *(own.get("tolerations") or ())]
    node = Node("", {}, labels=dict(_labels(flavor)), taints=tuple(own.get("nodeTaints") or ()))
    return why_not({"nodeSelector": selected, "tolerations": tolerations}, node)


def _members(pods: Pods) -> str:
    return (
        f"the {pods.replicas} members of {pods.role}" if pods.replicas > 1 else f"the member of {pods.role}"
    )
