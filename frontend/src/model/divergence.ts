/** Why a turn's prompt could reuse no more of what was offered, in words. Pure. */
import type { Turn } from "../types/domain";
import { formatCount } from "./format";

type Divergence = Pick<Turn, "diverged_at_token" | "diverged_at_message" | "diverged_role">;

const causes: Readonly<Record<string, string>> = {
  template: "the chat template wrote other tokens, though no message changed",
  tools: "the tools or the model changed",
};

/** Null when the prompt only went on from what was offered. */
export function divergenceText(turn: Divergence): { readonly label: string; readonly help: string } | null {
  const { diverged_at_token: token, diverged_at_message: message, diverged_role: role } = turn;
  if (token === null && role === "") return null;
  const label =
    message !== null ? `message ${formatCount(message)} changed` : role !== "" ? `${role} changed` : "prompt changed";
  const where = token === null ? "" : ` Token ids differ from token ${formatCount(token)} on, to the block.`;
  const cause = message !== null ? `message ${formatCount(message)} (${role}) is not what it was` : causes[role];
  return { label, help: `First difference from the turn whose KV was offered: ${cause ?? "not known"}.${where}` };
}
