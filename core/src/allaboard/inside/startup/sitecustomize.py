"""Run by every Python that a member starts: makes the stacks of its threads readable from outside.

Its folder stands first on PYTHONPATH; Python imports a module of this name at its start. In a pod the helper
puts it there (`allaboard.inside.helper`), whatever the image holds. Where there is no helper, the wheel's
``allaboard.pth`` runs it where the environment names a run, and so does `allaboard.inside`. Whichever comes
first counts. A signal that nobody else uses (`SIGNAL`) then writes the stacks of all threads into an
anonymous file of the process, without the interpreter's help: also while C code, such as a collective, holds
the main thread. Until somebody asks, that costs one open file. `allaboard.backends.local.host.stacks` asks,
and in pods `allaboard.backends.kubernetes.stacks`.

Where nobody may run anything in the container (``policy.hang.ask: file``), the first Python of it starts
the process that asks the others when a file says so (`allaboard.backends.kubernetes.stacks.script`).

A rank of a gang that imports torch.distributed tells the number of its last collective, too, or when it
entered each of the last ones: a thread that sleeps until a byte comes through a pipe, which others open
through ``/proc``, as torch's own signals and sockets are not touched.

It stands alone: the interpreter of a script need not have allaboard. It never fails a start, and whatever
sitecustomize the environment has besides is imported as if this one were not there. Linux only.
"""

# ruff: noqa: PTH100, PTH110, PTH118, PTH120, SIM105  (no package; pathlib, contextlib are slow to import)

import _thread
import faulthandler
import os
import sys

SIGNAL = 61
"""SIGRTMAX-3: real-time signals have no meaning of their own, and few programs take one. As a number: to
import `signal` takes longer than all the rest of this.
"""
NAME = "allaboard-stacks"
"""Of the anonymous file: ``/proc/<pid>/fd/<n>`` is ``/memfd:allaboard-stacks (deleted)``."""
COLLECTIVES = "allaboard-collectives"
"""Of the anonymous file with ``<pid> <descriptor of the pipe>``, and the answer in a second line."""
ALL, LAST = b"!", b"#"
"""Ask for the last collectives themselves, those of gloo alone, or of NCCL, too, in a second line. To write
the 2,000 that torch keeps holds the interpreter for some 50 ms, and what NCCL has not done is asked of the
GPU; any other byte asks for the numbers of both, which takes some microseconds.
"""
KEPT = "2000"
"""Collectives that torch's flight recorder keeps, as newer versions of torch do by themselves."""
ASKED = "ALLABOARD_ASKED"
"""Environment variable: the file by which members are asked, where nobody may run anything beside them."""
SWITCH = "ALLABOARD_STARTUP"
"""Environment variable: ``off`` and nothing is done here."""
_MEMFD = {"x86_64": 319, "aarch64": 279, "riscv64": 279}
"""Machine -> the number of the system call memfd_create."""
_BEGUN = "_allaboard_answers"
"""Of `sys`: the process answers already."""
_file: "tuple[int, int] | None" = None
TYPE_CHECKING = False  # to import typing takes long
if TYPE_CHECKING:
    from collections.abc import MutableMapping


def _answer() -> None:
    """Have this process answer. A forked child gets a file of its own: its parent's would mix both."""
    global _file
    before, _file = _file, _new_file()
    faulthandler.register(SIGNAL, file=_file[0], all_threads=True, chain=False)
    if before is not None and os.fstat(before[0]).st_ino == before[1]:
        os.close(before[0])


def _new_file() -> "tuple[int, int]":
    """(descriptor, inode): a program may close what it does not know and open something else there."""
    file = _anonymous_file(NAME)
    return file, os.fstat(file).st_ino


def _anonymous_file(name: str) -> int:
    """The descriptor of an anonymous file. Raises OSError where there are none."""
    if hasattr(os, "memfd_create"):
        return os.memfd_create(name, os.MFD_CLOEXEC)
    # A Python that was built for an old glibc, as conda's, lacks it.
    number = _MEMFD.get(os.uname().machine)
    if number is None:
        raise OSError("the number of memfd_create is not known here")
    try:
        import ctypes
    except ImportError as error:
        raise OSError(str(error)) from error
    file = int(ctypes.CDLL(None).syscall(number, name.encode(), 1))
    if file < 0:
        raise OSError("no anonymous files")
    return file


def _answer_in_child() -> None:
    try:
        _answer()
    except (OSError, RuntimeError, ValueError):
        pass  # its parent's file is still registered


class _SeesTorch:
    """Finds no module: it is there to see that torch.distributed is imported, and goes away then."""

    @staticmethod
    def find_spec(name: str, path: object = None, target: object = None) -> None:
        if name != "torch.distributed":
            return
        sys.meta_path[:] = [finder for finder in sys.meta_path if finder is not _SeesTorch]
        try:
            _tell_collectives()
        except (OSError, RuntimeError):
            pass


