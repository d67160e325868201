"""The homes of users, in the paths that people write."""

from __future__ import annotations

import os
from pathlib import Path

from allaboard.errors import BadInput
from allaboard.text.untrusted import show


def expand_home(path: str | os.PathLike[str]) -> Path:
    """The path with ``~`` and ``~user`` resolved. Raises BadInput for a user without a home."""
    try:
        return Path(path).expanduser()
    except RuntimeError:
        user = show(os.fspath(path).partition("/")[0], quote=False)
        raise BadInput(
            f"{show(os.fspath(path))}: there is no home folder of {user} here; write the whole path"
        ) from None
