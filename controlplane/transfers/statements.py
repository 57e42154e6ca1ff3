"""The SQL of batch ingest: one JSON array of rows per statement, in the order of their keys."""

STORE_TRANSFERS = """
INSERT INTO transfers_transfer (
    id, direction, source, target, session_id, turn_id, lease_id, tokens, blocks, bytes, post_ms, duration_ms, outcome,
    reason, ranks, started_at, trace_id, span_id)
SELECT r.*
FROM jsonb_to_recordset(%s) AS r(
    id text, direction text, source text, target text, session_id text, turn_id uuid, lease_id text, tokens int,
    blocks int, bytes bigint, post_ms float, duration_ms float, outcome text, reason text, ranks int,
    started_at timestamptz, trace_id text, span_id text)
ORDER BY r.id
ON CONFLICT (id) DO NOTHING
RETURNING id
"""

ADD_TO_MINUTES = """
INSERT INTO transfers_pairminute AS m (
    minute, source, target, direction, count, failures, tokens, bytes, duration_ms_sum, duration_ms_max, buckets)
SELECT r.minute, r.source, r.target, r.direction, r.count, r.failures, r.tokens, r.bytes, r.duration_ms_sum,
       r.duration_ms_max, r.buckets
FROM jsonb_to_recordset(%s) AS r(
    minute timestamptz, source text, target text, direction text, count int, failures int, tokens bigint, bytes bigint,
    duration_ms_sum float, duration_ms_max float, buckets int[])
ORDER BY r.minute, r.source, r.target, r.direction
ON CONFLICT (minute, source, target, direction) DO UPDATE SET
    count = m.count + EXCLUDED.count,
    failures = m.failures + EXCLUDED.failures,
    tokens = m.tokens + EXCLUDED.tokens,
    bytes = m.bytes + EXCLUDED.bytes,
    duration_ms_sum = m.duration_ms_sum + EXCLUDED.duration_ms_sum,
    duration_ms_max = GREATEST(m.duration_ms_max, EXCLUDED.duration_ms_max),
    buckets = ARRAY(
        SELECT COALESCE(pair.old, 0) + COALESCE(pair.new, 0)
        FROM unnest(m.buckets, EXCLUDED.buckets) WITH ORDINALITY AS pair(old, new, position)
        ORDER BY pair.position)
"""
