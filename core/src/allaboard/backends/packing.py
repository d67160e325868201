"""A job's folder, packed into the store when the run is launched, for code that no ConfigMap holds.

The archive is a function of the files: equal folders have one digest, and are kept once. The digest is part
of the spec, so that other code is another job.
"""

from __future__ import annotations

import gzip
import hashlib
import io
import os
import tarfile
import tempfile
from collections.abc import Iterator, Mapping
from dataclasses import replace
from pathlib import Path

from allaboard.backends.base import Plan
from allaboard.errors import BadInput, Problem
from allaboard.job.site import Site, resolve_uri
from allaboard.job.training_job import PACKED
from allaboard.runs.setup import archive_of
from allaboard.text.units import show_bytes
from allaboard.text.untrusted import show

LEFT_OUT = frozenset(
    {".git", ".hg", ".svn", "__pycache__", ".venv", ".mypy_cache", ".pytest_cache", ".ruff_cache"}
)
"""Names of files and folders that are not packed, wherever they lie."""
LARGEST = 512 * 2**20
"""Bytes of all files. What is larger is data."""
MOST = 50_000
"""Files of one archive."""


def is_to_be_packed(plan: Plan) -> bool:
    """True for the plan of a job whose folder is not in the store yet."""
    code = plan.job.get("code")
    return isinstance(code, Mapping) and "folder" in code and "digest" not in code


def with_archive(plan: Plan, site: Site, environ: Mapping[str, str], *, upload: bool = True) -> Plan:
    """The plan with ``code.digest``; the archive is in the store then, unless ``upload`` is False. Raises
    BadInput for a folder that cannot be packed, and errors of the store.
    """
    from allaboard.storage import open_store

    code = dict(plan.job.get("code"))
    folder = Path(plan.job.folder or os.curdir) / code["folder"]
    with tempfile.TemporaryDirectory(prefix="allaboard-code-") as own:
        archive = Path(own) / "code.tar.gz"
        code["digest"] = pack(folder, archive)
        job = plan.job.with_(code=code)
        place = resolve_uri(archive_of({"store": PACKED, **code}), site, plan.job.folder)
        above, _, name = place.rpartition("/")
        store = open_store(above, environ=environ)
        if upload and store.stat(name) is None:
            store.upload(archive, name)
    return replace(plan, job=job)


def pack(folder: Path, archive: Path) -> str:
    """Writes the archive of a folder; returns its SHA-256. Raises BadInput."""
    files = [*_files(folder)]
    total = sum(file.stat().st_size for file in files)
    if total > LARGEST or len(files) > MOST:
        largest = sorted(files, key=lambda file: -file.stat().st_size)[:3]
        sizes = [f"{file.relative_to(folder)} {show_bytes(file.stat().st_size)}" for file in largest]
        raise _wrong(
            f"{show(str(folder))} holds {len(files):,} files of {show_bytes(total)} ({', '.join(sizes)}); at "
            f"most {MOST:,} of {show_bytes(LARGEST)} are packed: put data into a data set, and name a folder "
            "of code alone"
        )
    with (
        archive.open("wb") as out,
        gzip.GzipFile("", "wb", 6, out, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", format=tarfile.PAX_FORMAT) as tar,
    ):
        for file in files:
            content = file.read_bytes()
            info = tarfile.TarInfo(file.relative_to(folder).as_posix())
            info.size, info.mode = len(content), 0o755 if file.stat().st_mode & 0o111 else 0o644
            tar.addfile(info, io.BytesIO(content))
    return hashlib.sha256(archive.read_bytes()).hexdigest()


def _files(folder: Path) -> Iterator[Path]:
    """The files below a folder, in order. Raises BadInput for what cannot be read, and for a link out of
    it.
    """
    if not folder.is_dir():
        raise _wrong(f"{show(str(folder))} is no folder of this machine")
    root = folder.resolve()

    def refuse(error: OSError) -> None:
        raise _wrong(f"{show(str(error.filename))} cannot be read: {error.strerror}")

    for place, folders, names in os.walk(folder, onerror=refuse):
        folders[:] = sorted(name for name in folders if name not in LEFT_OUT)
        for name in sorted(set(names) - LEFT_OUT):
            file = Path(place) / name
            if file.is_symlink() and not file.resolve().is_relative_to(root):
                raise _wrong(f"{show(str(file))} leads out of the folder; copy the file itself there")
            if file.is_file():
                yield file


def _wrong(message: str) -> BadInput:
    return BadInput("the code of this job cannot be packed:", [Problem("code.folder", message)])
