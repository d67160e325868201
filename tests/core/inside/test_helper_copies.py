"""``checkpoints: {uri: s3://..., folder: out}`` in the containers of members, as real processes of images
without boto3 on a real S3 server: what is copied while it trains and at its end, and what a start on another
node gets.
"""

from __future__ import annotations

import io
import os
import random
import shutil
import signal
import subprocess
import sys
import threading
import time
import zipfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from allaboard.checkpoints import list_checkpoints, verify
from allaboard.inside.helper import keep
from allaboard.storage import Store, open_store
from allaboard.text.reportline import decode
from tests.core.checkpoints.foreign.test_samples import SAMPLES
from tests.core.cli.terminal import wait_for
from tests.core.cli.test_checkpoints_folder_killed import newest_in, now_and_then, watched
from tests.core.inside.containers import VERSIONS, boxed, environment, mounted, python_of, started_by
from tests.core.inside.test_helper_checkpoints import (
    COMMAND,
    RUN,
    SAVES,
    SHUTS_DOWN,
    TRAINS,
    run,
    start,
    variables,
)
from tests.core.s3server import Proxy, S3Server, between, environ_for, free_port

pytestmark = [
    pytest.mark.skipif(sys.platform != "linux", reason="members on a cluster are of Linux"),
    pytest.mark.slow,
]


@pytest.fixture(params=VERSIONS)
def python(request: pytest.FixtureRequest) -> Path:
    return python_of(request.param)


@pytest.fixture(scope="session")
def old_python() -> Path:
    return python_of("3.8")


@pytest.fixture
def helper(tmp_path: Path) -> Path:
    """A node on which a pod starts: its disk is this folder."""
    return a_node(tmp_path / "node")


def a_node(folder: Path) -> Path:
    folder.mkdir()
    shutil.copytree(SAMPLES / "hugging_face_trainer" / "checkpoint-4", folder / "sample")
    (folder / "out").mkdir()
    (folder / "train.py").write_text(TRAINS)
    return mounted(folder, checkpoints=True, copies=True)


@pytest.fixture
def uri(moto: S3Server) -> str:
    return f"s3://{moto.make_bucket()}/digits/{RUN}"


def pod(
    helper: Path,
    uri: str,
    server: dict[str, str],
    python: Path | None = None,
    member: str = "master-0",
    **more: str,
) -> dict[str, str]:
    """The variables of a pod on this node."""
    own = variables(helper.parent, member, ALLABOARD_HELP_COPIES=uri, ALLABOARD_CHECKPOINT_KEEP="3", **more)
    return environment(python, **own, **server)


def copied(uri: str, moto: S3Server) -> list[int]:
    store = open_store(uri, environ=moto.environ)
    steps = [item.step for item in list_checkpoints(store)]
    assert all(verify(store, step) == [] for step in steps)
    return steps


@pytest.mark.thorough(but=("3.8",))
def test_a_pod_on_another_node_goes_on_from_the_bucket(
    python: Path, helper: Path, uri: str, moto: S3Server, tmp_path: Path
) -> None:
    code, out, errors = run(helper, COMMAND, pod(helper, uri, moto.environ, python))
    assert code == 0 and "argv [] from None\n" in out, errors
    assert copied(uri, moto) == [2]
    [report] = [report for line in out.splitlines() if (report := decode(line)) is not None]
    assert (report.kind, report.fields["uri"]) == ("checkpoint", f"{uri}/step-000000000002")
    assert moto.environ["AWS_SECRET_ACCESS_KEY"] not in out + errors

    other = a_node(tmp_path / "other")
    code, out, errors = run(other, COMMAND, pod(other, uri, moto.environ, python))
    newest = f"{other.parent}/out/checkpoint-2"
    assert code == 0 and f"argv ['--resume', '{newest}'] from None\n" in out, out + errors
    assert f"allaboard: step 2 of {uri} is in {newest} now\n" in out
    assert f"allaboard: goes on from {newest} (step 2)\n" in out
    assert copied(uri, moto) == [2, 4]
    assert tree(other.parent / "out" / "checkpoint-2") == tree(helper.parent / "out" / "checkpoint-2")


def tree(folder: Path) -> dict[str, bytes]:
    return {path.name: path.read_bytes() for path in folder.iterdir()}


