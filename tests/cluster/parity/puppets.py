"""Members on strings: each process of a member reports to the puppeteer, and ends when and as that says.

So a test decides what happens and in which order, on whichever backend the members run, and knows of each
process that was started, whether it lives, and who it is.
"""

from __future__ import annotations

import socket
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from types import TracebackType
from typing import TypeVar

T = TypeVar("T")

FOLDER = Path(__file__).parent
SCRIPT = "puppet.py"
COMMAND = ["python", "-S", SCRIPT]


@dataclass(eq=False)
class Puppet:
    """One process of a member. ``pid``: as it knows itself."""

    pid: int
    strings: socket.socket = field(repr=False)
    said: list[str] = field(default_factory=list)
    lives: bool = True


class Puppeteer:
    """Holds the strings of every puppet of every run."""

    def __init__(self) -> None:
        self._listener = socket.create_server(("0.0.0.0", 0), backlog=256)
        self._puppets: dict[tuple[str, str], list[Puppet]] = {}
        self._changed = threading.Condition()

    @property
    def port(self) -> int:
        return int(self._listener.getsockname()[1])

    def __enter__(self) -> Puppeteer:
        threading.Thread(target=self._serve, daemon=True).start()
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._listener.close()
        with self._changed:
            for puppet in (p for tries in self._puppets.values() for p in tries):
                _cut(puppet)

    def tries(self, run: str) -> dict[str, int]:
        """Member: how many processes of it were started."""
        with self._changed:
            return {member: len(found) for (of, member), found in self._puppets.items() if of == run}

    def living(self, run: str) -> list[str]:
        """The members of which a process lives."""
        with self._changed:
            mine = [(member, found) for (of, member), found in self._puppets.items() if of == run]
            return sorted(member for member, found in mine if any(p.lives for p in found))

    def up(self, run: str, member: str, number: int = 1, *, seconds: float = 60.0) -> Puppet:
        """The n-th process of this member, once it has reported."""

        def there() -> Puppet | None:
            found = self._puppets.get((run, member), [])
            return found[number - 1] if len(found) >= number else None

        return self._until(f"process {number} of {member} of {run}", there, seconds)

    def tell(self, run: str, member: str, word: int | str) -> None:
        """The newest process of this member ends with this exit code, by a ``fault`` in its memory, or goes
        ``deaf`` to SIGTERM.
        """
        with self._changed:
            puppet = self._puppets[run, member][-1]
        puppet.strings.sendall(f"{word}\n".encode())

    def deafen(self, run: str, member: str, *, seconds: float = 30.0) -> None:
        """From now on its newest process takes no notice of SIGTERM."""
        puppet = self.newest(run, member)
        self.tell(run, member, "deaf")
        self._until(f"{member} to be deaf", lambda: "deaf" in puppet.said or None, seconds)

    def newest(self, run: str, member: str) -> Puppet:
        with self._changed:
            return self._puppets[run, member][-1]

    def _until(self, what: str, look: Callable[[], T | None], seconds: float) -> T:
        deadline = time.monotonic() + seconds
        with self._changed:
            while (found := look()) is None:
                if not self._changed.wait(max(0.0, deadline - time.monotonic())):
                    raise TimeoutError(f"waited {seconds:g} s for {what}")
        return found

    def _serve(self) -> None:
        while True:
            try:
                strings, _ = self._listener.accept()
            except OSError:
                return  # closed: the play is over
            threading.Thread(target=self._hold, args=(strings,), daemon=True).start()

    def _hold(self, strings: socket.socket) -> None:
        with suppress(OSError), strings, strings.makefile() as words:
            run, member, pid = words.readline().split()
            with self._changed:
                number = len(self._puppets.get((run, member), ())) + 1
            strings.sendall(f"{number}\n".encode())
            if not words.readline():
                return
            puppet = Puppet(int(pid), strings)
            with self._changed:
                self._puppets.setdefault((run, member), []).append(puppet)
                self._changed.notify_all()
            try:
                for word in words:
                    with self._changed:
                        puppet.said.append(word.strip())
                        self._changed.notify_all()
            finally:
                # Its end of the strings is closed when the process is no more.
                with self._changed:
                    puppet.lives = False
                    self._changed.notify_all()


def _cut(puppet: Puppet) -> None:
    with suppress(OSError):
        puppet.strings.shutdown(socket.SHUT_RDWR)
