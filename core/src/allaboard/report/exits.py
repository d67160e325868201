"""Exit codes of a command that starts or watches a run, by its error (core/docs/contract.md, Exit codes), and
the fate of the run.
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
from allaboard.report.commands import Place


class NotStarted(AllaboardError):
    """This machine, a cluster or a store has a problem; nothing was started."""

    def __init__(self, error: AllaboardError) -> None:
        super().__init__(str(error), code=error.code)


class WatchInterrupted(BackendUnreachable):
    """A started run can no longer be observed. The run is untouched and may still succeed; its end is not
    known.
    """

    def __init__(self, run: str, error: AllaboardError, at: Place) -> None:
        go_on = at.command("follow", run)
        super().__init__(f"{error}\n{run} is untouched; go on watching it with: {go_on}", code=error.code)


@contextmanager
def not_started_on_error() -> Iterator[None]:
    """Turn errors of a machine, a cluster or a store into `NotStarted`."""
    try:
        yield
    except AllaboardError as error:
        if exit_code_of(error) is not ExitCode.FAILED:
            raise
        raise NotStarted(error) from error


@contextmanager
def maybe_started_on_error(again: str) -> Iterator[None]:
    """Like `not_started_on_error`. A request without an answer may have been carried out: the error then
    names ``again``, the command line that goes on with the run.
    """
    try:
        with not_started_on_error():
            yield
    except BackendUnreachable as error:
        message = (
            f"{error}\nWhether it was started is not known; this goes on with it, and starts it once: {again}"
        )
        raise BackendUnreachable(message, code=error.code) from error


@contextmanager
def untouched_on_error(run: str, at: Place) -> Iterator[None]:
    """Turn errors of observing a run into `WatchInterrupted`: they say nothing about how the run ends."""
    try:
        yield
    except AllaboardError as error:
        if exit_code_of(error) not in (ExitCode.FAILED, ExitCode.UNREACHABLE):
            raise
        raise WatchInterrupted(run, error, at) from error


def exit_code_of(error: AllaboardError) -> ExitCode:
    """The exit code of an error of ours."""
    if isinstance(error, (BackendUnreachable, StorageUnreachable)):
        return ExitCode.UNREACHABLE
    # The name of a bucket or folder that does not exist is bad input, wherever the error was raised.
    if isinstance(error, (BadInput, StorageMissing, NotStarted)):
        return ExitCode.BAD_INPUT
    return ExitCode.FAILED