def test_torn_in_the_folder_and_half_copied_in_the_bucket(
    old_python: Path, helper: Path, uri: str, moto: S3Server, tmp_path: Path
) -> None:
    for _ in range(2):
        assert run(helper, COMMAND, pod(helper, uri, moto.environ, old_python))[0] == 0
    assert copied(uri, moto) == [2, 4]
    store = open_store(uri, environ=moto.environ)
    store.write("step-000000000006/model.safetensors", b"the first part of a copy")
    part = next(entry.key for entry in store.entries("step-000000000004") if entry.key.endswith(".pt"))
    store.write(part, b"cut")
    other = a_node(tmp_path / "other")
    (other.parent / "out" / "checkpoint-8").mkdir()
    (other.parent / "out" / "checkpoint-8" / "optimizer.pt").write_bytes(b"torn")
    began = other.parent / "out" / RUN / "starts" / "began"
    began.parent.mkdir(parents=True)
    began.touch()
    os.utime(began, (0, 0))
    code, out, errors = run(other, COMMAND, pod(other, uri, moto.environ, old_python))
    assert code == 0 and f"argv ['--resume', '{other.parent}/out/checkpoint-2']" in out, out + errors
    assert "checkpoint-8.torn" in out and "step 4 of" in out and "was passed over" in out
    assert copied(uri, moto) == [2, 4], "the damaged copy was replaced by the new step 4"


@pytest.mark.thorough
def test_all_members_start_with_the_copy_that_rank_0_chose(
    old_python: Path, helper: Path, uri: str, moto: S3Server, tmp_path: Path
) -> None:
    """Each on a node of its own. One wrote a random state, as the ranks of a library do, and one has a
    checkpoint of its own that nobody else has.
    """
    assert run(helper, COMMAND, pod(helper, uri, moto.environ, old_python))[0] == 0
    workers = [a_node(tmp_path / name) for name in ("worker-0", "worker-1")]
    shows = ["echo", "{checkpoint}"]
    (workers[0].parent / "out" / "checkpoint-2").mkdir()
    (workers[0].parent / "out" / "checkpoint-2" / "rng_state_1.pth").write_bytes(b"x")
    (workers[1].parent / "save.py").write_text(f"{SAVES}\nsave('out', 6)")
    subprocess.run([sys.executable, "save.py"], cwd=workers[1].parent, check=True)
    for worker in workers:
        began = worker.parent / "out" / RUN / "starts" / "began"
        began.parent.mkdir(parents=True)
        began.touch()
        os.utime(began, (0, 0))
    second = {"ALLABOARD_ATTEMPT": "2"}
    waiting = [
        start(
            worker,
            shows,
            pod(worker, uri, moto.environ, old_python, worker.parent.name, **second),
        )
        for worker in workers
    ]
    time.sleep(3)
    assert [process.poll() for process in waiting] == [None, None], "they wait for rank 0"
    master = a_node(tmp_path / "master")
    out = run(master, shows, pod(master, uri, moto.environ, old_python, ALLABOARD_ATTEMPT="2"))[1]
    assert f"{master.parent}/out/checkpoint-2\n" in out
    for worker, process in zip(workers, waiting, strict=True):
        text, errors = process.communicate(timeout=60)
        assert text.splitlines()[-1] == f"{worker.parent}/out/checkpoint-2", text + errors
        assert (worker.parent / "out" / "checkpoint-2" / "trainer_state.json").exists()
    assert (workers[0].parent / "out" / "checkpoint-2.torn" / "rng_state_1.pth").exists()
    assert (workers[1].parent / "out" / "checkpoint-6.torn").exists()


@pytest.mark.thorough
def test_members_who_see_one_folder_get_the_same_of_it(
    old_python: Path, helper: Path, uri: str, moto: S3Server
) -> None:
    more = {"ALLABOARD_HELP_SHARED": "on"}
    assert run(helper, COMMAND, pod(helper, uri, moto.environ, old_python, **more))[0] == 0
    shutil.rmtree(helper.parent / "out")
    (helper.parent / "out").mkdir()
    more["ALLABOARD_ATTEMPT"] = "2"
    shows = ["echo", "{checkpoint}"]
    early = start(helper, shows, pod(helper, uri, moto.environ, old_python, "worker-0", **more))
    time.sleep(1)
    newest = f"{helper.parent}/out/checkpoint-2\n"
    assert newest in run(helper, shows, pod(helper, uri, moto.environ, old_python, **more))[1]
    assert early.communicate(timeout=60)[0] == newest
    assert not [e.key for e in open_store(uri, environ=moto.environ).entries("starts")]


