"""Kueue: a whole job waits, suspended, until its queue admits it. It keeps a quota, and is no gang scheduler:
who places the pods afterwards is another's affair.

Read from Kueue 0.19.2: apis/kueue/v1beta2/workload_types.go, pkg/scheduler (flavorassigner, preemption),
pkg/workload. What a Workload says:

- QuotaReserved=False has a reason of its own with the gate UnadmittedWorkloadsObservability (KEP-10852, off
  by default in 0.19); without that, and in older releases, it is Pending, Inadmissible or Waiting, and the
  message alone tells.
- Admitted=False beside QuotaReserved=True: admission checks are not ready yet.
- Evicted tells why it runs no more, and stays until it is admitted again; ``active: false``: Kueue, or a
  person, has taken it out of its queue for good.
- Of a job that MultiKueue sends to another cluster, ``clusterName`` says which one admitted it, and
  ``nominatedClusterNames`` which are asked. There is no pod of it here, and its status is copied from there
  (pkg/controller/admissionchecks/multikueue).

What waiting does not help is `Held.never`: more is asked for than the queue can ever have, no flavor matches,
there is no such queue, or Kueue itself has given the job up. A queue that is stopped or broken is its
administrator's to mend, and a job that a person deactivated is that person's: these wait.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from allaboard.text.units import counted, from_rfc3339, place_in_line

Json = Mapping[str, Any]
QUEUE = "kueue.x-k8s.io/queue-name"
"""Label of a job that Kueue admits; an annotation in its early days."""
PRIORITY_CLASS = "kueue.x-k8s.io/priority-class"
"""Label of a job: the WorkloadPriorityClass by which its queue orders it, and preempts for it. Its pods keep
their own priority.
"""
MIN_PARALLELISM = "kueue.x-k8s.io/job-min-parallelism"
"""Annotation of a Job of batch/v1, the one kind of which Kueue admits a part."""
MULTIKUEUE = "kueue.x-k8s.io/multikueue"
"""Manager of a job that Kueue sends to another cluster: the operator here leaves it alone. Its
webhook writes that into every job whose ClusterQueue has an admission check of this controller
(jobframework.ApplyDefaultForManagedBy).
"""
QUEUES = ("kueue.x-k8s.io/v1beta2/LocalQueue", "kueue.x-k8s.io/v1beta1/LocalQueue")
"""Kinds of a namespace's queue: Kueue is installed if one of them is served."""
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
LONGEST, _READ = 300, 4000
"""Characters of a message that are quoted, and that are looked at."""
_CLUSTERS = 5
"""Clusters that are named in a sentence."""

PENDING, IMPOSSIBLE = "queue_quota_pending", "queue_quota_impossible"
MISCONFIGURED, NOT_READY = "queue_misconfigured", "queue_pods_ready_timeout"
OVERTIME = "deadline_exceeded"
_CODES: Mapping[str, str] = {
    "ExceedsMaxQuota": IMPOSSIBLE,
    "NoMatchingFlavor": IMPOSSIBLE,
    "Misconfigured": MISCONFIGURED,
    "Suspended": MISCONFIGURED,
    "Inadmissible": MISCONFIGURED,
}
"""Reason of QuotaReserved=False -> code; of the others the wait may pass by itself."""
_COARSE = frozenset({"", "Pending", "Inadmissible", "Waiting"})
"""Reasons of older releases, which leave it to the message whether the wait may pass."""
_POD_SET = "couldn't assign flavors to pod set"
_SHORT = re.compile(r"insufficient unused quota for ([\w./-]+) in flavor ([\w.-]+), (\S+) more needed")
_NEVER = re.compile(
    r"insufficient quota for ([\w./-]+) in flavor ([\w.-]+), "
    r"previously considered podsets requests \(([^)]*)\) \+ current podset request \(([^)]*)\) "
    r"> maximum capacity \(([^)]*)\)"
)
_UNCOVERED = re.compile(r"resource ([\w./-]+) unavailable in ClusterQueue")
_NO_MATCH = re.compile(r"flavor \S+ doesn't match node affinity|untolerated taint .* in flavor \S+")
_NO_DOMAIN = re.compile(r'topology "([\w.-]+)" (?:allows to fit only|doesn\'t allow to fit any)')
_EXCLUDED = re.compile(r"Total nodes: (\d+); excluded: ([^.;]*)")
_ABSENT = re.compile(r"(LocalQueue|ClusterQueue) (\S+) (doesn't exist|not found|is inactive|is stopped)")
_CHECKS = re.compile(r"AdmissionChecks? in \w+ state: (.+)")
"""Messages of the checks by which Kueue evicted or deactivated it (workload_controller.go)."""
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
    "DeactivatedDueToMaximumExecutionTimeExceeded": "it ran longer than its longest time",
    "DeactivatedDueToAdmissionCheck": "an admission check has rejected it",
}
"""Reason of Evicted -> what happened."""
_GIVEN_UP: Mapping[str, str] = {
    "RequeuingLimitExceeded": NOT_READY,
    "MaximumExecutionTimeExceeded": OVERTIME,
}
"""Reason of a deactivation by Kueue -> code."""
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
        """True if it waits for its quota."""
        return self.body is not None and condition_of(self.body, "QuotaReserved").get("status") != "True"