def _keep_collectives(version: str, environ: "MutableMapping[str, str]") -> None:
    """Have torch keep its last collectives, unless the environment says how many. ``version``: torch's."""
    if "TORCH_FR_BUFFER_SIZE" in environ or "TORCH_NCCL_TRACE_BUFFER_SIZE" in environ:
        return
    environ["TORCH_FR_BUFFER_SIZE"] = KEPT
    first, _, rest = version.partition(".")
    if first == "2" and rest.partition(".")[0] in tuple("012345678"):
        environ["TORCH_NCCL_TRACE_BUFFER_SIZE"] = KEPT  # the name of old versions, of which new ones warn


def _tell_collectives() -> None:
    _keep_collectives(getattr(sys.modules.get("torch"), "__version__", ""), os.environ)
    asked, ask = os.pipe()
    file = _anonymous_file(COLLECTIVES)
    head = b"%d %d\n" % (os.getpid(), ask)
    os.write(file, head)
    _thread.start_new_thread(_answer_collectives, (asked, file, len(head)))


def _answer_collectives(asked: int, file: int, start: int) -> None:
    """Write what torch's flight recorder tells when a byte comes."""
    try:
        while True:
            byte = os.read(asked, 64)
            if not byte:
                break
            torch = sys.modules.get("torch._C._distributed_c10d")
            if torch is not None:
                answer = _dumps(torch, byte)
                os.ftruncate(file, start)
                _write_at(file, answer, start)
    except Exception:  # an older torch, or a descriptor that the script has closed
        pass


def _dumps(torch: object, byte: bytes) -> bytes:
    """The answer to a byte: a line of JSON for gloo, and one for NCCL, each empty where torch lacks it."""
    of_gloo = getattr(torch, "_dump_fr_trace_json", None)
    of_nccl = getattr(torch, "_dump_nccl_trace_json", None) if byte != ALL else None
    lines = [of_gloo(ALL in byte or LAST in byte, False) if of_gloo is not None else b""]
    if of_nccl is not None:
        lines.append(of_nccl(LAST in byte, False))
    return b"".join(line + b"\n" for line in lines)


def _write_at(file: int, answer: bytes, start: int) -> None:
    while answer:
        written = os.pwrite(file, answer, start)
        answer, start = answer[written:], start + written


def _start_listener(path: str) -> None:
    """Start the process that sees what the file asks. It is nobody's child: a script may wait for its own."""
    folder = os.path.dirname(os.path.dirname(os.path.abspath(__file__)))
    scripts = [
        os.path.join(folder, "stacks.py"),  # of the helper that comes with a pod
        os.path.join(os.path.dirname(folder), "backends", "kubernetes", "stacks", "script.py"),
    ]
    script = next((path for path in scripts if os.path.exists(path)), None)
    # Other threads may hold locks that a forked process waits for.
    if not sys.executable or script is None or _thread._count():
        return
    starter = os.getpid()
    child = os.fork()
    if child:
        os.waitpid(child, 0)
        return
    try:
        if os.fork() == 0:
            os.execv(sys.executable, [sys.executable, "-I", "-S", script, str(starter), path])
    finally:
        os._exit(0)


def _import_next() -> None:
    """Import the sitecustomize that the environment would have without this one."""
    here = os.path.dirname(os.path.abspath(__file__))
    sys.path[:] = [path for path in sys.path if os.path.abspath(path) != here]
    this = sys.modules.pop("sitecustomize", None)
    try:
        __import__("sitecustomize")
    except ModuleNotFoundError as error:
        if error.name not in (None, "sitecustomize"):
            raise
        if this is not None:
            sys.modules["sitecustomize"] = this


def _begin() -> None:
    """Have this process answer, unless a copy of this module has begun to. Never fails."""
    if sys.platform != "linux" or hasattr(sys, _BEGUN):
        return
    if os.environ.get(SWITCH) == "off":
        return
    try:
        asked = os.environ.pop(ASKED, "")  # once is enough: what this process starts sees it no more
        if asked:
            _start_listener(asked)
        _answer()
        setattr(sys, _BEGUN, True)
        os.register_at_fork(after_in_child=_answer_in_child)
        if os.environ.get("WORLD_SIZE", "1") not in ("", "0", "1"):
            sys.meta_path.insert(0, _SeesTorch)
            if "torch.distributed" in sys.modules:
                _SeesTorch.find_spec("torch.distributed")
    except (OSError, RuntimeError, ValueError):
        pass  # no more files, or a sandbox without memfd: it cannot be asked, and trains all the same


_begin()
if __name__ == "sitecustomize":
    _import_next()
