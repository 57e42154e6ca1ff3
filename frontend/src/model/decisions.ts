/** The words for a leg's reason code, and what kind of news each is. Unknown codes of a newer server read as they are. */

export type DecisionTone = "reused" | "partial" | "local" | "recomputed" | "trouble" | "none";

export interface DecisionText {
  readonly label: string;
  readonly tone: DecisionTone;
  readonly help: string;
}

const texts: Readonly<Record<string, DecisionText>> = {
  pulled: { label: "pulled", tone: "reused", help: "KV was read from the other engine." },
  trimmed_prefix_diverged: {
    label: "pulled, trimmed",
    tone: "partial",
    help: "The history changed on the way: only the common whole-block prefix was read.",
  },
  local_prefix_hit: {
    label: "local prefix hit",
    tone: "local",
    help: "The engine's own prefix cache already held it.",
  },
  decode_local: {
    label: "decode local",
    tone: "local",
    help: "The decode engine prefilled the short remainder itself.",
  },
  recomputed_below_threshold: {
    label: "below threshold",
    tone: "recomputed",
    help: "Fewer verified tokens were missing than kv_recompute_threshold, so recomputing was expected to be cheaper.",
  },
  recomputed_no_placement: { label: "no placement", tone: "recomputed", help: "No engine held KV of this session." },
  recomputed_disabled: { label: "disabled", tone: "recomputed", help: "bidirectional_kv_xfer is off in this scope." },
  recomputed_prefix_diverged: {
    label: "prefix diverged",
    tone: "recomputed",
    help: "Not even the first block of the history matched what the engine holds.",
  },
  recomputed_expired: {
    label: "lease expired",
    tone: "trouble",
    help: "The lease ended before the read could finish.",
  },
  recomputed_source_lost: { label: "source lost", tone: "trouble", help: "The engine that held the KV is gone." },
  recomputed_transfer_failed: { label: "transfer failed", tone: "trouble", help: "The NIXL read failed." },
  recomputed_timeout: { label: "timeout", tone: "trouble", help: "The read passed kv_pull_deadline." },
  recomputed_rejected: { label: "rejected", tone: "trouble", help: "The offer or its signature did not hold." },
  recomputed_quota: { label: "quota", tone: "recomputed", help: "A limit on held or pulled KV was reached." },
  recomputed_unsupported: {
    label: "unsupported",
    tone: "recomputed",
    help: "The engines' layouts or versions don't match.",
  },
};

export function decisionText(code: string): DecisionText {
  if (code === "") return { label: "–", tone: "none", help: "Not reported yet." };
  return texts[code] ?? { label: code.replaceAll("_", " "), tone: "recomputed", help: "" };
}
