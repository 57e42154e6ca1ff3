"""Messages of an engine, with only what a test cares about to be said."""

from connector.protocol import (
    Direction,
    EngineInfo,
    EngineLoad,
    LeaseGranted,
    LeaseKind,
    LeaseOffer,
    Role,
    TransferOutcome,
    TransferRecorded,
)

TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
PARENT_ID = "b7ad6b7169203331"
SAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-01"
UNSAMPLED = f"00-{TRACE_ID}-{PARENT_ID}-00"


def engine_info(incarnation: str = "inc-1", name: str = "d0") -> EngineInfo:
    return EngineInfo(
        name=name,
        incarnation=incarnation,
        role=Role.DECODE,
        model="tiny",
        block_size=32,
        num_blocks=1000,
        bytes_per_block=4096,
        kv_dtype="float32",
        vllm_version="0.32.0",
        connector_version="0.1.0",
    )


def load(num_free_blocks: int = 900) -> EngineLoad:
    return EngineLoad(
        num_free_blocks=num_free_blocks,
        num_blocks=1000,
        num_leases=1,
        num_leased_blocks=10,
        num_quarantined_blocks=0,
        num_running=2,
        num_waiting=0,
        num_dropped_events=0,
    )


def offer(
    lease_id: str = "lease-1",
    *,
    remaining_seconds: float = 480.0,
    pinned: bool = False,
    token: str = "",
    kind: LeaseKind = LeaseKind.SESSION,
    turn_id: str = "turn-1",
) -> LeaseOffer:
    lease = LeaseGranted(
        lease_id=lease_id,
        kind=kind,
        session_id="session-1",
        turn_id=turn_id,
        tenant="default",
        num_tokens=320,
        num_blocks=10,
        num_bytes=40960,
        remaining_seconds=remaining_seconds,
        pinned=pinned,
    )
    return LeaseOffer(lease=lease, offer=token or f"signed-{lease_id}", chain=("c1", "c2"))


def transfer(
    transfer_id: str = "transfer-1",
    *,
    traceparent: str = SAMPLED,
    outcome: TransferOutcome = TransferOutcome.COMPLETED,
    reason: str = "",
    start_age_ms: float = 30.0,
    duration_ms: float = 25.0,
) -> TransferRecorded:
    return TransferRecorded(
        transfer_id=transfer_id,
        direction=Direction.PREFILL_TO_DECODE,
        source_engine="p0",
        target_engine="d0",
        session_id="session-1",
        turn_id="turn-1",
        lease_id="lease-0",
        num_tokens=320,
        num_blocks=10,
        num_bytes=40960,
        post_ms=1.5,
        duration_ms=duration_ms,
        start_age_ms=start_age_ms,
        outcome=outcome,
        reason=reason,
        traceparent=traceparent,
    )
