"""A script that knows folders alone, with ``checkpoints: {uri: s3://..., folder: out}``, as real processes on
a real S3 server. Deleting the folder stands for another node.
"""

from __future__ import annotations

import json
import shutil
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from allaboard.checkpoints import list_checkpoints, verify
from allaboard.storage import Store, open_store
from tests.core.checkpoints.foreign.test_samples import SAMPLES
from tests.core.cli.terminal import Terminal, wait_for
from tests.core.s3server import S3Server, between

pytestmark = pytest.mark.slow

#: Saves as Hugging Face's Trainer does and resumes from the highest number, as `get_last_checkpoint` does.
#: Each checkpoint is of its own bytes. Stops to train at the step that the file "until" says.
TRAINS = """
import json, os, re, sys, time
names = os.listdir("out") if os.path.isdir("out") else []
steps = [int(name[11:]) for name in names if re.fullmatch(r"checkpoint-\\d+", name)]
begin = max(steps, default=0)
with open("begun.jsonl", "a") as file:
    file.write(json.dumps({"from": begin, "argv": sys.argv[1:]}) + "\\n")
if begin:
    json.load(open(f"out/checkpoint-{begin}/trainer_state.json"))
print("ready", flush=True)
total, pause = int(os.environ.get("TOTAL", "8")), float(os.environ.get("PAUSE", "0"))
for step in range(begin + 2, total + 1, 2):
    into = f"out/checkpoint-{step}"
    os.makedirs(into)
    for name in sorted(os.listdir("sample"), key=lambda name: name == "trainer_state.json"):
        text = open(f"sample/{name}", "rb").read()
        if name == "trainer_state.json":
            text = text.replace(b'step": 4', b'step": %d' % step)
        with open(f"{into}/{name}", "wb") as file:
            file.write(text[: len(text) // 2])
            time.sleep(pause / 20)
            file.write(text[len(text) // 2 :])
        if name == "trainer_state.json" and step == int(os.environ.get("DIES", "0")) and begin < step - 2:
            os.kill(os.getpid(), 9)
    time.sleep(pause)
"""


@pytest.fixture
def knows_folders(ab: Terminal, moto: S3Server) -> Terminal:
    shutil.copytree(SAMPLES / "hugging_face_trainer" / "checkpoint-4", ab.folder / "sample")
    (ab.folder / "train.py").write_text(TRAINS)
    ab.environ.update(moto.environ)
    return ab


@pytest.fixture
def uri(moto: S3Server) -> str:
    return f"s3://{moto.make_bucket()}/digits"


def a_job(ab: Terminal, uri: str, saving: dict[str, Any] | None = None, **fields: Any) -> str:
    job = {
        "command": ["python", "train.py"],
        "checkpoints": {"uri": uri, "folder": "out", **(saving or {})},
        "policy": {"restart": "never", "attempts": 1},
        **fields,
    }
    return ab.job("", "job.json", **job)


def begun(ab: Terminal) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ab.folder / "begun.jsonl").read_text().splitlines()]


def in_bucket(uri: str, run: str, environ: dict[str, str]) -> Store:
    return open_store(f"{uri}/{run}", environ=environ)


def events(ab: Terminal) -> list[str]:
    return [event["reason"] for event in ab("events", "digits", "--json").json["events"]]


def test_every_command_knows_the_copies(knows_folders: Terminal, uri: str) -> None:
    ab = knows_folders
    said = ab("run", a_job(ab, uri), "--json")
    assert said.code == 0, said.text
    run = said.json["run"]
    assert said.json["checkpoints"]["latest"] == f"{uri}/{run}/step-000000000008"
    assert said.json["flags"] == []
    listed = ab("checkpoints", "list", "digits", "--json").json["checkpoints"]
    assert [item["step"] for item in listed][-1] == 8 and listed[-1]["files"] == listed[-1]["uri"]
    assert ab("checkpoints", "verify", "digits").code == 0
    copy = ab("checkpoints", "collect", "digits", "models", "--json").json
    assert copy["run"] == run and copy["step"] == 8 and copy["flags"] == []
    page = ab("report", "digits", "--json")
    assert "step-000000000008" in (ab.folder / page.json["page"]).read_text()
    promoted = ab("promote", copy["uri"], "--into", "champions", "--metric", "eval_loss", "--json")
    assert promoted.json["promoted"] and promoted.json["champion"]["step"] == 8


