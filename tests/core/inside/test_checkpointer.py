"""Save and resume from the training script: one process, several ranks, killed ones, full disks."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from allaboard.checkpoints import list_checkpoints, verify
from allaboard.checkpoints.holds import list_holds
from allaboard.checkpoints.manifest import MANIFEST
from allaboard.errors import BadInput, Corrupt
from allaboard.inside import Checkpointer, open_checkpoint
from allaboard.inside.checkpointer import Every
from allaboard.inside.shutdown import shutdown
from allaboard.storage import open_store
from allaboard.storage.base import Store
from allaboard.text.reportline import Report, decode
from tests.core.checkpoints.building import a_checkpoint, corrupt, cut, keys, steps, without_manifest
from tests.core.s3server import S3Server, free_port

WAIT = 120  # seconds until a child that hangs fails its test


@pytest.fixture(autouse=True)
def alone(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """No environment but the test's own, and nobody's signal handler left behind."""
    for name in list(os.environ):
        if name.startswith(("ALLABOARD_", "AWS_", "TORCHELASTIC")) or name in (
            "RANK",
            "WORLD_SIZE",
            "LOCAL_RANK",
        ):
            monkeypatch.delenv(name)
    yield
    shutdown.uninstall()


@pytest.fixture
def run(tmp_path: Path) -> Store:
    """A run's own folder."""
    return open_store(tmp_path / "ckpt" / "digits-1f")


def lines(text: str) -> list[Report]:
    return [report for line in text.splitlines() if (report := decode(line))]


def of_kind(text: str, kind: str) -> list[Mapping[str, Any]]:
    return [report.fields for report in lines(text) if report.kind == kind]


class Script:
    """A training script as a process of its own."""

    def __init__(self, body: str, run: Store | str, **environ: str) -> None:
        uri = run if isinstance(run, str) else run.uri
        self.process = subprocess.Popen(
            [sys.executable, "-u", "-c", textwrap.dedent(body)],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
            env={**os.environ, "ALLABOARD_CHECKPOINTS": uri, **environ},
        )
        self.out = self.err = ""

    def __enter__(self) -> Script:
        return self

    def __exit__(self, *_: object) -> None:
        self.process.kill()
        self.process.wait()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            if stream:
                stream.close()

    def wait_for(self, text: str) -> None:
        """Read stdout until a line holds ``text``."""
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.out += line
            if text in line:
                return
        raise AssertionError(f"{text!r} never came:\n{self.out}\n{self.process.communicate()[1]}")

    def end(self) -> int:
        out, self.err = self.process.communicate(timeout=WAIT)
        self.out += out
        return self.process.returncode


def ended(body: str, run: Store | str, **environ: str) -> Script:
    with Script(body, run, **environ) as script:
        script.end()
        return script


# --- what is given and what comes from the job


def test_without_a_folder_it_says_where_one_would_come_from() -> None:
    with pytest.raises(BadInput, match=r"give Checkpointer\(uri=\.\.\.\), or checkpoints.uri in the job"):
        Checkpointer()


