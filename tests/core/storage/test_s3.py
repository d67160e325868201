"""S3 on bad days: wrong credentials, missing buckets, servers that are dead, die, stall, or lose answers.

The servers are real; what they would not do by themselves, a proxy before them does.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from allaboard.errors import (
    BadInput,
    StorageConflict,
    StorageDenied,
    StorageError,
    StorageFull,
    StorageMissing,
    StorageUnreachable,
    StorageUnsupported,
)
from allaboard.storage import Store, open_store, s3, s3_client
from tests.core.s3server import (
    ACCESS_KEY,
    SECRET_KEY,
    Decide,
    Request,
    S3Server,
    between,
    environ_for,
    free_port,
    s3_server,
)

# The library leaves files and sockets to the garbage collector when it is interrupted.
pytestmark = pytest.mark.filterwarnings("ignore:unclosed:ResourceWarning")

PART = 5 * 2**20  # the least that S3 takes
BIG = 3 * PART + 1000  # four parts


@pytest.fixture
def no_pauses(monkeypatch: pytest.MonkeyPatch) -> None:
    """Between two tries of the library, which throws dice for seconds of them."""
    monkeypatch.setattr("botocore.retries.standard.ExponentialBackoff.delay_amount", lambda *_: 0.01)
    monkeypatch.setattr(s3_client, "pause", lambda _: 0.01)


@pytest.fixture(params=["boto3", pytest.param("plain", marks=pytest.mark.thorough)], autouse=True)
def client(request: pytest.FixtureRequest) -> str:
    """Both clients keep every promise."""
    if request.param == "plain":
        request.getfixturevalue("without_boto3")
    return str(request.param)


@pytest.fixture(autouse=True)
def small_parts(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(s3, "PART", PART)


@pytest.fixture
def big(tmp_path: Path) -> Path:
    path = tmp_path / "big"
    path.write_bytes(os.urandom(BIG // 16) * 16 + bytes(BIG % 16))
    assert path.stat().st_size == BIG
    return path


@pytest.fixture
def impatient(monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests of silence need not wait for it as long as users should."""
    monkeypatch.setattr(s3, "READ_SECONDS", 0.5)
    monkeypatch.setattr(s3, "ATTEMPTS", 2)
    monkeypatch.setattr(s3, "STREAM_ATTEMPTS", 2)
    monkeypatch.setattr(s3, "_clients", {})


def every_call(store: Store, folder: Path) -> dict[str, Callable[[], Any]]:
    source = folder / "every-call-source"
    source.write_bytes(b"x")
    return {
        "stat": lambda: store.stat("run/part"),
        "read": lambda: store.read("run/part"),
        "write": lambda: store.write("run/part", b"x"),
        "create": lambda: store.create("run/new", b"x"),
        "upload": lambda: store.upload(source, "run/sent"),
        "download": lambda: store.download("run/part", folder / "every-call-target"),
        "delete": lambda: store.delete(["run/part"]),
        "entries": lambda: list(store.entries()),
        "folders": lambda: store.folders(),
    }


def refusals(store: Store, folder: Path, kind: type[StorageError]) -> dict[str, str]:
    """What every call says, which must be an error of ``kind``."""
    said = {}
    for name, call in every_call(store, folder).items():
        with pytest.raises(kind) as caught:
            call()
        assert type(caught.value) is kind, name
        said[name] = str(caught.value)
    assert not (folder / "every-call-target").exists()
    return said


def keys(store: Store) -> list[str]:
    return [entry.key for entry in store.entries()]


def unfinished_uploads(server: S3Server, store: Store) -> list[Any]:
    return list(server.client().list_multipart_uploads(Bucket=store.uri.split("/")[2]).get("Uploads", []))


# --- who may not


@pytest.mark.parametrize(
    ("wrong", "code"),
    [
        ({"AWS_SECRET_ACCESS_KEY": "notsonotsonotsonotsonotsonotsonotsonotso"}, "SignatureDoesNotMatch"),
        ({"AWS_ACCESS_KEY_ID": "AKIANOTKNOWNNOTKNOWN"}, "InvalidAccessKeyId"),
    ],
    ids=["wrong-secret", "unknown-key"],
)
def test_wrong_credentials_are_said_without_showing_them(
    rclone: S3Server, tmp_path: Path, wrong: dict[str, str], code: str
) -> None:
    bucket = rclone.make_bucket()
    open_store(f"s3://{bucket}", environ=rclone.environ).write("run/part", b"mine")
    environ = rclone.environ | wrong
    for call, said in refusals(
        open_store(f"s3://{bucket}", environ=environ), tmp_path, StorageDenied
    ).items():
        assert said.startswith(f"s3://{bucket}"), call
        assert code in said and rclone.endpoint in said and "AWS_SECRET_ACCESS_KEY" in said, call
        assert environ["AWS_SECRET_ACCESS_KEY"] not in said and environ["AWS_ACCESS_KEY_ID"] not in said
    assert open_store(f"s3://{bucket}", environ=rclone.environ).read("run/part") == b"mine"


