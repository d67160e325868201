"""Members with a place, and messages of schedulers about the others. Values in, values out.

Schedulers explain themselves in the condition PodScheduled of a pod, which is not cut as the event
FailedScheduling is:

    0/<N> nodes are available: <count> <reason>[, <count> <reason>]*. [preemption: ...]

A node counts under its first failing check alone. Permit plugins say ``0/1 nodes are available: 1 <reason>.``
whatever the size of the cluster, and siblings of the pod that did not fit only say that they were turned away
with it: what it says is told, not what they say.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from allaboard.gangs.base import GangView
from allaboard.runs.observation import PodSeen

SILENT = 60.0
"""Seconds after which a pod without any scheduler message counts as unscheduled by any scheduler."""

STUCK = 120.0
"""Seconds without any member gaining or losing a place, after which a gang that started in part is stuck."""

_HEAD = re.compile(r"(\d+)/(\d+) nodes are (?:un)?available\b:?\s*(.*)", re.DOTALL)
_FILTERS_END = re.compile(r"\.(?=\s|$)")
_ITEM = re.compile(r",\s(?=\d+\s)")
_ECHO = re.compile(
    r"optimistic rejection|rejection in Unreserve|gets rejected due to|failed recently|timeout after waiting|"
    r"PodGroup not found|once minAvailable is satisfied|waiting for minCount|minCount \(\d+\)|"
    r"pod group is unschedulable",
)
"""Said to a pod because of its siblings."""


_GATE = re.compile(r"schedulingGates\[\d+\]\.name")


@dataclass(frozen=True, slots=True)
class Places:
    """Members by state of placement, by name. ``held``: on a node, ended ones not counted; ``done``:
    succeeded; ``waiting``: no place was found; ``gated``: held back by a gate; ``silent``: no message from a
    scheduler; ``missing``: how many have no pod.
    """

    held: tuple[str, ...]
    done: tuple[str, ...]
    waiting: tuple[str, ...]
    gated: tuple[str, ...]
    silent: tuple[str, ...]
    missing: int

    @property
    def placed(self) -> int:
        return len(self.held) + len(self.done)


def gang_places(view: GangView) -> Places:
    """Places of the members."""
    those: dict[str, list[str]] = {}
    for name, pod in view.pods.items():
        those.setdefault(_has_place(pod), []).append(name)
    held, done, waiting, gated, silent = (
        tuple(those.get(where, ())) for where in ("held", "done", "waiting", "gated", "silent")
    )
    return Places(held, done, waiting, gated, silent, max(0, view.total - len(view.pods)))


def _has_place(pod: PodSeen) -> str:
    if pod.phase == "Succeeded":
        return "done"
    if pod.phase == "Failed":
        return "over"
    if pod.node:
        return "held"
    scheduled = pod.condition("PodScheduled")
    if scheduled is None:
        return "silent"
    return "gated" if scheduled.reason == "SchedulingGated" else "waiting"


def condition(obj: Mapping[str, Any], kind: str) -> Mapping[str, Any] | None:
    """A condition by its type."""
    conditions = (obj.get("status") or {}).get("conditions") or ()
    return next((c for c in conditions if c.get("type") == kind), None)


def scheduler_message(view: GangView) -> str | None:
    """The most informative scheduler message: of the pod that did not fit, not of those rejected with it.
    Shortened to the reasons.
    """
    messages = [shortened(message) for message in _messages(view.pods.values())]
    messages.sort(key=lambda text: (bool(_ECHO.search(text)), not _HEAD.match(text), -len(text), text))
    if messages and _ECHO.search(messages[0]):
        return next(_earlier_messages(view), messages[0])
    return next(iter(messages), None)


def are_only_echoes(pods: Iterable[PodSeen]) -> bool:
    """True if the conditions of these pods say only that they were turned away with each other: a pod that
    did not fit was tried again, and turned away with the next. The reason is in the events of the pods, then.
    """
    messages = [*_messages(pods)]
    return bool(messages) and all(_ECHO.search(text) for text in messages)


def _messages(pods: Iterable[PodSeen]) -> Iterator[str]:
    for pod in pods:
        scheduled = pod.condition("PodScheduled")
        if scheduled is not None and scheduled.status == "False" and scheduled.message:
            yield scheduled.message


def _earlier_messages(view: GangView) -> Iterator[str]:
    """Earlier messages about the present pods, the latest first, without echoes."""
    uids = {pod.uid for pod in view.pods.values()}
    for event in reversed(view.events):
        is_ours = event.reason == "FailedScheduling" and event.uid in uids
        if is_ours and event.message and not _ECHO.search(event.message):
            yield shortened(event.message)


def shortened(message: str) -> str:
    """A scheduler's message as ``0/3 nodes are available: 3 Insufficient nvidia.com/gpu``,
    without what preemption would do.
    """
    head = _HEAD.match(message)
    if head is None:
        return message.strip().rstrip(".")
    fit, of, rest = head.groups()
    return f"{fit}/{of} nodes are available: {_FILTERS_END.split(rest, 1)[0].strip()}"


def count_reasons(message: str) -> dict[str, int]:
    """Reason -> on how many nodes, from a scheduler's message; empty when it has another shape."""
    head = _HEAD.match(message)
    counts: dict[str, int] = {}
    for item in _ITEM.split(_FILTERS_END.split(head.group(3), 1)[0]) if head else ():
        count, _, reason = item.strip().partition(" ")
        if count.isdigit() and reason:
            counts[reason] = counts.get(reason, 0) + int(count)
    return counts


