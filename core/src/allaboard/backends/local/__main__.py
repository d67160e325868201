"""``python -m allaboard.backends.local FOLDER`` runs the housekeeping of a home, if due. FOLDER is the home's
folder of this machine. A supervisor starts it at its own start (`housekeeping.start`).
"""

from __future__ import annotations

import os
import sys
import time
from contextlib import suppress
from pathlib import Path

from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.host.processes import detach
from allaboard.backends.local.state import housekeeping
from allaboard.backends.local.state.paths import HOUSEKEEPING, locked
from allaboard.errors import AllaboardError


def main() -> int:
    """Always returns 0: no process waits for it, and the next launch reports problems."""
    detach()
    os.nice(19)
    base = Path(sys.argv[1])
    with suppress(OSError, AllaboardError), locked(base / HOUSEKEEPING, wait=False):
        if housekeeping.is_due(base, time.time()):
            # Recorded first, so that housekeeping that was killed is not repeated at every start.
            os.utime(base / HOUSEKEEPING)
            housekeeping.write_troubles(base, LocalBackend(os.environ).housekeep())
    return 0


if __name__ == "__main__":
    sys.exit(main())