def test_no_credentials_at_all_is_said(rclone: S3Server, tmp_path: Path) -> None:
    keys = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY")
    environ = {name: value for name, value in rclone.environ.items() if name not in keys}
    for call, said in refusals(open_store("s3://bucket", environ=environ), tmp_path, StorageDenied).items():
        assert "NoCredentialsError" in said and "give credentials: AWS_ACCESS_KEY_ID" in said, call


def test_a_profile_that_does_not_exist_is_said(rclone: S3Server) -> None:
    with pytest.raises(StorageDenied, match=r"The config profile \(nowhere\).*correct AWS_PROFILE"):
        open_store("s3://bucket", environ=rclone.environ | {"AWS_PROFILE": "nowhere"}).read("x")


@pytest.mark.thorough(but=("boto3-AccessDenied", "boto3-AuthorizationHeaderMalformed", "boto3-SomethingNew"))
@pytest.mark.parametrize(
    ("answer", "kind", "advice"),
    [
        ((403, "AccessDenied"), StorageDenied, "s3:PutObject"),
        ((403, "RequestTimeTooSkewed"), StorageDenied, "set the clock"),
        ((400, "ExpiredToken"), StorageDenied, "renew"),
        ((400, "AuthorizationHeaderMalformed"), StorageError, "AWS_REGION"),
        ((507, "QuotaExceeded"), StorageFull, "free some space"),
        ((418, "SomethingNew"), StorageError, "see what the server says"),
    ],
    ids=lambda value: value[1] if isinstance(value, tuple) else "",
)
@pytest.mark.usefixtures("no_pauses")
def test_refusals_are_said(
    moto: S3Server, tmp_path: Path, answer: tuple[int, str], kind: type[StorageError], advice: str
) -> None:
    with between(moto, lambda request: answer) as proxy:
        store = open_store("s3://bucket", environ=proxy.environ)
        for call, said in refusals(store, tmp_path, kind).items():
            assert f"{answer[1]}: as the test wants" in said, call
            assert advice in said and proxy.endpoint in said, call


def test_secrets_are_not_shown_even_when_the_library_quotes_them(moto: S3Server) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"):
        environ = moto.environ | {name: f"{moto.environ[name]}\n"}
        with pytest.raises(StorageDenied, match="end with a blank or a line break") as caught:
            open_store("s3://bucket", environ=environ).read("x")
        assert ACCESS_KEY not in str(caught.value) and SECRET_KEY not in str(caught.value)
    endpoint = f"http://someone:hunter2@127.0.0.1:{free_port()}"
    with pytest.raises(StorageError) as asked:
        open_store("s3://bucket", environ=moto.environ | {"AWS_ENDPOINT_URL": endpoint}).read("x")
    assert "hunter2" not in str(asked.value)

    def echo(request: Request) -> tuple[int, str]:
        return (400, f"Strange-{ACCESS_KEY}-{SECRET_KEY}")

    with between(moto, echo) as proxy, pytest.raises(StorageError, match="Strange") as echoed:
        open_store("s3://bucket", environ=proxy.environ).read("x")
    assert ACCESS_KEY not in str(echoed.value) and SECRET_KEY not in str(echoed.value)


@pytest.mark.thorough
def test_renewed_credentials_are_read_after_the_old_ones_ran_out(moto: S3Server, tmp_path: Path) -> None:
    file = tmp_path / "credentials"

    def credentials(key: str) -> None:
        file.write_text(f"[default]\naws_access_key_id = {key}\naws_secret_access_key = {SECRET_KEY}\n")

    def only_the_new(request: Request) -> tuple[int, str] | None:
        return (400, "ExpiredToken") if "AKIAOLD" in request.headers["Authorization"] else None

    bucket = moto.make_bucket()
    credentials("AKIAOLD")
    with between(moto, only_the_new) as proxy:
        environ = {"AWS_ENDPOINT_URL": proxy.endpoint, "AWS_SHARED_CREDENTIALS_FILE": str(file)}
        store = open_store(f"s3://{bucket}", environ=environ)
        with pytest.raises(StorageDenied, match="renew"):
            store.write("x", b"x")
        credentials("AKIANEW")
        store.write("x", b"x")
        assert store.read("x") == b"x"


