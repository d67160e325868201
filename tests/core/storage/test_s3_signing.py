"""Requests of the client of the standard library are signed and addressed as boto3 does it."""

from __future__ import annotations

import json
import random
import ssl
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from datetime import UTC, datetime, timedelta
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from ipaddress import IPv4Address
from pathlib import Path
from typing import Any

import pytest
from botocore.auth import S3SigV4Auth
from botocore.awsrequest import AWSRequest
from botocore.credentials import Credentials as BotoCredentials
from botocore.session import Session

from allaboard.storage import s3_client, s3_http
from allaboard.storage.s3_client import Limits, PlainClient
from allaboard.storage.s3_credentials import EARLY, Credentials
from allaboard.storage.s3_errors import (
    CredentialRetrievalError,
    NoCredentialsError,
    PartialCredentialsError,
    RequestFailed,
)
from allaboard.storage.s3_signing import Keys, Request, encoded_path, encoded_query, signed_headers
from allaboard.storage.s3_xml import Malformed, parse_xml

MOMENT = datetime(2026, 11, 27, 21, 30, 0, tzinfo=UTC)
KEYS = Keys("AKIAEXAMPLE", "wJalrXUtnFEMI/K7MDENG/bPxRfiCYEXAMPLEKEY")
LETTERS = "aZ09-_.~ +/%&=?#:;,@!$'()*\"<>[]{}|\\^`äß漢🚂\t"
LIMITS = Limits(2, 1.0, 5 * 2**20, 2)


def a_word(chance: random.Random, longest: int = 40) -> str:
    return "".join(chance.choice(LETTERS) for _ in range(chance.randint(1, longest)))


@pytest.mark.parametrize("seed", range(200))
def test_a_request_is_signed_as_botocore_signs_it(seed: int, monkeypatch: pytest.MonkeyPatch) -> None:
    chance = random.Random(seed)
    monkeypatch.setattr("botocore.auth.get_current_datetime", lambda *_, **__: MOMENT)
    key = a_word(chance) + chance.choice(["", "//", "/../x", "/./y", "%2F", " "])
    path = encoded_path(f"/bucket/{key}")
    query = [
        (a_word(chance, 10), a_word(chance, 10) * chance.randint(0, 1)) for _ in range(chance.randint(0, 4))
    ]
    query = [*dict(query).items()]
    host = chance.choice(["127.0.0.1:9000", "s3.eu-central-1.amazonaws.com", "minio.lab", "[::1]:9000"])
    headers = {"x-amz-meta-mark": " a  b ", "If-None-Match": "*"} if chance.random() < 0.5 else {}
    token = "a/token+=" if chance.random() < 0.5 else None
    body = a_word(chance).encode()
    method = chance.choice(["GET", "PUT", "POST", "DELETE", "HEAD"])
    url = f"http://{host}{path}" + (f"?{encoded_query(query)}" if query else "")
    theirs = AWSRequest(method, url, {**headers, "User-Agent": "x"}, body)
    theirs.prepare()
    S3SigV4Auth(BotoCredentials(KEYS.access, KEYS.secret, token), "s3", "eu-central-1").add_auth(theirs)
    digest = s3_client._Piece.of(body).digest()
    ours = signed_headers(
        Request(method, host, path, query, headers, digest),
        Keys(KEYS.access, KEYS.secret, token),
        "eu-central-1",
        "20261127T213000Z",
    )
    assert ours["Authorization"] == theirs.headers["Authorization"]


