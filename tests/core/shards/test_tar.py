from __future__ import annotations

import io
import random
import tarfile

import pytest

from allaboard.shards.tar import header, name_trouble, padding, split_name, table, trailer
from tests.core.shards.building import members

NAMES = [
    "a.png",
    "cat/0001.png",
    "v1.0/cat 7/img.seg.png",
    "ümlaut/日本.png",
    "x" * 99 + ".p",
    "x" * 300 + ".png",
    "/".join(["deep" * 5] * 12) + "/leaf.json",
    "/".join(["part" * 10] * 4) + "/leaf.json",
    "emoji-🚂.txt",
]


def our_tar(files: dict[str, bytes]) -> bytes:
    data = b"".join(header(name, len(body)) + body + padding(len(body)) for name, body in files.items())
    return data + trailer(len(data))


def read(data: bytes) -> dict[str, dict[str, bytes]]:
    found = table(data)
    return {
        key: {extension: data[start:stop] for extension, start, stop in parts}
        for key, parts in zip(found.keys, found.parts, strict=True)
    }


def test_what_we_write_python_reads() -> None:
    rng = random.Random(1)
    files = {name: rng.randbytes(rng.choice([0, 1, 511, 512, 513, 5000])) for name in NAMES}
    data = our_tar(files)
    assert members(data) == files
    assert len(data) % tarfile.RECORDSIZE == 0


def test_owner_time_and_mode_are_always_the_same() -> None:
    with tarfile.open(fileobj=io.BytesIO(our_tar({"ümlaut.png": b"1"}))) as tar:
        info = tar.next()
        assert info is not None
        assert (info.mtime, info.uid, info.gid, info.uname, info.gname, info.mode) == (0, 0, 0, "", "", 0o644)


@pytest.mark.parametrize("form", [tarfile.USTAR_FORMAT, tarfile.GNU_FORMAT, tarfile.PAX_FORMAT])
def test_the_table_finds_every_byte_in_tars_of_any_writer(form: int) -> None:
    rng = random.Random(form)
    stream = io.BytesIO()
    wanted: dict[str, dict[str, bytes]] = {}
    with tarfile.open(fileobj=stream, mode="w", format=form) as tar:
        for name in NAMES:
            folder = tarfile.TarInfo(f"folder of {len(wanted)}")
            folder.type = tarfile.DIRTYPE
            tar.addfile(folder)
            info = tarfile.TarInfo(name)
            body = rng.randbytes(rng.randrange(2000))
            info.size = len(body)
            try:
                tar.addfile(info, io.BytesIO(body))
            except ValueError:
                assert form == tarfile.USTAR_FORMAT  # which has no room for long names
                continue
            key, extension = split_name(name) or ("", "")
            wanted.setdefault(key, {})[extension] = body
    assert read(stream.getvalue()) == wanted


def test_parts_of_one_sample_are_together_and_extensions_lower_case() -> None:
    data = our_tar({"a.CLS": b"1", "a.Seg.PNG": b"22", "b.cls": b"3"})
    assert read(data) == {"a": {"cls": b"1", "seg.png": b"22"}, "b": {"cls": b"3"}}


def test_what_webdataset_passes_over_is_passed_over() -> None:
    data = our_tar(
        {"README": b"x", "a.png": b"1", ".hidden.png": b"x", "__meta__/a.json": b"x", "dir/.x": b"x"}
    )
    assert read(data) == {"a": {"png": b"1"}}


@pytest.mark.parametrize("cut", [1, 511, 512, 600, 1024, 1500])
def test_a_tar_that_was_cut_short_is_refused(cut: int) -> None:
    data = our_tar({"a.png": b"x" * 700, "b.png": b"y" * 100})[:2560]
    with pytest.raises(ValueError, match="ends"):
        table(data[:-cut])


def test_what_is_no_tar_is_refused() -> None:
    with pytest.raises(ValueError, match="byte 0 is not the header"):
        table(random.Random(0).randbytes(4096))


@pytest.mark.parametrize("at", [124, 257])
def test_a_header_with_a_damaged_size_or_mark_is_refused(at: int) -> None:
    data = bytearray(our_tar({"a.png": b"x" * 700}))
    data[at : at + 12] = b"\xff" * 12
    with pytest.raises(ValueError):
        table(bytes(data))


@pytest.mark.parametrize(
    ("name", "split"),
    [
        ("a.png", ("a", "png")),
        ("d.1/a.b.PNG", ("d.1/a", "b.png")),
        ("a", None),
        (".a", None),
        ("d/.a", None),
        ("a.", None),
        ("__x__/a.png", None),
        ("a b/ü.txt", ("a b/ü", "txt")),
    ],
)
def test_names_are_split_by_webdatasets_rule(name: str, split: tuple[str, str] | None) -> None:
    from webdataset.tariterators import base_plus_ext

    assert split_name(name) == split
    if split and not name.startswith("__"):
        key, extension = base_plus_ext(name)
        assert (key, extension.lower()) == split


@pytest.mark.parametrize(
    "name", ["/a.png", "a//b.png", "../a.png", "a/./b.png", "a\nb.png", "__m__/a.png", "a\udcff.png"]
)
def test_names_that_would_be_trouble_are_named(name: str) -> None:
    assert name_trouble(name)