@dataclass(frozen=True, slots=True)
class Held:
    """Reason for which a queue holds a job back: the code of a cause (core/docs/causes.md), and a sentence;
    ``never``: waiting does not help. The sentence is the same as long as nothing happens: it counts no
    seconds.
    """

    code: str
    text: str
    never: bool = False


def why_not_admitted(engine: str) -> str | None:
    """Return why Kueue admits no job of this engine; None: it does, if its configuration says so."""
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
    """Return why a job in this queue does not run. ``workload``: None if there is none, or it may not be
    read; ``age``: seconds since the job was made; ``position``: in its ClusterQueue, 0 is next; None: not
    known.
    """
    if workload is None:
        if age < SILENT:
            return Held(PENDING, f"Kueue has not looked at it yet (queue {queue})")
        text = "Kueue has made no Workload of it for more than a minute: does it manage this kind of job?"
        return Held(MISCONFIGURED, f"{text} (queue {queue})")
    conditions = {str(c.get("type")): c for c in (workload.get("status") or {}).get("conditions") or ()}
    evicted = _evicted(conditions)
    if (workload.get("spec") or {}).get("active") is False:
        return _given_up(queue, conditions, evicted)
    after = "; ".join([*([evicted] if evicted else ()), *_put_off(workload, now)])
    more = f" ({after})" if after else ""
    if _holds(conditions, "QuotaReserved"):
        if evicted:
            return Held(PENDING, f"Kueue takes it back into queue {queue}: {after}")
        if _holds(conditions, "Admitted"):
            return Held(PENDING, f"Kueue has admitted it to queue {queue}, and it starts now")
        return Held(
            PENDING, f"Kueue has room for it in queue {queue}, and it {_not_admitted(workload)}{more}"
        )
    reason, message = _reason(conditions, "QuotaReserved"), _message(conditions, "QuotaReserved")
    late = _reason(conditions, "Evicted") == "PodsReadyTimeout"
    if evicted and message and message == _message(conditions, "Evicted"):
        # What it lacks now is not looked at yet.
        code = NOT_READY if late else PENDING
        return Held(code, f"Kueue has taken it back into queue {queue}{place_in_line(position)}: {after}")
    code, explanation, never = _why_no_quota(reason, message)
    if late and code == PENDING:
        code = NOT_READY
    place = "" if never else place_in_line(position)
    return Held(code, f"Kueue holds it back in queue {queue}{place}: {explanation}{more}", never)


