"""The SQL of batch ingest: each statement takes one JSON array of rows and locks what it writes in key order.

Two batches of different senders name the same sessions and turns in different orders. Rows are therefore first made or
locked in the order of their keys (sessions, then turns, then leases), which rules deadlocks out, and updated after.
``ON CONFLICT … DO UPDATE`` locks an existing row also where its ``WHERE`` keeps it from being written (PostgreSQL
manual, INSERT).
"""

ENSURE_SESSIONS = """
INSERT INTO placement_session (id, tenant, model, created_at, last_turn_at, num_turns)
SELECT r.id, '', '', r.first_at, r.last_at, 0
FROM jsonb_to_recordset(%s) AS r(id text, first_at timestamptz, last_at timestamptz)
ORDER BY r.id
ON CONFLICT (id) DO UPDATE SET id = EXCLUDED.id WHERE false
"""

ENSURE_TURNS = """
INSERT INTO placement_turn (
    id, session_id, model, status, prompt_tokens, output_tokens, reused_tokens, offered_tokens, verified_tokens,
    local_tokens, prefill_decision, decode_decision, prefill_engine, decode_engine, prefill_decided_by,
    decode_decided_by, started_at, trace_id, diverged_role)
SELECT r.id, r.session_id, '', 'running', 0, 0, 0, 0, 0, 0, '', '', '', '', '', '', r.first_at, '', ''
FROM jsonb_to_recordset(%s) AS r(id uuid, session_id text, first_at timestamptz)
ORDER BY r.id
ON CONFLICT (id) DO UPDATE SET started_at = EXCLUDED.started_at
    WHERE placement_turn.recorded_at IS NULL AND EXCLUDED.started_at < placement_turn.started_at
RETURNING CASE WHEN xmax = 0 THEN session_id END
"""
"""Returns the session of each turn that is new, and null for one that was only dated back."""

UPDATE_SESSIONS = """
UPDATE placement_session AS s SET
    tenant = COALESCE(NULLIF(r.routed_tenant, ''), NULLIF(s.tenant, ''), r.granted_tenant),
    model = CASE WHEN r.model_at > s.model_at OR s.model_at IS NULL THEN r.model ELSE s.model END,
    model_at = GREATEST(s.model_at, r.model_at),
    created_at = LEAST(s.created_at, r.first_at),
    last_turn_at = GREATEST(s.last_turn_at, r.last_at),
    num_turns = s.num_turns + r.num_new_turns
FROM jsonb_to_recordset(%s) AS r(
    id text, first_at timestamptz, last_at timestamptz, granted_tenant text, routed_tenant text, model text,
    model_at timestamptz, num_new_turns int)
WHERE s.id = r.id
RETURNING s.id
"""

END_TURNS = """
UPDATE placement_turn AS t SET
    recorded_at = r.at, started_at = r.started_at, parent_turn_id = r.parent_turn_id, index = r.index,
    model = r.model, prefill_engine = r.prefill_engine, decode_engine = r.decode_engine, status = r.status,
    http_status = r.http_status, stream = r.stream, prefill_ms = r.prefill_ms, ttft_ms = r.ttft_ms,
    duration_ms = r.duration_ms, output_tokens = r.output_tokens,
    prompt_tokens = GREATEST(t.prompt_tokens, r.prompt_tokens),
    trace_id = COALESCE(NULLIF(r.trace_id, ''), t.trace_id),
    diverged_at_message = r.diverged_at_message, diverged_role = r.diverged_role
FROM jsonb_to_recordset(%s) AS r(
    id uuid, at timestamptz, started_at timestamptz, parent_turn_id uuid, index int, model text, prefill_engine text,
    decode_engine text, status text, http_status int, stream bool, prefill_ms float, ttft_ms float, duration_ms float,
    prompt_tokens int, output_tokens int, trace_id text, diverged_at_message int, diverged_role text)
WHERE t.id = r.id
"""

DECIDE_PREFILL = """
UPDATE placement_turn AS t SET
    prefill_decision = r.decision, prefill_decided_by = r.engine, prefill_decided_at = r.at,
    offered_tokens = r.offered_tokens, verified_tokens = r.verified_tokens, local_tokens = r.local_tokens,
    reused_tokens = r.reused_tokens, diverged_at_token = r.diverged_at_token,
    prompt_tokens = GREATEST(t.prompt_tokens, r.prompt_tokens),
    trace_id = COALESCE(NULLIF(t.trace_id, ''), r.trace_id)
FROM jsonb_to_recordset(%s) AS r(
    id uuid, at timestamptz, engine text, decision text, prompt_tokens int, offered_tokens int, verified_tokens int,
    local_tokens int, reused_tokens int, trace_id text, diverged_at_token int)
WHERE t.id = r.id
  AND (t.prefill_decided_at IS NULL OR (r.at, r.engine) >= (t.prefill_decided_at, t.prefill_decided_by))
"""

DECIDE_DECODE = """
UPDATE placement_turn AS t SET
    decode_decision = r.decision, decode_decided_by = r.engine, decode_decided_at = r.at,
    prompt_tokens = GREATEST(t.prompt_tokens, r.prompt_tokens),
    trace_id = COALESCE(NULLIF(t.trace_id, ''), r.trace_id)
FROM jsonb_to_recordset(%s) AS r(
    id uuid, at timestamptz, engine text, decision text, prompt_tokens int, offered_tokens int, verified_tokens int,
    local_tokens int, reused_tokens int, trace_id text)
WHERE t.id = r.id
  AND (t.decode_decided_at IS NULL OR (r.at, r.engine) >= (t.decode_decided_at, t.decode_decided_by))
"""

