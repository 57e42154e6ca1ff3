"""Storing spans once and deleting old ones, both in bulk."""

from collections.abc import Sequence
from datetime import datetime

import msgspec
from django.db import connection

from controlplane.tracing.otlp import SpanRow

STORE_SPANS = """
INSERT INTO tracing_span (
    trace_id, span_id, parent_span_id, name, kind, service, start_ns, end_ns, status_code, status_message, attributes,
    events, links, num_dropped)
SELECT r.*
FROM jsonb_to_recordset(%s) AS r(
    trace_id uuid, span_id bigint, parent_span_id bigint, name text, kind smallint, service text, start_ns bigint,
    end_ns bigint, status_code smallint, status_message text, attributes jsonb, events jsonb, links jsonb,
    num_dropped int)
ORDER BY r.trace_id, r.span_id
ON CONFLICT (trace_id, span_id) DO NOTHING
"""

DELETE_SPANS = """
DELETE FROM tracing_span
WHERE ctid = ANY(ARRAY(SELECT ctid FROM tracing_span WHERE received_at < %s LIMIT %s))
"""


def store_spans(rows: Sequence[SpanRow]) -> int:
    """Stores the spans that aren't there yet, in one statement; returns how many those were.

    In the order of their keys, so that two exports of the same spans wait for each other instead of deadlocking.
    """
    if not rows:
        return 0
    with connection.cursor() as cursor:
        cursor.execute(STORE_SPANS, (msgspec.json.encode(rows).decode(),))
        return int(cursor.rowcount)


def delete_spans(*, received_before: datetime, limit: int) -> int:
    """Deletes at most ``limit`` spans that arrived before then; returns how many."""
    with connection.cursor() as cursor:
        cursor.execute(DELETE_SPANS, (received_before, limit))
        return int(cursor.rowcount)