def _given_up(queue: str, conditions: Mapping[str, Json], evicted: str) -> Held:
    """Of one that is out of its queue: by Kueue, which does not take it back, or by a person. Kueue says why
    in DeactivationTarget before it says it in Evicted.
    """
    reason = _reason(conditions, "Evicted") if evicted else ""
    if not evicted and _holds(conditions, "DeactivationTarget"):
        reason = f"DeactivatedDueTo{_reason(conditions, 'DeactivationTarget')}"
        evicted = _EVICTED.get(reason) or _cut(_message(conditions, "DeactivationTarget"))
        checks = _CHECKS.search(_message(conditions, "DeactivationTarget"))
        evicted += f": {_cut(checks[1])}" if checks else ""
    by_kueue = reason.startswith("DeactivatedDueTo")
    out = f"Kueue has taken it out of queue {queue}: {evicted or 'somebody deactivated it'}"
    return Held(_GIVEN_UP.get(reason.removeprefix("DeactivatedDueTo"), MISCONFIGURED), out, by_kueue)


def _not_admitted(workload: Json) -> str:
    """Return what a Workload that has its quota waits for."""
    status = workload.get("status") or {}
    asked = [_cut(name) for name in status.get("nominatedClusterNames") or ()]
    checks = ", ".join(_open_checks(workload))
    if asked:
        several = "one of the clusters" if len(asked) > 1 else "a place on cluster"
        shown = ", ".join(asked[:_CLUSTERS]) + (" ..." if len(asked) > _CLUSTERS else "")
        return f"waits for {several} {shown}" + (f"; {checks}" if checks else "")
    if checks:
        return f"waits for {checks}"
    return _cut(condition_of(workload, "Admitted").get("message")) or "is not admitted yet"


def cluster_of(workload: Json) -> str | None:
    """The cluster to which MultiKueue has sent a job, where its members run; None: to none yet."""
    name = (workload.get("status") or {}).get("clusterName")
    return _cut(name) if isinstance(name, str) and name else None


def sent_away(workload: Json | None) -> str:
    """Hint for a job that runs on another cluster: the place to look at."""
    cluster = None if workload is None else cluster_of(workload)
    where = f"cluster {cluster}" if cluster is not None else "another cluster"
    return f"Kueue has sent it to {where}: its members, their logs and what they report are there"


def waited_since(workload: Json) -> float | None:
    """Since when a job has been in its queue, this time: since Kueue put it there again, else since its
    Workload was made (pkg/workload, QueuedWaitTime). Epoch seconds.
    """
    again = condition_of(workload, "Requeued").get("lastTransitionTime")
    return from_rfc3339(again or (workload.get("metadata") or {}).get("creationTimestamp"))


def boost_of(workload: Json) -> int | None:
    """Number that is added to the priority of a Workload, if its Kueue has that gate on; None: there is none,
    or no number that it takes.
    """
    value = str(((workload.get("metadata") or {}).get("annotations") or {}).get(BOOST, ""))
    return int(value) if re.fullmatch(r"[+-]?[0-9]{1,10}", value) else None


