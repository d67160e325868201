"""Sources of secrets: a file that is renewed, a plugin that is run, a client library's own configuration. (A
secret that never changes is `config.Fixed`.)

What was handed out is used until a minute before its end. When it cannot be renewed then, it is used to the
end, and from there on the server counts as unreachable (it may pass: a login service that is down). Without
a first secret the error says what to mend.
"""

from __future__ import annotations

import hashlib
import json
import os
import re
import shutil
import subprocess
import sys
import threading
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from allaboard.backends.kubernetes.client.config import Secret
from allaboard.backends.kubernetes.client.process import PROCESS
from allaboard.errors import AllaboardError, BackendUnreachable, BadInput, SiteError
from allaboard.job.loader import read_text
from allaboard.text.redaction import HIDDEN, hide_known, redact_text
from allaboard.text.units import from_rfc3339
from allaboard.text.untrusted import parse_json

EARLY = 60.0
"""Seconds before its end from which on a secret is renewed."""
FILE_SECONDS = 60.0
"""Seconds for which the content of a file counts as fresh; kubelets renew tokens long before they end."""
JUST_NOW = 5.0
"""A younger secret is not thrown away: many requests may be refused at once for the one before it."""
PLUGIN_SECONDS = 60.0
TALKING_SECONDS = 300.0
"""The same where a person is asked: a browser opens, a code is typed."""


@dataclass(slots=True)
class Renewed:
    """Credentials that `fetch` brings anew when they end, are refused, or are ``keep`` seconds old."""

    fetch: Callable[[], Secret]
    source: str
    keep: float | None = None
    _secret: Secret | None = field(default=None, repr=False)
    _since: float = 0.0
    _refused: bool = False
    _lock: threading.RLock = field(default_factory=threading.RLock, repr=False)

    def due(self, now: float) -> bool:
        secret = self._secret
        if secret is None or self._refused:
            return True
        if self.keep is not None and now > self._since + self.keep:
            return True
        return secret.expires is not None and now > max(secret.expires - EARLY, self._since + JUST_NOW)

    def current(self, now: float) -> Secret:
        with self._lock:
            if self._secret is not None and not self.due(now):
                return self._secret
            held = self._secret
            try:
                secret = self.fetch()
            except AllaboardError as error:
                if held is None:
                    raise
                if self._refused or (held.expires is not None and now > held.expires):
                    raise BackendUnreachable(f"the credentials are not renewed: {error}") from error
                secret = held
            self._secret, self._since, self._refused = secret, now, False
            return secret

    def renew(self) -> None:
        with self._lock:
            self._refused = self._secret is not None and time.time() > self._since + JUST_NOW

    def fingerprint(self) -> str:
        return hashlib.blake2s(self.source.encode(), digest_size=16).hexdigest()


def shared(credentials: Renewed) -> Renewed:
    """The one of this source that the process has already: a plugin runs once, not once for each client."""
    return PROCESS.get(Renewed, credentials.source, lambda: credentials)


def token_file(path: Path, named_as: str = "") -> Renewed:
    """A token in a file, as pods have them. ``said``: how a kubeconfig names it."""

    def read() -> Secret:
        try:
            token = read_text(path).strip()
        except BadInput as error:
            raise SiteError(f"token file: {without_credentials(str(error), named_as)}") from None
        if not token:
            raise SiteError(f"token file {path} is empty")
        return Secret(f"Bearer {token}")

    return shared(Renewed(read, f"file {path}", FILE_SECONDS))


def _list(section: Mapping[str, Any], name: str, where: str) -> list[Any]:
    items = section.get(name) or []
    if not isinstance(items, list):
        raise BadInput(f"{where}: {name} of exec is no list; see the guide of the plugin")
    return items


def _variables(items: list[Any], where: str) -> dict[str, str]:
    if not all(isinstance(item, Mapping) and {"name", "value"} <= set(item) for item in items):
        raise BadInput(f"{where}: env of exec is no list of name and value; see the guide of the plugin")
    return {str(item["name"]): str(item["value"]) for item in items}


