"""``allaboard snapshot``: all that is known of a run as one file, for `allaboard doctor --snapshot`."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import click

from allaboard.cli.place import Place, json_option, place_options
from allaboard.errors import BadInput
from allaboard.report.terminal import say, show_json
from allaboard.runs.observation import Observation, State
from allaboard.runs.status import state_of
from allaboard.text.redaction import hide_known_in, redact_job, redact_text

if TYPE_CHECKING:
    from allaboard.backends.base import Backend
    from allaboard.backends.kubernetes.backend import KubernetesBackend
    from allaboard.backends.local.backend import LocalBackend

EPILOG = """\b
Examples:
  allaboard snapshot digits -o digits.json && allaboard doctor --snapshot digits.json
  allaboard snapshot pytorchjob/resnet | gzip > case.json.gz

Plain Kubernetes objects and the ends of logs; of a run of this machine what was seen of it. Secrets,
tokens and signed URLs are replaced by ***; look through the file before you give it away all the same.
"""
LONGEST_LOG = 256 << 10
"""Characters of a log's end that are kept."""
MOST_EVENTS, MOST_LOGS = 5000, 500


@click.command(epilog=EPILOG)
@click.argument("run", metavar="RUN")
@click.option(
    "-o", "--output", metavar="FILE", default="-", help="Write to FILE, overwriting it. Default: stdout."
)
@place_options
@json_option
def snapshot(run: str, output: str, at: Place, as_json: bool) -> None:
    """Write a run's objects, events and logs into one file, without secrets."""
    if as_json and output == "-":
        raise BadInput("--json and the snapshot both want stdout; name a file: -o FILE")
    backend, seen = at.open_to_watch(run, evidence=True)
    if at.is_cluster:
        parts = cast(Any, backend).snapshot(seen.run)
    else:
        parts = {"observation": {k: v for k, v in seen.to_dict().items() if k != "tails"}}
    if state_of(seen) is State.RUNNING:
        parts |= _stacks(backend, seen)
    body = {**parts, "logs": _logs(seen)}
    if isinstance(body.get("events"), list):
        body["events"] = body["events"][-MOST_EVENTS:]
    data = json.dumps(
        without_secrets(body, backend.secrets_of(seen.run)), indent=1, ensure_ascii=False, default=str
    )
    if output == "-":
        sys.stdout.write(data + "\n")
        return
    try:
        Path(output).write_text(data + "\n", encoding="utf-8", errors="backslashreplace")
    except OSError as error:
        raise BadInput(f"{output} cannot be written: {error.strerror}") from None
    if as_json:
        show_json({"snapshot": output, "run": seen.run})
        return
    say(
        f"{output}: {len(body.get('pods') or seen.members)} members, {len(body['logs'])} logs, "
        f"{len(data) >> 10} KiB"
    )


def _stacks(backend: Backend, seen: Observation) -> dict[str, Any]:
    """Stacks of its processes, and the seconds since a member wrote; empty for jobs of others."""
    from allaboard.diagnosis.stacks import to_dicts

    if not hasattr(backend, "standing"):
        return {}
    stands = cast("LocalBackend | KubernetesBackend", backend).standing(seen.run)
    if stands.silent is None:
        return {}
    return {"stacks": to_dicts(stands.stacks.looks), "silent": round(stands.silent, 1)}


def _logs(seen: Observation) -> dict[str, str]:
    """By the names of pods; of those that are gone by the members'."""
    pods = {pod.name: pod.pod for pod in seen.objects.pods} if seen.objects is not None else {}
    tails = list(seen.tails.items())[:MOST_LOGS]
    return {pods.get(name) or name: text[-LONGEST_LOG:] for name, text in tails if text}


def without_secrets(body: Mapping[str, Any], known: Iterable[str]) -> Any:
    """A copy that may be shown: objects as jobs are shown, logs as text."""
    secrets = tuple(known)
    objects = redact_job({k: v for k, v in body.items() if k != "logs"})
    logs = {name: redact_text(text, secrets) for name, text in (body.get("logs") or {}).items()}
    return {**hide_known_in(objects, secrets), "logs": logs}
