"""Every error that allaboard raises, by who must act.

    AllaboardError
      BadInput             the author of a job, a file or a command line; nothing was started
        UnknownRun         the name fits no run
        SpecChanged        the key belongs to a live run with another spec
      SiteError            whoever runs this machine, store or cluster
        StorageError       a folder or a bucket said no
          StorageDenied      credentials or permissions
          StorageMissing     bucket, folder or object is not there
          StorageFull        no space, no quota
          StorageConflict    it exists already (exclusive create)
          StorageUnsupported the server cannot do this safely
          StorageUnreachable may pass: no answer, time-out, server error
      BackendUnreachable   nobody, it may pass; the run is untouched
      ApiError             what the API server of a cluster refused (backends/kubernetes/client/errors.py)
      Corrupt              bytes do not match their manifest, a record cannot be read
      OwnershipConflict    somebody else owns it now (compare-and-swap lost)
        TakenOver          another process writes this run's checkpoints now; this one saves no more
      TrainingFailed       the run ended otherwise than well; carries the outcome

A foreign error is translated at one place, with ``raise ... from``; none of these inherits from a client
library.

Whatever is put into a message, its text holds no secret and no control character (`allaboard.text.redaction`,
`allaboard.text.printable`): an error may be printed, logged and sent anywhere.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Any

# The readers of texts are imported where an error is made: a DAG file imports this module, and makes none.


@dataclass(frozen=True, slots=True)
class Problem:
    """One thing wrong with an input.

    ``path`` says where (``groups.worker.replicas``), ``message`` what is wrong and what is allowed,
    ``suggestion`` the nearest right word if there is one, ``severity`` is ``error`` (nothing starts) or
    ``warning``.
    """

    path: str
    message: str
    suggestion: str | None = None
    severity: str = "error"

    def __post_init__(self) -> None:
        from allaboard.text.printable import visible
        from allaboard.text.redaction import redact_message, redact_text

        path, message = redact_text(self.path), redact_message(self.path, self.message)
        # A value may be a secret's by the name before it: what is hidden in both together is hidden in each.
        both, head = redact_text(f"{self.path}: {message}"), f"{path}: "
        if self.path and both.startswith(head):
            message = both[len(head) :]
        object.__setattr__(self, "message", visible(message, tabs=True))
        object.__setattr__(self, "path", visible(path, tabs=True))
        if self.suggestion is not None:
            object.__setattr__(self, "suggestion", visible(redact_text(self.suggestion), tabs=True))

    def __str__(self) -> str:
        hint = f" (did you mean {self.suggestion!r}?)" if self.suggestion else ""
        where = f"{self.path}: " if self.path else ""
        return f"{where}{self.message}{hint}"

    def to_dict(self) -> dict[str, Any]:
        """The four fields by name, ready for JSON."""
        return {
            "path": self.path,
            "message": self.message,
            "suggestion": self.suggestion,
            "severity": self.severity,
        }


class ExitCode(IntEnum):
    """Exit codes of the command line and of a step of KFP (core/docs/contract.md, Exit codes)."""

    OK = 0
    FAILED = 1
    """The run failed or is lost; of other verbs: they could not answer."""
    BAD_INPUT = 2
    STOPPED = 3
    TIMED_OUT = 4
    UNREACHABLE = 5
    """The backend does not answer, or another client has the run now; the run is untouched."""
    INTERRUPTED = 130
    """Ctrl-C, where it ends the looking and no run: 128 + SIGINT, as shells have it."""


class AllaboardError(Exception):
    """Base of all. ``code`` is stable (alerts match on it); ``str(error)`` is for people."""

    code = "error"

    def __init__(self, message: str, *, code: str | None = None) -> None:
        super().__init__(_for_people(message))
        if code is not None:
            self.code = code

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All findings, one by one; empty unless the error has several."""
        return ()


def _for_people(message: str) -> str:
    from allaboard.text.printable import visible
    from allaboard.text.redaction import redact_text

    return visible(redact_text(message), newlines=True, tabs=True)


SHOWN = 50
"""Problems in the text of an error; all of them are in ``problems``."""


class BadInput(AllaboardError):
    """Wrong before anything started. ``problems`` holds all that were found, errors first."""

    code = "bad_input"

    def __init__(self, message: str, problems: Sequence[Problem] = (), *, code: str | None = None) -> None:
        self._problems = tuple(problems)
        self.headline = _for_people(message)
        shown = [f"  {problem}" for problem in self._problems[:SHOWN]]
        if len(self._problems) > SHOWN:
            shown.append(f"  and {len(self._problems) - SHOWN} more")
        Exception.__init__(self, "\n".join([self.headline, *shown]))  # all of it is fit to be shown by now
        if code is not None:
            self.code = code

    @property
    def problems(self) -> tuple[Problem, ...]:
        """All problems of the input, errors before warnings."""
        return self._problems

    def __reduce__(self) -> tuple[Any, ...]:
        return (_rebuild, (type(self), self.headline, self._problems, self.code))


def _rebuild(kind: type[BadInput], message: str, problems: tuple[Problem, ...], code: str) -> BadInput:
    return kind(message, problems, code=code)


class UnknownRun(BadInput):
    """The name fits no run of this place."""

    code = "unknown_run"


class SpecChanged(BadInput):
    """``problems``: one for each difference, ``workers: 2 -> 3``."""

    code = "spec_changed"

    @classmethod
    def of(cls, run: str, changes: Sequence[str]) -> SpecChanged:
        """``changes``: of `allaboard.job.identity.differences`."""
        headline = (
            f"run {run} is live with another job; stop it first (`allaboard stop {run}`), or use another key:"
        )
        parts = (line.partition(": ") for line in changes)
        return cls(headline, [Problem(path, how) for path, _, how in parts])


class SiteError(AllaboardError):
    """The administrator of this machine, this store or this cluster must act."""

    code = "site_error"


class StorageError(SiteError):
    """A folder or a bucket refused a request, or did not answer it."""

    code = "storage_error"


class StorageDenied(StorageError):
    """The credentials are missing or wrong, or they do not allow the request."""

    code = "storage_denied"


class StorageMissing(StorageError):
    """The bucket, the folder or the object is not there."""

    code = "storage_missing"


class StorageFull(StorageError):
    """The disk has no space left, or a quota is used up."""

    code = "storage_full"


class StorageConflict(StorageError):
    """The object exists already, and only its first writer may create it."""

    code = "storage_conflict"


class StorageUnsupported(StorageError):
    """The server cannot carry out the request safely; nothing was written."""

    code = "storage_unsupported"


class StorageUnreachable(StorageError):
    """The store gave no answer, or a server error. A later request may succeed."""

    code = "storage_unreachable"


class BackendUnreachable(AllaboardError):
    """The backend does not answer. The run goes on untouched; a later request may succeed."""

    code = "backend_unreachable"


class Corrupt(AllaboardError):
    """Bytes differ from their manifest, or a record cannot be read."""

    code = "corrupt"


class OwnershipConflict(AllaboardError):
    """Another owner has the run now, and this client changed nothing."""

    code = "conflict"


class TakenOver(OwnershipConflict):
    """Another process writes the run's checkpoints now; this process saves no more."""

    code = "taken_over"


class TrainingFailed(AllaboardError):
    """The run ended as failed, lost, stopped or timed out. ``outcome`` has the state and the diagnoses."""

    code = "training_failed"

    def __init__(self, message: str, outcome: Any = None) -> None:
        super().__init__(message)
        self.outcome = outcome
