"""Traces of turns: ids that travel with the legs, spans that are made when the turn has ended.

Spans are built from recorded times after the reply is out, so the request path pays for random ids and two header
strings only.
"""

import random
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from opentelemetry.sdk.resources import Resource
from opentelemetry.trace import SpanKind

from connector.router.otlp import Attributes, encode_span
from connector.router.sessions import SpanRef

SERVICE_NAME = "backhaul-router"
MAX_TRACESTATE_CHARS = 512

_TRACEPARENT = re.compile(r"^([0-9a-f]{2})-([0-9a-f]{32})-([0-9a-f]{16})-([0-9a-f]{2})(-.*)?$")
SCOPE_NAME = "connector.router"


@dataclass(slots=True)
class TurnTrace:
    """Ids of one turn's spans. ``parent_id`` is the client's span, 0 when the router starts the trace."""

    trace_id: int
    parent_id: int
    flags: int
    tracestate: str
    turn_id: int
    place_id: int
    prefill_id: int
    decode_id: int

    @property
    def is_sampled(self) -> bool:
        return bool(self.flags & 1)

    @property
    def ref(self) -> SpanRef:
        return SpanRef(self.trace_id, self.turn_id)

    @property
    def trace_id_hex(self) -> str:
        return f"{self.trace_id:032x}"

    def traceparent(self, span_id: int) -> str:
        return f"00-{self.trace_id:032x}-{span_id:016x}-{self.flags:02x}"


def start_trace(headers: Mapping[str, str]) -> TurnTrace:
    """A trace that goes on with the client's if its ``traceparent`` is valid (W3C), flag kept; else a new one.

    A new one isn't sampled until ``decide_sampling`` says so.
    """
    turn, place, prefill, decode = (random.getrandbits(64) | 1 for _ in range(4))
    trace_id, parent_id, flags, state = random.getrandbits(128) | 1, 0, 0, ""
    header = headers.get("traceparent")
    found = _parse(header) if header is not None else None
    if found is not None:
        trace_id, parent_id, flags = found
        state = headers.get("tracestate", "")
        state = state if len(state) <= MAX_TRACESTATE_CHARS else ""
    return TurnTrace(trace_id, parent_id, flags, state, turn, place, prefill, decode)


def decide_sampling(trace: TurnTrace, share: float) -> None:
    """Records this share of the traces that the router itself starts; a client's own decision stands."""
    if not trace.parent_id:
        trace.flags = sampled_flag(trace.trace_id, share)


def sampled_flag(trace_id: int, sampling: float) -> int:
    """1 when the trace is recorded; decided by the id's low 64 bits, as OpenTelemetry's TraceIdRatioBased does."""
    return int((trace_id & (1 << 64) - 1) < sampling * (1 << 64))


def _parse(header: str) -> tuple[int, int, int] | None:
    match = _TRACEPARENT.match(header.strip().lower()) if len(header) <= 256 else None
    if match is None:
        return None
    version, trace_hex, span_hex, flags_hex, rest = match.groups()
    trace_id, span_id = int(trace_hex, 16), int(span_hex, 16)
    if version == "ff" or (version == "00" and rest) or not trace_id or not span_id:
        return None
    return trace_id, span_id, int(flags_hex, 16) & 1


SpanTimes = tuple[int, int]
"""Start and end in Unix nanoseconds."""


class SpanWriter:
    """Turns recorded legs into encoded spans for a queue; without one it makes none."""

    def __init__(self, keep: Callable[[bytes], None] | None) -> None:
        self._keep = keep

    @property
    def is_on(self) -> bool:
        return self._keep is not None

    def write(
        self,
        trace: TurnTrace,
        name: str,
        span_id: int,
        parent_id: int,
        kind: SpanKind,
        times: SpanTimes,
        attributes: Attributes,
        error: str = "",
        link: SpanRef | None = None,
    ) -> None:
        if self._keep is None:
            return
        span = encode_span(
            trace.trace_id,
            span_id,
            parent_id,
            trace.tracestate.encode(errors="replace"),
            trace.flags,
            name,
            kind,
            times[0],
            times[1],
            attributes,
            (link.trace_id, link.span_id) if link else None,
            error,
        )
        self._keep(span)


def resource_of(router_name: str) -> Resource:
    return Resource.create({"service.name": SERVICE_NAME, "service.instance.id": router_name})
