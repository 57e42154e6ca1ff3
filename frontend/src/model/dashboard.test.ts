import { describe, expect, test } from "vitest";

import { instant } from "../types/units";
import { follows, initialDashboard, MAX_TRANSFERS, reduce, type Dashboard } from "./dashboard";
import { frameOf, wireEngine, wirePlacement, wireSession, wireSnapshot, wireTransfer, wireUpdate } from "./fixtures";

const at = instant(100_000);

function after(...wires: Record<string, unknown>[]): Dashboard {
  return wires.reduce<Dashboard>(
    (state, wire) => reduce(state, { type: "frame", frame: frameOf(wire), at }),
    initialDashboard,
  );
}

describe("a snapshot", () => {
  test("replaces everything that was shown", () => {
    const first = after(wireSnapshot({ transfers: [wireTransfer()], engines: [wireEngine()] }));
    const second = reduce(first, { type: "frame", frame: frameOf(wireSnapshot({ sequence: 2 })), at });
    expect(second.transfers).toEqual([]);
    expect(second.engines).toEqual([]);
  });

  test("dates rows by the page's clock, from ages and remaining times", () => {
    const state = after(wireSnapshot({ sessions: [wireSession()], transfers: [wireTransfer({ age_ms: 1000 })] }));
    expect(state.transfers[0]?.startedAt).toBe(99_000);
    expect(state.sessions[0]?.placement?.expiresAt).toBe(560_000);
  });

  test("leaves a pinned lease without expiry", () => {
    const placement = wirePlacement({ pinned: true, remaining_ms: null, lifetime_ms: null });
    const state = after(wireSnapshot({ sessions: [wireSession({ placement })] }));
    expect(state.sessions[0]?.placement?.expiresAt).toBeNull();
  });
});

describe("an update", () => {
  test("adds new rows in front and keeps the others", () => {
    const state = after(
      wireSnapshot({ transfers: [wireTransfer()] }),
      wireUpdate(2, { transfers: [wireTransfer({ id: "t2", age_ms: 10 })] }),
    );
    expect(state.transfers.map((one) => one.id)).toEqual(["t2", "t1"]);
  });

  test("replaces a row that is known already", () => {
    const state = after(
      wireSnapshot({ sessions: [wireSession()] }),
      wireUpdate(2, {
        sessions: [wireSession({ placement: wirePlacement({ state: "expired", remaining_ms: null }) })],
      }),
    );
    expect(state.sessions).toHaveLength(1);
    expect(state.sessions[0]?.placement?.state).toBe("expired");
  });

  test("keeps lists that it doesn't mention as the same objects", () => {
    const before = after(wireSnapshot({ engines: [wireEngine()] }));
    const now = reduce(before, { type: "frame", frame: frameOf(wireUpdate(2, { transfers: [wireTransfer()] })), at });
    expect(now.engines).toBe(before.engines);
    expect(now.policy).toBe(before.policy);
  });

  test("drops the oldest transfers beyond the bound", () => {
    const many = Array.from({ length: MAX_TRANSFERS + 20 }, (_, age) => wireTransfer({ id: `t${age}`, age_ms: age }));
    const state = after(wireSnapshot(), wireUpdate(2, { transfers: many }));
    expect(state.transfers).toHaveLength(MAX_TRANSFERS);
    expect(state.transfers.at(-1)?.id).toBe(`t${MAX_TRANSFERS - 1}`);
  });

  test("sorts engines by the number in their name", () => {
    const names = ["decode-10", "decode-2", "decode-1"];
    const state = after(wireSnapshot({ engines: names.map((name) => wireEngine({ name })) }));
    expect(state.engines.map((engine) => engine.name)).toEqual(["decode-1", "decode-2", "decode-10"]);
  });
});

describe("the sequence", () => {
  const loaded = after(wireSnapshot({ sequence: 5 }));

  test("accepts the next frame only", () => {
    expect(follows(loaded, frameOf(wireUpdate(6)))).toBe(true);
    expect(follows(loaded, frameOf(wireUpdate(7)))).toBe(false);
    expect(follows(loaded, frameOf(wireUpdate(5)))).toBe(false);
  });

  test("starts again with any snapshot, and with nothing else", () => {
    expect(follows(loaded, frameOf(wireSnapshot({ sequence: 1 })))).toBe(true);
    expect(follows(initialDashboard, frameOf(wireUpdate(1)))).toBe(false);
  });
});

test("losing the connection keeps what was shown", () => {
  const loaded = after(wireSnapshot({ transfers: [wireTransfer()] }));
  const connection = { phase: "reconnecting", since: at, retryAt: at, attempt: 1 } as const;
  const state = reduce(loaded, { type: "connection", connection });
  expect(state.transfers).toBe(loaded.transfers);
  expect(state.connection).toBe(connection);
});
