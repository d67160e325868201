"""A script that knows nothing of allaboard, with ``checkpoints: {format: auto}``, as real processes."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from tests.core.checkpoints.foreign.test_frameworks import PYTHON, ROOT
from tests.core.checkpoints.foreign.test_samples import SAMPLES
from tests.core.cli.terminal import Terminal

#: Saves as Hugging Face's Trainer does, with the bytes that it wrote; is killed while it saves step 6, once.
TRAINS = """
import json, os, signal, sys
given = sys.argv[1:]
seen = {"argv": given, "from": os.environ.get("FROM"), "out": sorted(os.listdir("out"))}
with open("given.jsonl", "a") as file:
    file.write(json.dumps(seen) + "\\n")
begin = int(given[given.index("--resume") + 1].rpartition("-")[2]) if "--resume" in given else 0
for step in range(begin + 2, 9, 2):
    into = f"out/checkpoint-{step}"
    os.makedirs(into)
    for name in sorted(os.listdir("sample"), key=lambda name: name == "trainer_state.json"):
        if step == 6 and name == "trainer_state.json" and not os.path.exists("killed"):
            open("killed", "w").close()
            os.kill(os.getpid(), signal.SIGKILL)
        text = open(f"sample/{name}", "rb").read()
        if name == "trainer_state.json":
            text = text.replace(b'step": 4', b'step": %d' % step)
        with open(f"{into}/{name}", "wb") as file:
            file.write(text)
"""
COMMAND = [
    "python",
    "train.py",
    "--fp16",
    "--resume",
    "{checkpoint}",
    "a={checkpoint}",
    "{a,b}",
    "{{checkpoint}}",
]


@pytest.fixture
def foreign(ab: Terminal) -> Terminal:
    shutil.copytree(SAMPLES / "hugging_face_trainer" / "checkpoint-4", ab.folder / "sample")
    (ab.folder / "out").mkdir()
    (ab.folder / "train.py").write_text(TRAINS)
    return ab


def a_job(ab: Terminal, **fields: Any) -> str:
    saving = {"uri": "out", "format": "auto"}
    return ab.job(
        "",
        "job.json",
        **{"command": COMMAND, "checkpoints": saving, "environment": {"FROM": "{checkpoint}"}, **fields},
    )


def given(ab: Terminal) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (ab.folder / "given.jsonl").read_text().splitlines()]


def test_killed_while_it_saves_it_goes_on_from_the_newest_whole_one(foreign: Terminal) -> None:
    said = foreign("run", a_job(foreign), "--json")
    assert said.code == 0 and said.json["restarts"] == 1, said.text
    first, second = given(foreign)
    assert first["argv"] == ["--fp16", "{a,b}", "{{checkpoint}}"] and first["from"] is None
    newest = str(foreign.folder / "out" / "checkpoint-4")
    assert second["argv"] == ["--fp16", "--resume", newest, f"a={newest}", "{a,b}", "{{checkpoint}}"]
    assert second["from"] == newest
    assert "checkpoint-6" not in second["out"] and "checkpoint-6.torn" in second["out"]
    events = [event for event in foreign("events", "digits", "--json").json["events"]]
    assert [event["reason"] for event in events if event["reason"] in ("TornCheckpoint", "Resumes")] == [
        "TornCheckpoint",
        "Resumes",
    ]


def test_what_it_saved_is_known_to_every_command(foreign: Terminal) -> None:
    said = foreign("run", a_job(foreign), "--json")
    run, own = said.json["run"], f"{foreign.folder}/out/{said.json['run']}"
    assert said.json["checkpoints"]["latest"] == f"{own}/step-000000000008"
    listed = foreign("checkpoints", "list", "digits", "--json").json["checkpoints"]
    assert [(item["step"], item["files"], item["run"]) for item in listed] == [
        (step, str(foreign.folder / "out" / f"checkpoint-{step}"), run) for step in (2, 4, 6, 8)
    ]
    assert foreign("checkpoints", "verify", "digits").code == 0
    copy = foreign("checkpoints", "collect", "digits", "models", "--best", "eval_loss:min", "--json").json
    assert copy["run"] == run and copy["metrics"]["eval_loss"] > 0
    page = foreign("report", "digits", "--json")
    marks = (
        json.loads(Path(page.json["page"]).with_suffix(".json").read_text())
        if "data" not in page.json
        else page.json["data"]
    )
    assert [mark["step"] for mark in marks["checkpoints"]] == [8, 6, 4, 2]


@pytest.mark.thorough
def test_another_run_begins_from_scratch_and_touches_nothing(foreign: Terminal) -> None:
    job = a_job(foreign, policy={"restart": "never"})
    (foreign.folder / "killed").touch()
    assert foreign("run", job, "--key", "a").code == 0
    (foreign.folder / "out" / "checkpoint-8" / "trainer_state.json").unlink()
    for path in (foreign.folder / "out").glob("checkpoint-[246]"):
        shutil.rmtree(path)
    assert foreign("run", job, "--key", "b").code != 0  # its own mkdir of a folder that is there
    assert "--resume" not in given(foreign)[-1]["argv"]
    assert "checkpoint-8" in given(foreign)[-1]["out"]


def test_without_the_field_nothing_is_filled_in(foreign: Terminal) -> None:
    (foreign.folder / "killed").touch()
    said = foreign(
        "run", a_job(foreign, checkpoints={"uri": "out"}, command=["python", "train.py", "{checkpoint}"])
    )
    assert said.code == 0, said.text
    assert given(foreign)[0]["argv"] == ["{checkpoint}"] and given(foreign)[0]["from"] == "{checkpoint}"
    assert foreign("checkpoints", "list", "digits", "--json").json == {"checkpoints": []}


#: The master leaves a checkpoint half written until its worker was started again.
GANG = """
import os, sys, time
from pathlib import Path
out, sample, rank = Path("out"), Path("sample"), int(os.environ["RANK"])
print("argv", sys.argv[1:], flush=True)

