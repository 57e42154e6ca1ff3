"""Events of one turn as engines and routers send them, with every field changeable."""

import uuid
from datetime import UTC, datetime, timedelta
from typing import Any

from connector.protocol import (
    Decision,
    LeaseEnded,
    LeaseExtended,
    LeaseGranted,
    LeaseKind,
    LeaseState,
    LegDecided,
    Role,
    TurnRecorded,
)

NOON = datetime(2026, 12, 1, 12, tzinfo=UTC)
TURN_ID = str(uuid.UUID("01980000-0000-7000-8000-000000000001"))
SESSION_ID = "k1.session-one"
TRACE_ID = "0af7651916cd43dd8448eb211c80319c"
TRACEPARENT = f"00-{TRACE_ID}-b7ad6b7169203331-01"


def after(seconds: float) -> datetime:
    return NOON + timedelta(seconds=seconds)


def granted(lease_id: str = "lease-1", **changes: Any) -> LeaseGranted:
    values: dict[str, Any] = {
        "kind": LeaseKind.SESSION,
        "session_id": SESSION_ID,
        "turn_id": TURN_ID,
        "tenant": "default",
        "num_tokens": 640,
        "num_blocks": 20,
        "num_bytes": 655_360,
        "remaining_seconds": 480.0,
    }
    return LeaseGranted(lease_id=lease_id, **values | changes)


def extended(lease_id: str = "lease-1", **changes: Any) -> LeaseExtended:
    return LeaseExtended(lease_id=lease_id, **{"remaining_seconds": 900.0} | changes)


def ended(lease_id: str = "lease-1", **changes: Any) -> LeaseEnded:
    return LeaseEnded(
        lease_id=lease_id, **{"state": LeaseState.RELEASED, "reason": "command", "num_reads": 1} | changes
    )


def decided(leg: Role = Role.PREFILL, **changes: Any) -> LegDecided:
    values: dict[str, Any] = {
        "turn_id": TURN_ID,
        "session_id": SESSION_ID,
        "decision": Decision.PULLED,
        "num_prompt_tokens": 700,
        "num_offered_tokens": 640,
        "num_verified_tokens": 640,
        "num_local_tokens": 32,
        "num_pulled_tokens": 608,
        "traceparent": TRACEPARENT,
    }
    return LegDecided(leg=leg, **values | changes)


def recorded(**changes: Any) -> TurnRecorded:
    values: dict[str, Any] = {
        "turn_id": TURN_ID,
        "session_id": SESSION_ID,
        "parent_turn_id": "",
        "tenant": "default",
        "index": 1,
        "model": "tiny",
        "prefill_engine": "p0",
        "decode_engine": "d0",
        "status": "ok",
        "http_status": 200,
        "stream": True,
        "started_age_ms": 1500.0,
        "prefill_ms": 120.0,
        "ttft_ms": 180.0,
        "duration_ms": 1500.0,
        "num_prompt_tokens": 700,
        "num_output_tokens": 40,
        "trace_id": TRACE_ID,
    }
    return TurnRecorded(**values | changes)
