"""Secrets on one machine: a folder per secret below ``<home>/secrets``, a file per key, readable by their
owner alone.

Values are read when a member starts and go nowhere else: not into the record, the plan, a log or a message.
"""

from __future__ import annotations

import os
import stat
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from allaboard.errors import BadInput, Problem


def folder_of(home: str, name: str) -> Path:
    return Path(home) / "secrets" / name


def why_unusable(folder: Path) -> str | None:
    """None for a folder of secrets that is there and private, else what is wrong and what to do."""
    if not folder.is_dir():
        return f"is not there; put a file per key into {folder} (mode 0600)"
    for path in (folder, *sorted(folder.iterdir())):
        info = path.lstat()
        if stat.S_IMODE(info.st_mode) & 0o077:
            return f"{path} may be read by others (mode {stat.S_IMODE(info.st_mode):04o}); chmod go= it"
        if info.st_uid != os.getuid():
            return f"{path} belongs to another user"
        if path != folder and not stat.S_ISREG(info.st_mode):
            return f"{path} is not a plain file"
    return None


def located(home: str, secrets: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The secrets of a job with their folders. Raises BadInput with every one that cannot be used."""
    found, problems = [], []
    for n, secret in enumerate(secrets):
        folder = folder_of(home, secret["name"])
        reason = why_unusable(folder)
        if reason:
            problems.append(Problem(f"secrets[{n}]", f"{secret['name']!r} {reason}"))
        found.append({"folder": str(folder), "env": bool(secret.get("env"))})
    if problems:
        raise BadInput("this job's secrets cannot be used:", problems)
    return found


def variables(secrets: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The environment that the secrets with ``env`` make: one variable per key."""
    values: dict[str, str] = {}
    for secret in secrets:
        if secret["env"]:
            for path in sorted(Path(secret["folder"]).iterdir()):
                values[path.name] = path.read_text(encoding="utf-8").rstrip("\n")
    return values
