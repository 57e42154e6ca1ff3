/** What the page works with: the wire's rows with ages turned into instants of the page's own clock. */
import type {
  WireAgent,
  WireEngine,
  WirePlacement,
  WirePolicy,
  WireRouter,
  WireSession,
  WireTransfer,
  WireTurn,
} from "../api/schema";
import type { Instant } from "./units";

export type Role = WireEngine["role"];
export type EngineState = WireEngine["state"];
export type Direction = WireTransfer["direction"];
export type Outcome = WireTransfer["outcome"];
export type LeaseState = WirePlacement["state"];

export type Engine = WireEngine;
export type Agent = Omit<WireAgent, "seen_age_ms"> & { readonly seenAt: Instant | null };
export type Router = Omit<WireRouter, "seen_age_ms"> & { readonly seenAt: Instant | null };
export type Turn = Omit<WireTurn, "age_ms"> & { readonly startedAt: Instant };
export type Transfer = Omit<WireTransfer, "age_ms"> & { readonly startedAt: Instant };

export type Placement = Omit<WirePlacement, "granted_age_ms" | "remaining_ms"> & {
  readonly grantedAt: Instant;
  /** Null for a pinned lease, which never expires, and for one that has ended. */
  readonly expiresAt: Instant | null;
};

export type Session = Omit<WireSession, "active_age_ms" | "placement" | "last_turn"> & {
  readonly activeAt: Instant;
  readonly placement: Placement | null;
  readonly lastTurn: Turn | null;
};

export type PolicyValue = boolean | number;
export type PolicyPatch = Readonly<Record<string, PolicyValue>>;
/** What a publication sets; null gives a field back to the wider scope. */
export type PolicyChange = Readonly<Record<string, PolicyValue | null>>;
export type FieldDiff = {
  readonly field: string;
  readonly before: PolicyValue | null;
  readonly after: PolicyValue | null;
};

export type Revision = Omit<WirePolicy["revisions"][number], "age_ms"> & { readonly publishedAt: Instant };
export type Ack = Omit<WirePolicy["acks"][number], "waiting_ms"> & {
  /** When the enforcer's silence began; null once it has acked. */
  readonly waitingSince: Instant | null;
};
export type Policy = Omit<WirePolicy, "revisions" | "acks"> & {
  readonly revisions: readonly Revision[];
  readonly acks: readonly Ack[];
};
