"""Export requests become rows: every span on its own, sizes bounded, no conversation content."""

import gzip
import json
import zlib
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.proto.trace.v1.trace_pb2 import Span, Status

from controlplane.tracing import attributes, otlp
from controlplane.tracing.identifiers import span_hex, span_number
from tests.controlplane.tracing.messages import START_NS, TRACE, export, pairs, span


def read_one(message: Span, service: str = "backhaul-router") -> otlp.SpanRow:
    (row,) = otlp.read_export(export(message, service=service)).rows
    return row


def attributes_of(content: dict[str, Any]) -> Any:
    return json.loads(bytes(read_one(span(attributes=content)).attributes))


def test_span_becomes_a_row() -> None:
    message = span(2, parent=1, name="kv.transfer", kind=Span.SPAN_KIND_CLIENT, attributes={"backhaul.tokens": 608})
    message.status.code, message.status.message = Status.STATUS_CODE_ERROR, "timeout"
    row = read_one(message, service="backhaul-agent")
    assert (row.trace_id, row.span_id, row.parent_span_id) == (TRACE.hex(), 2, 1)
    assert (row.name, row.kind, row.service) == ("kv.transfer", 3, "backhaul-agent")
    assert (row.start_ns, row.end_ns) == (START_NS + 2_000_000, START_NS + 7_000_000)
    assert (row.status_code, row.status_message, bytes(row.attributes)) == (2, "timeout", b'{"backhaul.tokens":608}')


def test_span_without_parent_has_none() -> None:
    assert read_one(span()).parent_span_id is None


@given(st.binary(min_size=8, max_size=8))
def test_span_ids_survive_the_way_into_a_bigint(value: bytes) -> None:
    number = span_number(value)
    assert -(2**63) <= number < 2**63
    assert span_hex(number) == value.hex()


def test_every_kind_of_value_becomes_json() -> None:
    given_values = {"text": "a", "int": 2**62, "bool": True, "float": 0.5, "list": ["a", 1], "map": {"k": "v"}}
    assert attributes_of(given_values) == given_values
    assert attributes_of({"nan": float("nan"), "inf": float("-inf"), "none": None}) == {
        "nan": "nan",
        "inf": "-inf",
        "none": None,
    }
    assert attributes_of({"bytes": b"\x00\xff"}) == {"bytes": "00ff"}


def test_values_are_cut_to_their_limits() -> None:
    found = attributes_of({"text": "x" * 5000, "list": list(range(500)), "k" * 500: 1, "nul": "a\0b"})
    assert len(found["text"]) == attributes.MAX_TEXT_CHARS
    assert len(found["list"]) == attributes.MAX_ITEMS
    assert "k" * attributes.MAX_KEY_CHARS in found
    assert found["nul"] == "ab"


def test_nesting_ends_at_its_limit() -> None:
    assert attributes_of({"deep": [[[["lost"]]]]}) == {"deep": [[[None]]]}


def test_surplus_attributes_are_counted_as_dropped() -> None:
    row = read_one(span(attributes={f"key-{number:03}": number for number in range(100)}))
    assert len(json.loads(bytes(row.attributes))) == attributes.MAX_ATTRIBUTES
    assert row.num_dropped == 100 - attributes.MAX_ATTRIBUTES


def test_far_too_large_column_keeps_nothing() -> None:
    row = read_one(span(attributes={f"key-{number}": ["x" * 1024] * 32 for number in range(4)}))
    assert bytes(row.attributes) == b"{}"


@pytest.mark.parametrize(
    "key",
    ["gen_ai.prompt", "gen_ai.prompt.0.content", "gen_ai.input.messages", "gen_ai.output.messages", "input.value"],
)
def test_conversation_content_is_never_kept(key: str) -> None:
    message = span(attributes={key: "secret words", "backhaul.note": {key: "secret words", "kept": 1}})
    message.events.add(name="gen_ai.user.message", attributes=pairs({"content": "secret words"}))
    message.events.add(name="gen_ai.choice", attributes=pairs({"message": "secret words"}))
    message.events.add(name="decided", attributes=pairs({key: "secret words"}))
    row = read_one(message)
    assert b"secret" not in msgspec.json.encode(row)
    assert json.loads(bytes(row.attributes)) == {"backhaul.note": {"kept": 1}}
    assert [event["name"] for event in json.loads(bytes(row.events))] == ["decided"]


