"""Managers of a job that another tool made, which would make it anew or change it back. Values in, values
out.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from allaboard.engines import engine_of_object
from allaboard.gangs.kueue import MULTIKUEUE, QUEUE
from allaboard.render import labels
from allaboard.text.untrusted import show

Json = Mapping[str, Any]


def managers(job: Json) -> tuple[str, ...]:
    """A sentence for each manager of this job."""
    return tuple(_managers(job))


def queue_of(job: Json) -> str | None:
    """The queue of Kueue that a job names; None: it names no queue."""
    return labels.label_of(job, QUEUE) or labels.annotation_of(job, QUEUE)


def holding_queue(job: Json) -> str | None:
    """The queue of Kueue that decides when a suspended job runs; None: it is in no queue, or a person has
    suspended it.
    """
    return None if labels.annotation_of(job, labels.SUSPENDED_BY) else queue_of(job)


def is_sent_away(job: Json) -> bool:
    """True when it names Kueue as its manager, which is to run it on another cluster."""
    engine = engine_of_object(job)
    return engine is not None and engine.managed_by(job) == MULTIKUEUE


def runs_elsewhere(job: Json) -> bool:
    """True when Kueue runs it on another cluster, once its queue admits it."""
    return queue_of(job) is not None and is_sent_away(job)


def _managers(job: Json) -> Iterator[str]:
    for owner in (job.get("metadata") or {}).get("ownerReferences") or ():
        if owner.get("controller"):
            who = f"{owner.get('kind')} {show(str(owner.get('name')))}"
            yield f"it belongs to {who}, which may make it anew or change it back"
    by = labels.label_of(job, labels.MANAGED_BY)
    if by is not None:
        yield f"{show(by)} manages it ({labels.MANAGED_BY}), and may make it anew or change it back"
    queue = queue_of(job)
    if queue is not None:
        yield f"Kueue admits it, by its queue {show(queue)}: it decides when it runs"
    if is_sent_away(job):
        yield "Kueue runs it on another cluster (runPolicy.managedBy)"
