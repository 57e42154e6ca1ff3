"""Storing transfers: each once, with the sums of its pair, whatever is sent again."""

from collections.abc import Iterable, Sequence
from datetime import datetime
from typing import Any

import msgspec
from django.db import connection, transaction

from connector.protocol import Direction, Event, TransferOutcome, TransferRecorded
from controlplane import notify
from controlplane.fleet.actions import touch_pair
from controlplane.placement import bounds
from controlplane.placement.bounds import RefusedEventError
from controlplane.placement.facts import Dated, Refusal
from controlplane.transfers import statements
from controlplane.transfers.rollups import TransferRow, minutes_of


def apply_event(event: Event, *, engine_name: str, incarnation: str, occurred_at: datetime) -> None:
    """``apply_events`` for one event; raises ``RefusedEventError`` for one that can't be stored."""
    for refusal in apply_events([Dated(event, occurred_at)], engine_name=engine_name, incarnation=incarnation):
        raise refusal.error


@transaction.atomic
def apply_events(events: Iterable[Dated], *, engine_name: str, incarnation: str) -> list[Refusal]:
    """Stores a sender's transfers, all but the returned events; other kinds of event are ignored.

    ``incarnation`` is not kept: names say enough about a pair. Call it once per transaction, after placement's.
    """
    rows: dict[str, TransferRow] = {}
    refusals = []
    for event, occurred_at in events:
        if isinstance(event, TransferRecorded):
            try:
                row = _row_of(event, occurred_at, engine_name)
            except RefusedEventError as error:
                refusals.append(Refusal(event, error))
            else:
                rows.setdefault(row.id, row)
    if rows:
        _store(rows)
    return refusals


def _store(rows: dict[str, TransferRow]) -> None:
    new = [rows[row_id] for row_id in _execute(statements.STORE_TRANSFERS, list(rows.values()))]
    if not new:
        return
    _execute(statements.ADD_TO_MINUTES, minutes_of(new))
    for row in sorted(new, key=lambda row: (row.source, row.target, row.direction, row.started_at)):
        touch_pair(
            source=row.source,
            target=row.target,
            direction=Direction(row.direction),
            outcome=TransferOutcome(row.outcome),
            num_bytes=row.bytes,
            duration_ms=row.duration_ms,
            at=row.started_at,
        )
    notify.changed("transfer", [row.id for row in new])


def _row_of(event: TransferRecorded, occurred_at: datetime, engine_name: str) -> TransferRow:
    if event.target_engine != engine_name:
        raise RefusedEventError("a transfer is reported by the engine that read, which is its target")
    return TransferRow(
        id=bounds.identifier(event.transfer_id),
        direction=event.direction,
        source=bounds.identifier(event.source_engine, max_chars=bounds.MAX_NAME_CHARS),
        target=bounds.identifier(event.target_engine, max_chars=bounds.MAX_NAME_CHARS),
        session_id=bounds.text(event.session_id, max_chars=bounds.MAX_ID_CHARS),
        turn_id=str(bounds.turn_uuid(event.turn_id)),
        lease_id=bounds.text(event.lease_id, max_chars=bounds.MAX_ID_CHARS),
        tokens=bounds.count(event.num_tokens),
        blocks=bounds.count(event.num_blocks),
        bytes=bounds.count(event.num_bytes, high=bounds.MAX_BYTES),
        post_ms=bounds.milliseconds(event.post_ms),
        duration_ms=bounds.milliseconds(event.duration_ms),
        outcome=event.outcome,
        reason=bounds.reason(event.reason),
        ranks=bounds.count(event.num_ranks),
        # The event is made when the movement ends, so its own duration dates the start without a second age.
        started_at=bounds.moment_before(occurred_at, event.duration_ms),
        trace_id=bounds.trace_id(event.trace_id) or bounds.trace_id(event.traceparent),
        span_id=bounds.span_id(event.span_id),
    )


def _execute(statement: str, rows: Sequence[Any]) -> list[str]:
    """The first column of what the statement returns, if it returns anything."""
    with connection.cursor() as cursor:
        cursor.execute(statement, (msgspec.json.encode(rows).decode(),))
        return [row[0] for row in cursor.fetchall()] if cursor.description else []
