"""What is told of a turn when it has ended: metrics, spans, an event for the record, a line in the access log."""

import time
from collections.abc import Callable

from opentelemetry.trace import SpanKind

from connector.protocol import Decision, TurnRecorded
from connector.router.access import AccessLog
from connector.router.choice.telling import attributes_of
from connector.router.fleet import Engine
from connector.router.metrics import Metrics
from connector.router.requests import Endpoint
from connector.router.tracing import SpanTimes, SpanWriter
from connector.router.turnstate import DECODE_REASONS, Lap, Outcome, Turn

_OPERATIONS = {
    Endpoint.CHAT: "chat",
    Endpoint.COMPLETIONS: "text_completion",
    Endpoint.RESPONSES: "chat",
    Endpoint.MESSAGES: "chat",
}
"""OpenTelemetry's names of what a model was asked for; the API is in ``http.route``."""

Values = dict[str, str | int | float | bool]


class Recorder:
    """Called once per turn, after its reply is out."""

    def __init__(
        self, metrics: Metrics, spans: SpanWriter, access: AccessLog, emit: Callable[[TurnRecorded], None]
    ) -> None:
        self._metrics = metrics
        self._spans = spans
        self._access = access
        self._emit = emit

    def record(self, turn: Turn) -> None:
        ended = time.monotonic()
        duration = ended - turn.started
        self._count(turn, duration)
        if turn.trace.is_sampled and self._spans.is_on:
            self._write_spans(turn, ended)
        self._emit(_event(turn, duration))
        self._access.write(_access_entry(turn, duration))

    def _count(self, turn: Turn, duration: float) -> None:
        metrics = self._metrics
        metrics.turns.labels(turn.outcome.value).inc()
        metrics.requests.labels(turn.request.endpoint.value, str(turn.http_status)).inc()
        metrics.place_seconds.observe(turn.placing.seconds)
        metrics.turn_seconds.observe(duration)
        if turn.first_event_at:
            metrics.ttft_seconds.observe(turn.ttft_seconds)
        if turn.prefill_engine is not None:
            metrics.prefill_seconds.observe(turn.prefill.seconds)
            if turn.placement.withheld is not None:
                metrics.withheld.labels(turn.placement.withheld.value).inc()
        if turn.reply is not None:
            metrics.prefill_decisions.labels(turn.reply.decision.value).inc()
            if turn.reply.diverged_at_token is not None:
                metrics.diverged_at.observe(turn.reply.diverged_at_token)
        computed = turn.num_decode_computed
        if computed is not None and turn.outcome is Outcome.OK:
            metrics.note_handoff(turn.num_prompt_tokens, computed)
        if turn.difference is not None:
            metrics.diverged.labels(turn.difference.role).inc()
        if turn.alone is not None:
            metrics.decode_alone.labels(turn.alone.value).inc()

    def _write_spans(self, turn: Turn, ended: float) -> None:
        trace, write = turn.trace, self._spans.write
        root = trace.turn_id
        error = turn.decode_error or turn.prefill_error or "error" if turn.outcome is not Outcome.OK else ""
        times = _times(turn, Lap(turn.started, ended))
        link = turn.placement.parent_span
        write(trace, "turn", root, trace.parent_id, SpanKind.SERVER, times, _turn_attributes(turn), error, link)
        place = _times(turn, turn.placing)
        write(trace, "place", trace.place_id, root, SpanKind.INTERNAL, place, _place_attributes(turn))
        if turn.prefill_engine is not None:
            values = _leg_attributes(turn, turn.prefill_engine, turn.prefill_status)
            if turn.reply is not None:
                values["backhaul.decision"] = turn.reply.decision.value
                values["backhaul.pulled_tokens"] = turn.reply.num_pulled_tokens
            times = _times(turn, turn.prefill)
            write(trace, "prefill", trace.prefill_id, root, SpanKind.CLIENT, times, values, turn.prefill_error)
        if turn.decode.start and turn.decode_engine is not None:
            values = _leg_attributes(turn, turn.decode_engine, turn.http_status)
            if turn.alone is not None:
                values["backhaul.reason_without_offer"] = DECODE_REASONS[turn.alone].value
            times = _times(turn, turn.decode)
            write(trace, "decode", trace.decode_id, root, SpanKind.CLIENT, times, values, turn.decode_error)


def _times(turn: Turn, lap: Lap) -> SpanTimes:
    """Monotonic laps on the wall clock of the turn's start."""
    start = turn.started_ns + int((lap.start - turn.started) * 1e9)
    return start, max(start, turn.started_ns + int((lap.end - turn.started) * 1e9))


