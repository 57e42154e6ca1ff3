/**
 * Policy fields with units, limits and help, the scopes, and what a publication would change.
 *
 * The limits mirror the wire contract's so that a mistake is seen before it is sent; the server checks again.
 */
import type { FieldDiff, PolicyChange, PolicyPatch, PolicyValue } from "../types/domain";

export interface PolicyField {
  readonly name: string;
  readonly kind: "switch" | "integer" | "number" | "share";
  readonly unit: string;
  readonly actsAt: string;
  readonly help: string;
  readonly limits: string;
  readonly problem: (value: number) => string | null;
}

const MIN_TTL_SECONDS = 10;
const atLeastZero = (value: number) => (value < 0 ? "Must be 0 or more." : null);
const share = (value: number) => (value < 0 || value > 1 ? "Must be between 0 and 1." : null);

export const policyFields: readonly PolicyField[] = [
  {
    name: "bidirectional_kv_xfer",
    kind: "switch",
    unit: "",
    actsAt: "all",
    help: "Lets prefill engines read a session's KV back from decode engines. Off: every turn recomputes its history.",
    limits: "on or off",
    problem: () => null,
  },
  {
    name: "kv_recompute_threshold",
    kind: "integer",
    unit: "tokens",
    actsAt: "P",
    help: "Pull only when at least this many verified whole-block tokens are missing from P's own cache.",
    limits: "0 or more",
    problem: atLeastZero,
  },
  {
    name: "decoder_kv_blocks_ttl",
    kind: "integer",
    unit: "s",
    actsAt: "D",
    help: "How long D keeps a finished turn's blocks. A change re-deadlines held leases; 0 grants none and releases them.",
    limits: `0, or ${MIN_TTL_SECONDS} or more`,
    problem: (value) =>
      value < 0 || (value > 0 && value < MIN_TTL_SECONDS)
        ? `Must be 0 or at least ${MIN_TTL_SECONDS} s: prefill declines a lease in its last 5 s.`
        : null,
  },
  {
    name: "kv_pull_deadline",
    kind: "number",
    unit: "s",
    actsAt: "P, D",
    help: "A read that takes longer is given up and the prefill recomputed; its blocks wait in quarantine.",
    limits: "above 0, up to 3,600",
    problem: (value) => (value <= 0 || value > 3600 ? "Must be above 0 and at most 3,600 s." : null),
  },
  {
    name: "kv_lease_duration",
    kind: "integer",
    unit: "s",
    actsAt: "P",
    help: "How long P keeps a finished prefill for D to read.",
    limits: "1 to 86,400",
    problem: (value) => (value < 1 || value > 86_400 ? "Must be between 1 and 86,400 s." : null),
  },
  {
    name: "pinned_kv_limit",
    kind: "share",
    unit: "of blocks",
    actsAt: "D",
    help: "Share of D's KV blocks that leases may hold. Past it the oldest lease is released.",
    limits: "0 to 1",
    problem: share,
  },
  {
    name: "release_on_read",
    kind: "switch",
    unit: "",
    actsAt: "D",
    help: "Frees D's blocks after one read, as stock vLLM does.",
    limits: "on or off",
    problem: () => null,
  },
  {
    name: "decode_local_max_new_tokens",
    kind: "integer",
    unit: "tokens",
    actsAt: "router",
    help: "A turn that adds at most this many tokens skips the prefill engine. 0 turns that off.",
    limits: "0 or more",
    problem: atLeastZero,
  },
  {
    name: "trace_sampling",
    kind: "share",
    unit: "of turns",
    actsAt: "router",
    help: "Share of turns whose spans are exported. Transfer rows are always recorded.",
    limits: "0 to 1",
    problem: share,
  },
];

const fieldsByName = new Map(policyFields.map((field) => [field.name, field]));
export const policyField = (name: string): PolicyField | undefined => fieldsByName.get(name);

/** `unset` is the word for a field that its scope doesn't set: a narrower scope inherits, the fleet has defaults. */
export function formatPolicyValue(name: string, value: PolicyValue | null | undefined, unset = "inherited"): string {
  if (value === null || value === undefined) return unset;
  if (typeof value === "boolean") return value ? "on" : "off";
  const field = policyField(name);
  if (field?.kind === "share") return `${digits.format(value * 100)}% ${field.unit}`;
  return field?.unit ? `${digits.format(value)} ${field.unit}` : digits.format(value);
}

