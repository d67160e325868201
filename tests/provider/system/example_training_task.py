"""Train a function of the DAG file."""

from airflow.sdk import DAG, task

with DAG("example_training_task", schedule=None, catchup=False, tags=["example"]) as dag:

    @task.training(resources={"cpu": 1})
    def count(to: int) -> None:
        from allaboard.inside import report

        for step in range(1, to + 1):
            report(step=step, total=to)

    count(10)