def save(step, *names):
    (out / f"checkpoint-{step}").mkdir(exist_ok=True)
    for name in names:
        text = (sample / name).read_bytes().replace(b'step": 4', b'step": %d' % step)
        (out / f"checkpoint-{step}" / name).write_bytes(text)

names = sorted(path.name for path in sample.iterdir() if path.name != "trainer_state.json")
if rank == 0:
    save(4, *names, "trainer_state.json")
    save(6, *names)
    Path("half").touch()
    while not Path("again").exists():
        time.sleep(0.02)
    save(6, "trainer_state.json")
elif not Path("failed").exists():
    while not Path("half").exists():
        time.sleep(0.02)
    Path("failed").touch()
    sys.exit(1)
else:
    assert sys.argv[-1].endswith("out/checkpoint-4"), sys.argv
    assert not list(out.glob("*.torn"))
    Path("again").touch()
"""


@pytest.mark.thorough
def test_a_member_that_starts_while_another_saves_moves_nothing(foreign: Terminal) -> None:
    (foreign.folder / "train.py").write_text(GANG)
    command = ["python", "train.py", "--resume", "{checkpoint}"]
    said = foreign("run", a_job(foreign, command=command, workers=2), "--json")
    assert said.code == 0 and said.json["restarts"] == 1, said.text + foreign("logs", "digits").text
    assert [
        item["step"] for item in foreign("checkpoints", "list", "digits", "--json").json["checkpoints"]
    ] == [4, 6]


TOGETHER = """
import json, os, sys, time
rank, number = os.environ["RANK"], 0
while os.path.exists(f"{rank}.{number}"):
    number += 1
with open(f"{rank}.{number}.part", "w") as file:
    json.dump([word.rpartition("/")[2] for word in sys.argv[1:]], file)
os.rename(f"{rank}.{number}.part", f"{rank}.{number}")
def until(*names):
    while not all(map(os.path.exists, names)):
        time.sleep(0.01)
