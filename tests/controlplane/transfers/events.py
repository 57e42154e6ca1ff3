"""A transfer as the engine that read reports it, with every field changeable."""

from typing import Any

from connector.protocol import Direction, TransferOutcome, TransferRecorded
from tests.controlplane.placement.events import SESSION_ID, TRACEPARENT, TURN_ID


def moved(transfer_id: str = "transfer-1", **changes: Any) -> TransferRecorded:
    values: dict[str, Any] = {
        "direction": Direction.DECODE_TO_PREFILL,
        "source_engine": "d0",
        "target_engine": "p0",
        "session_id": SESSION_ID,
        "turn_id": TURN_ID,
        "lease_id": "lease-1",
        "num_tokens": 608,
        "num_blocks": 19,
        "num_bytes": 622_592,
        "post_ms": 0.4,
        "duration_ms": 12.5,
        "start_age_ms": 13.0,
        "outcome": TransferOutcome.COMPLETED,
        "traceparent": TRACEPARENT,
        "span_id": "00f067aa0ba902b7",
    }
    return TransferRecorded(transfer_id=transfer_id, **values | changes)