const digits = new Intl.NumberFormat("en", { maximumFractionDigits: 6 });

// ---- the publish form

export type ScopeKind = "fleet" | "model" | "role" | "engine" | "tenant" | "session";
export const scopeKinds: readonly ScopeKind[] = ["fleet", "model", "role", "engine", "tenant", "session"];

export interface Draft {
  readonly scopeKind: ScopeKind;
  readonly scopeName: string;
  /** Raw input by field; an empty or absent one leaves the field alone. */
  readonly inputs: Readonly<Record<string, string>>;
  readonly reason: string;
}

export const emptyDraft: Draft = { scopeKind: "fleet", scopeName: "", inputs: {}, reason: "" };

/** As an input it gives a field back to the wider scope, or of the fleet to the default; sent as null. */
export const INHERIT = "inherit";

export const MAX_REASON_CHARS = 500;

export interface Checked {
  readonly scope: string;
  readonly values: PolicyChange;
  /** Keyed by field name, `scope`, `reason` or `form`; empty when the draft can be published. */
  readonly problems: Readonly<Record<string, string>>;
}

export function checkDraft(draft: Draft): Checked {
  const problems: Record<string, string> = {};
  const values: Record<string, PolicyValue | null> = {};
  for (const field of policyFields) {
    const raw = draft.inputs[field.name]?.trim() ?? "";
    if (raw === "") continue;
    if (raw === INHERIT) {
      values[field.name] = null;
      continue;
    }
    const parsed = parseInput(field, raw);
    if (typeof parsed === "object") problems[field.name] = parsed.problem;
    else values[field.name] = parsed;
  }
  const name = draft.scopeName.trim();
  if (draft.scopeKind !== "fleet" && name === "") problems.scope = `Name the ${draft.scopeKind}.`;
  if (draft.reason.trim() === "") problems.reason = "Say why: the reason is kept with the revision.";
  if (draft.reason.length > MAX_REASON_CHARS) problems.reason = `At most ${MAX_REASON_CHARS} characters.`;
  if (Object.keys(values).length === 0 && Object.keys(problems).every((key) => key === "reason")) {
    problems.form = "Set at least one field.";
  }
  return { scope: draft.scopeKind === "fleet" ? "fleet" : `${draft.scopeKind}:${name}`, values, problems };
}

function parseInput(field: PolicyField, raw: string): PolicyValue | { readonly problem: string } {
  if (field.kind === "switch") {
    return raw === "on" ? true : raw === "off" ? false : { problem: "Must be on or off." };
  }
  if (!/^[+-]?(\d+(\.\d*)?|\.\d+)$/.test(raw)) return { problem: "Must be a number, such as 64 or 0.5." };
  const value = Number(raw);
  if (field.kind === "integer" && !Number.isInteger(value)) return { problem: "Must be a whole number." };
  if (!Number.isSafeInteger(Math.trunc(value))) return { problem: "Is too large." };
  const problem = field.problem(value);
  return problem === null ? value : { problem };
}

type Scoped = { readonly values: PolicyPatch; readonly scopes: Readonly<Record<string, PolicyPatch>> };

/** The fields that a scope sets itself. */
export const ownPatch = (policy: Scoped, scope: string): PolicyPatch => policy.scopes[scope] ?? {};

/** What a change of the scope is compared with: its own fields; of the fleet, all that are in effect. */
export function scopePatch(policy: Scoped, scope: string): PolicyPatch {
  return scope === "fleet" ? policy.values : ownPatch(policy, scope);
}

/** What the scope's own fields are now and would be, only where they differ. */
export function diffPatch(current: PolicyPatch, values: PolicyChange): readonly FieldDiff[] {
  return policyFields
    .filter(({ name }) => values[name] !== undefined && values[name] !== (current[name] ?? null))
    .map(({ name }) => ({ field: name, before: current[name] ?? null, after: values[name] ?? null }));
}
