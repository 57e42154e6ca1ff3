/**
 * The dashboard socket's frames, validated where they enter the page. Nothing behind this module sees unchecked data.
 *
 * Times come as ages and remaining times in milliseconds as of the frame, never as wall-clock instants.
 */
import * as v from "valibot";

import { blocks, bytes, milliseconds, tokens } from "../types/units";

const count = v.pipe(v.number(), v.integer(), v.minValue(0));
const tokenCount = v.pipe(count, v.transform(tokens));
const blockCount = v.pipe(count, v.transform(blocks));
const byteCount = v.pipe(count, v.transform(bytes));
const duration = v.pipe(v.number(), v.minValue(0), v.transform(milliseconds));
const text = v.pipe(v.string(), v.maxLength(2000));
const id = v.pipe(v.string(), v.minLength(1), v.maxLength(200));

/** Empty until the engine itself has been heard. */
export const roleSchema = v.picklist(["prefill", "decode", ""]);
export const directionSchema = v.picklist(["P->D", "D->P"]);
export const outcomeSchema = v.picklist(["completed", "failed", "timeout", "fenced"]);
export const leaseStateSchema = v.picklist(["held", "superseded", "released", "expired", "lost", "unknown"]);
export const engineStateSchema = v.picklist(["ready", "stalled", "down", "silent", "pending"]);
export const ackStateSchema = v.picklist(["waiting", "acked", "drifted", "unacknowledged", "unsupported"]);

const loadSchema = v.object({
  num_free_blocks: blockCount,
  num_blocks: blockCount,
  num_leases: count,
  num_leased_blocks: blockCount,
  num_quarantined_blocks: blockCount,
  num_running: count,
  num_waiting: count,
  num_dropped_events: count,
  num_unread_blocks: blockCount,
});

export const engineSchema = v.object({
  name: id,
  role: roleSchema,
  model: text,
  state: engineStateSchema,
  draining: v.boolean(),
  drained: v.boolean(),
  incarnation: text,
  block_size: tokenCount,
  num_blocks: blockCount,
  bytes_per_block: byteCount,
  kv_dtype: text,
  vllm_version: text,
  connector_version: text,
  unsupported_fields: v.array(text),
  load: v.nullable(loadSchema),
});

export const agentSchema = v.object({
  engine: id,
  connected: v.boolean(),
  version: text,
  num_pending_events: count,
  num_dropped_events: count,
  seen_age_ms: v.nullable(duration),
});

export const routerSchema = v.object({
  name: id,
  connected: v.boolean(),
  version: text,
  num_active_turns: count,
  num_leases: count,
  num_pending_events: count,
  num_dropped_events: count,
  seen_age_ms: v.nullable(duration),
});

export const placementSchema = v.object({
  id,
  engine: text,
  tokens: tokenCount,
  blocks: blockCount,
  bytes: byteCount,
  state: leaseStateSchema,
  pinned: v.boolean(),
  end_reason: text,
  granted_age_ms: duration,
  lifetime_ms: v.nullable(duration),
  remaining_ms: v.nullable(duration),
});

export const turnSchema = v.object({
  id,
  session: id,
  index: v.nullable(count),
  prompt_tokens: tokenCount,
  output_tokens: tokenCount,
  reused_tokens: tokenCount,
  prefill_decision: text,
  decode_decision: text,
  prefill_engine: text,
  decode_engine: text,
  status: text,
  ttft_ms: v.nullable(duration),
  duration_ms: v.nullable(duration),
  trace_id: text,
  age_ms: duration,
  diverged_at_token: v.nullable(tokenCount),
  diverged_at_message: v.nullable(count),
  diverged_role: text,
});

export const sessionSchema = v.object({
  id,
  tenant: text,
  model: text,
  num_turns: count,
  active_age_ms: duration,
  placement: v.nullable(placementSchema),
  last_turn: v.nullable(turnSchema),
});

