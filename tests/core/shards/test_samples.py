from __future__ import annotations

import io
import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from allaboard.errors import AllaboardError, BadInput, StorageUnreachable
from allaboard.shards.samples import Files, Stream, encode, find_samples, resolve, to_bytes
from tests.core.shards.building import a_folder, a_place_for_all, as_nobody, some_files


def keys(found: Files | Stream) -> list[str]:
    return [sample.key for sample in found.samples()]


def paths(found: Files | Stream) -> dict[str, list[tuple[str, str | None]]]:
    return {sample.key: [(part.extension, part.path) for part in sample.parts] for sample in found.samples()}


def problems_of(call: Any) -> list[str]:
    with pytest.raises(BadInput) as caught:
        call()
    return [str(problem) for problem in caught.value.problems]


# --- folders and lists


def test_files_of_a_folder_are_grouped_by_webdatasets_rule(tmp_path: Path) -> None:
    folder = a_folder(
        tmp_path / "raw",
        {
            "a.png": b"1",
            "a.cls": b"2",
            "sub.v1/b c.seg.PNG": b"3",
            "sub.v1/b c.json": b"4",
            "ü/日本.txt": b"5",
        },
    )
    assert paths(find_samples(folder)) == {
        "a": [("cls", str(folder / "a.cls")), ("png", str(folder / "a.png"))],
        "sub.v1/b c": [
            ("json", str(folder / "sub.v1/b c.json")),
            ("seg.png", str(folder / "sub.v1/b c.seg.PNG")),
        ],
        "ü/日本": [("txt", str(folder / "ü/日本.txt"))],
    }


def test_a_folder_per_class_does_not_become_a_run_of_one_class(tmp_path: Path) -> None:
    files = {f"class-{number // 100}/{number}.png": b"" for number in range(300)}
    order = [int(key[6]) for key in keys(find_samples(a_folder(tmp_path, files)))]
    for start in range(0, 300, 50):
        assert len(set(order[start : start + 50])) == 3


def test_the_order_depends_on_the_keys_alone(tmp_path: Path) -> None:
    files = some_files(50)
    one = a_folder(tmp_path / "one", files)
    other = a_folder(tmp_path / "other", dict(reversed(files.items())))
    assert keys(find_samples(one)) == keys(find_samples(str(other)))


def test_hidden_files_and_folders_are_passed_over(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, {"a.png": b"", ".DS_Store": b"", ".git/x.png": b"", "sub/.keep.txt": b""})
    assert keys(find_samples(folder)) == ["a"]


def test_links_to_files_and_folders_are_followed(tmp_path: Path) -> None:
    elsewhere = a_folder(tmp_path / "elsewhere", {"x.png": b"", "deep/y.png": b""})
    folder = a_folder(tmp_path / "raw", {})
    (folder / "linked").symlink_to(elsewhere)
    (folder / "z.png").symlink_to(elsewhere / "x.png")
    assert sorted(keys(find_samples(folder))) == ["linked/deep/y", "linked/x", "z"]


def test_a_listed_file_is_named_below_the_folder_that_all_share(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, {"d/x.png": b"", "e/x.png": b"", "e/unlisted.png": b""})
    assert sorted(keys(find_samples([folder / "d/x.png", str(folder / "e/../e/x.png")]))) == ["d/x", "e/x"]
    assert keys(find_samples([folder / "d/x.png"])) == ["x"]


