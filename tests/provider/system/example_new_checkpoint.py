"""Run for each new checkpoint: Airflow looks into the store, and nobody tells it."""

from airflow.sdk import DAG, Asset, AssetWatcher, task

from allaboard_provider.triggers.assets import NewCheckpointTrigger

CHECKPOINT = Asset(
    "tiny_checkpoint",
    watchers=[AssetWatcher(name="store", trigger=NewCheckpointTrigger(uri="store://tiny/checkpoints"))],
)

with DAG("example_new_checkpoint", schedule=[CHECKPOINT], catchup=False, tags=["example"]) as dag:

    @task
    def tell(triggering_asset_events=None):
        print(triggering_asset_events)

    tell()
