import { describe, expect, it } from "vitest";

import { blocks } from "../types/units";
import { drainText } from "./engines";

const load = {
  num_free_blocks: blocks(0),
  num_blocks: blocks(0),
  num_leases: 1,
  num_leased_blocks: blocks(0),
  num_quarantined_blocks: blocks(0),
  num_running: 2,
  num_waiting: 1,
  num_dropped_events: 0,
  num_unread_blocks: blocks(0),
};

describe("what is said of a draining engine", () => {
  it("counts what is left on it", () => {
    expect(drainText({ drained: false, load })).toEqual({
      label: "draining",
      title: "Takes no new turns. Left: 1 lease, 3 legs.",
    });
  });

  it("claims nothing of an engine that isn't heard", () => {
    expect(drainText({ drained: false, load: null }).title).toContain("isn't known");
  });

  it("says when it may be stopped", () => {
    expect(drainText({ drained: true, load }).label).toBe("drained");
  });
});
