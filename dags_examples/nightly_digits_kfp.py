"""Is there a better model each morning, without anybody looking?

    .venv/kfp/bin/python dags_examples/nightly_digits_kfp.py nightly.yaml     compiles it
    .venv/kfp/bin/python dags_examples/nightly_digits_kfp.py --schedule URL   has a server run it each night

The chain of `retrain_digits_kfp.py`, which promotes only what beats the champion: a night without a better
model is green and changes nothing. However a run ends, its last step stops the trainings that no step follows
any more. Runs never overlap, and a night that was missed is not made up for.
"""

import sys
from pathlib import Path
from typing import Any

from kfp import compiler, dsl
from retrain_digits_kfp import retrain_digits

from allaboard_kfp import clean_up


@dsl.pipeline(name="nightly-digits", description="Retrain, promote if better, leave nothing behind.")
def nightly_digits(store: str = "", folder: str = "/app/digits", least: str = "accuracy>=0.97"):  # type: ignore[no-untyped-def]
    """The chain within the step that cleans up."""
    with dsl.ExitHandler(clean_up()):
        retrain_digits(store=store, folder=folder, least=least)


def schedule(client: Any, file: str, store: str) -> Any:
    """Let a server of Kubeflow Pipelines run the compiled pipeline each night. ``client``: a kfp.Client."""
    return client.create_recurring_run(
        experiment_id=client.create_experiment("digits").experiment_id,
        job_name="nightly-digits",
        cron_expression="0 0 2 * * *",  # the first of six fields are seconds; the time is UTC
        max_concurrency=1,
        no_catchup=True,
        params={"store": store},
        pipeline_package_path=file,
    )


if __name__ == "__main__":
    url = sys.argv[2] if sys.argv[1:2] == ["--schedule"] else ""
    into = "nightly_digits.yaml" if url else (sys.argv[1] if len(sys.argv) > 1 else "nightly_digits.yaml")
    compiler.Compiler().compile(nightly_digits, into)
    print(Path(into))
    if url:
        from kfp.client import Client

        print(schedule(Client(host=url), into, store="s3://models/research").recurring_run_id)
