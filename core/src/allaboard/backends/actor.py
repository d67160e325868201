"""The name of the acting user, for records and messages."""

from __future__ import annotations

import getpass
import os
import socket


def user_at_host() -> str:
    """``user@host``."""
    try:
        user = getpass.getuser()
    except (OSError, KeyError, ImportError):  # a user without a name, as in containers
        user = f"uid {os.getuid()}"
    return f"{user}@{socket.gethostname()}"
