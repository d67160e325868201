"""When members of a run wrote last: one request for each, for the time of its last line. It is asked only
once rank 0 has been silent for longer than the run may be; a healthy run costs nothing.
"""

from __future__ import annotations

from collections.abc import Sequence
from functools import partial
from typing import TYPE_CHECKING

from allaboard.backends.kubernetes.logs.capture import SECONDS, parse_tail, run_within
from allaboard.backends.kubernetes.logs.parsing import SECOND
from allaboard.backends.kubernetes.observe.containers import ContainerRun
from allaboard.errors import AllaboardError
from allaboard.text.reportline import is_answer

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api

MOST = 32
"""Members that are asked, the first ones by rank."""
ANSWERS, ANSWERS_SIZE = 300, 2 << 20
"""Lines that are asked for of a log whose last ones may be answers, one for each process; and their bytes."""
_TIME = 64
"""Bytes that hold the time of a line."""


def to_ask(tries: Sequence[ContainerRun]) -> list[ContainerRun]:
    """The containers that train now, one of each member."""
    return [one for one in tries if one.running and not one.init and not one.previous][:MOST]


def read_last_times(api: Api, tries: Sequence[ContainerRun], *, answers: bool = False) -> dict[int, float]:
    """Rank -> when it wrote its last line, or began where it wrote none. Whose node does not answer is left
    out; returns within some 10 s. ``answers``: its last lines may be answers (`reportline.is_answer`), which
    do not count.
    """
    times: dict[int, float] = {}
    tail, size = (ANSWERS, ANSWERS_SIZE) if answers else (1, _TIME)

    def read(one: ContainerRun) -> None:
        try:
            with api.log(one.pod, container=one.container, tail=tail, limit_bytes=size) as stream:
                _note(times, one, b"".join(stream))
        except AllaboardError:
            return

    run_within(SECONDS, [partial(read, one) for one in tries])
    return dict(times)


def _note(times: dict[int, float], one: ContainerRun, data: bytes) -> None:
    lines = [line for line in parse_tail(data) or () if not is_answer(line.text)]
    at = lines[-1].at / SECOND if lines else one.begun
    if at is not None:
        times[one.rank] = max(at, one.begun or at)
