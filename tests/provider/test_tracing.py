"""The trace of a task, handed on to its training: with real spans, and where Airflow does not trace."""

from __future__ import annotations

import pytest
from opentelemetry import trace
from opentelemetry.sdk.trace import TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_OFF

from allaboard_provider.tracing import trace_environment


@pytest.fixture
def traces(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("AIRFLOW__TRACES__OTEL_ON", "True")


@pytest.mark.usefixtures("traces")
def test_members_go_on_with_the_span_of_their_task() -> None:
    with TracerProvider().get_tracer("airflow").start_as_current_span("worker.train") as span:
        here = span.get_span_context()
        told = trace_environment()
    assert told == {"TRACEPARENT": f"00-{here.trace_id:032x}-{here.span_id:016x}-{here.trace_flags:02x}"}


@pytest.mark.usefixtures("traces")
def test_a_dag_run_that_is_not_sampled_hands_nothing_on() -> None:
    with TracerProvider(sampler=ALWAYS_OFF).get_tracer("airflow").start_as_current_span("worker.train"):
        assert trace_environment() == {}
    assert not trace.get_current_span().get_span_context().is_valid and trace_environment() == {}


def test_an_airflow_that_does_not_trace_hands_nothing_on() -> None:
    """Not even the span of some other library of the worker."""
    with TracerProvider().get_tracer("other").start_as_current_span("theirs"):
        assert trace_environment() == {}