def test_events_and_links_are_kept_within_their_limits() -> None:
    message = span()
    for number in range(50):
        message.events.add(name=f"event-{number}", time_unix_nano=message.start_time_unix_nano + number * 1_000_000)
        message.links.add(trace_id=TRACE, span_id=(number + 1).to_bytes(8))
    message.links.add(trace_id=b"short", span_id=b"short")
    row = read_one(message)
    events, links = json.loads(bytes(row.events)), json.loads(bytes(row.links))
    assert (len(events), len(links)) == (otlp.MAX_EVENTS, otlp.MAX_LINKS)
    assert events[3] == {"name": "event-3", "offset_ms": 3.0, "attributes": {}}
    assert links[0] == {"trace_id": TRACE.hex(), "span_id": "0000000000000001", "attributes": {}}
    assert row.num_dropped == 101 - otlp.MAX_EVENTS - otlp.MAX_LINKS


@pytest.mark.parametrize(
    "changes",
    [
        {"trace_id": b""},
        {"trace_id": bytes(16)},
        {"trace_id": TRACE + b"x"},
        {"span_id": b""},
        {"span_id": bytes(8)},
        {"span_id": b"short"},
        {"parent_span_id": b"short"},
        {"parent_span_id": bytes(8)},
        {"start_time_unix_nano": 0},
        {"end_time_unix_nano": START_NS - 1},
        {"end_time_unix_nano": 2**63},
    ],
)
def test_span_that_breaks_the_data_model_is_refused_alone(changes: dict[str, Any]) -> None:
    read = otlp.read_export(export(span(1, **changes), span(2)))
    assert ([row.span_id for row in read.rows], read.num_refused) == ([2], 1)
    assert read.reason


def test_unknown_kind_and_status_read_as_unset() -> None:
    message = span(kind=17)
    message.status.code = 9
    row = read_one(message)
    assert (row.kind, row.status_code) == (0, 0)


def test_surplus_spans_are_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(otlp, "MAX_SPANS", 3)
    read = otlp.read_export(export(*(span(number) for number in range(1, 6))))
    assert (len(read.rows), read.num_refused) == (3, 2)


@pytest.mark.parametrize("message", [b"\xff", b"{}", b"\x0a\x05abc"])
def test_body_that_is_no_request_is_malformed(message: bytes) -> None:
    with pytest.raises(otlp.MalformedExportError):
        otlp.read_export(message)


@given(st.binary(max_size=300))
def test_any_bytes_are_read_or_malformed(message: bytes) -> None:
    try:
        read = otlp.read_export(message)
    except otlp.MalformedExportError:
        return
    assert all(len(row.trace_id) == 32 for row in read.rows)


def test_gzip_is_unpacked_and_plain_bodies_pass() -> None:
    assert otlp.unpack(gzip.compress(b"body"), "gzip") == b"body"
    assert otlp.unpack(b"body", "") == b"body"


def test_gzip_bomb_stops_at_the_limit() -> None:
    with pytest.raises(otlp.OversizedExportError):
        otlp.unpack(gzip.compress(bytes(otlp.MAX_UNPACKED_BYTES + 1)), "gzip")


@pytest.mark.parametrize(
    "body", [b"", b"not gzip", zlib.compress(b"zlib"), gzip.compress(b"cut")[:-4], gzip.compress(b"a") + b"tail"]
)
def test_broken_gzip_is_malformed(body: bytes) -> None:
    with pytest.raises(otlp.MalformedExportError):
        otlp.unpack(body, "gzip")
