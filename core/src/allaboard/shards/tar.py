"""Tar files as WebDataset reads them: headers written the same way every time, and a fast look at where
samples lie.

WebDataset's rule: the base name up to its first dot is the sample's **key** (folders in front belong to it),
the rest is the **extension**, which tells the parts of one sample apart; the files of one sample lie next to
each other. Bytes in, values out; nothing is opened here.
"""

from __future__ import annotations

import re
import struct
import tarfile
from dataclasses import dataclass, field
from mmap import mmap

BLOCK = 512
RECORD = tarfile.RECORDSIZE  # a tar file's size is a multiple of this; the rest is zeros

_NAME = re.compile(r"((?:.*/|)[^./]+)[.]([^/]*)", re.DOTALL)
_META = re.compile(r"__[^/]*__($|/)")  # WebDataset passes over these


def split_name(name: str) -> tuple[str, str] | None:
    """``"cat/1.seg.PNG"`` -> ``("cat/1", "seg.png")``; None when WebDataset would pass over a file of this
    name.
    """
    match = _NAME.fullmatch(name)
    if not match or not match[2] or _META.match(name):
        return None
    return match[1], match[2].lower()


def name_trouble(name: str) -> str | None:
    """Why a file in a shard should not be called so, None when it may."""
    if name.startswith("/") or any(part in ("", ".", "..") for part in name.split("/")):
        return "a key must not begin with '/' nor hold '//', './' or '../'"
    if any(ord(letter) < 32 or ord(letter) == 127 for letter in name):
        return "it holds a control character"
    if _META.match(name):
        return "names between '__' and '__' are metadata to WebDataset, which passes over them"
    try:
        name.encode()
    except UnicodeEncodeError:
        return "it is not valid UTF-8"
    return None


def header(name: str, size: int) -> bytes:
    """What comes before the bytes of a file. Owner, mode and time are fixed, so that the same samples give
    the same shard.
    """
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def padding(size: int) -> bytes:
    """What comes after ``size`` bytes of a file."""
    return bytes(-size % BLOCK)


def trailer(size: int) -> bytes:
    """What ends a tar file that is ``size`` bytes long so far."""
    return bytes(2 * BLOCK + -(size + 2 * BLOCK) % RECORD)


@dataclass(frozen=True, slots=True)
class Table:
    """Where the samples of one shard lie: ``keys[i]`` has the parts ``parts[i]``, each (extension, first
    byte, byte behind the last).
    """

    keys: list[str] = field(default_factory=list)
    parts: list[list[tuple[str, int, int]]] = field(default_factory=list)


def table(buffer: bytes | mmap) -> Table:
    """Read all headers of a tar file. ValueError, with the place, when it is none or is cut short.

    Every rank reads the headers of every shard, so this is written for speed: what most headers are is
    handled in the loop.
    """
    found = Table()
    keys, parts = found.keys, found.parts
    extensions: dict[str, str] = {}  # as written -> lower case, and one string for all
    last: str | None = None
    place, end = 0, len(buffer)
    long_name: str | None = None
    long_size: int | None = None
    unpack = _HEADER.unpack_from
    while place + BLOCK <= end:
        raw_name, raw_size, kind, magic, prefixed = unpack(buffer, place)
        if magic != b"ustar":
            if not any(buffer[place : place + BLOCK]):
                return found
            raise ValueError(f"byte {place} is not the header of a file")
        start = place + BLOCK
        try:
            size = int(raw_size, 8)
        except ValueError:
            size = _odd_size(buffer[place + 124 : place + 136], place)
        if kind in _REGULAR:
            if prefixed or long_name is not None or long_size is not None:
                name = long_name or _prefixed_name(buffer, place)
                size = size if long_size is None else long_size
                long_name = long_size = None
            else:
                name = raw_name.rstrip(b"\0").decode("utf-8", "surrogateescape")
            stop = start + size
            if stop > end:
                raise ValueError(f"it ends within {name}, which begins at byte {place}")
            dot = name.find(".", name.rfind("/") + 1)
            key, extension = name[:dot], name[dot + 1 :]
            lower = extensions.get(extension)
            if lower is None or name.startswith("__") or dot < 1 or key.endswith("/"):
                named = split_name(name)
                if named is None:  # passed over, as WebDataset does
                    place = stop + -size % BLOCK
                    continue
                lower = extensions[extension] = named[1]
            if key != last:
                keys.append(key)
                parts.append([])
                last = key
            parts[-1].append((lower, start, stop))
        elif kind == b"x":
            long_name, long_size = _pax(buffer[start : start + size], place)
        elif kind == b"L":
            long_name = buffer[start : start + size].rstrip(b"\0").decode("utf-8", "surrogateescape")
        else:
            long_name = long_size = None
        place = start + size + -size % BLOCK
    raise ValueError(f"it ends at byte {end} without the mark of an end")


# name, size, type, "ustar", first byte of the prefix; the rest does not matter here
_HEADER = struct.Struct("100s 24x 11s 21x c 100x 5s 83x B 154x 12x")
_REGULAR = (b"0", b"\0", b"7")


def _prefixed_name(buffer: bytes | mmap, place: int) -> str:
    name, prefix = (buffer[place + a : place + b].split(b"\0", 1)[0] for a, b in ((0, 100), (345, 500)))
    return b"/".join(part for part in (prefix, name) if part).decode("utf-8", "surrogateescape")


def _odd_size(raw: bytes, place: int) -> int:
    if raw[0] & 0x80:  # GNU's way for 8 GiB and more
        return int.from_bytes(raw[1:], "big")
    try:
        return int(raw.split(b"\0", 1)[0] or b"0", 8)
    except ValueError:
        raise ValueError(f"the header at byte {place} holds no size") from None


def _pax(data: bytes, place: int) -> tuple[str | None, int | None]:
    """The name and the size that a pax header gives: records ``"27 path=some/long/name\\n"``."""
    name, size = None, None
    try:
        while data.rstrip(b"\0"):
            length = int(data[: data.index(b" ")])
            word, _, value = data[data.index(b" ") + 1 : length - 1].partition(b"=")
            if length < 5:
                raise ValueError
            if word == b"path":
                name = value.decode("utf-8", "surrogateescape")
            elif word == b"size":
                size = int(value)
            data = data[length:]
    except ValueError:
        raise ValueError(f"the pax header at byte {place} cannot be read") from None
    return name, size
