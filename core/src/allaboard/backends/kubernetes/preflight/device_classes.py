"""Classes of devices that members claim (DRA), and whether nodes have as many. Values in, values out.

Which devices are of a class is said in CEL, which is not computed here: the devices of the drivers that the
class names are the most there can be. What is claimed by others is not counted, as elsewhere in preflight:
the nodes are taken to be empty.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence

from allaboard.backends.check import WARNING, Check
from allaboard.backends.kubernetes.client.values import at, dicts, mapping, text
from allaboard.backends.kubernetes.discovery.capacity import Pods
from allaboard.backends.kubernetes.preflight.lookup import HIDDEN, Json, Lookup
from allaboard.diagnosis import Evidence
from allaboard.render.devices import TEMPLATE
from allaboard.text.names import one_of
from allaboard.text.units import counted

_DRIVER = re.compile(r"device\.driver\s*==\s*['\"]([^'\"]{1,253})['\"]")


def claimed(manifests: Sequence[Json]) -> dict[str, tuple[str, int]]:
    """Template of claims among the objects of a job -> its class, and how many devices a claim has."""
    templates = {}
    for manifest in manifests:
        if manifest["kind"] == TEMPLATE:
            (request,) = manifest["spec"]["spec"]["devices"]["requests"]
            exactly = request["exactly"]
            templates[str(manifest["metadata"]["name"])] = (
                str(exactly["deviceClassName"]),
                int(exactly["count"]),
            )
    return templates


def classes(manifests: Sequence[Json]) -> set[str]:
    """The classes of which members claim devices."""
    return {name for name, _ in claimed(manifests).values()}


def judge(
    manifests: Sequence[Json],
    pods: Sequence[Pods],
    known: Mapping[str, Lookup],
    slices: Sequence[Json] | None,
) -> Iterator[Check]:
    """``known``: the classes, as far as they may be read; ``slices``: the ResourceSlices of the cluster, None
    when they may not be read.
    """
    wanted = claimed(manifests)
    for name in sorted({of_class for of_class, _ in wanted.values()}):
        lookup = known.get(name, HIDDEN)
        if not lookup.known:
            summary = f"device class {name} may not be looked at (get deviceclasses.resource.k8s.io)"
            yield Check("device_class", None, summary, severity=WARNING)
            continue
        if lookup.body is None:
            fix = "name another in resources.device_class, or have the DRA driver installed that brings it"
            yield Check("device_class", False, f"device class {name} does not exist", fix=fix)
            continue
        most = {template: count for template, (of_class, count) in wanted.items() if of_class == name}
        members = {group.role: (most.get(group.pod.claim_template, 0), group.replicas) for group in pods}
        yield from _enough(name, lookup.body, {r: m for r, m in members.items() if m[0]}, slices)


def _enough(
    name: str, of_class: Json, members: Mapping[str, tuple[int, int]], slices: Sequence[Json] | None
) -> Iterator[Check]:
    """``members``: role -> (devices of each, how many)."""
    drivers = sorted({*_DRIVER.findall(_expressions(of_class))})
    if slices is None:
        summary = f"device class {name} is there; what nodes have may not be read (list resourceslices)"
        yield Check("device_class", None, summary, severity=WARNING)
        return
    if not drivers:
        summary = f"device class {name} is there; its selectors do not tell which devices are of it"
        yield Check("device_class", None, summary, severity=WARNING)
        return
    there = _devices(slices, drivers)
    evidence = tuple(Evidence(f"node/{node}", "devices", str(n)) for node, n in [*there.items()][:8])
    driver, every = one_of(drivers), sum(there.values())
    most = max(there.values(), default=0)
    total = sum(each * count for each, count in members.values())
    largest = max((each for each, _ in members.values()), default=0)
    fix = "ask for fewer in resources.gpu, or ask who runs the nodes"
    if not there:
        summary = f"device class {name} is there, and no node offers devices of {driver}"
        fix = "ask who runs the cluster to start its DRA driver on the nodes"
        yield Check("device_class", False, summary, evidence, fix, WARNING)
    elif largest > most:
        summary = f"a member claims {largest} devices of class {name}; a node has {most} at most"
        yield Check("device_class", False, summary, evidence, fix, WARNING)
    elif total > every:
        summary = f"its members claim {total} devices of class {name}; the nodes have {every} at most"
        yield Check("device_class", False, summary, evidence, fix, WARNING)
    else:
        summary = f"device class {name} is there, and nodes have {counted(every, 'device')} of {driver}"
        yield Check("device_class", True, f"{summary} for the {total} that members claim", evidence)


def _expressions(of_class: Json) -> str:
    selectors = dicts(at(of_class, "spec", "selectors"))
    return "\n".join(text(at(selector, "cel", "expression")) for selector in selectors)


def _devices(slices: Sequence[Json], drivers: Sequence[str]) -> dict[str, int]:
    """Node -> its devices of these drivers; those of no one node stand under an empty name."""
    counts: dict[str, int] = {}
    for part in slices:
        spec = mapping(part.get("spec"))
        if spec.get("driver") in drivers:
            node = text(spec.get("nodeName"))
            counts[node] = counts.get(node, 0) + len(dicts(spec.get("devices")))
    return counts
