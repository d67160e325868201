"""The identity of a run: its key, its spec and the hash of the spec
(core/docs/contract.md, Key; core/docs/contract.md, Spec hash).

The hash covers the canonical JSON of the fields that the author set, after templating; no default, key,
attempt or resume is in it, and no value of a secret that the job only names. The JSON itself is kept in the
run record, so that a difference can be shown.
"""

from __future__ import annotations

import hashlib
import json
import secrets
from collections.abc import Mapping
from contextlib import suppress
from typing import Any

from allaboard.job.training_job import TrainingJob
from allaboard.text.redaction import redact_job

HASH_VERSION = "v1"


def fresh_key() -> str:
    """A unique key for a call without one, so that every call trains again."""
    return f"once/{secrets.token_hex(16)}"


def airflow_key(instance: str, dag: str, run: str, task: str, map_index: int = -1) -> str:
    """Airflow's key: the same for every try of one task instance. No try number in it."""
    return json.dumps(["airflow", instance, dag, run, task, map_index], separators=(",", ":"))


def kfp_key(run_id: str, task: str) -> str:
    """Kubeflow Pipelines' key: the pipeline run and the task in it."""
    return json.dumps(["kfp", run_id, task], separators=(",", ":"))


def names_one_step(key: str) -> bool:
    """True if a key names one step of one pipeline run of Kubeflow, and nothing else ever. A person who wants
    another training starts another pipeline run; another launch under this key is a pod of the same step.
    """
    with suppress(ValueError, RecursionError):
        match json.loads(key):
            case ["kfp", str(run_id), str()]:
                return bool(run_id)
    return False


def canonical(spec: Mapping[str, Any]) -> str:
    """One text for one meaning: sorted keys, no blanks."""
    return json.dumps(spec, sort_keys=True, separators=(",", ":"), ensure_ascii=False, allow_nan=False)


def spec_of(job: TrainingJob) -> dict[str, Any]:
    """The part of a job that its identity is made of: all that its author set."""
    return job.as_mapping()


def spec_hash(spec: Mapping[str, Any]) -> str:
    return f"{HASH_VERSION}:{hashlib.sha256(canonical(spec).encode()).hexdigest()}"


def same_spec(recorded: str, spec: Mapping[str, Any]) -> bool:
    """True if a recorded hash matches the spec. A hash of an unknown version is never a reason to refuse."""
    return not recorded.startswith(f"{HASH_VERSION}:") or recorded == spec_hash(spec)


def differences(old: Any, new: Any, path: str = "") -> list[str]:
    """One line per difference, ``policy.backoff_limit: 3 -> 5``; of a secret only that there is one."""
    return _differences(old, new, path, redact_job(old), redact_job(new))


def _differences(old: Any, new: Any, path: str, shown_old: Any, shown_new: Any) -> list[str]:
    if isinstance(old, Mapping) and isinstance(new, Mapping):
        names = [*old, *(n for n in new if n not in old)]
        return [
            line
            for n in names
            for line in _differences(
                old.get(n),
                new.get(n),
                f"{path}.{n}" if path else str(n),
                _join_path(shown_old, n),
                _join_path(shown_new, n),
            )
        ]
    if old == new:
        return []
    other = " (another one)" if shown_old == shown_new else ""
    return [f"{path}: {_show_value(shown_old)} -> {_show_value(shown_new)}{other}"]


def _join_path(shown: Any, name: str) -> Any:
    return shown.get(name) if isinstance(shown, Mapping) else None


def _show_value(value: Any) -> str:
    return "absent" if value is None else json.dumps(value, ensure_ascii=False)
