"""A checkpoint's manifest: what makes a folder of files a checkpoint. Values in, values out.

    <uri>/<run>/step-000000000120/state.pt
    <uri>/<run>/step-000000000120/manifest.json     written last; without a valid one it is no checkpoint

    {"version": 1, "step": 120, "run": "digits-1f0c9a77", "attempt": 1, "generation": 1, "world_size": 2,
     "created": "2026-11-21T12:00:00.250Z", "metrics": {"val_loss": 0.31}, "nonfinite": [],
     "parts": [{"name": "state.pt", "size": 120331, "sha256": "...", "rank": 0}],
     "parent": null, "versions": {"allaboard": "0.1.0", "python": "3.12.1", "torch": "2.7.0"}, "writer": 1}

``name`` is the file's name in the folder. A step that is saved again, after a resume, gets files of fresh
names, and then one new manifest over the old one: both the old and the new are whole at every moment. The
name by which the script knows such a part is kept in ``part``. ``writer`` is the number of the writer that
saved it (`allaboard.checkpoints.writers`), null where none was known. Unknown fields are kept; a newer
version is read as far as it is understood.

**Version 2** vouches for a checkpoint that another library wrote (`allaboard.checkpoints.foreign`). Its files
stay where that library put them: below ``place``, a folder that the run's own folder or the one above it
holds.

    {"version": 2, "step": 500, ..., "format": "huggingface-trainer", "place": "../checkpoint-500",
     "file": null, "epoch": 1.5, "flags": [], "hash": "sha256",
     "parts": [{"name": "rng_state_1.pth", "size": 14455, "sha256": "...", "rank": 1}, ...]}

``hash`` names the hash, and the field of each part that holds it. ``file`` is the one file that the library
calls the checkpoint, null where that is the folder. ``place`` is null in a copy, whose files lie beside the
manifest; ``origin`` of a copy that is to be brought back is the place where its files were. ``flags``:
``step_from_epoch``, ``step_from_time`` where nothing told a step (the epoch, or seconds since 1970, stands
for it). Version 1 has none of these and is what `save` writes.
"""

from __future__ import annotations

import hashlib
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from typing import Any

from allaboard.checkpoints.metrics import plain
from allaboard.errors import BadInput, Corrupt
from allaboard.text.filenames import relative_name, sha256
from allaboard.text.untrusted import Unreadable, parse_json, show

MANIFEST = "manifest.json"
#: Stands where the manifest stood once retention let a checkpoint go: which parts to remove later.
RETIRED = "retired.json"
VERSION = 1
FOREIGN_VERSION = 2
HASH = "sha256"
STEP_FROM_EPOCH, STEP_FROM_TIME = "step_from_epoch", "step_from_time"

_PLACE = re.compile(r"\.{1,2}(?:/(?P<below>.+))?")
_WORD = re.compile(r"[a-z][a-z0-9_.-]{0,63}")
_PART = re.compile(r"[A-Za-z0-9_][A-Za-z0-9._-]{0,127}")


def folder_name(step: int) -> str:
    """120 -> ``step-000000000120``. Raises BadInput for what is no step."""
    if not _is_count(step) or step >= 10**12:
        raise BadInput(f"step {step!r} is not a step; give a whole number from 0 to 999999999999")
    return f"step-{step:012d}"


def check_part_name(name: str) -> str:
    if not _PART.fullmatch(name) or name in (MANIFEST, RETIRED):
        raise BadInput(
            f"{name!r} cannot name a part; use letters, digits, '.', '_' and '-', at most 128, "
            f"and neither {MANIFEST} nor {RETIRED}"
        )
    return name


@dataclass(frozen=True, slots=True)
class Part:
    """One file. ``name`` is the file's own, ``part`` the script's name for it where the two differ."""

    name: str
    size: int
    sha256: str
    rank: int = 0
    part: str | None = None

    @property
    def called(self) -> str:
        """The name by which the script saved the part."""
        return self.part or self.name

    def to_dict(self) -> dict[str, Any]:
        """The part as the manifest has it."""
        body = {"name": self.name, "size": self.size, "sha256": self.sha256, "rank": self.rank}
        return body if self.part is None else {**body, "part": self.part}