def test_everything_comes_from_the_environment(run: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLABOARD_CHECKPOINTS", run.uri)
    monkeypatch.setenv("ALLABOARD_CHECKPOINT_EVERY", "2")
    monkeypatch.setenv("ALLABOARD_CHECKPOINT_KEEP", "1")
    monkeypatch.setenv("ALLABOARD_CHECKPOINT_BEST", "loss:min")
    ckpt = Checkpointer()
    assert ckpt.uri == run.uri
    for step, loss in enumerate((9.0, 1.0, 9.0, 5.0, 9.0, 6.0, 9.0), start=1):
        ckpt.step(step, lambda: b"state", {"loss": loss})
    assert steps(run) == [2, 6]  # the best and the newest


def test_arguments_go_before_the_environment(
    run: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("ALLABOARD_CHECKPOINTS", str(tmp_path / "other"))
    monkeypatch.setenv("ALLABOARD_CHECKPOINT_EVERY", "100")
    ckpt = Checkpointer(run.uri, every=1, keep=2, best=("loss", "max"))
    for step in (1, 2, 3, 4):
        ckpt.step(step, lambda: b"state", {"loss": 1.0 / step})
    assert steps(run) == [1, 3, 4]


@pytest.mark.parametrize(
    ("given", "every"),
    [
        (None, Every()),
        (50, Every(steps=50)),
        ("50", Every(steps=50)),
        ("600s", Every(seconds=600)),
        ("10m", Every(seconds=600)),
        ("1h30m", Every(seconds=5400)),
    ],
)
def test_every_is_steps_or_time(given: Any, every: Every) -> None:
    assert Every.parse(given) == every


@pytest.mark.parametrize("given", [0, "0", "0s", -5, "often", "", 2.5, True])
def test_every_that_is_neither_is_refused(given: Any) -> None:
    with pytest.raises(BadInput, match="write 50 for 50 steps, or 10m for ten minutes"):
        Every.parse(given)


@pytest.mark.parametrize(
    ("every", "step", "last_step", "now", "due"),
    [
        (Every(), 100, 0, 1e9, False),
        (Every(steps=50), 49, 0, 0, False),
        (Every(steps=50), 50, 0, 0, True),
        (Every(steps=50), 50, 50, 0, False),  # saved, or resumed from, just now
        (Every(steps=50), 99, 50, 0, False),
        (
            Every(steps=50),
            130,
            99,
            0,
            True,
        ),  # a script that reports every epoch crosses the boundary in between
        (Every(steps=50), 40, 120, 0, False),
        (Every(steps=1), 0, 0, 0, False),
        (Every(seconds=60), 7, 5, 59, False),
        (Every(seconds=60), 7, 5, 60, True),
        (Every(seconds=60), 5, 5, 999, False),
    ],
)
def test_when_a_save_is_due(every: Every, step: int, last_step: int, now: float, due: bool) -> None:
    assert every.due(step, last_step, now, 0.0) is due


@pytest.mark.parametrize(
    ("name", "value", "why"),
    [
        ("ALLABOARD_CHECKPOINT_EVERY", "sometimes", "every 'sometimes' is neither steps nor time"),
        ("ALLABOARD_CHECKPOINT_KEEP", "three", "ALLABOARD_CHECKPOINT_KEEP='three' is not a whole number"),
        ("ALLABOARD_CHECKPOINT_KEEP", "0", "keep 0: at least the newest"),
        ("ALLABOARD_CHECKPOINT_BEST", "loss", "write val_loss:min"),
        ("ALLABOARD_CHECKPOINTS", "ftp://host/x", "'ftp' is not a kind of store"),
    ],
)
def test_a_wrong_setting_is_named(
    run: Store, monkeypatch: pytest.MonkeyPatch, name: str, value: str, why: str
) -> None:
    monkeypatch.setenv("ALLABOARD_CHECKPOINTS", run.uri)
    monkeypatch.setenv(name, value)
    with pytest.raises(BadInput, match=why):
        Checkpointer()


# --- save and load


def test_bytes_come_back_as_bytes(run: Store) -> None:
    Checkpointer(run.uri).save(7, b"all my state", {"loss": 0.5})
    found = Checkpointer(run.uri).resume()
    assert found is not None
    assert (found.step, found.metrics, found.resumed) == (7, {"loss": 0.5}, True)
    assert found.load() == b"all my state"
    assert found.path().read_bytes() == b"all my state"


def test_parts_come_back_by_name(run: Store, tmp_path: Path) -> None:
    (tmp_path / "big.bin").write_bytes(b"b" * 10_000)
    Checkpointer(run.uri).save(7, {"model.bin": b"model", "big.bin": tmp_path / "big.bin"})
    found = Checkpointer(run.uri).resume()
    assert found is not None
    assert found.load() == {"model.bin": b"model", "big.bin": b"b" * 10_000}
    assert found.path("big.bin").read_bytes() == b"b" * 10_000
    with pytest.raises(BadInput, match=r"there is no part 'x'; the parts are: model.bin, big.bin"):
        found.path("x")
    with pytest.raises(BadInput, match="name a part"):
        found.path()


def test_a_part_keeps_its_name_when_its_step_is_saved_again(run: Store) -> None:
    ckpt = Checkpointer(run.uri)
    ckpt.save(7, {"model.bin": b"first"})
    ckpt.save(7, {"model.bin": b"second"})
    found = Checkpointer(run.uri).resume()
    assert found is not None
    assert found.load() == {"model.bin": b"second"}
    assert found.path("model.bin").read_bytes() == b"second"


@pytest.mark.thorough
def test_what_torch_saves_comes_back_on_the_cpu(run: Store) -> None:
    torch = pytest.importorskip("torch")
    state: Any = {"model": {"weight": torch.arange(6.0).reshape(2, 3)}, "step": 7, "name": "net"}
    Checkpointer(run.uri).save(7, state)
    found = Checkpointer(run.uri).resume()
    assert found is not None
    loaded = found.load()
    assert torch.equal(loaded["model"]["weight"], state["model"]["weight"])
    assert (loaded["step"], loaded["name"]) == (7, "net")
    assert torch.load(run.local_path("step-000000000007/state.pt"), weights_only=True)["step"] == 7


def test_a_state_with_code_in_it_is_not_run(run: Store) -> None:
    pytest.importorskip("torch")
    Checkpointer(run.uri).save(7, {"path": Path("x"), "weight": 1})
    found = Checkpointer(run.uri).resume()
    assert found is not None
    with pytest.raises(
        BadInput, match=r"if you trust it: torch\.load\(checkpoint\.path\(\), weights_only=False\)"
    ):
        found.load()


def test_numbers_of_torch_and_numpy_are_metrics(run: Store) -> None:
    torch, numpy = pytest.importorskip("torch"), pytest.importorskip("numpy")
    metrics = {"loss": torch.tensor(0.5), "accuracy": numpy.float32(0.75), "bad": float("nan")}
    saved = Checkpointer(run.uri).save(1, b"state", metrics)
    assert saved is not None
    assert saved.metrics == {"loss": 0.5, "accuracy": 0.75, "bad": None}
    assert saved.manifest.nonfinite == ("bad",)


def test_the_manifest_tells_where_it_comes_from(run: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLABOARD_RUN", "digits-1f")
    monkeypatch.setenv("ALLABOARD_ATTEMPT", "3")
    monkeypatch.setenv("ALLABOARD_GENERATION", "2")
    monkeypatch.setenv("RANK", "0")
    monkeypatch.setenv("WORLD_SIZE", "4")
    saved = Checkpointer(run.uri).save(1, b"state")
    assert saved is not None
    manifest = saved.manifest
    assert (manifest.run, manifest.attempt, manifest.generation, manifest.world_size) == (
        "digits-1f",
        3,
        2,
        4,
    )
    assert manifest.created is not None and manifest.created.endswith("Z")
    assert manifest.versions["python"].count(".") == 2
    assert manifest.versions["allaboard"]


def test_nothing_is_built_when_nothing_is_due(run: Store) -> None:
    ckpt = Checkpointer(run.uri, every=3)
    built: list[str] = []

    def state() -> bytes:
        built.append("state")
        return b"state"

    def metrics() -> dict[str, float]:
        built.append("metrics")
        return {"loss": 0.5}

    assert [ckpt.step(step, state, metrics) is not None for step in range(1, 8)] == [
        *(False, False, True, False, False, True, False)
    ]
    assert built == ["state", "metrics"] * 2
    assert list_checkpoints(run)[0].metrics == {"loss": 0.5}


def test_a_state_that_is_no_function_is_refused_at_the_first_step(run: Store) -> None:
    class Model:
        def __call__(self) -> None: ...

        def state_dict(self) -> dict[str, int]:
            return {}

    ckpt = Checkpointer(run.uri, every=100)
    for state in ({"weight": 1}, b"state", Model()):
        with pytest.raises(BadInput, match=r"write lambda: model\.state_dict\(\)"):
            ckpt.step(1, state)  # type: ignore[arg-type]


def test_another_rank_writes_nothing(run: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("RANK", "1")
    monkeypatch.setenv("WORLD_SIZE", "2")
    ckpt = Checkpointer(run.uri, every=1)
    assert ckpt.step(1, lambda: pytest.fail("the state was built")) is None
    assert ckpt.save(1, b"state") is None
    assert keys(run) == []
    with pytest.raises(BadInput, match="is not a step"):
        ckpt.step("one", lambda: b"state")  # type: ignore[arg-type]


def test_by_time_it_saves_when_the_time_has_come(run: Store) -> None:
    assert Checkpointer(run.uri, every="1h").step(1, lambda: b"state") is None
    ckpt = Checkpointer(run.uri, every="1ms")
    deadline = time.monotonic() + WAIT
    step = 1
    while ckpt.step(step, lambda: b"state") is None and time.monotonic() < deadline:
        step += 1
    assert steps(run) == [step]


# --- what is said


def test_report_lines_tell_of_saves_and_resumes(run: Store, capsys: pytest.CaptureFixture[str]) -> None:
    ckpt = Checkpointer(run.uri, best="loss:min")
    assert ckpt.resume() is None
    for step, loss in ((1, 0.5), (2, 0.9), (3, float("nan"))):
        ckpt.save(step, b"state", {"loss": loss})
    Checkpointer(run.uri).resume()
    said = capsys.readouterr().out
    saved = of_kind(said, "checkpoint")
    assert [(line["step"], line["best"]) for line in saved] == [(1, True), (2, False), (3, False)]
    assert saved[0]["uri"] == f"{run.uri}/step-000000000001"
    assert saved[1]["metrics"] == {"loss": 0.9} and saved[0]["bytes"] == len(b"state")
    assert [line.nonfinite for line in lines(said)][2] == ("metrics.loss",)
    assert of_kind(said, "resumed") == [{"step": 3, "from": f"{run.uri}/step-000000000003"}]


def test_a_best_by_a_metric_that_is_never_given_is_warned_of_once(
    run: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    ckpt = Checkpointer(run.uri, best="val_los:min")
    for step in (1, 2):
        ckpt.save(step, b"state", {"val_loss": 0.5})
    (flag,) = of_kind(capsys.readouterr().out, "flag")
    assert flag == {
        "code": "checkpoint_best",
        "text": "the best checkpoint is by 'val_los', which was not given (given: val_loss)",
    }


# --- resume


def test_nothing_there_means_none(run: Store) -> None:
    assert Checkpointer(run.uri).resume() is None


def test_the_newest_of_any_attempt_is_taken(run: Store) -> None:
    a_checkpoint(run, 10, attempt=1)
    a_checkpoint(run, 30, attempt=2)
    a_checkpoint(run, 20, attempt=3)
    found = Checkpointer(run.uri).resume()
    assert found is not None
    assert (found.step, found.checkpoint.manifest.attempt) == (30, 2)


@pytest.mark.parametrize(
    "damage", ["other bytes", "half a part", "no part", "manifest cut", "manifest empty"]
)
def test_a_damaged_newest_is_passed_over_for_the_one_before_and_said(
    run: Store, capsys: pytest.CaptureFixture[str], damage: str
) -> None:
    for step in (10, 20, 30):
        a_checkpoint(run, step)
    key = f"step-000000000030/{MANIFEST}"
    match damage:
        case "other bytes":
            corrupt(run, 30, "optimizer.bin")
        case "half a part":
            cut(run, 30)
        case "no part":
            run.delete(["step-000000000030/model.bin"])
        case "manifest cut":
            run.write(key, run.read(key)[:100])
        case "manifest empty":
            run.write(key, b"")
    found = Checkpointer(run.uri).resume()
    assert found is not None
    assert found.step == 20
    assert found.load()["model.bin"] == b"model of step 20"
    said = capsys.readouterr()
    (flag,) = of_kind(said.out, "flag")
    assert flag["code"] == "checkpoint_corrupt"
    assert f"{run.uri}/step-000000000030 is damaged and was passed over for the one before" in flag["text"]
    assert "step-000000000030 is damaged" in said.err
    assert [line["step"] for line in of_kind(said.out, "resumed")] == [20]


def test_an_unfinished_save_is_no_damage(run: Store, capsys: pytest.CaptureFixture[str]) -> None:
    a_checkpoint(run, 10)
    a_checkpoint(run, 20)
    without_manifest(run, 20)
    found = Checkpointer(run.uri).resume()
    assert found is not None and found.step == 10
    assert of_kind(capsys.readouterr().out, "flag") == []


def test_all_damaged_means_from_the_beginning(run: Store, capsys: pytest.CaptureFixture[str]) -> None:
    a_checkpoint(run, 10)
    a_checkpoint(run, 20)
    corrupt(run, 10)
    cut(run, 20)
    assert Checkpointer(run.uri).resume() is None
    assert len(of_kind(capsys.readouterr().out, "flag")) == 2


def test_a_corrupt_newest_never_makes_retention_drop_the_whole_one_before(run: Store) -> None:
    """keep=1, the newest is corrupt: were it still counted, retention would keep the wrong one."""
    for step in (10, 20, 30):
        a_checkpoint(run, step)
    corrupt(run, 30)
    ckpt = Checkpointer(run.uri, keep=1)
    found = ckpt.resume()
    assert found is not None and found.step == 20
    ckpt.save(25, b"state")
    assert [(step, verify(run, step)) for step in steps(run)] == [(25, [])]
    ckpt.save(30, b"state")  # the damaged one's own step, reached again
    assert [(step, verify(run, step)) for step in steps(run)] == [(30, [])]


def test_a_resumed_step_is_not_saved_again_at_once(run: Store) -> None:
    a_checkpoint(run, 10)
    ckpt = Checkpointer(run.uri, every=10)
    ckpt.resume()
    assert ckpt.step(10, lambda: b"state") is None
    assert ckpt.step(11, lambda: b"state") is None
    assert ckpt.step(20, lambda: b"state") is not None


# --- other weights to start from


def test_other_weights_start_a_run_at_step_0_and_are_its_parent(
    run: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    champion = a_checkpoint(open_store(tmp_path / "models" / "old-run"), 400, {"accuracy": 0.97})
    monkeypatch.setenv("ALLABOARD_START_FROM", champion.uri)
    monkeypatch.setenv("ALLABOARD_ATTEMPT", "1")
    ckpt = Checkpointer(run.uri)
    found = ckpt.resume()
    assert found is not None
    assert (found.step, found.resumed, found.checkpoint.step) == (0, False, 400)
    assert found.load()["model.bin"] == b"model of step 400"
    assert of_kind(capsys.readouterr().out, "resumed") == [{"step": 0, "from": champion.uri, "attempt": 1}]
    saved = ckpt.save(5, b"state")
    assert saved is not None and saved.manifest.parent == champion.uri

    # The next attempt goes on with the run's own, and the parent stays on record.
    again = Checkpointer(run.uri)
    own = again.resume()
    assert own is not None and (own.step, own.resumed) == (5, True)
    later = again.save(6, b"state")
    assert later is not None and later.manifest.parent == champion.uri


def test_while_a_script_reads_other_weights_they_are_held(run: Store, tmp_path: Path) -> None:
    models = open_store(tmp_path / "models" / "old-run")
    champion = a_checkpoint(models, 400)
    body = """
        from allaboard.inside import Checkpointer
        print(Checkpointer().resume(), flush=True)
        input()
    """
    with Script(body, run, ALLABOARD_START_FROM=champion.uri) as script:
        script.wait_for("resumed=False")
        assert [hold.step for hold in list_holds(models)] == [400]
        script.end()  # closes its input
    assert list_holds(models) == []  # released at the end


def test_weights_that_are_not_there_are_bad_input(run: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ALLABOARD_START_FROM", f"{run.uri}-other/step-000000000400")
    with pytest.raises(BadInput, match=r"checkpoints\.start_from: .*no complete checkpoint is there"):
        Checkpointer(run.uri).resume()


def test_damaged_weights_are_not_replaced_by_others(
    run: Store, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    models = open_store(tmp_path / "models")
    a_checkpoint(models, 300)
    champion = a_checkpoint(models, 400)
    corrupt(models, 400)
    monkeypatch.setenv("ALLABOARD_START_FROM", champion.uri)
    with pytest.raises(Corrupt, match=r"checkpoints\.start_from: .*part model\.bin has other bytes"):
        Checkpointer(run.uri).resume()


def test_an_evaluation_opens_the_checkpoint_it_was_given(run: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    a_checkpoint(run, 10)
    given = a_checkpoint(run, 20, {"loss": 0.5})
    a_checkpoint(run, 30)
    with pytest.raises(BadInput, match="ALLABOARD_CHECKPOINT"):
        open_checkpoint()
    monkeypatch.setenv("ALLABOARD_CHECKPOINT", given.uri)
    found = open_checkpoint()
    assert (found.step, found.metrics, found.load()["model.bin"]) == (20, {"loss": 0.5}, b"model of step 20")
    assert [hold.step for hold in list_holds(run)] == [20]
    assert open_checkpoint(run.uri).step == 30


# --- SIGTERM

LOOP = """
    import sys, time
    from allaboard.inside import Checkpointer
    ckpt = Checkpointer(every={every})
    found = ckpt.resume()
    for step in range(found.step + 1 if found else 1, 100000):
        time.sleep(0.005)
        ckpt.step(step, lambda: b"state of step %d" % step, {{"step": step}})
        print("stepped", step)
"""


def test_sigterm_saves_at_the_next_boundary_and_exits_143(run: Store) -> None:
    with Script(LOOP.format(every=1000), run) as script:
        script.wait_for("stepped 3\n")
        script.process.send_signal(signal.SIGTERM)
        assert script.end() == 143
    (saved,) = list_checkpoints(run)
    assert saved.step > 3
    assert verify(run, saved.step) == []
    assert run.read(f"{saved.uri.rpartition('/')[2]}/state.bin") == b"state of step %d" % saved.step
    assert f"SIGTERM: step {saved.step} is saved" in script.err
    assert "Traceback" not in script.err
    assert [line["step"] for line in of_kind(script.out, "checkpoint")] == [saved.step]

    with Script(LOOP.format(every=1000), run) as again:
        again.wait_for(f"stepped {saved.step + 1}\n")
        again.process.kill()
    assert of_kind(again.out, "resumed")[0]["step"] == saved.step


def test_sigterm_while_it_saves_lets_the_save_end(run: Store) -> None:
    body = """
        import os, signal
        from allaboard.inside import Checkpointer
        def slow(path=None):
            os.kill(os.getpid(), signal.SIGTERM)
            return b"state"
        ckpt = Checkpointer(every=1)
        ckpt.step(1, slow)
        print("never")
    """
    script = ended(body, run)
    assert (script.process.returncode, "never" in script.out) == (143, False)
    assert verify(run, 1) == []


def test_sigterm_with_nothing_new_to_save_saves_nothing_twice(run: Store) -> None:
    body = """
        import os, signal
        from allaboard.inside import Checkpointer
        ckpt = Checkpointer()
        ckpt.save(1, b"state")
        os.kill(os.getpid(), signal.SIGTERM)
        ckpt.step(1, lambda: b"other")
    """
    script = ended(body, run)
    assert script.process.returncode == 143
    assert len(of_kind(script.out, "checkpoint")) == 1


def test_on_sigterm_metrics_that_cost_an_evaluation_are_left_out(run: Store) -> None:
    body = """
        import os, signal, time
        from allaboard.inside import Checkpointer
        ckpt = Checkpointer(best="val_loss:min")
        os.kill(os.getpid(), signal.SIGTERM)
        ckpt.step(1, lambda: b"state", lambda: time.sleep(1000))
    """
    script = ended(body, run)
    assert script.process.returncode == 143
    assert steps(run) == [1]
    assert of_kind(script.out, "flag") == []


def test_sigterm_reaches_a_script_that_only_calls_save(run: Store) -> None:
    body = """
        import os, signal
        from allaboard.inside import Checkpointer
        ckpt = Checkpointer()
        os.kill(os.getpid(), signal.SIGTERM)
        ckpt.save(1, b"state")
        print("never")
    """
    script = ended(body, run)
    assert (script.process.returncode, "never" in script.out, steps(run)) == (143, False, [1])


def test_an_earlier_handler_is_called_and_its_exit_waits_for_the_save(run: Store) -> None:
    body = """
        import os, signal, sys
        from allaboard.inside import Checkpointer
        def earlier(number, frame):
            print("the earlier handler", number)
            sys.exit(9)
        signal.signal(signal.SIGTERM, earlier)
        ckpt = Checkpointer()
        Checkpointer()  # a second one chains nothing twice
        os.kill(os.getpid(), signal.SIGTERM)
        ckpt.step(1, lambda: b"state")
    """
    script = ended(body, run)
    assert (script.process.returncode, steps(run)) == (143, [1])
    assert script.out.count(f"the earlier handler {int(signal.SIGTERM)}") == 1


def test_a_forked_child_can_still_be_terminated(run: Store) -> None:
    """Data loader workers are forked; a parent that terminates one must not wait for ever."""
    body = """
        import os, signal, time
        from allaboard.inside import Checkpointer
        ckpt = Checkpointer()
        child = os.fork()
        if child == 0:
            time.sleep(1000)
        os.kill(child, signal.SIGTERM)
        print("ended by", os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]))
    """
    script = ended(body, run)
    assert (script.process.returncode, "ended by -15" in script.out) == (0, True)


def test_after_close_sigterm_is_the_scripts_own_again(run: Store) -> None:
    body = """
        import os, signal
        from allaboard.inside import Checkpointer
        with Checkpointer() as ckpt:
            ckpt.save(1, b"state")
        os.kill(os.getpid(), signal.SIGTERM)
    """
    assert ended(body, run).process.returncode == -15


def test_sigterm_after_the_last_step_ends_with_143_on_close(run: Store) -> None:
    body = """
        import os, signal
        from allaboard.inside import Checkpointer
        with Checkpointer() as ckpt:
            ckpt.save(1, b"state")
            os.kill(os.getpid(), signal.SIGTERM)
    """
    assert ended(body, run).process.returncode == 143


def test_in_another_thread_everything_works_but_sigterm(run: Store) -> None:
    body = """
        import threading
        from allaboard.inside import Checkpointer
        thread = threading.Thread(target=lambda: print(Checkpointer(every=1).step(1, lambda: b"state").step))
        thread.start()
        thread.join()
    """
    script = ended(body, run)
    assert (script.process.returncode, steps(run)) == (0, [1])


# --- several ranks

TRAIN = """
    import os, time
    import torch
    import torch.distributed as dist
    from torch.nn.parallel import DistributedDataParallel
    from allaboard.inside import Checkpointer

    torch.manual_seed(0)
    torch.set_num_threads(1)
    dist.init_process_group("gloo")
    model = DistributedDataParallel(torch.nn.Linear(4, 1))
    ckpt = Checkpointer()
    found = ckpt.resume()
    start = 0
    if found:
        model.module.load_state_dict(found.load())
        start = found.step
    print("starts after", start, float(model.module.weight.detach().sum()), flush=True)
    for step in range(start + 1, int(os.environ["STEPS"]) + 1):
        loss = model(torch.full((2, 4), 1.0 / step)).pow(2).mean()
        loss.backward()
        with torch.no_grad():  # plain descent: torch.optim alone takes seconds to import
            for weight in model.parameters():
                weight -= 0.01 * weight.grad
                weight.grad = None
        if os.environ.get("PACE"):
            time.sleep(float(os.environ["PACE"]))
        ckpt.step(step, model.module.state_dict, {"loss": loss.detach()})
        print("stepped", step, flush=True)
    print("ends", float(model.module.weight.detach().sum()), flush=True)
    dist.destroy_process_group()
"""


class Gang:
    """A script on several ranks."""

    def __init__(
        self,
        body: str,
        run: Store,
        size: int,
        each: Mapping[int, Mapping[str, str]] | None = None,
        **environ: str,
    ):
        where = {"MASTER_ADDR": "127.0.0.1", "MASTER_PORT": str(free_port()), "WORLD_SIZE": str(size)}
        self.ranks = [
            Script(body, run, **{**where, "RANK": str(rank), **environ, **(each or {}).get(rank, {})})
            for rank in range(size)
        ]

    def __enter__(self) -> list[Script]:
        return self.ranks

    def __exit__(self, *_: object) -> None:
        for rank in self.ranks:
            rank.__exit__()


def test_a_rank_that_is_asked_alone_leaves_when_rank_0_plainly_goes_on(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    left: list[bool] = []
    monkeypatch.setattr("allaboard.inside.shutdown.exit_at_once", lambda: left.append(True))
    shutdown.install(lambda: (1, 2))
    for now in (0.0, 50.0, 100.0):
        shutdown.after_step(now)
    os.kill(os.getpid(), signal.SIGTERM)
    for now in (101.0, 101.1, 101.2, 105.9):
        shutdown.after_step(now)
    assert left == [], "rank 0 may be asked a moment later, and needs it until then"
    shutdown.after_step(106.0)
    assert left == [True]
    assert "rank 1 ends after SIGTERM; rank 0 was not asked to" in capsys.readouterr().err


def test_a_slow_step_is_no_reason_to_leave_before_rank_0_could(monkeypatch: pytest.MonkeyPatch) -> None:
    left: list[bool] = []
    monkeypatch.setattr("allaboard.inside.shutdown.exit_at_once", lambda: left.append(True))
    shutdown.install(lambda: (1, 2))
    os.kill(os.getpid(), signal.SIGTERM)
    shutdown.after_step(60.0)
    shutdown.after_step(120.0)
    assert left == []
    shutdown.after_step(180.0)
    assert left == [True]


@pytest.mark.thorough
@pytest.mark.slow
@pytest.mark.parametrize("order", ["together", "rank 0 first", "rank 1 first"])
def test_sigterm_to_a_gang_saves_once_and_all_exit_143_without_a_traceback(run: Store, order: str) -> None:
    pytest.importorskip("torch")
    with Gang(TRAIN, run, 2, STEPS="100000", PACE="0.01", ALLABOARD_CHECKPOINT_EVERY="100000") as ranks:
        for rank in ranks:
            rank.wait_for("stepped 5\n")
        for rank in reversed(ranks) if order == "rank 1 first" else ranks:
            rank.process.send_signal(signal.SIGTERM)
            if order == "rank 1 first" and rank is ranks[1]:
                rank.wait_for("stepped")  # it goes on, for rank 0 needs it until its own boundary
        codes = [rank.end() for rank in ranks]
    assert codes == [143, 143], [rank.err for rank in ranks]
    assert all("Traceback" not in rank.err for rank in ranks), [rank.err for rank in ranks]
    assert "rank 1 ends after SIGTERM, its peers have left" in ranks[1].err
    (saved,) = list_checkpoints(run)
    assert verify(run, saved.step) == []
    assert saved.manifest.world_size == 2
    assert saved.step >= 5


@pytest.mark.slow
@pytest.mark.thorough
def test_sigterm_to_one_rank_of_a_gang_ends_it_while_the_others_live(run: Store) -> None:
    pytest.importorskip("torch")
    with Gang(TRAIN, run, 2, STEPS="100000", PACE="0.01", ALLABOARD_CHECKPOINT_EVERY="100000") as ranks:
        for rank in ranks:
            rank.wait_for("stepped 5\n")
        ranks[1].process.send_signal(signal.SIGTERM)
        assert ranks[1].end() == 143
        assert "rank 1 ends after SIGTERM; rank 0 was not asked to" in ranks[1].err


@pytest.mark.slow
@pytest.mark.thorough
def test_a_checkpoint_of_two_ranks_resumes_at_other_world_sizes(run: Store) -> None:
    pytest.importorskip("torch")
    with Gang(TRAIN, run, 2, STEPS="20", ALLABOARD_CHECKPOINT_EVERY="10") as ranks:
        assert [rank.end() for rank in ranks] == [0, 0], [rank.err for rank in ranks]
    done = 20
    for size in (1, 3):
        (last,) = [line for line in ranks[0].out.splitlines() if line.startswith("ends")]
        with Gang(TRAIN, run, size, STEPS=f"{done + 5}", ALLABOARD_CHECKPOINT_EVERY="5") as ranks:
            assert [rank.end() for rank in ranks] == [0] * size, [rank.err for rank in ranks]
        starts = {line for rank in ranks for line in rank.out.splitlines() if line.startswith("starts")}
        assert starts == {f"starts after {done} {last.split()[1]}"}  # on every rank the same step and weights
        done += 5
    assert [found.manifest.world_size for found in list_checkpoints(run)] == [2, 2, 1, 3]


@pytest.mark.thorough
@pytest.mark.slow
def test_all_ranks_take_what_rank_0_found(run: Store, tmp_path: Path) -> None:
    """Rank 1 looks at another disk, where there is nothing; without agreement it would start at 0."""
    pytest.importorskip("torch")
    for step in (10, 20, 30):
        a_checkpoint(run, step)
    corrupt(run, 30)
    body = """
        import torch.distributed as dist
        from allaboard.inside import Checkpointer
        dist.init_process_group("gloo")
        found = Checkpointer().resume()
        print("found", found.step, found.uri)
        dist.barrier()
        dist.destroy_process_group()
    """
    elsewhere = {1: {"ALLABOARD_CHECKPOINTS": str(tmp_path / "nothing")}}
    with Gang(body, run, 2, elsewhere) as ranks:
        assert [rank.end() for rank in ranks] == [0, 0], [rank.err for rank in ranks]
    assert all(f"found 20 {run.uri}/step-000000000020" in rank.out for rank in ranks)
    assert [len(of_kind(rank.out, "flag")) for rank in ranks] == [1, 0]  # rank 0 speaks for all


@pytest.mark.slow
@pytest.mark.thorough
def test_an_error_of_rank_0_while_it_looks_is_everybodys(run: Store, tmp_path: Path) -> None:
    pytest.importorskip("torch")
    body = """
        import torch.distributed as dist
        from allaboard.inside import Checkpointer
        dist.init_process_group("gloo")
        Checkpointer().resume()
    """
    with Gang(body, run, 2, ALLABOARD_START_FROM=str(tmp_path / "absent/step-000000000001")) as ranks:
        # torch may abort a process that ends while its peer closes their connection.
        assert {rank.end() for rank in ranks} <= {1, -signal.SIGABRT}
    assert all("BadInput: checkpoints.start_from" in rank.err for rank in ranks)


@pytest.mark.thorough
@pytest.mark.slow
def test_a_real_error_of_a_rank_keeps_its_traceback(run: Store) -> None:
    pytest.importorskip("torch")
    body = """
        import torch.distributed as dist
        from allaboard.inside import Checkpointer
        dist.init_process_group("gloo")
        ckpt = Checkpointer()
        raise ValueError("a bug of the script")
    """
    with Gang(body, run, 2) as ranks:
        assert [rank.end() for rank in ranks] == [1, 1]
    assert all("ValueError: a bug of the script" in rank.err and "Traceback" in rank.err for rank in ranks)


# --- without torch, without anything


def test_bytes_need_no_torch_and_import_none(run: Store) -> None:
    body = """
        import sys
        sys.modules["torch"] = None
        from allaboard.errors import BadInput
        from allaboard.inside import Checkpointer
        ckpt = Checkpointer(every=1, keep=2)
        ckpt.step(1, lambda: b"state", {"loss": 0.5})
        assert ckpt.resume().load() == b"state"
        try:
            ckpt.save(2, {"weight": [1, 2]})
        except BadInput as error:
            print(error)
        print("boto3" in sys.modules, "yaml" in sys.modules)
    """
    script = ended(body, run)
    assert script.process.returncode == 0, script.err
    assert "a state of type dict is saved by torch, which is not installed" in script.out
    assert "False False" in script.out


# --- the world says no

ONE_SAVE = """
    from allaboard.inside import Checkpointer
    ckpt = Checkpointer()
    ckpt.resume()
    ckpt.save(7, {"model.bin": bytes(900_000)})
"""


def test_a_folder_without_write_permission_ends_the_script_before_it_trains(tmp_path: Path) -> None:
    folder = tmp_path / "locked"
    folder.mkdir(mode=0o755)
    for above in (tmp_path, *tmp_path.parents):
        if os.geteuid() == 0 and above.stat().st_mode & 0o055 != 0o055:
            above.chmod(0o755)
    body = """
        import os
        from allaboard.inside import Checkpointer
        if os.geteuid() == 0:
            os.setuid(65534)
        Checkpointer().resume()
        print("training")
    """
    if os.geteuid() != 0:
        folder.chmod(0o555)
    script = ended(body, str(folder / "run-1"))
    folder.chmod(0o755)
    assert script.process.returncode == 1
    assert "training" not in script.out
    assert f"StorageDenied: checkpoint {folder}/run-1: opening failed" in script.err
    assert "Permission denied" in script.err and "use another folder" in script.err


def test_a_full_disk_ends_the_script_with_one_clear_error_and_nothing_torn(small_disk: Path) -> None:
    run = open_store(small_disk / "run-1")
    a_checkpoint(run, 6, parts={"model.bin": bytes(300_000)})
    script = ended(ONE_SAVE, run)
    assert script.process.returncode == 1
    last = script.err.strip().splitlines()[-1]
    assert f"StorageFull: checkpoint {run.uri}/step-000000000007: saving step 7 failed" in last
    assert "No space left on device" in last and "free some, keep fewer checkpoints" in last
    assert steps(run) == [6]
    assert verify(run, 6) == []
    assert keys(run) == [
        *("step-000000000006/manifest.json", "step-000000000006/model.bin"),
        "writers/000000000001.json",
    ]


def test_what_retention_let_go_of_makes_room_before_a_disk_is_called_full(small_disk: Path) -> None:
    run = open_store(small_disk / "run-1")
    ckpt = Checkpointer(run.uri, keep=1)
    for step in range(1, 7):
        ckpt.save(step, {"model.bin": bytes([step]) * 345_000})
        assert steps(run) == [step]
        assert verify(run, step) == []


def test_a_dead_endpoint_ends_the_script_with_one_clear_error() -> None:
    environ = {
        "AWS_ENDPOINT_URL": f"http://127.0.0.1:{free_port()}",
        "AWS_ACCESS_KEY_ID": "x",
        "AWS_SECRET_ACCESS_KEY": "a-secret-nobody-may-read",
        "AWS_REGION": "us-east-1",
        "AWS_EC2_METADATA_DISABLED": "true",
    }
    body = """
        from allaboard.inside import Checkpointer
        Checkpointer().save(7, b"state")
    """
    script = ended(body, "s3://bucket/ckpt/run-1", **environ)
    assert script.process.returncode == 1
    last = script.err.strip().splitlines()[-1]
    assert (
        "StorageUnreachable: checkpoint s3://bucket/ckpt/run-1/step-000000000007: saving step 7 failed"
        in last
    )
    assert environ["AWS_ENDPOINT_URL"] in last
    assert environ["AWS_SECRET_ACCESS_KEY"] not in script.err


def test_old_checkpoints_that_cannot_be_removed_do_not_end_a_training(
    run: Store, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    from allaboard.errors import StorageDenied

    def denied(self: Store, keys: object) -> None:
        raise StorageDenied("s3:DeleteObject is not allowed")

    ckpt = Checkpointer(run.uri, keep=1)
    ckpt.save(1, b"state")
    monkeypatch.setattr(type(run), "delete", denied)
    for step in (2, 3):
        assert ckpt.save(step, b"state") is not None
    assert steps(run) == [1, 2, 3]
    (flag,) = of_kind(capsys.readouterr().out, "flag")
    assert flag["code"] == "checkpoint_retention"
    assert "s3:DeleteObject is not allowed" in flag["text"]


# --- in a bucket


@pytest.fixture
def bucket(moto: S3Server, monkeypatch: pytest.MonkeyPatch) -> Store:
    for name, value in moto.environ.items():
        monkeypatch.setenv(name, value)
    return open_store(f"s3://{moto.make_bucket()}/ckpt/run-1")


def test_a_bucket_is_as_good_as_a_disk(bucket: Store) -> None:
    torch = pytest.importorskip("torch")
    ckpt = Checkpointer(bucket.uri, every=1, keep=2, best="loss:min")
    for step, loss in ((1, 0.1), (2, 0.5), (3, 0.4), (4, 0.3)):
        ckpt.step(step, lambda step=step: {"weight": torch.full((3,), float(step))}, {"loss": loss})  # type: ignore[misc]
    assert steps(bucket) == [1, 3, 4]
    found = Checkpointer(bucket.uri).resume()
    assert found is not None
    local = found.path()
    assert found.load()["weight"].tolist() == [4.0] * 3
    assert not local.exists()  # in memory now, the copy is gone
    assert found.load()["weight"].tolist() == [4.0] * 3


def test_in_a_bucket_a_corrupt_newest_is_passed_over(
    bucket: Store, capsys: pytest.CaptureFixture[str]
) -> None:
    for step in (10, 20):
        a_checkpoint(bucket, step)
    corrupt(bucket, 20)
    found = Checkpointer(bucket.uri).resume()
    assert found is not None and found.step == 10
    assert of_kind(capsys.readouterr().out, "flag")[0]["code"] == "checkpoint_corrupt"
    assert found.load()["model.bin"] == b"model of step 10"


def test_a_script_killed_at_any_moment_resumes_from_a_bucket(bucket: Store) -> None:
    with Script(LOOP.format(every=1), bucket) as script:
        script.wait_for("stepped 3\n")
        script.process.kill()
        script.end()
    newest = list_checkpoints(bucket)[-1]
    assert newest.step >= 3
    with Script(LOOP.format(every=1), bucket) as again:
        again.wait_for(f"stepped {newest.step + 1}\n")
    assert of_kind(again.out, "resumed")[0]["step"] == newest.step


@pytest.mark.thorough
def test_what_a_killed_resume_had_fetched_goes_with_the_next(bucket: Store, tmp_path: Path) -> None:
    a_checkpoint(bucket, 5)
    body = """
        import sys
        from allaboard.inside import Checkpointer
        found = Checkpointer().resume()
        print("fetched", flush=True)
        sys.stdin.readline()
    """
    tmp = tmp_path / "tmp"
    tmp.mkdir()
    with Script(body, bucket, TMPDIR=str(tmp)) as killed, Script(body, bucket, TMPDIR=str(tmp)) as alive:
        killed.wait_for("fetched")
        alive.wait_for("fetched")
        assert len(scratch := list(tmp.glob("**/model.bin"))) == 2
        killed.process.kill()
        killed.end()
        with Script(body, bucket, TMPDIR=str(tmp)) as again:
            again.wait_for("fetched")
            assert len(set(tmp.glob("**/model.bin")) & set(scratch)) == 1
            again.process.communicate("\n", timeout=WAIT)
        alive.process.communicate("\n", timeout=WAIT)
    assert [path for path in tmp.glob("**/*") if path.is_file()] == []
