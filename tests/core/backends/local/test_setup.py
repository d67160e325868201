"""What a member does before its command: it fetches the commit of a repository and installs packages, of real
servers on loopback.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
import sys
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any

import pytest

import allaboard
from allaboard.backends import packing
from allaboard.backends.base import Plan
from allaboard.backends.kubernetes.lifecycle.helper import helper_files
from allaboard.backends.local.backend import LocalBackend
from allaboard.backends.local.state.paths import RunFolder
from allaboard.backends.local.state.records import read_record
from allaboard.backends.packing import pack, with_archive
from allaboard.checking.job import check
from allaboard.diagnosis.unreachable import is_unreachable
from allaboard.errors import StorageUnreachable
from allaboard.job.helper import ARCHIVE
from allaboard.job.site import Site, place_on_cluster
from allaboard.render.pod_template import SETUP_FOLDER
from allaboard.runs.setup import TOKEN, prepared, setup_of
from tests.core.backends.local.git_server import Repository, _Quiet, answering, serving
from tests.core.inside.containers import python_of
from tests.core.s3server import s3_server
from tests.meta.source import ROOT

pytestmark = pytest.mark.skipif(shutil.which("git") is None, reason="git is not installed here")

SCRIPT = """
import os, sys
from allaboard.inside import result
from lib.version import VERSION
print("environment", dict(os.environ), flush=True)
result(version=VERSION, here=os.path.basename(os.getcwd()), arguments=sys.argv[1:])
"""
NOBODY = "http://127.0.0.1:9"
"""Nobody listens there."""
FILES = {"train.py": SCRIPT, "lib/__init__.py": "", "lib/version.py": "VERSION = 1\n"}
FAILS = {"lib/version.py": "raise SystemExit(7)\n"}


@pytest.fixture
def repository(tmp_path: Path) -> Repository:
    (tmp_path / "server").mkdir()
    return Repository(tmp_path / "server")


@pytest.fixture
def home(tmp_path: Path) -> LocalBackend:
    paths = [str(ROOT / ".venv/uv/bin"), os.environ["PATH"]]
    own = {"ALLABOARD_HOME": str(tmp_path / "home"), "ALLABOARD_POOL": str(tmp_path / "pool")}
    return LocalBackend({**os.environ, **own, "PATH": os.pathsep.join(reversed(paths))})


def a_job(tmp_path: Path, **fields: Any) -> allaboard.TrainingJob:
    job = {"name": "fetched", "command": ["python", "train.py", "$(ALLABOARD_MEMBER)", "$$x"], **fields}
    return allaboard.TrainingJob(folder=str(tmp_path), policy={"restart": "never"}, **job)


def spec_of(backend: LocalBackend, run: str) -> Any:
    record = read_record(RunFolder(backend.runs / run))
    assert record is not None
    return record.spec


def texts_below(folder: Path) -> Iterator[bytes]:
    for file in folder.rglob("*"):
        if file.is_file() and "secrets" not in file.parts:
            yield file.read_bytes()


# A repository.


def test_members_run_the_commit_that_a_branch_had_at_the_launch(
    repository: Repository, home: LocalBackend, tmp_path: Path
) -> None:
    first = repository.push(FILES)
    url = f"file://{repository.bare}"
    job = a_job(tmp_path, code={"git": url, "ref": "main"}, workers=2)
    outcome = allaboard.run(job, backend=home)
    assert outcome.ok, outcome.message
    assert outcome.metrics["version"] == 1 and outcome.metrics["here"] == f"code-{first[:12]}"
    assert outcome.metrics["arguments"] == ["master-0", "$x"]
    assert spec_of(home, outcome.run)["code"] == {"git": url, "ref": "main", "commit": first}


def test_a_run_keeps_its_commit_and_another_one_has_the_newest(
    repository: Repository, home: LocalBackend, tmp_path: Path
) -> None:
    first = repository.push({**FILES, **FAILS})
    job = a_job(tmp_path, code={"git": f"file://{repository.bare}"})
    assert not allaboard.run(job, backend=home, key="k").ok
    second = repository.push({"lib/version.py": "VERSION = 2\n"})
    again = allaboard.run(job, backend=home, key="k")
    assert not again.ok and again.seen.attempt == 2
    assert spec_of(home, again.run)["code"]["commit"] == first, "its own commit"
    other = allaboard.run(job, backend=home, key="other")
    assert other.ok and spec_of(home, other.run)["code"]["commit"] == second
    repository.push({"lib/version.py": "VERSION = 3\n"})
    anew = allaboard.run(job, backend=home, key="other")
    assert anew.ok and anew.metrics["version"] == 3, (
        "a result that was taken: a new generation, the newest commit"
    )


@pytest.mark.thorough(but=("side",))
@pytest.mark.parametrize("ref", ["v1", "v2", "side"])
def test_tags_and_branches_are_refs(
    repository: Repository, home: LocalBackend, tmp_path: Path, ref: str
) -> None:
    commit = repository.push(FILES, "tag v1", "tag -a v2 -m annotated", "push -q origin HEAD:refs/heads/side")
    repository.push({"lib/version.py": "VERSION = 2\n"})
    outcome = allaboard.run(
        a_job(tmp_path, code={"git": f"file://{repository.bare}", "ref": ref}), backend=home
    )
    assert outcome.ok and outcome.metrics["version"] == 1
    assert spec_of(home, outcome.run)["code"]["commit"] == commit


def test_a_password_is_in_no_log_no_record_and_no_environment(
    repository: Repository, home: LocalBackend, tmp_path: Path
) -> None:
    token = "tok-3f9a-very-secret"
    folder = tmp_path / "home/secrets/git"
    folder.mkdir(parents=True, mode=0o700)
    (folder / "token").touch(0o600)
    (folder / "token").write_text(f"{token}\n")
    commit = repository.push(FILES)
    with repository.smart(token) as url:
        job = a_job(tmp_path, code={"git": url, "ref": "main", "secret": "git"}, workers=2)
        outcome = allaboard.run(job, backend=home)
        assert outcome.ok, outcome.message
        assert spec_of(home, outcome.run)["code"]["commit"] == commit
        assert not any(
            token.encode() in text or b"ALLABOARD_CODE_TOKEN'" in text for text in texts_below(tmp_path)
        )
        (folder / "token").write_text("wrong-password-77\n")
        with pytest.raises(allaboard.BadInput, match=r"code\.git") as refused:
            allaboard.run(job, backend=home)
        assert "wrong-password-77" not in str(refused.value)
        shutil.rmtree(folder)
        with pytest.raises(allaboard.BadInput):
            allaboard.run(job.with_(code={**job.get("code"), "commit": commit}), backend=home)


def test_a_server_of_another_answer_is_refused_or_tried_again(home: LocalBackend, tmp_path: Path) -> None:
    """Where it does not answer, the same job may be launched later."""
    for status, error in ((503, StorageUnreachable), (429, StorageUnreachable), (403, allaboard.BadInput)):
        with answering(status) as address, pytest.raises(error, match=r"code\.git"):
            allaboard.run(a_job(tmp_path, code={"git": f"{address}/train.git"}), backend=home)
    with pytest.raises(StorageUnreachable, match="try again"):
        allaboard.run(a_job(tmp_path, code={"git": f"{NOBODY}/train.git"}), backend=home)
    assert home.list() == []


@pytest.mark.thorough(but=("502-code_host_unreachable",))
@pytest.mark.parametrize(
    ("status", "code"),
    [(None, "code_host_unreachable"), (502, "code_host_unreachable"), (404, "code_not_fetched")],
)
def test_a_repository_that_does_not_answer_a_member_is_asked_by_the_next_attempt(
    home: LocalBackend, tmp_path: Path, status: int | None, code: str
) -> None:
    with answering(status) if status is not None else nullcontext(NOBODY) as address:
        job = a_job(tmp_path, code={"git": f"{address}/train.git", "commit": "0" * 39 + "1"})
        outcome = allaboard.run(job, backend=home, key="k")
    first = outcome.diagnoses[0]
    assert (first.code, first.retryable) == (code, code == "code_host_unreachable"), outcome.message
    assert outcome.seen.attempt == (3 if first.retryable else 1)


@pytest.mark.parametrize(
    ("code", "told"),
    [
        ({"ref": "gone"}, r"code\.ref: .* has no branch and no tag 'gone'"),
        ({"git": "file:///nowhere/train.git"}, r"code\.git: .*cannot be read from here"),
    ],
)
def test_what_cannot_be_found_starts_nothing(
    repository: Repository, home: LocalBackend, tmp_path: Path, code: dict[str, str], told: str
) -> None:
    repository.push(FILES)
    job = a_job(tmp_path, code={"git": f"file://{repository.bare}", **code})
    with pytest.raises(allaboard.BadInput, match=told):
        allaboard.run(job, backend=home)
    assert home.list() == []


def test_a_commit_that_is_gone_is_told_as_that(
    repository: Repository, home: LocalBackend, tmp_path: Path
) -> None:
    repository.push(FILES)
    code = {"git": f"file://{repository.bare}", "commit": "0" * 39 + "1"}
    outcome = allaboard.run(a_job(tmp_path, code=code), backend=home)
    assert [d.code for d in outcome.diagnoses][:1] == ["code_not_fetched"]
    assert code["commit"] in outcome.diagnoses[0].summary


def start(
    setup: dict[str, Any], folder: Path, *command: str, python: str = sys.executable, **environ: str
) -> Any:
    """A member's start without allaboard around it."""
    _, *words = prepared(setup, str(folder), command)
    environment = {**os.environ, **environ}
    return subprocess.run([python, *words], capture_output=True, text=True, env=environment, check=False)


