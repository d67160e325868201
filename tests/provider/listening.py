"""Who listens where Airflow sends: a statsd server, and a collector of OpenTelemetry's traces, on the
loopback.
"""

from __future__ import annotations

import socket
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any


@dataclass
class Statsd:
    """The metrics that came, as statsd writes them: ``airflow.allaboard.runs:1|c``."""

    port: int
    lines: list[str] = field(default_factory=list)

    def of(self, name: str) -> list[str]:
        """What came under a name of ours: the value and the kind, ``1|c``."""
        values = (line.partition(":") for line in self.lines)
        return [value for found, _, value in values if found.partition(",")[0] == f"airflow.allaboard.{name}"]

    def tags(self, name: str) -> list[dict[str, str]]:
        heads = (line.partition(":")[0].split(",") for line in self.lines)
        return [
            dict(tag.split("=", 1) for tag in tags)
            for found, *tags in heads
            if found == f"airflow.allaboard.{name}"
        ]


@contextmanager
def statsd() -> Iterator[Statsd]:
    """A statsd server that keeps what it hears."""
    with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as server:
        server.bind(("127.0.0.1", 0))
        heard = Statsd(server.getsockname()[1])

        def listen() -> None:
            while text := server.recv(65536).decode():
                heard.lines.extend(text.splitlines())

        listener = threading.Thread(target=listen, daemon=True)
        listener.start()
        yield heard
        with socket.socket(socket.AF_INET, socket.SOCK_DGRAM) as last:
            last.sendto(b"", ("127.0.0.1", heard.port))
        listener.join(10)


@dataclass(frozen=True)
class Span:
    name: str
    trace: str
    id: str
    parent: str
    start: int
    attributes: dict[str, Any]


@dataclass
class Collector:
    url: str
    spans: list[Span] = field(default_factory=list)


@contextmanager
def collector() -> Iterator[Collector]:
    """A collector of spans, over OTLP and HTTP."""
    from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            import gzip

            body = self.rfile.read(int(self.headers["Content-Length"]))
            if self.headers.get("Content-Encoding") == "gzip":
                body = gzip.decompress(body)
            request = ExportTraceServiceRequest.FromString(body)
            for resource in request.resource_spans:
                for scope in resource.scope_spans:
                    found.spans.extend(map(_span, scope.spans))
            self.send_response(200)
            self.send_header("Content-Length", "0")
            self.end_headers()

        def log_message(self, *_: Any) -> None: ...

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    found = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    listener = threading.Thread(target=server.serve_forever, daemon=True)
    listener.start()
    try:
        yield found
    finally:
        server.shutdown()
        listener.join(10)
        server.server_close()


def _span(span: Any) -> Span:
    values = {
        one.key: getattr(one.value, one.value.WhichOneof("value"))
        for one in span.attributes
        if one.value.WhichOneof("value")
    }
    return Span(
        span.name,
        span.trace_id.hex(),
        span.span_id.hex(),
        span.parent_span_id.hex(),
        span.start_time_unix_nano,
        values,
    )