@pytest.mark.parametrize(
    ("settings", "bucket"),
    [
        ({}, "models"),
        ({}, "with.dots"),
        ({}, "Upper_case"),
        ({"AWS_REGION": "cn-north-1"}, "models"),
        ({"AWS_REGION": "eu-west-1"}, "models"),
        ({"AWS_ENDPOINT_URL": "http://127.0.0.1:9000"}, "models"),
        ({"AWS_ENDPOINT_URL": "https://minio.lab"}, "models"),
        ({"AWS_ENDPOINT_URL": "http://minio.lab:80/base"}, "models"),
    ],
)
@pytest.mark.parametrize("key", ["", "a b/ä+%~*(x)/c"])
def test_a_bucket_is_addressed_as_boto3_addresses_it(settings: dict[str, str], bucket: str, key: str) -> None:
    seen: list[str] = []
    theirs = Session({"profile": (None, None, None, None)}).create_client(
        "s3",
        endpoint_url=settings.get("AWS_ENDPOINT_URL"),
        region_name=settings.get("AWS_REGION", "us-east-1"),
        aws_access_key_id="x",
        aws_secret_access_key="y",
    )

    def stop(request: Any, **_: Any) -> None:
        seen.append(request.url.partition("?")[0])
        raise InterruptedError

    theirs.meta.events.register("before-send.s3", stop)
    with pytest.raises(InterruptedError):
        theirs.get_object(Bucket=bucket, Key=key) if key else theirs.list_objects_v2(Bucket=bucket)
    own = PlainClient(settings, LIMITS, Credentials({}))
    server, path = own._address(bucket, key, own._region)
    # Two names of one server.
    assert server + path == seen[0].replace("s3.amazonaws.com", "s3.us-east-1.amazonaws.com")


# Credentials.


@contextmanager
def answering(
    *answers: tuple[int, bytes], tls: ssl.SSLContext | None = None
) -> Iterator[tuple[str, list[tuple[str, dict[str, str], bytes]]]]:
    """The address of a server that gives these answers, the last one again and again; what it was asked."""
    left, asked = [*answers], []

    class Handler(BaseHTTPRequestHandler):
        def do(self) -> None:
            body = self.rfile.read(int(self.headers.get("Content-Length") or 0))
            asked.append((self.path, dict(self.headers), body))
            status, content = left.pop(0) if len(left) > 1 else left[0]
            self.send_response(status)
            self.send_header("Content-Length", str(len(content)))
            self.end_headers()
            self.wfile.write(content)

        do_GET = do_POST = do_PUT = do

        def log_message(self, *_: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    if tls is not None:
        server.socket = tls.wrap_socket(server.socket, server_side=True)
    thread = threading.Thread(target=server.serve_forever, args=(0.05,), daemon=True)
    thread.start()
    try:
        yield f"http{'s' if tls else ''}://127.0.0.1:{server.server_address[1]}", asked
    finally:
        server.shutdown()
        server.server_close()
        thread.join()


def asking(settings: Mapping[str, str], now: float = 0.0) -> Credentials:
    return Credentials({"HOME": "/nowhere", **settings}, lambda: now, lambda _: None)


def of_container(number: int, expires: str) -> bytes:
    keys = {"AccessKeyId": f"AK{number}", "SecretAccessKey": "s3cret", "Token": "t", "Expiration": expires}
    return json.dumps(keys).encode()


def test_variables_come_first_and_half_of_them_is_said() -> None:
    settings = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_SESSION_TOKEN": "c"}
    both = {**settings, "AWS_ROLE_ARN": "arn", "AWS_WEB_IDENTITY_TOKEN_FILE": "/nowhere"}
    assert asking(both).keys() == Keys("a", "b", "c")
    assert "b" not in repr(asking(both).keys()).replace("Keys(expires=None)", "")
    with pytest.raises(PartialCredentialsError):
        asking({"AWS_ACCESS_KEY_ID": "a"}).keys()
    with pytest.raises(NoCredentialsError):
        asking({}).keys()


def test_the_endpoint_of_a_container_is_asked_again_before_its_keys_end(tmp_path: Path) -> None:
    """EKS Pod Identity: a token in a file, which the cluster renews."""
    token, now = tmp_path / "token", [0.0]
    token.write_text("first\n")
    answers = [of_container(1, "1970-01-01T01:00:00Z"), of_container(2, "1970-01-01T02:00:00Z")]
    with answering(*((200, answer) for answer in answers)) as (place, asked):
        settings = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": f"{place}/v1/credentials?x=1",
            "AWS_CONTAINER_AUTHORIZATION_TOKEN_FILE": str(token),
        }
        credentials = Credentials({"HOME": "/nowhere", **settings}, lambda: now[0], lambda _: None)
        assert (credentials.keys().access, credentials.keys().access) == ("AK1", "AK1")
        token.write_text("second")
        now[0] = 3600 - EARLY + 1
        assert credentials.keys().access == "AK2"
    assert [(path, headers["Authorization"]) for path, headers, _ in asked] == [
        ("/v1/credentials?x=1", "first"),
        ("/v1/credentials?x=1", "second"),
    ]
    now[0] = 7200 - 10
    assert credentials.keys().access == "AK2", "they serve to their end where no new ones come"
    now[0] = 7200
    with pytest.raises(RequestFailed):
        credentials.keys()


