"""The OTLP door: real exporters get through, everything else gets the answer that the specification wants."""

import asyncio
import gzip
from typing import Any

import pytest
from django.db import OperationalError
from google.rpc.status_pb2 import Status
from opentelemetry import trace
from opentelemetry.exporter.otlp.proto.http import Compression
from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceResponse
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import ReadableSpan, TracerProvider
from opentelemetry.sdk.trace.export import SimpleSpanProcessor, SpanExportResult
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from rest_framework.test import APIClient

from controlplane.accounts.actions import create_token
from controlplane.accounts.models import TokenKind
from controlplane.tracing import otlp, receiver
from controlplane.tracing.identifiers import span_hex
from controlplane.tracing.models import Span
from tests.controlplane.database import ask
from tests.controlplane.tracing.messages import export, span

PROTOBUF = "application/x-protobuf"


@pytest.fixture
def secret(db: None) -> str:
    return create_token(kind=TokenKind.AGENT, name="agent", actor="test")[1]


@pytest.fixture
def exporter(secret: str) -> APIClient:
    return APIClient(headers={"Authorization": f"Bearer {secret}"})


def post(exporter: APIClient, body: bytes, content_type: str = PROTOBUF, **headers: str) -> Any:
    return exporter.generic("POST", "/v1/traces", body, content_type=content_type, headers=headers)


def error_of(response: Any) -> str:
    assert response["Content-Type"] == PROTOBUF
    return str(Status.FromString(response.content).message)


def some_spans() -> tuple[ReadableSpan, ...]:
    """A turn with a transfer below it, made by the real SDK."""
    memory = InMemorySpanExporter()
    provider = TracerProvider(resource=Resource.create({"service.name": "backhaul-router"}))
    provider.add_span_processor(SimpleSpanProcessor(memory))
    tracer = provider.get_tracer("test")
    with tracer.start_as_current_span("turn", kind=trace.SpanKind.SERVER) as turn:
        turn.set_attribute("backhaul.turn_id", "t")
        with tracer.start_as_current_span("kv.transfer", links=[trace.Link(turn.get_span_context())]) as transfer:
            transfer.add_event("posted")
            transfer.set_status(trace.StatusCode.ERROR, "timeout")
    provider.shutdown()
    return memory.get_finished_spans()


@pytest.mark.parametrize("compression", [Compression.NoCompression, Compression.Gzip])
async def test_real_exporter_stores_its_spans_once(server_url: str, secret: str, compression: Compression) -> None:
    sdk_exporter = OTLPSpanExporter(
        f"{server_url}/v1/traces", headers={"Authorization": f"Bearer {secret}"}, compression=compression
    )
    spans = some_spans()
    for _ in range(2):
        assert await asyncio.to_thread(sdk_exporter.export, spans) is SpanExportResult.SUCCESS
    sdk_exporter.shutdown()
    stored = await ask(lambda: {row.name: row for row in Span.objects.all()})
    assert set(stored) == {"turn", "kv.transfer"}
    for sdk_span in spans:
        row, context = stored[sdk_span.name], sdk_span.get_span_context()
        assert context is not None
        assert (row.trace_id.int, span_hex(row.span_id)) == (context.trace_id, f"{context.span_id:016x}")
        assert (row.start_ns, row.end_ns) == (sdk_span.start_time, sdk_span.end_time)
    transfer = stored["kv.transfer"]
    assert (transfer.parent_span_id, transfer.service) == (stored["turn"].span_id, "backhaul-router")
    assert (transfer.status_code, transfer.status_message) == (2, "timeout")
    assert (len(transfer.events), len(transfer.links)) == (1, 1)


async def test_real_exporter_with_a_wrong_token_fails_without_retry(server_url: str) -> None:
    sdk_exporter = OTLPSpanExporter(f"{server_url}/v1/traces", headers={"Authorization": "Bearer bh_agent_wrong"})
    async with asyncio.timeout(5):
        assert await asyncio.to_thread(sdk_exporter.export, some_spans()) is SpanExportResult.FAILURE
    sdk_exporter.shutdown()
    assert not await ask(Span.objects.exists)


