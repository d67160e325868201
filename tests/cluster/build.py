"""The programs of the cluster, built once from the Go modules that publish them.

Every folder of ``go/`` pins one module, by an ordinary go.mod with ``tool`` lines and its go.sum; a ``Build``
says which binaries come of it and which files of the module (CRDs, RBAC, webhook configurations) are wanted
beside them. It then lies under ``~/.cache/allaboard/cluster/<name>-<hash of all that>``: whoever finds it
there needs neither Go nor a network.

``ensure`` raises ``Unavailable`` with one sentence for a person when something cannot be had.
"""

from __future__ import annotations

import ctypes
import fcntl
import hashlib
import json
import os
import platform
import re
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

GO = Path(__file__).resolve().parent / "go"
HEARTBEAT = 30.0
"""Seconds between two lines that say that a build is still going on."""

PR_SET_PDEATHSIG = 1

Tell = Callable[[str], None]
_libc = ctypes.CDLL(None)


class Unavailable(Exception):
    """A program cannot be had on this machine; the text says why and what would help."""


@dataclass(frozen=True, slots=True)
class Build:
    """What is made of one folder of ``go/``."""

    name: str
    module: str
    packages: tuple[tuple[str, str], ...]
    """(file name of the binary, its package)"""
    files: tuple[str, ...] = ()
    """Patterns below the module's folder, of YAML files that are copied beside the binaries."""
    stamped: tuple[str, ...] = ()
    """Packages that are told the version (gitVersion, gitMajor, gitMinor): else a server says v0.0.0."""
    minutes: float = 1.0
    """From cold caches, on two cores: what a person is told before waiting."""

    @property
    def folder(self) -> Path:
        return GO / self.name

    @property
    def version(self) -> str:
        found = re.search(
            rf"^(?:require |\t){re.escape(self.module)} (v\S+)", self._read("go.mod"), re.MULTILINE
        )
        return found[1] if found else "v0"

    @property
    def linker(self) -> str:
        major, minor, *_ = self.version.removeprefix("v").split(".")
        values = {"gitVersion": self.version, "gitMajor": major, "gitMinor": minor}
        stamps = [
            f"-X {package}.{name}={value}" for package in self.stamped for name, value in values.items()
        ]
        return " ".join(["-s", "-w", *stamps])

    @property
    def hash(self) -> str:
        """Changes with everything that the result depends on, but for the version of Go."""
        recipe = [self.packages, self.files, self.linker, sys.platform, platform.machine()]
        text = self._read("go.mod") + self._read("go.sum") + json.dumps(recipe)
        return hashlib.sha256(text.encode()).hexdigest()[:12]

    @property
    def place(self) -> Path:
        """Where the finished build lies, or will."""
        return cache() / f"{self.name}-{self.hash}"

    @property
    def is_there(self) -> bool:
        return self.place.is_dir()

    def binary(self, name: str) -> str:
        return str(self.place / name)

    def objects(self, *patterns: str) -> list[Any]:
        """What the copied files of these patterns hold: objects, and lists of operations of patches."""
        found = []
        for pattern in patterns:
            paths = sorted((self.place / "files").glob(f"{pattern}.json"))
            if not paths:
                raise Unavailable(f"{self.name} {self.version}: its module has no file {pattern}")
            found += [document for path in paths for document in json.loads(path.read_text())]
        return found

    def _read(self, name: str) -> str:
        path = self.folder / name
        return path.read_text() if path.exists() else ""


def cache() -> Path:
    home = os.environ.get("XDG_CACHE_HOME") or Path.home() / ".cache"
    return Path(home) / "allaboard" / "cluster"


class Work:
    """Several builds, one after the other, and how far they are, for whoever waits for all of them.
    ``background``: behind whatever else runs on the machine, because nobody waits.
    """

    def __init__(self, builds: Sequence[Build], *, background: bool = False) -> None:
        self.background = background
        self.began = time.monotonic()
        self.programs = [(b.name, name) for b in builds if not b.is_there for name, _ in b.packages]
        self.minutes = sum(b.minutes for b in builds if not b.is_there)
        self.built: set[tuple[str, str]] = set()

    @property
    def plan(self) -> str | None:
        """What is to be built; None: nothing."""
        if not self.programs:
            return None
        names = ", ".join(dict.fromkeys(build for build, _ in self.programs))
        count = f"{len(self.programs)} program{'' if len(self.programs) == 1 else 's'}"
        return f"{count} to build, of {names}: some {self.minutes:g} minutes from a cold cache on 2 cores"

    def __str__(self) -> str:
        """``5 of 14 programs built in 6.2 min; left: kube-proxy, jobset``"""
        left = [name for build, name in self.programs if (build, name) not in self.built]
        done = f"{len(self.programs) - len(left)} of {len(self.programs)} programs built"
        span = _span(time.monotonic() - self.began)
        return f"{done} in {span}" + (f"; left: {', '.join(left)}" if left else "")


