"""One trace a turn: parents, flags, links, attributes, sampling; export never touches a request."""

from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from opentelemetry.exporter.otlp.proto.common.trace_encoder import encode_spans as sdk_encode_spans
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.util.instrumentation import InstrumentationScope
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, TraceFlags
from opentelemetry.trace.span import TraceState

from connector.protocol import PolicyPatch, PolicyValues
from connector.router.export import SpanQueue
from connector.router.otlp import encode_request, encode_span
from connector.router.sessions import SpanRef
from connector.router.tracing import (
    SCOPE_NAME,
    SpanWriter,
    decide_sampling,
    resource_of,
    sampled_flag,
    start_trace,
)
from tests.connector.router.conftest import MODEL, Scene, assistant, user
from tests.connector.router.fake_control_plane import ROUTER_TOKEN
from tests.connector.router.waiting import eventually

TRACE = "0af7651916cd43dd8448eb211c80319c"
PARENT = "b7ad6b7169203331"
TEXT = st.text(st.characters(exclude_categories=["Cs"]), max_size=150)


async def spans_of(scene: Scene, count: int) -> dict[str, object]:
    await eventually(lambda: len(scene.control.spans) >= count, f"{count} spans")
    return {span.name: span for span in scene.control.spans[-count:]}


def values(span: object) -> dict[str, object]:
    found = {}
    for attribute in span.attributes:  # type: ignore[attr-defined]
        kind = attribute.value.WhichOneof("value")
        found[attribute.key] = getattr(attribute.value, kind)
    return found


async def test_turn_has_its_spans_under_the_clients_parent(scene: Scene) -> None:
    body = {"model": MODEL, "messages": [user("hi")]}
    parent = f"00-{TRACE}-{PARENT}-01"
    async with scene.post("/v1/chat/completions", body, traceparent=parent, tracestate="vendor=1") as response:
        assert response.status == 200
    spans = await spans_of(scene, 4)
    assert scene.control.span_tokens == {f"Bearer {ROUTER_TOKEN}"}
    turn = spans["turn"]
    assert {span.trace_id.hex() for span in spans.values()} == {TRACE}  # type: ignore[attr-defined]
    assert turn.parent_span_id.hex() == PARENT  # type: ignore[attr-defined]
    assert turn.kind == 2  # type: ignore[attr-defined]
    for name, kind in (("place", 1), ("prefill", 3), ("decode", 3)):
        assert spans[name].parent_span_id == turn.span_id  # type: ignore[attr-defined]
        assert spans[name].kind == kind  # type: ignore[attr-defined]
        assert turn.start_time_unix_nano <= spans[name].start_time_unix_nano  # type: ignore[attr-defined]
        assert spans[name].end_time_unix_nano <= turn.end_time_unix_nano  # type: ignore[attr-defined]
    for leg, received in (("prefill", scene.prefill.received[0]), ("decode", scene.decode.received[0])):
        expected = f"00-{TRACE}-{spans[leg].span_id.hex()}-01"  # type: ignore[attr-defined]
        assert received.headers["traceparent"] == expected
        assert received.headers["tracestate"] == "vendor=1"
        assert received.envelope is not None
        assert received.envelope.traceparent == expected
    attributes = values(turn)
    assert attributes["gen_ai.operation.name"] == "chat"
    assert attributes["gen_ai.request.model"] == MODEL
    assert attributes["gen_ai.usage.input_tokens"] == 7
    assert attributes["backhaul.tenant"] == "default"
    assert attributes["backhaul.prefill_decision"] == "recomputed_no_placement"
    assert values(spans["prefill"])["backhaul.engine"] == "p0"


async def test_next_turn_links_to_the_turn_before_and_names_the_lease(scene: Scene) -> None:
    await scene.chat([user("hi")])
    first = await spans_of(scene, 4)
    await scene.chat([user("hi"), assistant("Hello you"), user("more")])
    await eventually(lambda: len(scene.control.spans) == 8, "eight spans")
    second = {span.name: span for span in scene.control.spans[4:]}
    (link,) = second["turn"].links
    assert (link.trace_id, link.span_id) == (first["turn"].trace_id, first["turn"].span_id)  # type: ignore[attr-defined]
    assert second["turn"].trace_id != link.trace_id
    turn_id = scene.decode.received[0].headers["X-Request-Id"]
    assert values(second["place"])["backhaul.offered_lease"] == f"lease-{turn_id}"
    assert values(second["prefill"])["backhaul.decision"] == "pulled"


@pytest.mark.parametrize(
    ("header", "is_kept"),
    [
        (f"00-{TRACE}-{PARENT}-00", True),
        (f"00-{TRACE}-{PARENT}-01", True),
        (f"01-{TRACE}-{PARENT}-01-more", True),
        (f"00-{TRACE}-{PARENT}-01-more", False),
        (f"ff-{TRACE}-{PARENT}-01", False),
        (f"00-{'0' * 32}-{PARENT}-01", False),
        (f"00-{TRACE}-{'0' * 16}-01", False),
        (f"00-{TRACE[:-1]}-{PARENT}-01", False),
        ("nonsense", False),
        ("", False),
        ("0" * 10_000, False),
    ],
)
def test_valid_parent_is_kept_with_its_flag_and_a_malformed_one_starts_anew(header: str, is_kept: bool) -> None:
    trace = start_trace({"traceparent": header, "tracestate": "a=b"})
    decide_sampling(trace, 1.0)
    assert (trace.trace_id_hex == TRACE) == is_kept
    assert trace.tracestate == ("a=b" if is_kept else "")
    assert trace.flags == (int(header[53:55]) if is_kept else 1)