def test_a_pod_that_has_to_go_while_it_fetches_goes_at_once(
    old_python: Path, helper: Path, uri: str, moto: S3Server
) -> None:
    with between(moto, lambda _: "hang") as proxy:
        process = start(helper, COMMAND, pod(helper, uri, proxy.environ, old_python))
        wait_for(lambda: proxy.requests)
        process.terminate()
        out, errors = process.communicate(timeout=10)
    assert process.returncode == 143 and "argv" not in out, out + errors
    assert not [*pids_of(helper.parent)]


@pytest.mark.thorough
@pytest.mark.parametrize(("has_boto3", "agent"), [(True, "Boto"), (False, "allaboard")])
def test_boto3_of_the_image_is_used_where_it_has_one(
    old_python: Path, helper: Path, uri: str, moto: S3Server, has_boto3: bool, agent: str
) -> None:
    with between(moto, lambda _: None) as proxy:
        python = None if has_boto3 else old_python
        assert run(helper, COMMAND, pod(helper, uri, proxy.environ, python))[0] == 0
    assert copied(uri, moto) == [2]
    assert all(request.headers["User-Agent"].startswith(agent) for request in proxy.requests)


@pytest.mark.thorough(but=("3.8",))
def test_what_it_saves_at_sigterm_is_in_the_bucket(
    python: Path, helper: Path, uri: str, moto: S3Server
) -> None:
    (helper.parent / "train.py").write_text(SHUTS_DOWN)
    process = start(helper, ["python3", "train.py"], pod(helper, uri, moto.environ, python))
    assert process.stdout is not None and process.stdout.readline().startswith("trains")
    os.kill(process.pid, signal.SIGTERM)
    out, errors = process.communicate(timeout=60)
    assert process.returncode == 143, errors
    assert copied(uri, moto) == [8], "the newest alone: the grace period is short"
    assert f"copies to {uri} fall behind the training: no copy of step 2" in out


@pytest.mark.thorough
def test_a_copy_with_other_bytes_is_passed_over(
    old_python: Path, helper: Path, uri: str, moto: S3Server, tmp_path: Path
) -> None:
    for _ in range(2):
        assert run(helper, COMMAND, pod(helper, uri, moto.environ, old_python))[0] == 0
    store = open_store(uri, environ=moto.environ)
    part = next(entry for entry in store.entries("step-000000000004") if entry.key.endswith(".pt"))
    store.write(part.key, b"x" * part.size)
    other = a_node(tmp_path / "other")
    code, out, errors = run(other, ["echo", "{checkpoint}"], pod(other, uri, moto.environ, old_python))
    assert code == 0 and f"{other.parent}/out/checkpoint-2\n" in out, errors
    assert "step 4 of" in out and "sha256 differs" in out


def test_as_pid_1_of_any_user_on_a_read_only_root(python: Path, helper: Path, tmp_path: Path) -> None:
    """Its disk can be written to below one mount alone; the copies go to another folder."""
    folder = helper.parent
    (folder / "out").chmod(0o777)
    (folder / "copies").mkdir()
    (folder / "copies").chmod(0o777)
    own = variables(Path("/mnt/work"), ALLABOARD_HELP_COPIES=f"/mnt/work/copies/{RUN}")
    command = started_by(Path("/mnt/work/helper"), COMMAND)
    done = boxed(python, folder, command, environment(python, **own))
    assert done.returncode == 0, done.stderr
    assert [item.step for item in list_checkpoints(open_store(folder / "copies" / RUN))] == [2]


@pytest.mark.thorough
def test_a_bucket_that_does_not_answer_ends_no_training_and_is_told(
    old_python: Path, helper: Path, uri: str
) -> None:
    source = quick(helper)
    more = {"ALLABOARD_HELP_CHECKPOINTS": "adopt", "AWS_MAX_ATTEMPTS": "1"}
    dead = environ_for(f"http://127.0.0.1:{free_port()}")
    code, out, errors = run(source, ["python3", "train.py"], pod(helper, uri, dead, old_python, **more))
    assert code == 0 and "argv []" in out, out + errors
    assert "has a newer checkpoint is not known" in out and "Could not connect" in out
    assert out.count("the newest checkpoint is not copied") == 1, "once"
    flags = [r.fields["code"] for line in out.splitlines() if (r := decode(line)) and r.kind == "flag"]
    assert flags == ["checkpoints_not_copied"]


