"""Kueue: a whole job waits, suspended, until its queue admits it. It keeps a quota, and is no gang scheduler:
who places the pods afterwards is another's affair.

Read from Kueue 0.19.2: apis/kueue/v1beta2/workload_types.go, pkg/scheduler (flavorassigner, preemption),
pkg/workload. What a Workload says:

- QuotaReserved=False has a reason of its own since 0.19 (KEP-10852, gate UnadmittedWorkloadsObservability);
  without that, and in older releases, it is Pending, Inadmissible or Waiting, and the message alone tells.
- Admitted=False beside QuotaReserved=True: admission checks are not ready yet.
- Evicted tells why it runs no more, and stays until it is admitted again; ``active: false``: Kueue, or a
  person, has taken it out of its queue for good.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from allaboard.units import counted, from_rfc3339, show_seconds

Json = Mapping[str, Any]
QUEUE = "kueue.x-k8s.io/queue-name"
"""Label of a job that Kueue admits; an annotation in its early days."""
QUEUES = ("kueue.x-k8s.io/v1beta2/LocalQueue", "kueue.x-k8s.io/v1beta1/LocalQueue")
"""What a queue of a namespace is: Kueue is there where one of them is served."""
ADMITS: Mapping[str, str] = {
    "mpijob": "kubeflow.org/mpijob",
    "jobset": "jobset.x-k8s.io/jobset",
    "trainjob": "trainer.kubeflow.org/trainjob",
    "pytorchjob": "kubeflow.org/pytorchjob",
    "tfjob": "kubeflow.org/tfjob",
    "xgboostjob": "kubeflow.org/xgboostjob",
    "paddlejob": "kubeflow.org/paddlejob",
    "jaxjob": "kubeflow.org/jaxjob",
}
"""Engine -> the name of its integration in Kueue's configuration. Of other engines Kueue manages no job
(pkg/controller/jobs, 0.19.2).
"""
OFF_BY_DEFAULT = frozenset({"pytorchjob", "tfjob", "xgboostjob", "paddlejob", "jaxjob"})
"""Engines whose integration the configuration that Kueue publishes leaves out since 0.19
(config/components/manager/controller_manager_config.yaml).
"""
REQUIRED, PREFERRED = "kueue.x-k8s.io/podset-required-topology", "kueue.x-k8s.io/podset-preferred-topology"
POD_SETS = "kueue.x-k8s.io/podset-group-name"
"""Annotations of members, by which Kueue places them itself (topology-aware scheduling): the node label of
the domain; a name that the members of two roles share.
"""
BOOST = "kueue.x-k8s.io/priority-boost"
"""Annotation of a Workload: a whole number that is added to its priority (KEP-7990, gate PriorityBoost,
alpha, off by default). Kueue's webhook refuses what is no number, with the gate alone.
"""
SILENT = 60.0
"""Seconds after which a job without a Workload counts as one that Kueue does not know."""
LONGEST = 300

PENDING, IMPOSSIBLE = "queue_quota_pending", "queue_quota_impossible"
MISCONFIGURED, NOT_READY = "queue_misconfigured", "queue_pods_ready_timeout"
_CODES: Mapping[str, str] = {
    "ExceedsMaxQuota": IMPOSSIBLE,
    "NoMatchingFlavor": IMPOSSIBLE,
    "Misconfigured": MISCONFIGURED,
    "Suspended": MISCONFIGURED,
    "Inadmissible": MISCONFIGURED,
}
"""Reason of QuotaReserved=False -> code; of the others the wait may pass by itself."""
_SHORT = re.compile(r"insufficient unused quota for ([\w./-]+) in flavor ([\w.-]+), (\S+) more needed")
_NEVER = re.compile(
    r"insufficient quota for ([\w./-]+) in flavor ([\w.-]+), "
    r"previously considered podsets requests \(([^)]*)\) \+ current podset request \(([^)]*)\) "
    r"> maximum capacity \(([^)]*)\)"
)
_NO_DOMAIN = re.compile(r'topology "([\w.-]+)" (?:allows to fit only|doesn\'t allow to fit any)')
_EXCLUDED = re.compile(r"Total nodes: (\d+); excluded: ([^.;]*)")
_ABSENT = re.compile(r"(LocalQueue|ClusterQueue) (\S+) (doesn't exist|not found|is inactive|is stopped)")
_EVICTED: Mapping[str, str] = {
    "Preempted": "it was preempted",
    "PodsReadyTimeout": "its members did not become ready in time",
    "AdmissionCheck": "an admission check took its place back",
    "ClusterQueueStopped": "its queue was stopped",
    "LocalQueueStopped": "its queue was stopped",
    "NodeFailures": "a node of it failed",
    "FlavorMigration": "it was moved to another flavor",
    "Deactivated": "it was deactivated",
    "DeactivatedDueToRequeuingLimitExceeded": "it was started again and again, and never became ready",
    "DeactivatedDueToMaximumExecutionTimeExceeded": "it ran longer than its queue allows",
    "DeactivatedDueToAdmissionCheck": "an admission check has rejected it",
}
"""Reason of Evicted -> what happened."""
_PREEMPTED: Mapping[str, str] = {
    "InClusterQueue": "by one of higher priority in the same queue",
    "InCohortReclamation": "by a queue that took back what it had lent",
    "InCohortFairSharing": "for the fair share of another queue",
    "InCohortReclaimWhileBorrowing": "by a queue that took back what it had lent, while borrowing itself",
}


@dataclass(frozen=True, slots=True)
class WorkloadSeen:
    """``body``: the Workload of a job; None: there is none. ``position``: in its ClusterQueue, 0 is next;
    None: not known.
    """

    body: Json | None = None
    position: int | None = None

    @property
    def waits(self) -> bool:
        """Whether it waits for its quota."""
        return self.body is not None and condition_of(self.body, "QuotaReserved").get("status") != "True"


@dataclass(frozen=True, slots=True)
class Held:
    """Why a queue holds a job back: a code of failure-modes, and a sentence."""

    code: str
    text: str


def why_not_admitted(engine: str) -> str | None:
    """Why Kueue admits no job of this engine; None: it does, where its configuration says so."""
    return None if engine in ADMITS else f"Kueue manages no job of {engine}: it would start at once"


def topology_request(
    require: str | None, prefer: str | None, groups: Mapping[str, int]
) -> Mapping[str, str] | None:
    """The annotations of members by which Kueue places all of them within one domain. ``require``,
    ``prefer``: node labels, of which Kueue takes one, the one that is required; ``groups``: role ->
    members. None: it cannot say it of these roles (pkg/controller/jobframework/tas_validation.go): it takes
    two at most, one of which has one member.
    """
    if (require or prefer) is None or len(groups) > 2 or (len(groups) == 2 and 1 not in groups.values()):
        return None
    asked = {REQUIRED: require} if require is not None else {PREFERRED: prefer or ""}
    return asked if len(groups) == 1 else {**asked, POD_SETS: "gang"}


def why_held(queue: str, workload: Json | None, age: float, now: float, position: int | None = None) -> Held:
    """Why a job in this queue does not run. ``workload``: None where there is none, or it may not be read;
    ``age``: seconds since the job was made; ``position``: in its ClusterQueue, 0 is next; None: not known.
    """
    if workload is None:
        if age < SILENT:
            return Held(PENDING, f"Kueue has not looked at it yet (queue {queue})")
        words = f"Kueue has made no Workload of it for {show_seconds(age)}: does it manage this kind of job?"
        return Held(MISCONFIGURED, f"{words} (queue {queue})")
    conditions = {str(c.get("type")): c for c in (workload.get("status") or {}).get("conditions") or ()}
    evicted = _evicted(conditions)
    if (workload.get("spec") or {}).get("active") is False:
        out = f"Kueue has taken it out of queue {queue}: {evicted or 'somebody deactivated it'}"
        is_late = "RequeuingLimitExceeded" in _reason(conditions, "Evicted")
        return Held(NOT_READY if is_late else MISCONFIGURED, out)
    after = "; ".join([*([evicted] if evicted else ()), *_put_off(workload, now)])
    more = f" ({after})" if after else ""
    if _holds(conditions, "QuotaReserved"):
        checks = ", ".join(_open_checks(workload))
        said = f"waits for {checks}" if checks else _message(conditions, "Admitted") or "is not admitted yet"
        return Held(PENDING, f"Kueue has room for it in queue {queue}, and it {said}{more}")
    reason, message = _reason(conditions, "QuotaReserved"), _message(conditions, "QuotaReserved")
    code, why = _why_no_quota(reason, message)
    if _reason(conditions, "Evicted") == "PodsReadyTimeout" and code == PENDING:
        code = NOT_READY
    place = _place(position) if code != IMPOSSIBLE else ""
    return Held(code, f"Kueue holds it back in queue {queue}{place}: {why}{more}")


def boost_of(workload: Json) -> int | None:
    """What is added to the priority of a Workload, where its Kueue has that gate on; None: nothing, or no
    number that it takes.
    """
    value = str(((workload.get("metadata") or {}).get("annotations") or {}).get(BOOST, ""))
    return int(value) if re.fullmatch(r"[+-]?[0-9]{1,10}", value) else None


def condition_of(thing: Json, kind: str) -> Json:
    """A condition of an object of Kueue by its type; empty: it has none."""
    conditions = (thing.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == kind), {})


def _place(position: int | None) -> str:
    """``, next in line``, ``, 3 before it``."""
    return "" if position is None else f", {position} before it" if position else ", next in line"


def _why_no_quota(reason: str, message: str) -> tuple[str, str]:
    """The code and the words of QuotaReserved=False: the reason first, then what older releases say."""
    if never := [_too_much(*one) for one in _found(_NEVER, message)]:
        return IMPOSSIBLE, f"it asks for more than its queue can ever have of {', '.join(never)}"
    if absent := _ABSENT.search(message):
        return MISCONFIGURED, " ".join(absent.groups())
    if short := [*_found(_SHORT, message)]:
        lacks = ", ".join(f"{more} more {res} in flavor {flavor}" for res, flavor, more in short)
        waits = " until those that it preempts have gone" if "Pending the preemption of" in message else ""
        return _CODES.get(reason, PENDING), f"it needs {lacks}, which others use{waits}"
    if (topology := _NO_DOMAIN.search(message)) is not None:
        # How many would fit is said of one role, and means little where two share a domain.
        left = _EXCLUDED.search(message)
        nodes = f" (of {left[1]} nodes it leaves out, by {left[2].strip()})" if left else ""
        return PENDING, f"no domain of topology {topology[1]} has room for all of its members{nodes}"
    code = _CODES.get(reason, PENDING)
    return code, message or "it has not said why yet"


def _too_much(resource: str, flavor: str, before: str, own: str, most: str) -> str:
    asked = own if before in ("", "0") else f"{before} and {own}"
    return f"{resource} ({asked} asked, at most {most} in flavor {flavor})"


def _found(pattern: re.Pattern[str], message: str) -> Iterator[tuple[str, ...]]:
    """What a pattern finds, each once."""
    yield from dict.fromkeys(match.groups() for match in pattern.finditer(message))


def _evicted(conditions: Mapping[str, Json]) -> str:
    """Why it runs no more, if it did; empty: it did not."""
    if not _holds(conditions, "Evicted"):
        return ""
    reason = _reason(conditions, "Evicted")
    words = _EVICTED.get(reason) or _message(conditions, "Evicted") or "it was evicted"
    by = _PREEMPTED.get(_reason(conditions, "Preempted")) if reason == "Preempted" else None
    return f"{words} {by}" if by else words


def _put_off(workload: Json, now: float) -> Iterator[str]:
    """When it is tried again, of one that Kueue has put off."""
    state = (workload.get("status") or {}).get("requeueState") or {}
    due = from_rfc3339(state.get("requeueAt"))
    if due is not None and due > now:
        begun = counted(int(state.get("count") or 0), "start")
        yield f"tried again in {show_seconds(due - now)}, after {begun}"


def _open_checks(workload: Json) -> Iterable[str]:
    """The admission checks that are not ready, with what they say."""
    for check in (workload.get("status") or {}).get("admissionChecks") or ():
        if check.get("state") != "Ready":
            said = ": ".join(filter(None, [str(check.get("state")), _cut(check.get("message"))]))
            yield f"admission check {check.get('name')} ({said})"


def _holds(conditions: Mapping[str, Json], name: str) -> bool:
    return (conditions.get(name) or {}).get("status") == "True"


def _reason(conditions: Mapping[str, Json], name: str) -> str:
    return str((conditions.get(name) or {}).get("reason") or "")


def _message(conditions: Mapping[str, Json], name: str) -> str:
    return _cut((conditions.get(name) or {}).get("message"))


def _cut(message: Any) -> str:
    """What another wrote, on one line and of bounded length."""
    words = " ".join(str(message or "").split()).rstrip(".")
    return words if len(words) <= LONGEST else f"{words[:LONGEST]}..."
