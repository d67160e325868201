"""Reads the stacks of a run's processes where nobody may run anything in its containers
(``policy.hang.ask: file``): a word is written into a key of the run's record that its pods mount; members
answer in their logs.

A kubelet shows the word to a running pod when it looks at the pod again, once in 60 to 90 seconds
(Kubernetes, "Mounted ConfigMaps are updated automatically"; kubelet, syncFrequency).
"""

from __future__ import annotations

import base64
import zlib
from collections.abc import Sequence
from contextlib import suppress
from functools import partial
from typing import TYPE_CHECKING

from allaboard.backends.kubernetes.client.errors import Forbidden
from allaboard.backends.kubernetes.client.resources import CONFIGMAPS
from allaboard.backends.kubernetes.logs.capture import SECONDS, parse_tail, run_within
from allaboard.backends.kubernetes.logs.silence import ANSWERS, ANSWERS_SIZE
from allaboard.backends.kubernetes.observe.containers import ContainerRun
from allaboard.backends.kubernetes.stacks.asking import look_of, stacks_seen
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.diagnosis.stacks import ProcessLook, StacksSeen
from allaboard.errors import AllaboardError
from allaboard.render import labels
from allaboard.text.reportline import STACKS, decode
from allaboard.text.untrusted import Limits, parse_json

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

WAIT = 150.0
"""Seconds that members have to answer."""
AGAIN, REST = 60.0, 5.0
"""Seconds for which nobody repeats a question of another process; and between two looks at logs."""
FORBIDDEN = (
    "their stacks may not be asked for, which needs patch on configmaps, a right of submitters: "
    "allaboard cluster --rbac submitter -n {} | kubectl apply -f -"
)
LATE = (
    "{} of {} members have not answered in their logs, which needs the helper of members, or allaboard in "
    "the image, and policy.hang.ask: file since their start"
)
MOST_LOOK = Limits(size=1 << 17, depth=4, values=100, digits=20)
"""Limits of the answer of one process."""


def ask(api: Api, stored: Stored, now: float) -> str:
    """Write the word that asks, unless another process did so a moment ago. Returns the word, which is the
    time. ``now``: the server's. Raises Forbidden.
    """
    before = str((stored.body.get("data") or {}).get(labels.ASKED, ""))
    if before.isdigit() and 0 <= now - int(before[:20]) < AGAIN:
        return before
    word = f"{now:.0f}"
    api.patch(CONFIGMAPS, stored.name, {"data": {labels.ASKED: word}})
    return word


def answers(api: Api, word: str, tries: Sequence[ContainerRun]) -> tuple[StacksSeen, bool]:
    """The answers of the members so far, and True when all have answered."""
    by_number = _read(api, word, tries)
    in_order = [answer for _, answer in sorted(by_number.items())]
    looks = tuple(look for answer in in_order for look in answer.looks)
    if late := len(tries) - len(by_number):
        return StacksSeen(looks, LATE.format(late, len(tries))), False
    reason = next((answer.reason for answer in in_order if answer.reason is not None), None)
    return StacksSeen(looks, reason), True


def ask_and_wait(api: Api, stored: Stored, tries: Sequence[ContainerRun], namespace: str) -> StacksSeen:
    """The stacks of the processes of these containers; after `WAIT` seconds those that are known by then."""
    try:
        word = ask(api, stored, api.server_time())
    except Forbidden:
        return StacksSeen(reason=FORBIDDEN.format(namespace))
    answer, all_answered = answers(api, word, tries)
    for number in range(round(WAIT / REST)):
        if all_answered:
            break
        if number == 0 and api.on_silence is not None:
            api.on_silence(
                f"the members are asked for their stacks by a file; their nodes show it within {WAIT:.0f} s"
            )
        api.pause(REST)
        answer, all_answered = answers(api, word, tries)
    return answer


def answer_in(data: bytes, word: str, number: int, instance: ContainerRun) -> StacksSeen | None:
    """The answer to this word at the end of a member's log; None: it is not complete yet. Anything in the
    container may have written it.
    """
    reports = [report for line in parse_tail(data) or () if (report := decode(line.text)) is not None]
    own = [report for report in reports if report.kind == STACKS and report.fields.get("asked") == word]
    if not any("told" in report.fields for report in own):
        return None
    packed = [str(report.fields["look"]) for report in own if "look" in report.fields]
    looks = tuple(look for text in packed if (look := _look(text, number, instance.member)) is not None)
    return stacks_seen(looks, instance)


def _look(packed: str, number: int, member: str) -> ProcessLook | None:
    try:
        text = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), MOST_LOOK.size)
        return look_of(parse_json(text, MOST_LOOK, spelling=False, any_text=True), number, member)
    except (zlib.error, ValueError):  # malformed base64, JSON, or look
        return None


def _read(api: Api, word: str, tries: Sequence[ContainerRun]) -> dict[int, StacksSeen]:
    by_number: dict[int, StacksSeen] = {}

    def read(number: int, instance: ContainerRun) -> None:
        with suppress(AllaboardError):
            lines = api.log(
                instance.pod, container=instance.container, tail=ANSWERS, limit_bytes=ANSWERS_SIZE
            )
            with lines as stream:
                answer = answer_in(b"".join(stream), word, number, instance)
            if answer is not None:
                by_number[number] = answer

    run_within(SECONDS, [partial(read, number, instance) for number, instance in enumerate(tries)])
    return dict(by_number)
