"""The samples of a source, checked and in order: a folder, a list of files, or a Python iterable.

Nothing is written here.

* **Files** are grouped by WebDataset's rule (`tar.py`); sub-folders are part of the key. A name whose dot
  belongs to the key (``2026.01.02.jpg``) is refused: several samples would become one. Files are taken in
  the order of a checksum of their keys, the same every time: a folder per class must not become a shard per
  class, nor a batch of one class. Files and folders whose name begins with a dot are passed over.
* **An iterable** gives mappings ``{"__key__": "cat/1", "png": b"...", "cls": 3, "json": {...}, "npy":
  array}`` and keeps its order. A sample without ``__key__`` gets its number. Other fields that begin with an
  underscore are metadata and are not written.

All that is wrong with files is found, and raised as one `BadInput`, before the first of them is read. Of an
iterable what follows the first bad sample is looked at for a while, so that several problems are named at
once.
"""

from __future__ import annotations

import hashlib
import importlib
import importlib.util
import io
import json
import os
import re
import stat
import sys
import traceback
from collections import Counter
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence, Sized
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import Any

from allaboard.errors import AllaboardError, BadInput, Problem
from allaboard.job.homes import expand_home
from allaboard.shards.tar import name_trouble, split_name
from allaboard.text.units import show_bytes

Source = str | os.PathLike[str] | Iterable[Any] | Callable[[], Iterable[Any]]
"""A folder, a list of files, an iterable of samples, a callable that returns one, or that callable's name:
``module:function`` or ``file.py:function``."""

MOST_PROBLEMS = 100
CHECKED_AFTER_ERROR = 1000  # samples of an iterable that are still checked after the first bad one

_FUNCTION = re.compile(r"(?P<module>[A-Za-z_][\w.]*|.+\.py):(?P<function>[A-Za-z_]\w*)")


@dataclass(frozen=True, slots=True)
class Part:
    """One file of a sample: its extension, its size, and its bytes or where they are."""

    extension: str
    size: int
    data: bytes | None = None
    path: str | None = None


@dataclass(frozen=True, slots=True)
class Sample:
    """Its key, and its parts sorted by extension."""

    key: str
    parts: tuple[Part, ...]


class Files:
    """Samples made of files. ``fingerprint`` changes when a file is added, removed, resized or written again.

    ``folder`` holds them all, unless they were listed one by one.
    """

    def __init__(
        self, groups: dict[str, list[tuple[str, str, int, int]]], folder: Path | None = None
    ) -> None:
        self.folder = folder
        self._groups = groups
        self._order = sorted(groups, key=lambda key: (hashlib.blake2b(key.encode()).digest()[:8], key))

    @property
    def total(self) -> int:
        return len(self._order)

    @cached_property
    def fingerprint(self) -> str:
        digest = hashlib.sha256()
        for key in sorted(self._groups):
            for extension, _, size, modified in sorted(self._groups[key]):
                digest.update(f"{key}\0{extension}\0{size}\0{modified}\n".encode())
        return f"files:v1:{digest.hexdigest()}"

    def refuse_above(self, largest: int | None) -> None:
        """BadInput, naming all, when samples have more bytes than this."""
        problems = _Problems()
        for files in self._groups.values() if largest is not None else ():
            size = sum(size for _, _, size, _ in files)
            if largest is not None and size > largest:
                problems.add(files[0][1], _too_large(size, largest))
        problems.raise_if_any("samples are larger than a shard may be")

    def samples(self, skip: int = 0) -> Iterator[Sample]:
        """All but the first ``skip`` samples."""
        for key in self._order[skip:]:
            files = sorted(self._groups[key])
            parts = tuple(Part(extension, size, path=path) for extension, path, size, _ in files)
            yield Sample(key, parts)


class Stream:
    """Samples that an iterable gives; what it holds is known only when it was read."""

    fingerprint = None

    def __init__(self, items: Iterable[Any]) -> None:
        self._items = items

    @property
    def total(self) -> int | None:
        """Number of samples, if it is known."""
        return len(self._items) if isinstance(self._items, Sized) else None

    def samples(self, largest: int | None = None) -> Iterator[Sample]:
        """All of them; one that has more than ``largest`` bytes is a problem as well."""
        problems = _Problems()
        seen: set[bytes] = set()
        stop = sys.maxsize
        for number, item in enumerate(self._raw()):
            if number > stop or problems.full:
                break
            encoded = encode(item, number)
            if isinstance(encoded, Sample):
                wrong = _sample_problem(encoded, seen, largest)
                encoded = [Problem(_name(number, encoded.key), wrong)] if wrong else encoded
            if isinstance(encoded, list):
                problems.extend(encoded)
                stop = min(stop, number + CHECKED_AFTER_ERROR)
            elif not problems:
                yield encoded
        problems.raise_if_any("the source has samples that cannot be written")

    def _raw(self) -> Iterator[Any]:
        number = 0
        try:
            for item in self._items:
                number += 1
                yield item
        except AllaboardError:
            raise
        except Exception as error:
            frame = traceback.extract_tb(error.__traceback__)[-1]
            where = f"{Path(frame.filename).name}, line {frame.lineno}"
            raise BadInput(
                f"the source raised {type(error).__name__} after {number} samples ({where}): {error}"
            ) from error


