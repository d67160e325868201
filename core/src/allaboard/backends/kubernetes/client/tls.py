"""One TLS context for all clients of the same server and certificate: building one reads the CA bundle, which
takes 25 ms.
"""

from __future__ import annotations

import os
import ssl
from functools import lru_cache

from allaboard.errors import SiteError
from allaboard.storage.scratch import scratch


@lru_cache(maxsize=16)
def context_of(
    authority: str | None, verify: bool, certificate: tuple[str, str] | None, *, compares_name: bool = True
) -> ssl.SSLContext:
    """``authority``: PEM of the CAs that are trusted, None: those of the system; ``certificate``: ours, with
    its key, both PEM; ``compares_name``: False when the caller compares the name of the server.
    Raises SiteError.
    """
    try:
        context = ssl.create_default_context(cadata=authority)
    except (ssl.SSLError, ValueError) as error:
        raise SiteError(
            f"the cluster's certificate authority is no PEM certificate ({_words(error)}); "
            "look at certificate-authority(-data) of the cluster in the kubeconfig"
        ) from error
    # Python 3.13 asks CAs for extensions that many clusters' own do not have; kubectl does not ask for them.
    context.verify_flags &= ~ssl.VERIFY_X509_STRICT
    context.check_hostname = verify and compares_name
    if not verify:
        context.verify_mode = ssl.CERT_NONE
    if certificate is not None:
        _load(context, *certificate)
    return context


def _load(context: ssl.SSLContext, certificate: str, key: str) -> None:
    # OpenSSL reads them from files alone; these live for this one call, in a folder of ours.
    with scratch() as folder:
        path = folder / "client.pem"
        file = os.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600)
        with os.fdopen(file, "w") as out:
            out.write(certificate.rstrip("\n") + "\n" + key)
        try:
            # Never a prompt for a passphrase on a terminal, or where there is none.
            context.load_cert_chain(path, password=_no_passphrase)
        except (ssl.SSLError, ValueError) as error:
            raise SiteError(
                f"the client certificate cannot be used ({_words(error)}); look at client-certificate(-data) "
                "and client-key(-data) of the user in the kubeconfig; an encrypted key is not supported"
            ) from error


def _no_passphrase() -> str:
    raise ValueError("the key is encrypted")


def _words(error: Exception) -> str:
    return str(getattr(error, "reason", None) or error).replace("_", " ").lower()
