/** How much of the recent prompts was not recomputed, the number that the product is about. Pure. */
import type { Turn } from "../types/domain";

export const RECENT_TURNS = 50;

/** Of the newest turns with a known prompt; null without any. `turns` are newest first. */
export function recentReuse(turns: readonly Turn[]): { readonly share: number; readonly numTurns: number } | null {
  const known = turns.filter((turn) => turn.prompt_tokens > 0).slice(0, RECENT_TURNS);
  const prompt = known.reduce((sum, turn) => sum + turn.prompt_tokens, 0);
  if (prompt === 0) return null;
  return { share: known.reduce((sum, turn) => sum + turn.reused_tokens, 0) / prompt, numTurns: known.length };
}
