"""An evaluation that says which checkpoint it was given."""

from allaboard.inside import open_checkpoint, result

found = open_checkpoint()
result(accuracy=0.9, step=found.step, said=found.load().decode())