def test_no_proxy_sees_the_token_of_a_container() -> None:
    keys = of_container(1, "2100-01-01T00:00:00Z")
    with answering((200, keys)) as (place, _), answering((200, b"{}")) as (proxy, asked):
        settings = {
            "AWS_CONTAINER_CREDENTIALS_FULL_URI": place,
            "AWS_CONTAINER_AUTHORIZATION_TOKEN": "secret",
            "http_proxy": proxy,
            "HTTP_PROXY": proxy,
        }
        assert asking(settings).keys().access == "AK1"
    assert asked == []


def test_a_server_that_is_slow_to_begin_is_asked_again(tmp_path: Path) -> None:
    with answering((500, b""), (200, of_container(1, "2100-01-01T00:00:00Z"))) as (place, asked):
        keys = asking({"AWS_CONTAINER_CREDENTIALS_FULL_URI": place}).keys()
    assert keys.access == "AK1" and len(asked) == 2


@pytest.mark.parametrize(
    "body", [b"", b"[]", b"{}", b'{"AccessKeyId": 5, "SecretAccessKey": "x"}', b"<x/>", b"\xff", b"{" * 10**5]
)
def test_an_endpoint_that_answers_nonsense(body: bytes) -> None:
    with answering((200, body)) as (place, _), pytest.raises(RequestFailed):
        asking({"AWS_CONTAINER_CREDENTIALS_FULL_URI": place}).keys()


def test_the_token_of_a_container_goes_nowhere_else() -> None:
    settings = {
        "AWS_CONTAINER_CREDENTIALS_FULL_URI": "http://example.com/x",
        "AWS_CONTAINER_AUTHORIZATION_TOKEN": "secret",
    }
    with pytest.raises(CredentialRetrievalError, match=r"'example\.com'"):
        asking(settings).keys()


def of_role(access: str) -> bytes:
    inner = (
        f"<AccessKeyId>{access}</AccessKeyId><SecretAccessKey>s</SecretAccessKey>"
        "<SessionToken>t</SessionToken><Expiration>2100-01-01T00:00:00Z</Expiration>"
    )
    return (
        '<AssumeRoleWithWebIdentityResponse xmlns="https://sts.amazonaws.com/doc/2011-06-15/">'
        f"<AssumeRoleWithWebIdentityResult><Credentials>{inner}</Credentials>"
        "</AssumeRoleWithWebIdentityResult></AssumeRoleWithWebIdentityResponse>"
    ).encode()


