"""Sums per pair and minute, for charts that must not scan transfers; pure."""

from bisect import bisect_left
from collections.abc import Iterable
from datetime import datetime

import msgspec

from connector.protocol import TransferOutcome

BUCKET_BOUNDS_MS = (1.0, 2.0, 5.0, 10.0, 20.0, 50.0, 100.0, 200.0, 500.0, 1000.0, 2000.0, 5000.0)
"""Upper bounds, inclusive; one more bucket takes what is beyond."""


class TransferRow(msgspec.Struct, kw_only=True, frozen=True):
    """A transfer with the column names of its table."""

    id: str
    direction: str
    source: str
    target: str
    session_id: str
    turn_id: str
    lease_id: str
    tokens: int
    blocks: int
    bytes: int
    post_ms: float
    duration_ms: float
    outcome: str
    reason: str
    ranks: int
    started_at: datetime
    trace_id: str
    span_id: str


class MinuteRow(msgspec.Struct, kw_only=True):
    minute: datetime
    source: str
    target: str
    direction: str
    buckets: list[int]
    count: int = 0
    failures: int = 0
    tokens: int = 0
    bytes: int = 0
    duration_ms_sum: float = 0.0
    duration_ms_max: float = 0.0

    def add(self, transfer: TransferRow) -> None:
        self.count += 1
        if transfer.outcome != TransferOutcome.COMPLETED:
            self.failures += 1
            return
        self.tokens += transfer.tokens
        self.bytes += transfer.bytes
        self.duration_ms_sum += transfer.duration_ms
        self.duration_ms_max = max(self.duration_ms_max, transfer.duration_ms)
        self.buckets[bisect_left(BUCKET_BOUNDS_MS, transfer.duration_ms)] += 1


Key = tuple[datetime, str, str, str]


def minutes_of(transfers: Iterable[TransferRow]) -> list[MinuteRow]:
    """One row per minute and pair, in the order of their key."""
    rows: dict[Key, MinuteRow] = {}
    for transfer in transfers:
        minute = transfer.started_at.replace(second=0, microsecond=0)
        key = (minute, transfer.source, transfer.target, transfer.direction)
        if key not in rows:
            rows[key] = MinuteRow(
                minute=minute,
                source=transfer.source,
                target=transfer.target,
                direction=transfer.direction,
                buckets=[0] * (len(BUCKET_BOUNDS_MS) + 1),
            )
        rows[key].add(transfer)
    return [rows[key] for key in sorted(rows)]
