"""What clusters say of jobs that do not start: ``words_of_clusters.jsonl``, and each line as a snapshot."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from tests.core.diagnosis.building import at, event, job, pod, snapshot

Json = dict[str, Any]
SAYINGS: list[Json] = [
    json.loads(line) for line in Path(__file__).with_name("words_of_clusters.jsonl").read_text().splitlines()
]


def scene(case: Json) -> Json:
    """A job of one member, two minutes after it was made."""
    where, text, reason = case["where"], case["text"], case.get("reason", "")
    own = {"container": {"image": case["image"]}} if "image" in case else {}
    events, pods = [], []
    if where in ("pull", "container"):
        pods = [pod("master-0", "Pending", waiting=reason, message=text, spec=own)]
    elif where == "placement":
        pods = [pod("master-0", "Pending", unschedulable=text)]
    elif where == "event":
        pods = [pod("master-0", "Pending", waiting="ContainerCreating")]
        events = [event(reason, text, "pod/master-0", when=1.9, count=case.get("count", 2))]
    else:
        events = [event("FailedCreatePod", f"Error creating: {text}", "job/net", when=1.9)]
    return snapshot(job("Created", workers=0), *pods, events=events, taken=at(2))
