"""Time for which a reaper has waited for the client of each orphan. It counts only what passes between two
looks that are no further apart than the seconds of a Lease: in that time the API server answered, and a
client that lives would have been seen. After a longer gap (the API server was away, or no reaper ran) each
client gets its whole patience again.

The counts are kept in an annotation of the Lease that the reaper renews with each look, so a reaper that
starts anew goes on with them; of two reapers only one writes a look (resourceVersion). All times are those of
the API server. `count` reads nothing and writes nothing.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from allaboard.backends.kubernetes.client.protocol import Json
from allaboard.backends.kubernetes.state import leases
from allaboard.render import labels
from allaboard.text.untrusted import Limits, parse_json

LEASE = "allaboard-reaper"
"""The Lease that a reaper renews with each look: it shows that one is at work in its namespace."""
COUNTED = labels.PREFIX + "counted"
"""Annotation of that Lease: the orphans that are waited for."""
GAP = float(leases.SECONDS)
"""Seconds between two looks from which on nothing is counted."""
MOST = 2000
"""Orphans that are kept in mind; a Kubernetes object has 256 KiB of annotations at most."""
_LIMITS = Limits(size=1 << 20)


@dataclass(frozen=True, slots=True)
class Waiting:
    """An orphan that is waited for. ``mark``: of its record, changed by whoever takes it up; ``since``: when
    its client was last seen, epoch seconds; ``counted``: seconds waited.
    """

    mark: str
    since: float
    counted: float = 0.0


def count(
    before: Mapping[str, Waiting], seen: Iterable[tuple[str, str, float]], gap: float | None
) -> dict[str, Waiting]:
    """The orphans that are waited for after a look, by run. ``seen``: run, mark and ``since`` of each orphan
    of this look; ``gap``: seconds since the look before, None: there was none.
    """
    after = {}
    for run, mark, since in seen:
        old = before.get(run)
        if old is None or old.mark != mark or since > old.since:
            after[run] = Waiting(mark, since)
        elif gap is None or abs(gap) > GAP:
            after[run] = Waiting(mark, old.since)
        else:
            # The clocks of two API servers differ: what one adds too much the other takes back.
            after[run] = Waiting(mark, old.since, max(0.0, old.counted + gap))
    longest = sorted(after.items(), key=lambda item: -item[1].counted)
    return dict(longest[:MOST])


def read(lease: Json | None) -> dict[str, Waiting]:
    """The content of the reaper's Lease; nothing in the place of what cannot be read."""
    try:
        written = parse_json(labels.annotation_of(lease or {}, COUNTED) or "{}", _LIMITS, spelling=False)
        return {str(run): _waiting(entry) for run, entry in written.items()}
    except (ValueError, TypeError, AttributeError):
        return {}


def _waiting(entry: Any) -> Waiting:
    mark, since, counted = entry
    return Waiting(str(mark), float(since), float(counted))


def lease_body(holder: str, now: float, waiting: Mapping[str, Waiting], lease: Json | None) -> Json:
    """The reaper's Lease after a look; ``lease``: as it was read."""
    body = leases.lease_body(holder, now)
    entries = {run: [w.mark, round(w.since, 3), round(w.counted, 3)] for run, w in sorted(waiting.items())}
    body["metadata"] |= {"name": LEASE, "annotations": {COUNTED: json.dumps(entries, separators=(",", ":"))}}
    if lease is not None:
        body["metadata"] |= {name: lease["metadata"][name] for name in ("uid", "resourceVersion")}
    return body
