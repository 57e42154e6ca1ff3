/** An engine's KV blocks as shares that add up, and the figures of its card. Pure. */
import type { Engine } from "../types/domain";
import { blocks, type Blocks } from "../types/units";
import { plural } from "./format";

export interface BlockUsage {
  readonly total: Blocks;
  readonly free: Blocks;
  readonly leased: Blocks;
  readonly quarantined: Blocks;
  /** Held by running requests and the engine's own prefix cache. */
  readonly other: Blocks;
}

/** Gauges are sampled one after another, so their sum may briefly exceed the total: shares are clamped, never negative. */
export function blockUsage(load: NonNullable<Engine["load"]>): BlockUsage {
  const total = load.num_blocks;
  const leased = Math.min(load.num_leased_blocks, total);
  const quarantined = Math.min(load.num_quarantined_blocks, total - leased);
  const free = Math.min(load.num_free_blocks, total - leased - quarantined);
  return {
    total,
    free: blocks(free),
    leased: blocks(leased),
    quarantined: blocks(quarantined),
    other: blocks(total - leased - quarantined - free),
  };
}

/** What the badge of a draining engine says: what is left on it, as far as it is heard. */
export function drainText(engine: Pick<Engine, "drained" | "load">): {
  readonly label: string;
  readonly title: string;
} {
  if (engine.drained) return { label: "drained", title: "Holds no lease and runs no leg; it may be stopped." };
  if (!engine.load) return { label: "draining", title: "Takes no new turns. What is left on it isn't known." };
  const { num_leases, num_running, num_waiting } = engine.load;
  const legs = num_running + num_waiting;
  return {
    label: "draining",
    title: `Takes no new turns. Left: ${plural(num_leases, "lease")}, ${plural(legs, "leg")}.`,
  };
}
