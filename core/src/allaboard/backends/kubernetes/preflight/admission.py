"""Admission by Kueue: if a ClusterQueue can ever admit a job, and if it has room now. Values in, values out.

The rule, of pkg/scheduler/flavorassigner/flavorassigner.go (0.19.2): the members of one role get one flavor
for each group of resources that the queue covers, and all of them must fit it. A flavor is one of nodes: its
taints must be tolerated, and its labels must not contradict what the members select.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from decimal import Decimal

from allaboard.backends.kubernetes.discovery.capacity import Pods, misfit, show
from allaboard.backends.kubernetes.discovery.installed import Node
from allaboard.backends.kubernetes.discovery.kueue_objects import ClusterQueue, Flavor, ResourceGroup
from allaboard.backends.kubernetes.discovery.pod_specs import PodSpec


@dataclass(frozen=True, slots=True)
class Admission:
    """``never``: why it is not admitted, however empty the queue is; ``not_covered``: resources that the
    queue does not speak of, by which Kueue refuses a job unless its configuration leaves them out;
    ``waits``: what others use now of what it needs.
    """

    never: tuple[str, ...] = ()
    not_covered: tuple[str, ...] = ()
    waits: tuple[str, ...] = ()


def judge(queue: ClusterQueue, flavors: Mapping[str, Flavor], pods: Sequence[Pods]) -> Admission:
    """The obstacles to these pods. ``flavors``: the ResourceFlavors that may be read, by name; others are
    assumed to match.
    """
    covered = {name for group in queue.groups for name in group.covered}
    asked = {group.role: _asked(group) for group in pods}
    extra = {name for wanted in asked.values() for name in wanted if name not in covered}
    never: list[str] = []
    waits: list[str] = []
    for group in queue.groups:
        never += dict.fromkeys(_never(queue, group, flavors, pods, asked))
        waits += dict.fromkeys(_waits(queue, group, asked))
    return Admission(tuple(never), tuple(sorted(extra)), () if never else tuple(waits))


def _asked(pods: Pods) -> dict[str, Decimal]:
    """The resources that all pods of a role ask for together."""
    return {name: value * pods.replicas for name, value in pods.pod.requests.items() if value > 0}


def _never(
    queue: ClusterQueue,
    group: ResourceGroup,
    flavors: Mapping[str, Flavor],
    pods: Sequence[Pods],
    asked: Mapping[str, Mapping[str, Decimal]],
) -> Iterator[str]:
    keys = {key for flavor in flavors.values() for key in flavor.labels}
    for members in pods:
        wanted = {name: value for name, value in asked[members.role].items() if name in group.covered}
        if not wanted:
            continue
        reasons = {
            name: _mismatch(flavors[name], members.pod, keys) for name in group.flavors if name in flavors
        }
        left = [name for name in group.flavors if reasons.get(name) is None]
        if not left:
            mismatch = "; ".join(f"{name} {reason}" for name, reason in reasons.items())
            yield f"no flavor matches the members of {members.role}: {mismatch or 'it has none'}"
            continue
        for name, value in wanted.items():
            most = [_most(queue, flavor, name) for flavor in left]
            if all(each is not None and value > each for each in most):
                best = show(name, max(each for each in most if each is not None))
                demand = f"{_members(members)} ask for {show(name, value)} {name} together"
                yield f"{demand}, and no flavor can have more than {best}"
    yield from _too_much_in_all(queue, group, asked)


def _too_much_in_all(
    queue: ClusterQueue, group: ResourceGroup, asked: Mapping[str, Mapping[str, Decimal]]
) -> Iterator[str]:
    """Demands of all roles that all flavors together cannot meet."""
    for name in group.covered:
        total = sum((wanted.get(name, Decimal(0)) for wanted in asked.values()), Decimal(0))
        most = [_most(queue, flavor, name) for flavor in group.flavors]
        if len(asked) > 1 and all(each is not None for each in most):
            whole = sum((each for each in most if each is not None), Decimal(0))
            if total > whole:
                demand = f"all members ask for {show(name, total)} {name} together"
                yield f"{demand}, and the queue can have {show(name, whole)}"


def _waits(
    queue: ClusterQueue, group: ResourceGroup, asked: Mapping[str, Mapping[str, Decimal]]
) -> Iterator[str]:
    """Demands of all members that no flavor can meet now."""
    for name in group.covered:
        total = sum((wanted.get(name, Decimal(0)) for wanted in asked.values()), Decimal(0))
        free = Decimal(0)
        for flavor in group.flavors:
            nominal, used = (
                amounts.get((flavor, name), Decimal(0)) for amounts in (queue.quotas, queue.reserved)
            )
            free += max(Decimal(0), nominal - used)
        if total > free:
            demand = f"the members ask for {show(name, total)} {name}"
            yield f"{demand}, and {show(name, free)} of its own quota are free now"


def _most(queue: ClusterQueue, flavor: str, resource: str) -> Decimal | None:
    """The most that a flavor can ever have for one job; None: others of its cohort lend without a known
    limit.
    """
    nominal = queue.quotas.get((flavor, resource), Decimal(0))
    if not queue.cohort:
        return nominal
    limit = queue.lent.get((flavor, resource))
    return None if limit is None else nominal + limit


def _mismatch(flavor: Flavor, pod: PodSpec, keys: set[str]) -> str | None:
    """The reason for which such pods never run on the nodes of a flavor. ``keys``: the labels that tell
    flavors apart; other labels that the pods select by are left to the scheduler.
    """
    selected = {key: value for key, value in pod.node_selector.items() if key in keys}
    tolerations = (*pod.tolerations, *flavor.tolerations)
    node = Node("", {}, labels=flavor.labels, taints=flavor.taints)
    return misfit(PodSpec(node_selector=selected, tolerations=tolerations), node)


def _members(pods: Pods) -> str:
    return (
        f"the {pods.replicas} members of {pods.role}" if pods.replicas > 1 else f"the member of {pods.role}"
    )