def quick(helper: Path) -> Path:
    """The helper, of less patience: nobody waits minutes for a test."""
    for path in (helper, helper / keep.ARCHIVE, helper / "keep.py"):
        path.chmod(0o755)
    archive = zipfile.ZipFile(helper / keep.ARCHIVE)
    patience = b"PATIENCE_FOR_BUCKET, AGAIN = "
    main = archive.read("__main__.py").replace(patience + b"300.0, 5.0", patience + b"1.0, 0.5")
    made = io.BytesIO()
    with zipfile.ZipFile(made, "w") as other:
        for name in archive.namelist():
            other.writestr(name, main if name == "__main__.py" else archive.read(name))
    (helper / keep.ARCHIVE).write_bytes(made.getvalue())
    text = (helper / "keep.py").read_text()
    pauses = "FIRST_PAUSE, LONGEST_PAUSE = "
    (helper / "keep.py").write_text(
        text.replace(f"{pauses}5.0, 300.0", f"{pauses}0.5, 1.0").replace("EVERY = 15.0", "EVERY = 0.5")
    )
    return helper


# Kills.


#: Saves a checkpoint of its own bytes every 0.3 s, beginning with the one that it is given.
ON_AND_ON = f"""{SAVES}
import time
step = int(sys.argv[-1].rpartition("-")[2]) if "--resume" in sys.argv else 0
print("from", step, flush=True)
while True:
    step += 1
    save("out", step)
    time.sleep(0.3)
"""


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.parametrize("seed", range(6))
def test_whoever_is_killed_the_bucket_has_whole_checkpoints_alone(
    old_python: Path, uri: str, moto: S3Server, tmp_path: Path, seed: int
) -> None:
    """The process that copies is killed at random requests, then the whole pod; the next is on a new node."""
    chance = random.Random(seed)
    store = open_store(uri, environ=moto.environ)
    with between(moto, now_and_then) as proxy, watched(store) as torn:
        for number in range(3):
            node = quick(a_node(tmp_path / f"node-{number}"))
            (node.parent / "train.py").write_text(ON_AND_ON)
            run_until_killed(node, pod(node, uri, proxy.environ, old_python), store, proxy, chance)
            assert all(verify(store, item.step) == [] for item in list_checkpoints(store))
    assert torn == []


def run_until_killed(
    node: Path, environ: dict[str, str], store: Store, proxy: Proxy, chance: random.Random
) -> None:
    """A pod that goes on from the bucket, whose copier is killed, that copies, and is lost with its node."""
    newest = newest_in(store)
    process = start(node, COMMAND, environ)
    assert process.stdout is not None and process.stderr is not None
    try:
        began = next(line for line in process.stdout if line.startswith("from "))
        assert int(began.split()[1]) >= newest, began
        threading.Thread(target=process.stdout.read, daemon=True).start()
        for _ in range(chance.randint(1, 3)):
            kill_copier(node.parent, proxy, len(proxy.requests) + chance.randint(0, 25))
        before = newest_in(store)
        wait_for(lambda: newest_in(store) > before)
        time.sleep(chance.random())
    finally:
        kill_all(node.parent)
        process.wait()
        process.stdout.close()
        process.stderr.close()


def kill_copier(folder: Path, proxy: Proxy, at: int) -> None:
    """Kill the process that copies from a node, once the server was asked so often."""
    wait_for(lambda: len(proxy.requests) >= at)
    with suppress(ProcessLookupError):
        os.kill(wait_for(lambda: copier_of(folder)), signal.SIGKILL)


def copier_of(folder: Path) -> int | None:
    return next((pid for pid in pids_of(folder) if b"\0adopt" in command_line(pid)), None)


def kill_all(folder: Path) -> None:
    """End all processes of a node at once, as a lost machine does."""
    while pids := [*pids_of(folder)]:
        for pid in pids:
            with suppress(ProcessLookupError):
                os.kill(pid, signal.SIGKILL)
        time.sleep(0.05)


def pids_of(folder: Path) -> Iterator[int]:
    """The live processes that were started in a folder."""
    for path in Path("/proc").glob("[0-9]*"):
        with suppress(OSError):
            if (path / "cwd").readlink() == folder and command_line(int(path.name)):
                yield int(path.name)


def command_line(pid: int) -> bytes:
    with suppress(OSError):
        return Path(f"/proc/{pid}/cmdline").read_bytes()
    return b""