def test_sampling_takes_its_share_of_traces() -> None:
    ids = range(0, 1 << 64, 1 << 54)
    assert sum(sampled_flag(trace_id, 0.25) for trace_id in ids) == 256
    assert not any(sampled_flag(trace_id, 0.0) for trace_id in ids)
    assert all(sampled_flag(trace_id, 1.0) for trace_id in ids)


async def test_unsampled_turn_exports_nothing_but_is_recorded(scene: Scene) -> None:
    scene.values = PolicyValues(trace_sampling=0.0)
    await scene.publish()
    await scene.chat([user("hi")])
    assert scene.decode.received[0].headers["traceparent"].endswith("-00")
    scene.tenant_patches["default"] = PolicyPatch(trace_sampling=1.0)
    await scene.publish()
    await scene.chat([user("again")])
    await spans_of(scene, 4)
    assert len(scene.control.spans) == 4
    await eventually(lambda: len(scene.control.turns) == 2, "both turns are recorded")
    assert [bool(turn.trace_id) for turn in scene.control.turns] == [False, True]


async def test_receiver_that_is_away_harms_no_turn(still_scene: Scene) -> None:
    scene = still_scene
    await scene.start_router(otlp_endpoint="http://127.0.0.1:9/v1/traces")
    for number in range(3):
        await scene.chat([user(f"hi {number}")])
    assert len(scene.decode.received) == 3


async def test_spans_and_events_hold_no_prompt_and_no_offer(scene: Scene) -> None:
    await scene.chat([user("very secret words")])
    await scene.chat([user("very secret words"), assistant("Hello you"), user("more")])
    await eventually(lambda: len(scene.control.spans) == 8, "eight spans")
    await eventually(lambda: len(scene.control.turns) == 2, "both turns are recorded")
    told = " ".join(map(str, scene.control.spans)) + msgspec.json.encode(scene.control.turns).decode()
    told += scene.access.getvalue().decode() + scene.live.metrics.render().decode()
    for secret in ("secret", "Hello", "d-offer", "p-offer", "bh_api", "engine-key"):
        assert secret not in told


def test_encoder_writes_what_the_protocols_own_code_reads() -> None:
    queue = SpanQueue()
    writer = SpanWriter(queue.put)
    trace = start_trace({"traceparent": f"00-{TRACE}-{PARENT}-01", "tracestate": "a=1,b=2"})
    attributes: dict[str, str | int | float | bool] = {
        "text": "ü" * 200,
        "empty": "",
        "many": 2**40,
        "negative": -3,
        "zero": 0,
        "share": 0.25,
        "yes": True,
        "no": False,
    }
    times = (1_700_000_000_000_000_001, 1_700_000_000_500_000_002)
    resource = resource_of("r0")
    for _ in range(2):
        writer.write(trace, "turn", 5, trace.parent_id, SpanKind.SERVER, times, attributes, "broke", SpanRef(7, 8))
        writer.write(trace, "place", 6, 5, SpanKind.INTERNAL, times, {})
    own = ExportTraceServiceRequest.FromString(encode_request(resource, SCOPE_NAME, queue.take()))
    for span in own.resource_spans[0].scope_spans[0].spans:
        assert span.flags & 0xFF == 1, "the low byte is the W3C flag, which the SDK leaves out"
        span.flags &= ~0xFF
        for link in span.links:
            link.flags &= ~0xFF
    flags, state = TraceFlags(1), TraceState([("a", "1"), ("b", "2")])

    def span_of(name: str, number: int, parent: SpanContext, kind: SpanKind, **more: Any) -> ReadableSpan:
        context = SpanContext(trace.trace_id, number, False, flags, state)
        scope = InstrumentationScope(SCOPE_NAME)
        named = {
            "context": context,
            "parent": parent,
            "resource": resource,
            "kind": kind,
            "instrumentation_scope": scope,
        }
        return ReadableSpan(name, start_time=times[0], end_time=times[1], **named, **more)

    parent = SpanContext(trace.trace_id, trace.parent_id, True, flags, state)
    link = Link(SpanContext(7, 8, True, TraceFlags(1)))
    status = Status(StatusCode.ERROR, "broke")
    turn = span_of("turn", 5, parent, SpanKind.SERVER, attributes=attributes, links=(link,), status=status)
    place = span_of("place", 6, SpanContext(trace.trace_id, 5, False, flags, state), SpanKind.INTERNAL)
    assert own == sdk_encode_spans([turn, place, turn, place])


@given(
    st.dictionaries(TEXT, st.one_of(TEXT, st.booleans(), st.floats(allow_nan=False), st.integers(-(2**63), 2**63 - 1)))
)
def test_attributes_are_read_back_as_they_were(attributes: dict[str, str | int | float | bool]) -> None:
    for _ in range(2):
        encoded = encode_span(1, 2, 0, b"", 1, "turn", SpanKind.SERVER, 3, 4, attributes, None, "")
        request = ExportTraceServiceRequest.FromString(encode_request(resource_of("r"), SCOPE_NAME, [encoded]))
        (span,) = request.resource_spans[0].scope_spans[0].spans
        read = {pair.key: getattr(pair.value, pair.value.WhichOneof("value")) for pair in span.attributes}
        assert read == attributes
        assert {name: type(value) for name, value in read.items()} == {n: type(v) for n, v in attributes.items()}
