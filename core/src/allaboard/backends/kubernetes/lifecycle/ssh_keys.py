"""The key pair by which the members of one attempt reach each other by SSH.

It is made in the moment in which its Secret is created and handed to the API server alone: what is rendered,
noted, logged or recorded has the Secret without it. It is one like those that the MPI Operator and Trainer
make, ECDSA over P-521, which hardened images take, too.
"""

from __future__ import annotations

import base64
from collections.abc import Iterable, Mapping
from importlib.util import find_spec
from typing import Any

from allaboard.engines.mpi import PRIVATE, PUBLIC, is_key_pair
from allaboard.errors import SiteError

KeyPair = tuple[bytes, bytes]
"""The private and the public key, as ssh has them in files."""


def require_maker(things: Iterable[Mapping[str, Any]]) -> None:
    """Raises SiteError where one of the objects needs a key pair and none can be made."""
    if any(map(is_key_pair, things)) and find_spec("cryptography") is None:
        raise SiteError(
            "the members of this job reach each other by SSH, and the key pair is made by `cryptography`, "
            "which is not installed for this Python; run: pip install 'allaboard[mpi]'"
        )


def make_key_pair() -> KeyPair:
    """A new one. It takes some milliseconds."""
    from cryptography.hazmat.primitives import serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP521R1())
    private = key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
    public = key.public_key().public_bytes(serialization.Encoding.OpenSSH, serialization.PublicFormat.OpenSSH)
    return private, public + b"\n"


def filled(body: dict[str, Any]) -> dict[str, Any]:
    """The object as it is created: a Secret of a key pair with a new one, any other as it is."""
    if not is_key_pair(body):
        return body
    private, public = (base64.b64encode(key).decode() for key in make_key_pair())
    return {**body, "data": {PRIVATE: private, PUBLIC: public}}


def is_whole(there: Mapping[str, Any]) -> bool:
    """True if an object of the cluster lacks no key; one that somebody applied from rendered text does."""
    return not is_key_pair(there) or {PRIVATE, PUBLIC} <= {*(there.get("data") or {})}
