"""Credentials of S3 as pods have them, in boto3's order: variables, the token of a service account for a role
(EKS: IRSA), a credentials file, an endpoint of the container (EKS Pod Identity, ECS). Standard library only.

What takes boto3 (SSO, profiles that assume roles, programs, the metadata of a machine) is not asked.
"""

from __future__ import annotations

import configparser
import time
from collections.abc import Callable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any
from urllib.parse import urlencode, urlsplit

from allaboard.job.homes import expand_home
from allaboard.storage.s3_errors import (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    ProfileNotFound,
    RequestFailed,
)
from allaboard.storage.s3_http import Answer, fetch
from allaboard.storage.s3_signing import Keys
from allaboard.storage.s3_xml import Malformed, parse_xml
from allaboard.text.units import from_rfc3339
from allaboard.text.untrusted import Unreadable, parse_json

EARLY = 300.0
"""Seconds before their end in which credentials are renewed."""
TRIES, PAUSE = 3, 1.0
_LARGEST = 1 << 16
_CONTAINER = "http://169.254.170.2"
_OF_CONTAINERS = frozenset(
    {"169.254.170.2", "169.254.170.23", "fd00:ec2::23", "localhost", "127.0.0.1", "::1"}
)
"""Hosts that get the token of a container without TLS."""

Settings = Mapping[str, str]


class Credentials:
    """The keys to sign with, renewed in time. ``settings``: variables; ``clock``: epoch seconds."""

    def __init__(
        self,
        settings: Settings,
        clock: Callable[[], float] = time.time,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self._settings, self._clock, self._sleep = settings, clock, sleep
        self._keys: Keys | None = None

    def keys(self) -> Keys:
        """Raises a `RequestFailed` that says why there are none."""
        keys = self._keys
        if keys is None or (keys.expires is not None and keys.expires - self._clock() < EARLY):
            try:
                self._keys = keys = self._asked()
            except RequestFailed:
                # Those of before serve to their end.
                if keys is None or keys.expires is None or keys.expires <= self._clock():
                    raise
        return keys

    def secrets(self) -> tuple[str, ...]:
        """The values that no text may show."""
        keys = self._keys
        return () if keys is None else tuple(filter(None, (keys.secret, keys.token, keys.access)))

    def _asked(self) -> Keys:
        settings = self._settings
        file_keys = _of_file(settings)  # a profile that is not there is an error first
        if settings.get("AWS_ACCESS_KEY_ID"):
            return _of_variables(settings)
        if settings.get("AWS_ROLE_ARN") and settings.get("AWS_WEB_IDENTITY_TOKEN_FILE"):
            return self._again(lambda: _of_role(settings))
        if file_keys is not None:
            return file_keys
        if settings.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI") or settings.get(
            "AWS_CONTAINER_CREDENTIALS_FULL_URI"
        ):
            return self._again(lambda: _of_container(settings))
        raise NoCredentialsError(
            "Unable to locate credentials; SSO, profiles of roles and a machine's metadata take boto3"
        )

    def _again(self, ask: Callable[[], Keys]) -> Keys:
        for tries in range(1, TRIES):
            with suppress(RequestFailed):
                return ask()
            self._sleep(PAUSE * tries)
        return ask()


def _of_variables(settings: Settings) -> Keys:
    secret = settings.get("AWS_SECRET_ACCESS_KEY")
    if not secret:
        raise PartialCredentialsError("AWS_ACCESS_KEY_ID is set, AWS_SECRET_ACCESS_KEY is not")
    token = settings.get("AWS_SESSION_TOKEN") or settings.get("AWS_SECURITY_TOKEN") or None
    return Keys(settings["AWS_ACCESS_KEY_ID"], secret, token)


def _of_file(settings: Settings) -> Keys | None:
    """The keys of the profile in the credentials file; None: it has none."""
    chosen = settings.get("AWS_PROFILE") or settings.get("AWS_DEFAULT_PROFILE")
    profile = chosen or "default"
    credentials = _ini(settings, "AWS_SHARED_CREDENTIALS_FILE", "~/.aws/credentials")
    if credentials.has_section(profile):
        values = credentials[profile]
        access, secret = values.get("aws_access_key_id"), values.get("aws_secret_access_key")
        if access and secret:
            return Keys(access, secret, values.get("aws_session_token") or None)
    elif chosen and not _ini(settings, "AWS_CONFIG_FILE", "~/.aws/config").has_section(f"profile {chosen}"):
        raise ProfileNotFound(f"The config profile ({chosen}) could not be found")
    return None


def _ini(settings: Settings, variable: str, usual: str) -> configparser.RawConfigParser:
    parser = configparser.RawConfigParser(strict=False)
    path = settings.get(variable) or usual
    home = settings.get("HOME")
    path = home + path[1:] if home and path.startswith("~/") else str(expand_home(path))
    with suppress(OSError, configparser.Error):
        parser.read_string(_small_file(path))
    return parser


