"""Reads one checkpoint, and says how good it is."""

from allaboard.inside import open_checkpoint, result

counted = int(open_checkpoint().load())
result(accuracy=counted / 10)
