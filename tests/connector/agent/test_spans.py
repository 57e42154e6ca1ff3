"""Transfer and lease spans: ids, parents, times, sampling, and nothing that mustn't leave the engine."""

import pytest
from opentelemetry.sdk.trace import ReadableSpan
from opentelemetry.sdk.trace.export import SimpleSpanProcessor
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from opentelemetry.trace import SpanKind, StatusCode

from connector.agent.leases import HeldLease
from connector.agent.spans import MAX_REMEMBERED_TURNS, SpanRecorder
from connector.protocol import LeaseEnded, LeaseKind, LeaseState, TransferOutcome
from tests.connector.agent.samples import PARENT_ID, SAMPLED, TRACE_ID, UNSAMPLED, offer, transfer

NOW_NS = 1_700_000_000_000_000_000


@pytest.fixture
def exported() -> InMemorySpanExporter:
    return InMemorySpanExporter()


@pytest.fixture
def recorder(exported: InMemorySpanExporter) -> SpanRecorder:
    return SpanRecorder("d0", "boot-1", SimpleSpanProcessor(exported), wall_ns=lambda: NOW_NS)


def only(exported: InMemorySpanExporter) -> ReadableSpan:
    (span,) = exported.get_finished_spans()
    return span


def held(traceparent: str = SAMPLED, kind: LeaseKind = LeaseKind.SESSION) -> HeldLease:
    return HeldLease(offer=offer("lease-1", kind=kind), learned_at=0.0, deadline=480.0, traceparent=traceparent)


ENDED = LeaseEnded(lease_id="lease-1", state=LeaseState.EXPIRED, reason="ttl", num_reads=2)


def test_transfer_span_is_a_child_of_its_legs_span_with_the_engines_times(
    recorder: SpanRecorder, exported: InMemorySpanExporter
) -> None:
    recorder.record_transfer(transfer(start_age_ms=30.0, duration_ms=25.0))
    span = only(exported)
    assert span.name == "kv.transfer"
    assert span.kind is SpanKind.CLIENT
    assert span.parent is not None
    assert format(span.parent.span_id, "016x") == PARENT_ID
    assert format(span.context.trace_id, "032x") == TRACE_ID
    assert (span.start_time, span.end_time) == (NOW_NS - 30_000_000, NOW_NS - 5_000_000)
    assert span.status.status_code is StatusCode.UNSET
    assert span.resource.attributes["service.name"] == "backhaul-agent"


def test_event_carries_the_ids_of_exactly_that_span(recorder: SpanRecorder, exported: InMemorySpanExporter) -> None:
    recorded = recorder.record_transfer(transfer())
    context = only(exported).context
    assert context is not None
    assert recorded.trace_id == format(context.trace_id, "032x") == TRACE_ID
    assert recorded.span_id == format(context.span_id, "016x") != PARENT_ID


def test_transfer_attributes_name_what_moved(recorder: SpanRecorder, exported: InMemorySpanExporter) -> None:
    recorder.record_transfer(transfer())
    assert dict(only(exported).attributes or {}) == {
        "backhaul.transfer_id": "transfer-1",
        "backhaul.direction": "P->D",
        "backhaul.source": "p0",
        "backhaul.target": "d0",
        "backhaul.session_id": "session-1",
        "backhaul.turn_id": "turn-1",
        "backhaul.lease_id": "lease-0",
        "backhaul.tokens": 320,
        "backhaul.blocks": 10,
        "backhaul.bytes": 40960,
        "backhaul.post_ms": 1.5,
        "backhaul.duration_ms": 25.0,
        "backhaul.ranks": 1,
        "backhaul.outcome": "completed",
        "backhaul.reason": "",
    }


@pytest.mark.parametrize("outcome", [TransferOutcome.FAILED, TransferOutcome.TIMEOUT, TransferOutcome.FENCED])
def test_transfer_that_did_not_complete_is_an_error(
    outcome: TransferOutcome, recorder: SpanRecorder, exported: InMemorySpanExporter
) -> None:
    recorder.record_transfer(transfer(outcome=outcome, reason="deadline"))
    assert only(exported).status.status_code is StatusCode.ERROR
    assert only(exported).status.description == "deadline"


def test_unsampled_turn_exports_nothing_but_its_transfer_has_ids(
    recorder: SpanRecorder, exported: InMemorySpanExporter
) -> None:
    first, second = (
        recorder.record_transfer(transfer(traceparent=UNSAMPLED)),
        recorder.record_transfer(transfer(traceparent=UNSAMPLED)),
    )
    assert exported.get_finished_spans() == ()
    assert first.trace_id == second.trace_id == TRACE_ID
    assert len({first.span_id, second.span_id, PARENT_ID, "0" * 16}) == 4


@pytest.mark.parametrize("traceparent", ["", "nonsense", "00-" + "0" * 32 + "-" + "0" * 16 + "-01", "00-abc-def-01"])
def test_transfer_without_a_valid_traceparent_is_a_root(
    traceparent: str, recorder: SpanRecorder, exported: InMemorySpanExporter
) -> None:
    recorded = recorder.record_transfer(transfer(traceparent=traceparent))
    assert only(exported).parent is None
    assert recorded.trace_id not in ("", "0" * 32)
    assert recorded.span_id not in ("", "0" * 16)


def test_lease_span_is_a_root_linked_to_its_turn(recorder: SpanRecorder, exported: InMemorySpanExporter) -> None:
    recorder.record_lease(held(), 100.0, ENDED, "inc-1", age_ms=1000.0)
    span = only(exported)
    assert span.name == "kv.lease"
    assert span.parent is None
    assert [format(link.context.span_id, "016x") for link in span.links] == [PARENT_ID]
    assert (span.start_time, span.end_time) == (NOW_NS - 100_000_000_000, NOW_NS - 1_000_000_000)
    attributes = dict(span.attributes or {})
    assert attributes["backhaul.lease_state"] == "expired"
    assert attributes["backhaul.reads"] == 2
    assert attributes["backhaul.turn_id"] == "turn-1"
    assert not any("signed" in str(value) or "c1" in str(value) for value in attributes.values())


def test_lease_of_an_unseen_turn_has_no_link_and_of_an_unsampled_one_no_span(
    recorder: SpanRecorder, exported: InMemorySpanExporter
) -> None:
    recorder.record_lease(held(traceparent=""), 1.0, ENDED, "inc-1")
    assert list(only(exported).links) == []
    exported.clear()
    recorder.record_lease(held(traceparent=UNSAMPLED), 1.0, ENDED, "inc-1")
    recorder.record_lease(held(kind=LeaseKind.HANDOFF), 1.0, ENDED, "inc-1")
    assert exported.get_finished_spans() == ()


def test_lease_never_ends_before_it_starts(recorder: SpanRecorder, exported: InMemorySpanExporter) -> None:
    recorder.record_lease(held(), 1.0, ENDED, "inc-1", age_ms=60_000.0)
    span = only(exported)
    assert span.start_time is not None
    assert span.end_time is not None
    assert span.start_time <= span.end_time


def test_newest_turns_are_remembered(recorder: SpanRecorder) -> None:
    recorder.remember_turn("old", SAMPLED)
    recorder.remember_turn("kept", SAMPLED)
    recorder.remember_turn("", SAMPLED)
    recorder.remember_turn("untraced", "")
    for number in range(MAX_REMEMBERED_TURNS - 1):
        recorder.remember_turn(f"turn-{number}", UNSAMPLED)
    assert recorder.traceparent_of("old") == ""
    assert recorder.traceparent_of("kept") == SAMPLED
    assert recorder.traceparent_of("untraced") == ""
