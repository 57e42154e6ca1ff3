import { describe, expect, test } from "vitest";

import { blocks, instant } from "../types/units";
import { ackView } from "./acks";
import { initialDashboard, reduce } from "./dashboard";
import { decisionText } from "./decisions";
import { blockUsage } from "./engines";
import {
  frameOf,
  wireAck,
  wirePlacement,
  wirePolicy,
  wireSession,
  wireSnapshot,
  wireTransfer,
  wireTurn,
} from "./fixtures";
import { lanesOf, median, totalsOf } from "./lanes";
import { leaseView } from "./leases";
import { recentReuse } from "./reuse";

const start = instant(1_000_000);
const later = (ms: number) => instant(start + ms);
const stateOf = (rows: Record<string, unknown>) =>
  reduce(initialDashboard, { type: "frame", frame: frameOf(wireSnapshot(rows)), at: start });

function placementOf(overrides: Record<string, unknown>) {
  const placement = stateOf({ sessions: [wireSession({ placement: wirePlacement(overrides) })] }).sessions[0]
    ?.placement;
  if (!placement) throw new Error("no placement");
  return placement;
}

const ackOf = (overrides: Record<string, unknown>) => {
  const ack = stateOf({ policy: wirePolicy({ acks: [wireAck(overrides)] }) }).policy?.acks[0];
  if (!ack) throw new Error("no ack");
  return ack;
};

const load = (free: number, leased: number, quarantined: number) => ({
  num_free_blocks: blocks(free),
  num_blocks: blocks(100),
  num_leases: 1,
  num_leased_blocks: blocks(leased),
  num_quarantined_blocks: blocks(quarantined),
  num_running: 0,
  num_waiting: 0,
  num_dropped_events: 0,
  num_unread_blocks: blocks(0),
});

describe("a lease", () => {
  const placement = placementOf({ remaining_ms: 10_000, lifetime_ms: 20_000 });

  test("counts down, then waits for the engine's word", () => {
    expect(leaseView(placement, later(4_000))).toEqual({ kind: "held", remaining: 6_000, share: 0.3 });
    expect(leaseView(placement, later(10_000))).toEqual({ kind: "ending" });
  });

  test.each(["superseded", "released", "expired", "lost"])("that is %s counts nothing down", (state) => {
    const ended = placementOf({ state, remaining_ms: null, end_reason: "ttl" });
    expect(leaseView(ended, start)).toEqual({ kind: "ended", state, reason: "ttl" });
  });

  test("that is pinned or of a silent engine has no countdown", () => {
    expect(leaseView(placementOf({ pinned: true, remaining_ms: null }), start).kind).toBe("pinned");
    expect(leaseView(placementOf({ state: "unknown", remaining_ms: null }), start).kind).toBe("unknown");
  });
});

describe("an acknowledgement", () => {
  test("is waited for, then missing after 3 s without another frame", () => {
    const ack = ackOf({ waiting_ms: 500 });
    expect(ackView(ack, later(1_000))).toEqual({ kind: "waiting", waited: 1_500 });
    expect(ackView(ack, later(2_501)).kind).toBe("unacknowledged");
  });

  test("shows its latency, or that it drifted", () => {
    expect(ackView(ackOf({ state: "acked", latency_ms: 12.4, waiting_ms: null }), start)).toEqual({
      kind: "acked",
      latency: 12.4,
    });
    expect(ackView(ackOf({ state: "drifted", waiting_ms: null }), start).kind).toBe("drifted");
    expect(ackView(ackOf({ state: "unsupported", waiting_ms: null }), start).kind).toBe("unsupported");
  });
});

describe("lanes", () => {
  const transfers = stateOf({
    transfers: [
      wireTransfer({ id: "a", age_ms: 30_000, duration_ms: 600 }),
      wireTransfer({ id: "b", direction: "P->D", source: "prefill-0", target: "decode-0", age_ms: 59_000 }),
      wireTransfer({ id: "c", age_ms: 70_000 }),
      wireTransfer({ id: "d", age_ms: 1_000, outcome: "timeout", duration_ms: 5000 }),
    ],
  }).transfers;

  test("stand forward first, per pair", () => {
    const { lanes } = lanesOf(transfers, start);
    expect(lanes.map((lane) => lane.key)).toEqual(["P->D prefill-0 decode-0", "D->P decode-0 prefill-0"]);
  });

  test("place a movement by its age and leave out what is older than the window", () => {
    const back = lanesOf(transfers, start).lanes[1];
    expect(back?.marks.map((mark) => [mark.transfer.id, mark.position, mark.width])).toEqual([
      ["d", 1 - 1 / 60, 1 / 60],
      ["a", 0.5, 0.01],
    ]);
  });

  test("stay when their minute is quiet", () => {
    expect(lanesOf(transfers, later(300_000)).lanes.map((lane) => lane.marks.length)).toEqual([0, 0]);
  });

  test("total what completed and count what didn't", () => {
    expect(totalsOf(transfers, "D->P", start)).toMatchObject({ count: 2, numTroubled: 1, tokens: 3200, medianMs: 600 });
  });

  test("have no median without a transfer", () => {
    expect(median([])).toBeNull();
    expect(median([3, 1, 2])).toBe(2);
    expect(median([4, 1, 2, 3])).toBe(2.5);
  });
});

describe("block usage", () => {
  test("adds up to the whole", () => {
    expect(blockUsage(load(60, 25, 5))).toEqual({ total: 100, free: 60, leased: 25, quarantined: 5, other: 10 });
  });

  test("never goes below zero when gauges were sampled apart", () => {
    const usage = blockUsage(load(90, 40, 10));
    expect(usage.other).toBe(0);
    expect(usage.free + usage.leased + usage.quarantined).toBe(100);
  });
});

test("recent reuse weighs turns by their prompt and leaves out those not recorded yet", () => {
  const { turns } = stateOf({
    turns: [
      wireTurn({ id: "a", prompt_tokens: 1000, reused_tokens: 900 }),
      wireTurn({ id: "b", prompt_tokens: 3000, reused_tokens: 0 }),
      wireTurn({ id: "c", prompt_tokens: 0, reused_tokens: 0 }),
    ],
  });
  expect(recentReuse(turns)).toEqual({ share: 0.225, numTurns: 2 });
  expect(recentReuse([])).toBeNull();
});

test("an unknown decision of a newer server reads as it is", () => {
  expect(decisionText("recomputed_moon_phase").label).toBe("recomputed moon phase");
  expect(decisionText("").tone).toBe("none");
});
