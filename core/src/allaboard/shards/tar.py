"""Tar files as WebDataset reads them: headers written the same way every time, and a fast look at where
samples lie.

WebDataset's rule: the base name up to its first dot is the sample's **key** (folders in front belong to it),
the rest is the **extension**, which tells the parts of one sample apart; the files of one sample lie next to
each other. Bytes in, values out; nothing is opened here.

A tar file may come from anywhere, and its checksum tells only that it is the one that its author meant. So no
size in it is believed that leads backwards or behind the end, no name that leads out of a folder (a key may
become a path in a training script), and no two files that are one part of a sample. Links, devices and other
entries without bytes are passed over; sparse files are refused. Time and memory grow with the bytes alone.
"""

from __future__ import annotations

import re
import struct
import tarfile
from dataclasses import dataclass, field
from mmap import mmap

from allaboard.text.filenames import leads_out

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
    """Return why a file in a shard should not have this name; None: it may."""
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
    """Header before the bytes of a file. Owner, mode and time are fixed, so that the same samples give the
    same shard.
    """
    info = tarfile.TarInfo(name)
    info.size = size
    info.mode = 0o644
    return info.tobuf(tarfile.PAX_FORMAT, "utf-8", "strict")


def padding(size: int) -> bytes:
    """Padding after ``size`` bytes of a file."""
    return bytes(-size % BLOCK)


def trailer(size: int) -> bytes:
    """End of a tar file that is ``size`` bytes long so far."""
    return bytes(2 * BLOCK + -(size + 2 * BLOCK) % RECORD)


@dataclass(frozen=True, slots=True)
class Table:
    """Places of the samples of one shard: ``keys[i]`` has the parts ``parts[i]``, each (extension, first
    byte, byte behind the last).
    """

    keys: list[str] = field(default_factory=list)
    parts: list[list[tuple[str, int, int]]] = field(default_factory=list)


def table(buffer: bytes | mmap, *, checked: bool = False) -> Table:
    """Read all headers of a tar file. ValueError, with the place, when it is not a tar file, is cut short, or
    is not to be trusted. ``checked``: compare the headers' own checksums, too; it takes several times longer.

    Every rank reads the headers of every shard, so this is written for speed: what most headers are is
    handled in the loop.
    """
    listing = Table()
    keys, parts = listing.keys, listing.parts
    extensions: dict[str, str] = {}  # as written -> lower case, and one string for all
    last: str | None = None
    place, end = 0, len(buffer)
    long_name: str | None = None
    long_size: int | None = None
    unpack = _HEADER.unpack_from
    while place + BLOCK <= end:
        raw_name, raw_size, ended, kind, magic, prefixed = unpack(buffer, place)
        if magic != b"ustar":
            if not any(buffer[place : place + BLOCK]):
                return _unique_keys(listing)
            raise ValueError(f"byte {place} is not the header of a file")
        if checked:
            _check_sum(buffer[place : place + BLOCK], place)
        start = place + BLOCK
        # Python reads '-1', '+1' and '1_0' as numbers, too.
        if raw_size.isdigit() and ended in _ENDS:
            try:
                size = int(raw_size, 8)
            except ValueError:
                raise ValueError(_NO_SIZE.format(place)) from None
        else:
            size = _parse_odd_size(buffer[place + 124 : place + 136], place)
        if kind in _REGULAR:
            if prefixed or long_name is not None or long_size is not None:
                name = long_name or _prefixed_name(buffer, place)
                size = size if long_size is None else long_size
                long_name = long_size = None
            else:
                name = raw_name.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
            stop = start + size
            if stop > end:
                raise ValueError(f"it ends within {name!a}, which begins at byte {place}")
            if _SUSPICIOUS.search(name) and (trouble := leads_out(name)):
                raise ValueError(f"the name {ascii(name)[:200]} at byte {place} {trouble}")
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
        elif kind == b"S":
            raise ValueError(_SPARSE.format(place))
        elif kind in _WITHOUT_BYTES:
            long_name = long_size = None
            size = 0  # of a hard link some writers give the size of what it links to
        elif kind in _ABOUT_THE_NEXT:
            if size > _LONGEST_HEADER:
                raise ValueError(f"the header at byte {place} is longer than {_LONGEST_HEADER} bytes")
            about = buffer[start : start + size]
            if kind == b"L":
                long_name = about.split(b"\0", 1)[0].decode("utf-8", "surrogateescape")
            elif kind == b"x":
                long_name, long_size = _pax(about, place)
            elif kind == b"g" and _pax(about, place) != (None, None):
                raise ValueError(f"the pax header at byte {place} names all files alike")
        else:
            long_name = long_size = None
        place = start + size + -size % BLOCK
    raise ValueError(f"it ends at byte {end} without the mark of an end")


