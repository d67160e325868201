"""Images: names that stand for folders of the harness, and what it takes to pull them.

An image is a list of layers (a folder of this machine, where it lies in the container), variables and a
default command. Every target is an overlay: the container may write, the folders stay as they are.

A container sees the system of this machine (``/usr``, and the few files of ``/etc`` that programs need), the
layers of its image, its volumes, and nothing else: no home, no ``/tmp``, no working copy.
"""

from __future__ import annotations

import asyncio
import fnmatch
import hashlib
import os
import re
import shutil
import subprocess
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from pathlib import Path

ETC = (
    "alternatives", "bash.bashrc", "ca-certificates", "ca-certificates.conf", "debian_version", "group",
    "gai.conf", "host.conf", "inputrc", "ld.so.cache", "ld.so.conf", "ld.so.conf.d", "locale.alias",
    "locale.gen", "localtime", "login.defs", "mime.types", "networks", "os-release", "passwd", "profile",
    "protocols", "rpc", "services", "shells", "ssl", "terminfo", "timezone",
)  # fmt: skip
"""What is taken over from this machine's /etc: no secrets, no names of this machine."""

SYSTEM_IMAGES = ("alpine:*", "alpine", "busybox:*", "busybox", "debian:*", "*/alpine:*", "*/busybox:*")
"""Names that stand for the plain system of this machine."""
PYTHON_IMAGES = (
    "python", "python:*", "pytorch", "pytorch:*", "pytorch/*", "allaboard/*", "*/allaboard/*", "harness/*",
)  # fmt: skip
"""Names that stand for the given Python environment."""
PATH = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
REFERENCE = re.compile(
    r"^(?:[a-zA-Z0-9.-]+(?::\d+)?/)?[a-z0-9]+(?:[._/-]+[a-z0-9]+)*(?::[\w][\w.-]{0,127})?(?:@[a-z0-9]+:[0-9a-f]{32,})?$"
)

NSLOOKUP = """#!/bin/sh
# Enough of busybox's nslookup for scripts that wait until a name is known.
server=$(sed -n 's/^nameserver //p' /etc/resolv.conf | head -1)
printf 'Server:\\t\\t%s\\nAddress:\\t%s:53\\n\\n' "$server" "$server"
if found=$(getent ahostsv4 "$1"); then
    printf '%s\\n' "$found" | sed -n "s/^\\([0-9.]*\\) *STREAM.*/Name:\\t$1\\nAddress: \\1/p"
else
    echo "** server can't find $1: NXDOMAIN"
    exit 1
fi
"""


@dataclass(frozen=True, slots=True)
class Image:
    """What a name stands for. ``layers``: (folder here, target there); later ones of a target lie on top."""

    pattern: str
    """Of the names that it answers to, as in fnmatch."""
    layers: tuple[tuple[Path, str], ...] = ()
    env: Mapping[str, str] = field(default_factory=dict)
    entrypoint: tuple[str, ...] = ()
    command: tuple[str, ...] = ("/bin/sh",)
    working_dir: str = "/"


class PullFailed(Exception):
    """The image cannot be had. ``reason``: the waiting reason that the kubelet shows."""

    def __init__(self, reason: str, message: str) -> None:
        super().__init__(message)
        self.reason = reason


class Images:
    """The registry that the nodes pull from, with the faults that a test asks for."""

    def __init__(self, folder: Path, images: Iterable[Image]) -> None:
        self._folder = folder
        self._images = list(images)
        self._failing: dict[str, str] = {}
        self._slow: dict[str, float] = {}
        self._present: set[tuple[str, str]] = set()
        self._etc, self._tools = folder / "etc", folder / "tools"

    def prepare(self) -> None:
        """Make the folders that belong to every image."""
        self._etc.mkdir(parents=True)
        for name in ETC:
            source = Path("/etc") / name
            if source.is_symlink() or source.is_file():
                shutil.copy2(source, self._etc / name, follow_symlinks=name in ("localtime", "os-release"))
            elif source.is_dir():
                shutil.copytree(source, self._etc / name, symlinks=True)
        (self._etc / "nsswitch.conf").write_text("passwd: files\ngroup: files\nhosts: files dns\n")
        tools = self._tools / "local" / "bin"
        tools.mkdir(parents=True)
        (tools / "nslookup").write_text(NSLOOKUP)
        (tools / "nslookup").chmod(0o755)

    def add(self, image: Image) -> None:
        """Offer one more; it wins over those that were there."""
        self._images.insert(0, image)

    def known(self, name: str) -> Image | None:
        plain = name.removeprefix("docker.io/library/").removeprefix("docker.io/")
        return next((i for i in self._images if fnmatch.fnmatchcase(plain, i.pattern)), None)

    def layers(self, image: Image) -> dict[str, list[str]]:
        """Target: the folders that make it up, the topmost first."""
        targets: dict[str, list[str]] = {"/usr": ["/usr"], "/etc": [str(self._etc)]}
        targets["/usr"].insert(0, str(self._tools))
        for name in ("bin", "sbin", "lib", "lib64", "lib32"):
            if Path("/", name).is_dir() and not Path("/", name).is_symlink():
                targets[f"/{name}"] = [f"/{name}"]
        for source, target in image.layers:
            targets.setdefault(target, []).insert(0, str(source))
        return targets

    def fail(self, pattern: str, message: str = "not found") -> None:
        """From now on pulls of these names fail with this message."""
        self._failing[pattern] = message
        self._forget(pattern)

    def slow(self, pattern: str, seconds: float) -> None:
        """From now on pulls of these names take so long; nodes that had them have them no more."""
        self._slow[pattern] = seconds
        self._forget(pattern)

    def mend(self) -> None:
        self._failing.clear()
        self._slow.clear()

    def is_present(self, node: str, name: str) -> bool:
        return (node, name) in self._present

    async def pull(self, node: str, name: str) -> Image:
        """Take the time that it takes. Raises PullFailed."""
        for pattern, seconds in self._slow.items():
            if fnmatch.fnmatchcase(name, pattern):
                await asyncio.sleep(seconds)
        image = self.known(name)
        for pattern, message in self._failing.items():
            if fnmatch.fnmatchcase(name, pattern):
                raise PullFailed("ErrImagePull", _pull_error(name, message))
        if image is None:
            raise PullFailed("ErrImagePull", _pull_error(name, "not found"))
        self._present.add((node, name))
        return image

    def _forget(self, pattern: str) -> None:
        self._present = {(n, name) for n, name in self._present if not fnmatch.fnmatchcase(name, pattern)}