ENSURE_PLACEMENTS = """
INSERT INTO placement_placement (
    id, tenant, engine, incarnation, tokens, blocks, bytes, granted_at, pinned, state, end_reason, is_end_reported,
    num_reads)
SELECT r.id, '', %s, %s, 0, 0, 0, r.first_at, false, 'held', '', false, 0
FROM jsonb_to_recordset(%s) AS r(id text, first_at timestamptz)
ORDER BY r.id
ON CONFLICT (id) DO UPDATE SET granted_at = EXCLUDED.granted_at
    WHERE placement_placement.session_id IS NULL AND EXCLUDED.granted_at < placement_placement.granted_at
RETURNING id
"""

GRANT_PLACEMENTS = """
UPDATE placement_placement AS p SET
    session_id = r.session_id, turn_id = r.turn_id, tenant = r.tenant, tokens = r.tokens, blocks = r.blocks,
    bytes = r.bytes, granted_at = LEAST(p.granted_at, r.at),
    expires_at = CASE WHEN p.expiry_known_at >= r.at THEN p.expires_at ELSE r.expires_at END,
    pinned = CASE WHEN p.expiry_known_at >= r.at THEN p.pinned ELSE r.pinned END,
    expiry_known_at = GREATEST(p.expiry_known_at, r.at)
FROM jsonb_to_recordset(%s) AS r(
    id text, at timestamptz, session_id text, turn_id uuid, tenant text, tokens int, blocks int, bytes bigint,
    expires_at timestamptz, pinned bool)
WHERE p.id = r.id AND p.engine = %s
RETURNING p.id
"""

EXTEND_PLACEMENTS = """
UPDATE placement_placement AS p SET
    expires_at = r.expires_at, pinned = r.pinned, expiry_known_at = r.at
FROM jsonb_to_recordset(%s) AS r(id text, at timestamptz, expires_at timestamptz, pinned bool)
WHERE p.id = r.id AND p.engine = %s AND (p.expiry_known_at IS NULL OR r.at >= p.expiry_known_at)
RETURNING p.id
"""

END_PLACEMENTS = """
UPDATE placement_placement AS p SET
    state = r.state, ended_at = r.at, end_reason = r.reason, num_reads = r.num_reads, is_end_reported = true
FROM jsonb_to_recordset(%s) AS r(id text, at timestamptz, state text, reason text, num_reads int)
WHERE p.id = r.id AND p.engine = %s AND NOT p.is_end_reported
RETURNING p.id
"""

LOSE_LATE_GRANTS = """
UPDATE placement_placement AS p SET
    state = 'lost', end_reason = 'not_listed', ended_at = GREATEST(p.granted_at, LEAST(p.expires_at, now()))
FROM placement_leaselisting AS l
WHERE p.id = ANY(%s) AND p.engine = l.engine AND p.state = 'held'
  AND (p.incarnation = l.lost_incarnation OR p.granted_at < l.listed_at - %s)
RETURNING p.id
"""

REVIVE_PLACEMENTS = """
UPDATE placement_placement AS p SET state = 'held', ended_at = NULL, end_reason = ''
WHERE p.id = ANY(%s) AND p.engine = %s AND p.incarnation = %s AND p.state <> 'held' AND NOT p.is_end_reported
RETURNING p.id
"""

LOCK_PLACEMENTS = """
SELECT id FROM placement_placement
WHERE (engine = %s AND state IN ('held', 'unknown')) OR id = ANY(%s)
ORDER BY id FOR UPDATE
"""

LOSE_UNLISTED = """
UPDATE placement_placement AS p SET
    state = CASE WHEN p.expires_at <= %(at)s THEN 'expired' ELSE 'lost' END,
    ended_at = LEAST(p.expires_at, %(at)s),
    end_reason = 'not_listed'
WHERE engine = %(engine)s AND incarnation = %(incarnation)s AND state IN ('held', 'unknown') AND id <> ALL(%(listed)s)
RETURNING p.id
"""

LOSE_INCARNATION = """
WITH gone AS (
    SELECT id FROM placement_placement
    WHERE engine = %(engine)s AND state IN ('held', 'unknown')
      AND incarnation = %(incarnation)s
    ORDER BY id FOR UPDATE)
UPDATE placement_placement AS p SET state = 'lost', ended_at = %(at)s, end_reason = 'incarnation_lost'
FROM gone WHERE p.id = gone.id
RETURNING p.id
"""

LOSE_OTHER_INCARNATIONS = """
WITH gone AS (
    SELECT id FROM placement_placement
    WHERE engine = %(engine)s AND state IN ('held', 'unknown')
      AND incarnation <> %(incarnation)s
    ORDER BY id FOR UPDATE)
UPDATE placement_placement AS p SET state = 'lost', ended_at = %(at)s, end_reason = 'incarnation_lost'
FROM gone WHERE p.id = gone.id
RETURNING p.id
"""

DOUBT_PLACEMENTS = """
WITH doubtful AS (
    SELECT id FROM placement_placement
    WHERE engine = %(engine)s AND state IN ('held', 'unknown')
    ORDER BY id FOR UPDATE)
UPDATE placement_placement AS p SET state = 'unknown'
FROM doubtful WHERE p.id = doubtful.id AND p.state = 'held'
RETURNING p.id
"""

EXPIRE_PLACEMENTS = """
WITH overdue AS (
    SELECT id FROM placement_placement
    WHERE state IN ('held', 'unknown') AND expires_at < %(overdue_since)s
    ORDER BY expires_at LIMIT %(limit)s FOR UPDATE SKIP LOCKED)
UPDATE placement_placement AS p SET state = 'expired', end_reason = 'overdue', ended_at = p.expires_at
FROM overdue WHERE p.id = overdue.id
RETURNING p.id
"""