@pytest.mark.parametrize("server", ["dumb", "smart"])
def test_servers_of_each_kind(repository: Repository, tmp_path: Path, server: str) -> None:
    """Also for a commit that its branch no longer leads to."""
    first = repository.push(FILES, "tag kept")
    repository.push({"lib/version.py": "VERSION = 2\n"}, "commit -q --amend -m other")
    with getattr(repository, server)() as url:
        done = start({"git": url, "ref": "main", "commit": first}, tmp_path / "own", "cat", "lib/version.py")
    assert (done.returncode, done.stdout) == (0, "VERSION = 1\n"), done.stderr
    again = start({"git": url, "commit": first}, tmp_path / "own", "cat", "lib/version.py")
    assert again.stdout == "VERSION = 1\n", "what is there is used again, without its server"


def test_a_fetch_that_was_cut_off_is_done_again(repository: Repository, tmp_path: Path) -> None:
    commit = repository.push(FILES)
    left = tmp_path / f"own/code-{commit[:12]}"
    (left / ".git").mkdir(parents=True)
    (left / "train.py").write_text("half")
    done = start({"git": f"file://{repository.bare}", "commit": commit}, tmp_path / "own", "cat", "train.py")
    assert done.stdout == SCRIPT, done.stderr


def test_without_git_or_a_command_it_is_told(tmp_path: Path) -> None:
    setup = {"git": "file:///x", "commit": "1" * 40}
    done = start(setup, tmp_path / "own", "true", PATH=str(tmp_path))
    assert done.returncode == 1 and "git cannot be started here" in done.stderr
    done = start({"packages": []}, tmp_path / "own", "no-such-program")
    assert done.returncode == 127 and "no-such-program cannot be started" in done.stderr