def ensure(build: Build, tell: Tell = print, work: Work | None = None) -> Path:
    """The folder of this build, made when it is not there. One process builds, others wait for it.
    ``work``: what it is a part of.
    """
    if build.is_there:
        return build.place
    work = work or Work([build])
    with _alone(build, tell):
        if not build.is_there:
            try:
                _make(build, tell, work)
            except Unavailable as reason:
                _reason_file(build).write_text(str(reason))
                raise
            _reason_file(build).unlink(missing_ok=True)
        work.built |= {(build.name, name) for name, _ in build.packages}
    return build.place


def why_not(build: Build) -> str | None:
    """Why this build is not there, for a test that skips; None when it is there."""
    if build.is_there:
        return None
    with suppress(OSError):
        return _reason_file(build).read_text()
    return f"{build.name} {build.version} is not built here; `make cluster-up` does that"


def _reason_file(build: Build) -> Path:
    return cache() / f"{build.name}-{build.hash}.reason"


@contextmanager
def _alone(build: Build, tell: Tell) -> Iterator[None]:
    cache().mkdir(parents=True, exist_ok=True)
    with (cache() / f"{build.name}.lock").open("w") as lock:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            tell(f"{build.name} {build.version}: another process is building it; waiting")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield


def _make(build: Build, tell: Tell, work: Work) -> None:
    go = _go(build)
    started = time.monotonic()
    for left in cache().glob(f"{build.name}-unfinished-*"):
        # By one that was killed: whoever builds now holds the lock.
        shutil.rmtree(left, ignore_errors=True)
    unfinished = Path(tempfile.mkdtemp(prefix=f"{build.name}-unfinished-", dir=cache()))
    try:
        for binary, package in build.packages:
            tell(f"{build.name} {build.version}: building {binary}; {work}")
            _run_go(
                build,
                tell,
                work,
                go,
                "build",
                "-trimpath",
                "-ldflags",
                build.linker,
                "-o",
                str(unfinished / binary),
                package,
            )
            work.built.add((build.name, binary))
        if build.files:
            source = Path(
                _run_go(build, tell, work, go, "list", "-m", "-f", "{{.Dir}}", build.module).strip()
            )
            _copy_files(build, source, unfinished / "files")
        unfinished.chmod(0o755)
        unfinished.rename(build.place)
    finally:
        shutil.rmtree(unfinished, ignore_errors=True)
    tell(f"{build.name} {build.version}: built in {_span(time.monotonic() - started)}")


def _copy_files(build: Build, source: Path, target: Path) -> None:
    """As lists of objects in JSON: parsing YAML of this size takes seconds, at every start of a plane."""
    loader = getattr(yaml, "CSafeLoader", yaml.SafeLoader)
    for pattern in build.files:
        for path in sorted(source.glob(pattern)):
            copy = target / f"{path.relative_to(source)}.json"
            copy.parent.mkdir(parents=True, exist_ok=True)
            documents = yaml.load_all(path.read_text(), Loader=loader)
            copy.write_text(json.dumps([document for document in documents if document]))


def _go(build: Build) -> str:
    go = shutil.which("go")
    if go is None:
        raise Unavailable(
            f"{build.name} {build.version} is built by Go, and there is none on PATH; see https://go.dev/dl"
        )
    return go


def _run_go(build: Build, tell: Tell, work: Work, go: str, *arguments: str) -> str:
    # Not what was set for other projects, by variables or `go env -w`: flags, workspaces, targets.
    environ = {
        **os.environ,
        "CGO_ENABLED": "0",
        "GOFLAGS": "-mod=readonly",
        "GOWORK": "off",
        "GO111MODULE": "on",
    }
    for name in ("GOOS", "GOARCH", "GOEXPERIMENT"):
        environ.pop(name, None)
    command = [*(["nice", "-n", "19"] if work.background else []), go, *arguments]
    with tempfile.TemporaryFile("w+") as errors, _heartbeat(build, tell, work):
        ended = subprocess.run(
            command,
            cwd=build.folder,
            env=environ,
            stdout=subprocess.PIPE,
            stderr=errors,
            text=True,
            preexec_fn=_interrupted_with_us,
        )
        errors.seek(0)
        lines = [line for line in errors.read().splitlines() if not line.startswith("go: downloading ")]
    if ended.returncode:
        told = "\n    ".join(lines[-8:]) or f"exit code {ended.returncode}"
        raise Unavailable(f"{build.name} {build.version}: `go {arguments[0]}` failed:\n    {told}")
    return ended.stdout


def _interrupted_with_us() -> None:
    """A build that nobody waits for any more ends as by Ctrl-C, also when who waited was killed."""
    if sys.platform == "linux":
        _libc.prctl(PR_SET_PDEATHSIG, signal.SIGINT, 0, 0, 0)


@contextmanager
def _heartbeat(build: Build, tell: Tell, work: Work) -> Iterator[None]:
    done = threading.Event()

    def beat() -> None:
        while not done.wait(HEARTBEAT):
            tell(f"{build.name}: still building; {work}")

    thread = threading.Thread(target=beat, daemon=True)
    thread.start()
    try:
        yield
    finally:
        done.set()
        thread.join()


def _span(seconds: float) -> str:
    return f"{seconds:.0f} s" if seconds < 100 else f"{seconds / 60:.1f} min"
