"""The reason why a program could not be started, from the message of a container runtime. Values in, values
out.
"""

from __future__ import annotations

import re

from allaboard.job.helper import SHELL
from allaboard.text.names import nearest

PROGRAMS = ("python", "python3", "torchrun", "accelerate", "deepspeed", "mpirun", "bash", "sh", "uv", "pip")
"""Suggestions for a misspelt program. The content of an image is not known."""


def why_not_started(message: str) -> tuple[str, str, bool]:
    """(code, sentence, whether a retry may succeed) for a runtime's message about a failed start."""
    if re.search(
        r"nvidia-container-cli|no runtime for \"nvidia\"|driver/library version|driver not loaded", message
    ):
        return (
            "gpu_runtime_broken",
            f"the GPU runtime of its node does not work: {last_clause(message)}",
            True,
        )
    if "no process could be made" in message:
        return "bad_entrypoint", last_clause(message), True
    if "exec format error" in message:
        return "exec_format_error", "its program was built for another processor, or has no #! line", False
    if (match := re.search(r'chdir to cwd \("?([^")]*)"?\)', message)) is not None:
        return "bad_entrypoint", f"the folder {match[1]} in which it starts is not in its image", False
    match = re.search(r'exec: \\?"([^"\\]+)\\?":|exec:? \\?"([^"\\]+)\\?"|stat (\S+?): no such file', message)
    program = next((g for g in match.groups() if g), None) if match is not None else None
    if program is None:
        return "bad_entrypoint", f"its program could not be started: {last_clause(message)}", False
    if "permission denied" in message:
        return "bad_entrypoint", f"{program!r} in its image may not be executed", False
    if program == SHELL:
        sentence = (
            f"{SHELL!r} is not in its image; where the command is no shell, it is the helper of members that "
            "needs one: say inject: off"
        )
        return "bad_entrypoint", sentence, False
    return "bad_entrypoint", f"{program!r} is not in its image{suggestion(program)}", False


def suggestion(program: str) -> str:
    """Continuation of a sentence about a program that is not there: one that may be meant."""
    # To a name of two or three letters much is near, and `sshd` is no misspelt `sh`.
    near = nearest(program.rpartition("/")[2], [name for name in PROGRAMS if len(name) > 3])
    return f"; did you mean {near!r}?" if near and near != program else ""


def last_clause(text: str) -> str:
    """The end of a chain of errors, which is where it began."""
    plain = " ".join(text.split())
    return plain if len(plain) <= 160 else f"...{plain[-157:]}"