@dataclass(frozen=True, slots=True)
class Manifest:
    """Fields of a manifest. ``created`` is RFC 3339; ``extra``: fields that this version does not know."""

    step: int
    parts: tuple[Part, ...] = ()
    run: str | None = None
    attempt: int | None = None
    generation: int | None = None
    world_size: int | None = None
    created: str | None = None
    metrics: Mapping[str, Any] = field(default_factory=dict)
    nonfinite: tuple[str, ...] = ()
    parent: str | None = None
    versions: Mapping[str, str] = field(default_factory=dict)
    writer: int | None = None
    version: int = VERSION
    format: str | None = None
    place: str | None = None
    file: str | None = None
    origin: str | None = None
    epoch: float | None = None
    flags: tuple[str, ...] = ()
    extra: Mapping[str, Any] = field(default_factory=dict)

    @property
    def size(self) -> int:
        """Bytes of all parts."""
        return sum(part.size for part in self.parts)

    @property
    def fingerprint(self) -> str:
        """Identity of the weights: the same for every copy of a checkpoint, whatever the names of its files,
        and for no other checkpoint. ``parts:v1:`` and 64 hexadecimal digits.
        """
        parts = sorted([part.called, part.size, part.sha256] for part in self.parts)
        return f"parts:v1:{hashlib.sha256(json.dumps(parts).encode()).hexdigest()}"

    def with_metrics(self, metrics: Mapping[str, Any] | None) -> Manifest:
        """The same manifest with these metrics made plain. Raises BadInput for what is no metric."""
        clean, nonfinite = plain(metrics)
        return replace(self, metrics=clean, nonfinite=nonfinite)

    def part(self, called: str) -> Part | None:
        """The part that the script saved under this name, None where the checkpoint has none."""
        return next((part for part in self.parts if part.called == called), None)

    def to_dict(self) -> dict[str, Any]:
        """The manifest as plain JSON, unknown fields included."""
        return {
            "version": self.version,
            "step": self.step,
            "run": self.run,
            "attempt": self.attempt,
            "generation": self.generation,
            "world_size": self.world_size,
            "created": self.created,
            "metrics": dict(self.metrics),
            "nonfinite": list(self.nonfinite),
            "parts": [part.to_dict() for part in self.parts],
            "parent": self.parent,
            "versions": dict(self.versions),
            "writer": self.writer,
            **(self._foreign() if self.format is not None else {}),
            **self.extra,
        }

    def _foreign(self) -> dict[str, Any]:
        return {
            "format": self.format,
            "place": self.place,
            "file": self.file,
            **({} if self.origin is None else {"origin": self.origin}),
            "epoch": self.epoch,
            "flags": list(self.flags),
            "hash": HASH,
        }

    def encode(self) -> bytes:
        """The manifest's bytes: readable JSON, the same for equal manifests."""
        return (json.dumps(self.to_dict(), indent=1, allow_nan=False) + "\n").encode()

    @classmethod
    def decode(cls, raw: bytes, where: str) -> Manifest:
        """Reads what `encode` wrote, here or in another version. Raises `Corrupt`, naming ``where``."""
        body = _body(raw, where)
        if (algorithm := body.get("hash", HASH)) != HASH:
            raise Corrupt(
                f"{where}: its parts have sums of {show(str(algorithm))}, which this release does not know; "
                "use the release that wrote it, or a newer one"
            )
        parts = _parts(body, where)
        step, version = body.get("step"), body.get("version")
        if not _is_count(step) or not _is_count(version):
            raise Corrupt(f"{where}: step or version is not a whole number; the manifest is not valid")
        metrics, nonfinite = body.get("metrics"), body.get("nonfinite")
        versions = body.get("versions")
        foreign = _foreign_fields(body, where) if _typed(body, "format", str) else {}
        return cls(
            step=body["step"],
            parts=parts,
            run=_typed(body, "run", str),
            attempt=_typed(body, "attempt", int),
            generation=_typed(body, "generation", int),
            world_size=_typed(body, "world_size", int),
            created=_typed(body, "created", str),
            metrics=metrics if isinstance(metrics, dict) else {},
            nonfinite=tuple(str(n) for n in nonfinite) if isinstance(nonfinite, list) else (),
            parent=_typed(body, "parent", str),
            versions=versions if isinstance(versions, dict) else {},
            writer=body["writer"] if _is_count(body.get("writer")) else None,
            version=body["version"],
            **foreign,
            extra={
                name: value
                for name, value in body.items()
                if name not in (_KNOWN if foreign else _KNOWN - _OF_FOREIGN)
            },
        )


_OF_FOREIGN = frozenset(("format", "place", "file", "origin", "epoch", "flags", "hash"))
_KNOWN = (frozenset(Manifest.__dataclass_fields__) | _OF_FOREIGN) - {"extra"}