def _small_file(path: str) -> str:
    with Path(path).open("rb") as file:
        return file.read(_LARGEST).decode("utf-8", "replace")


def _of_role(settings: Settings) -> Keys:
    """The keys that the token of a service account gets for its role."""
    region = settings.get("AWS_REGION") or settings.get("AWS_DEFAULT_REGION") or ""
    usual = f"https://sts.{region}.{domain_of(region)}" if region else "https://sts.amazonaws.com"
    place = settings.get("AWS_ENDPOINT_URL_STS") or settings.get("AWS_ENDPOINT_URL") or usual
    fields = {
        "Action": "AssumeRoleWithWebIdentity",
        "Version": "2011-06-15",
        "RoleArn": settings["AWS_ROLE_ARN"],
        "RoleSessionName": settings.get("AWS_ROLE_SESSION_NAME") or "allaboard",
        "WebIdentityToken": _token(settings["AWS_WEB_IDENTITY_TOKEN_FILE"]),
    }
    headers = {"Content-Type": "application/x-www-form-urlencoded", "Accept": "application/xml"}
    answer = _asked(settings, place.rstrip("/") + "/", "POST", headers, urlencode(fields).encode())
    try:
        document = parse_xml(answer.body).find("AssumeRoleWithWebIdentityResult", "Credentials")
    except Malformed as error:
        raise CredentialRetrievalError(f"{place}: {error}") from None
    if document is None:
        raise CredentialRetrievalError(f"{place} answered without credentials")
    names = ("AccessKeyId", "SecretAccessKey", "SessionToken", "Expiration")
    return _keys(place, {name: document.text_of(name) for name in names}, "SessionToken")


def _of_container(settings: Settings) -> Keys:
    """The keys that an endpoint beside the container gives."""
    relative = settings.get("AWS_CONTAINER_CREDENTIALS_RELATIVE_URI")
    place = f"{_CONTAINER}{relative}" if relative else settings["AWS_CONTAINER_CREDENTIALS_FULL_URI"]
    parts = urlsplit(place)
    if parts.scheme != "https" and parts.hostname not in _OF_CONTAINERS:
        raise CredentialRetrievalError(
            f"AWS_CONTAINER_CREDENTIALS_FULL_URI names {parts.hostname!r}; without TLS it may only be this "
            "machine or an address of AWS"
        )
    file = settings.get("AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE")
    token = _token(file) if file else settings.get("AWS_CONTAINER_AUTHORIZATION_TOKEN")
    headers = {"Accept": "application/json", **({"Authorization": token} if token else {})}
    # It is beside the container: no proxy leads there, and none may see the token.
    direct = {name: value for name, value in settings.items() if not name.lower().endswith("_proxy")}
    answer = _asked(direct, place, "GET", headers, b"")
    try:
        body = parse_json(answer.body, spelling=False)
    except Unreadable as error:
        raise CredentialRetrievalError(f"{parts.hostname}: {error}") from None
    return _keys(str(parts.hostname), body if isinstance(body, dict) else {}, "Token")


def _asked(settings: Settings, place: str, method: str, headers: Mapping[str, str], body: bytes) -> Answer:
    answer = fetch(settings, place, method, headers, body, _LARGEST)
    if answer.status != 200:
        raise CredentialRetrievalError(
            f"{urlsplit(place).hostname} answered {answer.status}{_code(answer.body)}"
        )
    return answer


def _code(body: bytes) -> str:
    """The error's code in an answer, as `` (AccessDenied)``."""
    with suppress(Malformed):
        code = parse_xml(body).find("Error", "Code")
        if code is not None and code.text.isalnum():
            return f" ({code.text[:100]})"
    return ""


def _token(path: str) -> str:
    try:
        token = _small_file(path).strip()
    except OSError as error:
        raise CredentialRetrievalError(f"the token in {path} cannot be read: {error.strerror}") from None
    if not token or not token.isprintable():
        raise CredentialRetrievalError(f"{path} holds no token")
    return token


def _keys(place: str, body: Mapping[str, Any], token: str) -> Keys:
    access, secret = body.get("AccessKeyId"), body.get("SecretAccessKey")
    if not (isinstance(access, str) and isinstance(secret, str) and access and secret):
        raise CredentialRetrievalError(f"{place} answered without credentials")
    session, expires = body.get(token), body.get("Expiration")
    return Keys(
        access,
        secret,
        session if isinstance(session, str) and session else None,
        from_rfc3339(expires) if isinstance(expires, str) else None,
    )


def domain_of(region: str) -> str:
    """The domain of AWS to which a region belongs."""
    return "amazonaws.com.cn" if region.startswith("cn-") else "amazonaws.com"
