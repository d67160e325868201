"""Everything that a connection to one API server is made of, as one value, and where its credentials come
from. Secrets are kept out of every `repr`, message and log.
"""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from dataclasses import dataclass, field
from typing import Protocol
from urllib.parse import unquote, urlsplit

from allaboard.errors import SiteError

_HEADER = re.compile(r"[\x20-\x7e]+")


@dataclass(frozen=True, slots=True)
class Secret:
    """The credential that the server is shown now: an ``Authorization`` header, a client certificate with its
    key (both PEM), or neither. ``expires``: epoch seconds from which on it is refused.
    """

    authorization: str | None = field(default=None, repr=False)
    certificate: tuple[str, str] | None = field(default=None, repr=False)
    expires: float | None = None

    def __post_init__(self) -> None:
        # The HTTP libraries refuse such a header, too, and quote it.
        if self.authorization and not _HEADER.fullmatch(self.authorization):
            raise SiteError(
                "the token holds a line end, or a character that no HTTP header can carry; log in again, or "
                "copy the token into the kubeconfig once more"
            )

    def secret_texts(self) -> Iterator[str]:
        """The parts that go to the server and nowhere else: the token, or the password as it is and as it is
        sent. (A key is not sent.)
        """
        scheme, _, sent = (self.authorization or "").partition(" ")
        if sent:
            yield sent
        if scheme.lower() == "basic":
            with suppress(ValueError):
                yield base64.b64decode(sent).decode("utf-8", "replace").partition(":")[2]


class Credentials(Protocol):
    """A source of secrets. Methods may be called by several threads."""

    def due(self, now: float) -> bool:
        """True if `current` would have to run a plugin or read a file, and so may block."""

    def current(self, now: float) -> Secret:
        """A secret that is good for a while yet. Raises SiteError or BackendUnreachable."""

    def renew(self) -> None:
        """Forget what is kept: the server refused it."""

    def fingerprint(self) -> str:
        """Tells two sources of credentials apart; nothing secret can be read from it."""


@dataclass(frozen=True, slots=True)
class Settings:
    """``server``: its URL; ``authority``: PEM of the CAs that may have signed it, None: those of the system;
    ``tls_name``: what its certificate is for, when that is not the host of the URL; ``proxy``: URL, None:
    reached directly; ``namespace``: where its owner works; ``source``: where all this was read, for people.
    """

    server: str
    credentials: Credentials
    authority: str | None = field(default=None, repr=False)
    verify: bool = True
    tls_name: str | None = None
    proxy: str | None = field(default=None, repr=False)
    namespace: str = "default"
    source: str = ""

    def secret_texts(self) -> Iterator[str]:
        """The parts that go to the proxy and nowhere else: its password, as it is written, meant and sent."""
        with suppress(ValueError):
            proxy = urlsplit(self.proxy or "")
            user, password = unquote(proxy.username or ""), unquote(proxy.password or "")
            if password:
                sent = base64.b64encode(f"{user}:{password}".encode()).decode()
                yield from (proxy.password or "", password, sent)

    @property
    def identity(self) -> str:
        """Equal for those who would see the same: one server, one source of credentials."""
        parts = "\0".join(
            [self.server, self.tls_name or "", self.proxy or "", self.credentials.fingerprint()]
        )
        return hashlib.blake2s(parts.encode(), digest_size=16).hexdigest()


Source = Callable[[], Settings]
"""Reads the settings anew: a kubeconfig or a mounted CA may have been replaced since."""


@dataclass(frozen=True, slots=True)
class Fixed:
    """Credentials that do not change."""

    secret: Secret

    def due(self, now: float) -> bool:
        return False

    def current(self, now: float) -> Secret:
        return self.secret

    def renew(self) -> None:
        return None

    def fingerprint(self) -> str:
        text = f"{self.secret.authorization}\0{self.secret.certificate}"
        return hashlib.blake2s(text.encode(), digest_size=16).hexdigest()
