"""Secrets on one machine: whatever is wrong with them is said before anything starts, all of it at once."""

from __future__ import annotations

import os
import shutil
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from allaboard import BadInput, State
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.supervisor.secrets import (
    MOST_BYTES,
    MOST_TOGETHER,
    locate_secrets,
    secret_variables,
)
from allaboard.runs.status import state_of
from tests.core.backends.local.helpers import a_plan, wait_for
from tests.core.backends.local.test_backend import ME, text
from tests.core.backends.local.test_bad_days import run


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """The folder of the secret ``aws`` below the home that is ``tmp_path``, with one good key."""
    folder = tmp_path / "secrets" / "aws"
    folder.mkdir(parents=True, mode=0o700)
    a_key(folder, "TOKEN", b"abc\n")
    return folder


def a_key(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.write_bytes(data)
    path.chmod(0o600)
    return path


def place(folder: Path, **how: object) -> list[dict[str, object]]:
    return locate_secrets(str(folder.parent.parent), [{"name": folder.name, **({"env": True} | how)}])


def test_every_key_is_a_variable_without_its_last_newline(secret: Path) -> None:
    a_key(secret, "tls.crt", "zwei\nZeilen ä\n".encode())
    a_key(secret, "EMPTY", b"")
    assert secret_variables(place(secret)) == {"TOKEN": "abc", "tls.crt": "zwei\nZeilen ä", "EMPTY": ""}


TROUBLES: dict[str, tuple[Callable[[Path], object], str]] = {
    "not UTF-8": (lambda f: a_key(f, "KEY", b"a\xffb"), r"KEY is not UTF-8 text \(byte 1\)"),
    "a NUL byte": (lambda f: a_key(f, "KEY", b"a\0b"), "KEY holds a NUL byte"),
    "a name with =": (lambda f: a_key(f, "A=B", b"x"), "A=B cannot name a variable"),
    "a name with a space": (lambda f: a_key(f, "A B", b"x"), "A B cannot name a variable"),
    "a name that begins with a digit": (lambda f: a_key(f, "1A", b"x"), "1A cannot name a variable"),
    "a name that is no text": (
        lambda f: a_key(f, os.fsdecode(b"K\xff"), b"x"),
        r"udcff' cannot name a variable",
    ),
    "a name with a newline": (lambda f: a_key(f, "A\nB", b"x"), r"A\\nB' cannot name a variable"),
    "a folder": (lambda f: (f / "KEY").mkdir(mode=0o700), "KEY is not a regular file"),
    "a pipe": (lambda f: os.mkfifo(f / "KEY", 0o600), "KEY is not a regular file"),
    "a link": (lambda f: (f / "KEY").symlink_to(f / "TOKEN"), "KEY is a symbolic link"),
    "a dangling link": (lambda f: (f / "KEY").symlink_to(f / "none"), "KEY is a symbolic link"),
    "too large": (lambda f: a_key(f, "KEY", b"x" * (MOST_BYTES + 1)), "KEY has 100,001 bytes"),
    "too large together": (
        lambda f: [a_key(f, f"KEY{n}", b"x" * 90_000) for n in range(MOST_TOGETHER // 90_000 + 1)],
        "hold .* bytes together",
    ),
    "a file that others may read": (lambda f: (f / "TOKEN").chmod(0o640), "TOKEN may be read by others"),
    "a folder that others may read": (lambda f: f.chmod(0o755), "aws may be read by others"),
    "nothing there": (shutil.rmtree, "'aws' is not there"),
    "a file in place of the folder": (
        lambda f: (shutil.rmtree(f), f.write_text("x")),
        "is not a folder",
    ),
    "a link in place of the folder": (
        lambda f: (f.rename(f.with_name("other")), f.symlink_to(f.with_name("other"))),
        "is not a folder",
    ),
}


@pytest.mark.parametrize("how", TROUBLES)
def test_what_is_wrong_is_said_in_one_sentence(secret: Path, how: str) -> None:
    spoil, words = TROUBLES[how]
    spoil(secret)
    with pytest.raises(BadInput, match=words) as caught:
        place(secret)
    assert len(caught.value.problems) == 1


@pytest.mark.skipif(os.geteuid() != 0, reason="gives a file to somebody else")
def test_a_key_of_another_user_is_refused(secret: Path) -> None:
    os.chown(secret / "TOKEN", 65534, 65534)
    with pytest.raises(BadInput, match="TOKEN belongs to another user"):
        place(secret)


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "../../etc", "x" * 300, "\ud800"])
def test_a_name_that_is_no_folder_below_secrets_is_refused(tmp_path: Path, name: str) -> None:
    with pytest.raises(BadInput, match="is not a valid secret name"):
        locate_secrets(str(tmp_path), [{"name": name, "env": True}])


def test_everything_is_said_at_once(secret: Path) -> None:
    a_key(secret, "A=B", b"x")
    a_key(secret, "BAD", b"\xff")
    with pytest.raises(BadInput) as caught:
        locate_secrets(
            str(secret.parent.parent), [{"name": "aws", "env": True}, {"name": "none", "mount": "/secrets"}]
        )
    assert [p.path for p in caught.value.problems] == ["secrets[0]", "secrets[0]", "secrets[1]"]


def test_what_is_mounted_may_be_any_bytes_under_any_name(secret: Path) -> None:
    a_key(secret, "1=key.bin", b"\xff\0" * MOST_BYTES)
    assert secret_variables(place(secret, env=False, mount="/keys")) == {}


# Of a run.

FAILS_ONCE = """
import os, pathlib, time
print("token", os.environ["TOKEN"], flush=True)
first = pathlib.Path("first")
if not first.exists():
    first.touch()
    while not pathlib.Path("gone").exists():
        time.sleep(0.01)
    raise SystemExit(1)
"""


def test_a_member_that_is_started_again_has_the_values_of_the_start(
    backend: LocalBackend, folder: Path
) -> None:
    home = Path(backend.home)
    kept = home / "secrets" / "aws"
    kept.mkdir(parents=True, mode=0o700)
    a_key(kept, "TOKEN", b"abc")
    handle = backend.launch(a_plan(folder, FAILS_ONCE, workers=1, secrets=[{"name": "aws", "env": True}]), ME)
    wait_for(lambda: (folder / "first").exists())
    assert "abc" in backend.secrets_of(handle.run)
    shutil.rmtree(kept)
    (folder / "gone").touch()
    wait_for(lambda: state_of(backend.observe(handle.run)).is_final)
    seen = backend.observe(handle.run)
    assert state_of(seen) is State.SUCCEEDED and seen.restarts == 1
    assert text(backend, handle.run).count("token abc") == 2
    assert "abc" not in backend.secrets_of(handle.run)


def test_mounted_secrets_and_those_of_the_environment_are_known_to_who_tells_of_a_run(
    folder: Path, tmp_path: Path
) -> None:
    environ = {**os.environ, "AWS_SECRET_ACCESS_KEY": "inherited-one", "AUTH_MODE": "simple"}
    backend = LocalBackend({**environ, "AIRFLOW__CORE__FERNET_KEY": "not-for-members"})
    kept = Path(backend.home) / "secrets" / "hub"
    kept.mkdir(parents=True, mode=0o700)
    a_key(kept, "key.pem", b"mounted-one")
    plan = a_plan(folder, "pass", workers=1, secrets=[{"name": "hub", "mount": str(tmp_path / "hub")}])
    handle = backend.launch(replace(plan, secrets=("of the caller",)), ME)
    wait_for(lambda: state_of(backend.observe(handle.run)).is_final)
    known = backend.secrets_of(handle.run)
    assert {"inherited-one", "mounted-one", "of the caller"} <= {*known}
    assert not {"simple", "not-for-members"} & {*known}


def test_secrets_that_go_between_the_check_and_the_start_fail_it_once(
    backend: LocalBackend, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    gone = [{"name": "aws", "folder": str(folder / "none"), "env": True}]
    monkeypatch.setattr("allaboard.backends.local.backend.locate_secrets", lambda *_: gone)
    outcome = run(backend, folder, "print('never')", policy={"restart": "on_failure", "backoff_limit": 3})
    assert outcome.state is State.FAILED and outcome.seen.restarts == 0
    assert "'aws' is not there" in outcome.message and "\n" not in outcome.message
    assert [m.started for m in outcome.seen.members] == [None]
