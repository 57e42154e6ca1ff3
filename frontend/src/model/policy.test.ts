import { describe, expect, test } from "vitest";

import { checkDraft, diffPatch, emptyDraft, formatPolicyValue, INHERIT, policyFields, type Draft } from "./policy";

function draft(inputs: Record<string, string>, more: Partial<Draft> = {}): Draft {
  return { ...emptyDraft, reason: "because", inputs, ...more };
}

describe("limits mirror the wire contract's", () => {
  test.each([
    ["kv_recompute_threshold", "-1"],
    ["kv_recompute_threshold", "1.5"],
    ["kv_recompute_threshold", "many"],
    ["kv_recompute_threshold", "1e3"],
    ["decoder_kv_blocks_ttl", "5"],
    ["decoder_kv_blocks_ttl", "9"],
    ["decoder_kv_blocks_ttl", "-10"],
    ["kv_pull_deadline", "0"],
    ["kv_pull_deadline", "3601"],
    ["kv_lease_duration", "0"],
    ["kv_lease_duration", "86401"],
    ["pinned_kv_limit", "1.01"],
    ["pinned_kv_limit", "-0.1"],
    ["decode_local_max_new_tokens", "-1"],
    ["trace_sampling", "2"],
    ["bidirectional_kv_xfer", "maybe"],
    ["kv_recompute_threshold", "99999999999999999999"],
  ])("%s = %s is refused", (field, input) => {
    expect(checkDraft(draft({ [field]: input })).problems[field]).toBeTruthy();
  });

  test.each([
    ["kv_recompute_threshold", "0", 0],
    ["kv_recompute_threshold", " 100000 ", 100_000],
    ["decoder_kv_blocks_ttl", "0", 0],
    ["decoder_kv_blocks_ttl", "10", 10],
    ["kv_pull_deadline", "0.5", 0.5],
    ["kv_pull_deadline", "3600", 3600],
    ["pinned_kv_limit", "1", 1],
    ["trace_sampling", ".25", 0.25],
    ["bidirectional_kv_xfer", "off", false],
    ["release_on_read", "on", true],
    ["kv_recompute_threshold", INHERIT, null],
  ])("%s = %s becomes %s", (field, input, value) => {
    const checked = checkDraft(draft({ [field]: input }));
    expect(checked.problems).toEqual({});
    expect(checked.values).toEqual({ [field]: value });
  });
});

describe("a draft", () => {
  test("needs a field, a reason and a name for a narrower scope", () => {
    expect(checkDraft(draft({})).problems).toHaveProperty("form");
    expect(checkDraft(draft({ trace_sampling: "1" }, { reason: " " })).problems).toHaveProperty("reason");
    const unnamed = draft({ trace_sampling: "1" }, { scopeKind: "engine" });
    expect(checkDraft(unnamed).problems).toHaveProperty("scope");
  });

  test("names its scope as the API does", () => {
    expect(checkDraft(draft({})).scope).toBe("fleet");
    expect(checkDraft(draft({}, { scopeKind: "role", scopeName: " decode " })).scope).toBe("role:decode");
  });

  test("leaves out fields that were not touched", () => {
    expect(checkDraft(draft({ trace_sampling: "", kv_pull_deadline: "2" })).values).toEqual({ kv_pull_deadline: 2 });
  });
});

describe("the difference", () => {
  test("names only fields that would change", () => {
    const current = { kv_recompute_threshold: 64, decoder_kv_blocks_ttl: 480 };
    const values = { kv_recompute_threshold: 64, decoder_kv_blocks_ttl: 120 };
    expect(diffPatch(current, values)).toEqual([{ field: "decoder_kv_blocks_ttl", before: 480, after: 120 }]);
  });

  test("shows what a narrower scope inherits, and what it gives back", () => {
    expect(diffPatch({}, { trace_sampling: 0 })).toEqual([{ field: "trace_sampling", before: null, after: 0 }]);
    expect(diffPatch({ trace_sampling: 0 }, { trace_sampling: null })).toEqual([
      { field: "trace_sampling", before: 0, after: null },
    ]);
    expect(diffPatch({}, { trace_sampling: null })).toEqual([]);
  });
});

test("values are shown with their unit", () => {
  expect(formatPolicyValue("decoder_kv_blocks_ttl", 480)).toBe("480 s");
  expect(formatPolicyValue("kv_recompute_threshold", 100_000)).toBe("100,000 tokens");
  expect(formatPolicyValue("bidirectional_kv_xfer", false)).toBe("off");
  expect(formatPolicyValue("bidirectional_kv_xfer", null)).toBe("inherited");
  expect(formatPolicyValue("bidirectional_kv_xfer", null, "default")).toBe("default");
  expect(formatPolicyValue("pinned_kv_limit", 0.5)).toBe("50% of blocks");
  expect(formatPolicyValue("trace_sampling", 0.001)).toBe("0.1% of turns");
  expect(formatPolicyValue("field_of_a_newer_server", 3)).toBe("3");
});

test("every field explains itself", () => {
  for (const field of policyFields) {
    expect(field.help.length, field.name).toBeGreaterThan(20);
    expect(field.limits, field.name).not.toBe("");
  }
});
