"""What happens when there is a new champion?

This DAG has no clock: it runs when `retrain_digits` promotes a model, and only then. A night whose model was
no better starts nothing. It gets the champion from the event, and judges it once more; a deployment would
begin here.
"""

from __future__ import annotations

import pendulum
from airflow.sdk import DAG, Asset

from allaboard_provider.operators import EvaluateOperator

CHAMPION = Asset("digits_champion")  # an outlet of the task that promotes

with DAG(
    "on_new_champion",
    description="Judge each new champion",
    schedule=[CHAMPION],
    start_date=pendulum.datetime(2025, 1, 1, tz="Europe/Zurich"),
    catchup=False,
    tags=["allaboard", "example"],
    doc_md=__doc__,
) as dag:
    EvaluateOperator(
        task_id="judge",
        job="digits/evaluate.yaml",
        # The newest event that started this run; its extra has uri, step, metrics, run, fingerprint, too.
        checkpoint="{{ (triggering_asset_events.values() | first | last).extra.uri }}",
        inlets=[CHAMPION],  # Airflow then shows the champion's state beside the task, too
    )
