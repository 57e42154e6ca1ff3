/** An engine's KV blocks as shares that add up, and the figures of its card. Pure. */
import type { Engine } from "../types/domain";
import { blocks, type Blocks } from "../types/units";

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
