"""Who acts, for records and for people."""

from __future__ import annotations

import getpass
import os
import socket


def user_at_host() -> str:
    """``user@host``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a container's user without a name
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
