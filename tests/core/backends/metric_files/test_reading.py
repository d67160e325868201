"""Metrics files of a run: recorded ones of real libraries, torn and hostile ones, and those of other runs."""

from __future__ import annotations

import io
import json
import os
import random
import struct
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from allaboard.backends.metric_files import bounds, event_files
from allaboard.backends.metric_files.reading import read_metrics, with_metrics
from allaboard.runs.observation import Measured, Observation, Progress

SAMPLES = Path(__file__).parent / "samples"
LONG_AGO = 0.0


def read(folder: Path | str, since: float = LONG_AGO) -> Measured:
    return read_metrics(str(folder), since, {})


def steps(measured: Measured) -> dict[str, list[int]]:
    return {name: [step for step, _ in points] for name, points in measured.curves.items()}


def write(path: Path, text: str | bytes, modified: float = 1000.0) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(text.encode() if isinstance(text, str) else text)
    os.utime(path, (modified, modified))
    return path


# --- each library


def test_the_trials_of_one_training_are_one_curve_in_event_files() -> None:
    measured = read(SAMPLES / "torch_tensorboard")
    assert steps(measured) == {"loss/train": [*range(10)], "loss/val": [2, 5, 8]}
    assert measured.curves["loss/train"][5:7] == ((5, pytest.approx(1 / 6)), (6, pytest.approx(1 / 13)))
    assert measured.formats == ("TensorBoard's event files",) and measured.gaps == ()
    assert (measured.step, measured.total) == (9, None)


def test_a_validation_is_apart_from_the_training_in_a_table_of_lightning() -> None:
    measured = read(SAMPLES / "lightning_csv")
    assert steps(measured) == {"train_loss": [1, 3, 5, 7, 9, 11], "val_loss": [3, 7, 11]}
    assert measured.files == {"train_loss": "metrics.csv", "val_loss": "metrics.csv"}


def test_epochs_are_steps_from_1_in_a_table_of_keras() -> None:
    measured = read(SAMPLES / "keras_csv")
    assert steps(measured) == {"loss": [1, 2, 3, 4], "val_loss": [1, 2, 3, 4]}


def test_the_newest_state_of_a_trainer_counts_and_knows_the_total() -> None:
    measured = read(SAMPLES / "hugging_face")
    assert steps(measured)["loss"] == [1, 2, 3, 4] and steps(measured)["eval_loss"] == [2, 4]
    assert measured.files["loss"] == "checkpoint-4/trainer_state.json"
    assert (measured.step, measured.total) == (4, 4)


@pytest.mark.parametrize(
    ("name", "text", "expected"),
    [
        ("results.csv", "   epoch,  time,  train/box_loss\n 1, 9.5, 0.75\n 2, 19.1, 0.5\n", [1, 2]),
        ("progress.csv", "time/total_timesteps,train/box_loss\n2048,9\n4096,8\n", [2048, 4096]),
        ("log.tsv", "iter\ttrain/box_loss\r\n100\t1.5\r\n200\t1.25\r\n", [100, 200]),
        ("metrics.csv", "\ufeffstep,train/box_loss\n10,1e-3\n20,nan\n30,2e-3\n", [10, 30]),
    ],
)  # fmt: skip
def test_tables_of_other_programs(name: str, text: str, expected: list[int], tmp_path: Path) -> None:
    write(tmp_path / name, text)
    assert steps(read(tmp_path))["train/box_loss"] == expected


def test_what_is_not_finite_is_named_with_its_step(tmp_path: Path) -> None:
    write(tmp_path / "metrics.csv", "step,loss\n1,0.5\n2,inf\n")
    measured = read(tmp_path)
    assert measured.nonfinite == ((2, "loss"),) and measured.last == {"loss": None}


@pytest.mark.parametrize(
    "text",
    [
        "path,label\nimages/1.png,3\n",
        "step\n1\n2\n",
        "2026-11-27 10:00:00 INFO epoch 1, loss 0.5\n",
        "",
        "\n\n",
        "\0\0\0\n\0\n",
    ],
)
def test_texts_that_are_no_table_of_metrics_have_no_metrics(text: str, tmp_path: Path) -> None:
    write(tmp_path / "a.csv", text)
    write(tmp_path / "b.log", text)
    assert read(tmp_path) == Measured()


# --- several files


def test_a_later_version_goes_on_from_an_earlier_one(tmp_path: Path) -> None:
    write(tmp_path / "version_0/metrics.csv", "step,loss\n1,4\n2,3\n3,2\n", 1000)
    write(tmp_path / "version_1/metrics.csv", "step,loss\n3,1.5\n4,1\n", 2000)
    assert read(tmp_path).curves == {"loss": ((1, 4.0), (2, 3.0), (3, 1.5), (4, 1.0))}


