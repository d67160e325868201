"""Handles SIGTERM inside the training process: the machine is needed, and there are some seconds to save.

The handler only sets a flag; it saves nothing, because a step may be in progress. Rank 0 saves at its next
step boundary and exits with code 143 (128 + SIGTERM), which the operators treat as retryable. The other ranks
keep stepping, because rank 0 may need one more collective with them to reach its boundary; when it has left,
their collective fails, and that is not an error to report: they leave with 143 too, with one line instead of
a traceback. A rank that alone gets SIGTERM (its pod is drained, or deleted from an elastic gang) exits once
rank 0 evidently continues: waiting for SIGKILL would only delay its peers.

A handler that was installed before is called as well; if it wants to exit, that waits until the save is
done. Children that are forked (data loader workers) get the earlier handler back, so that their parent can
still terminate them.
"""

from __future__ import annotations

import logging
import os
import signal
import sys
import threading
from collections.abc import Callable
from contextlib import suppress
from types import FrameType, TracebackType
from typing import Any

from allaboard.errors import AllaboardError

EXIT_CODE = 143
ALONE_AFTER = 5.0
"""Seconds within which all ranks of a common shutdown have got their SIGTERM."""


class Shutdown:
    """Flag that is set once this process gets SIGTERM. One instance per process: `shutdown`."""

    def __init__(self) -> None:
        self.requested = False
        self._steps = 0  # done since then
        self._first: float | None = None  # when the first of them was
        self._peers: Callable[[], tuple[int, int]] = lambda: (0, 1)
        self._handler_before: Any = None
        self._hook_before: Any = None
        self._watching_forks = False

    def install(self, peers: Callable[[], tuple[int, int]]) -> None:
        """Install the SIGTERM handler; ``peers`` returns rank and world size. Does nothing outside of the
        main thread.
        """
        self._peers = peers
        if threading.current_thread() is not threading.main_thread():
            return
        if signal.getsignal(signal.SIGTERM) != self._on_signal:
            self._handler_before = signal.signal(signal.SIGTERM, self._on_signal)
        if sys.excepthook != self._on_exception:
            self._hook_before, sys.excepthook = sys.excepthook, self._on_exception
        if not self._watching_forks and hasattr(os, "register_at_fork"):
            # Blocked meanwhile: a signal between the fork and `uninstall` would be lost.
            os.register_at_fork(
                before=_block, after_in_parent=_unblock, after_in_child=self._after_fork_in_child
            )
            self._watching_forks = True

    def uninstall(self) -> None:
        """Restore the handlers from before `install`."""
        if signal.getsignal(signal.SIGTERM) == self._on_signal:
            signal.signal(signal.SIGTERM, self._handler_before or signal.SIG_DFL)
        if sys.excepthook == self._on_exception:
            sys.excepthook = self._hook_before
        self.requested, self._steps, self._first = False, 0, None

    def after_step(self, now: float) -> None:
        """A rank other than 0 has done a step. ``now``: of a monotonic clock. After two more steps with rank
        0 and some seconds, rank 0 evidently got no SIGTERM: it would have exited at its next step. Then this
        rank exits.
        """
        if not self.requested:
            return
        self._steps += 1
        self._first = now if self._first is None else self._first
        if self._steps > 2 and now - self._first >= ALONE_AFTER:
            rank, _ = self._peers()
            print(
                f"allaboard: rank {rank} ends after SIGTERM; rank 0 was not asked to, and goes on",
                file=sys.stderr,
            )
            exit_at_once()

    def _after_fork_in_child(self) -> None:
        self.uninstall()
        _unblock()

    def _on_signal(self, number: int, frame: FrameType | None) -> None:
        self.requested = True
        if callable(self._handler_before):
            with suppress(SystemExit):  # the exit waits until the state is saved
                self._handler_before(number, frame)

    def _on_exception(
        self, kind: type[BaseException], error: BaseException, trace: TracebackType | None
    ) -> None:
        rank, world = self._peers()
        # Errors of allaboard (a full disk, say) and of a process without peers are real errors.
        if not self.requested or world < 2 or isinstance(error, (AllaboardError, KeyboardInterrupt)):
            self._hook_before(kind, error, trace)
            return
        first = str(error).strip().partition("\n")[0]
        print(
            f"allaboard: rank {rank} ends after SIGTERM, its peers have left ({kind.__name__}: {first})",
            file=sys.stderr,
        )
        exit_at_once()


def _block() -> None:
    signal.pthread_sigmask(signal.SIG_BLOCK, {signal.SIGTERM})


def _unblock() -> None:
    signal.pthread_sigmask(signal.SIG_UNBLOCK, {signal.SIGTERM})


def exit_at_once() -> None:
    """Exit without destructors of process groups, which hang or abort without their peers."""
    logging.shutdown()
    for stream in (sys.stdout, sys.stderr):
        with suppress(OSError, ValueError, AttributeError):
            stream.flush()
    os._exit(EXIT_CODE)


shutdown = Shutdown()
