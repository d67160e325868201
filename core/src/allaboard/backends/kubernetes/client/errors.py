"""The refusals of an API server, one class for each reaction of a caller. A failure that may pass is tried
again below (`protocol`), and ends as `BackendUnreachable`.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from allaboard.errors import AllaboardError, BackendUnreachable, OwnershipConflict, SiteError
from allaboard.text.printable import visible
from allaboard.text.redaction import redact_text


@dataclass(frozen=True, slots=True)
class Cause:
    """One thing that the API server found wrong: ``field`` as ``spec.runPolicy.ttl``, empty when it names
    none.
    """

    field: str
    message: str
    reason: str = ""

    def __str__(self) -> str:
        return f"{self.field}: {self.message}" if self.field else self.message


class ApiError(AllaboardError):
    """``status``: of HTTP; ``reason``: the server's word (``AlreadyExists``); ``message``: its sentence;
    ``causes``: its findings, one by one. ``retried``: an earlier try of the same request got no answer, so it
    may have been carried out: what "exists already" or "was changed" may then be one's own doing.
    """

    code = "api_error"

    def __init__(
        self,
        message: str,
        *,
        status: int = 0,
        reason: str = "",
        causes: Sequence[Cause] = (),
        retried: bool = False,
        subject: str = "",
    ) -> None:
        # The words of the server, and of webhooks behind it: one line, without secrets.
        message = visible(redact_text(message))
        super().__init__(f"{subject}: {message}" if subject else message)
        self.status = status
        self.reason = reason
        self.message = message
        self.causes = tuple(causes)
        self.retried = retried


class Missing(ApiError):
    """404. ``unserved``: the kind itself is not served here (its CRD is not installed), not the object alone.
    ``absent``: kind and name of what is not there, where the server says it (a missing namespace, too).
    """

    code = "missing"
    unserved: bool = False
    absent: tuple[str, str] = ("", "")


class Exists(ApiError, OwnershipConflict):
    """409 AlreadyExists: an object of this name is there."""

    code = "exists"


class Conflict(ApiError, OwnershipConflict):
    """409: the object changed since it was read, or a precondition (uid, resourceVersion) does not hold."""


class Invalid(ApiError):
    """400 or 422: the server refuses the object or the question; ``causes`` name the fields."""

    code = "invalid"


class Forbidden(ApiError, SiteError):
    """403: by RBAC, a quota, Pod Security or an admission policy; the message says which."""

    code = "forbidden"


class Unauthorized(ApiError, SiteError):
    """401, also with fresh credentials."""

    code = "unauthorized"


class Silent(BackendUnreachable):
    """A stream that was open brought nothing, not even its end, for longer than it may."""


class Gone(ApiError):
    """410: the resourceVersion or the continue token is too old; list anew."""

    code = "gone"