def test_files_beside_each_other_keep_names_of_their_own(tmp_path: Path) -> None:
    write(tmp_path / "train/log.csv", "epoch,loss,lr\n0,4,1\n1,3,1\n")
    write(tmp_path / "valid/log.csv", "epoch,loss\n0,5\n1,6\n")
    assert read(tmp_path).curves == {
        "train/log/loss": ((1, 4.0), (2, 3.0)),
        "lr": ((1, 1.0), (2, 1.0)),
        "valid/log/loss": ((1, 5.0), (2, 6.0)),
    }


def test_files_older_than_the_run_are_of_other_runs(tmp_path: Path) -> None:
    write(tmp_path / "version_0/metrics.csv", "step,loss\n900,4\n", 1000)
    write(tmp_path / "version_1/metrics.csv", "step,loss\n3,1.5\n", 2000)
    assert read(tmp_path, since=1500).curves == {"loss": ((3, 1.5),)}


def test_a_place_may_be_one_file(tmp_path: Path) -> None:
    write(tmp_path / "a.csv", "step,loss\n1,4\n")
    write(tmp_path / "b.csv", "step,loss\n9,4\n")
    assert read(tmp_path / "a.csv").step == 1


def test_a_place_that_is_not_there_yet_holds_nothing(tmp_path: Path) -> None:
    assert read(tmp_path / "runs") == Measured()


# --- torn and hostile


def _sample_files() -> Iterator[Path]:
    yield from (path for path in sorted(SAMPLES.rglob("*")) if path.is_file())


@pytest.mark.parametrize("sample", [*_sample_files()], ids=lambda path: path.parent.name + path.suffix)
def test_a_file_torn_anywhere_is_no_error_and_keeps_a_beginning(sample: Path, tmp_path: Path) -> None:
    data, whole, least = sample.read_bytes(), read(sample).curves, 0
    cuts = range(len(data)) if len(data) < 1000 else sorted(random.Random(1).sample(range(len(data)), 150))
    for cut in cuts:
        write(tmp_path / sample.name, data[:cut])
        measured = read(tmp_path)
        assert measured.gaps == ()
        for name, points in measured.curves.items():
            assert points == whole[name][: len(points)]
        count = sum(len(points) for points in measured.curves.values())
        assert count >= least
        least = count


def _record(data: bytes, length: int | None = None) -> bytes:
    from tensorboard.compat.tensorflow_stub.pywrap_tensorflow import masked_crc32c

    head = struct.pack("<Q", len(data) if length is None else length)
    return head + struct.pack("<I", masked_crc32c(head)) + data + struct.pack("<I", masked_crc32c(data))


def _event(step: int, tag: str = "loss", value: float = 0.5) -> bytes:
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event(step=step, wall_time=1.7e9)
    event.summary.value.add(tag=tag, simple_value=value)
    return bytes(event.SerializeToString())


def test_a_length_that_lies_takes_no_memory(tmp_path: Path) -> None:
    for lie in (2**63, 2**40, 2**32):
        write(tmp_path / "events.out.tfevents.1", _record(_event(1)) + _record(b"", lie) + _record(_event(2)))
        assert steps(read(tmp_path)) == {"loss": [1]}


def test_a_long_record_is_passed_over(tmp_path: Path) -> None:
    picture = _record(_event(2, tag="x" * (9 << 20)))
    write(tmp_path / "events.out.tfevents.1", _record(_event(1)) + picture + _record(_event(3)))
    assert steps(read(tmp_path)) == {"loss": [1, 3]}


def test_a_tensor_that_says_it_is_huge_is_no_scalar(tmp_path: Path) -> None:
    from tensorboard.compat.proto.event_pb2 import Event

    event = Event(step=1)
    for size in (10**12, 1):
        tensor = event.summary.value.add(tag=f"of {size}").tensor
        tensor.dtype = 1
        tensor.tensor_shape.dim.add(size=size)
        tensor.float_val.append(0.5)
    write(tmp_path / "events.out.tfevents.1", _record(bytes(event.SerializeToString())))
    assert read(tmp_path).curves == {"of 1": ((1, 0.5),)}


def test_damaged_bytes_raise_nothing(tmp_path: Path) -> None:
    chance = random.Random(7)
    for sample in _sample_files():
        data = sample.read_bytes()
        for _ in range(25):
            bad = bytearray(data)
            for _ in range(chance.choice((1, 3, 30))):
                bad[chance.randrange(len(bad))] = chance.randrange(256)
            write(tmp_path / sample.name, bytes(bad))
            measured = read(tmp_path)
            assert len(measured.curves) <= 200
            (tmp_path / sample.name).unlink()


def test_no_number_of_names_or_steps_takes_more_than_the_bounds(tmp_path: Path) -> None:
    names = ",".join(f"m{n}" for n in range(1500))
    write(tmp_path / "wide.csv", f"step,{names}\n" + "1," + ",".join(["1"] * 1500) + "\n")
    rows = "".join(f"{n},{(n * 7919) % 1009}\n" for n in range(60_000))
    write(tmp_path / "long.csv", f"step,loss\n{rows}30000000000000000000,1\n-1,2\nx,3\n")
    measured = read(tmp_path)
    assert len(measured.curves) <= 200
    kept = measured.curves.get("loss", ())
    assert len(kept) <= 5000 and kept[0][0] == 0 and kept[-1][0] == 59_999
    assert max(value for _, value in kept) == 1008.0


