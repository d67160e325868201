"""Single files: whether one is as long as it says itself. Each raises NotWhole or NotKnown.

A zip archive (torch, Keras) names its members in a directory at its end; safetensors says in a header where
each tensor lies; HDF5 says in its superblock where the file ends; JSON has to close what it opens.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Mapping
from struct import error as StructError
from typing import Any

from allaboard.checkpoints.foreign.pickled import Word, pickle_words
from allaboard.checkpoints.foreign.unit import MOST_READ, NotKnown, NotWhole, Unit
from allaboard.text.untrusted import Limits, Unreadable, parse_json

_ZIP, _ZIP_END, _END_SIZE = b"PK\x03\x04", b"PK\x05\x06", 22
_HDF5 = b"\x89HDF\r\n\x1a\n"
_HEADER = Limits(size=MOST_READ, values=1_000_000)
_DATA = 2**22
"""Bytes of a pickle in an archive that are looked at."""
_PIECE = 2**20
"""Bytes that are read at a time of a file that is walked over."""


class _Window(io.RawIOBase):
    """A file of a unit as `zipfile` reads it, in bounded pieces."""

    def __init__(self, unit: Unit, name: str) -> None:
        self._unit, self._name, self._at = unit, name, 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        start = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._unit.size(self._name)}[whence]
        self._at = start + offset
        if self._at < 0:
            raise OSError("before the beginning")
        return self._at

    def readinto(self, buffer: Any) -> int:
        data = self.read(min(len(buffer), MOST_READ))
        buffer[: len(data)] = data
        return len(data)

    def read(self, size: int = -1) -> bytes:
        left = max(0, self._unit.size(self._name) - self._at)
        size = left if size < 0 else min(size, left)
        data = self._unit.read(self._name, self._at, size) if size else b""
        self._at += len(data)
        return data


def open_file(unit: Unit, name: str) -> io.BufferedReader:
    """A file of any size, which is read in pieces."""
    return io.BufferedReader(_Window(unit, name), _PIECE)


def open_archive(unit: Unit, name: str) -> zipfile.ZipFile:
    """A zip archive whose directory stands at its very end and names members that lie before it."""
    if unit.read(name, 0, 4) != _ZIP:
        raise NotWhole(f"{name} is no zip archive")
    size = unit.size(name)
    if size < _END_SIZE or unit.read(name, size - _END_SIZE, 4) != _ZIP_END:
        raise NotWhole(f"{name} ends before its directory")
    try:
        archive = zipfile.ZipFile(_Window(unit, name))
        members = archive.infolist()
    except (zipfile.BadZipFile, StructError, OSError, ValueError, NotImplementedError, IndexError) as error:
        raise NotWhole(f"{name} has a directory that does not hold: {error}") from None
    # An archive within the archive, whose end was taken for that of a file that is cut, begins later.
    if not members or min(member.header_offset for member in members) != 0:
        raise NotWhole(f"{name} ends before its directory")
    if any(m.header_offset + 30 + m.compress_size > archive.start_dir for m in members):
        raise NotWhole(f"{name} has a directory that names more than the file holds")
    return archive


def check_torch(unit: Unit, name: str) -> zipfile.ZipFile:
    """Archive of `torch.save`, with ``data.pkl`` in it. Its older form, a bare pickle, is not known."""
    head = unit.read(name, 0, 4)
    if len(head) < 4:
        raise NotWhole(f"{name} is empty")
    if head != _ZIP:
        raise NotKnown(f"{name} is no zip archive as torch writes them; nothing says where it ends")
    archive = open_archive(unit, name)
    if not any(member.endswith("/data.pkl") for member in archive.namelist()):
        raise NotKnown(f"{name} is an archive of something else than torch")
    return archive


def torch_words(archive: zipfile.ZipFile) -> list[Word]:
    """The words of what `torch.save` was given, as far as a bounded look goes."""
    name = next(member for member in archive.namelist() if member.endswith("/data.pkl"))
    try:
        with archive.open(name) as file:
            return pickle_words(file.read(_DATA))[0]
    except (
        zipfile.BadZipFile,
        StructError,
        OSError,
        ValueError,
        NotImplementedError,
        RuntimeError,
        EOFError,
    ) as error:
        raise NotWhole(f"data.pkl cannot be read: {error}") from None


def check_safetensors(unit: Unit, name: str) -> frozenset[str]:
    """The names of the tensors of a file that is as long as its header says."""
    size = unit.size(name)
    length = int.from_bytes(unit.read(name, 0, 8), "little")
    if size < 8 or length > size - 8:
        raise NotWhole(f"{name} ends within its header")
    if length > MOST_READ:
        raise NotKnown(f"{name} has a header of {length} bytes, which are too many to look at")
    try:
        header = parse_json(unit.read(name, 8, length), _HEADER, spelling=False, any_text=True, unique=False)
        tensors = {key: value for key, value in header.items() if key != "__metadata__"}
        ends = [int(tensor["data_offsets"][1]) for tensor in tensors.values()]
    except (Unreadable, AttributeError, TypeError, KeyError, IndexError, ValueError) as error:
        raise NotWhole(f"{name} has a header that does not hold: {error}") from None
    if 8 + length + max(ends, default=0) != size:
        raise NotWhole(f"{name} has {size} bytes, its header says {8 + length + max(ends, default=0)}")
    return frozenset(tensors)


def check_hdf5(unit: Unit, name: str) -> None:
    """An HDF5 file that ends where its superblock says, and that its writer has closed."""
    head = unit.read(name, 0, 64)
    if len(head) < 48 or not head.startswith(_HDF5):
        raise NotWhole(f"{name} does not begin as HDF5 does")
    version = head[8]
    if version in (0, 1):
        start, width = (24, 28)[version], head[13]
        end = int.from_bytes(head[start + 2 * width : start + 3 * width], "little")
    elif version in (2, 3):
        width = head[9]
        end = int.from_bytes(head[12 + 2 * width : 12 + 3 * width], "little")
        if version == 3 and head[11] & 0b101:
            raise NotWhole(f"{name} was not closed by its writer")
    else:
        raise NotKnown(f"{name} has a superblock of version {version}, which is not known")
    if end != unit.size(name):
        raise NotWhole(f"{name} has {unit.size(name)} bytes, its superblock says {end}")


def check_by_ending(unit: Unit, name: str) -> None:
    """The check that fits the ending of a name; of any other ending nothing is promised."""
    ending = name.rpartition(".")[2]
    if ending == "safetensors":
        check_safetensors(unit, name)
    elif ending in ("pt", "pth", "bin", "ckpt", "pkl"):
        check_torch(unit, name)
    elif ending == "json":
        unit.json(name)
    elif ending in ("h5", "hdf5"):
        check_hdf5(unit, name)


def check_files(unit: Unit) -> None:
    """`check_by_ending` of every file."""
    for name in unit.files:
        check_by_ending(unit, name)


def check_shards(unit: Unit, index: str) -> None:
    """Every tensor that an index of shards names is in the file that it names."""
    weights = as_mapping(unit.json(index)).get("weight_map")
    if not isinstance(weights, dict) or not weights:
        raise NotWhole(f"{index} names no shards")
    folder = index.rpartition("/")[0]
    by_file: dict[str, set[str]] = {}
    for tensor, file in weights.items():
        by_file.setdefault(f"{folder}/{file}" if folder else str(file), set()).add(tensor)
    for file, tensors in by_file.items():
        if file not in unit.files:
            raise NotWhole(f"{file} is missing, which {index} names")
        if file.endswith(".safetensors") and not tensors <= check_safetensors(unit, file):
            raise NotWhole(f"{file} lacks tensors that {index} names")
        if file.endswith(".bin"):
            check_torch(unit, file)


def as_mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, dict) else {}
