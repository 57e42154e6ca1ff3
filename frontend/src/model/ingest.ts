/** Turns a frame's ages and remaining times into instants, given when the frame arrived. Pure. */
import type {
  WireAgent,
  WirePlacement,
  WirePolicy,
  WireRouter,
  WireSession,
  WireTransfer,
  WireTurn,
} from "../api/schema";
import type { Agent, Placement, Policy, Router, Session, Transfer, Turn } from "../types/domain";
import { after, before, type Instant } from "../types/units";

export function toAgent({ seen_age_ms, ...rest }: WireAgent, at: Instant): Agent {
  return { ...rest, seenAt: seen_age_ms === null ? null : before(at, seen_age_ms) };
}

export function toRouter({ seen_age_ms, ...rest }: WireRouter, at: Instant): Router {
  return { ...rest, seenAt: seen_age_ms === null ? null : before(at, seen_age_ms) };
}

export function toTurn({ age_ms, ...rest }: WireTurn, at: Instant): Turn {
  return { ...rest, startedAt: before(at, age_ms) };
}

export function toTransfer({ age_ms, ...rest }: WireTransfer, at: Instant): Transfer {
  return { ...rest, startedAt: before(at, age_ms) };
}

export function toPlacement({ granted_age_ms, remaining_ms, ...rest }: WirePlacement, at: Instant): Placement {
  return {
    ...rest,
    grantedAt: before(at, granted_age_ms),
    expiresAt: remaining_ms === null ? null : after(at, remaining_ms),
  };
}

export function toSession({ active_age_ms, placement, last_turn, ...rest }: WireSession, at: Instant): Session {
  return {
    ...rest,
    activeAt: before(at, active_age_ms),
    placement: placement && toPlacement(placement, at),
    lastTurn: last_turn && toTurn(last_turn, at),
  };
}

export function toPolicy({ revisions, acks, ...rest }: WirePolicy, at: Instant): Policy {
  return {
    ...rest,
    revisions: revisions.map(({ age_ms, ...revision }) => ({ ...revision, publishedAt: before(at, age_ms) })),
    acks: acks.map(({ waiting_ms, ...ack }) => ({
      ...ack,
      waitingSince: waiting_ms === null ? null : before(at, waiting_ms),
    })),
  };
}
