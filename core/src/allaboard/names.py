"""Names: what is legal, what is nearest, and how a run gets its own.

A run's name is ``<job>-<hash of key>``, a function of the key alone, so that whoever has the key finds the
run (contract: identity). Attempts append ``-<n>`` and controllers ``-worker-<i>``, and Services are limited
to 63 characters; so a job's name may have 40, and that of an object 50.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

JOB_NAME_MAX = 40
OBJECT_NAME_MAX = 50
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_OBJECT_NAME = re.compile(r"[a-z0-9]([-a-z0-9.]*[a-z0-9])?")
_HASH_LENGTH = 8


def why_not_a_job_name(name: str) -> str | None:
    """None for a legal job name (a DNS-1035 label of at most 40 characters), else the reason."""
    if len(name) > JOB_NAME_MAX:
        return (
            f"{name!r} has {len(name)} characters; at most {JOB_NAME_MAX} fit, "
            "because pods and services append their own endings"
        )
    if not _DNS_LABEL.fullmatch(name):
        return (
            f"{name!r} is not a legal name; use lower-case letters, digits and '-', "
            "beginning with a letter and not ending with '-'"
        )
    return None


def why_not_an_object_name(name: str) -> str | None:
    """None for what may be the name of a Secret or a claim, else the reason."""
    if len(name) > 253 or not _OBJECT_NAME.fullmatch(name):
        return f"{name!r} is no name of an object; use lower-case letters, digits, '-' and '.'"
    return None


def as_job_name(text: str) -> str:
    """The nearest legal job name to any text, never empty."""
    slug = re.sub(r"[^a-z0-9]+", "-", text.lower()).strip("-") or "job"
    slug = slug if slug[0].isalpha() else f"j{slug}"
    return slug[:JOB_NAME_MAX].rstrip("-")


def key_hash(key: str) -> str:
    import hashlib

    return hashlib.blake2s(key.encode(), digest_size=_HASH_LENGTH // 2).hexdigest()


def run_name(job: str, key: str) -> str:
    """``digits`` and a key -> ``digits-1f0c9a77``."""
    return f"{job}-{key_hash(key)}"


def attempt_name(run: str, attempt: int, generation: int = 1) -> str:
    """The name of an attempt's objects: the run's own for the first, ``<run>-<n>`` above; ``<run>-g<g>`` and
    ``<run>-g<g>-<n>`` in later generations, whose objects may stand beside those of an earlier one.

    Never above 50 characters: where the ending leaves no room, the job's part of the run's name gives way,
    and the hash of the key goes on telling runs apart.
    """
    ending = (f"-g{generation}" if generation > 1 else "") + (f"-{attempt}" if attempt > 1 else "")
    room = OBJECT_NAME_MAX - len(ending)
    if len(run) > room:
        job, _, key = run.rpartition("-")
        run = f"{job[: room - len(key) - 1].rstrip('-')}-{key}"
    return run + ending


def checkpoint_folder(run: str, generation: int) -> str:
    """Where a run keeps its checkpoints below ``checkpoints.uri``; a new generation starts in a fresh
    folder.
    """
    return run if generation <= 1 else f"{run}-g{generation}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that somebody who typed ``word`` probably meant, or None."""
    import difflib

    options = {k.lower().replace("-", "_"): k for k in known}
    found = difflib.get_close_matches(word.lower().replace("-", "_"), options, n=1, cutoff=0.6)
    return options[found[0]] if found else None


def one_of(known: Iterable[str]) -> str:
    """``a, b or c`` for messages."""
    words = list(known)
    return words[0] if len(words) == 1 else f"{', '.join(words[:-1])} or {words[-1]}"
