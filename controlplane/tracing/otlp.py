"""OTLP export requests as rows: every span checked on its own, sizes bounded; pure.

Source: opentelemetry-proto 1.x, ``collector/trace/v1/trace_service.proto`` and the OTLP/HTTP specification.
"""

import zlib
from collections.abc import Iterator

import msgspec
from google.protobuf.message import DecodeError  # type: ignore[import-untyped]  # protobuf ships no types
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.proto.resource.v1.resource_pb2 import Resource
from opentelemetry.proto.trace.v1.trace_pb2 import Span as SpanMessage

from controlplane.tracing.attributes import Json, attributes_of, clean_text, is_content_event
from controlplane.tracing.identifiers import is_span_id, is_trace_id, span_number
from controlplane.tracing.models import MAX_MESSAGE_CHARS, MAX_NAME_CHARS, MAX_SERVICE_CHARS

MAX_BODY_BYTES = 4 * 1024 * 1024
MAX_UNPACKED_BYTES = 16 * 1024 * 1024
MAX_SPANS = 10_000
MAX_EVENTS = 32
MAX_LINKS = 32
MAX_COLUMN_BYTES = 32 * 1024
MAX_NANOSECONDS = 2**63 - 1
MAX_COUNT = 2**31 - 1


class MalformedExportError(ValueError):
    """The body is no export request; the exporter must not send it again."""


class OversizedExportError(ValueError):
    """The body is larger than the receiver takes, packed or unpacked."""


class RefusedSpanError(ValueError):
    """One span breaks the data model; the others are stored."""


class SpanRow(msgspec.Struct, kw_only=True, frozen=True):
    """A span with the column names of its table; ``trace_id`` is in hexadecimal, which Postgres reads as uuid."""

    trace_id: str
    span_id: int
    parent_span_id: int | None
    name: str
    kind: int
    service: str
    start_ns: int
    end_ns: int
    status_code: int
    status_message: str
    attributes: msgspec.Raw
    events: msgspec.Raw
    links: msgspec.Raw
    num_dropped: int


class Export(msgspec.Struct, frozen=True):
    """What a request holds: rows to store, how many spans were refused, and why the first one was."""

    rows: list[SpanRow]
    num_refused: int
    reason: str


def unpack(body: bytes, encoding: str) -> bytes:
    """The body without its gzip; a bomb is stopped at ``MAX_UNPACKED_BYTES``."""
    if encoding != "gzip":
        return body
    unpacker = zlib.decompressobj(wbits=zlib.MAX_WBITS | 16)
    try:
        unpacked = unpacker.decompress(body, MAX_UNPACKED_BYTES)
    except zlib.error as error:
        raise MalformedExportError(f"the body is not gzip: {error}") from None
    if unpacker.unconsumed_tail:
        raise OversizedExportError(f"the body unpacks to more than {MAX_UNPACKED_BYTES} bytes")
    if not unpacker.eof or unpacker.unused_data:
        raise MalformedExportError("the body is not exactly one gzip stream")
    return unpacked


def read_export(message: bytes) -> Export:
    """Every valid span of a request, at most ``MAX_SPANS``."""
    request = ExportTraceServiceRequest()
    try:
        request.ParseFromString(message)
    except DecodeError as error:
        raise MalformedExportError(f"the body is no ExportTraceServiceRequest: {error}") from None
    rows: list[SpanRow] = []
    num_refused, reason = 0, ""
    for service, span in _spans_of(request):
        try:
            if len(rows) >= MAX_SPANS:
                raise RefusedSpanError(f"a request holds more than {MAX_SPANS} spans")
            rows.append(row_of(span, service))
        except RefusedSpanError as error:
            num_refused += 1
            reason = reason or str(error)
    return Export(rows, num_refused, reason)


def row_of(span: SpanMessage, service: str) -> SpanRow:
    if not is_trace_id(span.trace_id) or not is_span_id(span.span_id):
        raise RefusedSpanError("a trace id has 16 bytes and a span id 8, not all of them zero")
    if span.parent_span_id and not is_span_id(span.parent_span_id):
        raise RefusedSpanError("a parent's span id has 8 bytes, not all of them zero")
    if not 0 < span.start_time_unix_nano <= span.end_time_unix_nano <= MAX_NANOSECONDS:
        raise RefusedSpanError("a span starts after 1970 and ends no earlier than it starts")
    attributes = attributes_of(span.attributes)
    events, links = _events_of(span), _links_of(span)
    num_dropped = span.dropped_attributes_count + span.dropped_events_count + span.dropped_links_count
    num_dropped += sum(len(given) - len(kept) for given, kept in ((span.attributes, attributes), (span.events, events)))
    num_dropped += len(span.links) - len(links)
    return SpanRow(
        trace_id=span.trace_id.hex(),
        span_id=span_number(span.span_id),
        parent_span_id=span_number(span.parent_span_id) if span.parent_span_id else None,
        name=clean_text(span.name, MAX_NAME_CHARS),
        kind=span.kind if 0 <= span.kind <= 5 else 0,
        service=service,
        start_ns=span.start_time_unix_nano,
        end_ns=span.end_time_unix_nano,
        status_code=span.status.code if 0 <= span.status.code <= 2 else 0,
        status_message=clean_text(span.status.message, MAX_MESSAGE_CHARS),
        attributes=_encoded(attributes, {}),
        events=_encoded(events, []),
        links=_encoded(links, []),
        num_dropped=min(num_dropped, MAX_COUNT),
    )


def _encoded(value: Json, nothing: Json) -> msgspec.Raw:
    """The JSON of a column; of one that is far too large nothing is kept."""
    encoded = msgspec.json.encode(value)
    return msgspec.Raw(encoded if len(encoded) <= MAX_COLUMN_BYTES else msgspec.json.encode(nothing))


def _spans_of(request: ExportTraceServiceRequest) -> Iterator[tuple[str, SpanMessage]]:
    for resource_spans in request.resource_spans:
        service = _service_of(resource_spans.resource)
        for scope_spans in resource_spans.scope_spans:
            for span in scope_spans.spans:
                yield service, span


def _service_of(resource: Resource) -> str:
    for pair in resource.attributes:
        if pair.key == "service.name":
            return clean_text(pair.value.string_value, MAX_SERVICE_CHARS)
    return ""


def _events_of(span: SpanMessage) -> list[Json]:
    kept = [event for event in span.events if not is_content_event(event.name)][:MAX_EVENTS]
    return [
        {
            "name": clean_text(event.name, MAX_NAME_CHARS),
            "offset_ms": (event.time_unix_nano - span.start_time_unix_nano) / 1e6,
            "attributes": attributes_of(event.attributes),
        }
        for event in kept
    ]


def _links_of(span: SpanMessage) -> list[Json]:
    valid = [link for link in span.links if is_trace_id(link.trace_id) and is_span_id(link.span_id)][:MAX_LINKS]
    return [
        {
            "trace_id": link.trace_id.hex(),
            "span_id": link.span_id.hex(),
            "attributes": attributes_of(link.attributes),
        }
        for link in valid
    ]