def test_many_files_and_much_time_are_bounded_and_said(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for n in range(130):
        write(tmp_path / f"v{n}/metrics.csv", f"step,loss\n{n},1\n", 1000 + n)
    measured = read(tmp_path)
    assert steps(measured)["loss"] == [*range(30, 130)]
    assert measured.gaps == ("metrics: only the newest 100 of 130 files count",)
    ticks = iter(range(10_000))
    late = read_metrics(str(tmp_path), 0.0, {}, clock=lambda: float(next(ticks)))
    assert len(late.curves["loss"]) < 20 and "takes too long" in late.gaps[-1]
    monkeypatch.setattr(bounds, "MOST_OF_A_FILE", 20)
    write(tmp_path / "one/metrics.csv", "step,loss\n1,4\n2,4\n3,4\n4,4\n")
    assert steps(read(tmp_path / "one")) == {"loss": [1, 2]}


@pytest.mark.parametrize("kind", ["fifo", "link to nowhere", "link to a device", "no right to read"])
def test_what_is_no_file_is_left_alone(kind: str, tmp_path: Path) -> None:
    path = tmp_path / "metrics.csv"
    if kind == "fifo":
        os.mkfifo(path)
    elif kind == "no right to read":
        write(path, "step,loss\n1,2\n").chmod(0)
        if os.access(path, os.R_OK):
            pytest.skip("root may read all")
    else:
        path.symlink_to("/nowhere" if kind == "link to nowhere" else "/dev/zero")
    measured = read(tmp_path)
    assert measured.curves == {}
    assert bool(measured.gaps) == (kind == "no right to read")


def test_names_that_nobody_can_print_are_no_names(tmp_path: Path) -> None:
    write(tmp_path / "metrics.csv", "step,\x1b[2Jloss,ok\n1,2,3\n")
    assert read(tmp_path).curves == {"ok": ((1, 3.0),)}


def test_without_tensorboard_a_sentence_names_the_extra(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in [name for name in sys.modules if name.partition(".")[0] == "tensorboard"]:
        monkeypatch.delitem(sys.modules, name)
    monkeypatch.setitem(sys.modules, "tensorboard", None)
    write(tmp_path / "events.out.tfevents.1", b"")
    write(tmp_path / "events.out.tfevents.2", b"")
    write(tmp_path / "metrics.csv", "step,loss\n1,2\n")
    measured = read(tmp_path)
    assert measured.curves == {"loss": ((1, 2.0),)}
    assert measured.gaps == (
        "metrics: event files are read by TensorBoard's own reader, which is not installed here; "
        "install allaboard[tensorboard]",
    )


def test_a_window_reads_each_byte_once_and_stops_with_its_budget() -> None:
    from allaboard.storage import open_store

    sample = SAMPLES / "torch_tensorboard/runs/events.out.tfevents.1700000000.host.7.0"
    budget = bounds.Budget(lambda: 0.0, 1.0, bytes=sample.stat().st_size)
    window = bounds.Window(open_store(sample.parent), sample.name, sample.stat().st_size, budget)
    copy = io.BytesIO()
    event_files._copy_short_records(window, copy)
    assert copy.getvalue() == sample.read_bytes() and budget.bytes == 0


# --- what is told


def test_what_the_script_tells_stands_first(tmp_path: Path) -> None:
    write(tmp_path / "metrics.csv", "step,loss,val_loss\n50,9,8\n")
    seen = Observation("r", progress=Progress(step=7, total=9, metrics={"loss": 0.5}))
    told = with_metrics(seen, str(tmp_path), LONG_AGO, {}).progress
    assert (told.step, told.total, told.metrics) == (7, 9, {"loss": 0.5, "val_loss": 8.0})
    assert told.files == {"val_loss": "metrics.csv"}


def test_where_the_script_tells_nothing_the_files_say_the_step(tmp_path: Path) -> None:
    state = {
        "log_history": [{"step": 5, "loss": 1.0}, {"step": 6, "eval_loss": float("nan")}],
        "max_steps": 9,
    }
    write(tmp_path / "trainer_state.json", json.dumps(state))
    seen = with_metrics(Observation("r"), str(tmp_path), LONG_AGO, {})
    assert (seen.progress.step, seen.progress.total) == (6, 9)
    assert seen.progress.metrics == {"loss": 1.0, "eval_loss": None}
    assert seen.progress.files["step"] == "trainer_state.json"
    again = Observation.from_dict(json.loads(json.dumps(seen.to_dict())))
    assert again.progress == seen.progress and again.measured is None
