"""Manifests that users and operators published: what becomes of them."""

from __future__ import annotations

import pytest

from allaboard.checking.job import check
from allaboard.convert.manifests import Document, convert, engine_of_manifest, score
from allaboard.errors import BadInput
from tests.core.convert.manifests import HERE, in_folder
from tests.core.convert.score import is_read, outcomes_of

WILD = in_folder("wild")
OF_OPERATORS = [one for one in in_folder("examples") if not one.text.startswith("jobset-")]
"""Those of JobSet, which knows no framework, are in test_jobsets."""


def test_nothing_raises_and_nearly_all_are_converted_and_every_loss_is_named() -> None:
    outcomes, raised = outcomes_of(WILD)
    assert raised == []
    read = [one for one in outcomes if is_read(one)]
    total = score(read)
    assert total.jobs >= 90 and total.converted >= 0.95 * total.jobs
    assert all(loss.path and loss.reason for one in read for loss in one.lost)
    assert all(problem.path and problem.message for one in outcomes for problem in one.problems)


def test_what_is_converted_can_be_run() -> None:
    jobs = [job for one in outcomes_of(WILD)[0] for job in one.documents]
    assert jobs and [p for job in jobs for p in check(job) if p.severity == "error"] == []


@pytest.mark.parametrize("document", OF_OPERATORS, ids=lambda document: document.text)
def test_every_example_of_the_operator_is_converted_and_loses_nothing_that_it_understands(
    document: Document,
) -> None:
    if engine_of_manifest(document.value) is None:
        pytest.skip("no engine of this version reads it")
    (outcome,) = convert([document])
    assert outcome.documents and not outcome.problems
    # A pod template that calls itself a Pod: nobody understands that.
    assert {loss.path.rpartition(".")[2] for loss in outcome.lost} <= {"apiVersion", "kind"}


def test_what_is_no_yaml_is_no_manifest_and_templates_are_called_so() -> None:
    from allaboard.convert.manifests import documents

    for file in sorted((HERE / "templates").glob("*")):
        with pytest.raises(BadInput, match="is not YAML") as caught:
            documents(file.read_text(), file.name)
        assert "looks like a template" in str(caught.value)