def image_id(name: str) -> str:
    """As a runtime names what it pulled."""
    return f"{full_name(name).rpartition(':')[0]}@sha256:{hashlib.sha256(name.encode()).hexdigest()}"


def full_name(name: str) -> str:
    """With registry and tag: ``docker.io/library/alpine:3.10``."""
    first, slash, _ = name.partition("/")
    if not slash:
        name = f"docker.io/library/{name}"
    elif "." not in first and ":" not in first and first != "localhost":
        name = f"docker.io/{name}"
    return name if ":" in name.rpartition("/")[2] else f"{name}:latest"


def is_valid(name: str) -> bool:
    return REFERENCE.match(name) is not None


def _pull_error(name: str, message: str) -> str:
    code = "NotFound" if message == "not found" else "Unknown"
    full = full_name(name)
    return (
        f'rpc error: code = {code} desc = failed to pull and unpack image "{full}": '
        f'failed to resolve reference "{full}": {full}: {message}'
    )


def python_image(pattern: str, python: Path, folder: Path, code: Mapping[str, Path]) -> Image:
    """The environment that ``python`` belongs to, at ``/opt/venv`` (first of PATH), its interpreter at
    ``/opt/python``.

    ``code``: further folders of Python packages by their name under ``/opt/code``; they are on the import
    path, which is how packages that are installed in editable form come along. ``folder``: where generated
    files may lie.
    """
    ask = (
        "import sys, sysconfig;"
        "print(sys.base_prefix, sys.prefix, sysconfig.get_path('purelib'), sys.version_info[1], sep='\\n')"
    )
    answer = subprocess.run([python, "-I", "-c", ask], capture_output=True, text=True, check=True)
    told = answer.stdout.splitlines()
    base, prefix, site, minor = Path(told[0]), Path(told[1]), Path(told[2]), told[3]
    packages = f"lib/python3.{minor}/site-packages"
    shutil.rmtree(folder, ignore_errors=True)
    (folder / packages).mkdir(parents=True)
    (folder / "bin").mkdir()
    for name in ("python", "python3", f"python3.{minor}"):
        (folder / "bin" / name).symlink_to(f"/opt/python/bin/python3.{minor}")
    (folder / "pyvenv.cfg").write_text(f"home = /opt/python/bin\nversion_info = 3.{minor}\n")
    for script in (prefix / "bin").iterdir():
        _relocate(script, folder / "bin" / script.name, prefix)
    paths = "".join(f"/opt/code/{name}\n" for name in code)
    # Read before those that ask for these packages: they are taken in the order of their names.
    (folder / packages / "_image.pth").write_text(paths)
    return Image(
        pattern,
        layers=(
            (base, "/opt/python"),
            (folder, "/opt/venv"),
            (site, f"/opt/venv/{packages}"),
            (folder / packages, f"/opt/venv/{packages}"),
            *((path, f"/opt/code/{name}") for name, path in code.items()),
        ),
        env={
            "PATH": f"/opt/venv/bin:{PATH}",
            # The interpreter may be linked with a library that it looks for where it was built.
            "LD_LIBRARY_PATH": "/opt/python/lib",
            "PYTHONUNBUFFERED": "1",
            "HOME": "/root",
        },
        command=("python3",),
    )


def _relocate(script: Path, to: Path, prefix: Path) -> None:
    """Copy a script of the environment whose first line names its interpreter."""
    if to.exists() or not script.is_file() or script.is_symlink() or script.stat().st_size > 100_000:
        return
    text = script.read_bytes()
    here = os.fsencode(prefix)
    if text.startswith(b"#!") and here in text[:500]:
        to.write_bytes(text.replace(here, b"/opt/venv"))
        to.chmod(0o755)
