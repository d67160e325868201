"""Run for each new champion: Airflow looks into the store, and nobody tells it."""

from airflow.sdk import DAG, Asset, AssetWatcher, task

from allaboard_provider.triggers.assets import NewChampionTrigger

CHAMPION = Asset(
    "tiny_champion",
    watchers=[AssetWatcher(name="store", trigger=NewChampionTrigger(uri="store://tiny"))],
)

with DAG("example_new_champion", schedule=[CHAMPION], catchup=False, tags=["example"]) as dag:

    @task
    def tell(triggering_asset_events=None):
        print(triggering_asset_events)

    tell()
