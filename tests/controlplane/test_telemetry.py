"""The control plane's own spans: none by default, exported by OTLP where an operator names an endpoint."""

import os
import secrets
import subprocess
import sys
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

ROOT = Path(__file__).parents[2]
PROGRAM = """
from controlplane.telemetry import start_telemetry
start_telemetry(); start_telemetry()
import django; django.setup()
from django.test import Client
from opentelemetry import trace
for path in ("/healthz", "/no/such/page"):
    Client(SERVER_NAME="localhost").get(path)
provider = trace.get_tracer_provider()
print(type(provider).__name__)
getattr(provider, "force_flush", lambda: None)()
"""


class Sink(HTTPServer):
    """Takes OTLP over HTTP and keeps the requests."""

    def __init__(self) -> None:
        self.requests: list[ExportTraceServiceRequest] = []
        super().__init__(("127.0.0.1", 0), SinkHandler)


class SinkHandler(BaseHTTPRequestHandler):
    server: Sink

    def do_POST(self) -> None:
        body = self.rfile.read(int(self.headers["Content-Length"]))
        self.server.requests.append(ExportTraceServiceRequest.FromString(body))
        self.send_response(200)
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the name is the base class's
        """Keeps quiet."""


@pytest.fixture
def sink() -> Iterator[Sink]:
    sink = Sink()
    thread = threading.Thread(target=sink.serve_forever)
    thread.start()
    yield sink
    sink.shutdown()
    thread.join()
    sink.server_close()


def run(folder: Path, endpoint: str) -> str:
    secret_key = folder / "secret-key"
    secret_key.write_text(secrets.token_hex(32))
    environment = {
        **os.environ,
        "BACKHAUL_SECRET_KEY_FILE": str(secret_key),
        "BACKHAUL_OTLP_ENDPOINT": endpoint,
        "OTEL_EXPORTER_OTLP_COMPRESSION": "none",
    }
    command = [sys.executable, "-c", PROGRAM]
    result = subprocess.run(command, cwd=ROOT, env=environment, capture_output=True, text=True, timeout=50, check=False)
    assert result.returncode == 0, result.stderr
    return result.stdout.strip()


def test_requests_are_exported_under_the_control_planes_name(sink: Sink, tmp_path: Path) -> None:
    assert run(tmp_path, f"http://127.0.0.1:{sink.server_port}/v1/traces") == "TracerProvider"
    resources = [resource for request in sink.requests for resource in request.resource_spans]
    names = {a.value.string_value for r in resources for a in r.resource.attributes if a.key == "service.name"}
    assert names == {"backhaul-controlplane"}
    spans = [span for resource in resources for scope in resource.scope_spans for span in scope.spans]
    assert len(spans) == 1, "probes are not traced, every other request is, once"


def test_nothing_is_traced_without_an_endpoint(tmp_path: Path) -> None:
    assert run(tmp_path, "") != "TracerProvider"
