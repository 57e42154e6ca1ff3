/** Wire rows for tests, as the control plane sends them; a test overrides what it is about. */
import type { Frame, SnapshotFrame } from "../api/schema";
import { parseFrame } from "../api/schema";

type Json = Record<string, unknown>;

export function wireTransfer(overrides: Json = {}): Json {
  return {
    id: "t1",
    direction: "D->P",
    source: "decode-0",
    target: "prefill-0",
    session: "s1",
    turn: "u1",
    tokens: 3200,
    blocks: 100,
    bytes: 39_321_600,
    post_ms: 1.5,
    duration_ms: 40,
    outcome: "completed",
    reason: "",
    trace_id: "0af7651916cd43dd8448eb211c80319c",
    span_id: "b7ad6b7169203331",
    age_ms: 1000,
    ...overrides,
  };
}

export function wirePlacement(overrides: Json = {}): Json {
  return {
    id: "l1",
    engine: "decode-0",
    tokens: 3200,
    blocks: 100,
    bytes: 39_321_600,
    state: "held",
    pinned: false,
    end_reason: "",
    granted_age_ms: 20_000,
    lifetime_ms: 480_000,
    remaining_ms: 460_000,
    ...overrides,
  };
}

export function wireSession(overrides: Json = {}): Json {
  return {
    id: "s1",
    tenant: "default",
    model: "tiny",
    num_turns: 2,
    active_age_ms: 20_000,
    placement: wirePlacement(),
    last_turn: null,
    ...overrides,
  };
}

export function wireTurn(overrides: Json = {}): Json {
  return {
    id: "u1",
    session: "s1",
    index: 1,
    prompt_tokens: 700,
    output_tokens: 40,
    reused_tokens: 608,
    prefill_decision: "pulled",
    decode_decision: "pulled",
    prefill_engine: "prefill-0",
    decode_engine: "decode-0",
    status: "ok",
    ttft_ms: 180,
    duration_ms: 1500,
    trace_id: "",
    age_ms: 5000,
    diverged_at_token: null,
    diverged_at_message: null,
    diverged_role: "",
    ...overrides,
  };
}

export function wirePolicy(overrides: Json = {}): Json {
  return {
    revision: 1,
    values: { kv_recompute_threshold: 64, bidirectional_kv_xfer: true },
    scopes: {},
    revisions: [],
    acks: [],
    num_enforcers: 0,
    num_answered: 0,
    ...overrides,
  };
}

export function wireAck(overrides: Json = {}): Json {
  return {
    enforcer: "prefill-0",
    kind: "engine",
    revision: 2,
    state: "waiting",
    latency_ms: null,
    waiting_ms: 0,
    drift: [],
    unsupported_fields: [],
    ...overrides,
  };
}

export function wireEngine(overrides: Json = {}): Json {
  return {
    name: "prefill-0",
    role: "prefill",
    model: "tiny",
    state: "ready",
    draining: false,
    drained: false,
    incarnation: "0d3f",
    block_size: 32,
    num_blocks: 2048,
    bytes_per_block: 393_216,
    kv_dtype: "bfloat16",
    vllm_version: "0.32.0",
    connector_version: "0.1.0",
    unsupported_fields: [],
    load: null,
    ...overrides,
  };
}

export function wireSnapshot(overrides: Json = {}): Json {
  return {
    type: "snapshot",
    sequence: 1,
    server_now: "2026-11-30T12:00:00.123456Z",
    reason: "connect",
    num_dropped: 0,
    truncated: [],
    engines: [],
    agents: [],
    routers: [],
    sessions: [],
    transfers: [],
    turns: [],
    policy: wirePolicy(),
    ...overrides,
  };
}

export function wireUpdate(sequence: number, rows: Json = {}): Json {
  return { type: "update", sequence, server_now: "2026-11-30T12:00:01Z", ...rows };
}

export function frameOf(wire: Json): Frame {
  const parsed = parseFrame(JSON.stringify(wire));
  if ("problem" in parsed) throw new Error(parsed.problem);
  return parsed.frame;
}

export function snapshotOf(wire: Json): SnapshotFrame {
  const frame = frameOf(wire);
  if (frame.type !== "snapshot") throw new Error("not a snapshot");
  return frame;
}
