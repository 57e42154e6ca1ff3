/** The last minute of transfers as lanes, one per directed pair, and the totals of each direction. Pure. */
import type { Direction, Transfer } from "../types/domain";
import {
  bytes,
  gigabytesPerSecond,
  milliseconds,
  since,
  tokens,
  type Bytes,
  type Instant,
  type Milliseconds,
  type Tokens,
} from "../types/units";

export const WINDOW_MS = milliseconds(60_000);
export const MAX_LANES = 8;

export interface Mark {
  readonly transfer: Transfer;
  /** Share of the window, 0 at its old edge and 1 at now. */
  readonly position: number;
  /** Share of the window that the movement took. */
  readonly width: number;
  /** 0…1 on a log scale from 64 KB to 1 GB, so that a small read stays visible beside a large one. */
  readonly weight: number;
}

export interface Lane {
  readonly key: string;
  readonly direction: Direction;
  readonly source: string;
  readonly target: string;
  readonly marks: readonly Mark[];
}

export interface DirectionTotals {
  readonly count: number;
  readonly numTroubled: number;
  readonly tokens: Tokens;
  readonly bytes: Bytes;
  readonly medianMs: Milliseconds | null;
  readonly rate: number | null;
}

const directionOrder: Readonly<Record<Direction, number>> = { "P->D": 0, "D->P": 1 };

/** Lanes of the pairs that ever appear in `transfers`, so that a lane stays when its minute is quiet. */
export function lanesOf(transfers: readonly Transfer[], now: Instant): { lanes: readonly Lane[]; numHidden: number } {
  const lanes = new Map<string, Lane & { marks: Mark[] }>();
  for (const transfer of transfers) {
    const key = `${transfer.direction} ${transfer.source} ${transfer.target}`;
    let lane = lanes.get(key);
    if (!lane) {
      if (lanes.size >= MAX_LANES) continue;
      const { direction, source, target } = transfer;
      lane = { key, direction, source, target, marks: [] };
      lanes.set(key, lane);
    }
    const age = since(transfer.startedAt, now);
    if (age <= WINDOW_MS) lane.marks.push(markOf(transfer, age));
  }
  const keys = new Set(transfers.map((one) => `${one.direction} ${one.source} ${one.target}`));
  return { lanes: [...lanes.values()].toSorted(byPairThenDirection), numHidden: keys.size - lanes.size };
}

function markOf(transfer: Transfer, age: Milliseconds): Mark {
  const scale = Math.log(Math.max(transfer.bytes, 64e3) / 64e3) / Math.log(1e9 / 64e3);
  return {
    transfer,
    position: 1 - age / WINDOW_MS,
    width: Math.min(transfer.duration_ms, age) / WINDOW_MS,
    weight: Math.min(1, scale),
  };
}

export function totalsOf(transfers: readonly Transfer[], direction: Direction, now: Instant): DirectionTotals {
  const recent = transfers.filter((one) => one.direction === direction && since(one.startedAt, now) <= WINDOW_MS);
  const completed = recent.filter((one) => one.outcome === "completed");
  const moved = bytes(completed.reduce((sum, one) => sum + one.bytes, 0));
  const busy = milliseconds(completed.reduce((sum, one) => sum + one.duration_ms, 0));
  return {
    count: recent.length,
    numTroubled: recent.length - completed.length,
    tokens: tokens(completed.reduce((sum, one) => sum + one.tokens, 0)),
    bytes: moved,
    medianMs: median(completed.map((one) => one.duration_ms)),
    rate: gigabytesPerSecond(moved, busy),
  };
}

export function median(values: readonly number[]): Milliseconds | null {
  const sorted = values.toSorted((a, b) => a - b);
  const middle = sorted.length >> 1;
  const upper = sorted[middle];
  if (upper === undefined) return null;
  const lower = sorted.length % 2 === 0 ? (sorted[middle - 1] ?? upper) : upper;
  return milliseconds((lower + upper) / 2);
}

/** Both directions of one pair stand next to each other, the forward one first. */
function byPairThenDirection(a: Lane, b: Lane): number {
  const pairOf = (lane: Lane) =>
    lane.direction === "P->D" ? `${lane.source}\0${lane.target}` : `${lane.target}\0${lane.source}`;
  const [left, right] = [pairOf(a), pairOf(b)];
  if (left !== right) return left < right ? -1 : 1;
  return directionOrder[a.direction] - directionOrder[b.direction];
}
