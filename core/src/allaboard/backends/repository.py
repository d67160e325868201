"""The commit that a job's git repository has under a name, as the client asks for it when it launches.

A run keeps its commit: the record has it, and another attempt under the same key runs the same code, whatever
was pushed since.
"""

from __future__ import annotations

import os
import re
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path

from allaboard.backends.base import Plan
from allaboard.diagnosis.unreachable import is_unreachable
from allaboard.errors import BadInput, Problem, SiteError, StorageUnreachable
from allaboard.follow.run_record import RunRecord
from allaboard.job.site import home
from allaboard.runs.setup import TOKEN, TOKEN_KEY, secret_of
from allaboard.text.redaction import hide_known
from allaboard.text.untrusted import show

TIMEOUT = 60.0
"""Seconds within which a repository answers."""
_COMMIT = re.compile(r"[0-9a-f]{40}")
_MOST = 1 << 20


def is_to_be_pinned(plan: Plan) -> bool:
    """True for the plan of a job whose repository is named without a commit."""
    code = plan.job.get("code")
    return isinstance(code, Mapping) and "git" in code and "commit" not in code


def with_commit(plan: Plan, record: RunRecord | None, environ: Mapping[str, str]) -> Plan:
    """The plan of a job that `is_to_be_pinned`, with the commit of ``code.ref``.

    :param record: that of the run under this key. A run that goes on keeps its commit.

    Raises BadInput where the repository refuses, or has no such ref, and StorageUnreachable where it does not
    answer.
    """
    code = plan.job.get("code")
    before = None if record is None or record.handed_over else record.spec.get("code")
    same = isinstance(before, Mapping) and all(before.get(name) == code.get(name) for name in ("git", "ref"))
    kept = before.get("commit") if isinstance(before, Mapping) and same else None
    if not isinstance(kept, str) or not _COMMIT.fullmatch(kept):
        token = _token_of(secret_of(plan.job.as_mapping()), environ)
        kept = commit_of(code["git"], code.get("ref", "HEAD"), token, environ)
    return replace(plan, job=plan.job.with_(code={**code, "commit": kept}))


def _token_of(secret: str | None, environ: Mapping[str, str]) -> str | None:
    """The password that this user keeps in a secret of this machine; None where there is none."""
    if secret is None:
        return None
    try:
        with (Path(home(environ)) / "secrets" / secret / TOKEN_KEY).open(encoding="utf-8") as file:
            return file.read(100_000).strip() or None
    except (OSError, UnicodeDecodeError, SiteError):
        return None


def commit_of(url: str, ref: str, token: str | None, environ: Mapping[str, str]) -> str:
    """The commit of a branch, a tag or HEAD. Raises BadInput, StorageUnreachable."""
    if _COMMIT.fullmatch(ref):
        return ref
    options: list[str] = []
    own = {**environ, "GIT_TERMINAL_PROMPT": "0", "GIT_ASKPASS": "true", "LC_ALL": "C"}
    if token is not None:
        own[TOKEN] = token
        server = "/".join(url.split("/")[:3])
        helper = f'!f() {{ echo username=x-access-token; echo "password=${TOKEN}"; }}; f'
        options = ["-c", f"credential.{server}.helper=", "-c", f"credential.{server}.helper={helper}"]
    try:
        done = subprocess.run(
            ["git", *options, "ls-remote", "--", url, ref, f"refs/tags/{ref}^{{}}"],
            env=own,
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=TIMEOUT,
            check=False,
            cwd=os.sep,
        )
    except FileNotFoundError:
        message = "git is not installed here, so the ref has no commit; install it, or give code.commit"
        raise _wrong("code.ref", message) from None
    except subprocess.TimeoutExpired:
        raise _away(f"{show(url)} did not answer within {TIMEOUT:g} s") from None
    if done.returncode:
        lines = done.stderr[-_MOST:].decode("utf-8", "replace").strip().splitlines()
        last = lines[-1] if lines else "git ls-remote failed"
        reason = hide_known(show(last, 300, quote=False), [token] if token else [])
        message = f"{show(url)} cannot be read from here: {reason}"
        raise _away(message) if is_unreachable(" ".join(lines)) else _wrong("code.git", message)
    answered = done.stdout[:_MOST].decode("ascii", "replace").splitlines()
    pairs = [line.split("\t", 1) for line in answered if re.fullmatch(r"[0-9a-f]{40}\t\S+", line)]
    refs = {name: commit for commit, name in pairs}
    for name in (ref, f"refs/heads/{ref}", f"refs/tags/{ref}^{{}}", f"refs/tags/{ref}"):
        if name in refs:
            return refs[name]
    raise _wrong(
        "code.ref", f"{show(url)} has no branch and no tag {show(ref)}; push it, or give code.commit"
    )


def _away(message: str) -> StorageUnreachable:
    return StorageUnreachable(f"code.git: {message}; nothing was started, try again")


def _wrong(path: str, message: str) -> BadInput:
    return BadInput("the code of this job cannot be found:", [Problem(path, message)])