def _turn_attributes(turn: Turn) -> Values:
    values: Values = {
        "backhaul.turn_id": turn.turn_id,
        "backhaul.session_id": turn.placement.session_id,
        "backhaul.turn_index": turn.placement.index,
        "backhaul.tenant": turn.tenant,
        "backhaul.outcome": turn.outcome.value,
        "backhaul.ttft_ms": round(turn.ttft_seconds * 1000, 3),
        "backhaul.prefill_engine": _name(turn.prefill_engine),
        "backhaul.decode_engine": _name(turn.decode_engine),
        "backhaul.prefill_decision": _decision(turn),
        "gen_ai.operation.name": _OPERATIONS[turn.request.endpoint],
        "gen_ai.provider.name": "vllm",
        "gen_ai.request.model": turn.model,
        "gen_ai.usage.input_tokens": turn.num_prompt_tokens,
        "gen_ai.usage.output_tokens": turn.num_output_tokens,
        "http.request.method": "POST",
        "http.route": turn.request.endpoint.value,
        "http.response.status_code": turn.http_status,
    }
    if turn.placement.parent_turn_id:
        values["backhaul.parent_turn_id"] = turn.placement.parent_turn_id
    if turn.request.one_leg is not None:
        values["backhaul.one_leg"] = turn.request.one_leg.value
    if turn.reply is not None and turn.reply.diverged_at_token is not None:
        values["backhaul.diverged_at_token"] = turn.reply.diverged_at_token
    if turn.difference is not None:
        values["backhaul.diverged_role"] = turn.difference.role
        if turn.difference.index is not None:
            values["backhaul.diverged_at_message"] = turn.difference.index
    return values


def _place_attributes(turn: Turn) -> Values:
    placement = turn.placement
    values: Values = {
        "backhaul.common_prefixes": placement.num_common,
        "backhaul.preferred_engine": placement.holder,
    }
    if placement.lease is not None:
        values["backhaul.offered_lease"] = placement.lease.lease_id
        values["backhaul.offered_tokens"] = placement.lease.num_tokens
        values["backhaul.lease_engine"] = placement.lease.engine
    if placement.withheld is not None:
        values["backhaul.withheld"] = placement.withheld.value
    if turn.alone is not None:
        values["backhaul.decode_alone"] = turn.alone.value
    if turn.plan is not None:
        values.update(attributes_of(turn.plan))
    return values


def _leg_attributes(turn: Turn, engine: Engine, status: int) -> Values:
    return {
        "backhaul.engine": engine.name,
        "http.response.status_code": status,
        "server.address": engine.url(turn.request.endpoint).host or "",
        "server.port": engine.url(turn.request.endpoint).port or 0,
    }


def _decision(turn: Turn) -> str:
    """How the prefill leg got its KV: P's word if it gave one, else why there was no such leg."""
    if turn.reply is not None:
        return turn.reply.decision.value
    return DECODE_REASONS[turn.alone].value if turn.alone else Decision.NO_PLACEMENT.value


def _event(turn: Turn, duration: float) -> TurnRecorded:
    placement = turn.placement
    return TurnRecorded(
        turn_id=turn.turn_id,
        session_id=placement.session_id,
        parent_turn_id=placement.parent_turn_id,
        tenant=turn.tenant,
        index=placement.index,
        model=turn.model,
        prefill_engine=_name(turn.prefill_engine),
        decode_engine=_name(turn.decode_engine),
        status=turn.outcome.value,
        http_status=turn.http_status,
        stream=turn.request.stream,
        started_age_ms=duration * 1000,
        prefill_ms=turn.prefill.seconds * 1000,
        ttft_ms=turn.ttft_seconds * 1000,
        duration_ms=duration * 1000,
        num_prompt_tokens=turn.num_prompt_tokens,
        num_output_tokens=turn.num_output_tokens,
        trace_id=turn.trace.trace_id_hex if turn.trace.is_sampled else "",
        diverged_at_message=turn.difference.index if turn.difference else None,
        diverged_role=turn.difference.role if turn.difference else "",
    )


def _access_entry(turn: Turn, duration: float) -> dict[str, object]:
    placement = turn.placement
    return {
        "time": round(turn.started_ns / 1e9, 3),
        "path": turn.request.endpoint.value,
        "status": turn.http_status,
        "outcome": turn.outcome.value,
        "turn": turn.turn_id,
        "session": placement.session_id,
        "index": placement.index,
        "tenant": turn.tenant,
        "model": turn.model,
        "stream": turn.request.stream,
        "prefill_engine": _name(turn.prefill_engine),
        "decode_engine": _name(turn.decode_engine),
        "one_leg": turn.request.one_leg.value if turn.request.one_leg else "",
        "decision": _decision(turn),
        "offered_lease": placement.lease.lease_id if placement.lease else "",
        "pulled_tokens": turn.reply.num_pulled_tokens if turn.reply else 0,
        "diverged_at_token": turn.reply.diverged_at_token if turn.reply else None,
        "decode_computed_tokens": turn.num_decode_computed,
        "replaced_leases": len(turn.placement.replaces),
        "place_ms": round(turn.placing.seconds * 1000, 2),
        "prefill_ms": round(turn.prefill.seconds * 1000, 2),
        "ttft_ms": round(turn.ttft_seconds * 1000, 2),
        "duration_ms": round(duration * 1000, 2),
        "bytes": turn.num_bytes,
        "error": turn.decode_error or turn.prefill_error,
        "trace": turn.trace.trace_id_hex if turn.trace.is_sampled else "",
    }


def _name(engine: Engine | None) -> str:
    return engine.name if engine else ""