# --- plugins ------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class Plugin:
    """``exec`` of a user in a kubeconfig (client.authentication.k8s.io). ``cluster``: what it is told of the
    cluster, where it asks for that; ``folder``: what its path is relative to.
    """

    command: str
    args: tuple[str, ...]
    env: Mapping[str, str]
    api_version: str
    interactive: str
    hint: str
    cluster: Mapping[str, Any] | None
    folder: Path

    @staticmethod
    def of(section: Mapping[str, Any], cluster: Mapping[str, Any], folder: Path, where: str) -> Plugin:
        """From the kubeconfig's words. Raises BadInput."""
        missing = [key for key in ("command", "apiVersion") if not isinstance(section.get(key), str)]
        if missing:
            raise BadInput(f"{where}: exec has no {' and no '.join(missing)}; see the guide of the plugin")
        return Plugin(
            command=section["command"],
            args=tuple(str(arg) for arg in _list(section, "args", where)),
            env=_variables(_list(section, "env", where), where),
            api_version=section["apiVersion"],
            interactive=section.get("interactiveMode") or "IfAvailable",
            hint=str(section.get("installHint") or "").strip(),
            cluster=cluster if section.get("provideClusterInfo") else None,
            folder=folder,
        )

    def credentials(self) -> Renewed:
        source = json.dumps([self._name, self.args, dict(self.env), self.cluster], sort_keys=True)
        return shared(Renewed(self.run, f"exec {source}"))

    def run(self) -> Secret:
        """Raises SiteError."""
        program = self._program()
        talks = self.interactive != "Never" and sys.stdin is not None and sys.stdin.isatty()
        if self.interactive == "Always" and not talks:
            raise SiteError(
                f"credential plugin {self.command!r} wants to ask a person, and there is no terminal here; "
                "use a user of the kubeconfig whose plugin asks nobody, or a service account's token"
            )
        try:
            done = subprocess.run(
                [program, *self.args],
                env={**os.environ, **self.env, "KUBERNETES_EXEC_INFO": self._told(talks)},
                stdin=None if talks else subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=None if talks else subprocess.PIPE,
                timeout=TALKING_SECONDS if talks else PLUGIN_SECONDS,
                check=False,
            )
        except subprocess.TimeoutExpired as error:
            raise SiteError(
                f"credential plugin {self.command!r} gave no answer in {error.timeout:.0f} s"
            ) from None
        except OSError as error:
            raise SiteError(f"credential plugin {program!r} cannot be run: {error.strerror}") from error
        if done.returncode != 0:
            last_line = plain_words((done.stderr or b"").decode("utf-8", "replace"))
            raise SiteError(
                f"credential plugin {self.command!r} ended with {done.returncode}"
                + (f": {last_line}" if last_line else "")
                + "; log in with it, then try again"
            )
        return self._secret(done.stdout)

    @property
    def _name(self) -> str:
        """As kubectl: a path is relative to the kubeconfig, a bare name is looked for."""
        return str(self.folder / self.command) if os.sep in self.command else self.command

    def _program(self) -> str:
        # As kubectl: nothing is taken from the current folder, whatever PATH says.
        path = {**os.environ, **self.env}.get("PATH", os.defpath)
        folders = os.pathsep.join(filter(os.path.isabs, path.split(os.pathsep)))
        program = shutil.which(self._name, path=folders)
        if program is None:
            raise SiteError(
                f"the kubeconfig asks for the credential plugin {self.command!r}, which is not here; "
                + (self.hint or "install it, or use a user of the kubeconfig that has a token")
            )
        return program

    def _told(self, talks: bool) -> str:
        spec: dict[str, Any] = {"interactive": talks}
        if self.cluster is not None:
            spec["cluster"] = self.cluster
        return json.dumps({"apiVersion": self.api_version, "kind": "ExecCredential", "spec": spec})

    def _secret(self, output: bytes) -> Secret:
        try:
            answer = parse_json(output, spelling=False)
            status = answer["status"]
            token, certificate = status.get("token"), status.get("clientCertificateData")
            key, expires = status.get("clientKeyData"), status.get("expirationTimestamp")
            secret = Secret(
                f"Bearer {token}" if token else None,
                (certificate, key) if certificate and key else None,
                from_rfc3339(expires),
            )
        except (ValueError, KeyError, TypeError, AttributeError, OverflowError):
            # Its words would show the token.
            raise SiteError(
                f"credential plugin {self.command!r} printed no ExecCredential; run it by hand and look"
            ) from None
        speaks = str(answer.get("apiVersion"))
        if speaks != self.api_version:
            known = repr(speaks) if _API_VERSION.fullmatch(speaks) else "another apiVersion"
            raise SiteError(
                f"credential plugin {self.command!r} speaks {known}, and the kubeconfig "
                f"says {self.api_version!r}; write what it speaks as apiVersion of its exec"
            )
        if secret.authorization is None and secret.certificate is None:
            raise SiteError(f"credential plugin {self.command!r} gave neither a token nor a certificate")
        return secret


_API_VERSION = re.compile(r"client\.authentication\.k8s\.io/v[0-9]+(?:(?:alpha|beta)[0-9]+)?")
_LONG = 24
_MIXED = re.compile(r"(?=\S*[0-9])(?=\S*[A-Za-z])\S{12,}")


def without_credentials(message: str, path: str) -> str:
    """A message about a file that cannot be read, without those parts of its path that may be a credential:
    people write a token or a key where the name of its file belongs.
    """
    parts = [part for part in path.split("/") if len(part) > _LONG or _MIXED.fullmatch(part)]
    return hide_known(message, parts)


def plain_words(output: str) -> str:
    """The last line of what a program said, for people: ``***`` for what may be a credential, which such
    programs show when they fail: long words, and those of letters and digits.
    """
    lines = output.strip().splitlines()
    parts = (redact_text(lines[-1]) if lines else "").split()
    shown = (HIDDEN if len(word) > _LONG or _MIXED.search(word) else word for word in parts)
    return " ".join(shown)[:300]


# --- configurations of the client libraries -----------------------------------------------------------------


def borrowed_credentials(configure: Callable[[], Any], source: str) -> Renewed:
    """Those in a Configuration of the client library `kubernetes`, refreshed by its own hook."""

    def read() -> Secret:
        configuration = configure()
        hook = getattr(configuration, "refresh_api_key_hook", None)
        if hook is not None:
            hook(configuration)
        return Secret(_authorization(configuration), _certificate(configuration))

    return Renewed(read, source, FILE_SECONDS)


def _authorization(configuration: Any) -> str | None:
    # Since 36 the token is kept under BearerToken, before under authorization.
    for name in ("BearerToken", "authorization"):
        if token := configuration.api_key.get(name):
            prefix = configuration.api_key_prefix.get(name)
            return f"{prefix} {token}" if prefix else str(token)
    if configuration.username:
        return str(configuration.get_basic_auth_token())
    return None


def _certificate(configuration: Any) -> tuple[str, str] | None:
    if not configuration.cert_file:
        return None
    try:
        certificate = Path(configuration.cert_file).read_text()
        key = Path(configuration.key_file).read_text() if configuration.key_file else ""
    except OSError as error:
        raise SiteError(f"client certificate {error.filename} cannot be read: {error.strerror}") from error
    return certificate, key
