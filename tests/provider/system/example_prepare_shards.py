"""Make shards of samples, and train on the version that this DAG run has made."""

from airflow.sdk import DAG

from allaboard_provider.operators import PrepareShardsOperator, TrainingJobOperator

READS = "from allaboard.inside import ShardReader; print([len(batch) for batch in ShardReader(batch_size=4)])"


def samples():
    """Ten samples: for each the name of a file, and its bytes."""
    for number in range(10):
        yield {"__key__": f"{number:04}", "txt": str(number).encode()}


with DAG("example_prepare_shards", schedule=None, catchup=False, tags=["example"]) as dag:
    prepare = PrepareShardsOperator(
        task_id="prepare", source=samples, into="store://tiny/shards", samples_per_shard=4
    )
    train = TrainingJobOperator(
        task_id="train",
        job={
            "name": "reader",
            "command": ["python", "-c", READS],
            "data": {"shards": "store://tiny/shards"},
        },
    )
    prepare >> train
