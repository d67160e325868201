"""Times of the members' last lines: one request for each member. It is made only once rank 0 has been silent
for longer than the run may be; a healthy run costs nothing.
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
"""Lines that are asked for of a log whose last lines may be answers, one of each process; and their bytes."""
_TIME = 64
"""Bytes that hold the time of a line."""


def to_ask(tries: Sequence[ContainerRun]) -> list[ContainerRun]:
    """The containers that train now, one of each member."""
    return [
        instance for instance in tries if instance.running and not instance.init and not instance.previous
    ][:MOST]


def read_last_times(api: Api, tries: Sequence[ContainerRun], *, answers: bool = False) -> dict[int, float]:
    """Rank -> the time of its last line, or of its start where it wrote none. A member whose node does not
    answer is left out; returns within some 10 s. ``answers``: its last lines may be answers
    (`reportline.is_answer`), which do not count.
    """
    times: dict[int, float] = {}
    tail, size = (ANSWERS, ANSWERS_SIZE) if answers else (1, _TIME)

    def read(instance: ContainerRun) -> None:
        try:
            with api.log(instance.pod, container=instance.container, tail=tail, limit_bytes=size) as stream:
                _note(times, instance, b"".join(stream))
        except AllaboardError:
            return

    run_within(SECONDS, [partial(read, instance) for instance in tries])
    return dict(times)


def _note(times: dict[int, float], instance: ContainerRun, data: bytes) -> None:
    lines = [line for line in parse_tail(data) or () if not is_answer(line.text)]
    at = lines[-1].at / SECOND if lines else instance.begun
    if at is not None:
        times[instance.rank] = max(at, instance.begun or at)