def _unique_keys(listing: Table) -> Table:
    """The table, in which no key comes twice and no sample has a part twice."""
    if len(set(listing.keys)) != len(listing.keys):
        seen: set[str] = set()
        for key in listing.keys:
            if key in seen:
                raise ValueError(f"the key {ascii(key)[:200]} comes twice")
            seen.add(key)
    for key, parts in zip(listing.keys, listing.parts, strict=True):
        if len(parts) > 1 and len({extension for extension, _, _ in parts}) != len(parts):
            raise ValueError(f"the sample {ascii(key)[:200]} has a part twice")
    return listing


# What may be the beginning of a name that leads out of its folder; `leads_out` decides.
_SUSPICIOUS = re.compile(r"\.\.|^/|\\|\0|^[A-Za-z]:")
_LONGEST_HEADER = 2**20
_NO_SIZE = "the header at byte {} holds no size"
_SPARSE = "the file at byte {} is sparse, which WebDataset does not read; write it without holes"


def _check_sum(header: bytes, place: int) -> None:
    recorded = header[148:156].strip(b" \0")
    rest = header[:148] + b"        " + header[156:]
    # Old programs took the bytes for signed ones.
    sums = (sum(rest), sum(byte - 256 if byte > 127 else byte for byte in rest))
    if not recorded.isdigit() or not set(recorded) <= _OCTAL or int(recorded, 8) not in sums:
        raise ValueError(f"the header at byte {place} does not have its checksum")


# name, size, its end, type, "ustar", first byte of the prefix; the rest does not matter here
_HEADER = struct.Struct("100s 24x 11s c 20x c 100x 5s 83x B 154x 12x")
_REGULAR = (b"0", b"\0", b"7")
_WITHOUT_BYTES = (b"1", b"2", b"3", b"4", b"5", b"6")  # links, devices, folders, pipes
_ABOUT_THE_NEXT = (b"x", b"L", b"K", b"g")
_ENDS = (b" ", b"\0")
_OCTAL = frozenset(b"01234567")


def _prefixed_name(buffer: bytes | mmap, place: int) -> str:
    name, prefix = (buffer[place + a : place + b].split(b"\0", 1)[0] for a, b in ((0, 100), (345, 500)))
    return b"/".join(part for part in (prefix, name) if part).decode("utf-8", "surrogateescape")


def _parse_odd_size(raw: bytes, place: int) -> int:
    if raw[0] == 0x80:  # GNU's way for 8 GiB and more; 0xff begins a negative number
        return int.from_bytes(raw[1:], "big")
    digits = raw.split(b"\0", 1)[0].strip(b" ") or b"0"
    if not digits.isdigit() or not set(digits) <= _OCTAL:
        raise ValueError(_NO_SIZE.format(place))
    return int(digits, 8)


def _pax(data: bytes, place: int) -> tuple[str | None, int | None]:
    """The name and the size that a pax header gives: records ``"27 path=some/long/name\\n"``."""
    name, size = None, None
    at, end = 0, len(data.rstrip(b"\0"))
    while at < end:
        blank = data.find(b" ", at, at + 20)
        if blank < 0 or not data[at:blank].isdigit():
            raise ValueError(_NO_PAX.format(place))
        after = at + int(data[at:blank])
        if after < at + 5 or after > len(data) or data[after - 1 : after] != b"\n":
            raise ValueError(_NO_PAX.format(place))
        word, _, value = data[blank + 1 : after - 1].partition(b"=")
        if word == b"path":
            name = value.decode("utf-8", "surrogateescape")
        elif word == b"size":
            if not value.isdigit() or len(value) > 20:
                raise ValueError(_NO_PAX.format(place))
            size = int(value)
        elif word.startswith(b"GNU.sparse."):
            raise ValueError(_SPARSE.format(place))
        at = after
    return name, size


_NO_PAX = "the pax header at byte {} cannot be read"
