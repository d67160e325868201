"""A certificate authority of the plane's own, by the package `cryptography` (which Airflow brings)."""

from __future__ import annotations

import datetime
import ipaddress
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec, rsa
from cryptography.x509.oid import ExtendedKeyUsageOID, NameOID

Key = ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey
VALID = datetime.timedelta(days=365)


@dataclass(frozen=True, slots=True)
class Pair:
    """A certificate and its key, as PEM."""

    certificate: bytes
    key: bytes

    def write(self, folder: Path, name: str) -> None:
        """``name.crt`` and ``name.key``; nobody else may read the key."""
        folder.mkdir(parents=True, exist_ok=True)
        (folder / f"{name}.crt").write_bytes(self.certificate)
        key = folder / f"{name}.key"
        key.touch(mode=0o600)
        key.write_bytes(self.key)

    @classmethod
    def read(cls, folder: Path, name: str) -> Pair:
        return cls((folder / f"{name}.crt").read_bytes(), (folder / f"{name}.key").read_bytes())


def authority(name: str, *, organization: str = "", rsa_key: bool = False) -> Pair:
    """A new authority that signs itself. Its name is also its DNS name: cert-controller looks there."""
    key = _key(rsa_key)
    subject = _subject(name, [organization] if organization else [])
    built = (
        _certificate(subject, subject, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=None), critical=True)
        .add_extension(_usage(signs=True), critical=True)
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
    )
    return Pair(_pem(built.sign(key, hashes.SHA256())), _key_pem(key))


def sign(
    issuer: Pair,
    name: str,
    *,
    organizations: Sequence[str] = (),
    hosts: Sequence[str] = (),
    rsa_key: bool = False,
) -> Pair:
    """A certificate for a client, whose groups are the organizations, and with hosts also for a server."""
    key = _key(rsa_key)
    ca = x509.load_pem_x509_certificate(issuer.certificate)
    ca_key = serialization.load_pem_private_key(issuer.key, password=None)
    assert isinstance(ca_key, ec.EllipticCurvePrivateKey | rsa.RSAPrivateKey)
    purposes = [ExtendedKeyUsageOID.CLIENT_AUTH, *([ExtendedKeyUsageOID.SERVER_AUTH] if hosts else [])]
    built = (
        _certificate(_subject(name, organizations), ca.subject, key)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(_usage(signs=False), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    )
    if hosts:
        built = built.add_extension(
            x509.SubjectAlternativeName([_host(host) for host in hosts]), critical=False
        )
    return Pair(_pem(built.sign(ca_key, hashes.SHA256())), _key_pem(key))


def key_pair() -> tuple[bytes, bytes]:
    """(private, public) as PEM: what signs the tokens of service accounts, and what proves them."""
    key = _key(rsa_key=False)
    public = key.public_key().public_bytes(
        serialization.Encoding.PEM, serialization.PublicFormat.SubjectPublicKeyInfo
    )
    return _key_pem(key), public


def _key(rsa_key: bool) -> Key:
    # Elliptic keys are made in no time; cert-controller, which operators use, reads RSA keys alone.
    return rsa.generate_private_key(65537, 2048) if rsa_key else ec.generate_private_key(ec.SECP256R1())


def _subject(name: str, organizations: Sequence[str]) -> x509.Name:
    attributes = [x509.NameAttribute(NameOID.COMMON_NAME, name)]
    attributes += [x509.NameAttribute(NameOID.ORGANIZATION_NAME, each) for each in organizations]
    return x509.Name(attributes)


def _certificate(subject: x509.Name, issuer: x509.Name, key: Key) -> x509.CertificateBuilder:
    now = datetime.datetime.now(datetime.UTC)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        # Clocks of two machines may differ, and so may those of the parts of one.
        .not_valid_before(now - datetime.timedelta(hours=1))
        .not_valid_after(now + VALID)
    )


def _usage(*, signs: bool) -> x509.KeyUsage:
    return x509.KeyUsage(
        digital_signature=True, key_encipherment=True, key_cert_sign=signs, crl_sign=signs,
        content_commitment=False, data_encipherment=False, key_agreement=False, encipher_only=False,
        decipher_only=False,
    )  # fmt: skip


def _host(host: str) -> x509.GeneralName:
    try:
        return x509.IPAddress(ipaddress.ip_address(host))
    except ValueError:
        return x509.DNSName(host)


def _pem(certificate: x509.Certificate) -> bytes:
    return certificate.public_bytes(serialization.Encoding.PEM)


def _key_pem(key: Key) -> bytes:
    # The old form, which every reader of keys knows, cert-controller's among them.
    return key.private_bytes(
        serialization.Encoding.PEM,
        serialization.PrivateFormat.TraditionalOpenSSL,
        serialization.NoEncryption(),
    )