@pytest.mark.thorough
def test_adopt_says_what_the_folder_and_the_copies_hold(knows_folders: Terminal, uri: str) -> None:
    """Of a run by its name: the folder of its job is where its script saves."""
    ab = knows_folders
    said = ab("run", a_job(ab, uri, environment={"PAUSE": "0.2"}), "--json")
    assert said.code == 0, said.text
    run = said.json["run"]
    store = in_bucket(uri, run, ab.environ)
    steps = [item.step for item in list_checkpoints(store)]
    said = ab("checkpoints", "adopt", "digits")
    assert said.code == 0, said.text
    assert "8 had a manifest already" in said.out
    assert f"{uri}/{run} has copies of step" in said.out and f"{steps[-1]}, each with all" in said.out
    shutil.rmtree(ab.folder / "out" / run)  # the manifests, of a supervisor that was killed
    [entry] = [e for e in store.entries("step-000000000008") if e.key.endswith("optimizer.pt")]
    store.delete([entry.key])
    said = ab("checkpoints", "adopt", "digits", "--json")
    assert said.code == 2, said.text
    assert [item["step"] for item in said.json["adopted"]] == [2, 4, 6, 8]
    assert {item["run"] for item in said.json["adopted"]} == {run}
    torn = {copy["step"]: copy["problems"] for copy in said.json["copies"]}
    assert "optimizer.pt" in torn[8][0] and not any(torn[step] for step in steps if step < 8)
    assert "step 8 has no whole copy" in ab("checkpoints", "adopt", "digits").out
    shutil.rmtree(ab.folder / "out")  # as on another machine
    said = ab("checkpoints", "adopt", "digits", "--json")
    assert said.json["adopted"] == [] == said.json["known"] and len(said.json["copies"]) == len(steps)


@pytest.mark.thorough
def test_on_another_node_the_next_attempt_goes_on_from_the_bucket(knows_folders: Terminal, uri: str) -> None:
    ab = knows_folders
    command = ["python", "train.py", "--resume", "{checkpoint}"]
    job = a_job(ab, uri, command=command, environment={"DIES": "6", "PAUSE": "0.2"})
    assert ab("run", job, "--key", "nightly").code == 1
    shutil.rmtree(ab.folder / "out")
    said = ab("run", job, "--key", "nightly", "--json")
    assert said.code == 0, said.text
    newest = str(ab.folder / "out" / "checkpoint-6")
    assert begun(ab) == [{"from": 0, "argv": []}, {"from": 6, "argv": ["--resume", newest]}]
    assert "CheckpointFetched" in events(ab)
    store = in_bucket(uri, said.json["run"], ab.environ)
    assert list_checkpoints(store)[-1].step == 8 and verify(store, 8) == []


@pytest.mark.thorough
def test_with_all_of_the_machine_lost_the_same_key_goes_on_from_the_bucket(
    knows_folders: Terminal, uri: str, tmp_path: Path
) -> None:
    ab = knows_folders
    job = a_job(ab, uri, environment={"DIES": "4", "PAUSE": "0.2"})
    assert ab("run", job, "--key", "nightly").code == 1
    shutil.rmtree(ab.folder / "out")
    ab.environ["ALLABOARD_HOME"] = str(tmp_path / "another-home")
    assert ab("run", job, "--key", "nightly").code == 0
    assert begun(ab)[-1]["from"] == 4


@pytest.mark.thorough
def test_a_torn_one_is_moved_aside_and_the_bucket_has_the_newest(knows_folders: Terminal, uri: str) -> None:
    ab = knows_folders
    job = a_job(ab, uri, environment={"DIES": "6", "PAUSE": "0.2"})
    assert ab("run", job, "--key", "nightly").code == 1
    (ab.folder / "out" / "checkpoint-6" / "optimizer.pt").unlink()
    assert ab("run", job, "--key", "nightly").code == 0
    assert begun(ab)[-1]["from"] == 6 and (ab.folder / "out" / "checkpoint-6.torn").is_dir()


@pytest.mark.thorough
def test_a_bucket_that_fails_ends_no_training_and_is_told(
    knows_folders: Terminal, moto: S3Server, uri: str
) -> None:
    """It fails from the first copy on, and answers again at the end."""
    ab = knows_folders
    fails = threading.Event()
    with between(moto, lambda _: (403, "AccessDenied") if fails.is_set() else None) as proxy:
        ab.environ.update(proxy.environ)
        process = ab.start("run", a_job(ab, uri, environment={"PAUSE": "0.5", "TOTAL": "16"}), "--json")
        ab.until_said("ready")
        fails.set()
        wait_for(lambda: "checkpoints_not_copied" in ab.seen().flags)
        assert "checkpoints_not_copied" in [
            d["code"] for d in ab("doctor", "digits", "--json").json["diagnoses"]
        ]
        fails.clear()
        out, err = process.communicate(timeout=120)
    said = json.loads(out)
    assert process.returncode == 0 and said["flags"] == [], out + err
    assert said["checkpoints"]["latest"].endswith("step-000000000016")
    assert [reason for reason in events(ab) if "Cop" in reason and reason != "CopyPassedOver"] == [
        "CheckpointNotCopied",
        "CopiesAgain",
    ]


