"""Model instances as frame rows; pure apart from reading the instances."""

from datetime import datetime

import msgspec

from connector.protocol import LeaseState
from controlplane.dashboard.frames import (
    AgentRow,
    EngineRow,
    LoadRow,
    PlacementRow,
    RouterRow,
    SessionRow,
    TransferRow,
    TurnRow,
)
from controlplane.fleet.drains import DrainState, progress_of
from controlplane.fleet.models import Agent, Engine, Router
from controlplane.placement.models import Placement, Session, Turn
from controlplane.transfers.models import Transfer


def milliseconds_between(earlier: datetime, later: datetime) -> float:
    """0 when they come in the other order: an age or a remaining time is never negative."""
    return max(0.0, round((later - earlier).total_seconds() * 1000, 3))


def age_ms(moment: datetime | None, now: datetime) -> float | None:
    return None if moment is None else milliseconds_between(moment, now)


def engine_row(engine: Engine) -> EngineRow:
    progress = progress_of(engine)
    return EngineRow(
        name=engine.name,
        role=engine.role,
        model=engine.model,
        state=engine.state,
        draining=engine.draining,
        drained=progress is not None and progress.state is DrainState.DRAINED,
        incarnation=engine.incarnation,
        block_size=engine.block_size,
        num_blocks=engine.num_blocks,
        bytes_per_block=engine.bytes_per_block,
        kv_dtype=engine.kv_dtype,
        vllm_version=engine.vllm_version,
        connector_version=engine.connector_version,
        unsupported_fields=engine.unsupported_fields,
        load=msgspec.convert(engine.load, LoadRow) if engine.load else None,
    )


def agent_row(agent: Agent, now: datetime) -> AgentRow:
    return AgentRow(
        engine=agent.engine.name,
        connected=agent.connected,
        version=agent.version,
        num_pending_events=agent.num_pending_events,
        num_dropped_events=agent.num_dropped_events,
        seen_age_ms=age_ms(agent.last_seen_at, now),
    )


def router_row(router: Router, now: datetime) -> RouterRow:
    return RouterRow(
        name=router.name,
        connected=router.connected,
        version=router.version,
        num_active_turns=router.num_active_turns,
        num_leases=router.num_leases,
        num_pending_events=router.num_pending_events,
        num_dropped_events=router.num_dropped_events,
        seen_age_ms=age_ms(router.last_seen_at, now),
    )


def placement_row(placement: Placement, now: datetime) -> PlacementRow:
    expires_at = placement.expires_at if placement.state == LeaseState.HELD and not placement.pinned else None
    return PlacementRow(
        id=placement.id,
        engine=placement.engine,
        tokens=placement.tokens,
        blocks=placement.blocks,
        bytes=placement.bytes,
        state=placement.state,
        pinned=placement.pinned,
        end_reason=placement.end_reason,
        granted_age_ms=milliseconds_between(placement.granted_at, now),
        lifetime_ms=milliseconds_between(placement.granted_at, expires_at) if expires_at else None,
        remaining_ms=milliseconds_between(now, expires_at) if expires_at else None,
    )


def turn_row(turn: Turn, now: datetime) -> TurnRow:
    return TurnRow(
        id=str(turn.id),
        session=turn.session_id,
        index=turn.index,
        prompt_tokens=turn.prompt_tokens,
        output_tokens=turn.output_tokens,
        reused_tokens=turn.reused_tokens,
        prefill_decision=turn.prefill_decision,
        decode_decision=turn.decode_decision,
        prefill_engine=turn.prefill_engine or turn.prefill_decided_by,
        decode_engine=turn.decode_engine or turn.decode_decided_by,
        status=turn.status,
        ttft_ms=turn.ttft_ms,
        duration_ms=turn.duration_ms,
        trace_id=turn.trace_id,
        age_ms=milliseconds_between(turn.started_at, now),
        diverged_at_token=turn.diverged_at_token,
        diverged_at_message=turn.diverged_at_message,
        diverged_role=turn.diverged_role,
    )


def session_row(session: Session, *, placement: Placement | None, last_turn: Turn | None, now: datetime) -> SessionRow:
    return SessionRow(
        id=session.id,
        tenant=session.tenant,
        model=session.model,
        num_turns=session.num_turns,
        active_age_ms=milliseconds_between(session.last_turn_at, now),
        placement=placement_row(placement, now) if placement else None,
        last_turn=turn_row(last_turn, now) if last_turn else None,
    )


def transfer_row(transfer: Transfer, now: datetime) -> TransferRow:
    return TransferRow(
        id=transfer.id,
        direction=transfer.direction,
        source=transfer.source,
        target=transfer.target,
        session=transfer.session_id,
        turn=str(transfer.turn_id),
        tokens=transfer.tokens,
        blocks=transfer.blocks,
        bytes=transfer.bytes,
        post_ms=transfer.post_ms,
        duration_ms=transfer.duration_ms,
        outcome=transfer.outcome,
        reason=transfer.reason,
        trace_id=transfer.trace_id,
        span_id=transfer.span_id,
        age_ms=milliseconds_between(transfer.started_at, now),
    )
