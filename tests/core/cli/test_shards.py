"""`allaboard shards`: from a folder or a function to a data set, and back to what is wrong with it."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.core.cli.terminal import Terminal


@pytest.fixture
def photos(ab: Terminal) -> Path:
    """Ten samples of two files each."""
    folder = ab.folder / "photos"
    folder.mkdir()
    for n in range(10):
        (folder / f"{n:04d}.jpg").write_bytes(b"picture %d" % n)
        (folder / f"{n:04d}.json").write_text(json.dumps({"label": n}))
    return folder


def test_a_folder_becomes_a_data_set(ab: Terminal, photos: Path) -> None:
    said = ab(
        "shards", "prepare", "photos", "store://photos/shards", "--samples-per-shard", "4", "--store", "team"
    )
    assert (
        said.code == 0
        and "10 samples in 3 shards" in said.out
        and f"{ab.folder}/team/photos/shards" in said.out
    )
    head, *rows = ab("shards", "list", "team/photos/shards").out.splitlines()
    assert head.split() == ["shard", "samples", "size"] and [row.split()[1] for row in rows[:3]] == [
        "4",
        "4",
        "2",
    ]
    body = ab("shards", "list", "team/photos/shards", "--json").json
    assert body["samples"] == 10 and [s["samples"] for s in body["shards"]] == [4, 4, 2]
    assert ab("shards", "verify", "team/photos/shards").out == "every shard is as the index says\n"


def test_preparing_in_json_and_again(ab: Terminal, photos: Path) -> None:
    first = ab("shards", "prepare", "photos", "shards", "--json")
    assert first.code == 0 and first.json["samples"] == 10 and first.json["into"] == f"{ab.folder}/shards"
    assert Path(first.json["uri"]).parent == Path(first.json["into"])
    assert ab("shards", "prepare", "photos", "shards", "--json").json == first.json


def test_a_function_of_the_folder_one_stands_in(ab: Terminal) -> None:
    ab.write(
        "prepare.py",
        "def samples():\n    for n in range(7):\n        yield {'__key__': f'{n:03d}', 'txt': b'%d' % n}\n",
    )
    said = ab("shards", "prepare", "prepare:samples", "shards")
    assert said.code == 0 and "7 samples in 1 shard," in said.out, said.text


def test_damage_is_found(ab: Terminal, photos: Path) -> None:
    assert ab("shards", "prepare", "photos", "shards").code == 0
    shard = next((ab.folder / "shards").rglob("*.tar"))
    data = bytearray(shard.read_bytes())
    data[600] ^= 1
    shard.write_bytes(data)
    said = ab("shards", "verify", "shards")
    assert said.code == 2 and shard.name in said.out and "checksum" in said.out
    said = ab("shards", "verify", "shards", "--json")
    assert said.code == 2 and said.json["ok"] is False and len(said.json["problems"]) == 1


WRONG = {
    "no such source": (["prepare", "nowhere", "shards"], 2, "nowhere"),
    "an empty source": (["prepare", "empty", "shards"], 2, "holds no files"),
    "no such function": (["prepare", "prepare:nothing", "shards"], 2, "prepare"),
    "no size": (["prepare", "photos", "shards", "--bytes-per-shard", "big"], 2, "'big' is not a size"),
    "into itself": (["prepare", "photos", "photos/shards"], 2, "inside of the source"),
    "nothing prepared": (["list", "empty"], 2, "holds no index.json"),
}  # fmt: skip


@pytest.mark.parametrize("case", WRONG)
def test_what_cannot_be_prepared_or_listed(ab: Terminal, photos: Path, case: str) -> None:
    (ab.folder / "empty").mkdir()
    words, code, expected = WRONG[case]
    said = ab("shards", *words)
    assert said.code == code and expected in said.err, said.text