@pytest.mark.thorough
def test_a_stop_leaves_the_last_checkpoint_in_the_bucket(knows_folders: Terminal, uri: str) -> None:
    ab = knows_folders
    process = ab.start("run", a_job(ab, uri, environment={"PAUSE": "0.3", "TOTAL": "1000"}))
    wait_for(lambda: (ab.folder / "out" / "checkpoint-4").is_dir())
    process.send_signal(signal.SIGINT)
    process.communicate(timeout=120)
    whole = max(
        int(path.name[11:])
        for path in (ab.folder / "out").glob("checkpoint-*")
        if (path / "trainer_state.json").exists() and path.suffix == ""
        and (path / "trainer_state.json").read_bytes().endswith(b"}\n")
    )  # fmt: skip
    assert list_checkpoints(in_bucket(uri, ab.seen().run, ab.environ))[-1].step in (whole, whole - 2)


def test_two_places_one_within_the_other(knows_folders: Terminal) -> None:
    ab = knows_folders
    for saving in ({"uri": "out"}, {"uri": "out/copies"}, {"uri": "x", "folder": "./x/y"}):
        said = ab("run", a_job(ab, "", {**saving}))
        assert said.code == 2 and "lie one within the other" in said.text, said.text


def test_what_contradicts_it(knows_folders: Terminal, uri: str) -> None:
    ab = knows_folders
    saving = {"every": 50, "hot": {"folder": "/hot"}, "folder": "s3://bucket/out"}
    said = ab("check", a_job(ab, uri, saving))
    assert said.code == 2 and "not a folder of a disk" in said.text
    said = ab("check", a_job(ab, uri, {**saving, "folder": "out"}))
    assert "checkpoints.every" in said.text and "checkpoints.hot" in said.text


@pytest.mark.parametrize(
    ("fields", "trouble"),
    [
        ({"elastic": {"min": 1, "max": 2}, "workers": 2}, "an elastic gang changes"),
        ({"inject": "off"}, "without inject: off"),
        ({"checkpoints": {"folder": "out"}, "code": ["train.py"]}, "give an absolute one"),
        ({"checkpoints": {"folder": "/out", "uri": "/out/copies"}}, "lie one within the other"),
        ({"framework": "mpi", "workers": 2}, "sshd starts in the workers"),
    ],
)
def test_what_cannot_work_on_a_cluster_is_said(
    knows_folders: Terminal, uri: str, fields: dict[str, Any], trouble: str
) -> None:
    ab = knows_folders
    saving = {"folder": "/out", **fields.pop("checkpoints", {})}
    said = ab("render", a_job(ab, uri, saving, image="registry.lab/train:v3", **fields))
    assert said.code == 2 and "checkpoints.folder" in said.text and trouble in said.text, said.text


@pytest.mark.parametrize(
    ("fields", "has_credentials"),
    [
        ({}, False),
        ({"environment": {"AWS_REGION": "eu-west-1"}}, False),
        ({"secrets": [{"name": "store", "env": True}]}, True),
        ({"service_account": "trainer"}, True),
        ({"environment": {"AWS_SHARED_CREDENTIALS_FILE": "/aws/credentials"}}, True),
    ],
)
def test_on_a_cluster_the_helper_is_told_where_copies_go(
    knows_folders: Terminal, uri: str, fields: dict[str, Any], has_credentials: bool
) -> None:
    ab = knows_folders
    job = a_job(ab, uri, {"folder": "/out/"}, image="registry.lab/train:v3", **fields)
    said = ab("render", job, "--key", "k")
    assert said.code == 0, said.text
    assert ("the job names no credentials for it" in said.text) is not has_credentials
    assert "ALLABOARD_HELP_COPIES" in said.text and f"value: {uri}/" in said.text
    assert "ALLABOARD_HELP_SHARED" not in said.text and "value: /out/" in said.text
    assert ab.environ["AWS_SECRET_ACCESS_KEY"] not in said.text
    volume = [{"mount": "/out", "pvc": "out"}]
    said = ab("render", a_job(ab, uri, {"folder": "/out"}, image="x/y:v3", storage=volume, **fields))
    assert said.code == 0 and "ALLABOARD_HELP_SHARED" in said.text, said.text
