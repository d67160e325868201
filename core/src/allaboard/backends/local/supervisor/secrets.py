"""Secrets on one machine: a folder per secret below ``<home>/secrets``, a file per key, readable by their
owner alone.

Values are read once, before the first member starts. They go only into the members' environment, never into
the record, the plan, a log or a message. Problems are reported before anything starts.
"""

from __future__ import annotations

import os
import re
import stat
from collections.abc import Iterable, Iterator, Mapping
from pathlib import Path
from typing import Any

from allaboard.errors import BadInput, Problem
from allaboard.text.untrusted import text_flaw

MOST_BYTES = 100_000
"""Of one value: Linux gives 128 KiB to one variable, its name included."""
MOST_TOGETHER = 1 << 20
"""Of all values: Kubernetes lets a secret be as large, and the members' environment has to hold them."""
_VARIABLE = re.compile(r"[A-Za-z_.-][A-Za-z0-9_.-]*")
"""The names that a container of Kubernetes gives to variables."""


class _UnusableSecret(Exception):
    """A file or folder of secrets that cannot be used; the message is for people."""


def folder_of(home: str, name: str) -> Path:
    return Path(home) / "secrets" / name


def locate_secrets(home: str, secrets: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """The secrets of a job with their folders. Raises BadInput with every problem."""
    entries = []
    problems: list[Problem] = []
    for n, secret in enumerate(secrets):
        name = secret["name"]
        entry = {"name": name, "folder": str(folder_of(home, name)), "env": bool(secret.get("env"))}
        problems += (Problem(f"secrets[{n}]", f"{name!r} {trouble}") for trouble in _read_secret(entry)[1])
        entries.append(entry)
    if not problems:
        problems += (Problem("secrets", trouble) for trouble in _too_large(_values(entries)))
    if problems:
        raise BadInput("this job's secrets cannot be used:", problems)
    return entries


def secret_variables(secrets: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    """The environment that the secrets with ``env`` make: one variable per key. Raises BadInput, as
    `locate_secrets`.
    """
    every = list(secrets)
    troubles = [f"{secret['name']!r} {trouble}" for secret in every for trouble in _read_secret(secret)[1]]
    if troubles:
        raise BadInput("this job's secrets cannot be used:", [Problem("secrets", text) for text in troubles])
    return _values(every)


def secret_value(secret: Mapping[str, Any], key: str) -> str | None:
    """The value of one key of a secret; None where there is no such key. Raises BadInput."""
    values, troubles = _read_secret({**secret, "env": True})
    if troubles:
        name = secret["name"]
        problems = [Problem("code.secret", f"{name!r} {trouble}") for trouble in troubles]
        raise BadInput("this job's secrets cannot be used:", problems)
    return values.get(key)


def secret_texts(secrets: Iterable[Mapping[str, Any]]) -> tuple[str, ...]:
    """The values of secrets, those of mounted ones included, for who hides them; what cannot be read, or is
    no text, is left out.
    """
    return tuple(_values({**secret, "env": True} for secret in secrets).values())


def _values(secrets: Iterable[Mapping[str, Any]]) -> dict[str, str]:
    return {key: value for secret in secrets for key, value in _read_secret(secret)[0].items()}


def _too_large(values: Mapping[str, str]) -> Iterator[str]:
    size = sum(len(key) + len(value.encode()) + 2 for key, value in values.items())
    if size > MOST_TOGETHER:
        yield (
            f"hold {size:,} bytes together; an environment holds {MOST_TOGETHER:,} of them: mount the large "
            "ones (mount: /path) instead of env: true"
        )


def _read_secret(secret: Mapping[str, Any]) -> tuple[dict[str, str], list[str]]:
    """The variables of one secret, none where it is mounted, and everything that is wrong with it."""
    values: dict[str, str] = {}
    troubles: list[str] = []
    folder = Path(secret["folder"])
    try:
        keys = _key_files(folder, str(secret["name"]))
    except _UnusableSecret as trouble:
        return values, [str(trouble)]
    for key in keys:
        try:
            _check_private(folder / key, os.lstat(folder / key))
            data = _read_value(folder / key, secret["env"])
            if secret["env"]:
                values[_variable_name(folder, key)] = _decode_value(folder / key, data)
        except OSError as error:
            troubles.append(f"{_shown(folder / key)} cannot be read: {error.strerror}")
        except _UnusableSecret as trouble:
            troubles.append(str(trouble))
    return values, troubles


def _key_files(folder: Path, name: str) -> list[str]:
    if text_flaw(name) or not 0 < len(name.encode()) < 256 or "/" in name or name in (".", ".."):
        raise _UnusableSecret("is not a valid secret name; give the name of a folder below secrets")
    try:
        info = os.lstat(folder)
        if not stat.S_ISDIR(info.st_mode):
            raise _UnusableSecret(f"is not a folder; put a file per key into {_shown(folder)} (mode 0600)")
        _check_private(folder, info)
        return sorted(os.listdir(folder))  # noqa: PTH208  (text of any bytes)
    except FileNotFoundError:
        raise _UnusableSecret(f"is not there; put a file per key into {_shown(folder)} (mode 0600)") from None
    except OSError as error:
        raise _UnusableSecret(f"cannot be read: {_shown(folder)}: {error.strerror}") from None


def _check_private(path: Path, info: os.stat_result) -> None:
    if stat.S_ISLNK(info.st_mode):
        raise _UnusableSecret(f"{_shown(path)} is a symbolic link; put the file itself there")
    if info.st_uid != os.geteuid():
        raise _UnusableSecret(f"{_shown(path)} belongs to another user; make it your own (chown)")
    mode = stat.S_IMODE(info.st_mode)
    if mode & 0o077:
        raise _UnusableSecret(f"{_shown(path)} may be read by others (mode {mode:04o}); chmod go= it")


def _read_value(path: Path, wanted: bool) -> bytes:
    """The bytes of a regular file; with ``wanted=False`` only checks that it can be read. Never blocks: it
    may turn out to be a pipe.
    """
    fd = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    try:
        info = os.fstat(fd)
        if not stat.S_ISREG(info.st_mode):
            raise _UnusableSecret(f"{_shown(path)} is not a regular file; remove it, or replace it with one")
        if wanted and info.st_size > MOST_BYTES:
            raise _UnusableSecret(
                f"{_shown(path)} has {info.st_size:,} bytes; a variable holds {MOST_BYTES:,}: mount the "
                "secret (mount: /path) instead of env: true"
            )
        return os.read(fd, MOST_BYTES + 1) if wanted else b""
    finally:
        os.close(fd)


def _variable_name(folder: Path, key: str) -> str:
    if not _VARIABLE.fullmatch(key):
        raise _UnusableSecret(
            f"{_shown(folder / key)} cannot name a variable; use letters, digits, '_', '-' and '.', not a "
            "digit first, or mount the secret (mount: /path) instead of env: true"
        )
    return key


def _decode_value(path: Path, data: bytes) -> str:
    try:
        value = data.decode()
    except UnicodeDecodeError as error:
        where = f"byte {error.start}"
        raise _UnusableSecret(
            f"{_shown(path)} is not UTF-8 text ({where}); a variable holds text: encode it (base64), or "
            "mount the secret (mount: /path) instead of env: true"
        ) from None
    if "\0" in value:
        raise _UnusableSecret(
            f"{_shown(path)} holds a NUL byte, which no variable can hold; encode it (base64), or mount "
            "the secret (mount: /path) instead of env: true"
        )
    return value.rstrip("\n")


def _shown(path: Path) -> str:
    text = str(path)
    return text if text.isprintable() else repr(text)
