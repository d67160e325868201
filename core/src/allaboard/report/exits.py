"""What an error means for whoever starts a run or watches it: the exit code of contract 4, and what
becomes of the run.
"""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager

from allaboard.errors import (
    AllaboardError,
    BackendUnreachable,
    BadInput,
    ExitCode,
    StorageMissing,
    StorageUnreachable,
)
from allaboard.report.commands import command


class BeforeStart(AllaboardError):
    """Something about this machine, a cluster or a store is wrong, found before anything was started."""

    def __init__(self, error: AllaboardError) -> None:
        super().__init__(str(error), code=error.code)


class OutOfSight(BackendUnreachable):
    """A run that was started cannot be looked at any more. It is untouched: how it ends is not known, and
    least of all that it failed.
    """

    def __init__(self, run: str, error: AllaboardError) -> None:
        go_on = command(f"follow {run}")
        super().__init__(f"{error}\n{run} is untouched; go on watching it with: {go_on}", code=error.code)


@contextmanager
def before_start() -> Iterator[None]:
    """What a machine, a cluster or a store refuses in here is refused before anything was started."""
    try:
        yield
    except AllaboardError as error:
        if code_of(error) is not ExitCode.FAILED:
            raise
        raise BeforeStart(error) from error


@contextmanager
def starting(again: str) -> Iterator[None]:
    """As `before_start`; and where no answer came, the request may have been carried out. ``again``: the
    command line that goes on with what there is.
    """
    try:
        with before_start():
            yield
    except BackendUnreachable as error:
        words = (
            f"{error}\nWhether it was started is not known; this goes on with it, and starts it once: {again}"
        )
        raise BackendUnreachable(words, code=error.code) from error


@contextmanager
def watching(run: str) -> Iterator[None]:
    """What keeps us from looking at a run in here says nothing about how it ends."""
    try:
        yield
    except AllaboardError as error:
        if code_of(error) not in (ExitCode.FAILED, ExitCode.UNREACHABLE):
            raise
        raise OutOfSight(run, error) from error


def code_of(error: AllaboardError) -> ExitCode:
    """The exit code of an error of ours."""
    if isinstance(error, (BackendUnreachable, StorageUnreachable)):
        return ExitCode.UNREACHABLE
    # Who names a bucket or a folder that is not there has given bad input, wherever that was noticed.
    if isinstance(error, (BadInput, StorageMissing, BeforeStart)):
        return ExitCode.BAD_INPUT
    return ExitCode.FAILED