def _sample_problem(sample: Sample, seen: set[bytes], largest: int | None) -> str | None:
    mark = hashlib.blake2b(sample.key.encode(), digest_size=16).digest()  # keys may be long
    if mark in seen:
        return "its key was used before; keys must differ"
    seen.add(mark)
    size = sum(part.size for part in sample.parts)
    return _too_large(size, largest) if largest is not None and size > largest else None


def _too_large(size: int, largest: int) -> str:
    return f"has {show_bytes(size)}, a whole shard may have {show_bytes(largest)}; raise bytes_per_shard"


def _name(number: int, key: str) -> str:
    return f"sample {number} ({key!r})"


class _Problems:
    """The problems so far; at most `MOST_PROBLEMS` are kept in words."""

    def __init__(self) -> None:
        self._found: list[Problem] = []
        self._more = 0

    def __bool__(self) -> bool:
        return bool(self._found)

    @property
    def full(self) -> bool:
        return len(self._found) >= MOST_PROBLEMS

    def add(self, path: str, message: str) -> None:
        self.extend([Problem(path, message)])

    def extend(self, problems: Iterable[Problem]) -> None:
        for problem in problems:
            if self.full:
                self._more += 1
            else:
                self._found.append(problem)

    def raise_if_any(self, message: str) -> None:
        if not self._found:
            return
        more = [Problem("", f"and {self._more} more problems of this kind")] if self._more else []
        raise BadInput(message, [*self._found, *more])


def find_samples(source: Source, folder: Path | None = None) -> Files | Stream:
    """The samples of ``source``; `resolve` says what ``folder`` is for. BadInput when there is nothing to
    read.
    """
    if isinstance(source, str) and _FUNCTION.fullmatch(source) and not Path(source).exists():
        source = resolve(source, folder)
    if isinstance(source, (str, os.PathLike)):
        return _in_folder(_folder(os.fspath(source)))
    if isinstance(source, Sequence) and all(isinstance(item, (str, os.PathLike)) for item in source):
        return _list_files([os.fspath(item) for item in source])
    if callable(source):
        source = _call_function(source)
    if isinstance(source, Mapping) or not isinstance(source, Iterable):
        raise BadInput(f"a {type(source).__name__} is not a source of samples; {_ALLOWED}")
    return Stream(source)


_ALLOWED = "give a folder, a list of files, an iterable of samples, or module:function that returns one"


def resolve(text: str, folder: Path | None = None) -> Callable[[], Iterable[Any]]:
    """The function that ``"package.module:function"`` or ``"path/file.py:function"`` names.

    Modules and files are looked up in ``folder`` (default: the current one) first. BadInput when there is no
    such function.
    """
    match = _FUNCTION.fullmatch(text)
    if not match:
        raise BadInput(f"{text!r} names no function; write module:function or file.py:function")
    folder = (folder or Path.cwd()).absolute()
    if str(folder) not in sys.path:  # stays there: functions import when they are called, too
        sys.path.insert(0, str(folder))
    name = match["module"]
    try:
        module = _file_module(folder / name) if name.endswith(".py") else importlib.import_module(name)
    except Exception as error:
        raise BadInput(f"{text!r}: importing {name} failed with {type(error).__name__}: {error}") from error
    function = getattr(module, match["function"], None)
    if not callable(function):
        known = [name for name, value in vars(module).items() if _is_own_function(value, module)]
        has = f"; it has {', '.join(sorted(known))}" if known else ""
        raise BadInput(f"{text!r}: {name} has no function {match['function']}{has}")
    return function  # type: ignore[no-any-return]


def _is_own_function(value: Any, module: Any) -> bool:
    return callable(value) and getattr(value, "__module__", None) == module.__name__


