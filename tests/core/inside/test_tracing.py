"""Saves as spans of the task's trace, with real spans of OpenTelemetry."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

TRACE, TASK = "0af7651916cd43dd8448eb211c80319c", "b7ad6b7169203331"
TRAINS = """
import sys
from pathlib import Path

from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.export import ConsoleSpanExporter, SimpleSpanProcessor

def line(span):
    parent = f"{span.parent.span_id:016x}" if span.parent else "-"
    ended = span.status.status_code.name
    return f"{span.name} {span.context.trace_id:032x} {parent} {span.attributes['step']} {ended}\\n"

if sys.argv[2:] == ["own"]:
    provider = TracerProvider()
    provider.add_span_processor(SimpleSpanProcessor(ConsoleSpanExporter(formatter=line)))
    trace.set_tracer_provider(provider)

from allaboard.inside import Checkpointer

checkpointer = Checkpointer(sys.argv[1], every=1)
for step in (1, 2):
    checkpointer.step(step, lambda: b"state")
try:
    checkpointer.save(3, {"state": Path("absent")})
except Exception as error:
    print("raised", type(error).__name__)
"""


def trained(folder: Path, *words: str, **environment: str) -> list[str]:
    """The lines of a training that saves twice and then fails to."""
    folder.mkdir(exist_ok=True)
    kept = {name: value for name, value in os.environ.items() if not name.startswith(("OTEL_", "TRACE"))}
    answer = subprocess.run(
        [sys.executable, "-c", TRAINS, str(folder / "saves"), *words],
        env={**kept, **environment}, capture_output=True, text=True, check=True, cwd=folder,
    )  # fmt: skip
    return [line for line in answer.stdout.splitlines() if not line.startswith("[allaboard]")]


@pytest.fixture(autouse=True)
def sdk() -> Any:
    return pytest.importorskip("opentelemetry.sdk.trace")


def test_each_save_is_a_span_below_the_task_and_a_failed_one_says_so(tmp_path: Path) -> None:
    lines = trained(tmp_path, "own", TRACEPARENT=f"00-{TRACE}-{TASK}-01")
    assert lines[:2] == [f"checkpoint.save {TRACE} {TASK} {step} UNSET" for step in (1, 2)]
    assert lines[2] == f"checkpoint.save {TRACE} {TASK} 3 ERROR" and lines[3].startswith("raised ")


@pytest.mark.parametrize(
    "traced",
    [{}, {"TRACEPARENT": f"00-{TRACE}-{TASK}-00"}, {"TRACEPARENT": "what is this"}],
    ids=["not traced", "not sampled", "no trace"],
)
def test_who_is_not_traced_saves_all_the_same(tmp_path: Path, traced: dict[str, str]) -> None:
    (line,) = trained(tmp_path, "own", **traced)
    assert line.startswith("raised ")


def test_without_a_provider_of_the_script_spans_go_where_the_environment_says(tmp_path: Path) -> None:
    traced = {"TRACEPARENT": f"00-{TRACE}-{TASK}-01"}
    assert len(trained(tmp_path, **traced)) == 1
    shown = "\n".join(trained(tmp_path / "again", OTEL_TRACES_EXPORTER="console", **traced))
    assert shown.count('"checkpoint.save"') == 3 and f'"trace_id": "0x{TRACE}"' in shown


def test_an_exporter_that_is_not_there_is_no_trouble_of_the_training(tmp_path: Path) -> None:
    traced = {"TRACEPARENT": f"00-{TRACE}-{TASK}-01", "OTEL_TRACES_EXPORTER": "elsewhere"}
    assert len(trained(tmp_path, **traced)) == 1