def test_a_relative_list_and_a_uri_of_a_folder_are_understood(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = a_folder(tmp_path, {"d/x.png": b""})
    monkeypatch.chdir(folder)
    assert keys(find_samples(["d/x.png"])) == ["x"]
    assert keys(find_samples(f"file://{folder}")) == ["d/x"]


def test_all_that_is_wrong_with_files_is_said_at_once(tmp_path: Path) -> None:
    folder = a_folder(
        tmp_path / "raw", {"good.png": b"", "README": b"", "a.PNG": b"", "a.png": b"", "__m__/x.png": b""}
    )
    (folder / "broken.png").symlink_to(tmp_path / "nowhere")
    (folder / "loop").symlink_to(folder)
    os.mkfifo(folder / "pipe.png")
    (folder / os.fsdecode(b"latin-\xe9.png")).write_bytes(b"")
    (folder / "two\nlines.png").write_bytes(b"")
    found = problems_of(lambda: find_samples(folder))
    said = [line.removeprefix(f"{folder}/").split(": ", 1) for line in sorted(found)]
    assert said[0][1].endswith("give it one, or let its name begin with a dot to have it passed over")
    assert [(where, what) for where, what in said] == [
        ("README", said[0][1]),
        ("__m__/x.png", "names between '__' and '__' are metadata to WebDataset, which passes over them"),
        ("a.png", "'a.png' differs from another file in upper and lower case alone; rename one"),
        ("broken.png", "cannot be read: No such file or directory"),
        ("latin-\\udce9.png", "it is not valid UTF-8"),
        ("loop", "is a link to a folder above it; remove the link"),
        ("pipe.png", "is neither a file nor a folder"),
        ("two\\nlines.png", "it holds a control character"),
    ]  # fmt: skip


@pytest.mark.parametrize(
    ("names", "refused"),
    [
        ("2026.01.02.jpg 2026.01.03.jpg 2026.02.01.jpg", "all"),
        ("2025.01.jpg 2026.01.jpg", "all"),
        ("john.doe.jpg john.smith.jpg jane.roe.jpg", "john.doe.jpg john.smith.jpg"),
        ("resnet.v1.5.txt", "all"),
        ("a/en.wikipedia.org.html a/en.wikinews.org.html", "all"),
        ("run.png run.best.png other.png", "run.best.png"),
        ("0001.left.png 0001.right.png 0002.left.png 0002.right.png", ""),
        ("0001.png 0001.seg.png 0002.png 0002.seg.png", ""),
        ("0001.png 0001.seg.png", ""),
        ("scan.nii.gz scan.json", ""),
        ("1.5/a.png 1.5/b.png", ""),
    ],
)
def test_a_dot_that_belongs_to_a_key_is_refused_and_one_that_names_a_part_is_not(
    tmp_path: Path, names: str, refused: str
) -> None:
    wanted = set(names.split() if refused == "all" else refused.split())
    for name in names.split():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_bytes(name.encode())
    try:
        find_samples(tmp_path)
        found: dict[str, str] = {}
    except BadInput as error:
        found = {problem.path: problem.message for problem in error.problems}
    assert {str(Path(path).relative_to(tmp_path)) for path in found} == wanted
    assert all("dot" in words and "'_'" in words for words in found.values())


def test_files_that_may_not_be_read_are_named() -> None:
    with a_place_for_all() as place:
        folder = a_folder(place / "raw", {"a.png": b"", "fine.png": b"", "locked/b.png": b""})
        (folder / "a.png").chmod(0)
        (folder / "locked").chmod(0)
        assert as_nobody(lambda: find_samples(folder)).splitlines()[1:] == [
            f"  {folder}/locked: cannot be listed: Permission denied",
            f"  {folder}/a.png: cannot be read: Permission denied",
        ]
        (folder / "locked").chmod(0o700)


def test_a_list_names_what_is_listed_twice_missing_or_a_folder(tmp_path: Path) -> None:
    folder = a_folder(tmp_path, {"a.png": b"", "d/b.png": b""})
    listed = [folder / "a.png", folder / "a.png", folder / "c.png", folder / "d"]
    assert problems_of(lambda: find_samples(listed)) == [
        f"{folder}/a.png: is listed twice",
        f"{folder}/c.png: cannot be read: No such file or directory",
        f"{folder}/d: is a folder; list the files in it, or give it as the source",
    ]


def test_very_many_problems_are_counted_not_listed(tmp_path: Path) -> None:
    found = problems_of(lambda: find_samples([tmp_path / f"{number}.png" for number in range(250)]))
    assert len(found) == 101
    assert found[-1] == "and 150 more problems of this kind"


@pytest.mark.parametrize(
    ("source", "words"),
    [
        ("/no/such/folder", "does not exist"),
        ("s3://bucket/raw", "is not a folder of this machine"),
        ([], "the list of files is empty"),
        (7, "a int is not a source of samples"),
        ({"a": 1}, "a dict is not a source of samples"),
        ("no_such_module:samples", "importing no_such_module failed with ModuleNotFoundError"),
    ],
)
def test_what_is_no_source_is_refused_with_what_is(source: Any, words: str) -> None:
    with pytest.raises(BadInput, match=words):
        find_samples(source)


def test_a_file_and_an_empty_folder_are_no_sources(tmp_path: Path) -> None:
    folder = a_folder(tmp_path / "empty", {".hidden.png": b""})
    with pytest.raises(BadInput, match="holds no files"):
        find_samples(folder)
    with pytest.raises(BadInput, match="is a file"):
        find_samples(folder / ".hidden.png")


@pytest.mark.parametrize("change", ["content", "time", "added", "removed", "renamed"])
def test_any_change_of_the_files_changes_the_fingerprint(tmp_path: Path, change: str) -> None:
    folder = a_folder(tmp_path, {"a.png": b"1", "b.png": b"2"})
    before = find_samples(folder)
    again = find_samples(folder)
    assert isinstance(before, Files) and isinstance(again, Files) and before.fingerprint == again.fingerprint
    if change == "content":
        a_folder(tmp_path, {"a.png": b"12"})
    elif change == "time":
        os.utime(folder / "a.png")
    elif change == "added":
        a_folder(tmp_path, {"a.cls": b"1"})
    elif change == "removed":
        (folder / "a.png").unlink()
    else:
        (folder / "a.png").rename(folder / "c.png")
    after = find_samples(folder)
    assert isinstance(after, Files) and after.fingerprint != before.fingerprint


# --- iterables


def test_values_become_bytes_by_their_extension() -> None:
    import numpy

    assert to_bytes("png", b"raw") == b"raw"
    assert to_bytes("bin", bytearray(b"raw")) == b"raw"
    assert to_bytes("cls", 3) == b"3"
    assert to_bytes("cls", numpy.int64(3)) == b"3"
    assert to_bytes("score", 0.25) == b"0.25"
    assert to_bytes("txt", "grün") == "grün".encode()
    assert json.loads(to_bytes("meta.json", {"a": [1, None, "ü"]})) == {"a": [1, None, "ü"]}
    assert to_bytes("json", '{"as": "text"}') == b'{"as": "text"}'
    array = numpy.arange(6, dtype="float32").reshape(2, 3)
    assert (numpy.load(io.BytesIO(to_bytes("npy", array))) == array).all()


@pytest.mark.parametrize(
    ("extension", "value", "words"),
    [
        ("png", None, "it is a NoneType; give bytes"),
        ("png", [1], "it is a list"),
        ("json", {1, 2}, "not JSON serializable"),
        ("json", float("nan"), "not JSON compliant"),
    ],
)
def test_values_that_no_bytes_stand_for_are_refused(extension: str, value: Any, words: str) -> None:
    with pytest.raises((TypeError, ValueError), match=words):
        to_bytes(extension, value)


def test_an_array_of_objects_would_need_pickle_and_is_refused() -> None:
    import numpy

    with pytest.raises(TypeError, match="pickle"):
        to_bytes("npy", numpy.array([object()]))


def test_iterables_keep_their_order_and_samples_without_a_key_are_numbered() -> None:
    samples = [
        {"__key__": "z/ü 1", "png": b"", "cls": 1},
        {"png": b"", "__url__": "x", "_note": 1},
        {"__key__": "a", "TXT": "t"},
    ]
    found = list(find_samples(samples).samples())
    assert [sample.key for sample in found] == ["z/ü 1", "000000001", "a"]
    assert [[part.extension for part in sample.parts] for sample in found] == [
        ["cls", "png"],
        ["png"],
        ["txt"],
    ]


@pytest.mark.parametrize(
    ("item", "words"),
    [
        (b"raw", "sample 5: is a bytes; give a mapping"),
        ({"__key__": 3, "png": b""}, "sample 5: its __key__ is 3; give a str"),
        ({"__key__": "a.b", "png": b""}, "sample 5 ('a.b'): 'a.b.png' would not be read back as key 'a.b'"),
        ({"__key__": "", "png": b""}, "would not be read back"),
        ({"__key__": "a/", "png": b""}, "would not be read back"),
        ({"__key__": "/a", "png": b""}, "a key must not begin with '/'"),
        ({"__key__": "a/../b", "png": b""}, "a key must not begin with '/' nor hold"),
        ({"__key__": "a\nb", "png": b""}, "it holds a control character"),
        ({"__key__": "__a__/b", "png": b""}, "metadata to WebDataset"),
        ({"__key__": "a", "p/ng": b""}, "would not be read back"),
        ({"__key__": "a", "": b""}, "field '' is not an extension"),
        ({"__key__": "a", 3: b""}, "field 3 is not an extension"),
        ({"__key__": "a", "png": b"", "PNG": b""}, "has 'png' twice"),
        ({"__key__": "a"}, "has no data"),
        ({"__key__": "a", "_note": b""}, "has no data"),
        ({"__key__": "a", "png": object()}, "field 'png' cannot be written: it is a object"),
    ],
)
def test_what_is_wrong_with_a_sample_is_said_with_its_number_and_key(item: Any, words: str) -> None:
    found = encode(item, 5)
    assert isinstance(found, list) and len(found) == 1
    assert words in str(found[0]) and str(found[0]).startswith("sample 5")


def test_several_bad_samples_are_named_at_once() -> None:
    samples = [
        {"cls": 0},
        {"cls": None},
        {"cls": 2},
        {"__key__": "x", "cls": 1},
        {"__key__": "x", "cls": 1},
        {"bin": b"123456"},
    ]
    given = find_samples(samples).samples(largest=5)
    assert next(given).key == "000000000"
    assert problems_of(lambda: list(given)) == [
        "sample 1 ('000000001'): field 'cls' cannot be written: it is a NoneType; give bytes, a str or a "
        "number, an array under an extension that ends in npy, or anything that JSON can say under one that "
        "ends in json",
        "sample 4 ('x'): its key was used before; keys must differ",
        "sample 5 ('000000005'): has 6 B, a whole shard may have 5 B; raise bytes_per_shard",
    ]


def test_after_a_bad_sample_an_endless_source_is_not_read_forever() -> None:
    read = 0

    def endless() -> Iterator[dict[str, int]]:
        nonlocal read
        while True:
            read += 1
            yield {"__key__": str(read), "cls": read} if read != 3 else {}  # type: ignore[dict-item]

    assert len(problems_of(lambda: list(find_samples(endless).samples()))) == 1
    assert read < 2000


def test_an_error_of_the_source_names_its_place() -> None:
    def failing() -> Iterator[dict[str, bytes]]:
        yield {"png": b""}
        raise RuntimeError("the camera is off")

    with pytest.raises(
        BadInput, match=r"RuntimeError after 1 samples \(test_samples.py, line \d+\): the camera is off"
    ):
        list(find_samples(failing).samples())
    with pytest.raises(BadInput, match=r"broken\(\) raised ZeroDivisionError"):
        find_samples(broken)


def broken() -> list[dict[str, bytes]]:
    raise ZeroDivisionError


def test_errors_of_ours_pass_through_a_source() -> None:
    def reading_a_bucket() -> Iterator[dict[str, bytes]]:
        raise StorageUnreachable("no answer")
        yield {}

    with pytest.raises(AllaboardError) as caught:
        list(find_samples(reading_a_bucket).samples())
    assert isinstance(caught.value, StorageUnreachable)


# --- names of functions


def test_functions_are_found_in_modules_and_files(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.syspath_prepend(tmp_path)  # restores sys.path afterwards
    for folder, number in (("one", 1), ("two", 2)):
        a_folder(tmp_path / folder, {"data.py": f"def samples():\n    yield {{'cls': {number}}}\n".encode()})
    a_folder(
        tmp_path,
        {"some_package_of_samples/source.py": b"def samples():\n    import json\n    yield {'json': {}}\n"},
    )
    assert [s.parts[0].data for s in find_samples("data.py:samples", tmp_path / "one").samples()] == [b"1"]
    assert [s.parts[0].data for s in find_samples("data.py:samples", tmp_path / "two").samples()] == [b"2"]
    assert [
        s.parts[0].data for s in find_samples("some_package_of_samples.source:samples", tmp_path).samples()
    ] == [b"{}"]


def test_what_is_no_function_is_refused_with_what_there_is(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.syspath_prepend(tmp_path)
    a_folder(
        tmp_path,
        {
            "things.py": b"from json import dumps\ndef samples(): ...\nclass Reader: ...\nN = 1\n",
            "wrong.py": b"1/0",
        },
    )
    with pytest.raises(BadInput, match=r"things.py has no function sample; it has Reader, samples"):
        resolve("things.py:sample", tmp_path)
    with pytest.raises(BadInput, match=r"wrong.py failed with ZeroDivisionError"):
        resolve("wrong.py:samples", tmp_path)
    with pytest.raises(BadInput, match=r"absent.py failed with FileNotFoundError"):
        resolve("absent.py:samples", tmp_path)
    with pytest.raises(BadInput, match="write module:function"):
        resolve("just-a-name")
