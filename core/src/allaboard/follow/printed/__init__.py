"""Progress from what ordinary training scripts print: no script has to be changed for it.

`ProgressReader` reads the lines of one stream. ``families`` holds what is known of each library, as data;
``form`` is of what that is made, ``counting`` makes steps of a whole training, ``candidates`` passes over the
lines that cannot be progress, and ``expression`` is for a format of one's own.
"""

from allaboard.follow.printed.expression import OFF
from allaboard.follow.printed.reader import ProgressReader

__all__ = ["OFF", "ProgressReader"]