def save(step):
    rounds = {"gradient_booster": {"model": {"iteration_indptr": [*range(step + 2)]}}}
    model = {"learner": rounds, "version": [3, 2, 0]}
    with open(f"out/model_{step}.json.part", "w") as file:
        json.dump(model, file, separators=(",", ":"))
    os.rename(f"out/model_{step}.json.part", f"out/model_{step}.json")
first, other = FIRST
if number == 0 and rank == first:
    until(f"{other}.0", "out/model_1.json")
    sys.exit(1)
if number == 0:
    save(1)
    until(f"{first}.1")
    save(2)
    LATE
    sys.exit(1)
if number == 1 and rank == other:
    save(9)
    sys.exit(1)
if number == 1:
    until(f"{other}.2")
    sys.exit(1)
until(f"{first}.2", f"{other}.2")
"""


@pytest.mark.thorough(but=("-model_1.json-1",))
@pytest.mark.parametrize("first", ["0", "1"])
@pytest.mark.parametrize(
    ("late", "expected"), [("", "model_1.json"), ("os.remove('out/model_1.json')", "model_2.json")]
)
def test_members_that_start_one_after_the_other_go_on_from_one_checkpoint(
    ab: Terminal, first: str, late: str, expected: str
) -> None:
    """One fails while another saves, which comes to the end of that before it fails, too."""
    (ab.folder / "out").mkdir()
    other = str(1 - int(first))
    script = TOGETHER.replace("FIRST", repr((first, other))).replace("LATE", late)
    fields: dict[str, Any] = {"command": ["python", "job.py", "{checkpoint}"], "policy": {"backoff_limit": 6}}
    job = ab.job(script, workers=2, checkpoints={"uri": "out", "format": "auto"}, **fields)
    done = ab("run", job, "--json")
    assert done.code == 0 and done.json["restarts"] == 4, done.text
    given = {path.name: json.loads(path.read_text()) for path in ab.folder.glob("[01].[0-9]")}
    assert given == {
        f"{first}.0": [], f"{other}.0": [],
        f"{first}.1": ["model_1.json"], f"{other}.1": [expected],
        f"{first}.2": ["model_9.json"], f"{other}.2": ["model_9.json"],
    }  # fmt: skip


def test_a_bucket_has_no_path(foreign: Terminal) -> None:
    said = foreign("run", a_job(foreign, checkpoints={"uri": "s3://bucket/out", "format": "auto"}))
    assert said.code == 2 and "'{checkpoint}' is the path of a folder" in said.text


def test_a_word_that_is_no_format(foreign: Terminal) -> None:
    said = foreign("check", a_job(foreign, checkpoints={"uri": "out", "format": "huggingface"}))
    assert said.code == 2 and "checkpoints.format" in said.text and "auto" in said.text


def test_on_a_cluster_a_bucket_has_no_path_either(foreign: Terminal) -> None:
    saving = {"uri": "s3://bucket/out", "format": "auto"}
    said = foreign("render", a_job(foreign, checkpoints=saving, image="registry.lab/train:v3"))
    assert said.code == 2 and "'{checkpoint}' is the path of a folder" in said.text
    command = ["sh", "-c", "echo ${checkpoint} {a,b} '{\"checkpoint\": 1}'"]
    job = a_job(foreign, checkpoints=saving, image="registry.lab/train:v3", command=command, environment={})
    assert foreign("render", job).code == 0


JUDGES = """
import subprocess
from allaboard.inside import context, result
load = (
    "import sys, transformers;"
    "print(transformers.LlamaForCausalLM.from_pretrained(sys.argv[1]).num_parameters())"
)
said = subprocess.run(["PYTHON", "-c", load, context().checkpoint], capture_output=True, check=True)
result(parameters=int(said.stdout.split()[-1]))
"""


@pytest.mark.thorough
@pytest.mark.timeout(600)
@pytest.mark.skipif(not PYTHON.exists(), reason="the libraries are not installed here: make frameworks")
def test_a_script_of_hugging_face_from_a_kill_to_the_champion(ab: Terminal) -> None:
    shutil.copy(ROOT / "tests" / "frameworks" / "scripts" / "hugging_face.py", ab.folder / "train.py")
    options = "--max_steps 10 --save_steps 2 --eval_steps 2 --logging_steps 1 --eval_strategy steps --use_cpu"
    more = "--report_to none --disable_tqdm true --per_device_train_batch_size 2 --output_dir out"
    command = [
        str(PYTHON),
        "train.py",
        *options.split(),
        *more.split(),
        "--resume_from_checkpoint",
        "{checkpoint}",
    ]
    job = ab.job("", "job.json", command=command, checkpoints={"uri": "out", "format": "auto"})
    said = ab("run", job, "--json")
    assert said.code == 0 and said.json["restarts"] == 1, said.text + ab("logs", "digits").text
    events = {event["reason"]: event["message"] for event in ab("events", "digits", "--json").json["events"]}
    assert "checkpoint-6 is torn" in events["TornCheckpoint"] and "out/checkpoint-4" in events["Resumes"]
    listed = ab("checkpoints", "list", "digits", "--json").json["checkpoints"]
    assert [item["step"] for item in listed] == [2, 4, 6, 8, 10]
    assert ab("checkpoints", "verify", "digits").code == 0
    copy = ab("checkpoints", "collect", "digits", "models", "--best", "eval_loss:min", "--json").json
    judges = JUDGES.replace("PYTHON", str(PYTHON))
    evaluated = ab("evaluate", ab.job(judges, "ev.json"), "--checkpoint", copy["uri"], "--json")
    assert evaluated.code == 0 and evaluated.json["metrics"]["parameters"] > 0, evaluated.text
    promoted = ab("promote", copy["uri"], "--into", "champions", "--metric", "eval_loss", "--json")
    assert promoted.json["promoted"] and promoted.json["champion"]["step"] == copy["step"]


def test_the_next_attempt_resumes_and_the_next_generation_begins_from_scratch(foreign: Terminal) -> None:
    job = a_job(foreign, policy={"restart": "never", "attempts": 1})
    assert foreign("run", job, "--key", "nightly").code == 1
    assert foreign("run", job, "--key", "nightly").code == 0
    newest = str(foreign.folder / "out" / "checkpoint-4")
    assert given(foreign)[1]["from"] == newest and "checkpoint-6.torn" in given(foreign)[1]["out"]
    foreign("run", job, "--key", "nightly")
    assert given(foreign)[-1]["from"] is None and "checkpoint-8" in given(foreign)[-1]["out"]


#: Counts its rounds from 0 in each process, as XGBoost does, and is killed once while it saves.
ROUNDS = """
import os, shutil, signal, sys
done = int(sys.argv[1].rpartition("_")[2].partition(".")[0]) + 1 if len(sys.argv) > 1 else 0
for number in range(6 - done):
    print(f"[{number}]\\ttrain-rmse:{1 / (done + number + 1):.5f}", flush=True)
    if done + number == 1:
        shutil.copy("model_1.ubj", "out/model_1.ubj")
    if done + number == 3 and not done:
        os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.thorough
def test_rounds_of_a_run_that_resumed_are_those_of_its_curve(ab: Terminal) -> None:
    shutil.copy(SAMPLES / "xgboost" / "model_1.ubj", ab.folder / "model_1.ubj")
    (ab.folder / "out").mkdir()
    saving = {"uri": "out", "format": "auto"}
    job = ab.job(ROUNDS, command=["python", "job.py", "{checkpoint}"], checkpoints=saving)
    said = ab("run", job, "--json")
    assert said.code == 0 and said.json["restarts"] == 1 and said.json["progress"]["step"] == 5, said.text
    data = ab("report", "digits", "--json").json["data"]
    [curve] = data["curves"]
    assert curve["points"] == [[n, pytest.approx(1 / (n + 1), abs=1e-5)] for n in range(6)]
    assert data["resumed"][0]["step"] == 1
