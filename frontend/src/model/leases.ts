/** What a placement looks like at a moment: held with time left, ending, or ended with its reason. Pure. */
import type { LeaseState, Placement } from "../types/domain";
import { until, type Instant, type Milliseconds } from "../types/units";

export type LeaseView =
  | { readonly kind: "held"; readonly remaining: Milliseconds; readonly share: number }
  | { readonly kind: "pinned" }
  /** Its time is up by the page's clock; the engine's word is still on its way. */
  | { readonly kind: "ending" }
  | { readonly kind: "unknown" }
  | { readonly kind: "ended"; readonly state: Exclude<LeaseState, "held" | "unknown">; readonly reason: string };

export function leaseView(placement: Placement, now: Instant): LeaseView {
  if (placement.state === "unknown") return { kind: "unknown" };
  if (placement.state !== "held") return { kind: "ended", state: placement.state, reason: placement.end_reason };
  if (placement.pinned || placement.expiresAt === null) return { kind: "pinned" };
  const remaining = until(placement.expiresAt, now);
  if (remaining <= 0) return { kind: "ending" };
  const lifetime = placement.lifetime_ms ?? remaining;
  return { kind: "held", remaining, share: lifetime > 0 ? Math.min(1, remaining / lifetime) : 0 };
}
