"""Samples that each library wrote are whole; cut anywhere, or with a file less, none is."""

from __future__ import annotations

import io
import json
import random
import time
import tracemalloc
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path

import pytest

from allaboard.checkpoints.foreign import Judgement, Verdict, finding, judge_place
from allaboard.checkpoints.foreign.unit import MOST_READ
from tests.core.checkpoints.foreign.memory import NOW, folder, store_of

SAMPLES = Path(__file__).with_name("samples")
#: kind -> the checkpoints in it: (name, format, step, epoch)
EXPECTED: dict[str, list[tuple[str, str, int | None, float | None]]] = {
    "hugging_face_trainer": [("checkpoint-4", "huggingface-trainer", 4, 1.0)],
    "peft": [("checkpoint-4", "huggingface-trainer", 4, 1.0)],
    "safetensors_sharded": [("", "safetensors", None, None)],
    "accelerate": [("checkpoints/checkpoint_1", "accelerate", 1, None)],
    "lightning": [
        ("checkpoints/epoch=0-step=2.ckpt", "lightning", 2, 0),
        ("checkpoints/epoch=0-step=4.ckpt", "lightning", 4, 0),
        ("checkpoints/last.ckpt", "lightning", 4, 0),
    ],
    "torch_dcp": [("step-120", "torch-dcp", 120, None)],
    "torch_file": [("model-step7.pt", "torch", 7, None)],
    "deepspeed": [("global_step1", "deepspeed", 1, None), ("global_step2", "deepspeed", 2, None)],
    "xgboost": [("final.json", "xgboost", 1, None), ("model_1.ubj", "xgboost", 1, None)],
    "lightgbm": [("model_2.txt", "lightgbm", 2, None)],
    "keras": [
        ("epoch-01.keras", "keras", None, 1),
        ("epoch-02.keras", "keras", None, 2),
        ("last.weights.h5", "keras", None, None),
    ],
}
#: Files that no format promises; without one of these a checkpoint is whole all the same.
OPTIONAL = ("config.json", "generation_config.json", "optimizer.bin")


def judge(files: Mapping[str, bytes], times: Mapping[str, float] | None = None) -> list[Judgement]:
    return judge_place(store_of(files, times))


def test_every_family_has_a_sample() -> None:
    assert {path.name for path in SAMPLES.iterdir()} == EXPECTED.keys()


@pytest.mark.parametrize("kind", EXPECTED)
def test_what_a_library_wrote_is_whole(kind: str) -> None:
    judged = judge(folder(SAMPLES / kind))
    assert [(j.unit.name, j.format, j.facts.step, j.facts.epoch) for j in judged] == EXPECTED[kind]
    assert {(j.verdict, j.reason) for j in judged} == {(Verdict.WHOLE, "")}


def test_metrics_are_those_of_the_step() -> None:
    metrics = judge(folder(SAMPLES / "hugging_face_trainer"))[0].facts.metrics
    assert {"loss", "eval_loss", "learning_rate"} <= metrics.keys()
    assert metrics["eval_loss"] == pytest.approx(2.75, abs=0.1)
    assert not {"step", "epoch"} & metrics.keys()


@pytest.mark.parametrize("kind", EXPECTED)
def test_cut_anywhere_none_is_whole(kind: str) -> None:
    files = folder(SAMPLES / kind)
    wrong = [(name, len(left)) for name, left in cuts(files) if is_whole({**files, name: left}, name)]
    assert wrong == []


@pytest.mark.parametrize("kind", EXPECTED)
def test_without_a_file_none_is_whole(kind: str) -> None:
    files = folder(SAMPLES / kind)
    names = [name for name in files if name.rpartition("/")[2] not in OPTIONAL]
    assert [n for n in names if is_whole({key: files[key] for key in files if key != n}, n)] == []


def is_whole(files: Mapping[str, bytes], name: str) -> bool:
    """Whether the checkpoint that this file belongs to is called whole."""
    return any(
        item.verdict is Verdict.WHOLE and (name == "latest" or name.startswith(item.unit.name))
        for item in judge(files)
    )


