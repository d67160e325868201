"""Counts to ten, and saves what it has counted."""

from allaboard.inside import Checkpointer, report

checkpoints = Checkpointer()
resumed = checkpoints.resume()
for step in range((resumed.step if resumed else 0) + 1, 11):
    report(step=step, total=10, loss=1 / step)
    if step % 5 == 0:
        checkpoints.save(step, str(step).encode(), metrics={"val_loss": 1 / step})
