"""Messages of a cluster about pods that do not run, each with its meaning: read once, for the live view and
for the doctor. Values in, values out.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from dataclasses import dataclass

from allaboard.diagnosis.case import Case, has_run, pod_object, quote
from allaboard.diagnosis.finding import Evidence, Finding
from allaboard.diagnosis.rule import Place
from allaboard.diagnosis.verdict import Verdict, verdict_of
from allaboard.runs.observation import ContainerSeen, EventSeen, PodSeen, Try

IMAGE_REASONS = frozenset(
    {
        "ErrImagePull", "ImagePullBackOff", "ErrImageNeverPull", "InvalidImageName", "ImageInspectError",
        "RegistryUnavailable", "SignatureValidationFailed",
    }
)  # fmt: skip
NOT_MADE = frozenset({"CreateContainerConfigError", "CreateContainerError"})
MOUNTS = frozenset({"FailedMount", "FailedMapVolume", "FailedAttachVolume"})
OF_NODES = MOUNTS | {"FailedCreatePodSandBox", "NetworkNotReady", "FailedPrepareDynamicResources"}
"""Reasons of events of a pod whose containers cannot be made yet."""
_BEGUN = frozenset({"Pulling", "Pulled", "Created", "Started"})
STALE = 300.0
"""Seconds after which a kubelet that still fails to mount has said so again."""


@dataclass(frozen=True, slots=True)
class Complaint:
    """``field``: where it stands; ``reason``: the word of the container or event; ``verdict``: None: no cause
    is known by these words.
    """

    pod: PodSeen
    place: Place
    field: str
    reason: str
    text: str
    verdict: Verdict | None
    container: ContainerSeen | None = None
    time: float | None = None

    @property
    def code(self) -> str:
        return self.verdict.code if self.verdict is not None else ""

    @property
    def is_sure(self) -> bool:
        """True if a sign knows these words."""
        return self.verdict is not None and self.verdict.sure

    @property
    def who(self) -> str:
        """The member, or which of its containers that does not train."""
        name, container = self.pod.name, self.container
        if container is None or container.role == "main":
            return name
        return f"{name}'s {'init ' if container.role == 'init' else ''}container {container.name}"

    @property
    def quoted(self) -> str:
        if self.container is None or self.place is Place.START:
            return self.text
        return f"{self.reason}: {self.text}" if self.text else self.reason

    @property
    def sentence(self) -> str:
        """One sentence: the member that does not start, and the reason."""
        assert self.verdict is not None
        image = self.container.image if self.container is not None else ""
        claims = f"claim {', '.join(self.pod.claims)}" if self.pod.claims else "a claim"
        named = _VOLUME.search(self.text)
        volume = f"volume {named[1] or named[2]}" if named is not None else "a volume"
        return self.verdict.sentence(self.who, image=image, claims=claims, volume=volume)

    @property
    def evidence(self) -> Evidence:
        return Evidence(pod_object(self.pod), self.field, quote(self.quoted))


_VOLUME = re.compile(r'volume "([^"]+)"|unmounted volumes=\[([^\],\s]+)')


def complaints(case: Case) -> list[Complaint]:
    """Of every pod, the pods in their order."""
    if "complaints" not in case.memo:
        case.memo["complaints"] = [complaint for pod in case.pods for complaint in of_pod(case, pod)]
    known: list[Complaint] = case.memo["complaints"]
    return known


def of_pod(case: Case, pod: PodSeen) -> Iterator[Complaint]:
    for container in pod.containers:
        yield from _of_container(case, pod, container)
    if is_preparing(pod):
        yield from _of_node(case, pod)
    if text := scheduler_words(case, pod):
        verdict = verdict_of(Place.PLACEMENT, text)
        yield Complaint(pod, Place.PLACEMENT, "conditions.PodScheduled", "", text, verdict)


def complained(
    case: Case,
    code: str,
    *,
    blame: str | None = None,
    confidence: float = 0.95,
    retryable: bool | None = None,
) -> Iterator[Finding]:
    """A finding of the first pod that is kept from running by a cause; the others are counted."""
    every = [complaint for complaint in complaints(case) if complaint.code == code]
    if not every:
        return
    first = every[0]
    verdict = first.verdict
    assert verdict is not None
    others = {complaint.pod.name for complaint in every} - {first.pod.name}
    more = f" (the same holds for {len(others)} more)" if others else ""
    yield Finding(
        code,
        f"{first.sentence}{more}",
        (first.evidence,),
        blame if blame is not None else first.pod.name,
        first.time,
        retryable=verdict.passes if retryable is None else retryable,
        confidence=confidence if verdict.sure else 0.6,
    )


# --- containers --------------------------------------------------------------------------------------------


def _of_container(case: Case, pod: PodSeen, container: ContainerSeen) -> Iterator[Complaint]:
    where = f"containerStatuses[{container.name}]"
    now = container.now
    if now.state == "waiting" and now.reason in IMAGE_REASONS:
        text, verdict = _of_image(case, pod, container)
        yield Complaint(pod, Place.IMAGE, f"{where}.waiting", now.reason, text, verdict, container)
    elif now.state == "waiting" and now.reason in NOT_MADE:
        text = now.message or event_text(case, pod, ("Failed", "FailedCreatePodContainer"))
        verdict = verdict_of(Place.CONTAINER, text, now.reason)
        place = Place.CONTAINER
        if verdict is None and (of_start := verdict_of(Place.START, text, now.reason)) and of_start.sure:
            place, verdict = Place.START, of_start
        yield Complaint(pod, place, f"{where}.waiting", now.reason, text, verdict, container)
    elif (failed := container.start_failure) is not None:
        text = _of_start(case, pod, container, failed)
        verdict = verdict_of(Place.START, text, failed.reason)
        time = failed.ended or case.went_bad(pod)
        yield Complaint(pod, Place.START, where, failed.reason, text, verdict, container, time)


_PUT_OFF = re.compile(r'Back-off pulling image "[^"]*"\.?')


def _of_image(case: Case, pod: PodSeen, container: ContainerSeen) -> tuple[str, Verdict | None]:
    """The message that says why an image is not pulled: that of the container, or what events said before."""
    now = container.now
    messages = [e.message for e in case.events_of(pod) if "pull" in e.message.lower() and e.type != "Normal"]
    messages += [e.message for e in case.events_of(pod) if e.reason == "Failed" and e.message not in messages]
    known = [now.message]
    known += [t for t in messages if not container.image or container.image.split("@")[0] in t]
    verdicts = [
        (text, verdict_of(Place.IMAGE, _unnamed(text, container.image), now.reason)) for text in known
    ]
    telling = [pair for pair in verdicts if pair[1] is not None and pair[1].sure]
    if telling:
        return max(telling, key=lambda pair: len(pair[0]))
    text = now.message if not _PUT_OFF.fullmatch(now.message.strip()) else max(known, key=len)
    return text, verdict_of(Place.IMAGE, _unnamed(text, container.image), now.reason)


def _unnamed(text: str, image: str) -> str:
    """Without the image's own name, which may look like a status or a word of refusal."""
    name = image.partition("@")[0]
    if not name:
        return text
    short = name.rpartition("/")[2]
    text = re.sub(rf"[\w./:-]*{re.escape(name)}(@\S+)?", "IMAGE", text)
    return re.sub(rf"(?<![\w-])[\w./:-]*/{re.escape(short)}", "IMAGE", text)