# A packed folder.


def a_folder(place: Path) -> Path:
    for name, text in {**FILES, ".git/config": "x", "lib/__pycache__/a.pyc": "x"}.items():
        (place / name).parent.mkdir(parents=True, exist_ok=True)
        (place / name).write_text(text)
    (place / "go.sh").write_text("#!/bin/sh\nexec python train.py\n")
    (place / "go.sh").chmod(0o700)
    return place


def test_a_folder_is_packed_into_the_store_and_members_run_it(home: LocalBackend, tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "src")
    (folder / "large.bin").write_bytes(os.urandom(3 * 2**20))
    job = a_job(tmp_path, code={"folder": "src"}, command=["./go.sh"], workers=2)
    outcome = allaboard.run(job, backend=home)
    assert outcome.ok, outcome.message
    digest = spec_of(home, outcome.run)["code"]["digest"]
    assert outcome.metrics["here"] == f"code-{digest[:12]}"
    store = tmp_path / "home/store/code"
    assert [file.name for file in store.iterdir()] == [f"{digest}.tar.gz"]
    (folder / "lib/version.py").write_text("VERSION = 2\n")
    other = allaboard.run(job, backend=home)
    assert other.metrics["version"] == 2 and spec_of(home, other.run)["code"]["digest"] != digest
    assert len([*store.iterdir()]) == 2