def _file_module(path: Path) -> Any:
    # Under a name of its own: two folders may both have a data.py.
    name = f"allaboard_source_{hashlib.sha256(str(path).encode()).hexdigest()[:12]}"
    spec = importlib.util.spec_from_file_location(name, path)
    if spec is None or spec.loader is None:
        raise ImportError(f"{path} is not a Python file")
    module = importlib.util.module_from_spec(spec)
    sys.modules[name] = module
    try:
        spec.loader.exec_module(module)
    except BaseException:
        del sys.modules[name]
        raise
    return module


def _call_function(function: Callable[[], Iterable[Any]]) -> Iterable[Any]:
    try:
        return function()
    except Exception as error:
        name = getattr(function, "__name__", "the source")
        raise BadInput(f"{name}() raised {type(error).__name__}: {error}") from error


# --- files


def _folder(text: str) -> Path:
    if re.match(r"[a-z0-9]+://", text) and not text.startswith("file://"):
        raise BadInput(f"source {text!r} is not a folder of this machine; {_ALLOWED}")
    path = expand_home(text.removeprefix("file://"))
    if not path.exists():
        raise BadInput(f"source {str(path)!r} does not exist; {_ALLOWED}")
    if not path.is_dir():
        raise BadInput(f"source {str(path)!r} is a file; {_ALLOWED}")
    return path


def _in_folder(folder: Path) -> Files:
    problems = _Problems()
    files = sorted(_walk(str(folder), "", frozenset(), problems))
    if not files and not problems:
        raise BadInput(f"source {str(folder)!r} holds no files, so there is nothing to prepare")
    return Files(_group_by_key(files, problems, f"source {str(folder)!r} cannot be prepared"), folder)


def _walk(
    folder: str, prefix: str, above: frozenset[tuple[int, int]], problems: _Problems
) -> Iterator[tuple[str, str]]:
    """(name below the source, path) of every file. Links to folders are followed, not round in circles."""
    try:
        here = Path(folder).stat()
        with os.scandir(folder) as listing:
            items = [item for item in listing if not item.name.startswith(".")]
    except OSError as error:
        problems.add(folder, f"cannot be listed: {error.strerror}")
        return
    identity = (here.st_dev, here.st_ino)
    if identity in above:
        problems.add(folder, "is a link to a folder above it; remove the link")
        return
    for item in items:
        if item.is_dir():
            yield from _walk(item.path, f"{prefix}{item.name}/", above | {identity}, problems)
        else:
            yield prefix + item.name, item.path


def _list_files(paths: list[str]) -> Files:
    if not paths:
        raise BadInput(f"the list of files is empty, so there is nothing to prepare; {_ALLOWED}")
    absolute = [os.path.normpath(expand_home(path).absolute()) for path in paths]
    shared = os.path.commonpath([Path(path).parent for path in absolute])
    problems = _Problems()
    seen: set[str] = set()
    files = []
    for path in absolute:
        if path in seen:
            problems.add(path, "is listed twice")
        seen.add(path)
        files.append((os.path.relpath(path, shared).replace(os.sep, "/"), path))
    return Files(_group_by_key(sorted(set(files)), problems, "the list of files cannot be prepared"))


def _group_by_key(
    files: Iterable[tuple[str, str]], problems: _Problems, trouble: str
) -> dict[str, list[tuple[str, str, int, int]]]:
    """Key -> (extension, path, size, time of change) of its files."""
    groups: dict[str, list[tuple[str, str, int, int]]] = {}
    for name, path in files:
        named = split_name(name)
        looked = name_trouble(name) or _file_size(path)
        if isinstance(looked, str):
            problems.add(_shown(path), looked)
        elif named is None:
            problems.add(path, _NO_EXTENSION)
        else:
            key, extension = named
            group = groups.setdefault(key, [])
            if any(extension == other for other, *_ in group):
                problems.add(
                    path, f"{name!r} differs from another file in upper and lower case alone; rename one"
                )
            group.append((extension, path, *looked))
    _refuse_dots(groups, problems)
    problems.raise_if_any(trouble)
    return groups


def _refuse_dots(groups: Mapping[str, list[tuple[str, str, int, int]]], problems: _Problems) -> None:
    """Problems of files whose names have a dot that is no end of a key: WebDataset would make one sample of
    ``2026.01.02.jpg`` and ``2026.01.03.jpg``, and neither has a part ``jpg``.

    What stands between the key and the last extension names a part (``left.png``, ``right.png``) where other
    samples have the part, too. A number never names one, and neither does what is found in one sample alone
    beside another file of the same extension.
    """
    known = Counter(extension for group in groups.values() for extension, *_ in group)
    for key, group in groups.items():
        endings = Counter(extension.rpartition(".")[2] for extension, *_ in group)
        named = Counter(extension.rpartition(".")[2] for extension, *_ in group if "." in extension)
        for extension, path, *_ in group:
            middle, _, ending = extension.rpartition(".")
            if not middle:
                continue
            is_lonely = known[extension] == 1 and endings[ending] > 1
            is_the_only = len(groups) == 1 and named[ending] == 1
            if any(piece.isdigit() for piece in middle.split(".")) or (is_lonely and not is_the_only):
                problems.add(
                    path,
                    f"its name has a dot before its extension: to WebDataset it is the part {extension!r} "
                    f"of the sample {key!r}; {_DOTS}",
                )