def age(created: float | None, now: float) -> float:
    """Seconds since something was made."""
    return 0.0 if created is None else max(0.0, now - created)


def unnoticed_reason(view: GangView, at: Places) -> str | None:
    """The sentence if no scheduler handles the pods."""
    quiet = [name for name in at.silent if age(view.pods[name].created, view.now) >= SILENT]
    if not quiet or at.waiting or at.placed:
        return None
    name = view.pods[quiet[0]].facts.get("schedulerName") or "default-scheduler"
    return (
        f"no scheduler has looked at {count_members(len(quiet))} for "
        f"{int(age(view.pods[quiet[0]].created, view.now))} s; "
        f"they name {name!r}: is it running?"
    )


def gated_reason(view: GangView, at: Places) -> str | None:
    """The sentence when gates hold the pods back."""
    if not at.gated:
        return None
    facts = view.pods[at.gated[0]].facts.items()
    names = ", ".join(sorted({name for path, name in facts if _GATE.fullmatch(path)}))
    return f"{count_members(len(at.gated))} held back by the scheduling gate {names or 'that a queue set'}"


def unknown_scheduler_reason(view: GangView, scheduler: str) -> str | None:
    """Return why a gang waits whose scheduler has no file here (an operator was started with it), by its pods
    alone.
    """
    at = gang_places(view)
    if at.placed >= view.needed:
        return None
    if reason := gated_reason(view, at) or unnoticed_reason(view, at):
        return reason
    if not view.pods:
        return f"no member exists yet: {scheduler} has to let the gang in first"
    if not at.waiting:
        return None
    half = f"; {len(at.held)} hold places already" if at.held else ""
    message = scheduler_message(view) or "no node fits"
    return f"{scheduler} finds no {view.needed} places together: {message}{half}"


def cannot_rejoin_reason(view: GangView, at: Places, scheduler: str) -> str | None:
    """The sentence if a recreated member waits for ever: gang schedulers count only members that have not
    ended, and these are too few.
    """
    joining = (*at.waiting, *at.silent)
    if not joining or not at.done or view.total - len(at.done) >= view.needed:
        return None
    names, verb = ", ".join(sorted(joining)[:3]), "has" if len(at.done) == 1 else "have"
    return (
        f"{names} can join no more: {scheduler} places {view.needed} members together or none, "
        f"and {len(at.done)} {verb} ended already"
    )


def has_too_few_members(view: GangView) -> bool:
    """True if a scheduler has not seen all members yet."""
    return "sibling pods" in (scheduler_message(view) or "")


def stuck_rivals(view: GangView) -> list[str]:
    """Other runs that started in part, too, and are held by the lack of places: they and this one wait for
    each other.
    """
    stuck = []
    for run, pods in sorted(view.rivals.items()):
        stand = [_has_place(pod) for pod in pods]
        if "held" in stand and "waiting" in stand and "gated" not in stand:
            stuck.append(run)
    return stuck


def has_half_started(view: GangView) -> bool:
    """True if it has been started in part for so long that it is no passing state: some members hold places,
    too few to train, and nothing has moved for a while.
    """
    at = gang_places(view)
    if not at.held or at.placed >= view.needed or not at.waiting:
        return False
    moved = (view.pods[name].condition("PodScheduled") for name in (*at.held, *at.waiting))
    times = [item.since for item in moved if item is not None and item.since is not None]
    return bool(times) and view.now - max(times) >= STUCK


def count_members(count: int) -> str:
    return f"{count} member" if count == 1 else f"{count} members"
