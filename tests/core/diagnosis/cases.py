"""Failures and waits as snapshots, each with the diagnosis that must come first.

A line of ``cases.jsonl`` is a case. ``code``, ``retryable`` (null: not asked) and ``blame`` are those of the
first diagnosis; ``not``: causes that look like this case and must not come first. In ``snapshot``,
``{"=pod": {...}}`` is the result of the function `pod` with these arguments; the functions are those of
`building`, `refused`, `failed` and `pulling`.
"""

from __future__ import annotations

import inspect
import json
from pathlib import Path
from typing import Any, NamedTuple

from tests.core.diagnosis import building
from tests.core.diagnosis.building import FAILED, job, pod, snapshot

Json = dict[str, Any]


class Sample(NamedTuple):
    """A case. ``like``: the causes of the key ``not``."""

    name: str
    code: str
    retryable: bool | None
    blame: str
    snapshot: Json
    like: tuple[str, ...] = ()


def refused(message: str, code: int = 403, reason: str = "Forbidden") -> Json:
    """The API server refuses to create the job."""
    return {"submit_error": {"kind": "Status", "code": code, "reason": reason, "message": message}}


def failed(log: str, *, member: str = "worker-0", exit_code: int = 1, peers: str = "", **more: Any) -> Json:
    """One member failed with this log; the master only lost it, which wrote ``peers``."""
    logs = {member: log, **({"master-0": peers} if peers else {})}
    other = pod("master-0", "Failed", exit_code=1, ended=30.1) if peers else pod("master-0")
    ended = pod(member, "Failed", exit_code=exit_code, ended=30)
    return snapshot(job("Created", FAILED), other, ended, logs=logs, **more)


def pulling(text: str, reason: str = "ImagePullBackOff", **more: Any) -> Json:
    """The image of the master cannot be pulled, with this message of the container runtime."""
    back = f'Back-off pulling image "registry.lab/ml/train:7": ErrImagePull: {text}'
    message = back if reason.endswith("BackOff") else text
    return snapshot(job("Created"), pod("master-0", "Pending", waiting=reason, message=message), **more)


BUILDERS = (
    "condition",
    "event",
    "job",
    "node",
    "pod",
    "podgroup",
    "snapshot",
    "traceback",
    "watchdog",
    "workload",
)
MAKERS: dict[str, Any] = {
    "FAILED": lambda: FAILED,
    **{made.__name__: made for made in (refused, failed, pulling)},
    **{name: getattr(building, name) for name in BUILDERS},
}


def build(value: Any) -> Any:
    """The value of a line, with what its functions make in the place of each ``{"=name": {arguments}}``."""
    if isinstance(value, list):
        return [build(item) for item in value]
    if not isinstance(value, dict):
        return value
    name = next(iter(value), "")
    if name.startswith("="):
        return _call(name[1:], build(value[name]))
    return {key: build(item) for key, item in value.items()}


def _call(name: str, arguments: Json) -> Any:
    make = MAKERS[name]
    before: list[Any] = []
    for parameter in inspect.signature(make).parameters.values():
        if parameter.kind is parameter.VAR_POSITIONAL:  # what stands before it is given by position, too
            many = arguments.pop(parameter.name, [])
            first = [arguments.pop(p.name, p.default) for p in before] if many else []
            return make(*first, *many, **arguments)
        before.append(parameter)
    return make(**arguments)


def read_cases() -> list[Sample]:
    lines = Path(__file__).with_name("cases.jsonl").read_text(encoding="utf-8").splitlines()
    return [
        Sample(
            f"{line['code']}: {line['name']}",
            line["code"],
            line["retryable"],
            line["blame"],
            build(line["snapshot"]),
            tuple(line.get("not", ())),
        )
        for line in map(json.loads, lines)
    ]


CASES = read_cases()
