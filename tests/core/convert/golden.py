"""Write the golden jobs anew, and look at the difference before you keep it.

.venv/airflow/bin/python -m tests.core.convert.golden
"""

from __future__ import annotations

from pathlib import Path

from allaboard.cli.tools.render import to_yaml
from allaboard.convert.manifests import convert, documents
from tests.core.convert.manifests import HERE

FOLDER = HERE / "golden"
EXAMPLES = {
    "pytorch-elastic-imagenet-imagenet.yaml": "pytorchjob-elastic",
    "pytorch-simple.yaml": "pytorchjob",
    "tensorflow-mnist_with_summaries-tf_job_mnist.yaml": "tfjob",
    "xgboost-lightgbm-dist-xgboostjob_v1_lightgbm_dist_training.yaml": "xgboostjob",
    "paddlepaddle-simple-gpu.yaml": "paddlejob",
    "jax-jax-dist-spmd-mnist-jaxjob_dist_spmd_mnist_gloo.yaml": "jaxjob",
}
"""Manifest of the operator's examples -> the golden file of its job."""


def job_of(example: str) -> str:
    """The job of an example, and below it what is said in another way."""
    file = HERE / "examples" / example
    (outcome,) = convert(documents(file.read_text(), file.name))
    told = [f"# changed: {one.path}: {one.before} -> {one.after}" for one in outcome.changed]
    told += [f"# lost: {one.path}" for one in outcome.lost]
    return to_yaml(outcome.documents) + "".join(f"{line}\n" for line in told)


def file_of(name: str) -> Path:
    return FOLDER / f"{name}.yaml"


if __name__ == "__main__":
    FOLDER.mkdir(exist_ok=True)
    for example, name in EXAMPLES.items():
        file_of(name).write_text(job_of(example))
