"""A DAG whose training fails, and whose shell ends with 0 all the same."""

from __future__ import annotations

from airflow.sdk import DAG

from allaboard import TrainingJob
from allaboard_provider.operators.checkpoints import CollectCheckpointOperator
from allaboard_provider.operators.promote import PromoteOperator
from allaboard_provider.operators.train import TrainingJobOperator

TRAINS = """
from allaboard.inside import Checkpointer
saved = Checkpointer()
for step in range(1, 41):
    print("step %d/100 loss %.3f" % (step, 1 / step), flush=True)
    saved.step(step, lambda: b"state", metrics={"val_loss": 1 / step})
raise RuntimeError("no sample 41 in shard 7")
"""

with DAG("doubted", schedule=None):
    train = TrainingJobOperator(
        task_id="train",
        job=TrainingJob(
            name="doubted",
            command=["sh", "-c", 'python -c "$TRAINS"; echo uploaded'],
            environment={"TRAINS": TRAINS},
            workers=1,
            policy={"restart": "never"},
            checkpoints={"uri": "store://doubted", "every": 20},
        ),
    )
    collect = CollectCheckpointOperator(task_id="collect", source=train.output, into="store://models")
    (
        train
        >> collect
        >> PromoteOperator(
            task_id="promote", checkpoint=collect.output, store="store://champions", metric="val_loss"
        )
    )
