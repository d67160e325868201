"""The cluster, the user and the namespace: from options, the environment, a kubeconfig, or the pod that this
process runs in.

1. ``--kubeconfig``, ``ALLABOARD_KUBECONFIG``: that file. Else the files of ``KUBECONFIG``, else
   ``~/.kube/config``. Where none of these is there, in a pod: its service account.
2. ``--context``, ``ALLABOARD_CONTEXT``, else the current one.
3. ``--namespace``, ``ALLABOARD_NAMESPACE``, else the context's, else the pod's, else ``default``.

A proxy is the kubeconfig's ``proxy-url``, else that of ``HTTPS_PROXY`` (``HTTP_PROXY`` for a server of
http://) unless ``NO_PROXY`` names the server. Trouble is BadInput or SiteError, and says what to do.
"""

from __future__ import annotations

import ipaddress
import os
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from allaboard.backends.kubernetes.client import kubeconfig
from allaboard.backends.kubernetes.client.config import Settings
from allaboard.backends.kubernetes.client.credentials import token_file
from allaboard.errors import BadInput, SiteError
from allaboard.job.homes import expand_home
from allaboard.job.loader import job_folder

if TYPE_CHECKING:
    from allaboard.backends.kubernetes.client.api import Api
    from allaboard.backends.kubernetes.client.protocol import Patience

SERVICE_ACCOUNT = Path("/var/run/secrets/kubernetes.io/serviceaccount")
_NAMESPACE = re.compile(r"[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?")


@dataclass(frozen=True, slots=True)
class Access:
    """The cluster as options name it; what is None is looked for. Nothing is read before it is used."""

    kubeconfig: str | None = None
    context: str | None = None
    namespace: str | None = None
    environ: Mapping[str, str] = field(default_factory=lambda: os.environ, repr=False)

    def settings(self) -> Settings:
        """Read anew with every call. Raises BadInput or SiteError."""
        named = self._said("kubeconfig")
        usual = kubeconfig.paths_of(self.environ, _home(self.environ))
        paths = (job_folder(named),) if named else usual
        if any(kubeconfig.is_there(path) for path in paths):
            context = kubeconfig.read_kubeconfigs(paths).context(self._said("context"))
            return settings_of(context, self._namespace(context.namespace), self.environ)
        if named:
            raise BadInput(f"kubeconfig {named} is not there; name another with --kubeconfig")
        if self.environ.get("KUBERNETES_SERVICE_HOST") and not self._said("context"):
            return settings_of_pod(self._namespace(None), self.environ)
        raise BadInput(
            f"no kubeconfig is at {' or '.join(map(str, paths))}, and this process is not in a pod; name "
            "one with --kubeconfig or KUBECONFIG"
        )

    def api(self, patience: Patience | None = None) -> Api:
        from allaboard.backends.kubernetes.client.api import Api

        _needs("urllib3")
        return Api(self.settings, patience=patience)

    def _said(self, option: str) -> str | None:
        return getattr(self, option) or self.environ.get(f"ALLABOARD_{option.upper()}") or None

    def _namespace(self, of_context: str | None) -> str:
        chosen = self._said("namespace") or of_context or namespace_of_pod() or "default"
        if not _NAMESPACE.fullmatch(chosen):
            raise BadInput(
                f"namespace {chosen!r} is not a legal name: lower-case letters, digits and '-', at most 63"
            )
        return chosen


def settings_of(context: kubeconfig.Context, namespace: str, environ: Mapping[str, str]) -> Settings:
    """The settings for a context of a kubeconfig. Raises BadInput or SiteError."""
    return Settings(
        server=context.server,
        credentials=context.credentials(),
        authority=context.authority,
        verify=context.verify,
        tls_name=context.tls_name,
        proxy=_usable(context.proxy) or proxy_of(context.server, environ),
        namespace=namespace,
        source=context.where,
    )


def settings_of_pod(namespace: str, environ: Mapping[str, str]) -> Settings:
    """The settings of the service account of the pod that this process runs in. Raises SiteError for a pod
    without one.
    """
    host, port = (environ.get(f"KUBERNETES_SERVICE_{word}", "") for word in ("HOST", "PORT"))
    server = f"https://{f'[{host}]' if ':' in host else host}:{port or 443}"
    try:
        authority = (SERVICE_ACCOUNT / "ca.crt").read_text()
    except OSError as error:
        raise SiteError(
            f"this pod has no service account ({error.filename}: {error.strerror}); remove "
            "automountServiceAccountToken: false from it, or name a kubeconfig"
        ) from error
    return Settings(
        server=server,
        credentials=token_file(SERVICE_ACCOUNT / "token"),
        authority=authority,
        proxy=proxy_of(server, environ),
        namespace=namespace,
        source="service account of this pod",
    )


def proxy_of(server: str, environ: Mapping[str, str]) -> str | None:
    """The proxy that the environment says for this server."""
    url = urlsplit(server)
    name = f"{url.scheme}_proxy"
    proxy = environ.get(name.upper()) or environ.get(name)
    if not proxy or _excepted(
        url.hostname or "", url.port, environ.get("NO_PROXY") or environ.get("no_proxy", "")
    ):
        return None
    return _usable(proxy if "://" in proxy else f"http://{proxy}")


def _excepted(host: str, port: int | None, exceptions: str) -> bool:
    """``NO_PROXY`` as kubectl reads it: names with all below them, addresses, networks, ``*``, each perhaps
    with a port.
    """
    try:
        address = ipaddress.ip_address(host)
    except ValueError:
        address = None
    for item in filter(None, re.split(r"[,\s]+", exceptions.lower())):
        if item == "*":
            return True
        if address is not None and "/" in item:
            try:
                if address in ipaddress.ip_network(item, strict=False):
                    return True
            except ValueError:
                continue
        name, _, its_port = item.rpartition(":") if re.search(r"[^:]:\d+$", item) else (item, "", "")
        if its_port and int(its_port) != port:
            continue
        name = name.strip("[]").removeprefix("*").lstrip(".")
        if host == name or (address is None and host.endswith(f".{name}")):
            return True
    return False


def _usable(proxy: str | None) -> str | None:
    """Raises SiteError for a kind of proxy that is not supported, and for a text that is no URL; its message
    never shows a password.
    """
    if not proxy:
        return proxy
    try:
        url = urlsplit(proxy)
        is_url = bool(url.hostname) and url.port != 0
    except ValueError:  # a port that is no number, half an IPv6 address
        is_url = False
    kind = proxy.partition("://")[0] if "://" in proxy else ""
    if kind.lower() not in ("http", "https"):
        of = f"of kind {kind}://" if kind.isalnum() and len(kind) < 10 else "of an unknown kind"
        raise SiteError(
            f"a proxy {of} is not supported; use http:// or https://, or exempt the API server from it with "
            "NO_PROXY"
        )
    if not is_url:
        raise SiteError(
            "the proxy is no URL; write http://HOST:PORT, with %2F for a slash in a password, or exempt the "
            "API server from it with NO_PROXY"
        )
    return proxy


def _home(environ: Mapping[str, str]) -> Path:
    return expand_home(environ.get("HOME") or "~")


def namespace_of_pod() -> str | None:
    try:
        return (SERVICE_ACCOUNT / "namespace").read_text().strip() or None
    except OSError:
        return None


def _needs(module: str) -> None:
    import importlib.util

    if importlib.util.find_spec(module) is None:
        raise SiteError(
            f"the Kubernetes backend needs {module}, which is not installed: "
            "pip install 'allaboard[kubernetes]'"
        )
