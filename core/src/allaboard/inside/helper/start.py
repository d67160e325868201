"""The helper of a member: does what its start-up needs, and becomes its command.

    python -s -S start.py COMMAND ARGUMENT...

`allaboard.job.helper` has the words that run it in a pod. It runs in any image, by a Python of the image:
standard library alone, as any user, on a read-only root, without a network or a home. The environment of the
command gets a folder in front of PYTHONPATH, whose sitecustomize makes stacks readable, and the address of an
endpoint on the loopback (`endpoint`) to which Kubeflow's integrations post their progress, unless Trainer has
injected one of its own. For a job whose checkpoints another library writes, ``{checkpoint}`` is filled in
(`keep`).

The command takes the place of this process: pid, signals, exit code, descriptors and children are what they
are without the helper, and so are the variables that it does not add. Only around the command of rank 0 of a
job whose checkpoints another library writes this process stays. It never fails a start, but for a command
that cannot be filled in. A Python older than 3.8, also one before 3, becomes the command at once.
"""

# ruff: noqa: PTH100, PTH118, PTH120, PTH123, SIM105, UP024  (an old Python; no package)

import os
import sys

TYPE_CHECKING = False  # an old Python has no such names
if TYPE_CHECKING:
    from typing import Any, Dict, List, Tuple  # noqa: F401, UP035

SWITCH = b"ALLABOARD_STARTUP"
RUN = b"ALLABOARD_RUN"
ENDPOINT = b"ALLABOARD_ENDPOINT"
"""Variable: ``off`` where the loopback is not the pod's own."""
CHECKPOINTS = b"ALLABOARD_HELP_CHECKPOINTS"
"""Variable: ``adopt`` where another library writes them, ``fill`` where the command needs one, too."""
COPIES = b"ALLABOARD_HELP_COPIES"
"""Variable: the place that takes copies of them."""
PATH = b"PYTHONPATH"
NOT_FOUND, NOT_STARTED, NOT_FILLED = 127, 126, 1
"""Exit codes of a command that cannot be started: those of a shell; of one that cannot be filled in."""


def main(command):  # type: (List[bytes]) -> None
    """Become the command. Returns never."""
    environment = _environment()
    is_known = sys.version_info >= (3, 8)
    if is_known and environment.get(SWITCH) != b"off":
        try:
            _prepare(environment)
        except Exception:  # the command starts, whatever the helper cannot do
            pass
        if CHECKPOINTS in environment:
            command, environment = _with_checkpoint(command, environment)
    else:
        _not_kept(environment, SWITCH.decode() + "=off" if is_known else "this Python is older than 3.8")
    _become(command, environment)


def _environment():  # type: () -> Dict[bytes, bytes]
    """The environment as it was handed over. Python changes its own where no locale is set (PEP 538)."""
    try:
        with open("/proc/self/environ", "rb") as file:
            pairs = file.read().split(b"\0")
    except (IOError, OSError):
        pairs = [_bytes(name) + b"=" + _bytes(value) for name, value in os.environ.items()]
    variables = {}  # type: Dict[bytes, bytes]
    for pair in pairs:
        name, separator, value = pair.partition(b"=")
        if separator:
            variables.setdefault(name, value)
    return variables


def _bytes(word):  # type: (Any) -> bytes
    return word if isinstance(word, bytes) else os.fsencode(word)


def _prepare(environment):  # type: (Dict[bytes, bytes]) -> None
    here = os.path.dirname(os.path.abspath(__file__))
    before = environment.get(PATH)
    folder = os.fsencode(os.path.join(here, "python"))
    environment[PATH] = folder + b":" + before if before else folder
    # What the job has on PYTHONPATH is not for this process.
    folders = [os.path.abspath(os.fsdecode(name)) for name in (before or b"").split(b":") if name]
    sys.path[:] = [here] + [path for path in sys.path if os.path.abspath(path) not in folders]
    if RUN in environment and environment.get(ENDPOINT) != b"off":
        import endpoint  # type: ignore[import-not-found]

        environment.update(endpoint.start(environment))


def _with_checkpoint(command, environment):
    # type: (List[bytes], Dict[bytes, bytes]) -> Tuple[List[bytes], Dict[bytes, bytes]]
    """The command and its variables, filled in. Does not return to rank 0, which stays around the command."""
    here = os.path.dirname(os.path.abspath(__file__))
    try:
        import keep  # type: ignore[import-not-found]

        command, environment, leads = keep.begin(here, command, environment)
    except Exception as error:
        _not_kept(environment, str(error))
        return command, environment
    try:
        if leads:
            keep.keep(here, lambda: _become(command, environment), environment)
    except Exception:  # nothing is started yet
        pass
    return command, environment


def _not_kept(environment, reason):  # type: (Dict[bytes, bytes], str) -> None
    """End a command that needs a checkpoint; of any other tell that its checkpoints are not copied."""
    is_filled = environment.get(CHECKPOINTS) == b"fill"
    if is_filled or COPIES in environment:
        trouble = b"{checkpoint} cannot be filled in" if is_filled else b"the checkpoints are not copied"
        os.write(2, b"allaboard: " + trouble + b": " + reason.encode("utf-8", "replace") + b"\n")
    if is_filled:
        os._exit(NOT_FILLED)


def _become(command, environment):  # type: (List[bytes], Dict[bytes, bytes]) -> None
    # `signal` is slow to import.
    signals = __import__("_signal" if "_signal" in sys.builtin_module_names else "signal")
    # Python ignores them, and what a process ignores its program ignores after exec.
    for name in ("SIGPIPE", "SIGXFZ", "SIGXFSZ"):
        if hasattr(signals, name):
            signals.signal(getattr(signals, name), signals.SIG_DFL)
    try:
        os.execvpe(command[0], command, environment)
    except (IOError, OSError) as error:
        is_there = error.errno != 2
        reason = str(error.strerror).encode() if is_there else b"not found"
        os.write(2, b"exec: " + command[0] + b": " + reason + b"\n")  # as a shell says it
        os._exit(NOT_STARTED if is_there else NOT_FOUND)


if __name__ == "__main__":
    main([_bytes(word) for word in sys.argv[1:]])
