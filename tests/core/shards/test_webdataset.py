"""What we write, the real `webdataset` library reads."""

from __future__ import annotations

import random
from pathlib import Path
from typing import Any

import pytest

from allaboard.inside.reader import ShardReader
from allaboard.shards import prepare
from tests.core.shards.building import a_folder, some_files

pytestmark = pytest.mark.filterwarnings("ignore::ResourceWarning")  # it leaves its files open


@pytest.fixture(scope="module")
def webdataset() -> Any:
    """Imported by the first test: it loads torch."""
    return pytest.importorskip("webdataset")


NAMES = ["a", "cat/1", "v1.0/two words", "ü/日本", "long/" + "x" * 200, "deep/" * 30 + "leaf"]


def test_webdataset_reads_every_sample_with_all_its_parts(tmp_path: Path, webdataset: Any) -> None:
    rng = random.Random(0)
    samples = [
        {"__key__": name, "bin": rng.randbytes(rng.randrange(2000)), "cls": number, "seg.json": {"n": number}}
        for number, name in enumerate(NAMES)
    ]
    index = prepare(samples, tmp_path / "out", samples_per_shard=4)
    urls = index.urls(str(tmp_path / "out"))
    found = list(webdataset.WebDataset(urls, shardshuffle=False).decode())
    assert [(one["__key__"], one["bin"], one["cls"], one["seg.json"]) for one in found] == [
        (one["__key__"], one["bin"], one["cls"], one["seg.json"]) for one in samples
    ]


def test_arrays_come_back_as_arrays(tmp_path: Path, webdataset: Any) -> None:
    import numpy

    array = numpy.random.default_rng(0).normal(size=(3, 4)).astype("float32")
    index = prepare([{"x.npy": array, "txt": "grün"}], tmp_path / "out")
    (found,) = webdataset.WebDataset(index.urls(str(tmp_path / "out")), shardshuffle=False).decode()
    assert (found["x.npy"] == array).all() and found["txt"] == "grün"


def test_our_reader_and_webdataset_see_the_same(tmp_path: Path, webdataset: Any) -> None:
    index = prepare(a_folder(tmp_path / "raw", some_files(100)), tmp_path / "out", samples_per_shard=9)
    theirs = [
        {key: value for key, value in sample.items() if key not in ("__url__", "__local_path__")}
        for sample in webdataset.WebDataset(index.urls(str(tmp_path / "out")), shardshuffle=False)
    ]
    ours = [
        s for b in ShardReader(tmp_path / "out", batch_size=8, shuffle=False, rank=0, world_size=1) for s in b
    ]
    assert ours == theirs and len(ours) == 100


def test_we_read_what_webdataset_wrote(tmp_path: Path, webdataset: Any) -> None:
    from allaboard.shards.tar import table

    with webdataset.TarWriter(str(tmp_path / "theirs.tar")) as writer:
        for number in range(5):
            writer.write({"__key__": f"d/{number}", "bin": bytes([number]) * 600, "cls": number})
    data = (tmp_path / "theirs.tar").read_bytes()
    found = table(data)
    assert found.keys == [f"d/{number}" for number in range(5)]
    assert [{ext: data[a:b] for ext, a, b in parts} for parts in found.parts] == [
        {"bin": bytes([number]) * 600, "cls": str(number).encode()} for number in range(5)
    ]