def _of_start(case: Case, pod: PodSeen, container: ContainerSeen, failed: Try) -> str:
    messages = (t.message for t in (container.last, container.now) if t and "back-off" not in t.message)
    return (
        failed.message
        or next((text for text in messages if text), "")
        or event_text(case, pod, ("Failed", "FailedCreatePodContainer", "StartError"))
    )


def event_text(case: Case, pod: PodSeen, reasons: tuple[str, ...]) -> str:
    """The longest message of its events with these reasons."""
    return max((e.message for e in case.events_of(pod) if e.reason in reasons), key=len, default="")


# --- before containers -------------------------------------------------------------------------------------


def is_preparing(pod: PodSeen) -> bool:
    """True if the pod has a node, and none of its containers has ever run."""
    return (
        bool(pod.node)
        and pod.phase in ("Pending", "")
        and not any(
            c.now.state in ("running", "terminated") or c.restarts
            for c in pod.containers
            if c.role != "sidecar"
        )
    )


def _of_node(case: Case, pod: PodSeen) -> Iterator[Complaint]:
    """Volumes, network and devices, the event that names the trouble first."""
    events_by_code: dict[str, list[EventSeen]] = {}
    for event in _current(case, pod):
        verdict = verdict_of(Place.NODE, event.message, event.reason)
        events_by_code.setdefault(verdict.code if verdict is not None else "", []).append(event)
    ready = [
        complaint
        for code, events in events_by_code.items()
        if code and (complaint := _counted(case, pod, events)) is not None
    ]
    # That mounting takes long is said beside what names the trouble.
    sure = [complaint for complaint in ready if complaint.is_sure]
    yield from sure or ready


def _current(case: Case, pod: PodSeen) -> list[EventSeen]:
    """Events that still hold: nothing was pulled or made since, and they are not too old."""
    events = case.events_of(pod)
    begun = max((e.time or 0.0 for e in events if e.reason in _BEGUN), default=0.0)
    current = [e for e in events if e.reason in OF_NODES and (e.time is None or e.time > begun)]
    mounts = [e for e in current if e.reason in MOUNTS]
    age = case.age(max((e.time for e in mounts if e.time is not None), default=None))
    if case.objects.is_exact and age is not None and age >= STALE:
        return [e for e in current if e.reason not in MOUNTS]
    return current


def _counted(case: Case, pod: PodSeen, events: list[EventSeen]) -> Complaint | None:
    """The last of these events, if what they say has been said often enough, or for long enough."""
    last = max(events, key=lambda e: e.time or 0.0)
    verdict = verdict_of(Place.NODE, last.message, last.reason)
    assert verdict is not None
    age = case.age(pod.created)
    lasts = verdict.cause.after > 0 and age is not None and age > verdict.cause.after
    if sum(e.count for e in events) < verdict.cause.times and not lasts:
        return None
    where = f"events.{last.reason}"
    return Complaint(pod, Place.NODE, where, last.reason, last.message, verdict, None, last.time)


# --- without a node ----------------------------------------------------------------------------------------


def unplaced(case: Case) -> list[tuple[PodSeen, str]]:
    """Pods without a node, each with the scheduler's words; empty words: it has said nothing."""
    if "unplaced" not in case.memo:
        every = ((pod, scheduler_words(case, pod)) for pod in case.objects.pods)
        case.memo["unplaced"] = [(pod, text) for pod, text in every if text is not None]
    known: list[tuple[PodSeen, str]] = case.memo["unplaced"]
    return known


def scheduler_words(case: Case, pod: PodSeen) -> str | None:
    """The scheduler's message about a pod without a node; None: the pod has a node, or needs none
    any more.
    """
    if pod.node or pod.phase not in ("Pending", "") or case.is_local or has_run(pod):
        return None
    scheduled = pod.condition("PodScheduled")
    if scheduled is not None and (scheduled.status == "True" or scheduled.message):
        return None if scheduled.status == "True" else scheduled.message
    failures = [e for e in case.events_of(pod) if e.reason == "FailedScheduling"]
    return max(failures, key=lambda e: e.time or 0.0).message if failures else ""
