"""The files of the helper that comes with the pods of a run (`allaboard.inside.helper`).

They are plain files in a ConfigMap of the attempt, not an init container: that would need an image, which
somebody has to put into each registry, and a second or more of each start; a mount is there with the pod, and
people read in it what runs in their containers. What judges checkpoints is an archive of our own modules:
they are many, and Python imports from it.
"""

from __future__ import annotations

import io
import zipfile
from collections.abc import Iterator, Sequence
from functools import cache
from importlib import resources
from importlib.resources.abc import Traversable

from allaboard.job.helper import ARCHIVE

_PLACES = {
    "start.sh": "inside/helper/start.sh",
    "start.py": "inside/helper/start.py",
    "endpoint.py": "inside/helper/endpoint.py",
    "python/sitecustomize.py": "inside/startup/sitecustomize.py",
}
"""Path in the mount -> path in the package."""
_LISTENER = {"stacks.py": "backends/kubernetes/stacks/script.py"}
_KEEPER = {"keep.py": "inside/helper/keep.py"}
_MAIN = {"__main__.py": "inside/helper/checkpoints.py", "old_python.py": "inside/helper/old_python.py"}
_OF_STORES = (
    "errors", "job/homes", "storage/__init__", "storage/base", "storage/disk", "text/filenames",
    "text/printable", "text/redaction", "text/units", "text/untrusted",
)  # fmt: skip
_OF_BUCKETS = (
    "storage/s3", "storage/s3_client", "storage/s3_credentials", "storage/s3_errors", "storage/s3_http",
    "storage/s3_signing", "storage/s3_xml",
)  # fmt: skip
_OF_CHECKPOINTS = (
    *_OF_STORES, "checkpoints/foreign/*", "checkpoints/hashing", "checkpoints/listing",
    "checkpoints/manifest", "checkpoints/metrics", "checkpoints/names", "checkpoints/writers",
    "inside/context", "runs/resume_template", "text/reportline",
)  # fmt: skip
_OF_COPIES = (
    *_OF_BUCKETS, "checkpoints/collecting", "checkpoints/flags", "checkpoints/foreign/copied",
    "checkpoints/foreign/mirroring", "checkpoints/holds", "checkpoints/retention", "storage/locks",
    "storage/scratch",
)  # fmt: skip
"""Modules in the archive. They need what Python 3.8 has, or what `inside/helper/old_python.py` brings."""
_DATE = (1980, 1, 1, 0, 0, 0)


@cache
def helper_files(
    hang_ask: str, checkpoints: bool = False, copies: bool = False, bucket: bool = False
) -> dict[str, bytes]:
    """Path -> content. ``hang_ask``: how members are asked for their stacks; by exec what asks comes then.
    ``checkpoints``: of a job whose checkpoints another library writes; ``copies``: and are copied elsewhere;
    ``bucket``: of one whose code is in a bucket.
    """
    places = {
        **_PLACES,
        **(_LISTENER if hang_ask == "file" else {}),
        **(_KEEPER if checkpoints else {}),
    }
    package = resources.files("allaboard")
    files = {path: package.joinpath(place).read_bytes() for path, place in places.items()}
    modules = (
        *(_OF_CHECKPOINTS if checkpoints else ()),
        *(_OF_COPIES if checkpoints and copies else ()),
        *((*_OF_STORES, *_OF_BUCKETS) if bucket else ()),
    )
    return {**files, ARCHIVE: _archive(package, modules)} if modules else files


def _archive(package: Traversable, places: Sequence[str]) -> bytes:
    """The same bytes for the same modules."""
    buffer = io.BytesIO()
    with zipfile.ZipFile(buffer, "w", zipfile.ZIP_DEFLATED, compresslevel=9) as archive:
        for name, content in sorted(_archived(package, places).items()):
            archive.writestr(zipfile.ZipInfo(name, _DATE), content, zipfile.ZIP_DEFLATED, 9)
    return buffer.getvalue()


def _archived(package: Traversable, places: Sequence[str]) -> dict[str, bytes]:
    """Path in the archive -> content. Packages are empty there, so that one module does not import all."""
    files = {name: package.joinpath(place).read_bytes() for name, place in _MAIN.items()}
    for place in places:
        for path in _modules(package, place):
            files[f"allaboard/{path}"] = package.joinpath(path).read_bytes()
    folders = {parent for path in files for parent in _parents(path)}
    return {**{f"{folder}/__init__.py": b"" for folder in folders}, **files}


def _modules(package: Traversable, place: str) -> Iterator[str]:
    folder, _, name = place.rpartition("/")
    if name != "*":
        yield f"{place}.py"
        return
    for item in package.joinpath(folder).iterdir():
        is_of_copies = f"{folder}/{item.name[:-3]}" in _OF_COPIES
        if item.name.endswith(".py") and not item.name.startswith("__") and not is_of_copies:
            yield f"{folder}/{item.name}"


def _parents(path: str) -> Iterator[str]:
    levels = path.split("/")[:-1]
    for depth in range(len(levels)):
        yield "/".join(levels[: depth + 1])
