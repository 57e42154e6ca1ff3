/**
 * The page's one state and how frames and the connection change it. Pure: the caller passes the time.
 *
 * Lists stay bounded however long the page is open: transfers and turns keep the newest, sessions the last active.
 */
import type { Frame, SnapshotFrame, UpdateFrame } from "../api/schema";
import type { Agent, Engine, Policy, Router, Session, Transfer, Turn } from "../types/domain";
import type { Instant } from "../types/units";
import { toAgent, toPolicy, toRouter, toSession, toTransfer, toTurn } from "./ingest";

export const MAX_ENGINES = 200;
export const MAX_TRANSFERS = 100;
export const MAX_SESSIONS = 50;
export const MAX_TURNS = 600;

export type Connection =
  | { readonly phase: "connecting" }
  | { readonly phase: "live" }
  | { readonly phase: "reconnecting"; readonly since: Instant; readonly retryAt: Instant; readonly attempt: number }
  | { readonly phase: "signed_out" }
  | { readonly phase: "incompatible"; readonly problem: string };

export interface Dashboard {
  readonly connection: Connection;
  /** False until the first snapshot; the lists below mean nothing before. */
  readonly isLoaded: boolean;
  readonly sequence: number;
  readonly snapshotAt: Instant | null;
  readonly lastFrameAt: Instant | null;
  readonly serverNow: { readonly iso: string; readonly at: Instant } | null;
  readonly numDropped: number;
  readonly truncated: readonly string[];
  readonly engines: readonly Engine[];
  readonly agents: readonly Agent[];
  readonly routers: readonly Router[];
  readonly sessions: readonly Session[];
  readonly transfers: readonly Transfer[];
  readonly turns: readonly Turn[];
  readonly policy: Policy | null;
}

export type Action =
  | { readonly type: "frame"; readonly frame: Frame; readonly at: Instant }
  | { readonly type: "connection"; readonly connection: Connection };

export const initialDashboard: Dashboard = {
  connection: { phase: "connecting" },
  isLoaded: false,
  sequence: 0,
  snapshotAt: null,
  lastFrameAt: null,
  serverNow: null,
  numDropped: 0,
  truncated: [],
  engines: [],
  agents: [],
  routers: [],
  sessions: [],
  transfers: [],
  turns: [],
  policy: null,
};

export function reduce(state: Dashboard, action: Action): Dashboard {
  if (action.type === "connection") return { ...state, connection: action.connection };
  const { frame, at } = action;
  const stamped: Dashboard = {
    ...state,
    connection: { phase: "live" },
    sequence: frame.sequence,
    lastFrameAt: at,
    serverNow: { iso: frame.server_now, at },
  };
  if (frame.type === "snapshot") return fromSnapshot(stamped, frame, at);
  if (frame.type === "update") return fromUpdate(stamped, frame, at);
  return stamped;
}

/** Whether a frame follows the last one; anything else means rows were missed and a new snapshot is due. */
export function follows(state: Dashboard, frame: Frame): boolean {
  return frame.type === "snapshot" || (state.isLoaded && frame.sequence === state.sequence + 1);
}

function fromSnapshot(state: Dashboard, frame: SnapshotFrame, at: Instant): Dashboard {
  return {
    ...state,
    isLoaded: true,
    snapshotAt: at,
    numDropped: frame.num_dropped,
    truncated: frame.truncated,
    engines: merge([], frame.engines, nameOf, byName, MAX_ENGINES),
    agents: frame.agents.map((row) => toAgent(row, at)),
    routers: merge(
      [],
      frame.routers.map((row) => toRouter(row, at)),
      nameOf,
      byName,
      MAX_ENGINES,
    ),
    sessions: merge(
      [],
      frame.sessions.map((row) => toSession(row, at)),
      idOf,
      byActivity,
      MAX_SESSIONS,
    ),
    transfers: merge(
      [],
      frame.transfers.map((row) => toTransfer(row, at)),
      idOf,
      byStart,
      MAX_TRANSFERS,
    ),
    turns: merge(
      [],
      frame.turns.map((row) => toTurn(row, at)),
      idOf,
      byStart,
      MAX_TURNS,
    ),
    policy: toPolicy(frame.policy, at),
  };
}

function fromUpdate(state: Dashboard, frame: UpdateFrame, at: Instant): Dashboard {
  const gone = (kind: string) => new Set(frame.removed?.[kind]);
  const engines = without(state.engines, gone("engines"), nameOf);
  const agents = without(state.agents, gone("agents"), engineOf);
  const routers = without(state.routers, gone("routers"), nameOf);
  const sessions = without(state.sessions, gone("sessions"), idOf);
  return {
    ...state,
    engines: merge(engines, frame.engines, nameOf, byName, MAX_ENGINES),
    agents: merge(
      agents,
      frame.agents?.map((row) => toAgent(row, at)),
      engineOf,
      byEngine,
      MAX_ENGINES,
    ),
    routers: merge(
      routers,
      frame.routers?.map((row) => toRouter(row, at)),
      nameOf,
      byName,
      MAX_ENGINES,
    ),
    sessions: merge(
      sessions,
      frame.sessions?.map((row) => toSession(row, at)),
      idOf,
      byActivity,
      MAX_SESSIONS,
    ),
    transfers: merge(
      state.transfers,
      frame.transfers?.map((row) => toTransfer(row, at)),
      idOf,
      byStart,
      MAX_TRANSFERS,
    ),
    turns: merge(
      state.turns,
      frame.turns?.map((row) => toTurn(row, at)),
      idOf,
      byStart,
      MAX_TURNS,
    ),
    policy: frame.policy ? toPolicy(frame.policy, at) : state.policy,
  };
}

type Order<Row> = (a: Row, b: Row) => number;

/** Replaces rows of the same key, keeps the order and the bound. The same array comes back when nothing changed. */
function merge<Row>(
  current: readonly Row[],
  changed: readonly Row[] | undefined,
  keyOf: (row: Row) => string,
  order: Order<Row>,
  limit = Number.POSITIVE_INFINITY,
): readonly Row[] {
  if (!changed || changed.length === 0) return current;
  const rows = new Map(current.map((row) => [keyOf(row), row]));
  for (const row of changed) rows.set(keyOf(row), row);
  return [...rows.values()].toSorted(order).slice(0, limit);
}

function without<Row>(rows: readonly Row[], gone: ReadonlySet<string>, keyOf: (row: Row) => string): readonly Row[] {
  return gone.size === 0 ? rows : rows.filter((row) => !gone.has(keyOf(row)));
}

const nameOf = (row: { readonly name: string }) => row.name;
const idOf = (row: { readonly id: string }) => row.id;
const engineOf = (row: { readonly engine: string }) => row.engine;
const byName = (a: { readonly name: string }, b: { readonly name: string }) => compareNatural(a.name, b.name);
const byEngine = (a: { readonly engine: string }, b: { readonly engine: string }) => compareNatural(a.engine, b.engine);
const byActivity = (a: Session, b: Session) => b.activeAt - a.activeAt || compareText(b.id, a.id);
const byStart = (a: { readonly startedAt: Instant; readonly id: string }, b: typeof a) =>
  b.startedAt - a.startedAt || compareText(b.id, a.id);

const collator = new Intl.Collator("en", { numeric: true });
const compareNatural = (a: string, b: string) => collator.compare(a, b);
const compareText = (a: string, b: string) => (a < b ? -1 : a > b ? 1 : 0);
