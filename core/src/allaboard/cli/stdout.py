"""The stdout of a command line: what cannot be written there ends no verb, and is an error at the end."""

from __future__ import annotations

import errno
import io
import os
import stat
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from _typeshed import ReadableBuffer


class Stdout(io.FileIO):
    """The file of stdout. A write that fails is kept as ``trouble``, and so a run is followed to its end all
    the same. A reader that is gone raises BrokenPipeError, as it does everywhere.
    """

    trouble: OSError | None = None

    def write(self, data: ReadableBuffer, /) -> int:
        try:
            return super().write(data) or 0
        except BrokenPipeError:
            raise
        except OSError as error:
            if not self._is_closed_terminal(error):
                self.trouble = self.trouble or error
            return memoryview(data).nbytes

    def _is_closed_terminal(self, error: OSError) -> bool:
        return error.errno == errno.EIO and stat.S_ISCHR(os.fstat(self.fileno()).st_mode)


def open_stdout() -> Stdout | None:
    """Make `sys.stdout` write through a `Stdout`; None where something else than this process's own stdout
    stands for it.
    """
    before = sys.stdout
    if before is not sys.__stdout__ or not isinstance(before, io.TextIOWrapper):
        return None
    before.flush()
    file = Stdout(before.fileno(), "w", closefd=False)
    sys.stdout = io.TextIOWrapper(
        io.BufferedWriter(file),
        before.encoding,
        before.errors,
        line_buffering=before.line_buffering,
        write_through=before.write_through,
    )
    return file
