"""OTLP export requests with every part changeable."""

from typing import Any

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.common.v1.common_pb2 import AnyValue, ArrayValue, KeyValue, KeyValueList
from opentelemetry.proto.trace.v1.trace_pb2 import ScopeSpans, Span

TRACE = bytes.fromhex("0af7651916cd43dd8448eb211c80319c")
START_NS = 1_796_083_200_000_000_000


def value(content: Any) -> AnyValue:
    match content:
        case bool():
            return AnyValue(bool_value=content)
        case int():
            return AnyValue(int_value=content)
        case float():
            return AnyValue(double_value=content)
        case str():
            return AnyValue(string_value=content)
        case bytes():
            return AnyValue(bytes_value=content)
        case list():
            return AnyValue(array_value=ArrayValue(values=[value(item) for item in content]))
        case dict():
            return AnyValue(kvlist_value=KeyValueList(values=pairs(content)))
    return AnyValue()


def pairs(attributes: dict[str, Any]) -> list[KeyValue]:
    return [KeyValue(key=key, value=value(content)) for key, content in attributes.items()]


def span(number: int = 1, *, parent: int = 0, attributes: dict[str, Any] | None = None, **changes: Any) -> Span:
    """Span ``number`` starts so many milliseconds after the first and lasts 5."""
    start_ns = START_NS + number * 1_000_000
    values: dict[str, Any] = {
        "trace_id": TRACE,
        "span_id": number.to_bytes(8),
        "parent_span_id": parent.to_bytes(8) if parent else b"",
        "name": "turn",
        "kind": Span.SPAN_KIND_SERVER,
        "start_time_unix_nano": start_ns,
        "end_time_unix_nano": start_ns + 5_000_000,
    }
    return Span(**values | changes, attributes=pairs(attributes or {}))


def export(*spans: Span, service: str = "backhaul-router") -> bytes:
    request = ExportTraceServiceRequest()
    resource_spans = request.resource_spans.add()
    resource_spans.resource.attributes.extend(pairs({"service.name": service}))
    resource_spans.scope_spans.append(ScopeSpans(spans=spans))
    return request.SerializeToString()
