"""``allaboard engines`` says what the code says."""

from __future__ import annotations

import json
import re

import pytest

from allaboard.cli import main
from allaboard.engines import ENGINES
from allaboard.gangs import GANGS


def said(capsys: pytest.CaptureFixture[str], *words: str) -> str:
    assert main(["engines", *words]) == 0
    return capsys.readouterr().out


def test_every_engine_has_its_line(capsys: pytest.CaptureFixture[str]) -> None:
    lines = said(capsys).splitlines()
    assert [line.split()[0] for line in lines] == ["ENGINE", *ENGINES]
    tfjob = ["tfjob", "tensorflow", "TFJob kubeflow.org/v1", "Training Operator v1"]
    rows = [re.split(" {2,}", line) for line in lines]
    assert [*tfjob, "chief (one), master (one), worker, ps, evaluator"] in rows
    assert {row[3] for row in rows if row[0] == "mxjob"} == {"Training Operator v1 up to 1.8"}
    (jobset,) = [row for row in rows if row[0] == "jobset"]
    assert jobset[2:] == ["JobSet jobset.x-k8s.io/v1alpha2", "JobSet", "as the framework's own engine"]
    assert next(line for line in lines if line.startswith("pytorchjob")).endswith("worker; elastic")


def test_the_matrix_has_every_pair(capsys: pytest.CaptureFixture[str]) -> None:
    body = json.loads(said(capsys, "--matrix", "--json"))["engines"]
    assert {e["name"]: [*e["gangs"]] for e in body} == {name: [*GANGS] for name in ENGINES}
    (jax,) = (e for e in body if e["name"] == "jaxjob")
    assert jax["gangs"]["coscheduling"] == {"how": "marks", "natively": True, "reason": None}
    kueue = {e["name"]: e["kueue"]["how"] for e in body}
    assert (kueue["jobset"], kueue["pytorchjob"], kueue["mxjob"]) == (
        "admitted",
        "admitted, if configured",
        "refused",
    )
    text = said(capsys, "--matrix")
    assert "mxjob with kueue: Kueue manages no job of mxjob: it would start at once" in text
    natively = [gang for engine in ENGINES.values() for gang in engine.NATIVELY]
    assert text.count("marks, natively") == len(natively) and "without" not in text


def test_what_is_refused_is_said_with_its_reason(
    capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(ENGINES["jaxjob"], "REFUSES", {"workload": "it has no groups of its own"})
    assert "jaxjob with workload: it has no groups of its own" in said(capsys, "--matrix")