def test_the_role_of_a_service_account(tmp_path: Path) -> None:
    (tmp_path / "token").write_text("a.b.c")
    settings = {
        "AWS_ROLE_ARN": "arn:aws:iam::1:role/r",
        "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "token"),
    }
    with answering((200, of_role("ASIA1"))) as (place, asked):
        keys = asking({**settings, "AWS_ENDPOINT_URL_STS": place}).keys()
    assert (keys.access, keys.secret, keys.token) == ("ASIA1", "s", "t") and keys.expires is not None
    assert b"WebIdentityToken=a.b.c" in asked[0][2] and "Authorization" not in asked[0][1]
    refused = b"<ErrorResponse><Error><Code>AccessDenied</Code></Error></ErrorResponse>"
    with answering((403, refused)) as (place, _), pytest.raises(CredentialRetrievalError) as caught:
        asking({**settings, "AWS_ENDPOINT_URL_STS": place}).keys()
    assert "403 (AccessDenied)" in str(caught.value) and "a.b.c" not in str(caught.value)
    with pytest.raises(CredentialRetrievalError, match="No such file"):
        asking({**settings, "AWS_WEB_IDENTITY_TOKEN_FILE": str(tmp_path / "absent")}).keys()


def test_a_file_of_credentials(tmp_path: Path) -> None:
    file = tmp_path / "credentials"
    file.write_text(
        "[default]\naws_access_key_id = d\naws_secret_access_key = %s\n[lab]\naws_access_key_id=l\n"
        "aws_secret_access_key=m\naws_session_token=n\n"
    )
    settings = {"AWS_SHARED_CREDENTIALS_FILE": str(file)}
    assert asking(settings).keys() == Keys("d", "%s")
    assert asking({**settings, "AWS_PROFILE": "lab"}).keys() == Keys("l", "m", "n")
    with pytest.raises(RequestFailed, match=r"\(other\)"):
        asking({**settings, "AWS_PROFILE": "other"}).keys()


# What servers answer.


@pytest.mark.parametrize(
    "document",
    [
        b"",
        b"no xml",
        b"<a>",
        b"<a></b>",
        b'<!DOCTYPE a [<!ENTITY x "y">]><a>&x;</a>',
        b'<!DOCTYPE a SYSTEM "http://127.0.0.1/x"><a/>',
        b"<a>" * 40 + b"</a>" * 40,
        b"<a>" + b"<b/>" * 200_000 + b"</a>",
        b"\xff\xfe",
    ],
)
def test_xml_that_is_none_or_too_much(document: bytes) -> None:
    with pytest.raises(Malformed):
        parse_xml(document)


def test_a_listing_that_is_nonsense_or_too_long() -> None:
    bad = b"<ListBucketResult><Contents><Key>x</Key></Contents></ListBucketResult>"
    for content in (bad, b"<html>", b" " * (2**23 + 1)):
        with answering((200, content)) as (place, _), pytest.raises(RequestFailed):
            a_client(place).list_objects_v2(Bucket="bucket")


def a_client(place: str, **more: str) -> PlainClient:
    settings = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b", "AWS_ENDPOINT_URL": place, **more}
    return PlainClient(settings, LIMITS, Credentials(settings))


def test_a_bucket_of_another_region_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[tuple[str, str]] = []

    class Refusal:
        status, headers = 301, {"x-amz-bucket-region": "eu-west-1", "content-length": "0"}

        def bounded(self, _: int) -> bytes:
            return b""

        def close(self) -> None:
            pass

    class Success(Refusal):
        status = 200

    def send(_: Any, server: str, target: str, method: str, headers: Mapping[str, str], *__: Any) -> Any:
        asked.append((server, headers["Authorization"].split("/")[2]))
        return Success() if "eu-west-1" in server else Refusal()

    monkeypatch.setattr(s3_client, "send", send)
    monkeypatch.setattr(s3_client, "pause", lambda _: 0)
    settings = {"AWS_ACCESS_KEY_ID": "a", "AWS_SECRET_ACCESS_KEY": "b"}
    client = PlainClient(settings, LIMITS, Credentials(settings))
    client.head_object(Bucket="bucket", Key="x")
    client.head_object(Bucket="bucket", Key="y")
    assert asked == [
        ("https://bucket.s3.us-east-1.amazonaws.com", "us-east-1"),
        ("https://bucket.s3.eu-west-1.amazonaws.com", "eu-west-1"),
        ("https://bucket.s3.eu-west-1.amazonaws.com", "eu-west-1"),
    ]


