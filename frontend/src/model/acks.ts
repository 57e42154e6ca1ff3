/** Where each enforcer stands with the revision it should use. Pure. */
import type { Ack } from "../types/domain";
import { since, type Instant, type Milliseconds } from "../types/units";

/** An enforcer that is silent for longer counts as drifted: a stopped engine doesn't ack. */
export const UNACKNOWLEDGED_AFTER_MS = 3_000;

export type AckView =
  | { readonly kind: "waiting"; readonly waited: Milliseconds }
  | { readonly kind: "acked"; readonly latency: Milliseconds | null }
  | { readonly kind: "drifted" }
  /** Differs only in fields that this enforcer's vLLM can't do. */
  | { readonly kind: "unsupported" }
  | { readonly kind: "unacknowledged"; readonly waited: Milliseconds | null };

export function ackView(ack: Ack, now: Instant): AckView {
  if (ack.state === "acked") return { kind: "acked", latency: ack.latency_ms };
  if (ack.state === "drifted" || ack.state === "unsupported") return { kind: ack.state };
  const waited = ack.waitingSince === null ? null : since(ack.waitingSince, now);
  if (ack.state === "unacknowledged" || waited === null || waited > UNACKNOWLEDGED_AFTER_MS) {
    return { kind: "unacknowledged", waited };
  }
  return { kind: "waiting", waited };
}