def test_answer_is_an_empty_success(exporter: APIClient) -> None:
    response = post(exporter, export(span()))
    assert (response.status_code, response["Content-Type"]) == (200, PROTOBUF)
    assert not ExportTraceServiceResponse.FromString(response.content).HasField("partial_success")
    assert Span.objects.count() == 1


def test_refused_spans_are_told_and_the_others_stored(exporter: APIClient) -> None:
    response = post(exporter, export(span(1, trace_id=b"short"), span(2), span(3, span_id=b"")))
    answer = ExportTraceServiceResponse.FromString(response.content)
    assert response.status_code == 200
    assert answer.partial_success.rejected_spans == 2
    assert "trace id" in answer.partial_success.error_message
    assert Span.objects.get().span_id == 2


def test_first_export_of_a_span_stands(exporter: APIClient) -> None:
    post(exporter, export(span(1, name="first")))
    response = post(exporter, export(span(1, name="second"), span(2), span(2)))
    assert response.status_code == 200
    assert list(Span.objects.order_by("span_id").values_list("name", flat=True)) == ["first", "turn"]


@pytest.mark.parametrize("body", [b"", export()])
def test_empty_export_is_a_success(exporter: APIClient, body: bytes) -> None:
    assert post(exporter, body).status_code == 200


def test_gzip_is_taken(exporter: APIClient) -> None:
    response = post(exporter, gzip.compress(export(span())), **{"Content-Encoding": "gzip"})
    assert (response.status_code, Span.objects.count()) == (200, 1)


@pytest.mark.parametrize(
    ("body", "content_type", "headers", "status"),
    [
        (b"\xff\xff", PROTOBUF, {}, 400),
        (b"no gzip", PROTOBUF, {"Content-Encoding": "gzip"}, 400),
        (b"x", PROTOBUF, {"Content-Encoding": "br"}, 415),
        (b"{}", "application/json", {}, 415),
        (b"a=1", "application/x-www-form-urlencoded", {}, 415),
        (bytes(otlp.MAX_BODY_BYTES + 1), PROTOBUF, {}, 413),
        (gzip.compress(bytes(otlp.MAX_UNPACKED_BYTES + 1)), PROTOBUF, {"Content-Encoding": "gzip"}, 413),
    ],
)
def test_bad_body_is_answered_with_a_status(
    exporter: APIClient, body: bytes, content_type: str, headers: dict[str, str], status: int
) -> None:
    response = post(exporter, body, content_type, **headers)
    assert response.status_code == status
    assert error_of(response)
    assert not Span.objects.exists()


@pytest.mark.parametrize("kind", list(TokenKind))
def test_every_kind_of_token_may_export(db: None, kind: TokenKind) -> None:
    _, secret = create_token(kind=kind, name="any", actor="test")
    client = APIClient(headers={"Authorization": f"Bearer {secret}"})
    assert post(client, export(span())).status_code == 200


@pytest.mark.parametrize("headers", [{}, {"Authorization": "Bearer bh_agent_wrong"}, {"Authorization": "Basic eDp5"}])
@pytest.mark.django_db
def test_export_needs_a_token(headers: dict[str, str]) -> None:
    response = post(APIClient(headers=headers), export(span()))
    assert (response.status_code, response["WWW-Authenticate"]) == (401, "Bearer")
    assert error_of(response)
    assert not Span.objects.exists()


def test_database_that_is_away_asks_the_exporter_to_retry(exporter: APIClient, monkeypatch: pytest.MonkeyPatch) -> None:
    def fail(rows: object) -> int:
        raise OperationalError("the connection is closed")

    monkeypatch.setattr(receiver, "store_spans", fail)
    response = post(exporter, export(span()))
    assert (response.status_code, response["Retry-After"]) == (503, "2")
    assert error_of(response)


def test_reading_the_door_is_not_allowed(exporter: APIClient) -> None:
    assert exporter.get("/v1/traces").status_code == 405