def test_equal_folders_have_one_digest_whatever_else_lies_there(tmp_path: Path) -> None:
    one, two = a_folder(tmp_path / "one"), a_folder(tmp_path / "two")
    os.utime(two / "train.py", (1, 1))
    (two / ".git/HEAD").write_text("other")
    digests = {pack(folder, tmp_path / "a.tar.gz") for folder in (one, two)}
    assert len(digests) == 1
    with tarfile.open(tmp_path / "a.tar.gz") as tar:
        assert tar.getnames() == ["go.sh", "train.py", "lib/__init__.py", "lib/version.py"]
    (two / "go.sh").chmod(0o600)
    assert pack(two, tmp_path / "a.tar.gz") not in digests


def test_what_cannot_be_packed_is_told(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = a_folder(tmp_path / "src")
    with pytest.raises(allaboard.BadInput, match=r"code\.folder: .*is no folder"):
        pack(tmp_path / "gone", tmp_path / "a")
    monkeypatch.setattr(packing, "LARGEST", 10)
    with pytest.raises(allaboard.BadInput, match=r"put data into a data set"):
        pack(folder, tmp_path / "a")
    (folder / "link").symlink_to("/etc/passwd")
    with pytest.raises(allaboard.BadInput, match="leads out of the folder"):
        pack(folder, tmp_path / "a")


def test_other_bytes_than_were_packed_do_not_run(tmp_path: Path) -> None:
    (tmp_path / "a.tar.gz").write_bytes(b"other")
    done = start({"archive": str(tmp_path / "a.tar.gz"), "sha256": "0" * 64}, tmp_path / "own", "true")
    assert done.returncode == 1 and "holds other bytes than were packed" in done.stderr
    if (INSTALLERS / "python").exists():
        setup = {"archive": "s3://nowhere/a.tar.gz", "sha256": "0" * 64}
        done = start(setup, tmp_path / "own", "true", python=str(INSTALLERS / "python"), PYTHONPATH="")
        assert done.returncode == 1 and "this image has neither" in done.stderr
        assert "Traceback" not in done.stderr


@pytest.mark.thorough(but=("3.8",))
@pytest.mark.parametrize("version", [None, "3.8", "3.12"])
def test_a_bucket_is_a_store(tmp_path: Path, version: str | None) -> None:
    """With a version: of an image that has neither allaboard nor boto3, by the modules of the helper."""
    with s3_server() as server:
        site = Site(store=f"s3://{server.make_bucket()}/team")
        job = a_job(tmp_path, code={"folder": "src"})
        a_folder(tmp_path / "src")
        plan = with_archive(Plan(job, "k"), site, server.environ)
        digest = plan.job.get("code")["digest"]
        setup = setup_of(place_on_cluster(plan.job, site).as_mapping())
        assert setup["archive"] == f"{site.store}/code/{digest}.tar.gz"
        python = sys.executable if version is None else str(python_of(version) / "bin" / "python3")
        more = {"python": python, "PYTHONPATH": "", **server.environ}
        if version is not None:
            done = start(setup, tmp_path / "without", "true", **more)
            assert done.returncode == 1 and "is read by allaboard" in done.stderr, done.stderr
            (tmp_path / ARCHIVE).write_bytes(helper_files("exec", bucket=True)[ARCHIVE])
            setup["modules"] = str(tmp_path / ARCHIVE)
        done = start(setup, tmp_path / "own", "cat", "lib/version.py", **more)
        assert (done.returncode, done.stdout) == (0, "VERSION = 1\n"), done.stderr
        gone = {**setup, "archive": setup["archive"].replace("team", "other")}
        done = start(gone, tmp_path / "other", "true", **more)
    assert done.returncode == 1 and "the code cannot be fetched: s3://" in done.stderr, done.stderr
    assert not is_unreachable(done.stderr.splitlines()[-1])
    done = start(setup, tmp_path / "again", "true", **more)
    assert done.returncode == 1 and is_unreachable(done.stderr.splitlines()[-1]), done.stderr


# Packages.


def wheel(folder: Path, version: str) -> str:
    """A package of one module, as a wheel; its hash."""
    name = f"tiny-{version}-py3-none-any.whl"
    info = f"tiny-{version}.dist-info"
    (folder / "tiny").mkdir(parents=True, exist_ok=True)
    with zipfile.ZipFile(folder / "tiny" / name, "w") as file:
        file.writestr("tiny.py", f"VERSION = {version!r}\n")
        file.writestr(f"{info}/METADATA", f"Metadata-Version: 2.1\nName: tiny\nVersion: {version}\n")
        file.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        file.writestr(f"{info}/RECORD", "")
    return hashlib.sha256((folder / "tiny" / name).read_bytes()).hexdigest()


@contextmanager
def an_index(folder: Path, host: str = "127.0.0.1") -> Iterator[str]:
    files = sorted((folder / "tiny").glob("*.whl"))
    (folder / "tiny/index.html").write_text(
        "".join(f'<a href="{file.name}">{file.name}</a>' for file in files)
    )
    with serving(partial(_Quiet, directory=str(folder)), host) as address:
        yield address


INSTALLERS = ROOT / ".venv/uv/bin"
"""A Python with pip, and uv."""
needs_installers = pytest.mark.skipif(not (INSTALLERS / "uv").exists(), reason="make env brings pip and uv")
SAYS = ["python", "-c", "import tiny; print(tiny.VERSION)"]


def installing(installer: str) -> dict[str, str]:
    """Arguments of `start` for a Python that has this installer."""
    python = str(INSTALLERS / "python") if installer == "pip" else sys.executable
    return {"python": python, "PATH": f"{Path(python).parent}:{os.environ['PATH']}:{INSTALLERS}"}


@needs_installers
@pytest.mark.parametrize("installer", ["pip", "uv"])
def test_packages_of_an_index_are_installed_once(tmp_path: Path, installer: str) -> None:
    digest = wheel(tmp_path / "index", "1.2")
    wheel(tmp_path / "index", "1.3")
    more = installing(installer)
    with an_index(tmp_path / "index") as index:
        setup = {"packages": ["tiny<1.3"], "index": index}
        done = start(setup, tmp_path / "own", *SAYS, **more)
        assert (done.returncode, done.stdout) == (0, "1.2\n"), done.stderr
        locked = {"packages": [f"tiny==1.2 --hash=sha256:{digest}"], "index": index}
        done = start(locked, tmp_path / "own", *SAYS, **more)
        assert (done.returncode, done.stdout) == (0, "1.2\n"), done.stderr
        wrong = {"packages": [f"tiny==1.2 --hash=sha256:{'0' * 64}"], "index": index}
        done = start(wrong, tmp_path / "own", *SAYS, **more)
        assert done.returncode == 1 and "allaboard: the packages cannot be installed" in done.stderr
    again = start(setup, tmp_path / "own", *SAYS, **more)
    assert again.stdout == "1.2\n", "what is installed is used again, without the index"


@needs_installers
def test_a_run_with_packages_and_one_whose_packages_are_not_there(home: LocalBackend, tmp_path: Path) -> None:
    wheel(tmp_path / "index", "1.2")
    with an_index(tmp_path / "index") as index:
        script = "import tiny\nfrom allaboard.inside import result\nresult(version=tiny.VERSION)\n"
        (tmp_path / "train.py").write_text(script)
        packages = {"install": ["tiny"], "index": index}
        outcome = allaboard.run(a_job(tmp_path, packages=packages, workers=2), backend=home)
        assert outcome.ok and outcome.metrics == {"version": "1.2"}, outcome.message
        assert spec_of(home, outcome.run)["packages"] == packages
        failed = allaboard.run(
            a_job(tmp_path, packages={"install": ["tiny==9"], "index": index}), backend=home
        )
    assert [d.code for d in failed.diagnoses][:1] == ["packages_not_installed"], failed.message
    assert "tiny==9" in failed.diagnoses[0].summary


@needs_installers
@pytest.mark.parametrize("installer", [pytest.param("pip", marks=pytest.mark.thorough), "uv"])
@pytest.mark.parametrize(
    ("status", "code"),
    [
        pytest.param(None, "package_index_unreachable", marks=pytest.mark.thorough),
        pytest.param(503, "package_index_unreachable", marks=pytest.mark.thorough),
        (404, "packages_not_installed"),
    ],
)
def test_an_index_that_does_not_answer_may_answer_later(
    tmp_path: Path, installer: str, status: int | None, code: str
) -> None:
    """pip prints the same words of an index that is down as of one without the package."""
    with answering(status) if status is not None else nullcontext(NOBODY) as address:
        more = installing(installer)
        done = start({"packages": ["tiny"], "index": f"{address}/simple"}, tmp_path / "own", "true", **more)
    last = done.stderr.strip().splitlines()[-1]
    assert done.returncode == 1 and last.startswith("allaboard: the packages cannot be installed"), last
    assert is_unreachable(last) == (code == "package_index_unreachable"), last


def test_sessions_of_sshd_have_the_packages(tmp_path: Path) -> None:
    """sshd gives its sessions none of its own variables; here a script of its name stands for it."""
    sshd = tmp_path / "bin" / "sshd"
    sshd.parent.mkdir()
    sshd.write_text('#!/bin/sh\nprintf "%s\\n" "$@"\n')
    sshd.chmod(0o755)
    wheel(tmp_path / "index", "1.2")
    more = installing("uv")
    with an_index(tmp_path / "index") as index:
        setup = {"packages": ["tiny"], "index": index}
        done = start(setup, tmp_path / "own", str(sshd), "-De", **more)
    assert done.returncode == 0, done.stderr
    first, option, pairs = done.stdout.splitlines()
    assert (first, option) == ("-De", "-o") and pairs.startswith('SetEnv=PATH="')
    assert "packages-" in pairs and f'/bin:{more["PATH"]}"' in pairs and 'PYTHONPATH="' in pairs


def test_a_launcher_waits_until_its_workers_answer(tmp_path: Path) -> None:
    """A script stands for ssh, which is refused twice by the second host."""
    (tmp_path / "hosts").write_text("one.svc slots=2\ntwo.svc:4\n\n")
    ssh = tmp_path / "bin" / "ssh"
    ssh.parent.mkdir()
    ssh.write_text(
        f'#!/bin/sh\necho "$@" >> {tmp_path}/asked\n'
        f'case "$*" in *two.svc*) [ $(grep -c two {tmp_path}/asked) -ge 3 ];; esac\n'
    )
    ssh.chmod(0o755)
    (tmp_path / "a.tar.gz").write_bytes(b"")
    setup = {"packages": [], "hostfile": str(tmp_path / "hosts")}
    done = start(setup, tmp_path / "own", "echo", "started", PATH=f"{ssh.parent}:{os.environ['PATH']}")
    assert done.stdout == "started\n", done.stderr
    asked = [line.split()[-2:] for line in (tmp_path / "asked").read_text().splitlines()]
    assert asked == [["one.svc", "true"]] + [["two.svc", "true"]] * 3


@needs_installers
@pytest.mark.skipif(shutil.which("mpirun") is None, reason="mpirun is not installed here")
def test_ranks_of_mpi_on_one_machine(repository: Repository, home: LocalBackend, tmp_path: Path) -> None:
    script = (
        "import os, tiny\nfrom lib.version import VERSION\nfrom allaboard.inside import report\n"
        "rank = int(os.environ['OMPI_COMM_WORLD_RANK'])\nreport(VERSION + rank, loss=float(tiny.VERSION))\n"
    )
    repository.push({**FILES, "train.py": script})
    wheel(tmp_path / "index", "1.2")
    with an_index(tmp_path / "index") as index:
        job = a_job(
            tmp_path,
            framework="mpi",
            engine="mpijob",
            workers=2,
            command=["mpirun", "--allow-run-as-root", "--oversubscribe", "python", "train.py"],
            code={"git": f"file://{repository.bare}"},
            packages={"install": ["tiny"], "index": index},
        )
        outcome = allaboard.run(job, backend=home)
    assert outcome.ok, outcome.message
    assert outcome.seen.progress.metrics == {"loss": 1.2}


# Fields.

URL = "https://git.lab/train.git"


@pytest.mark.parametrize(
    ("fields", "path"),
    [
        ({"code": {"ref": "main"}}, "code"),
        ({"code": {"git": URL, "folder": "src"}}, "code"),
        ({"code": {"git": URL, "store": "store://x"}}, "code.store"),
        ({"code": {"folder": "src", "secret": "x"}}, "code.secret"),
        ({"code": {"folder": "../src"}}, "code.folder"),
        ({"code": {"folder": "src", "digest": "abc"}}, "code.digest"),
        ({"code": {"git": "https://me:pass@git.lab/x"}}, "code.git"),
        ({"code": {"git": "ext::sh -c touch% x"}}, "code.git"),
        ({"code": {"git": "--upload-pack=touch x"}}, "code.git"),
        ({"code": {"git": "/srv/train.git"}}, "code.git"),
        ({"code": {"git": "https://git.lab/a b"}}, "code.git"),
        ({"code": {"git": URL, "ref": "--force"}}, "code.ref"),
        ({"code": {"git": URL, "ref": "a..b"}}, "code.ref"),
        ({"code": {"git": URL, "commit": "abc123"}}, "code.commit"),
        ({"code": {"git": URL, "branch": "main"}}, "code.branch"),
        ({"code": {"git": "git@git.lab:x.git", "secret": "t"}}, "code.secret"),
        ({"code": {"git": URL}, "framework": "mpi", "workers": 2, "engine": "mpijob-v1"}, "code"),
        ({"packages": ["einops"], "framework": "mpi", "workers": 2, "engine": "mpijob-v1"}, "packages"),
        ({"code": {"git": URL}, "command": None, "args": []}, "code"),
        ({"packages": []}, "packages"),
        ({"packages": ["-r other.txt"]}, "packages[0]"),
        ({"packages": ["einops --index-url http://evil"]}, "packages[0]"),
        ({"packages": ["einops\n--index-url http://evil"]}, "packages[0]"),
        ({"packages": ["x @ https://me:pass@lab/x.whl"]}, "packages[0]"),
        ({"packages": {"index": "https://pypi.lab"}}, "packages.install"),
        ({"packages": {"install": ["a"], "index": "https://u:p@pypi.lab"}}, "packages.index"),
        ({"packages": {"install": ["a"], "index": "file:///x"}}, "packages.index"),
    ],
)
def test_fields_that_are_wrong(fields: dict[str, Any], path: str) -> None:
    job = {"name": "a", "command": ["mpirun", "python", "t.py"], **fields}
    problems = [p for p in check({k: v for k, v in job.items() if v is not None}) if p.severity == "error"]
    assert [p.path for p in problems] == [path], problems
    assert not any("pass" in str(p) and "me:pass" in str(p) for p in problems)


@pytest.mark.parametrize(
    "fields",
    [
        {"code": {"git": "git@git.lab:team/train.git", "ref": "feature/a-1"}},
        {"code": {"git": "ssh://git@git.lab:2222/train.git", "commit": "0" * 40}},
        {"code": {"git": "https://user@git.lab/train.git"}},
        {
            "code": {"git": URL},
            "framework": "mpi",
            "groups": {"launcher": {"replicas": 1, "command": ["mpirun", "python", "t.py"]}, "worker": 2},
        },
        {"packages": ["torch==2.4.0+cu121", "x[y]>=1; python_version < '4'", "./dist/mine.whl"]},
        {"packages": ["x @ https://lab/x.whl", f"a==1 --hash=sha256:{'0' * 64} --hash=sha256:{'1' * 64}"]},
    ],
)
def test_fields_that_are_right(fields: dict[str, Any]) -> None:
    command = {} if "groups" in fields else {"command": ["python", "t.py"]}
    assert check({"name": "a", **command, **fields}) == []


# On a cluster.


def test_a_pod_prepares_the_same_and_names_the_password_by_reference() -> None:
    from allaboard.engines import engine_of
    from allaboard.render.cluster_facts import ClusterFacts
    from allaboard.render.pod_template import pod_template
    from allaboard.runs.layout import lay_out

    code = {"git": URL, "commit": "1" * 40, "secret": "git"}
    job = allaboard.TrainingJob(
        name="a",
        image="x",
        command=["torchrun", "$(ALLABOARD_RUN)"],
        args=["$$y"],
        code=code,
        packages=["einops"],
    )
    layout = lay_out(job, engine_of(job), "a-1")
    made = pod_template(
        job, layout, layout.groups[0], ClusterFacts(), engine_of(job), metadata={"labels": {}}
    )
    (container,) = made["spec"]["containers"]
    command = container["command"]
    assert command[:2] == ["python", "-c"] and command[4:] == ["torchrun", "$(ALLABOARD_RUN)", "$$y"]
    assert "args" not in container and "$" not in command[2].replace("$$", "")
    given = json.loads(command[3])
    assert (given["folder"], given["commit"], given["packages"]) == (SETUP_FOLDER, "1" * 40, ["einops"])
    (token,) = [entry for entry in container["env"] if entry["name"] == TOKEN]
    assert token["valueFrom"] == {"secretKeyRef": {"name": "git", "key": "token"}}
    assert {"name": "setup", "mountPath": SETUP_FOLDER} in container["volumeMounts"]
    assert {"name": "setup", "emptyDir": {}} in made["spec"]["volumes"]


@pytest.mark.parametrize("engine", ["mpijob", "jobset", "trainjob"])
def test_members_of_mpi_prepare_alike_and_the_launcher_waits_for_its_workers(engine: str) -> None:
    from tests.core.render.test_helper import rendered

    command = ["mpirun", "python", "train.py"]
    code = {"git": URL, "commit": "1" * 40}
    fields = {"engine": engine, "framework": "mpi", "command": command, "args": []}
    found = rendered(**fields, code=code, packages=["einops"])
    prepares = {words[-1]: words for words in _commands([*found.manifests]) if "-c" in words}
    launcher, worker = prepares["train.py"], prepares["-De"]
    assert launcher[-3:] == command and worker[-2:] == ["/usr/sbin/sshd", "-De"]
    given = [json.loads(next(w for w in words if w.startswith('{"'))) for words in (launcher, worker)]
    assert given[0].pop("hostfile") == "/etc/mpi/hostfile" and given[0] == given[1]


def _commands(value: Any) -> Iterator[list[str]]:
    """Every command in an object."""
    if isinstance(value, dict):
        for name, item in value.items():
            if name == "command" and isinstance(item, list):
                yield item
            else:
                yield from _commands(item)
    for item in value if isinstance(value, list) else ():
        yield from _commands(item)


def test_the_record_on_a_cluster_has_the_commit(repository: Repository, tmp_path: Path) -> None:
    from allaboard.render.cluster_facts import ClusterFacts
    from allaboard.runs.observation import Owner
    from allaboard.testing.cluster import FakeCluster

    commit = repository.push(FILES)
    cluster = FakeCluster()
    backend = cluster.backend(facts=ClusterFacts(image="x"))
    job = a_job(tmp_path, code={"git": f"file://{repository.bare}", "ref": "main"})
    handle = backend.launch(Plan(job, "k"), Owner("me"))
    assert backend.started_with(handle.run).spec["code"]["commit"] == commit
    repository.push({"lib/version.py": "VERSION = 2\n"})
    again = backend.launch(Plan(job, "k"), Owner("me"))
    assert again.adopted, "a live run is the same job, whatever was pushed since"
