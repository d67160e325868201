"""Names: what is legal, what is nearest, and how a run gets its own.

A run's name is ``<job>-<hash of key>``, a function of the key alone, so that whoever has the key finds the
run (core/docs/contract.md, Run name). Attempts append ``-<n>`` and controllers ``-worker-<i>``, and Services
are limited to 63 characters; so a job's name may have 40, and that of an object 50.
"""

from __future__ import annotations

import re
from collections.abc import Iterable

from allaboard.text.untrusted import show

JOB_NAME_MAX = 40
OBJECT_NAME_MAX = 50
_DNS_LABEL = re.compile(r"[a-z]([-a-z0-9]*[a-z0-9])?")
_LABEL = r"[a-z0-9]([-a-z0-9]*[a-z0-9])?"
_OBJECT_NAME = re.compile(rf"{_LABEL}(\.{_LABEL})*")
_LABEL_VALUE = re.compile(r"([A-Za-z0-9]([-A-Za-z0-9_.]*[A-Za-z0-9])?)?")
_HASH_LENGTH = 8
# The grammar of github.com/distribution/reference. A host is told from the first part of a path by its dot,
# its port or its capitals.
_HOST = re.compile(
    r"(([A-Za-z0-9]|[A-Za-z0-9][-A-Za-z0-9]*[A-Za-z0-9])(\.([A-Za-z0-9]|[A-Za-z0-9][-A-Za-z0-9]*[A-Za-z0-9]))*"
    r"|\[[A-Fa-f0-9:]+\])(:[0-9]+)?"
)
_REPOSITORY = re.compile(r"[a-z0-9]+((\.|_|__|-+)[a-z0-9]+)*")
_TAG = re.compile(r"[A-Za-z0-9_][-A-Za-z0-9_.]{0,127}")
_DIGEST = re.compile(r"[A-Za-z][A-Za-z0-9]*([-_+.][A-Za-z][A-Za-z0-9]*)*:[0-9a-fA-F]{32,}")
_DIGEST_LENGTHS = {"sha256": 64, "sha384": 96, "sha512": 128}


ANNOTATIONS_LIMIT = 256 * 1024
"""Bytes of all annotations of an object (Kubernetes: TotalAnnotationSizeLimitB)."""


def why_not_a_job_name(name: str) -> str | None:
    """None for a legal job name (a DNS-1035 label of at most 40 characters), else the reason."""
    if len(name) > JOB_NAME_MAX:
        return (
            f"{show(name)} has {len(name)} characters; at most {JOB_NAME_MAX} fit, "
            "because pods and services append their own endings"
        )
    if not _DNS_LABEL.fullmatch(name):
        return (
            f"{show(name)} is not a legal name; use lower-case letters, digits and '-', "
            "beginning with a letter and not ending with '-'"
        )
    return None


def why_not_an_object_name(name: str, most: int = 253) -> str | None:
    """None for what may be the name of a Secret, a claim or a class (a DNS-1123 subdomain), else the
    reason.
    """
    if len(name) > most:
        return f"{show(name)} has {len(name)} characters; the name of an object has at most {most}"
    if not _OBJECT_NAME.fullmatch(name):
        return (
            f"{show(name)} is not an object name; use lower-case letters, digits, '-' and '.', "
            "beginning and ending with a letter or a digit"
        )
    return None


def why_not_a_label_value(value: str) -> str | None:
    """None for what Kubernetes takes as the value of a label, else the reason."""
    if len(value) > 63:
        return f"{show(value)} has {len(value)} characters; the value of a label has at most 63"
    if not _LABEL_VALUE.fullmatch(value):
        return (
            f"{show(value)} is not a label value; use letters, digits, '-', '_' and '.', "
            "beginning and ending with a letter or a digit"
        )
    return None


