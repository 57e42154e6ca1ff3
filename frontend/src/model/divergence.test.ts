import { describe, expect, it } from "vitest";

import { tokens } from "../types/units";
import { divergenceText } from "./divergence";

const unchanged = { diverged_at_token: null, diverged_at_message: null, diverged_role: "" };

describe("what a turn's prompt changed", () => {
  it("says nothing of a prompt that only went on", () => {
    expect(divergenceText(unchanged)).toBeNull();
  });

  it("names the message by its index and role", () => {
    const said = divergenceText({ diverged_at_token: tokens(64), diverged_at_message: 3, diverged_role: "tool" });
    expect(said?.label).toBe("message 3 changed");
    expect(said?.help).toContain("message 3 (tool) is not what it was. Token ids differ from token 64 on");
  });

  it("tells a template and tools from messages", () => {
    expect(divergenceText({ ...unchanged, diverged_role: "tools" })?.label).toBe("tools changed");
    const template = divergenceText({ ...unchanged, diverged_at_token: tokens(0), diverged_role: "template" });
    expect(template?.label).toBe("template changed");
    expect(template?.help).toContain("though no message changed");
  });

  it("says that something changed when nobody knows which message", () => {
    const said = divergenceText({ ...unchanged, diverged_at_token: tokens(1024) });
    expect(said?.label).toBe("prompt changed");
    expect(said?.help).toContain("not known");
  });
});