def test_a_proxy_is_asked_where_the_variables_name_one() -> None:
    with answering((200, b"<ListBucketResult/>")) as (place, asked):
        proxy = place.replace("//", "//user:pass%20word@")
        client = a_client("http://store.invalid:9000", http_proxy=proxy)
        assert client.list_objects_v2(Bucket="bucket")["Contents"] == []
        path, headers, _ = asked[0]
        assert (
            path.startswith("http://store.invalid:9000/bucket?") and headers["Host"] == "store.invalid:9000"
        )
        assert headers["Proxy-Authorization"] == "Basic dXNlcjpwYXNzIHdvcmQ="
        with pytest.raises(RequestFailed, match="Could not connect"):
            a_client("http://store.invalid:9000", http_proxy=proxy, NO_PROXY=".invalid").list_objects_v2(
                Bucket="bucket"
            )


def test_only_a_certificate_that_is_trusted_counts(tmp_path: Path) -> None:
    pem = tmp_path / "server.pem"
    pem.write_bytes(a_certificate())
    tls = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    tls.load_cert_chain(pem)
    with answering((200, b""), tls=tls) as (place, asked):
        a_client(place, AWS_CA_BUNDLE=str(pem)).put_object(Bucket="bucket", Key="x", Body=b"all aboard")
        assert asked[0][1]["X-Amz-Content-SHA256"] == "UNSIGNED-PAYLOAD" and asked[0][2] == b"all aboard"
        with pytest.raises(RequestFailed, match="SSL validation failed"):
            a_client(place).put_object(Bucket="bucket", Key="x", Body=b"all aboard")
    assert len(asked) == 1


def a_certificate() -> bytes:
    """One that a server at 127.0.0.1 signs itself, and its key."""
    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    name = x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, "a test")])
    alternative = x509.SubjectAlternativeName([x509.IPAddress(IPv4Address("127.0.0.1"))])
    made = (
        x509.CertificateBuilder(name, name, key.public_key(), x509.random_serial_number())
        .not_valid_before(datetime.now(UTC) - timedelta(days=1))
        .not_valid_after(datetime.now(UTC) + timedelta(days=1))
        .add_extension(alternative, critical=False)
        .sign(key, hashes.SHA256())
    )
    kind = serialization
    secret = key.private_bytes(kind.Encoding.PEM, kind.PrivateFormat.PKCS8, kind.NoEncryption())
    return secret + made.public_bytes(kind.Encoding.PEM)


@pytest.mark.parametrize(("start", "length"), [(0, 5), (4, 6), (4, 100)])
def test_no_more_is_read_than_was_asked_for(start: int, length: int) -> None:
    """A server that knows no ranges answers with all of it."""
    with answering((200, b"all aboard" + bytes(2**22))) as (place, _):
        wanted = f"bytes={start}-{start + length - 1}"
        answer = a_client(place).get_object(Bucket="bucket", Key="x", Range=wanted)
        assert len(answer["Body"].read()) == start + length and "ContentRange" not in answer


def test_certificates_that_cannot_be_read_are_said(tmp_path: Path) -> None:
    for bundle in (tmp_path / "absent", Path(__file__)):
        client = a_client("https://127.0.0.1:1", AWS_CA_BUNDLE=str(bundle))
        with pytest.raises(RequestFailed, match=r"AWS_CA_BUNDLE|SSL"):
            client.list_objects_v2(Bucket="bucket")


def test_the_address_of_a_server_is_shown_without_its_user() -> None:
    assert s3_http.shown_url("http://me:hunter2@host:9000/x") == "http://host:9000/x"
