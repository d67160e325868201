"""Starts a module of allaboard as a process of its own, isolated: with the modules that this process has, but
for those of the current folder and of the folder of its script.

``python -m`` takes modules from the current folder before all others: a ``json.py`` or ``signal.py`` there,
which anybody may have written, would run with the rights of whoever starts a run. A member's own Python is
started as its author has it.

As a script this file is the first that such a process runs, by ``python -I``, which knows neither the current
folder nor variables of Python (PYTHONPATH, PYTHONSTARTUP).
"""

# ruff: noqa: PTH109, PTH117, PTH120  (pathlib is slow to import)

from __future__ import annotations

import json
import os
import sys
from contextlib import suppress


def isolated_command(module: str, *arguments: str) -> list[str]:
    """The command line that runs ``module`` of allaboard with these arguments."""
    without_bytecode = ["-B"] if sys.dont_write_bytecode else []
    return [sys.executable, "-I", *without_bytecode, __file__, json.dumps(import_path()), module, *arguments]


def import_path() -> list[str]:
    """`sys.path` without what the start of a program or an empty entry of PYTHONPATH has put there."""
    import allaboard

    main = getattr(sys.modules.get("__main__"), "__file__", None)
    others = {"" if main is None else os.path.realpath(os.path.dirname(main))}
    with suppress(OSError):  # the current folder is gone
        others.add(os.path.realpath(os.getcwd()))
    kept = [at for at in sys.path if os.path.isabs(at) and os.path.realpath(at) not in others]
    root = os.path.dirname(os.path.dirname(allaboard.__file__))
    return list(dict.fromkeys([*kept, root]))


def _run() -> None:
    import runpy

    given = json.loads(sys.argv[1])
    # What -I has found is always there: the current folder may be that of the installed modules.
    sys.path[:] = [*given, *(at for at in sys.path if at not in given)]
    del sys.argv[:2]
    runpy.run_module(sys.argv[0], run_name="__main__", alter_sys=True)


if __name__ == "__main__":
    _run()
