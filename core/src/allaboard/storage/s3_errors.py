"""Failures of the S3 client that needs the standard library alone. They are named as boto3's are, by which
`allaboard.storage.s3` says what to do.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any


class RequestFailed(Exception):
    """No answer of the server, or none that counts."""


class ClientError(RequestFailed):
    """The server refuses. ``response``: its code and message, the status, and how often it was asked anew."""

    def __init__(self, response: Mapping[str, Any], operation_name: str) -> None:
        error = response.get("Error", {})
        super().__init__(f"{error.get('Code', 'Unknown')}: {error.get('Message', '')}")
        self.response, self.operation_name = response, operation_name


class NoCredentialsError(RequestFailed): ...


class PartialCredentialsError(RequestFailed): ...


class CredentialRetrievalError(RequestFailed): ...


class ProfileNotFound(RequestFailed): ...


class HTTPClientError(RequestFailed):
    """The server cannot be reached, or ends the connection."""


class ReadTimeoutError(HTTPClientError):
    """Nothing came for too long."""


class SSLError(HTTPClientError): ...


class ResponseStreamingError(RequestFailed):
    """An answer broke off."""


class S3DownloadFailedError(RequestFailed):
    """The object was replaced while it was read."""