def cuts(files: Mapping[str, bytes]) -> Iterator[tuple[str, bytes]]:
    for name, content in files.items():
        # JSON without its last line break says the same.
        end = len(content.rstrip()) if name.endswith(".json") else len(content)
        for size in sorted(set(boundaries(name, content))):
            if 0 <= size < end:
                yield name, content[:size]


def boundaries(name: str, content: bytes) -> Iterator[int]:
    """Sizes at which a file may be cut: its ends, eighths, and the borders within it."""
    size, ending = len(content), name.rpartition(".")[2]
    yield from {0, 1, 4, 8, 16, size - 1, size - 2, size - 21, size - 22, size - 23}
    yield from (size * eighth // 8 for eighth in range(1, 8))
    if content.startswith(b"PK"):
        with zipfile.ZipFile(io.BytesIO(content)) as archive:
            for member in archive.infolist():
                yield from (member.header_offset, member.header_offset + 30, member.header_offset - 1)
            yield archive.start_dir
    if ending == "safetensors":
        yield 8 + int.from_bytes(content[:8], "little")
    if ending in ("json", "txt"):
        yield from (at + 1 for at in range(size) if content[at : at + 1] in b"\n}]")
    if ending in ("metadata", "ubj"):
        yield from range(size)


@pytest.mark.parametrize(
    ("kind", "late"),
    [
        ("hugging_face_trainer", "checkpoint-4/model.safetensors"),
        ("accelerate", "checkpoints/checkpoint_1/model.safetensors"),
        ("torch_dcp", "step-120/__0_0.distcp"),
        ("deepspeed", "global_step2/mp_rank_00_model_states.pt"),
    ],
)
def test_a_save_over_an_earlier_one_is_not_whole_before_its_end(kind: str, late: str) -> None:
    items = {item.unit.name: item for item in judge(folder(SAMPLES / kind), {late: NOW + 5})}
    item = items[late.rpartition("/")[0]]
    name = late.rpartition("/")[2]
    assert item.verdict is Verdict.UNKNOWN and f"{name} is newer than what is written last" in item.reason


@pytest.mark.parametrize(
    ("kind", "late"),
    [
        ("hugging_face_trainer", "checkpoint-4/rng_state_0.pth"),
        ("accelerate", "checkpoints/checkpoint_1/custom_checkpoint_0.pkl"),
    ],
)
def test_what_other_ranks_and_scripts_add_may_come_later(kind: str, late: str) -> None:
    files = folder(SAMPLES / kind)
    files[late] = folder(SAMPLES / "torch_file")["model-step7.pt"]
    assert [item.verdict for item in judge(files, {late: NOW + 5})] == [Verdict.WHOLE]


def test_an_archive_within_a_file_that_is_cut_is_not_its_directory() -> None:
    inner = folder(SAMPLES / "torch_file")["model-step7.pt"]
    outer = io.BytesIO()
    with zipfile.ZipFile(outer, "w") as archive:
        archive.writestr("archive/data.pkl", b"\x80\x02}q\x00.")
        archive.writestr("archive/data/0", inner)
    cut = outer.getvalue()[: outer.getvalue().rindex(inner) + len(inner)]
    assert zipfile.is_zipfile(io.BytesIO(cut))
    assert [item.verdict for item in judge({"a.pt": outer.getvalue(), "b.pt": cut})] == [
        Verdict.WHOLE,
        Verdict.TORN,
    ]


NAMES = [
    "../../etc/passwd",
    "a\x1b[31m.pt",
    "x\ny.ckpt",
    "\u202egnp.pt",
    "a" * 255 + ".pt",
    "'; rm -rf.keras",
]


@pytest.mark.parametrize("name", NAMES)
def test_hostile_names_reach_no_terminal(name: str) -> None:
    index = b'{"weight_map": {"w": "%s"}}' % name.encode("unicode_escape").replace(b"\\", b"\\\\")
    for item in judge({name: b"PK\x03\x04", "model.safetensors.index.json": index}):
        assert item.verdict is not Verdict.WHOLE and item.reason.isprintable()


@pytest.mark.parametrize(
    ("name", "content"),
    [
        ("a.json", b'{"learner"' + b":[" * 100_000),
        ("a.ubj", b"{L\x00\x00\x00\x00\x00\x00\x00\x07learner{" + b"[" * 100_000),
        ("a.ubj", b"{L\x00\x00\x00\x00\x00\x00\x00\x07learner{L\x7f\xff\xff\xff\xff\xff\xff\xff"),
        (
            "a.ubj",
            b"{L\x00\x00\x00\x00\x00\x00\x00\x07learner{L\x00\x00\x00\x00\x00\x00\x00\x01a[#L\x7f"
            + b"\xff" * 7,
        ),
        ("m.safetensors", (2**62).to_bytes(8, "little") + b"{}"),
        ("m.safetensors", (7).to_bytes(8, "little") + b"[1,2,3]"),
        (
            "m.safetensors",
            (46).to_bytes(8, "little") + b'{"w":{"data_offsets":[0,99999999999999999999]}}'[:46],
        ),
        ("d/.metadata", b"\x80\x04" + b"(" * 1000 + b"."),
        ("d/.metadata", b"\x80\x04\x8a\xff" + b"\xff" * 10),
        ("d/.metadata", b"cos\nsystem\n(S'touch owned'\ntR."),
        ("last.ckpt", b"cos\nsystem\n(S'touch owned'\ntR."),
        ("a.h5", b"\x89HDF\r\n\x1a\n" + b"\xff" * 60),
        ("a.txt", b"tree\nversion=v4\ntree_sizes=" + b"9" * 5000 + b"\n"),
        ("a.txt", b"tree\nversion=v4\ntree_sizes=99999999999999999999\n\nTree=0\n"),
        ("checkpoint-4/trainer_state.json", b'{"global_step": 1e999}'),
        ("global_step3/mp_rank_00_model_states.pt", b""),
        ("checkpoint_1/random_states_99999999999.pkl", b"PK\x03\x04"),
        ("checkpoint-5/rng_state_99999999999.pth", b"PK\x03\x04"),
    ],
)
def test_hostile_content_is_torn_or_unknown_and_soon_told(name: str, content: bytes) -> None:
    begun = time.monotonic()
    assert [item.verdict for item in judge({name: content})] in ([Verdict.TORN], [Verdict.UNKNOWN])
    assert time.monotonic() - begun < 2
    assert not Path("owned").exists()


def test_a_pickle_is_read_and_never_loaded() -> None:
    called = b"cos\nsystem\nU\x0btouch owned\x85R"
    hostile = b"\x80\x02" + called + b"}U\x0bglobal_stepK\x04sU\x19pytorch-lightning_versionU\x011s."
    archive = io.BytesIO()
    with zipfile.ZipFile(archive, "w") as file:
        file.writestr("archive/data.pkl", hostile)
    judge({"last.ckpt": archive.getvalue(), "a.pt": archive.getvalue()})
    assert not Path("owned").exists()


def test_what_was_listed_in_part_is_never_called_torn(monkeypatch: pytest.MonkeyPatch) -> None:
    """Nothing is moved aside because a listing was cut."""
    files = folder(SAMPLES / "hugging_face_trainer")
    files["a.pt"] = folder(SAMPLES / "torch_file")["model-step7.pt"]
    for most in range(len(files) + 1):
        monkeypatch.setattr(finding, "MOST_ENTRIES", most)
        verdicts = {item.unit.name: item.verdict for item in judge(files)}
        assert Verdict.TORN not in verdicts.values()
        assert verdicts.get("a.pt", Verdict.WHOLE) is Verdict.WHOLE
        assert most == len(files) or verdicts.get("checkpoint-4") in (None, Verdict.UNKNOWN)


def test_a_round_has_the_number_that_the_log_gives_it() -> None:
    """Whatever somebody calls the file: two rounds are 0 and 1."""
    binary = folder(SAMPLES / "xgboost")["model_1.ubj"]
    [judged] = judge({"rounds-2.ubj": binary})
    assert judged.facts.step == 1


LARGE = 2**19
"""Bytes of a model that is read in many pieces."""


def grown(name: str) -> bytes:
    """A sample of XGBoost with its trees again and again."""
    sample = folder(SAMPLES / "xgboost")[name]
    if name.endswith(".json"):
        model = json.loads(sample)
        inner = model["learner"]["gradient_booster"]["model"]
        inner["trees"] *= LARGE // len(sample) * 2
        return json.dumps(model, separators=(",", ":")).encode()
    before, head, rest = sample.partition(b"trees[#L")
    end = rest.index(b"}L\x00\x00\x00\x00\x00\x00\x00\x04nameS")
    times = LARGE // (end - 8) + 1
    count = int.from_bytes(rest[:8], "big") * times
    return before + head + count.to_bytes(8, "big") + rest[8:end] * times + rest[end:]


@pytest.mark.thorough(but=("model_1.ubj",))
@pytest.mark.parametrize("name", ["final.json", "model_1.ubj"])
def test_a_model_is_judged_in_pieces(name: str, monkeypatch: pytest.MonkeyPatch) -> None:
    for name_of_size, size in (("files._PIECE", 4096), ("walking._CHUNK", 4096), ("walking._AHEAD", 512)):
        monkeypatch.setattr(f"allaboard.checkpoints.foreign.{name_of_size}", size)
    content, chance = grown(name), random.Random(7)
    tracemalloc.start()
    [judged] = judge({name: content})
    peak = tracemalloc.get_traced_memory()[1]
    tracemalloc.stop()
    assert (judged.verdict, judged.reason, judged.facts.step) == (Verdict.WHOLE, "", 1)
    assert len(content) > LARGE and peak < LARGE // 4
    size = len(content)
    cuts_at = [*range(size - 30, size), *(chance.randrange(99, size) for _ in range(20))]
    wrong = [at for at in cuts_at if judge({name: content[:at]})[0].verdict is not Verdict.TORN]
    assert wrong == []


def test_a_model_of_any_size_is_judged() -> None:
    numbers = (b"[" + b"-1.5E-3," * 2_000_000)[:-1] + b"]"
    assert len(numbers) > MOST_READ and verdicts({"m_3.json": LEARNER % numbers}) == {
        "m_3.json": Verdict.WHOLE
    }
    sample = folder(SAMPLES / "xgboost")["model_1.ubj"]
    before, mark, rest = sample.partition(b"base_weights[$d#L")
    count = MOST_READ // 4
    assert rest[:8] == (3).to_bytes(8, "big")
    large = before + mark + count.to_bytes(8, "big") + bytes(4 * count) + rest[8 + 4 * 3 :]
    for content, verdict in (
        (large, Verdict.WHOLE),
        (large[:-1], Verdict.TORN),
        (large[:MOST_READ], Verdict.TORN),
    ):
        assert verdicts({"m_3.ubj": content}) == {"m_3.ubj": verdict}


LEARNER = b'{"learner":{"a":%s},"version":[3,2,0]}'


@pytest.mark.parametrize(
    "value",
    [
        b"[]", b"{}", b"[1]",
        b"[-1.5E-3,NaN,-Infinity, 2 ]", b'"a\\"]"', b"true", b'[[],[{"b":null}],0,"x"]', b" \n1 ",
        b"[" + b" " * 200_000 + b"1]", b'"' + b"x" * 200_000 + b'"', b"[" + b"10," * 99_999 + b"10]",
    ],
    ids=lambda value: value[:30].decode(),
)  # fmt: skip
def test_a_model_of_json_is_whole_whatever_is_in_it(value: bytes) -> None:
    for content in (LEARNER % value, LEARNER % value + b" \n" * 70_000):
        assert json.loads(content) and verdicts({"m_3.json": content}) == {"m_3.json": Verdict.WHOLE}


@pytest.mark.parametrize(
    "value",
    [
        b"", b"[1,]", b"[,1]", b"[1 2]", b"{1:2}", b'{"a"}', b'{"a":}', b'{"a":1,}', b"[1}", b"]", b"}",
        b"1,2", b"\x00", b'["\x00"]', b"[1\x002]", b"nul", b"'a'", b":", b"{,}", b"[1:2]", b'"a',
    ],
    ids=str,
)  # fmt: skip
def test_a_model_of_what_is_no_json_is_not_whole(value: bytes) -> None:
    assert verdicts({"m_3.json": LEARNER % value}) == {"m_3.json": Verdict.TORN}


def test_what_follows_a_model_is_none_of_it() -> None:
    content = LEARNER % b"1"
    for more in (b"}", b"1", b"\x00" * 9, content):
        assert verdicts({"m_3.json": content + more}) == {"m_3.json": Verdict.TORN}
    binary = folder(SAMPLES / "xgboost")["model_1.ubj"]
    assert verdicts({"m_3.ubj": binary + b"\x00"}) == {"m_3.ubj": Verdict.TORN}


def test_a_hostile_model_takes_bounded_time_and_depth() -> None:
    deep = LEARNER % (b"[" * 100_000)
    assert verdicts({"m_3.json": deep}) == {"m_3.json": Verdict.UNKNOWN}
    assert verdicts({"m_3.json": LEARNER % (b'"' + b"x" * 9_000_000 + b'"')}) == {"m_3.json": Verdict.UNKNOWN}
    head = b"{L\x00\x00\x00\x00\x00\x00\x00\x07learner{U\x01a"
    longest = (2**63 - 1).to_bytes(8, "big")
    assert verdicts({"m_3.ubj": head + b"[" * 100_000}) == {"m_3.ubj": Verdict.UNKNOWN}
    for value in (
        b"[$d#L" + longest,
        b"[#L" + longest,
        b"SL" + longest,
        b"{L" + longest,
        b"[$L#L" + b"\xff" * 8,
    ):
        assert verdicts({"m_3.ubj": head + value + b"}}"}) == {"m_3.ubj": Verdict.TORN}


STATE = folder(SAMPLES / "accelerate")


def saved(name: str, *parts: str) -> dict[str, bytes]:
    """Files of a state of Accelerate in a folder of another name."""
    files = {key.rpartition("/")[2]: data for key, data in STATE.items()}
    return {f"{name}/{part}": files[part] for part in parts or files}


def verdicts(files: Mapping[str, bytes]) -> dict[str, Verdict]:
    return {item.unit.name: item.verdict for item in judge(files)}


def test_a_save_of_accelerate_that_ends_early_is_never_whole() -> None:
    """Its folders are named by the script: `step_40` in the examples."""
    weights, optimizer = "model.safetensors", "optimizer.bin"
    assert verdicts(saved("step_40")) == {"step_40": Verdict.WHOLE}
    assert verdicts(saved("step_40", weights, optimizer)) == {"step_40": Verdict.TORN}
    assert verdicts(saved("step_40", weights)) == {"step_40": Verdict.UNKNOWN}
    both = verdicts({**saved("step_20"), **saved("step_40", weights)})
    assert both == {"step_20": Verdict.WHOLE, "step_40": Verdict.TORN}


def test_weights_alone_are_whole_where_a_script_saves_nothing_else() -> None:
    weights = "model.safetensors"
    assert verdicts({**saved("e_1", weights), **saved("e_2", weights)}) == dict.fromkeys(
        ("e_1", "e_2"), Verdict.WHOLE
    )
    assert verdicts(saved("final", weights)) == {"final": Verdict.WHOLE}
    configured = {**saved("model-7", weights), "model-7/config.json": b"{}"}
    assert verdicts(configured) == {"model-7": Verdict.WHOLE}