_DOTS = (
    "put '_' in the place of the dot where the file is a sample of its own, or give the samples by a Python "
    "function, which names their keys and parts"
)


_NO_EXTENSION = (
    "has no extension, by which WebDataset tells the parts of a sample apart; "
    "give it one, or let its name begin with a dot to have it passed over"
)


def _file_size(path: str) -> tuple[int, int] | str:
    """Size and time of change in nanoseconds, or what is wrong with the file."""
    try:
        status = Path(path).stat()
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    if stat.S_ISDIR(status.st_mode):
        return "is a folder; list the files in it, or give it as the source"
    if not stat.S_ISREG(status.st_mode):
        return "is neither a file nor a folder"
    if not os.access(path, os.R_OK):
        return "cannot be read: Permission denied"
    return status.st_size, status.st_mtime_ns


def _shown(path: str) -> str:
    return path.encode("utf-8", "backslashreplace").decode()


# --- Python samples


def encode(item: Any, number: int) -> Sample | list[Problem]:
    """The sample of this mapping, or all of its problems."""
    name = f"sample {number}"
    if not isinstance(item, Mapping):
        wrong = f"is a {type(item).__name__}; give a mapping such as {{'__key__': 'cat/1', 'png': b'...'}}"
        return [Problem(name, wrong)]
    key = item.get("__key__", f"{number:09d}")
    if not isinstance(key, str):
        return [Problem(name, f"its __key__ is {key!r}; give a str")]
    name = _name(number, key)
    problems: list[Problem] = []
    parts: dict[str, Part] = {}
    for field, value in item.items():
        if isinstance(field, str) and field.startswith("_"):
            continue
        part = _part(key, field, value)
        if isinstance(part, str):
            problems.append(Problem(name, part))
        elif part.extension in parts:
            problems.append(Problem(name, f"has {part.extension!r} twice, in upper and in lower case"))
        else:
            parts[part.extension] = part
    if not parts and not problems:
        problems.append(Problem(name, "has no data; give at least one field such as png, cls or json"))
    return problems or Sample(key, tuple(parts[extension] for extension in sorted(parts)))


def _part(key: str, field: Any, value: Any) -> Part | str:
    if not isinstance(field, str) or not field:
        return f"field {field!r} is not an extension; write it like 'png'"
    wrong = name_trouble(f"{key}.{field}")
    if wrong:
        return f"cannot be called {key + '.' + field!r}: {wrong}"
    if split_name(f"{key}.{field}") != (key, field.lower()):
        return (
            f"{key + '.' + field!r} would not be read back as key {key!r} and extension {field!r}; "
            "a key must not be empty, end with '/' or have a dot after its last '/', nor an extension a '/'"
        )
    try:
        data = to_bytes(field.lower(), value)
    except (TypeError, ValueError) as error:
        return f"field {field!r} cannot be written: {error}"
    return Part(field.lower(), len(data), data=data)


def to_bytes(extension: str, value: Any) -> bytes:
    """The bytes of a value under this extension. TypeError or ValueError, in words for people, if none
    fit.
    """
    kind = extension.rpartition(".")[2]
    if isinstance(value, (bytes, bytearray, memoryview)):
        return bytes(value)
    if isinstance(value, str):
        return value.encode()
    if kind in ("json", "jsn"):
        return json.dumps(value, ensure_ascii=False, allow_nan=False).encode()
    if kind == "npy":
        return _npy(value)
    if isinstance(value, (bool, int, float)):
        return str(value).encode()
    if getattr(value, "ndim", None) == 0 and hasattr(value, "item"):  # a scalar of numpy or torch
        return str(value.item()).encode()
    raise TypeError(
        f"it is a {type(value).__name__}; give bytes, a str or a number, an array under an extension that "
        "ends in npy, or anything that JSON can say under one that ends in json"
    )


def _npy(value: Any) -> bytes:
    import numpy

    array = numpy.asarray(value)
    if array.dtype.hasobject:
        raise TypeError(f"an array of dtype {array.dtype} would need pickle; give numbers")
    stream = io.BytesIO()
    numpy.lib.format.write_array(stream, array, allow_pickle=False)
    return stream.getvalue()
