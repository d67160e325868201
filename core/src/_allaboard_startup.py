"""Imported by ``allaboard.pth`` at the start of every Python whose environment names a run of allaboard: runs
`allaboard.inside.startup`, without the time that it takes to import allaboard. Never fails a start.
"""

# ruff: noqa: SIM105  (contextlib is slow to import)

import os
from importlib.machinery import PathFinder, SourceFileLoader


def _begin() -> None:
    spec = PathFinder.find_spec("allaboard")
    for folder in (spec and spec.submodule_search_locations) or ():
        path = os.path.join(folder, "inside", "startup", "sitecustomize.py")  # noqa: PTH118  (at every start)
        code = SourceFileLoader(__name__, path).get_code(__name__)
        if code is not None:
            exec(code, {"__name__": __name__, "__file__": path})


try:
    _begin()
except Exception:
    pass