def condition_of(obj: Json, kind: str) -> Json:
    """A condition of an object of Kueue by its type; empty: it has none."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == kind), {})


def _why_no_quota(reason: str, message: str) -> tuple[str, str, bool]:
    """The code and the words of QuotaReserved=False, and whether it stays so: the reason first, then what
    older releases say.
    """
    code = _CODES.get(reason, PENDING)
    if code == IMPOSSIBLE or (reason in _COARSE and any(map(_is_hopeless, message.split(_POD_SET)))):
        return IMPOSSIBLE, _why_never(message), True
    if absent := _ABSENT.search(message):
        # The name is the job's own word; what is wrong with a queue that is there, or with the ClusterQueue
        # above it, its administrator mends.
        lost = absent[1] == "LocalQueue" and absent[3] in ("doesn't exist", "not found")
        return MISCONFIGURED, " ".join(absent.groups()), lost
    if short := [*_found(_SHORT, message)]:
        lacks = ", ".join(f"{more} more {res} in flavor {flavor}" for res, flavor, more in short)
        waits = " until those that it preempts have gone" if "Pending the preemption of" in message else ""
        return PENDING, f"it needs {lacks}, which others use{waits}", False
    if (topology := _NO_DOMAIN.search(message)) is not None:
        # How many would fit is said of one role, and means little where two share a domain.
        left = _EXCLUDED.search(message)
        nodes = f" (of {left[1]} nodes it leaves out, by {left[2].strip()})" if left else ""
        text = f"no domain of topology {topology[1]} has room for all of its members{nodes}"
        return PENDING, text, False
    return code, _cut(message) or "it has not said why yet", False


def _is_hopeless(of_pod_set: str) -> bool:
    """True if the message about one pod set leaves no flavor to wait for."""
    hopeless = any(pattern.search(of_pod_set) for pattern in (_NEVER, _UNCOVERED, _NO_MATCH))
    return hopeless and not (_SHORT.search(of_pod_set) or _NO_DOMAIN.search(of_pod_set))


def _why_never(message: str) -> str:
    if too_much := [_too_much(*excess) for excess in _found(_NEVER, message)]:
        return f"it asks for more than its queue can ever have of {', '.join(too_much)}"
    if uncovered := [name for (name,) in _found(_UNCOVERED, message)]:
        return f"its queue has no quota of {', '.join(uncovered)}"
    return _cut(message) or "no flavor of its queue takes it"


def _too_much(resource: str, flavor: str, before: str, own: str, most: str) -> str:
    asked = own if before in ("", "0") else f"{before} and {own}"
    return f"{resource} ({asked} asked, at most {most} in flavor {flavor})"


def _found(pattern: re.Pattern[str], message: str) -> Iterator[tuple[str, ...]]:
    """Matches of a pattern, each once."""
    yield from dict.fromkeys(match.groups() for match in pattern.finditer(message))


def _evicted(conditions: Mapping[str, Json]) -> str:
    """Return why an evicted Workload runs no more; empty: it was not evicted."""
    if not _holds(conditions, "Evicted"):
        return ""
    reason, message = _reason(conditions, "Evicted"), _message(conditions, "Evicted")
    text = _EVICTED.get(reason) or _cut(message) or "it was evicted"
    if reason == "Preempted" and (by := _PREEMPTED.get(_reason(conditions, "Preempted"))):
        return f"{text} {by}"
    checks = _CHECKS.search(message) if reason.endswith("AdmissionCheck") else None
    return f"{text}: {_cut(checks[1])}" if checks else text


def _put_off(workload: Json, now: float) -> Iterator[str]:
    """Time at which Kueue tries again a Workload that it has put off, by the clock: a sentence that counts
    down would differ at every look.
    """
    state = (workload.get("status") or {}).get("requeueState") or {}
    due = from_rfc3339(state.get("requeueAt"))
    if due is not None and due > now:
        begun = counted(int(state.get("count") or 0), "start")
        yield f"not tried again before {state['requeueAt']}, after {begun}"


def _open_checks(workload: Json) -> Iterable[str]:
    """The admission checks that are not ready, with what they say."""
    for check in (workload.get("status") or {}).get("admissionChecks") or ():
        if check.get("state") != "Ready":
            state = ": ".join(filter(None, [str(check.get("state")), _cut(check.get("message"))]))
            yield f"admission check {check.get('name')} ({state})"


def _holds(conditions: Mapping[str, Json], name: str) -> bool:
    return (conditions.get(name) or {}).get("status") == "True"


def _reason(conditions: Mapping[str, Json], name: str) -> str:
    return str((conditions.get(name) or {}).get("reason") or "")


def _message(conditions: Mapping[str, Json], name: str) -> str:
    return _cut((conditions.get(name) or {}).get("message"), _READ)


def _cut(message: Any, longest: int = LONGEST) -> str:
    """Text of somebody else, on one line and of bounded length."""
    text = " ".join(str(message or "").split()).rstrip(".")
    return text if len(text) <= longest else f"{text[:longest]}..."
