"""The helper of members on a cluster, as their manifests show it: the folder in which it is mounted, and the
words before a command around which it stands (`allaboard.inside.helper`). Values in, values out.

A command's own program starts the helper where that is a Python or a plain shell, because the image has it
for certain; else /bin/sh does, which images without a shell lack. Where the mount is empty, because somebody
has deleted the ConfigMap or the job was sent to another cluster without it, the command starts all the same.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

FOLDER = "/allaboard/helper"
START, START_BY_SHELL = f"{FOLDER}/start.py", f"{FOLDER}/start.sh"
ARCHIVE = "checkpoints.zip"
"""File with modules of allaboard."""
SHELL = "/bin/sh"
BY_SHELL = '[ ! -r "$0" ] || . "$0"; exec "$@"'
BY_PYTHON = (
    "import sys; del sys.path[0], sys.argv[0]; import os; start, command = sys.argv[0], sys.argv[1:]; "
    "os.path.exists(start) or os.execvp(command[0], command); "
    "exec(compile(open(start).read(), start, 'exec'), {'__name__': '__main__', '__file__': start})"
)
"""Programs for a shell, and for a Python of any version; the next word is the helper's file. The kubelet
finds no variable in them.
"""
VOLUME = "allaboard-helper"
ENDPOINT = "ALLABOARD_ENDPOINT"
"""Variable: ``off``, and no endpoint is opened."""
CHECKPOINTS, ADOPT, FILL = "ALLABOARD_HELP_CHECKPOINTS", "adopt", "fill"
"""Variable: another library writes the checkpoints; and the command, or a variable, needs one."""
COPIES, SHARED = "ALLABOARD_HELP_COPIES", "ALLABOARD_HELP_SHARED"
"""Variables: the place that takes copies of them; ``on``: all members see the folder into which they go."""
_PYTHON = re.compile(r"(.*/)?python(3(\.[0-9]+)?)?")
_PLAIN_SHELL = re.compile(r"(.*/)?(sh|dash|ash)")
_LEFT_ALONE = re.compile(r"(.*/)?sshd")
_LONGEST_START = 6
"""Words before a command, the helper's file included."""
_TUNE = ["tune", "run"]
"""The command by which Trainer 2 knows torchtune, whose arguments it fills in."""


def start_words(command: Sequence[str]) -> tuple[str, ...]:
    """The words that stand before this command; none where nothing may stand around it: sshd is the
    operator's, and asks for a path of its own.
    """
    if not command or _LEFT_ALONE.fullmatch(command[0]) or [*command] == _TUNE:
        return ()
    if _PYTHON.fullmatch(command[0]):
        return (command[0], "-s", "-S", "-c", BY_PYTHON, START)
    shell = command[0] if _PLAIN_SHELL.fullmatch(command[0]) else SHELL
    return (shell, "-c", BY_SHELL, START_BY_SHELL)


def as_start_error(terminated: Mapping[str, Any]) -> Mapping[str, Any]:
    """The end of a container in whose last words the helper tells that its command cannot be started, as the
    container runtime would tell it; any other end as it is.
    """
    message = terminated.get("message")
    if terminated.get("exitCode") not in (126, 127) or not isinstance(message, str) or len(message) > 4096:
        return terminated
    *before, last = message.strip().splitlines() or [""]
    match = _NOT_STARTED.fullmatch(last)
    if match is None or not all(line.startswith(f"{START_BY_SHELL}: ") for line in before):
        return terminated
    reason = _REASONS.get(match["reason"], match["reason"].lower())
    return {**terminated, "reason": "StartError", "message": f'exec: "{match["program"]}": {reason}'}


_NOT_STARTED = re.compile(
    rf"(?:{re.escape(START_BY_SHELL)}: (?:line )?(?:\d+: )?(?:exec: )?|exec: )(?:line \d+: )?"
    r"(?P<program>.+?): (?:cannot execute: )?"
    r"(?P<reason>not found|[Pp]ermission denied|Exec format error|(Is|Not) a directory)"
)
"""The last line of a container whose command cannot be started: of the helper itself, or of a shell."""
_REASONS = {"not found": "executable file not found in $PATH"}


def without_helper(value: Any) -> Any:
    """An object, or part of one, without the helper: commands are the job's own, volumes and mounts are those
    of others. Equal where there is no helper.
    """
    if isinstance(value, Mapping):
        return dict(_fields_without(value))
    if isinstance(value, list):
        return [without_helper(item) for item in value]
    return value


def _fields_without(fields: Mapping[Any, Any]) -> Iterator[tuple[Any, Any]]:
    for name, value in fields.items():
        if name == "command" and isinstance(value, list):
            yield name, _own_command(value)
        elif name in ("volumes", "volumeMounts") and isinstance(value, list):
            left = [item for item in value if not _is_of_helper(item)]
            if left or not value:
                yield name, without_helper(left)
        else:
            yield name, without_helper(value)


def _own_command(command: list[Any]) -> list[Any]:
    for file in (START, START_BY_SHELL):
        if file in command[:_LONGEST_START]:
            return command[command.index(file) + 1 :]
    return command


def _is_of_helper(item: Any) -> bool:
    return isinstance(item, Mapping) and (item.get("name"), item.get("mountPath", FOLDER)) == (VOLUME, FOLDER)