export const transferSchema = v.object({
  id,
  direction: directionSchema,
  source: text,
  target: text,
  session: text,
  turn: text,
  tokens: tokenCount,
  blocks: blockCount,
  bytes: byteCount,
  post_ms: duration,
  duration_ms: duration,
  outcome: outcomeSchema,
  reason: text,
  trace_id: text,
  span_id: text,
  age_ms: duration,
});

const policyValue = v.union([v.boolean(), v.number()]);
export const policyPatchSchema = v.record(v.string(), policyValue);

export const revisionSchema = v.object({
  revision: count,
  scope: text,
  values: policyPatchSchema,
  diff: v.array(v.object({ field: text, before: v.nullable(policyValue), after: v.nullable(policyValue) })),
  author: text,
  reason: text,
  age_ms: duration,
});

export const ackSchema = v.object({
  enforcer: id,
  kind: v.picklist(["engine", "router"]),
  revision: count,
  state: ackStateSchema,
  latency_ms: v.nullable(duration),
  waiting_ms: v.nullable(duration),
  drift: v.array(v.object({ field: text, expected: v.nullable(policyValue), actual: v.nullable(policyValue) })),
  unsupported_fields: v.array(text),
});

export const policySchema = v.object({
  revision: count,
  values: policyPatchSchema,
  scopes: v.record(v.string(), policyPatchSchema),
  revisions: v.array(revisionSchema),
  acks: v.array(ackSchema),
  num_enforcers: count,
  num_answered: count,
});

const rows = {
  engines: v.array(engineSchema),
  agents: v.array(agentSchema),
  routers: v.array(routerSchema),
  sessions: v.array(sessionSchema),
  transfers: v.array(transferSchema),
  turns: v.array(turnSchema),
};

const stamp = { sequence: count, server_now: v.pipe(v.string(), v.isoTimestamp()) };

export const frameSchema = v.variant("type", [
  v.object({
    type: v.literal("snapshot"),
    ...stamp,
    reason: v.picklist(["connect", "resync", "refresh"]),
    num_dropped: count,
    truncated: v.array(text),
    ...rows,
    policy: policySchema,
  }),
  v.object({
    type: v.literal("update"),
    ...stamp,
    engines: v.optional(rows.engines),
    agents: v.optional(rows.agents),
    routers: v.optional(rows.routers),
    sessions: v.optional(rows.sessions),
    transfers: v.optional(rows.transfers),
    turns: v.optional(rows.turns),
    policy: v.optional(policySchema),
    removed: v.optional(v.record(v.string(), v.array(id))),
  }),
  v.object({ type: v.literal("heartbeat"), ...stamp }),
]);

export type Frame = v.InferOutput<typeof frameSchema>;
export type SnapshotFrame = Extract<Frame, { type: "snapshot" }>;
export type UpdateFrame = Extract<Frame, { type: "update" }>;
export type WireEngine = v.InferOutput<typeof engineSchema>;
export type WireAgent = v.InferOutput<typeof agentSchema>;
export type WireRouter = v.InferOutput<typeof routerSchema>;
export type WirePlacement = v.InferOutput<typeof placementSchema>;
export type WireTurn = v.InferOutput<typeof turnSchema>;
export type WireSession = v.InferOutput<typeof sessionSchema>;
export type WireTransfer = v.InferOutput<typeof transferSchema>;
export type WirePolicy = v.InferOutput<typeof policySchema>;

/** The frame, or the first problem when the server speaks something this page doesn't know. */
export function parseFrame(data: string): { frame: Frame } | { problem: string } {
  let value: unknown;
  try {
    value = JSON.parse(data);
  } catch {
    return { problem: "a frame was not JSON" };
  }
  const result = v.safeParse(frameSchema, value);
  if (result.success) return { frame: result.output };
  const issue = result.issues[0];
  return { problem: `${v.getDotPath(issue) ?? "frame"}: ${issue.message}` };
}