def _foreign_fields(body: Mapping[str, Any], where: str) -> dict[str, Any]:
    """The fields of version 2. Raises Corrupt for a format that is no word, and a place that leads out."""
    format_, epoch, flags = (body.get(name) for name in ("format", "epoch", "flags"))
    if not _WORD.fullmatch(str(format_)):
        raise Corrupt(f"{where}: {show(str(format_))} is not the name of a format; the manifest is not valid")
    try:
        place, origin = (
            None if body.get(name) is None else checked_place(body[name]) for name in ("place", "origin")
        )
        file = None if body.get("file") is None else relative_name(body["file"])
    except ValueError as error:
        raise Corrupt(f"{where}: {error}; the manifest is not valid") from error
    kept = (
        [flag for flag in flags if isinstance(flag, str) and _WORD.fullmatch(flag)]
        if isinstance(flags, list)
        else []
    )
    is_number = isinstance(epoch, (int, float)) and not isinstance(epoch, bool)
    return {
        "format": format_,
        "place": place,
        "file": file,
        "origin": origin,
        "epoch": epoch if is_number else None,
        "flags": (*kept,),
    }


def checked_place(value: Any) -> str:
    """A place of version 2: ``.`` is the run's folder, ``..`` the one above, or a folder below either. Raises
    ValueError.
    """
    match = _PLACE.fullmatch(value) if isinstance(value, str) else None
    if match is None:
        raise ValueError(f"{show(str(value))} is not a place beside the manifest's run")
    if match["below"] is not None:
        relative_name(match["below"])
    return str(value)


def _body(raw: bytes, where: str) -> dict[str, Any]:
    try:
        body = parse_json(raw, nonfinite=True, spelling=False)
    except Unreadable as error:
        raise Corrupt(f"{where}: {error}; the manifest is not valid") from error
    if not isinstance(body, dict):
        raise Corrupt(f"{where}: not a JSON object; the manifest is not valid")
    return body


def _parts(body: Mapping[str, Any], where: str) -> tuple[Part, ...]:
    listed = body.get("parts")
    if not isinstance(listed, list) or not listed:
        raise Corrupt(f"{where}: lists no parts; the manifest is not valid")
    parts = tuple(_part(item, where) for item in listed)
    if len({part.name for part in parts}) != len(parts):
        raise Corrupt(f"{where}: lists a part twice; the manifest is not valid")
    return parts


def _part(item: Any, where: str) -> Part:
    if not isinstance(item, dict) or not _is_count(item.get("size")):
        shown = show(str(item))
        raise Corrupt(f"{where}: {shown} is not a part with name, size and sha256; the manifest is not valid")
    try:
        # A manifest may come from anywhere: a part never leads out of its folder.
        name, digest = relative_name(item.get("name")), sha256(item.get("sha256"))
    except ValueError as error:
        raise Corrupt(f"{where}: is not a part: {error}; the manifest is not valid") from error
    if name in (MANIFEST, RETIRED):
        raise Corrupt(f"{where}: lists {name} as a part; the manifest is not valid")
    rank, called = item.get("rank"), item.get("part")
    return Part(
        name,
        item["size"],
        digest,
        rank if isinstance(rank, int) else 0,
        called if isinstance(called, str) else None,
    )


def _is_count(value: Any) -> bool:
    return isinstance(value, int) and not isinstance(value, bool) and value >= 0


def _typed(body: Mapping[str, Any], name: str, kind: type) -> Any:
    value = body.get(name)
    return value if isinstance(value, kind) and not isinstance(value, bool) else None


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A complete checkpoint and where it is: ``uri``, the folder of its manifest.

    ``files``: where its library looks for it, a folder or a file. That is ``uri``, unless another library
    wrote it.
    """

    uri: str
    manifest: Manifest
    files: str = ""

    def __post_init__(self) -> None:
        if not self.files:
            object.__setattr__(self, "files", self.uri)

    @property
    def step(self) -> int:
        """The number of steps done when it was saved."""
        return self.manifest.step

    @property
    def metrics(self) -> Mapping[str, Any]:
        """The metrics at that step, by name; None stands for a number that was not finite."""
        return self.manifest.metrics

    @property
    def bytes(self) -> int:
        """The size of all parts."""
        return self.manifest.size

    def to_dict(self) -> dict[str, Any]:
        """The manifest with ``uri``, ``files`` and ``bytes``."""
        return {"uri": self.uri, "files": self.files, "bytes": self.bytes, **self.manifest.to_dict()}
