"""One OpenTelemetry span per KV transfer and per ended session lease, with the times that the engine reported.

A transfer's span is a child of the leg's span that its ``traceparent`` names and follows its sampling; when that says
no, the span has ids all the same, so that the Transfer row carries the ids that the span would have had. Spans hold
names, ids and sizes only: no text, token ids, digests or offers.
"""

import time
from collections import OrderedDict
from collections.abc import Callable

import msgspec
from opentelemetry.context import Context
from opentelemetry.sdk.resources import Resource
from opentelemetry.sdk.trace import SpanProcessor, TracerProvider
from opentelemetry.sdk.trace.sampling import ALWAYS_ON, ParentBased
from opentelemetry.trace import Link, SpanContext, SpanKind, Status, StatusCode, get_current_span
from opentelemetry.trace.propagation.tracecontext import TraceContextTextMapPropagator
from opentelemetry.util.types import AttributeValue

from connector.agent.leases import HeldLease
from connector.protocol import LeaseEnded, LeaseKind, TransferOutcome, TransferRecorded

MAX_REMEMBERED_TURNS = 10_000

_propagator = TraceContextTextMapPropagator()


class SpanRecorder:
    """Makes spans and hands them to one processor; never blocks, never raises on a malformed ``traceparent``."""

    def __init__(
        self, engine_name: str, boot: str, processor: SpanProcessor, wall_ns: Callable[[], int] = time.time_ns
    ) -> None:
        resource = Resource.create(
            {"service.name": "backhaul-agent", "service.instance.id": boot, "backhaul.engine": engine_name}
        )
        provider = TracerProvider(sampler=ParentBased(ALWAYS_ON), resource=resource, shutdown_on_exit=False)
        provider.add_span_processor(processor)
        self._tracer = provider.get_tracer("connector.agent")
        self._engine_name = engine_name
        self._wall_ns = wall_ns
        self._turns: OrderedDict[str, str] = OrderedDict()

    def remember_turn(self, turn_id: str, traceparent: str) -> None:
        """So that a lease granted by this turn can be linked to it; the newest turns only."""
        if not turn_id or not traceparent:
            return
        self._turns[turn_id] = traceparent
        self._turns.move_to_end(turn_id)
        if len(self._turns) > MAX_REMEMBERED_TURNS:
            self._turns.popitem(last=False)

    def traceparent_of(self, turn_id: str) -> str:
        """Empty when this process hasn't seen the turn."""
        return self._turns.get(turn_id, "")

    def record_transfer(self, transfer: TransferRecorded) -> TransferRecorded:
        """The same transfer with the trace and span id of its span; ``start_age_ms`` must be as of now."""
        start_ns = self._wall_ns() - _nanoseconds(transfer.start_age_ms)
        span = self._tracer.start_span(
            "kv.transfer",
            context=_remote_context(transfer.traceparent),
            kind=SpanKind.CLIENT,
            attributes=_transfer_attributes(transfer),
            start_time=start_ns,
        )
        if transfer.outcome is not TransferOutcome.COMPLETED:
            span.set_status(Status(StatusCode.ERROR, transfer.reason or str(transfer.outcome)))
        span.end(start_ns + _nanoseconds(transfer.duration_ms))
        context = span.get_span_context()
        return msgspec.structs.replace(
            transfer, trace_id=format(context.trace_id, "032x"), span_id=format(context.span_id, "016x")
        )

    def record_lease(
        self, held: HeldLease, held_seconds: float, ended: LeaseEnded, incarnation: str, age_ms: float = 0.0
    ) -> None:
        """``kv.lease``, a root span linked to its turn when that was seen, and absent when that wasn't sampled.

        It ended ``age_ms`` ago. ``held_seconds`` counts up to now from when the agent learned of the lease, which after
        an agent's restart is later than its grant. Hand-over leases live for one leg: their transfer has a span.
        """
        if held.offer.lease.kind is not LeaseKind.SESSION:
            return
        turn = get_current_span(_remote_context(held.traceparent)).get_span_context()
        if turn.is_valid and not turn.trace_flags.sampled:
            return
        now_ns = self._wall_ns()
        span = self._tracer.start_span(
            "kv.lease",
            context=Context(),
            kind=SpanKind.INTERNAL,
            attributes=self._lease_attributes(held, ended, incarnation),
            links=_links(turn),
            start_time=now_ns - _nanoseconds(held_seconds * 1e3),
        )
        span.end(now_ns - _nanoseconds(min(age_ms, held_seconds * 1e3)))

    def _lease_attributes(self, held: HeldLease, ended: LeaseEnded, incarnation: str) -> dict[str, AttributeValue]:
        lease = held.offer.lease
        return {
            "backhaul.engine": self._engine_name,
            "backhaul.incarnation": incarnation,
            "backhaul.lease_id": lease.lease_id,
            "backhaul.session_id": lease.session_id,
            "backhaul.turn_id": lease.turn_id,
            "backhaul.tenant": lease.tenant,
            "backhaul.tokens": lease.num_tokens,
            "backhaul.blocks": lease.num_blocks,
            "backhaul.bytes": lease.num_bytes,
            "backhaul.pinned": lease.pinned,
            "backhaul.lease_state": str(ended.state),
            "backhaul.reason": ended.reason,
            "backhaul.reads": ended.num_reads,
        }


def _transfer_attributes(transfer: TransferRecorded) -> dict[str, AttributeValue]:
    return {
        "backhaul.transfer_id": transfer.transfer_id,
        "backhaul.direction": str(transfer.direction),
        "backhaul.source": transfer.source_engine,
        "backhaul.target": transfer.target_engine,
        "backhaul.session_id": transfer.session_id,
        "backhaul.turn_id": transfer.turn_id,
        "backhaul.lease_id": transfer.lease_id,
        "backhaul.tokens": transfer.num_tokens,
        "backhaul.blocks": transfer.num_blocks,
        "backhaul.bytes": transfer.num_bytes,
        "backhaul.post_ms": transfer.post_ms,
        "backhaul.duration_ms": transfer.duration_ms,
        "backhaul.ranks": transfer.num_ranks,
        "backhaul.outcome": str(transfer.outcome),
        "backhaul.reason": transfer.reason,
    }


def _remote_context(traceparent: str) -> Context:
    """Without a span in it when the header is absent or malformed: a span made from it is then a root."""
    return _propagator.extract({"traceparent": traceparent}, context=Context())


def _links(turn: SpanContext) -> list[Link]:
    return [Link(turn)] if turn.is_valid else []


def _nanoseconds(milliseconds: float) -> int:
    return int(milliseconds * 1e6)
