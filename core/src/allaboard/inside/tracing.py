"""Spans of the training process, in the trace of the task that trains.

A task that is traced gives its members ``TRACEPARENT`` (W3C Trace Context). Where that is set and
OpenTelemetry is installed, each save of a checkpoint is a span of that trace. The script's own tracer
provider is used where it has set one; else one that exports as OpenTelemetry's own variables say
(``OTEL_TRACES_EXPORTER``, ``OTEL_EXPORTER_OTLP_ENDPOINT``, ...), and none where none of them is set. Spans
leave in the background. No trouble with them is the training's.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from functools import cache
from typing import Any

_SAYS_WHERE = ("OTEL_TRACES_EXPORTER", "OTEL_EXPORTER_OTLP_ENDPOINT", "OTEL_EXPORTER_OTLP_TRACES_ENDPOINT")


@contextmanager
def span(name: str, **attributes: str | int) -> Iterator[None]:
    """A span around what is done within; an error within marks it, and is raised."""
    opened = _start(name, attributes)
    try:
        yield
    except BaseException as error:
        _end(opened, error)
        raise
    _end(opened, None)


def _start(name: str, attributes: dict[str, str | int]) -> Any:
    with suppress(Exception):
        tracer, parent = _tracer() or (None, None)
        if tracer is not None:
            return tracer.start_span(name, parent, attributes={**_about_run(), **attributes})
    return None


def _end(opened: Any, error: BaseException | None) -> None:
    if opened is None:
        return
    with suppress(Exception):
        if error is not None:
            from opentelemetry.trace import Status, StatusCode

            opened.set_status(Status(StatusCode.ERROR, type(error).__name__))
        opened.end()


def _about_run() -> dict[str, str]:
    known = {"allaboard.run": "ALLABOARD_RUN", "allaboard.attempt": "ALLABOARD_ATTEMPT"}
    return {name: os.environ[variable] for name, variable in known.items() if variable in os.environ}


@cache
def _tracer() -> tuple[Any, Any] | None:
    """The tracer, and the context of the task's span; None: this process is not traced."""
    carrier = {name.lower(): os.environ[name] for name in ("TRACEPARENT", "TRACESTATE") if name in os.environ}
    if "traceparent" not in carrier:
        return None
    try:
        from opentelemetry import trace
        from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
    except ImportError:
        return None
    parent = TraceContextTextMapPropagator().extract(carrier)
    if not trace.get_current_span(parent).get_span_context().trace_flags.sampled:
        return None
    provider: Any = trace.get_tracer_provider()
    if not hasattr(provider, "add_span_processor"):  # the script has set none
        provider = _own_provider()
    return None if provider is None else (provider.get_tracer("allaboard"), parent)


def _own_provider() -> Any:
    """A provider that exports as the environment says; None where it says nothing."""
    exporter = os.environ.get("OTEL_TRACES_EXPORTER", "otlp")
    if exporter == "none" or not any(map(os.environ.get, _SAYS_WHERE)):
        return None
    try:
        from importlib.metadata import entry_points

        from opentelemetry.sdk.trace import TracerProvider
        from opentelemetry.sdk.trace.export import BatchSpanProcessor
    except ImportError:
        return None
    entry_point = next(iter(entry_points(group="opentelemetry_traces_exporter", name=exporter)), None)
    if entry_point is None:
        return None
    # It flushes what is left when the process ends.
    provider = TracerProvider()
    provider.add_span_processor(BatchSpanProcessor(entry_point.load()()))
    return provider