def test_a_member_is_let_in_by_the_identity_of_its_service_account(
    moto: S3Server, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a cluster that ties service accounts to roles (EKS: IRSA) puts into pods: a token and a role."""
    seen: list[str] = []

    def who(request: Request) -> None:
        seen.append(request.headers.get("X-Amz-Security-Token") or "none")

    bucket, token = moto.make_bucket(), tmp_path / "token"
    token.write_text("a-token-of-the-cluster")
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(s3, "_clients", {})
    with between(moto, who) as proxy:
        for name, value in {
            "AWS_ENDPOINT_URL_S3": proxy.endpoint,
            "AWS_ENDPOINT_URL_STS": moto.endpoint,
            "AWS_REGION": "us-east-1",
            "AWS_ROLE_ARN": "arn:aws:iam::123456789012:role/trainer",
            "AWS_WEB_IDENTITY_TOKEN_FILE": str(token),
            "HOME": str(tmp_path),
        }.items():
            monkeypatch.setenv(name, value)
        store = open_store(f"s3://{bucket}/run")
        store.write("part", b"x")
        assert store.read("part") == b"x"
    assert seen and all(len(word) > 20 for word in seen), "each request carries the role's session"


# --- what is missing


@pytest.mark.parametrize("kind", ["moto", "rclone"])
def test_a_missing_bucket_is_said(kind: str, request: pytest.FixtureRequest, tmp_path: Path) -> None:
    server: S3Server = request.getfixturevalue(kind)
    store = open_store("s3://never-made/models", environ=server.environ)
    for call, said in refusals(store, tmp_path, StorageMissing).items():
        assert re.match(r"s3://never-made/models.*NoSuchBucket.*make the bucket", said), (call, said)


@pytest.mark.parametrize("endpoint", ["localhost:9000", "http://", "ht tp://x"])
def test_an_endpoint_that_is_no_address_is_said(moto: S3Server, endpoint: str) -> None:
    with pytest.raises(BadInput, match="write it like http"):
        open_store("s3://bucket", environ=moto.environ | {"AWS_ENDPOINT_URL": endpoint}).read("x")


@pytest.mark.parametrize("library", ["botocore", "s3transfer"])
def test_without_boto3_the_standard_library_is_enough(
    moto: S3Server, library: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == library] + [library]:
        monkeypatch.setitem(sys.modules, name, None)
    monkeypatch.setattr(s3, "_clients", {})
    bucket = f"bucket-without-{library}"
    subprocess.run(
        [sys.executable, "-c", f"import boto3; boto3.client('s3').create_bucket(Bucket={bucket!r})"],
        env={**os.environ, **moto.environ},
        check=True,
    )
    store = open_store(f"s3://{bucket}", environ=moto.environ)
    store.write("x", b"all aboard")
    assert store.read("x", 4) == b"aboard" and keys(store) == ["x"]


# --- servers that do not answer


def test_a_dead_endpoint_is_said(tmp_path: Path, impatient: None) -> None:
    endpoint = f"http://127.0.0.1:{free_port()}"
    store = open_store("s3://bucket/models", environ=environ_for(endpoint))
    for call, said in refusals(store, tmp_path, StorageUnreachable).items():
        assert said.startswith("s3://bucket/models") and "Could not connect" in said, (call, said)
        assert endpoint in said and "AWS_ENDPOINT_URL" in said, call


def test_a_host_that_does_not_exist_is_said(impatient: None) -> None:
    with pytest.raises(StorageUnreachable, match=r"nowhere\.invalid"):
        open_store("s3://bucket", environ=environ_for("http://nowhere.invalid:9000")).read("x")


@pytest.mark.thorough
def test_a_server_that_never_answers_is_given_up(
    moto: S3Server, tmp_path: Path, impatient: None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(s3, "READ_SECONDS", 0.1)
    with between(moto, lambda request: "hang") as proxy:
        store = open_store("s3://bucket", environ=proxy.environ)
        for call, said in refusals(store, tmp_path, StorageUnreachable).items():
            assert said.startswith("s3://bucket") and "Read timeout" in said, (call, said)
        assert len(proxy.requests) == 2 * 9  # two tries for each


# --- servers that die


@pytest.mark.thorough
@pytest.mark.parametrize("kind", ["moto", "rclone"])
def test_a_server_killed_in_the_middle_of_an_upload_leaves_nothing_torn(
    kind: str, big: Path, client: str
) -> None:
    with s3_server(kind) as server:
        bucket = server.make_bucket()
        store = open_store(f"s3://{bucket}/models", environ=server.environ)
        store.write("replaced", b"the old value")
        sent: list[int] = []
        once = threading.Lock()

        def kill_when_some_has_gone(count: int) -> None:
            sent.append(count)
            if sum(sent) > PART // 2 and once.acquire(blocking=False):
                server.kill()

        for key in ("new", "replaced"):
            with pytest.raises(StorageUnreachable, match=f"^s3://{bucket}/models/{key}: .*{server.endpoint}"):
                store.upload(big, key, kill_when_some_has_gone)
            assert (PART // 2 if client == "boto3" else -1) < sum(sent) < BIG
            server.restart()
            if kind == "moto":  # which remembers nothing
                assert server.client().list_buckets()["Buckets"] == []
                server.make_bucket(bucket)
            sent.clear()
            once = threading.Lock()
        if kind == "rclone":  # it remembers over a restart
            assert keys(store) == ["replaced"]
            assert store.read("replaced") == b"the old value"
            assert all(not path.name.startswith("new") for path in (server.folder / "data").rglob("*"))
        else:
            assert keys(store) == []
        store.upload(big, "new")  # and the store needs no care afterwards
        entry = store.stat("new")
        assert entry and entry.size == BIG


@pytest.mark.thorough
def test_a_server_killed_in_the_middle_of_a_download_leaves_no_file(big: Path, tmp_path: Path) -> None:
    with s3_server("rclone") as server:
        store = open_store(f"s3://{server.make_bucket()}", environ=server.environ)
        store.upload(big, "big")
        (tmp_path / "into").mkdir()
        (tmp_path / "into" / "target").write_bytes(b"the old value")
        once = threading.Lock()

        def kill(count: int) -> None:
            if once.acquire(blocking=False):
                server.kill()

        with pytest.raises(StorageUnreachable, match="nothing half-written stays"):
            store.download("big", tmp_path / "into" / "target", kill)
        assert [path.name for path in (tmp_path / "into").iterdir()] == ["target"]
        assert (tmp_path / "into" / "target").read_bytes() == b"the old value"


# --- servers that stumble


def only_first(answer: tuple[int, str] | str, times: int = 2) -> Decide:
    """The first ``times`` tries of every request get ``answer``."""
    seen: dict[tuple[str, str, str], int] = {}

    def decide(request: Request) -> tuple[int, str] | str | None:
        which = (request.method, request.path, request.query)
        seen[which] = seen.get(which, 0) + 1
        return answer if seen[which] <= times else None

    return decide


@pytest.mark.thorough(but=("boto3-500",))
@pytest.mark.parametrize(
    "answer", [(503, "SlowDown"), (500, "InternalError"), "drop"], ids=["503-slow-down", "500", "dropped"]
)
@pytest.mark.usefixtures("no_pauses")
def test_what_passes_is_tried_again(moto: S3Server, tmp_path: Path, answer: tuple[int, str] | str) -> None:
    bucket = moto.make_bucket()
    open_store(f"s3://{bucket}", environ=moto.environ).write("run/part", b"x")
    with between(moto, only_first(answer, times=1)) as proxy:
        store = open_store(f"s3://{bucket}", environ=proxy.environ)
        for name, call in every_call(store, tmp_path).items():
            before = len(proxy.requests)
            call()
            assert name == "folders" or len(proxy.requests) >= before + 2, name  # it asks what entries asked


@pytest.mark.thorough
@pytest.mark.usefixtures("no_pauses")
def test_a_server_that_stays_busy_is_given_up_and_the_tries_are_counted(moto: S3Server) -> None:
    with between(moto, lambda request: (503, "SlowDown")) as proxy:
        environ = proxy.environ | {"AWS_MAX_ATTEMPTS": "3"}
        os.environ["AWS_MAX_ATTEMPTS"] = "3"
        try:
            with pytest.raises(
                StorageUnreachable, match=r"SlowDown: as the test wants \(tried 3 times\) while writing"
            ):
                open_store("s3://bucket", environ=environ).write("x", b"x")
        finally:
            del os.environ["AWS_MAX_ATTEMPTS"]
        assert len(proxy.requests) == 3


# --- uploads in parts


def of_part(number: int, answer: tuple[int, str] | str) -> Decide:
    return lambda request: answer if f"partNumber={number}" in request.query else None


def test_an_upload_that_fails_in_a_late_part_is_taken_back(moto: S3Server, big: Path) -> None:
    bucket = moto.make_bucket()
    direct = open_store(f"s3://{bucket}", environ=moto.environ)
    direct.write("x", b"the old value")
    with between(moto, of_part(3, (403, "AccessDenied"))) as proxy:
        store = open_store(f"s3://{bucket}", environ=proxy.environ)
        with pytest.raises(StorageDenied, match="AccessDenied"):
            store.upload(big, "x")
        assert any("partNumber=1" in request.query for request in proxy.requests)
        assert any(request.method == "DELETE" and "uploadId" in request.query for request in proxy.requests)
    assert unfinished_uploads(moto, direct) == []
    assert keys(direct) == ["x"] and direct.read("x") == b"the old value"


def test_an_uploader_that_is_killed_leaves_nothing_under_the_key(moto: S3Server, big: Path) -> None:
    store = open_store(f"s3://{moto.make_bucket()}", environ=moto.environ)
    store.write("x", b"the old value")
    code = (
        "import sys; from pathlib import Path; from allaboard.storage import open_store, s3\n"
        f"s3.PART = {PART}\n"
        "def wait(count): print('some has gone', flush=True); sys.stdin.readline()\n"
        "open_store(sys.argv[1]).upload(Path(sys.argv[2]), 'x', wait)"
    )
    environ = os.environ | moto.environ | {"PYTHONPATH": os.pathsep.join(sys.path)}
    with subprocess.Popen(
        [sys.executable, "-c", code, store.uri, str(big)],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        env=environ,
    ) as child:
        assert child.stdout and child.stdout.readline() == b"some has gone\n"
        child.kill()
    assert keys(store) == ["x"] and store.read("x") == b"the old value"


@pytest.mark.parametrize("failure", [KeyboardInterrupt, RuntimeError])
def test_an_upload_that_is_broken_off_here_is_taken_back(
    moto: S3Server, big: Path, failure: type[BaseException]
) -> None:
    store = open_store(f"s3://{moto.make_bucket()}", environ=moto.environ)

    interrupted = threading.Lock()

    def break_off(count: int) -> None:
        if failure is not KeyboardInterrupt:
            raise failure
        # Ctrl-C, which the main thread gets while it waits. Once: two threads send parts.
        if interrupted.acquire(blocking=False):
            os.kill(os.getpid(), signal.SIGINT)

    with pytest.raises(failure):
        store.upload(big, "x", break_off)
    assert unfinished_uploads(moto, store) == []
    assert keys(store) == []


@pytest.mark.thorough
def test_parts_that_stumble_are_sent_again_and_the_progress_still_adds_up(
    moto: S3Server, big: Path, tmp_path: Path
) -> None:
    bucket = moto.make_bucket()
    with between(moto, only_first((503, "SlowDown"), times=1)) as proxy:
        store = open_store(f"s3://{bucket}", environ=proxy.environ)
        up: list[int] = []
        down: list[int] = []
        store.upload(big, "x", up.append)
        store.download("x", tmp_path / "back", down.append)
    assert sum(up) == sum(down) == BIG
    assert (tmp_path / "back").read_bytes() == big.read_bytes()


@pytest.mark.thorough
def test_an_upload_whose_last_answer_is_lost_counts(moto: S3Server, big: Path) -> None:
    lost: list[Request] = []

    def lose_the_end(request: Request) -> str | None:
        if request.method == "POST" and "uploadId" in request.query and not lost:
            lost.append(request)
            return "lose"
        return None

    bucket = moto.make_bucket()
    with between(moto, lose_the_end) as proxy:
        store = open_store(f"s3://{bucket}", environ=proxy.environ)
        store.upload(big, "x")
        assert lost
        entry = store.stat("x")
        assert entry and entry.size == BIG


def test_an_upload_that_the_server_forgot_fails(moto: S3Server, big: Path) -> None:
    bucket = moto.make_bucket()
    direct = open_store(f"s3://{bucket}", environ=moto.environ)
    direct.write("x", b"the old value")

    def forget(request: Request) -> tuple[int, str] | None:
        return (404, "NoSuchUpload") if request.method == "POST" and "uploadId" in request.query else None

    with between(moto, forget) as proxy, pytest.raises(StorageUnreachable, match="forgotten the parts"):
        open_store(f"s3://{bucket}", environ=proxy.environ).upload(big, "x")
    assert direct.read("x") == b"the old value"


def test_a_file_that_cannot_be_read_is_told_apart_from_the_server(moto: S3Server, tmp_path: Path) -> None:
    store = open_store(f"s3://{moto.make_bucket()}", environ=moto.environ)
    with pytest.raises(StorageMissing, match=f"^{re.escape(str(tmp_path))}/absent: .*ENOENT"):
        store.upload(tmp_path / "absent", "x")
    (tmp_path / "target").mkdir()
    store.write("x", b"x")
    with pytest.raises(StorageMissing, match=f"^{re.escape(str(tmp_path))}/target: .*EISDIR"):
        store.download("x", tmp_path / "target")


# --- downloads


def test_answers_that_break_off_are_asked_for_again(moto: S3Server, big: Path, tmp_path: Path) -> None:
    bucket = moto.make_bucket()
    open_store(f"s3://{bucket}", environ=moto.environ).upload(big, "x")

    def cut() -> Decide:
        first = only_first("cut", times=1)
        return lambda request: first(request) if request.method == "GET" else None

    with between(moto, cut()) as proxy:
        store = open_store(f"s3://{bucket}", environ=proxy.environ)
        assert store.read("x") == big.read_bytes()
        assert store.read("x", 10, 1000) == big.read_bytes()[10:1010]
    with between(moto, cut()) as proxy:
        counts: list[int] = []
        store = open_store(f"s3://{bucket}", environ=proxy.environ)
        store.download("x", tmp_path / "back", counts.append)
        assert (tmp_path / "back").read_bytes() == big.read_bytes()
        assert sum(counts) == BIG


def test_an_answer_that_always_breaks_off_is_said_and_leaves_no_file(
    moto: S3Server, big: Path, tmp_path: Path, impatient: None
) -> None:
    bucket = moto.make_bucket()
    moto.client().put_object(Bucket=bucket, Key="x", Body=big.read_bytes())
    with between(moto, lambda request: "cut" if request.method == "GET" else None) as proxy:
        store = open_store(f"s3://{bucket}", environ=proxy.environ)
        with pytest.raises(StorageUnreachable, match="the answer broke off"):
            store.read("x")
        with pytest.raises(StorageUnreachable):
            store.download("x", tmp_path / "into" / "back")
    assert list((tmp_path / "into").iterdir()) == []


def test_an_object_replaced_while_it_is_read_is_not_pieced_together(
    moto: S3Server, big: Path, tmp_path: Path, client: str
) -> None:
    """Where it comes in one piece, the first answer breaks off."""
    bucket = moto.make_bucket()
    direct = open_store(f"s3://{bucket}", environ=moto.environ)
    direct.upload(big, "x")
    other = tmp_path / "other"
    other.write_bytes(bytes(BIG))
    gets: list[Request] = []

    def replaced(request: Request) -> str | None:
        if request.method == "GET":
            gets.append(request)
            if len(gets) == 2:
                direct.upload(other, "x")
            return "cut" if client == "plain" and len(gets) == 1 else None
        return None

    with between(moto, replaced) as proxy:
        store = open_store(f"s3://{bucket}", environ=proxy.environ)
        with pytest.raises(StorageUnreachable, match="replaced while it was read"):
            store.download("x", tmp_path / "into" / "back")
    assert list((tmp_path / "into").iterdir()) == []


def test_a_disk_that_fills_up_during_a_download_is_said_and_given_back(
    moto: S3Server, big: Path, small_disk: Path
) -> None:
    store = open_store(f"s3://{moto.make_bucket()}", environ=moto.environ)
    store.upload(big, "x")
    target = small_disk / "target"
    target.write_bytes(b"the old value")
    with pytest.raises(StorageFull, match=f"^{re.escape(str(target))}: No space left on device"):
        store.download("x", target)
    assert [path.name for path in small_disk.iterdir()] == ["target"]
    assert target.read_bytes() == b"the old value"


# --- exclusive create


def test_a_create_whose_answer_is_lost_counts(moto: S3Server) -> None:
    bucket = moto.make_bucket()

    def lose(request: Request) -> str | None:
        puts = [one for one in proxy.requests if one.method == "PUT" and one.path.endswith("/record")]
        return "lose" if request.path.endswith("/record") and len(puts) == 1 else None

    with between(moto, lose) as proxy:
        store = open_store(f"s3://{bucket}", environ=proxy.environ)
        store.create("record", b"mine")
        with pytest.raises(StorageConflict):
            store.create("record", b"mine")  # the same bytes, and yet another's
    assert store.uri and open_store(f"s3://{bucket}", environ=moto.environ).read("record") == b"mine"


def test_a_create_that_meets_another_request_is_tried_again(moto: S3Server) -> None:
    bucket = moto.make_bucket()
    twice = only_first((409, "ConditionalRequestConflict"), times=2)
    with between(moto, lambda request: twice(request) if request.path.endswith("/record") else None) as proxy:
        open_store(f"s3://{bucket}", environ=proxy.environ).create("record", b"mine")
    assert open_store(f"s3://{bucket}", environ=moto.environ).read("record") == b"mine"


def test_a_server_that_says_it_knows_no_conditions_is_refused(moto: S3Server) -> None:
    def refuse(request: Request) -> tuple[int, str] | None:
        return (501, "NotImplemented") if "If-None-Match" in request.headers else None

    bucket = moto.make_bucket()
    with between(moto, refuse) as proxy, pytest.raises(StorageUnsupported, match="nothing was written"):
        open_store(f"s3://{bucket}", environ=proxy.environ).create("record", b"mine")
    assert keys(open_store(f"s3://{bucket}", environ=moto.environ)) == []


def test_a_server_is_tried_out_once_for_each_bucket(moto: S3Server) -> None:
    bucket = moto.make_bucket()
    with between(moto, lambda request: None) as proxy:
        for number in range(3):
            open_store(f"s3://{bucket}/run-{number}", environ=proxy.environ).create("record", b"mine")
        probes = [request for request in proxy.requests if ".allaboard-probe-" in request.path]
        assert [request.method for request in probes] == ["PUT", "PUT", "DELETE"]


def test_a_probe_that_may_not_be_deleted_is_not_listed(moto: S3Server) -> None:
    bucket = moto.make_bucket()
    with between(
        moto, lambda request: (403, "AccessDenied") if request.method == "DELETE" else None
    ) as proxy:
        store = open_store(f"s3://{bucket}", environ=proxy.environ)
        store.create("run/record", b"mine")
        assert keys(store) == ["run/record"] and store.folders() == ["run"]


# --- many objects


def test_absent_is_absent_for_who_may_not_list(moto: S3Server) -> None:
    bucket = moto.make_bucket()
    with between(
        moto, lambda request: (403, "AccessDenied") if "list-type" in request.query else None
    ) as proxy:
        store = open_store(f"s3://{bucket}/models", environ=proxy.environ)
        assert store.stat("absent") is None
        assert "prefix=models%2F" in proxy.requests[-1].query  # what such users may at least be allowed


@pytest.mark.thorough
def test_listing_and_deleting_go_beyond_a_thousand(moto: S3Server) -> None:
    store = open_store(f"s3://{moto.make_bucket()}/many", environ=moto.environ)
    expected = [f"run/{number:05d}" for number in range(1100)]
    with ThreadPoolExecutor(4) as pool:
        list(pool.map(lambda key: store.write(key, b""), expected))
    assert keys(store) == expected
    store.delete(expected[:1050])
    assert keys(store) == expected[1050:]


@pytest.mark.thorough
def test_thousands_of_folders_and_objects_are_listed_page_by_page(rclone: S3Server) -> None:
    bucket = rclone.make_bucket()
    for number in range(2500):
        folder = rclone.folder / "data" / bucket / "many" / f"step-{number:05d}"
        folder.mkdir(parents=True)
        (folder / "part").touch()
    with between(rclone, lambda request: None) as proxy:
        store = open_store(f"s3://{bucket}/many", environ=proxy.environ)
        assert keys(store) == [f"step-{number:05d}/part" for number in range(2500)]
        assert len(proxy.requests) == 3  # a thousand at a time
        assert store.folders() == [f"step-{number:05d}" for number in range(2500)]


def test_marks_for_folders_and_foreign_names_are_no_objects(moto: S3Server) -> None:
    bucket = moto.make_bucket()
    for key in ("run/", "run/x", "run//y", "run/../z", "/root", ".allaboard-probe-1"):
        moto.client().put_object(Bucket=bucket, Key=key, Body=b"")
    store = open_store(f"s3://{bucket}", environ=moto.environ)
    assert keys(store) == ["run/x"] and keys(store.below("run")) == ["x"]
    assert store.folders() == ["run"] and store.folders("run") == []


def test_a_server_that_answers_the_whole_object_to_a_range_is_understood(moto: S3Server) -> None:
    bucket = moto.make_bucket()
    store = open_store(f"s3://{bucket}", environ=moto.environ)
    store.write("x", b"all aboard")
    client = s3._client(moto.environ)
    whole = client.s3.get_object(Bucket=bucket, Key="x")

    class Rangeless:
        @staticmethod
        def get_object(**_: Any) -> Any:
            return whole

    assert s3._body(_with(client, Rangeless()), {}, 4, 2) == b"ab"


def _with(client: Any, library: Any) -> Any:
    return replace(client, s3=library)


def test_a_server_without_batches_is_asked_one_by_one(moto: S3Server) -> None:
    bucket = moto.make_bucket()
    direct = open_store(f"s3://{bucket}", environ=moto.environ)
    for key in ("a", "b", "c"):
        direct.write(key, b"")
    with between(
        moto, lambda request: (501, "NotImplemented") if request.method == "POST" else None
    ) as proxy:
        open_store(f"s3://{bucket}", environ=proxy.environ).delete(["a", "b", "absent"])
    assert keys(direct) == ["c"]


# --- settings


def test_the_environment_of_the_process_is_used_when_none_is_given(
    moto: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    bucket = moto.make_bucket()
    store = open_store(f"s3://{bucket}")
    for name, value in moto.environ.items():
        monkeypatch.setenv(name, value)
    store.write("x", b"x")
    assert open_store(f"s3://{bucket}", environ=moto.environ).read("x") == b"x"


def test_a_given_environment_stands_in_for_that_of_the_process(
    rclone: S3Server, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name, value in {
        "AWS_ENDPOINT_URL": "http://127.0.0.1:1",
        "AWS_ENDPOINT_URL_S3": "http://127.0.0.1:2",
        "AWS_ACCESS_KEY_ID": "AKIANOTKNOWNNOTKNOWN",
        "AWS_SECRET_ACCESS_KEY": "wrong",
        "AWS_SESSION_TOKEN": "wrong",
        "AWS_PROFILE": "nowhere",
        "AWS_REGION": "nowhere-1",
    }.items():
        monkeypatch.setenv(name, value)
    store = open_store(f"s3://{rclone.make_bucket()}", environ=rclone.environ)
    store.write("x", b"x")
    assert store.read("x") == b"x"
    with pytest.raises(StorageDenied, match="NoCredentialsError"):
        environ = {"AWS_ENDPOINT_URL": rclone.endpoint, "AWS_CONFIG_FILE": os.devnull}
        open_store("s3://bucket", environ=environ | {"AWS_SHARED_CREDENTIALS_FILE": os.devnull}).read("x")


def test_profiles_and_their_endpoints_are_used(rclone: S3Server, tmp_path: Path, client: str) -> None:
    if client == "plain":
        pytest.skip("takes boto3")
    (tmp_path / "config").write_text(
        f"[profile lab]\nregion = us-east-1\nendpoint_url = {rclone.endpoint}\n"
        f"aws_access_key_id = {ACCESS_KEY}\naws_secret_access_key = {SECRET_KEY}\n"
    )
    environ = {"AWS_PROFILE": "lab", "AWS_CONFIG_FILE": str(tmp_path / "config"), "NO_PROXY": "127.0.0.1"}
    store = open_store(f"s3://{rclone.make_bucket()}", environ=environ)
    store.write("x", b"x")
    assert store.read("x") == b"x"


@pytest.mark.thorough
def test_one_client_serves_all_stores_with_the_same_settings(moto: S3Server, rclone: S3Server) -> None:
    one = s3._client(moto.environ)
    assert s3._client(dict(moto.environ) | {"UNRELATED": "x"}) is one
    assert s3._client(rclone.environ) is not one
    assert s3._client(moto.environ | {"AWS_SECRET_ACCESS_KEY": "other"}) is not one
    with ThreadPoolExecutor(8) as pool:
        fresh = moto.environ | {"AWS_SESSION_TOKEN": "fresh"}
        assert len(set(map(id, pool.map(lambda _: s3._client(fresh), range(32))))) == 1


@pytest.mark.skipif(not hasattr(os, "fork"), reason="this system cannot fork")
def test_a_forked_child_has_a_client_of_its_own_even_when_another_thread_was_making_one(
    moto: S3Server,
) -> None:
    before = s3._client(moto.environ)
    s3._lock.acquire()  # as that thread would
    try:
        child = os.fork()
        if child == 0:
            try:
                import signal

                signal.alarm(60)
                os._exit(0 if s3._client(moto.environ) is not before else 1)
            except BaseException:
                os._exit(2)
    finally:
        s3._lock.release()
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert s3._client(moto.environ) is before


def test_a_boto3_that_is_too_old_is_not_used(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> None:
    from s3transfer.futures import TransferMeta

    monkeypatch.delattr(TransferMeta, "provide_object_etag")
    monkeypatch.setattr(s3, "_clients", {})
    assert type(s3._client(moto.environ).s3) is s3_client.PlainClient
