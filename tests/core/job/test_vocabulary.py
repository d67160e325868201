"""The names of a job's fields stand beside the class, and their types in a module of their own."""

from __future__ import annotations

import subprocess
import sys

from allaboard.job.training_job import FIELDS
from allaboard.job.vocabulary import Fields


def test_the_names_are_those_of_the_types_in_their_order() -> None:
    assert tuple(Fields.__annotations__) == FIELDS


def test_a_dag_file_pays_for_no_types() -> None:
    program = (
        "import sys; from allaboard import TrainingJob; TrainingJob(name='a', command=['b']); "
        "print([m for m in ('allaboard.job.vocabulary', 'allaboard.text.redaction') if m in sys.modules])"
    )
    done = subprocess.run([sys.executable, "-c", program], capture_output=True, text=True, check=True)
    assert done.stdout == "[]\n"
