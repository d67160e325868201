"""Asks the processes of a run where they are, where nobody may run anything in its containers
(``policy.hang.ask: file``): a word is written into the run's record, of which its pods mount that one key;
members answer in their logs.

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
from allaboard.backends.kubernetes.stacks.asking import NO_ALLABOARD, look_of, with_rank
from allaboard.backends.kubernetes.state.records import Stored
from allaboard.diagnosis.stacks import ProcessLook, Told
from allaboard.errors import AllaboardError
from allaboard.render import labels
from allaboard.text.reportline import STACKS, decode
from allaboard.text.untrusted import Limits, parse_json

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

WAIT = 150.0
"""Seconds that members have to answer."""
AGAIN, REST = 60.0, 5.0
"""Seconds for which what somebody else has asked is asked by nobody again; and between two looks at logs."""
FORBIDDEN = (
    "their stacks may not be asked for, which takes patch on configmaps, as of a submitter: "
    "allaboard cluster --rbac submitter -n {} | kubectl apply -f -"
)
LATE = (
    "{} of {} members have not answered in their logs, which takes the helper of members, or allaboard in "
    "the image, and policy.hang.ask: file since their start"
)
MOST_LOOK = Limits(size=1 << 17, depth=4, values=100, digits=20)
"""What is read of one process."""


def ask(api: Api, stored: Stored, now: float) -> str:
    """Write the word that asks, unless another process did so a moment ago; the word, which is the time.
    ``now``: the server's. Raises Forbidden.
    """
    before = str((stored.body.get("data") or {}).get(labels.ASKED, ""))
    if before.isdigit() and 0 <= now - int(before[:20]) < AGAIN:
        return before
    word = f"{now:.0f}"
    api.patch(CONFIGMAPS, stored.name, {"data": {labels.ASKED: word}})
    return word


def answers(api: Api, word: str, tries: Sequence[ContainerRun]) -> tuple[Told, bool]:
    """What the members have answered so far, and whether all have."""
    told = _read(api, word, tries)
    in_order = [one for _, one in sorted(told.items())]
    looks = tuple(look for one in in_order for look in one.looks)
    if late := len(tries) - len(told):
        return Told(looks, LATE.format(late, len(tries))), False
    return Told(looks, next((one.why for one in in_order if one.why is not None), None)), True


def ask_and_wait(api: Api, stored: Stored, tries: Sequence[ContainerRun], namespace: str) -> Told:
    """Where the processes of these containers are; after `WAIT` seconds what is known by then."""
    try:
        word = ask(api, stored, api.server_time())
    except Forbidden:
        return Told(why=FORBIDDEN.format(namespace))
    told, all_answered = answers(api, word, tries)
    for number in range(round(WAIT / REST)):
        if all_answered:
            break
        if number == 0 and api.on_silence is not None:
            api.on_silence(
                f"the members are asked for their stacks by a file; their nodes show it within {WAIT:.0f} s"
            )
        api.pause(REST)
        told, all_answered = answers(api, word, tries)
    return told


def answer_in(data: bytes, word: str, number: int, one: ContainerRun) -> Told | None:
    """What the end of a member's log answers to this word; None: not all of it is there yet. Anything in the
    container may have written it.
    """
    reports = [report for line in parse_tail(data) or () if (report := decode(line.text)) is not None]
    own = [report for report in reports if report.kind == STACKS and report.fields.get("asked") == word]
    if not any("told" in report.fields for report in own):
        return None
    packed = [str(report.fields["look"]) for report in own if "look" in report.fields]
    looks = tuple(look for text in packed if (look := _look(text, number, one.member)) is not None)
    return Told(with_rank(looks, one.rank), None if looks else NO_ALLABOARD)


def _look(packed: str, number: int, member: str) -> ProcessLook | None:
    try:
        text = zlib.decompressobj().decompress(base64.b64decode(packed, validate=True), MOST_LOOK.size)
        return look_of(parse_json(text, MOST_LOOK, spelling=False, any_text=True), number, member)
    except (zlib.error, ValueError):  # what is no base64, no JSON, or no look
        return None


def _read(api: Api, word: str, tries: Sequence[ContainerRun]) -> dict[int, Told]:
    told: dict[int, Told] = {}

    def read(number: int, one: ContainerRun) -> None:
        with suppress(AllaboardError):
            lines = api.log(one.pod, container=one.container, tail=ANSWERS, limit_bytes=ANSWERS_SIZE)
            with lines as stream:
                answer = answer_in(b"".join(stream), word, number, one)
            if answer is not None:
                told[number] = answer

    run_within(SECONDS, [partial(read, number, one) for number, one in enumerate(tries)])
    return dict(told)
