"""The trace of a task, handed on to its training."""

from __future__ import annotations

from allaboard_provider.compat import conf


def trace_environment() -> dict[str, str]:
    """``TRACEPARENT`` (and ``TRACESTATE``) of the task's present span, for its members; empty where Airflow
    does not trace, or does not sample this DAG run.
    """
    if not conf.getboolean("traces", "otel_on", fallback=False):
        return {}
    from opentelemetry import trace
    from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator

    if not trace.get_current_span().get_span_context().trace_flags.sampled:
        return {}
    carrier: dict[str, str] = {}
    TraceContextTextMapPropagator().inject(carrier)
    return {name.upper(): value for name, value in carrier.items()}