def why_not_a_qualified_name(name: str) -> str | None:
    """None for what Kubernetes takes as the name of a label or an annotation (``zone``,
    ``topology.kubernetes.io/zone``), else the reason.
    """
    prefix, slash, own = name.rpartition("/")
    if (slash and why_not_an_object_name(prefix)) or not own or why_not_a_label_value(own):
        return f"{show(name)} is not a label name; write one like zone or example.com/zone"
    return None


def why_not_an_image(reference: str) -> str | None:
    """None for what names a container image (``[host[:port]/]path[:tag][@digest]``), else the reason."""
    shown = show(reference)
    if any(c.isspace() for c in reference):
        return f"{shown} holds a blank; write an image like registry.lab/ml/train:v3"
    rest, at, digest = reference.partition("@")
    if at and (reason := _why_not_a_digest(digest)):
        return f"{shown}: {reason}"
    host, slash, path = rest.partition("/")
    if not slash or not (set(host) & set(".:") or host == "localhost" or host.lower() != host):
        host, path = "", rest
    path, colon, tag = path.partition(":")
    if colon and not _TAG.fullmatch(tag):
        trouble = f"the tag {show(tag)} is not valid" if tag else "the tag after ':' is empty"
        return f"{shown}: {trouble}; use letters, digits, '_', '-' and '.', at most 128 (v3)"
    if host and not _HOST.fullmatch(host):
        return f"{shown}: {show(host)} is not a registry; write it like registry.lab:5000/ml/train:v3"
    if path != path.lower():
        return f"{shown}: an image name must be in lower case: {show(path.lower())}"
    if not path or not all(_REPOSITORY.fullmatch(part) for part in path.split("/")):
        return f"{shown} is not an image; write one like registry.lab/ml/train:v3"
    if len(path) + len(host) > 255:
        return f"{shown} has more than the 255 characters of an image's name"
    return None


def _why_not_a_digest(digest: str) -> str | None:
    kind, _, hexadecimal = digest.partition(":")
    length = _DIGEST_LENGTHS.get(kind)
    if not _DIGEST.fullmatch(digest) or (length is not None and len(hexadecimal) != length):
        return "the digest is not valid; write sha256: and 64 hexadecimal digits"
    if length is not None and hexadecimal != hexadecimal.lower():
        return "the digest must be in lower case"
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


def attempt_name(run: str, attempt: int, generation: int = 1, most: int = OBJECT_NAME_MAX) -> str:
    """The name of an attempt's objects: the run's own for the first, ``<run>-<n>`` above; ``<run>-g<g>`` and
    ``<run>-g<g>-<n>`` in later generations, whose objects may stand beside those of an earlier one.

    Never above ``most`` characters: where the ending leaves no room, the job's part of the run's name gives
    way, and the hash of the key goes on telling runs apart.
    """
    ending = (f"-g{generation}" if generation > 1 else "") + (f"-{attempt}" if attempt > 1 else "")
    room = most - len(ending)
    if len(run) > room:
        job, _, key = run.rpartition("-")
        run = f"{job[: room - len(key) - 1].rstrip('-')}-{key}"
    return run + ending


def checkpoint_folder(run: str, generation: int) -> str:
    """Folder of a run's checkpoints below ``checkpoints.uri``; a new generation starts in a fresh folder."""
    return run if generation <= 1 else f"{run}-g{generation}"


def nearest(word: str, known: Iterable[str]) -> str | None:
    """The known word that is closest to ``word``, or None."""
    import difflib

    if len(word) > 100:  # comparing is quadratic, and typos are short
        return None
    options = {k.lower().replace("-", "_"): k for k in known}
    matches = difflib.get_close_matches(word.lower().replace("-", "_"), options, n=1, cutoff=0.6)
    return options[matches[0]] if matches else None


def one_of(known: Iterable[str]) -> str:
    """``a, b or c`` for messages."""
    names = list(known)
    return names[0] if len(names) == 1 else f"{', '.join(names[:-1])} or {names[-1]}"
