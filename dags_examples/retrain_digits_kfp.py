"""Is tonight's model better than the one in production?

    make demo-kfp                                                     runs it on your machine, and compiles it
    .venv/kfp/bin/python dags_examples/retrain_digits_kfp.py x.yaml   compiles it alone

The chain of `retrain_digits.py` as a pipeline of Kubeflow: shards are prepared, a small convolutional net is
trained on them by two processes (DistributedDataParallel, gloo), its best checkpoint is collected, judged on
digits that it has never seen, and made the champion if it beats the present one.

The jobs are those of `digits/`, word for word. Nothing here says where: `store` does, one parameter of the
pipeline. Between the steps go names of places, never the data itself.
"""

import sys
from pathlib import Path

from kfp import compiler, dsl

from allaboard.job.loader import load
from allaboard_kfp import collect_checkpoint, evaluate, prepare_shards, promote, train

DIGITS = Path(__file__).parent / "digits"
TRAINING = load(DIGITS / "job.yaml").as_mapping()
EVALUATION = load(DIGITS / "evaluate.yaml").as_mapping()


@dsl.pipeline(name="retrain-digits", description="Prepare, train, collect, evaluate, promote if better.")
def retrain_digits(store: str = "", folder: str = "/app/digits", least: str = "accuracy>=0.97") -> bool:
    """The pipeline.

    Args:
        store: what store:// stands for: a folder, s3://bucket/prefix.
        folder: where the scripts of the jobs are: in the image, or on this machine.
        least: what a model must reach to be promoted at all.

    Returns:
        Whether the new model was promoted.
    """
    data = prepare_shards(
        source="prepare.py:samples",
        into="store://digits/shards",
        samples_per_shard=200,
        folder=folder,
        store=store,
    )
    trained = train(job=TRAINING, shards=data.outputs["Output"], folder=folder, store=store)
    collected = collect_checkpoint(
        source=trained.outputs["checkpoints"],
        into="store://digits/models",
        which="best",
        metric="val_loss",
        store=store,
    )
    judged = evaluate(job=EVALUATION, checkpoint=collected.outputs["Output"], folder=folder, store=store)
    promoted = promote(
        checkpoint=collected.outputs["Output"],
        into="store://digits",
        results=judged.outputs["results"],
        metric="accuracy",
        thresholds=least,
        store=store,
    )
    return promoted.outputs["promoted"]


if __name__ == "__main__":
    into = sys.argv[1] if len(sys.argv) > 1 else "retrain_digits.yaml"
    compiler.Compiler().compile(retrain_digits, into)
    print(into)
